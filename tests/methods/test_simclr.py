"""SimCLR's loss against NT-Xent written out pair by pair, in one process and in two.

What the other methods' tests share with these stands here too.
"""

from __future__ import annotations

import math
import multiprocessing
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from torch import Tensor, distributed, nn

from burn.backbones import Backbone, BackboneConfig
from burn.errors import UserError
from burn.methods.base import Method
from burn.methods.simclr import Simclr, SimclrConfig
from burn.types import Batch, Precision
from networks import tiny_reactnet

# --- Shared. ---


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
    peer = multiprocessing.get_context("spawn").Process(target=_second, args=(target, port, out))
    peer.start()
    first = _together(target, 0, port)
    peer.join(timeout=60)
    assert peer.exitcode == 0
    return first, torch.load(out)


def _second(target: Callable[[int], Any], port: int, out: Path) -> None:
    torch.set_num_threads(1)
    torch.save(_together(target, 1, port), out)


def _together(target: Callable[[int], Any], rank: int, port: int) -> Any:
    address, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=60)
    distributed.init_process_group("gloo", address, limit, rank=rank, world_size=2)
    try:
        return target(rank)
    finally:
        distributed.destroy_process_group()


def half(batch: Batch, rank: int) -> Batch:
    """The images of this one of two processes."""
    share = len(batch.indices) // 2
    own = slice(rank * share, (rank + 1) * share)
    return Batch(tuple(view[own] for view in batch.views), batch.indices[own])


# --- The loss. ---


def nt_xent(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    """Chen et al., Eq. 1, over every ordered positive pair of the 2N projections."""
    z = np.concatenate([first, second])
    n = len(first)

    def cosine(i: int, j: int) -> float:
        return float(z[i] @ z[j] / math.sqrt((z[i] @ z[i]) * (z[j] @ z[j])))

    total = 0.0
    for i in range(2 * n):
        positive = (i + n) % (2 * n)
        others = sum(math.exp(cosine(i, k) / temperature) for k in range(2 * n) if k != i)
        total -= math.log(math.exp(cosine(i, positive) / temperature) / others)
    return total / (2 * n)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_loss_and_gradient_are_nt_xents(temperature: float, layers: int):
    config = SimclrConfig(temperature, 8, 4, layers)  # type: ignore[arg-type]
    method = Simclr(tiny_reactnet(Precision.FLOAT), config).train()
    batch = views(32, 32)
    projections = outputs_of(method.head)
    output = method(batch, 0.0)
    output.loss.backward()
    first, second = (double(projection) for projection in projections)
    assert first.shape == (5, 4)
    # float32 cosines over T = 0.1: some 1e-6.
    assert output.loss.item() == pytest.approx(nt_xent(first, second, temperature), rel=1e-5)
    assert output.terms["loss"].item() == output.loss.item()
    assert torch.equal(output.features, method.backbone(batch.views[0]))
    assert output.target_probabilities is None
    expected = [
        numeric_gradient(lambda z: nt_xent(z, second, temperature), first),
        numeric_gradient(lambda z: nt_xent(first, z, temperature), second),
    ]
    for projection, gradient in zip(projections, expected, strict=True):
        # float32 probabilities, 1e-6 of values of size 1 to 10.
        assert np.allclose(gradient_of(projection), gradient, rtol=1e-4, atol=1e-5)


def test_version_1_is_as_it_was():
    """Its head draws the same weights, and gathering in a single process changes no bit."""
    config = SimclrConfig(layers=2)
    backbone = Plain()
    torch.manual_seed(3)
    method = Simclr(backbone, config).train()
    torch.manual_seed(3)
    head = SimCLRProjectionHead(6, 6, 128)
    assert list(head.state_dict()) == list(method.head.state_dict())
    batch = views(8, 8)
    projections = [head(backbone(view)) for view in batch.views]
    assert torch.equal(method(batch, 0.0).loss, NTXentLoss(0.5)(*projections))


@pytest.mark.parametrize("precision", list(Precision))
def test_both_parts_learn(precision: Precision):
    method = Simclr(tiny_reactnet(precision), SimclrConfig(dimension=16)).train()
    method(views(32, 32), 0.0).loss.backward()
    assert method.num_views == 2
    assert [(part.name, part.trained) for part in method.parts()] == [
        ("backbone", True), ("projection head", True),
    ]  # fmt: skip
    assert method.reached(0.0) == learning_parts(method) == {"backbone", "projection head"}
    assert sum(len(list(p.module.parameters())) for p in method.parts()) == len(
        list(method.parameters())
    )


@pytest.mark.parametrize(("layers", "hidden"), [(2, 1), (3, 2)])
def test_the_heads_hidden_width_is_the_backbones_unless_set(layers: Any, hidden: int):
    backbone = tiny_reactnet()
    widths = [
        [p.shape[0] for p in Simclr(backbone, config).head.parameters() if p.ndim == 2]
        for config in (
            SimclrConfig(layers=layers),
            SimclrConfig(hidden=40, dimension=8, layers=layers),
        )
    ]
    assert widths == [[256] * hidden + [128], [40] * hidden + [8]]


def test_weights_are_all_of_it():
    method = Simclr(tiny_reactnet(), SimclrConfig())
    assert set(method.weights()) == set(method.state_dict())
    assert all(name.startswith(("backbone.", "head.")) for name in method.weights())


def test_it_goes_on_from_its_state():
    def build(seed: int) -> Simclr:
        return Simclr(tiny_reactnet(seed=seed), SimclrConfig(dimension=16))

    goes_on_from_its_state(build, 32, 32)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "simclr.temperature 0.0"),
        ({"temperature": -1.0}, "simclr.temperature -1.0"),
        ({"hidden": 0}, "simclr.hidden 0"),
        ({"dimension": 0}, "simclr.dimension 0"),
        ({"layers": 4}, "simclr.layers 4"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        SimclrConfig(**settings).check()


def test_defaults_pass():
    SimclrConfig().check()
    assert SimclrConfig().layers == 3


# --- Two processes. ---


def plain(layers: Any) -> Simclr:
    torch.manual_seed(0)
    method = Simclr(Plain(), SimclrConfig(0.5, 8, 4, layers))
    without_norm(method.head)
    return method


def _halves(rank: int) -> list[Any]:
    found = []
    for layers in (2, 3):
        method = plain(layers)
        loss = method(half(views(8, 8, count=6), rank), 0.0).loss
        loss.backward()
        found.append((loss.detach(), [p.grad for p in method.parameters()]))
    return found


def test_two_processes_are_one_at_double_the_batch(tmp_path: Path):
    """Their mean loss is its loss, and their mean gradient, as DDP takes it, its gradient."""
    both = in_two_processes(_halves, tmp_path)
    for layers, (first, second) in zip((2, 3), zip(*both, strict=True), strict=True):
        method = plain(layers)
        loss = method(views(8, 8, count=6), 0.0).loss
        loss.backward()
        assert first[0] != second[0]
        # float32 sums in another order, as below: gradients of size 0.01 to 1.
        assert loss.item() == pytest.approx((first[0] + second[0]).item() / 2, rel=1e-6)
        for parameter, a, b in zip(method.parameters(), first[1], second[1], strict=True):
            torch.testing.assert_close(parameter.grad, (a + b) / 2, rtol=1e-5, atol=1e-7)
