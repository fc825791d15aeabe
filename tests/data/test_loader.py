"""The loader: every image once an epoch, and after an interruption exactly what would have come."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from burn.core.types import Batch
from burn.data.augment import crop_and_flip, generator, plain_view, random_view
from burn.data.decode import UnreadableImage
from burn.data.loader import EpochSampler, TrainLoader, light_views, plain_batches, random_views
from burn.data.open import open_source
from burn.data.view_config import ViewConfig

VIEWS = ViewConfig(size=16, resize=16, jitter=1.0)
NUM_VIEWS = 2
SEED = 5


class Pictures:
    """Random images in memory, of which some cannot be read."""

    name = "pictures"
    classes: tuple[str, ...] = ()
    labels: np.ndarray | None = None
    fingerprint = ""

    def __init__(self, count: int, corrupt: Sequence[int] = ()) -> None:
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (count, 3, 20, 24), dtype=np.uint8)
        self.corrupt = set(corrupt)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Tensor:
        if index in self.corrupt:
            raise UnreadableImage(f"{index}: torn")
        return torch.from_numpy(self.images[index])

    def describe(self, index: int) -> str:
        return str(index)


def build(
    source: Pictures, size: int, *, drop_last: bool = False, workers: int = 0, seed: int = SEED
) -> TrainLoader:
    sampler = EpochSampler(len(source), size, seed, drop_last=drop_last)
    return TrainLoader(source, random_views([VIEWS] * NUM_VIEWS, seed), sampler, workers)


def stream(loader: TrainLoader) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from loader


def take(loader: TrainLoader, count: int) -> list[Batch]:
    return list(itertools.islice(stream(loader), count))


def same(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Indices and pixels."""
    return len(first) == len(second) and all(
        torch.equal(a.indices, b.indices)
        and a.unreadable == b.unreadable
        and len(a.views) == len(b.views)
        and all(torch.equal(v, w) for v, w in zip(a.views, b.views, strict=True))
        for a, b in zip(first, second, strict=True)
    )


# --- What a batch holds. ---


@pytest.mark.parametrize("workers", [0, 1])
def test_labels_are_those_of_the_images(workers: int):
    source = Pictures(11, corrupt=[3])
    source.labels = np.arange(11) % 4
    for batch in build(source, 4, workers=workers):
        assert batch.labels is not None
        assert batch.labels.dtype == torch.int64
        assert batch.labels.tolist() == [int(index) % 4 for index in batch.indices]


def test_without_labels_there_are_none():
    assert all(batch.labels is None for batch in build(Pictures(5), 2))


