"""Batches in page-locked memory, which needs a GPU: here tensors only note that it was asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

import tiny
from burn.core.types import Batch, CachedFeatures
from burn.data.loader import EpochSampler, TrainLoader, light_views, plain_batches
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.evaluation.detection.detector import Images
from burn.methods.registry import build_method
from burn.runtime.distributed import Processes
from burn.training import stage
from burn.training.pretraining import stage_batches
from networks import shallow_reactnet


def batch() -> Batch:
    views = tuple(torch.zeros(2, 3, 4, 4, dtype=torch.uint8) for _ in range(2))
    cached = CachedFeatures(torch.zeros(1, 2, 5, dtype=torch.float16), torch.tensor([1]))
    return Batch(views, torch.arange(2), (), torch.arange(2), 3, views[:1], cached)


def test_a_loader_pins_everything_that_goes_to_the_gpu(monkeypatch: pytest.MonkeyPatch):
    pinned: list[int] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    given = batch()
    found = pin_memory(given)  # what a loader's thread calls
    assert isinstance(found, Batch)
    assert found.epoch == 3
    moved: list[int] = []
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *_, **__: moved.append(tensor.data_ptr()) or tensor
    )
    found.to(torch.device("cpu"))
    assert sorted(moved) == sorted(pinned)
    images, _ = pin_memory((Images(given.views[0], [(4, 4)]), []))
    assert isinstance(images, Images)
    assert pinned[-1] == given.views[0].data_ptr()


def test_loaders_pin_where_they_are_asked_to(tmp_path: Path):
    source = open_source("digits")
    recipe = tiny.baseline_recipe("supervised")
    method = build_method("supervised", None, shallow_reactnet(), None, 10)
    sampler = EpochSampler(len(source), 4, 0, drop_last=True)
    shards = open_source("stream:" + tiny.some_digits(tmp_path, 40))
    for pin in (False, True):
        loaders = [
            TrainLoader(source, light_views(32, 0), sampler, 0, pin=pin),
            plain_batches(source, ViewConfig(), 4, 0, pin=pin),
            stage_batches(recipe, method, source, 0, 0, pin=pin),
            stage_batches(recipe, method, shards, 0, 0, pin=pin),
        ]
        assert [loader.pin_memory for loader in loaders] == [pin] * 4


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_run_pins_for_a_gpu_alone(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []

    class Seen(Exception):
        pass

    def batches(*_: object, pin: bool, **__: object) -> None:
        asked.append(pin)
        raise Seen

    def on(_: torch.device) -> Processes:
        return Processes(torch.device(kind))

    monkeypatch.setattr(stage, "stage_batches", batches)
    monkeypatch.setattr(Processes, "start", on)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    with pytest.raises(Seen):
        tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=1)
    assert asked == [kind == "cuda"]
