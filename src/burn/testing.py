"""Contracts that every method, backbone and protocol keeps: burn's own, and yours in your tests.

    from burn import testing

    def test_mine():
        testing.check_method("mine")

Each function raises AssertionError or UserError with a message that says what is wrong. Each takes
some seconds on a CPU.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES, is_binary
from burn.backbones.registry import build_backbone, describe_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.checkpoints.native import load_checkpoint, save_checkpoint
from burn.core.errors import UserError
from burn.core.results import Result
from burn.core.types import Batch, Precision
from burn.data.open import open_source
from burn.data.splits import Subset
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from burn.evaluation.configs import Request
from burn.evaluation.context import Model
from burn.evaluation.entries import PROTOCOLS
from burn.evaluation.registry import evaluate_checkpoint
from burn.methods.base import Method
from burn.methods.entries import find_method
from burn.methods.registry import build_method
from burn.recipes.registry import find_recipe
from burn.recipes.schema import OptimConfig, Recipe
from burn.training.pretraining import build_optimizer, stage_batches

_STUDENT = BackboneConfig(width=0.125, depths=(1, 1, 1, 1, 1), stage_strides=(2, 2, 2, 1))
_BATCH = 32


def check_method(name: str, recipe: Recipe | None = None, *, steps: int = 10) -> None:
    """Check that a method learns what it declares, and nothing else, and can be resumed.

    The loss of one batch has to fall, the gradients have to match the method's parts, and a state
    dict has to hold everything that training depends on.

    Args:
        name: Name of a registered method.
        recipe: Settings and views of the method. None takes the demo's with the method's default
            settings. Network and batch are small in any case.
        steps: Optimizer steps in which the loss of one batch of the built-in digits has to fall.

    Raises:
        AssertionError: The method breaks the contract; the message says how.
        UserError: burn would refuse the method; the message says why.
    """
    find_method(name)
    recipe = replace(
        find_recipe("demo") if recipe is None else recipe,
        method=name,
        batch_size=_BATCH,
        accumulate=1,
        stages=1,
        teacher_size=None,
        compute="float32",
        backbone=_STUDENT,
        optim=OptimConfig(name="adam", lr=3e-4, warmup_epochs=0),
    )
    recipe.check()
    method = _method(recipe, 0)
    batches = list(itertools.islice(_batches(recipe, method), 4))
    _check_parts(method, batches[0])
    _check_fit(recipe, batches[0], steps)
    _check_state(recipe, batches)


def _method(recipe: Recipe, seed: int) -> Method:
    """Build a small method in training mode; its teacher has a projection head and a classifier.

    The backbone has float weights, because a few steps with binary weights do not reliably lower a
    loss.
    """
    torch.manual_seed(100)
    network = build_backbone(replace(_STUDENT, width=0.25), Precision.FLOAT)
    width = network.num_features
    head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 16))
    teacher = Teacher(network, head.eval(), nn.Linear(width, 7).eval(), {})
    torch.manual_seed(seed)
    backbone = build_backbone(recipe.backbone, Precision.FLOAT)
    needed = teacher if find_method(recipe.method).needs_teacher else None
    return build_method(recipe.method, recipe.settings, backbone, needed, 10).train()


def _batches(recipe: Recipe, method: Method) -> Iterator[Batch]:
    loader = stage_batches(recipe, method, open_source("digits"), 0, workers=0)
    while True:
        yield from loader


def _train(recipe: Recipe, method: Method, batches: list[Batch], begin: int) -> list[float]:
    optimizer = build_optimizer(method.parts(), recipe.optim)
    losses = []
    for step, batch in enumerate(batches[begin:], start=begin):
        progress = step / len(batches)
        losses.append(_step(method, optimizer, batch, progress))
        method.after_step(progress)
    return losses


def _step(method: Method, optimizer: Optimizer, batch: Batch, progress: float) -> float:
    optimizer.zero_grad()
    loss = method(batch, progress).loss
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _check_fit(recipe: Recipe, batch: Batch, steps: int) -> None:
    """Check that the loss of one batch falls while queues, averages and momentum networks rest."""
    method = _method(recipe, 0)
    optimizer = build_optimizer(method.parts(), recipe.optim)
    buffers = {name: buffer.clone() for name, buffer in method.named_buffers()}
    losses = []
    for _ in range(steps):
        with torch.no_grad():
            for name, buffer in method.named_buffers():
                buffer.copy_(buffers[name])
        torch.manual_seed(0)
        losses.append(_step(method, optimizer, batch, 0.5))
    name = recipe.method
    assert all(math.isfinite(loss) for loss in losses), f"method {name}: a loss is not finite"
    assert losses[-1] < losses[0], (
        f"method {name}: {steps} steps on one batch took its loss from {losses[0]:.4g} to "
        f"{losses[-1]:.4g}"
    )


def _check_parts(method: Method, batch: Batch) -> None:
    """Check the shapes of the output and the gradients of the parts that the method declares."""
    name = type(method).__name__
    output = method(batch, 0.5)
    count, width = len(batch.indices), method.backbone.num_features
    assert output.loss.ndim == 0, f"{name}: the loss is not a scalar but {tuple(output.loss.shape)}"
    assert bool(output.loss.isfinite()), f"{name}: the loss is {float(output.loss)}"
    assert "loss" in output.terms, f"{name}: terms lack the loss"
    for term, value in output.terms.items():
        assert value.ndim == 0, f"{name}: term {term} is not a scalar"
        assert not value.requires_grad, f"{name}: detach term {term}"
    shape = tuple(output.features.shape)
    assert shape == (count, width), f"{name}: features are {shape}, not {(count, width)}"
    assert not output.features.requires_grad, f"{name}: detach the features"
    output.loss.backward()
    held = {id(p) for part in method.parts() for p in part.module.parameters()}
    free = [label for label, p in method.named_parameters() if id(p) not in held]
    assert not free, f"{name}: {free[0]} belongs to no part"
    reached = method.reached(0.5)
    for part in method.parts():
        gradients = [p.grad for p in part.module.parameters()]
        if not part.trained:
            assert all(g is None for g in gradients), f"{name}: {part.name} gets a gradient"
            continue
        assert all(g is not None for g in gradients), (
            f"{name}: a parameter of {part.name} is not in the graph of the loss, but several "
            "processes wait for its gradient"
        )
        assert all(bool(g.isfinite().all()) for g in gradients if g is not None), (
            f"{name}: a gradient of {part.name} is not finite"
        )
        learns = any(bool(g.any()) for g in gradients if g is not None)
        assert learns == (part.name in reached), (
            f"{name}: the loss {'reaches' if learns else 'does not reach'} {part.name}"
        )


def _check_state(recipe: Recipe, batches: list[Batch]) -> None:
    """Check that a method with other weights continues from a state dict like the original."""
    half = len(batches) // 2
    first, other = _method(recipe, 0), _method(recipe, 1)
    _train(recipe, first, batches[:half], 0)
    other.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    expected, continued = (_train(recipe, method, batches, half) for method in (first, other))
    assert continued == expected, (
        f"method {recipe.method}: what it computes depends on more than its state dict: keep "
        "counters and queues in buffers"
    )
    weights = first.weights()
    lacking = [
        part.name
        for part in first.parts()
        if part.trained
        and not any(torch.equal(w, p) for w in weights.values() for p in part.module.parameters())
    ]
    assert not lacking, f"method {recipe.method}: weights() lacks {', '.join(lacking)}"


def check_backbone(name: str, size: int = 32, config: BackboneConfig | None = None) -> None:
    """Check that a backbone gives the features that it declares, learns, and survives saving.

    If the backbone is a chain of binary layers, it is also packed, and the file is compared with
    the network.

    Args:
        name: Name of a registered backbone.
        size: Side of the square images in pixels.
        config: Settings of the backbone. None takes its defaults.

    Raises:
        AssertionError: The backbone breaks the contract; the message says how.
        UserError: burn would refuse the backbone; the message says why.
    """
    assert name in BACKBONES, f"no backbone {name} is registered"
    config = replace(config or BackboneConfig(), name=name)
    binary = is_binary(name)
    for precision in Precision if binary else (Precision.FLOAT,):
        _check_network(config, precision, size)
    precision = Precision.BINARY if binary else Precision.FLOAT
    network = _network(config, precision)
    weights = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    meta: dict[str, Any] = {
        "backbone": asdict(config),
        "precision": precision.value,
        "stage": 1,
        "steps": 0,
        "views": asdict(ViewConfig(size=size)),
        "recipe": {"name": "contract"},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.safetensors"
        save_checkpoint(file, weights, meta)
        assert set(load_checkpoint(file).weights) == set(weights)
        if binary and network.chain() is not None:
            packed = pack(file, Path(folder) / "network.bnn")
            assert packed.cosine > 0.999, (
                f"backbone {name}: the packed file gives other features than the network"
            )


def _network(config: BackboneConfig, precision: Precision) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(config, precision)


def _check_network(config: BackboneConfig, precision: Precision, size: int) -> None:
    what = f"backbone {config.name} at precision {precision.value}"
    network = _network(config, precision)
    described = describe_backbone(config, precision)
    shapes = [
        {key: tuple(value.shape) for key, value in module.state_dict().items()}
        for module in (network, described)
    ]
    assert shapes[0] == shapes[1], f"{what}: its shapes differ from those on torch's meta device"
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, size, size), generator=generator, dtype=torch.uint8)
    network.train()
    features = network(images)
    expected = (8, network.num_features)
    assert tuple(features.shape) == expected, (
        f"{what}: features are {tuple(features.shape)}, not {expected}"
    )
    features.square().sum().backward()
    for label, parameter in network.named_parameters():
        assert parameter.grad is not None, f"{what}: {label} gets no gradient"
        assert bool(parameter.grad.isfinite().all()), f"{what}: the gradient of {label}"
    network.eval()
    with torch.inference_mode():
        features = network(images)
        assert bool(features.isfinite().all()), f"{what}: features are not finite"
        pooled = network.pool(network.forward_features(images))
        assert torch.equal(network.normalize_features(pooled), features), (
            f"{what}: it is not normalize_features(pool(forward_features(images)))"
        )
        float_images = images.float() / 255
        assert torch.allclose(network(float_images), features, rtol=1e-3, atol=1e-4), (
            f"{what}: images on the scale 0 to 1 give other features than bytes: call normalize"
        )
        # In a batch of the same size, since rounding in another one may flip a sign.
        others = torch.cat([images[:1], images[1:].flip(-1)])
        assert torch.equal(network(others)[:1], features[:1]), (
            f"{what}: in eval mode an image's features depend on the others of its batch"
        )
        try:
            trunk = network.trunk(images)
        except UserError:  # the backbone has no stages
            pass
        else:
            whole = network.forward_features(images)
            assert torch.allclose(network.top(trunk), whole), f"{what}: top(trunk(images))"
    other = build_backbone(config, precision).eval()
    other.load_state_dict(network.state_dict())
    with torch.inference_mode():
        assert torch.equal(other(images), features), (
            f"{what}: with the same state dict it gives other features: keep its state in buffers"
        )


def check_protocol(name: str, config: Any = None, *, images: int = 120) -> list[Result]:
    """Check that a protocol gives finite, reproducible numbers and leaves the network unchanged.

    Args:
        name: Name of a registered protocol on labelled images.
        config: Settings of the protocol. None takes its defaults.
        images: Number of built-in digits that it learns from; it is tested on as many others.

    Returns:
        The protocol's results.

    Raises:
        AssertionError: The protocol breaks the contract; the message says how.
        UserError: burn would refuse the protocol; the message says why.
    """
    assert name in PROTOCOLS, f"no protocol {name} is registered"
    entry = PROTOCOLS[name]
    config = entry.config() if config is None else config
    digits = open_source("digits")
    parts = [Subset(digits, range(i * images, (i + 1) * images)) for i in range(2)]
    network = _network(_STUDENT, Precision.BINARY).eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    runs = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as out:
            request = Request("contract", train="digits", test="digits", out=out)
            model = Model("contract", network, ViewConfig(size=32))
            done = evaluate_checkpoint(
                name,
                request,
                config,
                Console(quiet=True),
                model=model,
                train=parts[0],
                test=parts[1],
            )
        runs.append(done.results)
    assert runs[0], f"protocol {name} gives no result"
    for result in runs[0]:
        assert math.isfinite(result.value), f"protocol {name}: {result.metric} is {result.value}"
        assert result.protocol == name, f"protocol {name} calls its results {result.protocol}"
    numbers = [[(r.metric, r.value) for r in results] for results in runs]
    assert numbers[0] == numbers[1], f"protocol {name}: the same seed gives other numbers"
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), f"protocol {name} changes the network's {key}"
    return runs[0]
