"""Evaluation on a GPU: what runs there, and how its data get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pretend import CUDA, Gpu, OnGpu, on_gpu, pretended

from burn.core.types import Features
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.evaluation.configs import KnnConfig, LinearConfig
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_predict
from burn.evaluation.linear_layer import (
    cached_batches,
    train_linear,
    train_linear_at_best_rate,
)
from networks import tiny_reactnet


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
    # Only scores, weight and bias at the end are waited for, not each step.
    assert gpu.waits.total() == 3
    assert chosen.held_out == expected.held_out
    assert not isinstance(chosen.layer.weight, OnGpu)
    assert torch.equal(chosen.layer.weight, expected.layer.weight)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_features_are_extracted_on_the_gpu_without_a_wait_but_for_the_result(gpu: Gpu):
    source = open_source("digits", "test")
    network = on_gpu(tiny_reactnet())
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
