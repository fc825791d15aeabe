"""Batches from shards: streamed in a shuffled order, disjoint by rank and worker, resumable.

How an epoch comes about, as a function of (seed, epoch, rank, world) alone:

1. The images are cut into blocks of neighbours, of up to 4 MB or 512 images, and the blocks of all
   shards are put in random order. Ranks, and in them eight lanes, take equal shares from its front;
   what is left over at its end is different images every epoch.
2. A lane takes turns among 16 of its blocks, and the result passes through a shuffle buffer.
3. Batch b of a rank is lane b mod 8's next. Workers own no images, only batches: they read from a
   block what their own batches need, so that the order does not depend on their number. A number
   that divides 8 spares parquet work: otherwise several workers decode the same row groups.

The order is worked out over positions when an epoch begins, so that who resumes knows which images
are past without reading them. (The streams of Hugging Face's datasets promise less: a shuffle
buffer is refilled on resuming, not restored; which worker reads what depends on their number; ranks
whose shards differ in length end after different numbers of batches. See docs/log.md.)

In memory are the encoded images in the buffers, up to 4,096 a lane but at most 64 MB, and the
blocks in turn: together about 0.8 GB a rank for images of ImageNet's size, whatever the number of
workers; and in every worker the page of a parquet file that it is reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Dataset, Sampler, get_worker_info

from burn.core.errors import UserError
from burn.core.types import Batch
from burn.data.decode import UnreadableImage
from burn.data.formats.parquet import Budget
from burn.data.formats.shards import ShardedImages
from burn.data.loader import EpochLoader, Item, Key, Transform, collate

_LANES = 8
_OPEN = 16  # blocks among which a lane takes turns
_BUFFER_IMAGES = 4096
_BUFFER_BYTES = 64 << 20

Block = tuple[int, int]  # first position, and the one after the last


class _Order:
    """Which image comes when: the positions of a lane's batches in an epoch."""

    def __init__(
        self, images: ShardedImages, batch_size: int, seed: int, rank: int, world: int
    ) -> None:
        self.num_batches = len(images) // (batch_size * world)
        self.batch_size, self._seed, self._rank = batch_size, seed, rank
        self._cuts = images.blocks(world * _LANES * _OPEN)
        fit = int(_BUFFER_BYTES // max(1, images.bytes_per_image))
        self._buffer = max(2, min(_BUFFER_IMAGES, fit))

    def lane(self, epoch: int, lane: int) -> tuple[list[Block], np.ndarray]:
        """The lane's blocks, and int64 (batches, batch_size) positions in them."""
        blocks = self._blocks(epoch, lane)
        random = np.random.default_rng((self._seed, epoch, self._rank, lane))
        order = _shuffled(blocks, self._buffer, random)
        return blocks, order.reshape(-1, self.batch_size)

    def _blocks(self, epoch: int, lane: int) -> list[Block]:
        """The lane's share of all blocks in the epoch's order; at its ends, parts of blocks."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._cuts) - 1)
        firsts, lasts = self._cuts[order], self._cuts[order + 1]
        ends = np.cumsum(lasts - firsts)
        # Lane l takes batches l, l + 8, …: one more than later lanes where 8 does not divide.
        whole, more = divmod(self.num_batches, _LANES)
        before = self._rank * self.num_batches + lane * whole + min(lane, more)
        start = before * self.batch_size
        stop = start + (whole + (lane < more)) * self.batch_size
        firsts = firsts + np.maximum(0, start - (ends - (lasts - firsts)))
        lasts = lasts - np.maximum(0, ends - stop)
        own = firsts < lasts
        return list(zip(firsts[own].tolist(), lasts[own].tolist(), strict=True))


def _shuffled(blocks: Sequence[Block], buffer: int, random: np.random.Generator) -> np.ndarray:
    """int64 (images,): the positions of 16 blocks in turn, through a shuffle buffer."""
    groups = [_in_turns(blocks[i : i + _OPEN]) for i in range(0, len(blocks), _OPEN)]
    order = [position for group in groups for position in group.tolist()]
    held, coming = order[:buffer], order[buffer:]
    shuffled = []
    for position, slot in zip(coming, random.integers(buffer, size=len(coming)), strict=True):
        shuffled.append(held[slot])
        held[slot] = position
    return np.array([*shuffled, *random.permutation(held)], dtype=np.int64)


def _in_turns(blocks: Sequence[Block]) -> np.ndarray:
    """int64: the first of every block, the second of every block, …"""
    rows = [np.arange(first, stop) for first, stop in blocks]
    turns = np.concatenate([np.arange(len(row)) for row in rows])
    return np.concatenate(rows)[np.argsort(turns, kind="stable")]


class _Reader:
    """The images of one worker's share of a lane, from some batch to the epoch's end.

    A block is read when its first image is due; the others wait in memory for their turn.
    """

    def __init__(self, images: ShardedImages, blocks: Sequence[Block], batches: np.ndarray) -> None:
        self._images, self._batches = images, iter(batches.tolist())
        self._ahead = np.sort(batches, axis=None)
        self._blocks = np.array(sorted(blocks)).reshape(-1, 2)
        self._waiting: dict[int, bytes | None] = {}
        # Images of a size that their shards' sizes tell keep far below this.
        self._budget = Budget(images.name, images.size)

    def batch(self) -> list[tuple[int, bytes | None]]:
        """Positions and encoded images of the next batch."""
        return [(position, self._take(position)) for position in next(self._batches)]

    def _take(self, position: int) -> bytes | None:
        if position not in self._waiting:
            block = int(np.searchsorted(self._blocks[:, 0], position, side="right")) - 1
            own = slice(*np.searchsorted(self._ahead, self._blocks[block]))
            chosen = self._ahead[own].tolist()
            for place, encoded in zip(chosen, self._images.encoded(chosen), strict=True):
                self._waiting[place] = encoded
                self._budget.spend(len(encoded or b""))
        encoded = self._waiting.pop(position)
        self._budget.spend(-len(encoded or b""))
        return encoded


class _Batches(Dataset[Batch]):
    """(epoch, number of the batch in it) -> the batch; readers stay open for the next."""

    def __init__(
        self, images: ShardedImages, transform: Transform, order: _Order,
        known_shape: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        self._images, self._transform, self._order = images, transform, order
        self._known_shape = known_shape
        self._epoch = -1
        self._readers: dict[int, tuple[int, _Reader]] = {}  # lane -> its next batch, and reader

    def __getitem__(self, key: Key) -> Batch:
        epoch, number = key
        if epoch != self._epoch:  # its lanes may now be other workers'
            self._epoch, self._readers = epoch, {}
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        lane = number % _LANES
        following, reader = self._readers.pop(lane, (-1, None))
        if reader is None or following != number:
            blocks, batches = self._order.lane(epoch, lane)
            own = batches[number // _LANES :: workers // math.gcd(workers, _LANES)]
            reader = _Reader(self._images, blocks, own)
        self._readers[lane] = number + math.lcm(workers, _LANES), reader
        items = [self._item(position, found) for position, found in reader.batch()]
        return collate(items, self._known_shape)

    def _item(self, position: int, encoded: bytes | None) -> Item:
        labels = self._images.labels
        label = None if labels is None else int(labels[position])
        try:
            image = self._images.decode(position, encoded)
        except UnreadableImage:
            return Item(self._epoch, position, None, label)
        return Item(self._epoch, position, self._transform(image, self._epoch, position), label)


class _Numbers(Sampler[Key]):
    """(epoch, number) of every batch of an epoch that is still to come."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0
        self.skip = 0  # batches of the current epoch that were already used

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Key]:
        return ((self.epoch, number) for number in range(self.skip, self.count))


