"""S2-BNN's distillation against its formula, alone and with MoCo v2's loss."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightly.models.modules.heads import MoCoProjectionHead
from torch import Tensor, nn

from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.types import Batch, Precision
from burn.methods.s2bnn.method import S2bnn, distillation_loss
from burn.methods.s2bnn.settings import S2bnnConfig
from burn.methods.shared.contrast import MomentumContrast
from burn.training.callbacks.checks import Guard
from method_checks import double, numeric_gradient
from networks import randomize, tiny_reactnet

CONFIG = S2bnnConfig(hidden=16, queue=7, momentum=0.9)


# --- Slow twins, in float64. ---


def distribution(embedding: np.ndarray, temperature: float) -> np.ndarray:
    length = math.sqrt(sum(embedding * embedding))
    powers = np.array([math.exp(z / length / temperature) for z in embedding])
    return powers / sum(powers)


def looped_distillation(target: np.ndarray, student: np.ndarray, temperature: float) -> float:
    """Cross-entropy of the student's distribution under the teacher's, image by image."""
    total = 0.0
    for t, s in zip(target, student, strict=True):
        p, q = distribution(t, temperature), distribution(s, temperature)
        total -= sum(p[c] * math.log(q[c]) for c in range(len(p)))
    return total / len(target)


# --- The loss by itself. ---


@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0])
def test_distillation_and_its_gradient(temperature: float):
    target, student = 4 * torch.randn(5, 7), 0.5 * torch.randn(5, 7)
    student.requires_grad_()
    loss = distillation_loss(target, student, temperature)
    expected = looped_distillation(double(target), double(student), temperature)
    # float32 cosines over T: some 1e-6.
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert student.grad is not None
    gradient = numeric_gradient(
        lambda values: looped_distillation(double(target), values, temperature), double(student)
    )
    assert np.abs(gradient).max() > 0.01
    np.testing.assert_allclose(student.grad.numpy(), gradient, rtol=1e-4, atol=2e-6)


def test_the_best_student_says_what_the_teacher_says():
    """There the loss is the teacher's entropy, and no gradient is left."""
    target = torch.randn(3, 9)
    student = (5 * target).requires_grad_()
    loss = distillation_loss(target, student, 0.2)
    probabilities = [distribution(row, 0.2) for row in double(target)]
    entropy = -sum(float((p * np.log(p)).sum()) for p in probabilities) / 3
    assert loss.item() == pytest.approx(entropy, rel=1e-5)
    loss.backward()
    assert student.grad is not None
    assert student.grad.abs().max() < 1e-6  # float32 probabilities, over lengths of 10
    assert distillation_loss(target, -target, 0.2) > loss + 1


