"""Evaluation on a GPU: what runs there, and how its data get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pretend import CUDA, Gpu, OnGpu, on_gpu, pretended

from burn.core.types import Features, Precision
from burn.data.open import open_source
from burn.data.splits import balanced_share
from burn.data.view_config import ViewConfig
from burn.evaluation.configs import KnnConfig, LinearConfig, SemiConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_predict
from burn.evaluation.linear_layer import (
    cached_batches,
    train_linear,
    train_linear_at_best_rate,
)
from burn.evaluation.semi import fine_tune
from burn.learning.loop import Callback, Loop
from networks import shallow_reactnet

# Kernels of a step of fine-tuning in float32 and in bfloat16. Most are of SGD, which on a real GPU
# updates many parameters in one.
MOST_OF_SEMI = (955, 1049)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with pretended() as gpu:
        yield gpu


def features(count: int = 60) -> Features:
    labels = torch.arange(count) % 3
    values = torch.randn(count, 5) + 2 * torch.eye(5)[labels]
    return Features(values, labels, ("a", "b", "c"), torch.arange(count))


def test_knn_runs_on_the_gpu_and_gives_what_it_gives_on_the_cpu(gpu: Gpu):
    bank, queries = features(), features(20)
    assert bank.labels is not None
    given = bank.values, bank.labels, queries.values, 3, KnnConfig(k=5)
    scores = knn_predict(*given, CUDA)
    assert gpu.names["mm"] == gpu.names["topk"] == 1
    assert type(scores) is torch.Tensor
    assert torch.equal(scores, knn_predict(*given))


@pytest.mark.parametrize("probe", ["strict", "mlp"])
def test_a_linear_head_is_trained_on_the_gpu(probe: Any, gpu: Gpu):
    config = LinearConfig(probe=probe, epochs=2, lr=1.0, batch_size=20, augment="none")
    known = features()

    def train(*device: torch.device) -> dict[str, torch.Tensor]:
        return train_linear(
            cached_batches(known, 20, 0), 5, 3, config, 0, lambda _: None, *device
        ).state_dict()

    layer = train(CUDA)
    assert gpu.names["addmm"] == 6 * (2 if probe == "mlp" else 1)
    assert not any(isinstance(tensor, OnGpu) for tensor in layer.values())
    assert all(torch.equal(tensor, layer[name]) for name, tensor in train().items())


def test_heads_of_all_learning_rates_are_trained_on_the_gpu(gpu: Gpu):
    config = LinearConfig(epochs=2, batch_size=20, augment="none")
    known, part = features(), features(12)

    def train(*device: torch.device) -> Any:
        batches = cached_batches(known, 20, 0)
        return train_linear_at_best_rate(batches, part, 3, config, 0, lambda _: None, *device)

    chosen, expected = train(CUDA), train()
    assert gpu.names["addmm"] >= 2 * 6
    # What is copied before the first step and after the last one; no step waits.
    assert gpu.waits.total() == 7
    assert chosen.held_out == expected.held_out
    assert not isinstance(chosen.layer.weight, OnGpu)
    assert torch.equal(chosen.layer.weight, expected.layer.weight)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_features_are_extracted_on_the_gpu_without_a_wait_but_for_the_result(gpu: Gpu):
    source = open_source("digits", "test")
    network = on_gpu(shallow_reactnet())
    gpu.waits.clear()
    found = extract_features(
        network,  # type: ignore[arg-type]
        source,
        ViewConfig(size=32),
        indices=range(8),
        batch_size=4,
        bfloat16=True,
    )
    assert type(found.values) is torch.Tensor
    assert gpu.waits == {"features.extract_features": 2}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("bfloat16", [False, True])
def test_fine_tuning_waits_once_an_epoch_and_at_the_end(gpu: Gpu, bfloat16: bool):
    digits = open_source("digits", "train")
    source = balanced_share(digits, 0.02, seed=0)
    network = on_gpu(shallow_reactnet())
    context = EvaluationContext(
        "tiny",
        "none",
        network,
        ViewConfig(size=32),
        digits,
        digits,
        0,
        0,
        bfloat16=bfloat16,  # type: ignore[arg-type]
    )
    found: list[tuple[int, dict[str, int]]] = []

    class Epochs(Callback):
        def on_epoch_end(self, loop: Loop[Any]) -> None:
            found.append((gpu.kernels, dict(gpu.waits)))
            gpu.waits.clear()

    gpu.waits.clear()
    config = SemiConfig(epochs=3, batch_size=10)
    head = fine_tune(network, source, context, config, 0.01, 1.0, [Epochs()])
    assert isinstance(head, torch.nn.Linear)
    assert isinstance(head.weight, OnGpu)
    assert [waits for _, waits in found[1:]] == [{"fine_tuning.on_epoch_end": 1}] * 2
    assert gpu.waits == {"fine_tuning.train": 1}  # whether all weights are finite
    steps = -(-len(source) // 10)
    assert (found[2][0] - found[1][0]) / steps <= MOST_OF_SEMI[bfloat16]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_batch_of_fine_tuning_that_is_not_finite_ends_it_with_its_epoch(gpu: Gpu):
    digits = open_source("digits", "train")
    source = balanced_share(digits, 0.02, seed=0)
    network = on_gpu(shallow_reactnet(Precision.FLOAT))
    context = EvaluationContext(
        "tiny",
        "none",
        network,
        ViewConfig(size=32),
        digits,
        digits,
        0,
        0,  # type: ignore[arg-type]
    )
    epochs: list[int] = []

    class Epochs(Callback):
        def on_epoch_end(self, loop: Loop[Any]) -> None:
            epochs.append(loop.epoch)

    config = SemiConfig(epochs=2, batch_size=10)
    assert fine_tune(network, source, context, config, 1e30, 1.0, [Epochs()]) is None
    assert epochs == [0]
