"""Batches streamed from shards in shuffled order, disjoint by rank and worker, and resumable.

The order of an epoch is a function of (seed, epoch, rank, world) alone. It is computed when the
epoch begins, so that a resumed run knows which images were used without reading them:

1. The images are cut into blocks of neighbours, of up to 4 MB or 512 images, and the blocks of all
   shards are put in random order. From its beginning, each rank takes an equal share, which is
   split into eight lanes. The images left over at its end are different ones in every epoch.
2. A lane alternates between 16 of its blocks, and the result passes through a shuffle buffer.
3. Batch b of a rank is the next batch of lane b mod 8. Workers own batches, not images, so that the
   order does not depend on their number. One that divides 8 is faster for parquet files: otherwise
   several workers decode the same row groups.

Memory holds the encoded images in the buffers and the blocks that a lane alternates between:
together about 0.8 GB per rank for images of ImageNet's size, whatever the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from burn.core.errors import UserError
from burn.core.types import Batch
from burn.data.formats.parquet import Budget
from burn.data.formats.shards import ShardedImages
from burn.data.loader import EpochLoader, Epochs, Key, Transform, collate, item

_LANES = 8
_OPEN = 16  # blocks that a lane alternates between
_BUFFER_IMAGES = 4096
_BUFFER_BYTES = 64 << 20

Block = tuple[int, int]  # first position, and the one after the last


class _Order(Epochs):
    """The order of images: a sampler of the batches' keys, and the positions in each batch."""

    def __init__(
        self, images: ShardedImages, batch_size: int, seed: int, rank: int, world: int
    ) -> None:
        self.num_batches = len(images) // (batch_size * world)
        self.batch_size, self._seed, self._rank = batch_size, seed, rank
        self._cuts = images.blocks(world * _LANES * _OPEN)
        fit = int(_BUFFER_BYTES // max(1, images.bytes_per_image))
        self._buffer = max(2, min(_BUFFER_IMAGES, fit))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Key]:
        return ((self.epoch, number) for number in range(self.skip, self.num_batches))

    def lane(self, epoch: int, lane: int) -> tuple[list[Block], np.ndarray]:
        """Return a lane's blocks, and its batches: positions, int64 (batches, batch_size)."""
        blocks = self._blocks(epoch, lane)
        random = np.random.default_rng((self._seed, epoch, self._rank, lane))
        order = _shuffled(blocks, self._buffer, random)
        return blocks, order.reshape(-1, self.batch_size)

    def _blocks(self, epoch: int, lane: int) -> list[Block]:
        """Return a lane's share of all blocks in the epoch's order; the first and last are cut."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._cuts) - 1)
        firsts, lasts = self._cuts[order], self._cuts[order + 1]
        ends = np.cumsum(lasts - firsts)
        # Lane l takes batches l, l + 8, …: one more than later lanes if 8 does not divide them.
        whole, more = divmod(self.num_batches, _LANES)
        before = self._rank * self.num_batches + lane * whole + min(lane, more)
        start = before * self.batch_size
        stop = start + (whole + (lane < more)) * self.batch_size
        firsts = firsts + np.maximum(0, start - (ends - (lasts - firsts)))
        lasts = lasts - np.maximum(0, ends - stop)
        nonempty = firsts < lasts
        return list(zip(firsts[nonempty].tolist(), lasts[nonempty].tolist(), strict=True))


def _shuffled(blocks: Sequence[Block], buffer: int, random: np.random.Generator) -> np.ndarray:
    """Shuffle the positions of blocks, int64 (images,): 16 blocks in turn, then a buffer."""
    groups = [_in_turns(blocks[i : i + _OPEN]) for i in range(0, len(blocks), _OPEN)]
    order = [position for group in groups for position in group.tolist()]
    held, coming = order[:buffer], order[buffer:]
    shuffled = []
    for position, slot in zip(coming, random.integers(buffer, size=len(coming)), strict=True):
        shuffled.append(held[slot])
        held[slot] = position
    return np.array([*shuffled, *random.permutation(held)], dtype=np.int64)


def _in_turns(blocks: Sequence[Block]) -> np.ndarray:
    """Interleave blocks, int64: the first position of every block, the second of every block, …"""
    rows = [np.arange(first, stop) for first, stop in blocks]
    turns = np.concatenate([np.arange(len(row)) for row in rows])
    return np.concatenate(rows)[np.argsort(turns, kind="stable")]


class _Reader:
    """Reads one worker's batches of a lane, from some batch to the end of the epoch.

    A block is read when its first image is due; its other images are held in memory until then.
    """

    def __init__(self, images: ShardedImages, blocks: Sequence[Block], batches: np.ndarray) -> None:
        self._images, self._batches = images, iter(batches.tolist())
        self._ahead = np.sort(batches, axis=None)
        self._blocks = np.array(sorted(blocks)).reshape(-1, 2)
        self._waiting: dict[int, bytes | None] = {}
        # The images of usual shards stay far below this.
        self._budget = Budget(images.name, images.size)

    def batch(self) -> list[tuple[int, bytes | None]]:
        return [(position, self._take(position)) for position in next(self._batches)]

    def _take(self, position: int) -> bytes | None:
        if position not in self._waiting:
            block = int(np.searchsorted(self._blocks[:, 0], position, side="right")) - 1
            rows = slice(*np.searchsorted(self._ahead, self._blocks[block]))
            chosen = self._ahead[rows].tolist()
            for place, encoded in zip(chosen, self._images.encoded(chosen), strict=True):
                self._waiting[place] = encoded
                self._budget.spend(len(encoded or b""))
        encoded = self._waiting.pop(position)
        self._budget.spend(-len(encoded or b""))
        return encoded


@dataclass(eq=False, repr=False)
class _Batches(Dataset[Batch]):
    """A dataset that maps (epoch, number of a batch) to the batch; it keeps its readers."""

    images: ShardedImages
    transform: Transform
    order: _Order
    cached_shape: tuple[int, int] | None
    _epoch: int = -1
    # Of each lane: the number of the next batch, and the reader.
    _readers: dict[int, tuple[int, _Reader]] = field(default_factory=dict)

    def __getitem__(self, key: Key) -> Batch:
        images, (epoch, number) = self.images, key
        if epoch != self._epoch:  # its lanes may now belong to other workers
            self._epoch, self._readers = epoch, {}
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        lane = number % _LANES
        following, reader = self._readers.pop(lane, (-1, None))
        if reader is None or following != number:
            blocks, batches = self.order.lane(epoch, lane)
            worker_batches = batches[number // _LANES :: workers // math.gcd(workers, _LANES)]
            reader = _Reader(images, blocks, worker_batches)
        self._readers[lane] = number + math.lcm(workers, _LANES), reader
        items = [
            item(images, self.transform, (epoch, at), partial(images.decode, at, encoded))
            for at, encoded in reader.batch()
        ]
        return collate(items, self.cached_shape)


class StreamLoader(EpochLoader):
    """The data loader of training for shards: one rank's batches of random views.

    Every rank has the same number of batches; an epoch leaves out images that do not fill a batch
    of every rank. `batch_size` is that of a rank, reduced if there are fewer images. The other
    arguments are as for `TrainLoader`.
    """

    def __init__(
        self,
        images: ShardedImages,
        transform: Transform,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        cached_shape: tuple[int, int] | None = None,
        *,
        pin: bool = False,
    ) -> None:
        if len(images) < world:
            raise UserError(f"{images.name} holds {len(images)} images for {world} processes")
        batch_size = min(batch_size, len(images) // world)
        order = _Order(images, batch_size, seed, rank, world)
        batches = _Batches(images, transform, order, cached_shape)
        super().__init__(order, batches, workers, batch_size=None, sampler=order, pin_memory=pin)
        self._order = {"world": world, "batch_size": batch_size}

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches yielded in this stage, the world size and the batch size."""
        return {**super().state_dict(), **self._order}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches that `state` counts, if their order is still the same."""
        for name, now in self._order.items():
            if state[name] != now:
                what = {"world": "processes", "batch_size": "images per batch"}[name]
                raise UserError(
                    f"a run on shards can only be resumed with the number of {what} that it was "
                    f"started with: {state[name]}, not {now}"
                )
        super().load_state_dict(state)
