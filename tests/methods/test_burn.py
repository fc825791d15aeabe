"""BURN's losses against their formulas in NumPy, and where their gradients go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.types import Batch, Precision
from burn.methods.base import StepOutput
from burn.methods.burn.method import Burn, feature_similarity, kl_divergence
from burn.methods.burn.settings import BurnConfig
from networks import shallow_reactnet

CONFIG = BurnConfig(num_classes=12, hidden=16)


# --- Slow twins, in float64. ---


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    powers = np.exp(logits / temperature - (logits / temperature).max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def kl(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    """Mean over the batch of the sum over classes of p · log(p / q)."""
    p, q = softmax(first, temperature), softmax(second, temperature)
    total = 0.0
    for row in range(len(p)):
        for c in range(p.shape[1]):
            total += p[row, c] * math.log(p[row, c] / q[row, c])
    return total / len(p)


def similarity(v1: np.ndarray, v2: np.ndarray, kind: str) -> float:
    total = 0.0
    for a, b in zip(v1, v2, strict=True):
        if kind == "cosine":
            total += 1 - sum(a * b) / (math.sqrt(sum(a * a)) * math.sqrt(sum(b * b)))
        elif kind == "l1":
            total += sum(abs(a - b))
        elif kind == "l2":
            total += math.sqrt(sum((a - b) ** 2))
        else:
            total += sum((a / math.sqrt(sum(a * a)) - b / math.sqrt(sum(b * b))) ** 2)
    return total / len(v1)


def double(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def close(value: float) -> object:
    """float32 losses of size 1, from logarithms of size 10 that round at 1e-6."""
    return pytest.approx(value, rel=1e-5, abs=1e-6)


# --- The two losses by themselves. ---


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_kl_divergence_in_both_directions(temperature: float):
    target, student = torch.randn(5, 7), torch.randn(5, 7)
    forward = kl(double(target), double(student), temperature)
    backward = kl(double(student), double(target), temperature)
    assert abs(forward - backward) > 0.01, "the test needs directions that differ"
    assert kl_divergence(target, student, temperature).item() == close(forward)
    for direction, expected in (("target_first", forward), ("student_first", backward)):
        found = kl_divergence(target, student, temperature, direction)  # type: ignore[arg-type]
        assert found.item() == close(expected)


@pytest.mark.parametrize("direction", ["target_first", "student_first"])
def test_kl_gradient_is_the_closed_form_on_both_sides(direction: str):
    """d KL(p ‖ q) / d q's logits = (q - p) / T; by p's logits p · (log(p/q) - KL) / T."""
    t = 0.5
    target, student = (torch.randn(1, 6, requires_grad=True) for _ in range(2))
    kl_divergence(target, student, t, direction).backward()  # type: ignore[arg-type]
    first, second = (target, student) if direction == "target_first" else (student, target)
    p, q = softmax(double(first), t), softmax(double(second), t)
    inner = np.log(p / q)
    expected = p * (inner - (p * inner).sum()) / t
    assert first.grad is not None
    assert second.grad is not None
    # float32 probabilities and logarithms, to 1e-6 of values of size 1.
    assert np.allclose(first.grad.numpy(), expected, rtol=1e-4, atol=2e-6)
    assert np.allclose(second.grad.numpy(), (q - p) / t, rtol=1e-4, atol=2e-6)


def test_kl_is_zero_between_equals_and_finite_where_a_class_has_no_chance():
    logits = torch.randn(4, 9)
    assert kl_divergence(logits, logits.clone(), 0.2).item() == 0
    far = torch.tensor([[500.0, -500.0]])
    for direction in ("target_first", "student_first"):
        value = kl_divergence(far, -far, 0.2, direction)  # type: ignore[arg-type]
        # All of the mass lies on a class of log-probability -1000 / 0.2, exact in float32.
        assert value.item() == 5000


@pytest.mark.parametrize("kind", ["cosine", "l1", "l2", "normalized_mse"])
def test_feature_similarity(kind: str):
    v1, v2 = 3 * torch.randn(6, 10), torch.randn(6, 10)
    found = feature_similarity(v1, v2, kind).item()  # type: ignore[arg-type]
    # Sums of 10 float32 products: some 1e-7 of the value.
    assert found == pytest.approx(similarity(double(v1), double(v2), kind), rel=1e-5)


def test_normalized_mse_is_twice_cosine():
    v1, v2 = torch.randn(6, 10), torch.randn(6, 10)
    assert feature_similarity(v1, v2, "normalized_mse") == 2 * feature_similarity(v1, v2, "cosine")


def test_cosine_ends():
    v = torch.randn(4, 10)
    # A cosine of float32 vectors errs by some 1e-7.
    assert feature_similarity(v, 5 * v).item() == pytest.approx(0, abs=1e-6)
    assert feature_similarity(v, -v).item() == pytest.approx(2, abs=1e-6)


def test_losses_of_bfloat16_are_computed_in_float32():
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    assert kl_divergence(a, b, 0.2) == kl_divergence(a.float(), b.float(), 0.2)
    for kind in ("cosine", "l1", "l2", "normalized_mse"):
        assert feature_similarity(a, b, kind) == feature_similarity(a.float(), b.float(), kind)


# --- The method. ---


def batch(views: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(9)
    images = (
        torch.randint(0, 256, (6, 3, 32, 32), generator=generator, dtype=torch.uint8)
        for _ in range(views)
    )
    return Batch(tuple(images), torch.arange(6))


def method(*, wide_teacher: bool = False, **settings: Any) -> Burn:
    """A tiny student, and a teacher of the same width or of twice that."""
    student = shallow_reactnet(seed=1)
    teacher = shallow_reactnet(Precision.FLOAT, seed=2, width=0.5 if wide_teacher else 0.25)
    built = Burn(student, Teacher(teacher, None, None, {}), replace(CONFIG, **settings))
    return built.train()


def looped_loss(m: Burn, v1: Tensor, v2: Tensor, lam: float) -> tuple[float, float, float]:
    """Loss, KL and FS of one comparison from the networks' outputs, in NumPy."""
    c = m.config
    divergence = 0.0
    compared = v1, v2 if m.projection is None else m.projection(v2)
    if m.classifier is not None and m.teacher_classifier is not None:
        z1, z2 = m.teacher_classifier(v1), m.classifier(v2)
        order = (z1, z2) if c.kl_direction == "target_first" else (z2, z1)
        divergence = kl(double(order[0]), double(order[1]), c.temperature)
        if c.similarity_of == "logits":
            compared = z1, z2
    distance = similarity(double(compared[0]), double(compared[1]), c.similarity)
    return (1 - lam) * divergence + lam * distance, divergence, distance