def test_views_may_differ_in_size_and_augmentation():
    """SwAV's small crops; each is what it would be as the only view of that number."""
    source = Pictures(5)
    small = replace(VIEWS, size=VIEWS.size // 2, resize=None)
    configs = [VIEWS, VIEWS, small]
    loader = TrainLoader(
        source, random_views(configs, SEED), EpochSampler(5, 5, SEED, drop_last=False), 0
    )
    (batch,) = loader
    assert [view.shape[-1] for view in batch.views] == [c.size for c in configs]
    for number, (views, config) in enumerate(zip(batch.views, configs, strict=True)):
        for view, index in zip(views, batch.indices.tolist(), strict=True):
            expected = random_view(source.read(index), config, generator(SEED, 0, index, number))
            assert torch.equal(view, expected)


# --- Epochs. ---


@pytest.mark.parametrize("count", [2, 3])
def test_processes_part_the_batches_of_one(count: int):
    """Together they see what one process with as large a batch sees, and nobody sees it twice."""
    one = EpochSampler(26, 4 * count, SEED, drop_last=True)
    several = [
        EpochSampler(26, 4, SEED, drop_last=True, rank=rank, count=count) for rank in range(count)
    ]
    for epoch in range(2):
        for sampler in (one, *several):
            sampler.epoch, sampler.skip = epoch, 1
        assert {len(sampler) for sampler in several} == {len(one)}
        for whole, *parts in zip(one, *several, strict=True):
            assert whole == [key for part in parts for key in part]


@pytest.mark.parametrize("workers", [0, 1])
def test_every_index_once_an_epoch_in_another_order(workers: int):
    loader = build(Pictures(11), 4, workers=workers)
    orders = []
    for _ in range(3):
        batches = list(loader)
        assert [len(b.indices) for b in batches] == [4, 4, 3]
        order = torch.cat([b.indices for b in batches]).tolist()
        assert sorted(order) == list(range(11))
        orders.append(tuple(order))
    assert len(set(orders)) == 3


@pytest.mark.parametrize(
    ("count", "batch_size", "drop_last", "sizes"),
    [
        (11, 4, False, [4, 4, 3]),
        (11, 4, True, [4, 4]),
        (12, 4, False, [4, 4, 4]),
        (12, 4, True, [4, 4, 4]),
        (3, 4, False, [3]),
        (3, 4, True, [3]),  # fewer than one batch: the batch is all of them
        (1, 1, True, [1]),
    ],
)
def test_the_last_batch(count: int, batch_size: int, drop_last: bool, sizes: list[int]):
    loader = build(Pictures(count), batch_size, drop_last=drop_last)
    assert len(loader) == len(sizes)
    for _ in range(2):
        batches = list(loader)
        assert [len(b.indices) for b in batches] == sizes
        indices = torch.cat([b.indices for b in batches]).tolist()
        assert len(set(indices)) == len(indices)


def test_views_are_those_of_seed_epoch_index_and_view():
    source = Pictures(5)
    loader = build(source, 2)
    for epoch in range(2):
        for batch in loader:
            assert len(batch.views) == NUM_VIEWS
            for number, views in enumerate(batch.views):
                assert views.dtype == torch.uint8
                assert views.shape == (len(batch.indices), 3, 16, 16)
                for view, index in zip(views, batch.indices.tolist(), strict=True):
                    numbers = generator(SEED, epoch, index, number)
                    assert torch.equal(view, random_view(source.read(index), VIEWS, numbers))


def test_light_views_are_one_crop():
    image = Pictures(1).read(0)
    drawn = light_views(16, SEED)(image, 3, 7)
    (view,) = drawn.views
    protocols = ViewConfig(size=16)  # 8 to 100 % of the image, whatever pretraining drew
    assert protocols.crop_scale == (0.08, 1.0)
    assert torch.equal(view, crop_and_flip(image, protocols, generator(SEED, 3, 7, 0)))
    assert not drawn.teacher_views


def test_the_seed_decides_order_and_pixels():
    source = Pictures(11)
    first, again, other = (take(build(source, 4, seed=s), 3) for s in (1, 1, 2))
    assert same(first, again)
    assert [b.indices.tolist() for b in first] != [b.indices.tolist() for b in other]


def test_workers_do_not_matter():
    source = Pictures(11)
    batches = [take(build(source, 4, workers=workers), 6) for workers in (0, 1, 2)]
    assert same(batches[0], batches[1])
    assert same(batches[0], batches[2])


# --- Resuming. ---


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_new_loader_goes_on_where_the_state_was_taken(drop_last: bool):
    """After every number of batches in two epochs, for two epochs more."""
    source, total = Pictures(11, corrupt=[6]), 12
    whole = take(build(source, 4, drop_last=drop_last), total)
    for used in range(8):
        first = build(source, 4, drop_last=drop_last)
        assert same(take(first, used), whole[:used])
        state = first.state_dict()
        resumed = build(source, 4, drop_last=drop_last)
        resumed.load_state_dict(state)
        assert same(take(resumed, total - used), whole[used:])


@pytest.mark.parametrize("used", [0, 2, 3, 4])
def test_a_resumed_loader_with_a_worker(used: int):
    """The state counts the batches handed out, not those that a worker has ready."""
    source, total = Pictures(11), 7
    whole = take(build(source, 4), total)
    first = build(source, 4, workers=1)
    assert same(take(first, used), whole[:used])
    assert first.state_dict() == {"used": used}
    resumed = build(source, 4, workers=1)
    resumed.load_state_dict(first.state_dict())
    assert same(take(resumed, total - used), whole[used:])


def test_the_epoch_in_which_it_resumes_is_the_rest_of_it():
    """An iteration is an epoch: of the first, what remains; of the next, all."""
    resumed = build(Pictures(11), 4)
    resumed.load_state_dict({"used": 4})
    assert [len(list(resumed)) for _ in range(3)] == [2, 3, 3]


def test_an_iteration_that_is_broken_off_is_gone_on_with():
    source = Pictures(11)
    whole = take(build(source, 4), 6)
    loader = build(source, 4)
    begun = list(itertools.islice(loader, 2))
    assert same([*begun, *take(loader, 4)], whole)


# --- Images that cannot be read. ---


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_left_out_and_listed(workers: int):
    source = Pictures(11, corrupt=[2, 7])
    good = take(build(Pictures(11), 4), 3)
    found = take(build(source, 4, workers=workers), 3)
    for with_all, without in zip(good, found, strict=True):
        torn = [i for i in with_all.indices.tolist() if i in source.corrupt]
        kept = [k for k, i in enumerate(with_all.indices.tolist()) if i not in source.corrupt]
        assert without.unreadable == tuple(torn)
        assert torch.equal(without.indices, with_all.indices[kept])
        for view, complete in zip(without.views, with_all.views, strict=True):
            assert torch.equal(view, complete[kept])
    assert sorted(i for b in found for i in b.unreadable) == [2, 7]


def test_a_batch_of_which_nothing_can_be_read():
    (batch,) = build(Pictures(3, corrupt=range(3)), 4)
    assert batch.views == ()
    assert batch.indices.shape == (0,)
    assert batch.indices.dtype == torch.int64
    assert sorted(batch.unreadable) == [0, 1, 2]


def test_a_corrupt_file_of_a_folder(tmp_path: Path):
    for name in "abcd":
        pixels = np.full((20, 20, 3), ord(name), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    whole = (tmp_path / "c.png").read_bytes()
    (tmp_path / "c.png").write_bytes(whole[: len(whole) // 2])
    (batch,) = plain_batches(open_source(str(tmp_path)), VIEWS, 8, 0)
    assert batch.indices.tolist() == [0, 1, 3]
    assert batch.unreadable == (2,)
    assert batch.views[0][:, 0, 0, 0].tolist() == [ord("a"), ord("b"), ord("d")]


# --- Plain batches. ---


@pytest.mark.parametrize("workers", [0, 1])
def test_plain_batches_are_in_order_and_once(workers: int):
    source = Pictures(7, corrupt=[4])
    batches = list(plain_batches(source, VIEWS, 3, workers))
    assert [b.indices.tolist() for b in batches] == [[0, 1, 2], [3, 5], [6]]
    assert [b.unreadable for b in batches] == [(), (4,), ()]
    for batch in batches:
        (views,) = batch.views
        for view, index in zip(views, batch.indices.tolist(), strict=True):
            assert torch.equal(view, plain_view(source.read(index), VIEWS))


def test_more_workers_than_cores_are_no_warning(monkeypatch: pytest.MonkeyPatch):
    """Warnings are errors in these tests; torch warns when a loader is made and when it starts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    source = Pictures(4)
    with pytest.warns(UserWarning, match="suggested max number of worker"):
        DataLoader(TensorDataset(torch.zeros(1)), num_workers=2)
    assert len(list(build(source, 2, workers=2))) == 2
    assert len(list(plain_batches(source, VIEWS, 2, 2))) == 2


def test_plain_batches_of_some_positions():
    batches = list(plain_batches(Pictures(7), VIEWS, 2, 0, [6, 0, 3]))
    assert [b.indices.tolist() for b in batches] == [[6, 0], [3]]
    assert list(plain_batches(Pictures(7), VIEWS, 2, 0, [])) == []
