"""Compiled training passes, forced on every machine: against uncompiled ones, and against float64.

What is not long runs on PyTorch's decompositions, as inductor has them, without generated code:
they decide which dtypes come out, and take a tenth of the time.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from timm.layers.norm import LayerNorm2d
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from burn.backbones import bnext, expert, reactnet
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.plan import block_plan
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.layers.chain import BinaryLayer
from burn.training.compiled import compile_training, compiles_layers

DTYPES = (torch.float32, torch.bfloat16)
DECOMPOSED = "aot_eager_decomp_partition"


class Small(Backbone):
    """A backbone of given layers behind a map whose means are several standard deviations."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(BackboneConfig(), 8)
        self.layers = nn.Sequential(*layers)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def pool(self, features: Tensor) -> Tensor:
        return features.float().mean(dim=(2, 3))


def reactnet_block() -> nn.Module:
    return reactnet.Block(*block_plan("block", 8, 8, 2), BackboneConfig(), Precision.BINARY)


def bnext_layer() -> nn.Module:
    config = BackboneConfig(name="bnext_t")
    return bnext.MixedLayer(8, 3, 1, True, config, Precision.BINARY)


def expert_layer() -> nn.Module:
    config = BackboneConfig(name="expert_bnn")
    return expert.ExpertLayer(8, 8, 3, 1, 4, config, Precision.BINARY)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "reactnet": reactnet_block,
    "layer": lambda: BinaryLayer(8, 8),
    "bnext": bnext_layer,
    "expert": expert_layer,
}
# The networks of all recipes, and float ones as teachers train them, in few blocks.
NETWORKS = {
    "reactnet": (tiny.STUDENT, Precision.BINARY),
    "reactnet of the first stage": (tiny.STUDENT, Precision.BINARY_ACTIVATIONS),
    "bnext": (BackboneConfig(name="bnext_t", width=0.25), Precision.BINARY),
    "expert": (BackboneConfig(name="expert_bnn", width=0.25), Precision.BINARY),
    "float": (tiny.TEACHER, Precision.FLOAT),
}


pytestmark = pytest.mark.skipif(
    not compiles_layers(), reason="this PyTorch does not compile burn's layers"
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=DECOMPOSED))


def never(line: str) -> None:
    raise AssertionError(line)


def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", dtype) if dtype == torch.bfloat16 else nullcontext()


