"""From a source to batches: shuffled, augmented, resumable; bad images are left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from burn.data.sources import Source, UnreadableImage
from burn.data.views import ViewConfig, crop_and_flip, generator, plain_view, random_view
from burn.data.workers import QuietLoader, start_worker
from burn.types import Batch

Key = tuple[int, int]  # epoch, index
Transform = Callable[[Tensor, int, int], tuple[Tensor, ...]]  # image, epoch, index -> views


class _Views(Dataset[tuple[int, tuple[Tensor, ...], int | None]]):
    """index -> its views, or no views where the image cannot be read, and its label if any."""

    def __init__(self, source: Source, transform: Transform) -> None:
        self._source, self._transform = source, transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: Key) -> tuple[int, tuple[Tensor, ...], int | None]:
        epoch, index = key
        labels = self._source.labels
        label = None if labels is None else int(labels[index])
        try:
            image = self._source.read(index)
        except UnreadableImage:
            return index, (), label
        return index, self._transform(image, epoch, index), label


def collate(items: Sequence[tuple[int, tuple[Tensor, ...], int | None]]) -> Batch:
    """(position, views, label) of each image; no views: it could not be read."""
    good = [item for item in items if item[1]]
    stacked = zip(*(views for _, views, _ in good), strict=True)
    labels = [label for _, _, label in good if label is not None]
    return Batch(
        views=tuple(torch.stack(view) for view in stacked),
        indices=torch.tensor([index for index, _, _ in good], dtype=torch.int64),
        unreadable=tuple(index for index, views, _ in items if not views),
        labels=torch.tensor(labels, dtype=torch.int64) if labels else None,
    )


def random_views(
    configs: Sequence[ViewConfig], seed: int, num_drawn: int | None = None
) -> Transform:
    """Pretraining's transform: a view by each of `configs`, drawn from (seed, epoch, index).

    num_drawn: how many views are drawn, all by default; the others repeat them in turn, with the
    same crop, flip and colours at their own size.
    """
    drawn = num_drawn or len(configs)

    def transform(image: Tensor, epoch: int, index: int) -> tuple[Tensor, ...]:
        return tuple(
            random_view(image, config, generator(seed, epoch, index, view % drawn))
            for view, config in enumerate(configs)
        )

    return transform


def light_views(config: ViewConfig, seed: int) -> Transform:
    """Linear evaluation's transform: one random resized crop, flipped or not."""

    def transform(image: Tensor, epoch: int, index: int) -> tuple[Tensor, ...]:
        return (crop_and_flip(image, config, generator(seed, epoch, index, 0)),)

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
    """Of the views of a source's images."""

    def __init__(
        self, source: Source, transform: Transform, sampler: EpochSampler, workers: int
    ) -> None:
        views = _Views(source, transform)
        super().__init__(sampler, views, workers, batch_sampler=sampler, collate_fn=collate)


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
        _Views(source, lambda image, _epoch, _index: (look(image),)),
        batch_sampler=[keys[i : i + batch_size] for i in range(0, len(keys), batch_size)],  # type: ignore[arg-type]
        collate_fn=collate,
        num_workers=workers,
        worker_init_fn=start_worker,
    )