@pytest.mark.parametrize(("progress", "lam"), [(0.0, 0.9), (0.5, 0.8)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"wide_teacher": True},
        {"kl_direction": "student_first", "similarity": "l1", "temperature": 0.7},
        {"classifier": "joint", "similarity": "l2", "wide_teacher": True},
        {"similarity": "normalized_mse", "similarity_of": "logits", "wide_teacher": True},
    ],
)
def test_loss_is_the_weighted_sum(settings: dict[str, Any], progress: float, lam: float):
    m, data = method(**settings), batch()
    output = m(data, progress)
    view = data.views[0]
    loss, divergence, distance = looped_loss(m, m.teacher(view), m.backbone(view), lam)
    assert divergence > 0.01
    assert distance > 0.01
    assert output.loss.item() == close(loss)
    assert set(output.terms) == {"loss", "kl", "feature_similarity", "lambda"}
    for name, expected in (
        ("loss", loss), ("kl", divergence), ("feature_similarity", distance), ("lambda", lam),
    ):  # fmt: skip
        assert output.terms[name].item() == close(expected)
        assert not output.terms[name].requires_grad


CHANGES = {
    "num_classes": 7, "hidden": 9, "temperature": 9.0, "kl_direction": "student_first",
    "lam": "constant", "lam_start": 0.1, "lam_end": 0.2, "projection_hidden": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"classifier": "none", "projection": "mlp"},
        {"classifier": "none"},
        {"projection": "linear"},
        {"lam": "constant", "projection": "mlp"},
        {"lam": "heaviside", "projection": "mlp"},
    ],
)
def test_settings_without_effect_are_those_that_no_loss_reads(settings: dict[str, Any]):
    def losses(**change: Any) -> list[float]:
        torch.manual_seed(0)
        m = method(**{**settings, **change})
        return [m(batch(), progress).loss.item() for progress in (0.1, 0.75)]

    unread = replace(CONFIG, **settings).without_effect()
    changes = {k: v for k, v in CHANGES.items() if settings.get(k) != v}
    before = losses()
    same = {name for name, value in changes.items() if losses(**{name: value}) == before}
    assert same == set(unread) & set(changes)


