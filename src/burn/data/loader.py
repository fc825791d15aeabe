"""Data loaders that shuffle, augment and resume; unreadable images are skipped and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from burn.core.types import Batch, CachedFeatures
from burn.data.augment import crop_and_flip, generator, plain_view, random_view
from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.feature_cache import FeatureCache
from burn.data.view_config import ViewConfig
from burn.data.workers import QuietLoader, start_worker

Key = tuple[int, int]  # epoch, index


class Drawn(NamedTuple):
    """The views drawn from one image.

    Attributes:
        views: uint8 (3, size, size) each.
        teacher_views: The views of a teacher that sees another size; empty if the teacher sees
            `views`, or if its features are cached.
        cached: float16 (views, dimension), the teacher's cached features of the views that it sees,
            or None.
    """

    views: tuple[Tensor, ...]
    teacher_views: tuple[Tensor, ...] = ()
    cached: Tensor | None = None


class Item(NamedTuple):
    """One image of a batch before it is collated.

    `index` is its position in its source. `drawn` is None if it cannot be read, and `label` if the
    source has none.
    """

    epoch: int
    index: int
    drawn: Drawn | None
    label: int | None


Transform = Callable[[Tensor, int, int], Drawn]  # image, epoch, index


class _Views(Dataset[Item]):
    """A dataset that maps (epoch, index) to an `Item`."""

    def __init__(self, source: Source, transform: Transform) -> None:
        self._source, self._transform = source, transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: Key) -> Item:
        return item(self._source, self._transform, key, partial(self._source.read, key[1]))


def item(source: Source, transform: Transform, key: Key, read: Callable[[], Tensor]) -> Item:
    """Return the item of an image of a source, which `read` reads."""
    epoch, index = key
    label = None if source.labels is None else int(source.labels[index])
    try:
        image = read()
    except UnreadableImage:
        return Item(epoch, index, None, label)
    return Item(epoch, index, transform(image, epoch, index), label)


def collate(items: Sequence[Item], cached_shape: tuple[int, int] | None = None) -> Batch:
    """Collate items of one epoch; those of unreadable images contribute only their index.

    `cached_shape` is the number of views and the dimension of the teacher's features in a cache.
    """
    good = [item for item in items if item.drawn is not None]
    drawn = [item.drawn for item in items if item.drawn is not None]
    labels = [item.label for item in good if item.label is not None]
    cached = None
    if cached_shape is not None:
        nothing = torch.zeros(cached_shape, dtype=torch.float16)
        rows = [nothing if draw.cached is None else draw.cached for draw in drawn]
        missing = [row for row, draw in enumerate(drawn) if draw.cached is None]
        values = torch.stack(rows, dim=1) if rows else nothing[:, None][:, :0]
        cached = CachedFeatures(values, torch.tensor(missing, dtype=torch.int64))
    return Batch(
        views=_stacked([draw.views for draw in drawn]),
        indices=torch.tensor([item.index for item in good], dtype=torch.int64),
        unreadable=tuple(item.index for item in items if item.drawn is None),
        labels=torch.tensor(labels, dtype=torch.int64) if labels else None,
        epoch=items[0].epoch,
        teacher_views=_stacked([draw.teacher_views for draw in drawn if draw.cached is None]),
        cached=cached,
    )


def _stacked(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(view) for view in zip(*rows, strict=True))


def random_views(
    configs: Sequence[ViewConfig],
    seed: int,
    teacher_configs: Sequence[ViewConfig] = (),
    cache: FeatureCache | None = None,
) -> Transform:
    """Return the transform of pretraining, which draws several views of an image.

    A view depends on the seed, the epoch, the image's index, and its own number. A teacher that
    sees another size sees the first views again, with the same crop, flip and colours, by
    `teacher_configs`; they are not drawn for images whose features are in its cache.
    """

    def transform(image: Tensor, epoch: int, index: int) -> Drawn:
        def draw(configs: Sequence[ViewConfig]) -> tuple[Tensor, ...]:
            return tuple(
                random_view(image, config, generator(seed, epoch, index, view))
                for view, config in enumerate(configs)
            )

        features = None if cache is None else cache.read(epoch, index)
        if features is None:
            return Drawn(draw(configs), draw(teacher_configs))
        return Drawn(draw(configs), cached=torch.from_numpy(features))

    return transform


def light_views(size: int, seed: int) -> Transform:
    """Return the transform of the evaluation protocols: a random resized crop and a random flip.

    The crops are torchvision's, 8 to 100 % of the image, whatever views the network was pretrained
    with. A view has a side of `size` pixels and depends on the seed, the epoch and the image's
    index.
    """
    config = ViewConfig(size=size, crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3), flip=0.5)

    def transform(image: Tensor, epoch: int, index: int) -> Drawn:
        return Drawn((crop_and_flip(image, config, generator(seed, epoch, index, 0)),))

    return transform


class Epochs(Sampler[Any]):
    """A sampler that yields the batches of one `epoch`, or their keys, but for the first `skip`."""

    epoch = 0
    skip = 0

    def __len__(self) -> int:
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class EpochSampler(Epochs):
    """Sample batches of (epoch, index) from one seeded permutation per epoch.

    Each of `count` processes takes its own `batch_size` images of every batch (fewer if there are
    not as many images). Together they see the batches that one process with `count` times that
    batch size would. `drop_last` leaves out the incomplete last batch of an epoch; several
    processes must.
    """

    num_images: int
    batch_size: int
    seed: int
    _: KW_ONLY
    drop_last: bool
    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        assert self.drop_last or self.count == 1
        self.batch_size = min(self.batch_size, self.num_images // self.count)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_images, self.batch_size * self.count)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[list[Key]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.num_images)
        for batch in range(self.skip, len(self)):
            start = (batch * self.count + self.rank) * self.batch_size
            yield [(self.epoch, int(i)) for i in order[start : start + self.batch_size]]


class EpochLoader(QuietLoader):
    """A data loader that can be resumed in the middle of an epoch; each iteration is one epoch.

    It sets `epoch` and `skip` of the sampler `epochs` before each iteration. The dataset and the
    options are as `DataLoader` takes them.
    """

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
        """Return the number of batches yielded since the start of the stage."""
        return {"used": self._used}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._used = state["used"]


class TrainLoader(EpochLoader):
    """The data loader of training: batches of random views of a source's images.

    `cached_shape` is as `collate` takes it. `pin` puts batches into page-locked memory, for a GPU.
    """

    def __init__(
        self,
        source: Source,
        transform: Transform,
        sampler: EpochSampler,
        workers: int,
        cached_shape: tuple[int, int] | None = None,
        *,
        pin: bool = False,
    ) -> None:
        views = _Views(source, transform)
        together = partial(collate, cached_shape=cached_shape)
        super().__init__(
            sampler, views, workers, batch_sampler=sampler, collate_fn=together, pin_memory=pin
        )


def plain_batches(
    source: Source,
    config: ViewConfig,
    batch_size: int,
    workers: int,
    indices: Sequence[int] | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
    *,
    pin: bool = False,
) -> DataLoader[Any]:
    """Return a data loader that yields the plain views of a source once, in order.

    `indices` are the positions of the images to yield; default: all. `view` is used instead of
    `plain_view`; it must return images of one size. `pin` puts batches into page-locked memory, for
    a GPU.
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
        pin_memory=pin,
    )
