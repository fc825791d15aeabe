"""Cross-entropy and the divergence from a teacher's classes, against their formulas in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.supervised.method import Supervised, SupervisedKl
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
from networks import randomize, shallow_reactnet

LABELS = torch.tensor([2, 0, 1, 2, 2])


def supervised(precision: Precision = Precision.BINARY, *, seed: int = 0) -> Supervised:
    return Supervised(shallow_reactnet(precision, seed=seed), num_classes=3).train()


def teacher() -> Teacher:
    """Twice as wide as the student, with running statistics that are not the batch's."""
    backbone = randomize(shallow_reactnet(Precision.FLOAT, seed=7, width=0.5))
    return Teacher(backbone, None, nn.Linear(512, 4), {})


def supervised_kl(precision: Precision = Precision.BINARY, *, seed: int = 0) -> SupervisedKl:
    given = teacher()
    return SupervisedKl(shallow_reactnet(precision, seed=seed), given).train()


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def cross_entropy(logits: np.ndarray, labels: Tensor) -> float:
    chances = [softmax(logits)[row, label] for row, label in enumerate(labels.tolist())]
    return -sum(math.log(chance) for chance in chances) / len(chances)


def divergence(target: np.ndarray, logits: np.ndarray) -> float:
    """Mean over the batch of Σ p · log(p / q), Liu et al., Eq. 6 with its entropy."""
    p, q = softmax(target), softmax(logits)
    total = 0.0
    for row in range(len(p)):
        for c in range(p.shape[1]):
            total += p[row, c] * math.log(p[row, c] / q[row, c])
    return total / len(p)


# --- Labels. ---


def test_loss_and_gradient_are_cross_entropys():
    m, batch = supervised(), views(32, labels=LABELS)
    logits = outputs_of(m.classifier)
    output = m(batch, 0.0)
    output.loss.backward()
    values = double(logits[0])
    # float32 logarithms of size 1.
    assert output.loss.item() == pytest.approx(cross_entropy(values, LABELS), rel=1e-5)
    expected = numeric_gradient(lambda z: cross_entropy(z, LABELS), values)
    # float32 probabilities, 1e-7.
    assert np.allclose(gradient_of(logits[0]), expected, rtol=1e-4, atol=1e-6)
    assert set(output.terms) == {"loss", "accuracy"}
    assert output.terms["loss"].item() == output.loss.item()
    assert not any(term.requires_grad for term in output.terms.values())
    assert torch.equal(output.features, m.backbone(batch.views[0]))
    assert not output.features.requires_grad


def test_accuracy_is_the_share_of_images_whose_class_is_first():
    m = supervised()
    with torch.no_grad():
        m.classifier.weight.zero_()
        m.classifier.bias.copy_(torch.tensor([0.0, -1.0, 1.0]))
    # 3 of 5 images are of class 2; the nearest float32 to 0.6.
    found = m(views(32, labels=LABELS), 0.0).terms["accuracy"]
    assert torch.equal(found, torch.tensor(0.6))


def test_without_labels_it_says_so():
    with pytest.raises(UserError, match="method supervised needs labels"):
        supervised()(views(32), 0.0)


# --- A teacher. ---


def test_loss_and_gradient_are_the_divergence_from_the_teacher():
    m, batch = supervised_kl(), views(32)
    targets, logits = outputs_of(m.teacher), outputs_of(m.classifier)
    output = m(batch, 0.0)
    output.loss.backward()
    p, q = double(targets[0]), double(logits[0])
    assert p.shape == q.shape == (5, 4)
    assert divergence(p, q) > 0.01
    assert abs(divergence(p, q) - divergence(q, p)) > 1e-4, "the directions must differ"
    # Differences of float32 logarithms of size 1, to 1e-7 of a loss of 0.1.
    assert output.loss.item() == pytest.approx(divergence(p, q), rel=1e-5, abs=1e-6)
    expected = numeric_gradient(lambda z: divergence(p, z), q)
    assert np.allclose(gradient_of(logits[0]), expected, rtol=1e-4, atol=1e-6)
    assert set(output.terms) == {"loss"}
    assert not output.terms["loss"].requires_grad
    assert torch.equal(output.features, m.backbone(batch.views[0]))


def test_the_teachers_classes_come_from_its_own_classifier_and_running_statistics():
    m, batch, given = supervised_kl(), views(32), teacher()
    assert given.classifier is not None
    given.classifier.load_state_dict(m.teacher.head.state_dict())  # type: ignore[union-attr]
    given.backbone.eval()
    with torch.no_grad():
        features = given.backbone(batch.views[0])
        expected = given.classifier(features.half().float())
    assert torch.equal(m.teacher(batch.views[0]), expected)


def test_labels_make_no_difference_to_it():
    one, other = (
        supervised_kl()(views(32, labels=labels), 0.0).loss for labels in (None, LABELS)
    )  # fmt: skip
    assert torch.equal(one, other)


def test_a_teacher_without_classifier_is_refused():
    backbone = shallow_reactnet(Precision.FLOAT)
    with pytest.raises(UserError, match="method supervised_kl needs a teacher trained with labels"):
        SupervisedKl(shallow_reactnet(), Teacher(backbone, None, None, {}))


# --- Both. ---


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_backbone_and_classifier_learn_and_the_teacher_never(
    precision: Precision, progress: float
):  # fmt: skip
    for m in (supervised(precision), supervised_kl(precision)):
        assert m.num_views == 1
        m(views(32, labels=LABELS), progress).loss.backward()
        assert m.reached(progress) == learning_parts(m) == {"backbone", "classifier"}
        frozen = [part.name for part in m.parts() if not part.trained]
        assert frozen == (["teacher"] if isinstance(m, SupervisedKl) else [])
        parts = sum(len(list(p.module.parameters())) for p in m.parts())
        assert parts == len(list(m.parameters()))


def test_the_classifier_is_linear_with_as_many_classes_as_labels_or_the_teacher():
    for m, classes in ((supervised(), 3), (supervised_kl(), 4)):
        assert isinstance(m.classifier, nn.Linear)
        assert m.classifier.weight.shape == (classes, 256)


def test_weights_hand_over_everything_but_the_teacher():
    for build in (supervised, supervised_kl):
        first = build(Precision.BINARY_ACTIVATIONS)
        train(first, range(2), 4, 32)
        weights = first.weights()
        assert {name.partition(".")[0] for name in weights} == {"backbone", "classifier"}
        assert {"classifier.weight", "classifier.bias"} <= weights.keys()
        second = build(seed=2)
        second.load_weights(weights)
        ours = second.weights()
        assert list(ours) == list(weights)
        assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def test_they_go_on_from_their_state():
    goes_on_from_its_state(lambda seed: supervised(seed=seed), 32)
    goes_on_from_its_state(lambda seed: supervised_kl(seed=seed), 32)


def test_bfloat16_reaches_the_loss_as_float32():
    for m in (supervised(), supervised_kl()):
        with torch.autocast("cpu", torch.bfloat16):
            output = m(views(32, labels=LABELS), 0.0)
        assert output.loss.dtype == output.features.dtype == torch.float32