@pytest.mark.parametrize("wide_teacher", [False, True])
def test_without_classifiers_the_loss_is_the_feature_similarity(wide_teacher: bool):
    m, data = method(classifier="none", wide_teacher=wide_teacher), batch()
    assert m.classifier is None
    assert m.teacher_classifier is None
    for progress in (0.0, 0.7):
        output = m(data, progress)
        _, _, distance = looped_loss(m, m.teacher(data.views[0]), m.backbone(data.views[0]), 1.0)
        assert output.loss.item() == close(distance)
        assert set(output.terms) == {"loss", "feature_similarity", "lambda"}
        assert output.terms["lambda"] == 1
        assert output.target_probabilities is None


@pytest.mark.parametrize("wide_teacher", [False, True])
@pytest.mark.parametrize("classifier", ["frozen", "none"])
def test_crossed_views_are_the_mean_of_both_crossings(wide_teacher: bool, classifier: str):
    m = method(views="cross", wide_teacher=wide_teacher, classifier=classifier)
    assert m.num_views == 2
    data = batch(views=2)
    lam = 1.0 if classifier == "none" else 0.9
    total = np.zeros(3)
    for seen_by_teacher, seen_by_student in ((0, 1), (1, 0)):
        v1, v2 = m.teacher(data.views[seen_by_teacher]), m.backbone(data.views[seen_by_student])
        total += looped_loss(m, v1, v2, lam)
    output = m(data, 0.0)
    loss, divergence, distance = total / 2
    assert output.loss.item() == close(loss)
    assert output.terms["loss"].item() == close(loss)
    assert output.terms["feature_similarity"].item() == close(distance)
    assert output.terms["lambda"].item() == close(lam)
    if classifier != "none":
        assert output.terms["kl"].item() == close(divergence)
    straight = looped_loss(m, m.teacher(data.views[0]), m.backbone(data.views[0]), lam)
    assert abs(straight[0] - loss) > 1e-3, "the test needs crossings that differ from no crossing"


