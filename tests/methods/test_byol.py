"""BYOL's loss, the momentum of its target, and where its gradients go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.byol.method import Byol
from burn.methods.byol.settings import ByolConfig
from method_checks import (
    double,
    goes_on_from_its_state,
    gradient_of,
    learning_parts,
    numeric_gradient,
    outputs_of,
    train,
    views,
)
from networks import shallow_reactnet


def method(precision: Precision = Precision.BINARY, *, seed: int = 0, **settings: Any) -> Byol:
    backbone = shallow_reactnet(precision, seed=seed)
    return Byol(backbone, ByolConfig(**{"hidden": 8, "dimension": 4, **settings})).train()


def loss(predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> float:
    """Grill et al., Eq. 2: ‖q/‖q‖ - z/‖z‖‖² of each view's prediction and the other's target."""
    total, count = 0.0, 0
    for view in range(2):
        for q, z in zip(predictions[view], targets[1 - view], strict=True):
            q_unit, z_unit = q / math.sqrt(sum(q * q)), z / math.sqrt(sum(z * z))
            total += sum((q_unit - z_unit) ** 2)
            count += 1
    return total / count


def test_loss_and_gradient_are_the_papers():
    m, batch = method(), views(32, 32)
    train(m, range(2), 4, 32, 32)  # or the target is the online network
    predictions, targets = outputs_of(m.predictor), outputs_of(m.target)
    output = m(batch, 0.5)
    output.loss.backward()
    q, z = [double(p) for p in predictions], [double(t) for t in targets]
    assert len(q) == len(z) == 2
    # float32 cosines: some 1e-7 of a loss of size 1.
    assert output.loss.item() == pytest.approx(loss(q, z), rel=1e-5)
    assert loss(q, z) != pytest.approx(loss(q, z[::-1]), rel=1e-3), "the views must differ"
    expected = [
        numeric_gradient(lambda x: loss([x, q[1]], z), q[0]),
        numeric_gradient(lambda x: loss([q[0], x], z), q[1]),
    ]
    for prediction, gradient in zip(predictions, expected, strict=True):
        # float32 products of gradients of size 0.1.
        assert np.allclose(gradient_of(prediction), gradient, rtol=1e-4, atol=1e-6)
    assert set(output.terms) == {"loss"}
    assert output.terms["loss"].item() == output.loss.item()
    assert not output.terms["loss"].requires_grad
    assert torch.equal(output.features, m.backbone(batch.views[0]))
    assert not output.features.requires_grad


def test_the_loss_is_nothing_where_predictions_meet_their_targets_and_4_opposite():
    x = torch.randn(5, 4)
    m = method()
    # float32 cosines err by some 1e-7.
    assert 2 + 2 * m.criterion(x, 3 * x).item() == pytest.approx(0, abs=1e-6)
    assert 2 + 2 * m.criterion(x, -x).item() == pytest.approx(4, abs=1e-6)


def test_the_target_starts_as_the_network_and_follows_by_the_papers_momentum():
    m = method(momentum=0.9)
    online = {**dict(m.backbone.named_parameters(prefix="backbone")),
              **dict(m.head.named_parameters(prefix="head"))}  # fmt: skip
    target = dict(m.target.named_parameters())
    assert list(online) == list(target)
    assert all(torch.equal(online[name], target[name]) for name in online)
    expected = {name: double(tensor).copy() for name, tensor in target.items()}
    for step in range(6):
        with torch.no_grad():
            for tensor in online.values():
                tensor.add_(torch.randn_like(tensor))
        m.after_step(step / 6)
        momentum = 1 - (1 - 0.9) * (math.cos(math.pi * step / 6) + 1) / 2
        for name, tensor in online.items():
            expected[name] = momentum * expected[name] + (1 - momentum) * double(tensor)
    for name, tensor in target.items():
        # Six roundings of float32 values of size 1.
        assert np.allclose(double(tensor), expected[name], rtol=1e-5, atol=1e-6), name
    before = [tensor.clone() for tensor in target.values()]
    m.after_step(1.0)  # momentum 1: it stands still
    assert all(torch.equal(a, b) for a, b in zip(before, target.values(), strict=True))


def test_the_targets_batch_norm_is_its_own():
    m = method()
    m(views(32, 32), 0.0)
    online, target = (
        dict(b.named_buffers()) for b in (m.backbone, m.target.backbone)
    )  # fmt: skip
    name = "stem_norm.running_mean"
    # Both saw the same images through the same weights, once each, in this order.
    assert torch.equal(online[name], target[name])
    assert target[name].any()
    m.after_step(0.0)
    assert torch.equal(online[name], target[name])


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_everything_learns_but_the_target(precision: Precision, progress: float):
    m = method(precision)
    m(views(32, 32), progress).loss.backward()
    trained = {"backbone", "projection head", "predictor"}
    assert m.reached(progress) == learning_parts(m) == trained
    assert [part.name for part in m.parts() if not part.trained] == ["momentum encoder"]
    assert not any(p.requires_grad for p in m.target.parameters())
    assert sum(len(list(p.module.parameters())) for p in m.parts()) == len(list(m.parameters()))


def test_heads_have_the_shape_of_the_config():
    m = method(hidden=12, dimension=5)
    shapes = [[tuple(p.shape) for p in head.parameters() if p.ndim == 2]
              for head in (m.head, m.predictor, m.target.head)]  # fmt: skip
    assert shapes == [[(12, 256), (5, 12)], [(12, 5), (5, 12)], [(12, 256), (5, 12)]]


def test_it_goes_on_from_its_state():
    goes_on_from_its_state(lambda seed: method(seed=seed), 32, 32)


def test_weights_hand_over_all_of_it():
    first = method(Precision.BINARY_ACTIVATIONS)
    train(first, range(2), 4, 32, 32)
    weights = first.weights()
    assert any(name.startswith("target.backbone.") for name in weights)
    assert any(name.startswith("target.head.") for name in weights)
    second = method(seed=2)
    second.load_weights(weights)
    ours = second.weights()
    assert list(ours) == list(weights)
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def test_bfloat16_reaches_the_loss_as_float32():
    m = method()
    with torch.autocast("cpu", torch.bfloat16):
        output = m(views(32, 32), 0.0)
    assert output.loss.dtype == output.features.dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 1.1}, "byol.momentum 1.1"),
        ({"momentum": -0.1}, "byol.momentum -0.1"),
        ({"hidden": 0}, "byol.hidden 0"),
        ({"dimension": 2**17}, "byol.dimension 131072"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        ByolConfig(**settings).check()


def test_defaults_are_the_papers():
    ByolConfig().check()
    assert ByolConfig() == ByolConfig(momentum=0.996, hidden=4096, dimension=256)