def test_it_is_computed_in_float32():
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    plain = distillation_loss(a.float(), b.float(), 0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(distillation_loss(a, b, 0.2), plain)


# --- The method. ---


def views(seed: int = 0, number: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (2, 4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Batch(tuple(images[:number]), torch.arange(4))


def teacher(dimension: int = 6) -> Teacher:
    """Of other widths than the student, with running statistics of its own."""
    backbone = randomize(tiny_reactnet(Precision.FLOAT, seed=8, width=0.125))
    head = MoCoProjectionHead(backbone.num_features, 10, dimension)
    return Teacher(backbone, head, None, {})


def method(precision: Precision = Precision.BINARY, *, seed: int = 1, **settings: Any) -> S2bnn:
    student = tiny_reactnet(precision, seed=seed)
    return S2bnn(student, teacher(), replace(CONFIG, **settings)).train()


@pytest.mark.parametrize("precision", [Precision.FLOAT, Precision.BINARY])
def test_loss_is_the_distillation_of_one_view(precision: Precision):
    m, batch = method(precision, temperature=0.3), views(number=1)
    assert m.num_views == 1
    frozen = teacher()
    frozen.backbone.eval()
    assert frozen.head is not None
    # In `method` the teacher's head was drawn from another state than here.
    frozen.head.load_state_dict(m.teacher.head.state_dict())  # type: ignore[union-attr]
    target = frozen.head(frozen.backbone(batch.views[0]))
    output = m(batch, 0.0)
    student = m.head(m.backbone(batch.views[0]))
    expected = looped_distillation(double(target), double(student), 0.3)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    assert set(output.terms) == {"loss"}
    assert output.terms["loss"] == output.loss
    assert torch.equal(output.features, m.backbone(batch.views[0]))
    assert not output.features.requires_grad


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_the_contrastive_loss_is_added(weight: float):
    """MoCo v2's, of the embedding that is distilled; the distillation sees the query's view."""
    m, batch = method(contrastive=weight, shuffle_groups=2), views()
    assert m.num_views == 2
    contrast = m.contrast
    assert isinstance(contrast, MomentumContrast)
    embeddings = m.head(contrast.encode(m.backbone, batch.views[0]))
    alike = copy.deepcopy(contrast)
    output = m(batch, 0.0)
    distilled = distillation_loss(m.teacher(batch.views[0]), embeddings, 0.2)
    contrastive = alike(embeddings, batch.views[1])
    assert torch.equal(output.loss, distilled + weight * contrastive)
    assert {name: term.item() for name, term in output.terms.items()} == {
        "loss": output.loss.item(),
        "distillation": distilled.item(),
        "contrastive": contrastive.item(),
    }
    assert not any(term.requires_grad for term in output.terms.values())
    assert torch.equal(contrast.queue.keys, alike.queue.keys)
    assert contrast.queue.pointer == 4
    output.loss.backward()
    found = [p.grad for p in m.head.parameters()]
    m.zero_grad()
    (distilled + weight * contrastive).backward()
    for one, other in zip(found, (p.grad for p in m.head.parameters()), strict=True):
        # float32 sums in the same order.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_momentum_encoder_exists_for_the_contrastive_loss_alone():
    alone, mixed = method(), method(contrastive=1.0)
    assert alone.contrast is None
    assert not any(name.startswith("contrast.") for name in alone.state_dict())
    assert any(name.startswith("contrast.target.") for name in mixed.state_dict())
    alone.after_step(0.0)
    assert mixed.contrast is not None
    with torch.no_grad():
        mixed.head.layers[0].bias.add_(1)  # type: ignore[union-attr,operator]
    before = mixed.contrast.target.head.layers[0].bias.clone()  # type: ignore[union-attr,index,operator]
    mixed.after_step(0.0)
    after = mixed.contrast.target.head.layers[0].bias  # type: ignore[union-attr,index]
    # A tenth of the way, but for float32 roundings.
    torch.testing.assert_close(after, before + 0.1, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("contrastive", [0.0, 1.0])
@pytest.mark.parametrize("precision", list(Precision))
def test_what_learns(precision: Precision, contrastive: float):
    m = method(precision, contrastive=contrastive)
    momentum = [("momentum encoder", False)] if contrastive else []
    assert [(part.name, part.trained) for part in m.parts()] == [
        ("backbone", True), ("projection head", True), *momentum, ("teacher", False),
    ]  # fmt: skip
    held = [p for part in m.parts() for p in part.module.parameters()]
    assert {id(p) for p in held} == {id(p) for p in m.parameters()}
    m(views(number=m.num_views), 0.0).loss.backward()
    guard = Guard(m.parts())
    guard.check(m.reached(0.0), step=1)
    assert not guard.pending


def learn(m: S2bnn, step: int) -> Tensor:
    m.zero_grad()
    loss = m(views(step, m.num_views), 0.0).loss
    loss.backward()
    torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1).step()
    m.after_step(0.0)
    return loss.detach()


@pytest.mark.parametrize("contrastive", [0.0, 1.0])
def test_going_on_from_saved_weights_is_going_on(contrastive: float):
    """Everything is in them but the teacher, which stays as it was."""
    m = method(contrastive=contrastive)
    frozen = {name: tensor.clone() for name, tensor in m.teacher.state_dict().items()}
    for step in range(2):
        learn(m, step)
    saved = {name: tensor.clone() for name, tensor in m.weights().items()}
    assert {n for n in m.state_dict() if n not in saved} == {f"teacher.{n}" for n in frozen}
    other = method(seed=7, contrastive=contrastive)
    other.teacher.load_state_dict(m.teacher.state_dict())
    other.load_weights(saved)
    for step in range(2, 4):
        assert torch.equal(learn(m, step), learn(other, step))
    assert all(torch.equal(m.teacher.state_dict()[name], t) for name, t in frozen.items())


def test_the_second_stage_begins_where_the_first_ended():
    first = method(Precision.BINARY_ACTIVATIONS, contrastive=1.0)
    learn(first, 0)
    second = method(Precision.BINARY, seed=3, contrastive=1.0)
    second.load_weights(first.weights())
    held = second.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in first.weights().items())


# --- Settings. ---


def test_widths_are_the_backbones_and_the_teachers():
    def widths(config: S2bnnConfig, dimension: int) -> list[int]:
        m = S2bnn(tiny_reactnet(), teacher(dimension=dimension), config)
        return [p.shape[0] for p in m.head.parameters() if p.ndim == 2]

    assert widths(S2bnnConfig(), 6) == [256, 6]
    assert widths(S2bnnConfig(hidden=40), 20) == [40, 20]


def test_the_teachers_head_may_be_any_module():
    """With BN, which is the teacher's own and frozen."""
    head = nn.Sequential(nn.Linear(256, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 5))
    backbone = tiny_reactnet(Precision.FLOAT)
    m = S2bnn(tiny_reactnet(), Teacher(backbone, head.train(), None, {}), CONFIG).train()
    assert m.head(torch.randn(2, 256)).shape == (2, 5)
    assert torch.equal(head.state_dict()["1.running_mean"], torch.zeros(9))
    assert not head.training


def test_a_labelled_teachers_classes_are_distilled():
    classifier = nn.Linear(teacher().network.num_features, 13)
    m = S2bnn(tiny_reactnet(), replace(teacher(), head=None, classifier=classifier), CONFIG)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        assert m.teacher(images).shape == (4, 13)
        assert m.head(m.backbone(images)).shape == (4, 13)


def test_a_teacher_without_a_head_is_refused():
    headless = replace(teacher(), head=None)
    with pytest.raises(UserError, match="s2bnn needs a teacher with its projection head, or with"):
        S2bnn(tiny_reactnet(), headless, CONFIG)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("hidden", 0), ("contrastive", -0.5), ("contrastive", math.inf),
        ("queue", 0), ("momentum", 1.5), ("shuffle_groups", 0),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name: str, value: float):
    with pytest.raises(UserError, match=rf"--s2bnn.{name.replace('_', '-')} {value} is not in"):
        replace(S2bnnConfig(), **{name: value}).check()


def test_good_settings_pass():
    S2bnnConfig().check()
    S2bnnConfig(1000.0, 1, 1000.0, 1, 0.0, 8).check()