def test_both_crossings_train_the_student():
    """The gradient of the mean is the mean of the gradients of the two crossings."""
    m, data = method(views="cross", classifier="none"), batch(views=2)
    m(data, 0.0).loss.backward()
    found = m.backbone.stem.weight.grad.clone()  # type: ignore[union-attr]
    expected = torch.zeros_like(found)
    for first, second in ((0, 1), (1, 0)):
        m.zero_grad()
        v1, v2 = m.teacher(data.views[first]), m.backbone(data.views[second])
        feature_similarity(v1, v2).backward()
        expected += m.backbone.stem.weight.grad / 2  # type: ignore[union-attr,operator]
    # float32 sums in another order; gradients of size 1e-2.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_features_and_target_probabilities_are_what_the_monitor_needs():
    m, data = method(wide_teacher=True, classifier="joint"), batch()
    output = m(data, 0.3)
    torch.testing.assert_close(output.features, m.backbone(data.views[0]), rtol=0, atol=0)
    assert m.teacher_classifier is not None
    logits = m.teacher_classifier(m.teacher(data.views[0]))
    assert output.target_probabilities is not None
    # float32 exponentials.
    expected = softmax(double(logits), CONFIG.temperature)
    assert np.allclose(output.target_probabilities.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert not output.features.requires_grad
    assert not output.target_probabilities.requires_grad
    assert output.features.dtype == torch.float32


# --- Where gradients go. ---


def gradients(module: nn.Module | None) -> Iterator[Tensor]:
    assert module is not None
    for parameter in module.parameters():
        yield torch.zeros(()) if parameter.grad is None else parameter.grad


def moves(module: nn.Module | None) -> bool:
    """Some parameter has a gradient that is not zero."""
    return any(bool(gradient.any()) for gradient in gradients(module))


@pytest.mark.parametrize("classifier", ["joint", "frozen"])
@pytest.mark.parametrize("direction", ["target_first", "student_first"])
@pytest.mark.parametrize("views", ["same", "cross"])
def test_the_teachers_classifier_learns_when_joint_and_the_teacher_never(
    classifier: str, direction: str, views: str
):
    m = method(classifier=classifier, kl_direction=direction, views=views, wide_teacher=True)
    m(batch(m.num_views), 0.0).loss.backward()
    assert all(p.grad is None for p in m.teacher.parameters())
    assert moves(m.teacher_classifier) == (classifier == "joint")
    for module in (m.backbone, m.classifier, m.projection):
        assert moves(module)


@pytest.mark.parametrize("kind", ["cosine", "l1", "l2", "normalized_mse"])
def test_the_feature_similarity_never_reaches_the_classifiers(kind: str):
    m = method(classifier="joint", similarity=kind, lam="constant", lam_end=1.0, wide_teacher=True)
    m(batch(), 0.5).loss.backward()
    assert not moves(m.teacher_classifier)
    assert not moves(m.classifier)
    assert moves(m.backbone)
    assert moves(m.projection)


def test_the_teachers_classifier_gets_the_share_of_kl_alone():
    """Whatever the feature similarity, its gradient is (1 - λ) times that of KL."""
    found = []
    for settings in ({"similarity": "l1"}, {"similarity": "cosine"}, {"lam_end": 0.0}):
        m = method(classifier="joint", **{"lam": "constant", "lam_end": 0.6, **settings})
        m(batch(), 0.0).loss.backward()
        found.append(torch.cat([g.flatten() for g in gradients(m.teacher_classifier)]))
    first, second, unscaled = found
    assert torch.equal(first, second)
    # float32; a bias before BN has a gradient of 0 but for rounding, 1e-6 of the others'.
    assert unscaled.abs().max() > 0.01
    torch.testing.assert_close(first, 0.4 * unscaled, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "progress"),
    [
        ({}, 0.0),
        ({"classifier": "joint"}, 0.5),
        ({"classifier": "none"}, 0.0),
        ({"similarity_of": "logits"}, 0.0),
        ({"classifier": "joint", "similarity_of": "logits"}, 0.0),
        ({"classifier": "joint", "lam": "heaviside"}, 0.25),  # λ = 1
        ({"classifier": "joint", "lam": "heaviside"}, 0.75),  # λ = 0
        ({"lam": "constant", "lam_end": 1.0}, 0.0),
        ({"lam": "constant", "lam_end": 0.0}, 0.0),
        ({"classifier": "joint", "similarity_of": "logits", "lam": "heaviside"}, 0.25),
        ({"classifier": "joint", "similarity_of": "logits", "lam": "heaviside"}, 0.75),
    ],
)
@pytest.mark.parametrize("wide_teacher", [False, True])
def test_reached_names_what_the_gradient_reaches(
    settings: dict[str, Any], progress: float, wide_teacher: bool
):
    """The gradient-flow guard relies on it; here it is held against the gradients themselves."""
    m = method(wide_teacher=wide_teacher, **settings)
    m(batch(), progress).loss.backward()
    assert m.reached(progress) == {part.name for part in m.parts() if moves(part.module)}


def test_reached_by_name():
    joint = method(classifier="joint", lam="heaviside", wide_teacher=True)
    assert joint.reached(0.0) == {"student backbone", "projection"}  # λ = 1
    everything_else = {"student backbone", "student classifier", "teacher classifier"}
    assert joint.reached(0.9) == everything_else  # λ = 0
    assert method(wide_teacher=True).reached(0.0) == {
        "student backbone", "projection", "student classifier",
    }  # fmt: skip


# --- Parts. ---


@pytest.mark.parametrize(
    ("settings", "projects"),
    [
        ({}, False),
        ({"wide_teacher": True}, True),
        ({"wide_teacher": True, "classifier": "none"}, True),
        ({"wide_teacher": True, "similarity_of": "logits"}, False),
    ],
)
def test_a_projection_where_widths_differ(settings: dict[str, Any], projects: bool):
    m = method(**settings)
    if projects:
        assert isinstance(m.projection, nn.Linear)
        assert m.projection.weight.shape == (512, 256)
    else:
        assert m.projection is None
    assert ("projection" in {part.name for part in m.parts()}) == projects


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"student backbone": 1.0, "student classifier": 1.0}),
        ({"classifier": "none"}, {"student backbone": 1.0}),
        (
            {"classifier": "joint", "classifier_lr": 0.25},
            {"student backbone": 1.0, "student classifier": 1.0, "teacher classifier": 0.25},
        ),
    ],
)
def test_trained_parts_and_their_learning_rates(
    settings: dict[str, Any], expected: dict[str, float]
):
    m = method(**settings)
    parts = m.parts()
    assert {p.name: p.learning_rate for p in parts if p.trained} == expected
    for part in parts:
        assert all(p.requires_grad == part.trained for p in part.module.parameters())
    assert sum(len(list(p.module.parameters())) for p in parts) == len(list(m.parameters()))


