"""From a source to batches: shuffled, augmented, resumable; bad images are left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from burn.core.types import Batch, Known
from burn.data.augment import crop_and_flip, generator, plain_view, random_view
from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.feature_cache import FeatureCache
from burn.data.view_config import ViewConfig
from burn.data.workers import QuietLoader, start_worker

Key = tuple[int, int]  # epoch, index


class Drawn(NamedTuple):
    """What is drawn of an image.

    views: uint8 (3, size, size) each. teacher_views: the same for a teacher of a size of its own;
    none where its features are known. known: float16 (views, dimension), the teacher's features of
    the views that it sees, where a cache knows them.
    """

    views: tuple[Tensor, ...]
    teacher_views: tuple[Tensor, ...] = ()
    known: Tensor | None = None


class Item(NamedTuple):
    """An image of a batch: its epoch and position, what is drawn of it, and its label.

    drawn: None where the image cannot be read. label: None where the source has none.
    """

    epoch: int
    index: int
    drawn: Drawn | None
    label: int | None


Transform = Callable[[Tensor, int, int], Drawn]  # image, epoch, index


class _Views(Dataset[Item]):
    """index -> its item."""

    def __init__(self, source: Source, transform: Transform) -> None:
        self._source, self._transform = source, transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: Key) -> Item:
        epoch, index = key
        labels = self._source.labels
        label = None if labels is None else int(labels[index])
        try:
            image = self._source.read(index)
        except UnreadableImage:
            return Item(epoch, index, None, label)
        return Item(epoch, index, self._transform(image, epoch, index), label)


def collate(items: Sequence[Item], known_shape: tuple[int, int] | None = None) -> Batch:
    """The batch of some items of an epoch.

    known_shape: number of views and dimension of the teacher's features, where there is a cache.
    """
    good = [item for item in items if item.drawn is not None]
    drawn = [item.drawn for item in items if item.drawn is not None]
    labels = [item.label for item in good if item.label is not None]
    known = None
    if known_shape is not None:
        nothing = torch.zeros(known_shape, dtype=torch.float16)
        rows = [nothing if found.known is None else found.known for found in drawn]
        unknown = [row for row, found in enumerate(drawn) if found.known is None]
        values = torch.stack(rows, dim=1) if rows else nothing[:, None][:, :0]
        known = Known(values, torch.tensor(unknown, dtype=torch.int64))
    return Batch(
        views=_stacked([found.views for found in drawn]),
        indices=torch.tensor([item.index for item in good], dtype=torch.int64),
        unreadable=tuple(item.index for item in items if item.drawn is None),
        labels=torch.tensor(labels, dtype=torch.int64) if labels else None,
        epoch=items[0].epoch,
        teacher_views=_stacked([found.teacher_views for found in drawn if found.known is None]),
        known=known,
    )


def _stacked(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(view) for view in zip(*rows, strict=True))


def random_views(
    configs: Sequence[ViewConfig],
    seed: int,
    teacher_configs: Sequence[ViewConfig] = (),
    cache: FeatureCache | None = None,
) -> Transform:
    """Pretraining's transform: a view by each of `configs`, drawn from (seed, epoch, index).

    teacher_configs: those of a teacher that sees a size of its own: the first views once more,
    with the same crop, flip and colours. cache: of the teacher's features; what it knows is not
    drawn for the teacher.
    """

    def drawn(
        image: Tensor, epoch: int, index: int, configs: Sequence[ViewConfig]
    ) -> tuple[Tensor, ...]:
        return tuple(
            random_view(image, config, generator(seed, epoch, index, view))
            for view, config in enumerate(configs)
        )

    def transform(image: Tensor, epoch: int, index: int) -> Drawn:
        views = drawn(image, epoch, index, configs)
        found = None if cache is None else cache.read(epoch, index)
        if found is not None:
            return Drawn(views, known=torch.from_numpy(found))
        return Drawn(views, drawn(image, epoch, index, teacher_configs))

    return transform


def light_views(size: int, seed: int) -> Transform:
    """The protocols' transform: one random resized crop, flipped or not.

    The crops are torchvision's, 8 to 100 % of the image, whatever a network was pretrained with.
    """
    config = ViewConfig(size=size, crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3), flip=0.5)

    def transform(image: Tensor, epoch: int, index: int) -> Drawn:
        return Drawn((crop_and_flip(image, config, generator(seed, epoch, index, 0)),))

    return transform


class EpochSampler(Sampler[list[Key]]):
    """Batches of (epoch, index): one seeded permutation an epoch.

    drop_last leaves the incomplete last batch out; where there are fewer images than one batch
    holds, the batch is all of them. Of `count` processes each takes its own part of every batch,
    `batch_size` images: together they see what one process with `count` times as many would.
    """

    def __init__(
        self, num_images: int, batch_size: int, seed: int, *, drop_last: bool, rank: int = 0,
        count: int = 1,
    ) -> None:  # fmt: skip
        assert drop_last or count == 1
        self.num_images, self.seed = num_images, seed
        self.batch_size = min(batch_size, num_images // count)
        self.rank, self.count = rank, count
        self.drop_last = drop_last
        self.epoch = 0
        self.skip = 0  # batches of the current epoch that were already used

    def __len__(self) -> int:
        whole, rest = divmod(self.num_images, self.batch_size * self.count)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[list[Key]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.num_images)
        for batch in range(self.skip, len(self)):
            start = (batch * self.count + self.rank) * self.batch_size
            yield [(self.epoch, int(i)) for i in order[start : start + self.batch_size]]


class Epochs(Protocol):
    """What yields an epoch's batches, or their keys: of `epoch`, without the first `skip`."""

    epoch: int
    skip: int

    def __len__(self) -> int: ...


class EpochLoader(QuietLoader):
    """One epoch an iteration, and it knows where it stands: its state is the batches handed out."""

    def __init__(self, epochs: Epochs, dataset: Dataset[Any], workers: int, **options: Any) -> None:
        super().__init__(
            dataset,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=start_worker,
            **options,
        )
        self._epochs = epochs
        self._used = 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._epochs.epoch, self._epochs.skip = divmod(self._used, len(self._epochs))
        for batch in super().__iter__():
            self._used += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Batches handed out since the start of the stage."""
        return {"used": self._used}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches of `state`."""
        self._used = state["used"]


class TrainLoader(EpochLoader):
    """Batches of views of a source's images.

    known_shape: as `collate` takes it.
    """

    def __init__(
        self, source: Source, transform: Transform, sampler: EpochSampler, workers: int,
        known_shape: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        views = _Views(source, transform)
        together = partial(collate, known_shape=known_shape)
        super().__init__(sampler, views, workers, batch_sampler=sampler, collate_fn=together)


def plain_batches(
    source: Source,
    config: ViewConfig,
    batch_size: int,
    workers: int,
    indices: Sequence[int] | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
) -> DataLoader[Any]:
    """Plain views of a source (or of some of its positions), in order, once.

    view: another function than `plain_view`, from an image to one of the size all share.
    """
    chosen = range(len(source)) if indices is None else indices
    keys = [(0, int(index)) for index in chosen]
    look = view or (lambda image: plain_view(image, config))
    return QuietLoader(
        _Views(source, lambda image, _epoch, _index: Drawn((look(image),))),
        batch_sampler=[keys[i : i + batch_size] for i in range(0, len(keys), batch_size)],  # type: ignore[arg-type]
        collate_fn=collate,
        num_workers=workers,
        worker_init_fn=start_worker,
    )
