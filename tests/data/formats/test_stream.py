"""Streamed batches: disjoint, shuffled, and after an interruption exactly what would have come."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_shards import WRITERS, picture, write_tar, write_tars

from burn.core.errors import UserError
from burn.core.types import Batch
from burn.data.augment import generator, random_view
from burn.data.formats.shards import ShardedImages, open_shards
from burn.data.formats.stream import StreamLoader, _Order
from burn.data.labels import Labels
from burn.data.loader import random_views
from burn.data.view_config import ViewConfig
from seldom import few

VIEWS = ViewConfig(size=8, resize=8, jitter=1.0)
SEED = 5
UNEQUAL = [1, 30, 7, 0, 13]  # images of the shards: 51


def build(
    images: ShardedImages, size: int = 4, *, seed: int = SEED, rank: int = 0, world: int = 1,
    workers: int = 0,
) -> StreamLoader:  # fmt: skip
    return StreamLoader(images, random_views([VIEWS] * 2, seed), size, seed, rank, world, workers)


def take(loader: StreamLoader, count: int) -> list[Batch]:
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    return list(itertools.islice(epochs, count))


def same(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Indices, labels and pixels."""
    return len(first) == len(second) and all(
        torch.equal(a.indices, b.indices)
        and a.unreadable == b.unreadable
        and (a.labels is None) == (b.labels is None)
        and (a.labels is None or b.labels is None or torch.equal(a.labels, b.labels))
        and len(a.views) == len(b.views)
        and all(torch.equal(v, w) for v, w in zip(a.views, b.views, strict=True))
        for a, b in zip(first, second, strict=True)
    )