def test_classifiers_have_the_shape_of_the_config():
    m = method(wide_teacher=True, classifier="joint")
    for module, width in ((m.classifier, 256), (m.teacher_classifier, 512)):
        assert module is not None
        shapes = [tuple(p.shape) for p in module.parameters()]
        assert shapes == [(16, width), (16,), (16,), (16,), (12, 16), (12,)]


def test_the_default_loss_is_what_was_decided():
    assert BurnConfig() == BurnConfig(
        classifier="frozen", num_classes=2000, hidden=2000, temperature=0.2,
        kl_direction="target_first", similarity="cosine", similarity_of="features",
        lam="cosine", lam_start=0.9, lam_end=0.7, views="same", teacher_batch_norm="running",
    )  # fmt: skip


# --- Hand-over. ---


@pytest.mark.parametrize("classifier", ["joint", "frozen", "none"])
def test_weights_hand_over_everything_but_the_teacher(classifier: str):
    """g is carried over too: the paper's modification of multi-stage training."""
    first = method(classifier=classifier, wide_teacher=True)
    first(batch(), 0.0)  # BN statistics move
    weights = {name: tensor.clone() for name, tensor in first.weights().items()}
    assert not [name for name in weights if name.startswith("teacher.")]
    assert any(name.startswith("teacher_classifier.") for name in weights) == (classifier != "none")
    torch.manual_seed(77)
    teacher = shallow_reactnet(Precision.FLOAT, seed=2, width=0.5)
    student = shallow_reactnet(Precision.BINARY_ACTIVATIONS, seed=3)
    second = Burn(student, Teacher(teacher, None, None, {}), first.config).train()
    second.load_weights(weights)
    ours = second.weights()
    assert list(ours) == list(weights)
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def test_a_stage_may_begin_with_a_fresh_classifier_of_the_teacher():
    first = method(classifier="joint", carry_classifier=False)
    weights = {name: tensor + 1 for name, tensor in first.weights().items()}
    second = method(classifier="joint", carry_classifier=False)
    fresh = {name: tensor.clone() for name, tensor in second.weights().items()}
    second.begin_from(weights)
    for name, tensor in second.weights().items():
        expected = fresh if name.startswith("teacher_classifier.") else weights
        assert torch.equal(tensor, expected[name]), name
    with pytest.raises(UserError, match=r"carry_classifier false needs burn\.classifier joint"):
        BurnConfig(classifier="frozen", carry_classifier=False).check()


def test_hand_over_holds_to_every_name():
    m = method()
    weights = m.weights()
    with pytest.raises(AssertionError, match="stem"):
        m.load_weights({k: v for k, v in weights.items() if k != "backbone.stem.weight"})
    with pytest.raises(AssertionError, match="surplus"):
        m.load_weights({**weights, "backbone.surplus": torch.zeros(1)})


def test_a_step_gives_the_same_loss_on_the_same_weights():
    one, other = (method(wide_teacher=True)(batch(), 0.2) for _ in range(2))
    assert isinstance(one, StepOutput)
    assert torch.equal(one.loss, other.loss)


# --- Settings. ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lam_start": 1.1}, "lam_start 1.1"),
        ({"lam_end": -0.1}, "lam_end -0.1"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"num_classes": 1}, "burn.num-classes 1 is not in 2"),
        ({"hidden": 1}, "hidden"),
        ({"classifier": "joint", "classifier_lr": 0.0}, "classifier_lr 0.0"),
        ({"classifier": "frozen", "classifier_lr": 0.5}, "classifier_lr"),
        ({"classifier": "none", "similarity_of": "logits"}, "logits"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        replace(BurnConfig(), **settings).check()


def test_defaults_pass():
    BurnConfig().check()
