"""What the tests of methods share: small batches, a backbone without BN, and checks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

import threads
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.core.types import Batch
from burn.methods.base import Method
from warm import CONTEXT


def views(*sizes: int, count: int = 5, seed: int = 9, labels: Tensor | None = None) -> Batch:
    """A batch with a view of each of these heights and widths."""
    generator = torch.Generator().manual_seed(seed)
    images = (
        torch.randint(0, 256, (count, 3, n, n), generator=generator, dtype=torch.uint8)
        for n in sizes
    )
    return Batch(tuple(images), torch.arange(count), labels=labels)


class Plain(Backbone):
    """Six features of an image of any size, without BN: a batch is the sum of its images."""

    def __init__(self) -> None:
        super().__init__(BackboneConfig(), num_features=6)
        self.layer = nn.Linear(12, 6)

    def forward_features(self, images: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.normalize(images).contiguous().mean((2, 3)).repeat(1, 4)))

    def pool(self, features: Tensor) -> Tensor:
        return features


def without_norm(head: nn.Module) -> None:
    """BN in lightly's heads makes way for nothing."""
    layers = head.layers
    assert isinstance(layers, nn.Sequential)
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.BatchNorm1d):
            layers[index] = nn.Identity()


def numeric_gradient(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Central differences in float64: right to some 1e-9 for values of size 1."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = 1e-6
        gradient[index] = (function(at + step) - function(at - step)) / 2e-6
    return gradient


def outputs_of(module: nn.Module) -> list[Tensor]:
    """What the module gives from now on, with the gradients that it will receive."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        kept.append(output)

    module.register_forward_hook(keep)
    return kept


def double(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def gradient_of(tensor: Tensor) -> np.ndarray:
    assert tensor.grad is not None
    return double(tensor.grad)


def learning_parts(method: Method) -> set[str]:
    """Names of the parts whose gradient is not zero; each parameter's must be finite."""
    names = set()
    for part in method.parts():
        gradients = [p.grad for p in part.module.parameters()]
        if part.trained:
            assert all(g is not None and bool(g.isfinite().all()) for g in gradients), part.name
        else:
            assert all(g is None for g in gradients), part.name
        if any(g is not None and bool(g.any()) for g in gradients):
            names.add(part.name)
    return names


def train(method: Method, steps: range, of: int, *sizes: int) -> list[float]:
    """Steps of SGD at these positions in a stage of `of` steps; the loss of each."""
    labels = torch.arange(5) % 3
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = method(views(*sizes, seed=step, labels=labels), step / of).loss
        loss.backward()
        optimizer.step()
        method.after_step(step / of)
        losses.append(loss.item())
    return losses


def goes_on_from_its_state(build: Callable[[int], Method], *sizes: int) -> None:
    """A method built from another seed goes on from a state dict as if never interrupted."""
    method = build(1).train()
    train(method, range(2), 4, *sizes)
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    expected = train(method, range(2, 4), 4, *sizes)
    other = build(2).train()
    other.load_state_dict(state)
    assert train(other, range(2, 4), 4, *sizes) == expected


def in_two_processes(target: Callable[[int], Any], folder: Path) -> tuple[Any, Any]:
    """What target(rank) gives in two gloo processes: this one is the first, to import but once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = folder / "second.pt"
    peer = CONTEXT.Process(target=_second, args=(target, port, out))
    peer.start()
    first = _together(target, 0, port)
    peer.join(timeout=60)
    assert peer.exitcode == 0
    return first, torch.load(out)


def _second(target: Callable[[int], Any], port: int, out: Path) -> None:
    threads.limit()
    torch.save(_together(target, 1, port), out)


def _together(target: Callable[[int], Any], rank: int, port: int) -> Any:
    join(rank, port)
    try:
        return target(rank)
    finally:
        distributed.destroy_process_group()


def join(rank: int, port: int) -> None:
    """The group of two. Its name counts a process's earlier groups, and must be one in both."""
    world = distributed.distributed_c10d._world
    world.group_count = 0
    address, limit = f"tcp://127.0.0.1:{port}", timedelta(minutes=2)
    distributed.init_process_group("gloo", address, limit, rank=rank, world_size=2)


def half(batch: Batch, rank: int) -> Batch:
    """The images of this one of two processes."""
    share = len(batch.indices) // 2
    own = slice(rank * share, (rank + 1) * share)
    return Batch(tuple(view[own] for view in batch.views), batch.indices[own])