def step(backbone: Backbone, images: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters' gradients of a random sum of the features, in float64."""
    backbone.zero_grad()
    with autocast(dtype):
        features = backbone(images)
    generator = torch.Generator().manual_seed(7)
    arriving = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    features.backward(arriving.to(features.dtype))
    found = {}
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == parameter.dtype, name
        found[name] = parameter.grad.double()
    return found


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Length of each gradient's error, in lengths of the longest exact one of its dimensions."""

    def longest(ndim: int) -> Tensor:
        return (
            torch.stack([g.norm() for g in exact.values() if g.ndim == ndim]).max().clamp(min=1e-9)
        )

    return {n: float((found[n] - g).norm() / longest(g.ndim)) for n, g in exact.items()}


def images_of(size: int = 8, means: float = 2) -> Tensor:
    """Maps whose channels' means reach from -means to +means standard deviations."""
    x = torch.randn(4, 8, size, size) + torch.linspace(-means, means, 8).view(1, -1, 1, 1)
    return x.bfloat16().float().contiguous(memory_format=torch.channels_last)


def check_block(name: str, dtype: torch.dtype) -> None:
    backbone = Small(BLOCKS[name]()).train()
    twins = [copy.deepcopy(backbone) for _ in range(2)]
    compile_training(backbone, never)
    exact, eager = twins[0].double(), twins[1]
    x = images_of().to(dtype)
    for _ in range(2):
        truth = step(exact, x.double(), torch.float64)
        plain = errors(step(eager, x, dtype), truth)
        found = errors(step(backbone, x, dtype), truth)
        for parameter, error in found.items():
            # Both round every map once or twice, to 8 bits in bfloat16, in another order, by
            # which other signs near zero flip.
            bound = 1e-4 if dtype == torch.float32 else 0.02
            assert error <= 3 * plain[parameter] + bound, parameter
    for (key, ours), theirs in zip(backbone.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02, msg=key)


@pytest.mark.usefixtures("decomposed")
@pytest.mark.parametrize(
    "name", ["layer", *(pytest.param(n, marks=pytest.mark.long) for n in ("bnext", "expert"))]
)
def test_gradients_of_compiled_layers_in_bfloat16(name: str):
    check_block(name, torch.bfloat16)


@pytest.mark.usefixtures("decomposed")
def test_an_epoch_with_evaluation_and_a_short_last_batch_compiles_once():
    backbone = Small(BinaryLayer(8, 8)).train()
    compile_training(backbone, never)
    twin = copy.deepcopy(Small(*backbone.layers)).train()
    counters = torch._dynamo.utils.counters
    counters.clear()
    for _ in range(2):
        for count in (4, 4, 3, 1):
            step(backbone, images_of()[:count], torch.bfloat16)
            step(twin, images_of()[:count], torch.bfloat16)
        with torch.no_grad():
            backbone.eval()(images_of())
        backbone.train()
    assert counters["stats"]["unique_graphs"] == 1
    step(backbone, images_of(6), torch.bfloat16)  # of another size, as swav's small crops
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.usefixtures("decomposed")
def test_the_limit_of_recompilations_is_for_each_network(caplog: pytest.LogCaptureFixture):
    with torch._dynamo.config.patch(recompile_limit=1):  # 8 by default
        for _ in range(2):
            backbone = Small(nn.BatchNorm2d(8)).train()
            compile_training(backbone, never)
            step(backbone, images_of(), torch.float32)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x


def no_compiler(*_: Any) -> Any:
    """Where there is no C++ compiler, inductor raises this."""
    raise InvalidCxxCompiler


@pytest.mark.parametrize(
    ("layer", "backend", "why"),
    [
        (Broken, "eager", "Unsupported: "),
        (nn.Identity, no_compiler, "InvalidCxxCompiler: No working C++ compiler found"),
    ],
)
def test_what_cannot_be_compiled_trains_without_and_says_so_once(
    layer: Callable[[], nn.Module],
    backend: Any,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    backbone = Small(nn.BatchNorm2d(8), layer()).train()
    twin = copy.deepcopy(backbone)
    said: list[str] = []
    compile_training(backbone, said.append)
    x = images_of()
    for _ in range(2):
        found, expected = (step(one, x, torch.float32) for one in (backbone, twin))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for ours, theirs in zip(backbone.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    (line,) = said
    assert line.startswith("--compile: the network cannot be compiled and trains without: " + why)
    assert "\n" not in line
    assert capfd.readouterr() == ("", "")


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch of timm": lambda: BatchNormAct2d(8, apply_act=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "layer": lambda: LayerNorm2d(8),
}


def check_norm(name: str) -> None:
    """A mean of 32 deviations, rounded to bfloat16, is wrong by up to an eighth of a deviation."""
    backbone = Small(NORMS[name]()).train()
    exact = copy.deepcopy(backbone).double()
    compile_training(backbone, never)
    x = images_of(means=32)
    for _ in range(2):
        truth = step(exact, x.double(), torch.float64)
        for parameter, found in step(backbone, x.bfloat16(), torch.bfloat16).items():
            error = (found - truth[parameter]).norm() / truth[parameter].norm()
            assert error < 0.02, parameter  # the arriving gradients have 8 bits


@pytest.mark.usefixtures("decomposed")
@pytest.mark.parametrize("name", NORMS)
def test_compiled_norms_of_bfloat16_have_float32_statistics(name: str):
    check_norm(name)


def test_generated_code_too():
    """What users run; the others of `make test` stop at the decomposition."""
    check_norm("batch")


def tiny_images(count: int, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


class Nearest(TorchDispatchMode):
    """Keeps the smallest size of the numbers of images whose signs are taken.

    Args:
        count: Number of images.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.size = count, float("inf")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.copysign:
            numbers = args[1]
            if numbers.ndim == 4 and len(numbers) == self.count:
                self.size = min(self.size, float(numbers.abs().min()))
        return func(*args, **(kwargs or {}))


def clear_images(exact: Backbone, count: int) -> Tensor:
    """Images of which no sign is decided by rounding.

    In float32 a sign of a number below 1e-6 may flip, here with and there without compiling, and
    every flip changes all that follows.
    """
    network = copy.deepcopy(exact)
    sizes = []
    for seed in range(24):
        with Nearest(count) as nearest, torch.no_grad():
            network(tiny_images(count, seed))
        sizes.append(nearest.size)
    assert max(sizes) > 1e-5
    return tiny_images(count, sizes.index(max(sizes)))


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_generated_code_of_every_block(name: str, dtype: torch.dtype):
    check_block(name, dtype)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_recipes(name: str, dtype: torch.dtype, threads: int):
    """Two steps of each, an evaluation and a short batch, against those that are not compiled."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        backbone = build_backbone(*NETWORKS[name]).train()
        exact, eager = copy.deepcopy(backbone).double(), copy.deepcopy(backbone)
        compile_training(backbone, never)
        whole, short = (clear_images(exact, count) for count in (8, 5))
        for images in (whole, whole, short):
            truth = step(exact, images, torch.float64)
            plain = errors(step(eager, images, dtype), truth)
            found = errors(step(backbone, images, dtype), truth)
            # In bfloat16 signs flip in both, and every flip changes all that follows.
            allowed = 1e-4 if dtype == torch.float32 else 0.1
            mean, plain_mean = (sum(e.values()) / len(e) for e in (found, plain))
            assert mean <= 1.5 * plain_mean + allowed
        with torch.no_grad():
            backbone.eval()(tiny_images(4))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("version", "compiles"),
    [("2.11.0+cu130", False), ("2.13.1", False), ("2.14.0a1", True), ("3.0.0", True)],
)
def test_an_older_torch_trains_without_and_says_so(
    version: str, compiles: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "__version__", version)
    said: list[str] = []
    backbone = Small(nn.BatchNorm2d(8))
    compile_training(backbone, said.append)
    assert ("forward" in vars(backbone)) == compiles
    assert [line.startswith(f"--compile: torch {version} does not") for line in said] == (
        [] if compiles else [True]
    )