class StreamLoader(EpochLoader):
    """One rank's batches of streamed images.

    batch_size: images a batch and rank; where all ranks' batches hold more than there are images,
    as many as there are for each. Every rank has as many batches, and an epoch leaves out what
    does not fill one for all. transform: as `burn.data.loader.random_views` makes it. rank: this
    process's number of `world`. known_shape: as `collate` takes it. Raises UserError for
    fewer images than ranks.
    """

    def __init__(
        self, images: ShardedImages, transform: Transform, batch_size: int, seed: int,
        rank: int = 0, world: int = 1, workers: int = 0,
        known_shape: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        if len(images) < world:
            raise UserError(f"{images.name} holds {len(images)} images for {world} processes")
        batch_size = min(batch_size, len(images) // world)
        order = _Order(images, batch_size, seed, rank, world)
        numbers = _Numbers(order.num_batches)
        batches = _Batches(images, transform, order, known_shape)
        super().__init__(numbers, batches, workers, batch_size=None, sampler=numbers)
        self._order = {"world": world, "batch_size": batch_size}

    def state_dict(self) -> dict[str, int]:
        """Batches handed out since the start of the stage, and what their order depends on."""
        return {**super().state_dict(), **self._order}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches of `state`. Raises UserError where the order would be another."""
        for name, now in self._order.items():
            if state[name] != now:
                what = {"world": "processes", "batch_size": "images a batch"}[name]
                raise UserError(
                    f"a run on shards goes on in its order only with as many {what} as it was "
                    f"begun with: {state[name]}, not {now}"
                )
        super().load_state_dict(state)
