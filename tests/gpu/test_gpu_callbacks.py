"""Monitors of a run on a GPU: what they wait for, and that the other steps wait for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from pretend import CUDA, Gpu, pretended
from steps import Run, build

from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.runtime.signals import StopRequest
from burn.training.callbacks.layers import Layers
from burn.training.callbacks.monitor import Monitor, OnlineKnn
from burn.training.records.metrics import read_metrics
from burn.training.records.writer import Record

EVERY = 4  # steps between two measurements
EPOCH = 6  # steps
# At a measured step: each term of the loss, each part's gradient, and each number of the features
# and of the target.
MEASURED = {
    "checks.on_before_step": 1, "checks.<dictcomp>": 4, "monitor.<dictcomp>": 3,
    "monitor.on_batch_end": 1, "collapse.effective_rank": 4, "collapse.look": 1,
    "collapse.close": 3,
}  # fmt: skip
# At an epoch's end: each of four layers' signs, and two numbers of its activations.
LAYERS = {"layers._packed": 4, "layers.close": 8}


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with (
        pretended() as gpu,
        mock.patch.object(torch.cuda, "max_memory_allocated", return_value=5_000_000),
        mock.patch.object(torch.cuda, "reset_peak_memory_stats"),
    ):
        yield gpu


def run_with_monitors(folder: Path) -> tuple[Run, Monitor, Record]:
    run = build("burn joint", every=EVERY, count=32, per_epoch=EPOCH)
    method, record = run.learner.method, Record(folder, run.console)
    source, processes = open_source("digits"), run.loop.processes
    monitor = Monitor(EVERY, 1.0, source, record, processes, run.console)
    run.loop.callbacks = [
        *run.loop.callbacks,
        monitor,
        Layers(EVERY, method.backbone, record),
    ]
    for callback in run.loop.callbacks:
        callback.on_start(run.loop)
    return run, monitor, record


def test_only_measured_steps_wait(gpu: Gpu, tmp_path: Path):
    run, monitor, record = run_with_monitors(tmp_path)
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for step in range(1, 9):
        gpu.waits.clear()
        before = gpu.kernels
        run.step()
        found[step] = gpu.kernels - before, dict(gpu.waits)
    waits = {step: waits for step, (_, waits) in found.items()}
    assert set(waits[1]) == {*MEASURED, "checks.<genexpr>"}
    assert {step: waits[step] for step in range(2, 9)} == {
        2: {}, 3: {}, 4: MEASURED, 5: {}, 6: LAYERS, 7: {}, 8: MEASURED
    }  # fmt: skip
    # The table's 557, and the target's window; measuring takes a third more.
    assert found[7][0] <= 562
    assert found[8][0] <= 780
    assert {"feature_rank", "target_entropy", "memory"} <= set(monitor.last)
    assert all(isinstance(value, float) for value in monitor.last.values())
    record.close()
    rows = read_metrics(tmp_path / "metrics.csv")
    assert len(rows) == 4  # steps 1, 4, 6 and 8
    names = {"metrics.csv", "gradients.csv", "layers.csv"}
    assert names <= {file.name for file in tmp_path.iterdir()}
    assert run.said.getvalue() == ""


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_knn_waits_for_each_batch_of_features_alone(gpu: Gpu, tmp_path: Path):
    run, monitor, record = run_with_monitors(tmp_path)
    knn = OnlineKnn(open_source("digits"), ViewConfig(size=16), monitor, record, StopRequest())
    run.step()
    gpu.waits.clear()
    knn.on_epoch_end(run.loop)
    assert gpu.waits == {"features.extract_features": 1}
    assert monitor.knn is not None
    record.close()
    assert all(p.device == CUDA for p in run.learner.method.backbone.parameters())
    assert run.learner.method.backbone.training