def indices(batches: Sequence[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


class NoImages:
    """A shard of images that are not there: their order is what counts."""

    labels: Labels | str = ""
    class_names: tuple[str, ...] = ()

    def __init__(self, rows: int, group: int | None = None) -> None:
        self.path = Path(__file__)
        self.groups = [*range(0, rows, group or rows), rows]

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]:
        return iter([None] * len(rows))

    def describe(self, row: int) -> str:
        return str(row)

    def names(self) -> list[str]:
        return [str(row) for row in range(self.groups[-1])]


def order(images: ShardedImages, batch_size: int, epoch: int = 0) -> np.ndarray:
    """int64 (batches, batch_size): the positions in an epoch, without reading the images."""
    plan = _Order(images, batch_size, SEED, rank=0, world=1)
    lanes = [plan.lane(epoch, lane)[1] for lane in range(8)]
    return np.array([lanes[batch % 8][batch // 8] for batch in range(plan.num_batches)])


# --- What a batch holds. ---


@pytest.mark.parametrize("kind", WRITERS)
def test_views_are_those_of_seed_epoch_index_and_view(tmp_path: Path, kind: str):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", [5, 3], labels=True)))
    loader = build(images)
    assert images.labels is not None
    for epoch in range(2):
        for batch in loader:
            assert batch.indices.dtype == torch.int64
            assert batch.labels is not None
            assert batch.labels.dtype == torch.int64
            assert batch.labels.tolist() == images.labels[batch.indices].tolist()
            for number, views in enumerate(batch.views):
                assert views.shape == (4, 3, 8, 8)
                for view, index in zip(views, batch.indices.tolist(), strict=True):
                    numbers = generator(SEED, epoch, index, number)
                    assert torch.equal(view, random_view(images.read(index), VIEWS, numbers))


def test_without_labels_there_are_none(tmp_path: Path):
    images = open_shards(str(write_tars(tmp_path / "data", [5])))
    assert all(batch.labels is None for batch in build(images))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_left_out_and_listed(tmp_path: Path, workers: int):
    contents = [(f"{i}.png", b"torn" if i in (2, 7) else picture(i)) for i in range(12)]
    images = open_shards(str(write_tar(tmp_path / "a.tar", contents)))
    batches = list(build(images, workers=workers))
    assert sorted(i for batch in batches for i in batch.unreadable) == [2, 7]
    assert sorted(indices(batches)) == [i for i in range(12) if i not in (2, 7)]
    assert all(len(b.indices) + len(b.unreadable) == 4 for b in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_goes_away_under_way(tmp_path: Path, workers: int):
    folder = write_tars(tmp_path / "data", [6, 6])
    loader = build(open_shards(str(folder)), workers=workers)
    assert not any(batch.unreadable for batch in loader)
    (folder / "shard-001.tar").unlink()
    batches = list(loader)
    assert sorted(indices(batches)) == list(range(6))
    assert sorted(i for batch in batches for i in batch.unreadable) == list(range(6, 12))


# --- Epochs, ranks and workers. ---


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("counts", few([UNEQUAL, [51]], 1))
@pytest.mark.parametrize("world", [1, 2, 3])
def test_no_image_twice_an_epoch(tmp_path: Path, kind: str, counts: list[int], world: int):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", counts)))
    loaders = [build(images, rank=rank, world=world) for rank in range(world)]
    orders, left_out = [], []
    for _ in range(4):
        ranks = [list(loader) for loader in loaders]
        for loader, batches in zip(loaders, ranks, strict=True):
            assert [len(batch.indices) for batch in batches] == [4] * len(loader)
        assert {len(loader) for loader in loaders} == {51 // (4 * world)}
        seen = [index for batches in ranks for index in indices(batches)]
        assert len(set(seen)) == len(seen) == 51 // (4 * world) * 4 * world
        orders.append(tuple(seen))
        left_out.append(frozenset(range(51)) - set(seen))
    assert len(set(orders)) == 4
    assert len(set(left_out)) > 2


@pytest.mark.parametrize(("kind", "counts"), [("tar", UNEQUAL), ("parquet", [51])])
def test_no_image_twice_with_workers(tmp_path: Path, kind: str, counts: list[int]):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", counts)))
    ranks = [list(build(images, rank=rank, world=2, workers=2)) for rank in range(2)]
    assert [len(batches) for batches in ranks] == [6, 6]
    seen = indices([*ranks[0], *ranks[1]])
    assert len(set(seen)) == len(seen) == 48


def test_workers_do_not_matter(tmp_path: Path):
    """A number that does not divide the number of lanes, and more than there are lanes."""
    images = open_shards(str(WRITERS["parquet"](tmp_path / "data", UNEQUAL, labels=True)))
    whole = take(build(images, 2), 40)
    for workers in (3, 9):
        assert same(take(build(images, 2, workers=workers), 40), whole)


def test_the_seed_decides_order_and_pixels(tmp_path: Path):
    images = open_shards(str(write_tars(tmp_path / "data", UNEQUAL)))
    first, again, other = (take(build(images, seed=s), 3) for s in (1, 1, 2))
    assert same(first, again)
    assert indices(first) != indices(other)


def test_fewer_images_than_a_batch(tmp_path: Path):
    images = open_shards(str(write_tars(tmp_path / "data", [3, 2])))
    for rank in range(2):
        loader = build(images, 64, rank=rank, world=2)
        assert len(loader) == 1
        assert [len(batch.indices) for batch in loader] == [2]
    with pytest.raises(UserError, match="holds 5 images for 6 processes"):
        build(images, world=6)


# --- How well it is shuffled. ---


@pytest.mark.parametrize("group", [None, 100, 1000])
def test_a_batch_mixes_many_shards(group: int | None):
    """Shards sorted by class, a class each: in tars, and in row groups of 100 and 1,000."""
    images = ShardedImages([NoImages(1000, group) for _ in range(64)], "sorted")
    images.bytes_per_image = 110_000  # as ImageNet's: blocks of 38, a buffer of 610
    for epoch in range(2):
        batches = order(images, 256, epoch)
        classes = [len(set((batch // 1000).tolist())) for batch in batches]
        # With 64 classes, 256 images drawn from all of them hold 63.
        assert min(classes) >= 10
        assert np.mean(classes) > 20
        # Of n independent numbers the correlation is below 4/√n; a block counts as one number.
        flat = batches.ravel()
        independent = len(flat) / 38
        correlation = np.corrcoef(flat, np.arange(len(flat)))[0, 1]
        assert abs(correlation) < 4 / np.sqrt(independent)


def test_neighbours_in_a_shard_do_not_stay_neighbours():
    images = ShardedImages([NoImages(20_000)], "one shard")
    flat = order(images, 100).ravel()
    place = np.empty_like(flat)
    place[flat] = np.arange(len(flat))
    apart = np.abs(np.diff(place))
    assert np.median(apart) > 100
    assert np.mean(apart == 1) < 0.01


def test_two_epochs_have_nothing_in_common():
    images = ShardedImages([NoImages(500) for _ in range(8)], "shards")
    first, second = order(images, 50), order(images, 50, epoch=1)
    common = [len(set(a) & set(b)) for a in first for b in second]
    assert max(common) <= 25


class Counted(bytes):
    """Bytes that know how many of them there are."""

    alive = most = 0

    def __init__(self, _: bytes) -> None:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


@pytest.mark.parametrize("group", [None, 500])
def test_few_images_wait_in_memory(monkeypatch: pytest.MonkeyPatch, group: int | None):
    """A buffer a lane, and the blocks that are being read; never a shard, never a row group."""

    def read(self: NoImages, rows: Sequence[int]) -> list[bytes | None]:
        return [Counted(b"") for _ in rows]

    monkeypatch.setattr(NoImages, "read", read)
    monkeypatch.setattr("burn.data.formats.stream._BUFFER_IMAGES", 64)
    monkeypatch.setattr("burn.data.formats.shards._BLOCK_IMAGES", 8)
    images = ShardedImages([NoImages(1000, group) for _ in range(8)], "large")
    Counted.most = 0
    loader = build(images, 50)
    assert sorted(i for batch in loader for i in batch.unreadable) == list(range(8000))
    assert 64 < Counted.most <= 8 * (64 + 16 * 8) + 50


def test_images_larger_than_their_shards_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    """As those of a parquet file are whose dictionary repeats one value."""
    one = bytes(2**20)
    monkeypatch.setattr(NoImages, "read", lambda self, rows: [one] * len(rows))
    images = ShardedImages([NoImages(1000) for _ in range(8)], "repeated")
    with pytest.raises(UserError, match="repeated: its images expand to more than 268,435,456"):
        next(iter(build(images, 50)))


# --- Resuming. ---


@pytest.mark.parametrize(("kind", "world"), few([("parquet", 2), ("tar", 2), ("tar", 1)], 2))
def test_a_new_loader_goes_on_where_the_state_was_taken(tmp_path: Path, kind: str, world: int):
    """After every number of batches in an epoch and a bit, to the end of the next."""
    images = open_shards(str(WRITERS[kind](tmp_path / "data", UNEQUAL, labels=True)))
    for rank in range(world):
        loader = build(images, 5, rank=rank, world=world)
        whole = take(loader, 2 * len(loader))
        for used in range(len(loader) + 2):
            resumed = build(images, 5, rank=rank, world=world)
            resumed.load_state_dict({**loader.state_dict(), "used": used})
            assert same(take(resumed, len(whole) - used), whole[used:])


@pytest.mark.parametrize(("world", "used"), few([(2, 13), (1, 3)], 1))
def test_a_resumed_loader_with_workers(tmp_path: Path, world: int, used: int):
    """In the first epoch and in a later one; the state counts the batches handed out."""
    images = open_shards(str(WRITERS["parquet"](tmp_path / "data", UNEQUAL)))
    whole = take(build(images, rank=world - 1, world=world), 20)
    first = build(images, rank=world - 1, world=world, workers=2)
    assert same(take(first, used), whole[:used])
    state = first.state_dict()
    assert state["used"] == used
    resumed = build(images, rank=world - 1, world=world, workers=2)
    resumed.load_state_dict(state)
    assert same(take(resumed, 20 - used), whole[used:])


def test_the_epoch_in_which_it_resumes_is_the_rest_of_it(tmp_path: Path):
    loader = build(open_shards(str(write_tars(tmp_path / "data", [12]))))
    loader.load_state_dict({**loader.state_dict(), "used": 4})
    assert [len(list(loader)) for _ in range(3)] == [2, 3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_that_is_broken_off_is_gone_on_with(tmp_path: Path, workers: int):
    images = open_shards(str(write_tars(tmp_path / "data", UNEQUAL)))
    whole = take(build(images), 20)
    loader = build(images, workers=workers)
    begun = list(itertools.islice(loader, 5))
    assert same([*begun, *take(loader, 15)], whole)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("world", 2, "the number of processes that it was started with: 2, not 1"),
        ("batch_size", 9, "the number of images per batch that it was started with: 9, not 4"),
    ],
)
def test_a_state_of_another_order(tmp_path: Path, name: str, value: int, message: str):
    loader = build(open_shards(str(write_tars(tmp_path / "data", [12]))))
    with pytest.raises(UserError, match=message):
        loader.load_state_dict({**loader.state_dict(), name: value})


def test_no_server_is_asked_and_nothing_is_written(tmp_path: Path):
    """Not even a lock in a cache."""
    images = open_shards(str(write_tars(tmp_path / "data", [12])))
    seen: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return  # a hook cannot be taken away
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "os.mkdir"):
            seen.append(f"{event} {arguments}")
        elif event == "open":
            path, mode, flags = arguments
            if set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                seen.append(f"{path} {mode}")

    sys.addaudithook(watch)
    assert len(list(build(images))) == 3
    images.sample(3).read(0)
    watching = False
    assert seen == []
