"""Linear evaluation against SGD by hand, and a backbone that must not notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.loader import light_views
from burn.evaluation.accuracy import top_k
from burn.evaluation.configs import LINEAR_RATES, LinearConfig
from burn.evaluation.features import Forward
from burn.evaluation.linear_layer import (
    augmented_batches,
    cached_batches,
    calibrating_temperature,
    train_linear,
    train_linear_at_best_rate,
)
from networks import randomize, shallow_reactnet

TENTH = 6  # of the toy's sixty rows


# --- The schedule. ---


@pytest.mark.parametrize(
    ("epoch", "rate"), [(0, 30.0), (59, 30.0), (60, 3.0), (79, 3.0), (80, 0.3), (99, 0.3)]
)
def test_learning_rate_of_the_paper(epoch: int, rate: float):
    config = LinearConfig(lr=30.0)
    first = config.first_rate
    assert first is not None
    assert first * config.factor(epoch) == pytest.approx(rate, rel=1e-12)  # 0.1² in float64


@pytest.mark.parametrize(
    ("epochs", "rates"),
    [
        (1, [1.0]),
        (5, [1.0, 1.0, 1.0, 0.1, 0.01]),
        (10, [1.0] * 6 + [0.1] * 2 + [0.01] * 2),
        (7, [1.0] * 5 + [0.1, 0.01]),  # three fifths are 4.2, four fifths 5.6
    ],
)
def test_learning_rate_of_other_lengths(epochs: int, rates: list[float]):
    config = LinearConfig(epochs=epochs)
    found = [config.factor(epoch) for epoch in range(epochs)]
    assert found == pytest.approx(rates, rel=1e-12)


# --- Training. ---


def toy(seed: int = 0, apart: float = 4.0) -> Features:
    """Three classes that a line each can part, where they lie so far apart."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 3
    centres = apart * torch.eye(3, 4)
    values = centres[labels] + torch.randn(60, 4, generator=random)
    return Features(values, labels, ("a", "b", "c"), torch.arange(60))


def test_separable_classes_are_parted():
    features, held_out = toy(), toy(1)
    assert held_out.labels is not None
    assert features.labels is not None
    config = LinearConfig(epochs=20, lr=1.0, batch_size=16)
    layer = train_linear(cached_batches(features, 16, 0), 4, 3, config, seed=0)
    assert top_k(layer(features.values), features.labels, 1) == 1
    assert top_k(layer(held_out.values), held_out.labels, 1) > 0.9


def test_training_is_sgd_with_momentum_and_no_decay_by_hand():
    """In NumPy and float64: cross-entropy of a linear layer, momentum 0.9, the schedule's rates."""
    config = LinearConfig(epochs=5, lr=0.5, batch_size=20)
    batches = cached_batches(toy(), 20, seed=3)
    layer = train_linear(batches, 4, 3, config, seed=7)
    assert isinstance(layer, nn.Linear)

    generator = torch.Generator().manual_seed(7)
    weight = 0.01 * torch.randn(3, 4, generator=generator).double().numpy()
    bias, weight_speed, bias_speed = np.zeros(3), np.zeros((3, 4)), np.zeros(3)
    for epoch, rate in enumerate([0.5, 0.5, 0.5, 0.05, 0.005]):
        for values, labels, _ in batches(epoch):
            x, y = values.double().numpy(), np.eye(3)[labels.numpy()]
            scores = x @ weight.T + bias
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (powers / powers.sum(axis=1, keepdims=True) - y) / len(x)
            weight_speed = 0.9 * weight_speed + error.T @ x
            bias_speed = 0.9 * bias_speed + error.sum(axis=0)
            weight, bias = weight - rate * weight_speed, bias - rate * bias_speed
    # 15 steps in float32.
    assert np.allclose(layer.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-5)
    assert np.allclose(layer.bias.detach().numpy(), bias, rtol=1e-4, atol=1e-5)


def test_training_depends_on_its_seed_alone():
    config = LinearConfig(epochs=2, lr=0.1)
    weights = []
    for seed, state in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(state)
        weights.append(
            train_linear(cached_batches(toy(), 16, 0), 4, 3, config, seed).state_dict()["weight"]
        )
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_every_epoch_is_asked_for_and_told():
    asked, told = [], []

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        asked.append(epoch)
        yield torch.ones(2, 4), torch.tensor([0, 1]), torch.tensor([0, 1])

    train_linear(batches, 4, 2, LinearConfig(epochs=4, lr=30.0), 0, told.append)
    assert asked == told == [0, 1, 2, 3]


def test_cached_batches_give_every_row_with_its_label_once_an_epoch():
    values, labels = torch.arange(10.0)[:, None], torch.arange(10) + 100
    batches = cached_batches(Features(values, labels, (), torch.arange(10) + 50), 4, seed=2)
    orders = []
    for epoch in (0, 1, 0):
        parts = list(batches(epoch))
        assert [len(rows) for rows, _, _ in parts] == [4, 4, 2]
        rows = torch.cat([rows for rows, _, _ in parts])
        assert torch.equal(rows[:, 0] + 100, torch.cat([labels for _, labels, _ in parts]).float())
        assert torch.equal(rows[:, 0] + 50, torch.cat([at for _, _, at in parts]).float())
        assert sorted(rows[:, 0].tolist()) == list(range(10))
        orders.append(rows[:, 0].tolist())
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]


# --- The temperature. ---


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_scaled_scores_are_scaled_back(scale: float):
    """Labels are drawn from softmax(true): the scores are right where T is their scale."""
    random = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(20_000, 5, generator=random)
    labels = torch.multinomial(true.softmax(dim=1), 1, generator=random)[:, 0]
    assert calibrating_temperature(scale * true, labels) == pytest.approx(scale, rel=0.03)


def test_no_other_temperature_has_a_lower_cross_entropy():
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (500,), generator=random)
    scores = torch.randn(500, 4, generator=random) + 2 * torch.eye(4)[labels]
    found = calibrating_temperature(scores, labels)
    share = 1 / 502
    answers = torch.full((500, 4), share / 3).scatter(1, labels[:, None], 1 - share)

    def loss(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy((scores / temperature).double(), answers))

    grid = np.linspace(0.5, 2, 301) * found
    assert loss(found) <= min(map(loss, grid)) + 1e-9


def test_always_being_right_is_no_certainty():
    """As if two answers more had been given, one of them wrong: 99 of 100."""
    labels = torch.arange(98) % 2
    scores = 7.0 * torch.eye(2)[labels]
    probabilities = (scores / calibrating_temperature(scores, labels)).softmax(dim=1)
    assert probabilities.amax(dim=1).tolist() == pytest.approx([0.99] * 98, rel=1e-6)


@pytest.mark.parametrize(
    "scores",
    [torch.zeros(6, 3), -torch.eye(3)[[0, 1, 2, 0, 1, 2]], torch.full((6, 3), torch.nan)],
    ids=["constant", "the wrong way", "not finite"],
)
def test_scores_that_say_nothing_stay(scores: Tensor):
    assert calibrating_temperature(scores, torch.arange(6) % 3) == 1
    assert calibrating_temperature(scores[:, :1], torch.zeros(6, dtype=torch.int64)) == 1


# --- The rate. ---


def held_out_of(features: Features) -> Features:
    assert features.labels is not None
    return Features(
        features.values[:TENTH], features.labels[:TENTH], features.classes,
        features.positions[:TENTH],
    )  # fmt: skip


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_chosen_layer_is_the_one_trained_at_its_rate_on_all_images(weight_decay: float):
    config = LinearConfig(epochs=5, weight_decay=weight_decay)
    features = toy()
    batches = cached_batches(features, 16, 3)
    chosen = train_linear_at_best_rate(batches, held_out_of(features), 3, config, seed=7)
    alone = train_linear(batches, 4, 3, replace(config, lr=chosen.lr), seed=7)
    assert isinstance(alone, nn.Linear)
    torch.testing.assert_close(chosen.layer.weight, alone.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(chosen.layer.bias, alone.bias, rtol=1e-4, atol=1e-5)


def test_each_rate_is_evaluated_on_images_that_its_layer_did_not_see():
    """By hand: a layer for each rate on the rows that are not held out, and their accuracy."""
    config, features = LinearConfig(epochs=3), toy()
    held_out = held_out_of(features)
    assert held_out.labels is not None
    batches = cached_batches(features, 16, 3)
    chosen = train_linear_at_best_rate(batches, held_out, 3, config, seed=7)
    assert list(chosen.held_out) == list(LINEAR_RATES)

    def without(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for values, labels, positions in batches(epoch):
            kept = positions >= TENTH
            yield values[kept], labels[kept], positions[kept]

    for rate in (0.001, 0.1, 1.0):
        layer = train_linear(without, 4, 3, replace(config, lr=rate), seed=7)
        expected = 100 * top_k(layer(held_out.values), held_out.labels, 1)
        assert chosen.held_out[rate] == pytest.approx(expected, abs=1e-3)
    assert chosen.held_out[chosen.lr] == max(chosen.held_out.values())


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
def test_the_rate_follows_the_scale_of_the_features(scale: float):
    """The cross-entropy of W·(s·x) has s² times the curvature: its best rate is 1/s² of that."""
    features = toy(apart=2.0)
    scaled = Features(features.values * scale, features.labels, (), features.positions)
    config = LinearConfig(epochs=10)
    chosen = train_linear_at_best_rate(
        cached_batches(scaled, 16, 3), held_out_of(scaled), 3, config, seed=7
    )
    low, high = {0.05: (1.0, 100.0), 1.0: (0.003, 1.0), 20.0: (1e-5, 0.003)}[scale]
    assert low <= chosen.lr <= high


def test_a_rate_that_diverges_is_not_chosen():
    features = toy()
    huge = Features(features.values * 1e18, features.labels, (), features.positions)
    chosen = train_linear_at_best_rate(
        cached_batches(huge, 16, 3), held_out_of(huge), 3, LinearConfig(epochs=10), seed=7
    )
    assert bool(torch.isfinite(chosen.layer.weight).all())
    assert chosen.held_out[100.0] == 0.0


# --- Augmented batches. ---


class Shades:
    """Noisy images whose mean grey level tells their label."""

    name = "shades"
    classes: tuple[str, ...] = ("dark", "middle", "light")
    fingerprint = ""

    def __init__(self) -> None:
        self.labels: np.ndarray | None = np.arange(10, dtype=np.int64) % 3
        random = np.random.default_rng(0)
        noise = random.integers(-20, 21, (10, 3, 40, 40))
        self.images = (noise + 50 + 75 * self.labels[:, None, None, None]).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Tensor:
        return torch.from_numpy(self.images[index])

    def describe(self, index: int) -> str:
        return str(index)


def contents(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_augmented_batches_leave_the_backbone_alone():
    backbone = randomize(shallow_reactnet()).train()
    before = contents(backbone)
    batches = augmented_batches(
        Forward(backbone), Shades(), 32, 4, seed=0, workers=0, unreadable=set()
    )
    for epoch in range(2):
        for features, _, _ in batches(epoch):
            assert not any(module.training for module in backbone.modules())
            assert not features.requires_grad
            assert features.dtype == torch.float32
    after = contents(backbone)
    assert any(name.endswith("running_mean") for name in before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_training_on_augmented_batches_leaves_the_backbone_alone():
    backbone = randomize(shallow_reactnet())
    before = contents(backbone)
    batches = augmented_batches(
        Forward(backbone), Shades(), 32, 4, seed=0, workers=0, unreadable=set()
    )
    layer = train_linear(batches, 256, 3, LinearConfig(epochs=2, lr=0.1), seed=0)
    assert layer.state_dict()["weight"].shape == (3, 256)
    assert all(torch.equal(backbone.state_dict()[name], t) for name, t in before.items())
    assert all(parameter.grad is None for parameter in backbone.parameters())


class MeanLevel(Backbone):
    """Its only feature is the image's mean on the scale 0 to 1."""

    def __init__(self) -> None:
        super().__init__(BackboneConfig(), num_features=1)
        self.unused = nn.Parameter(torch.zeros(1))
        self.seen: list[Tensor] = []

    def forward_features(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        return images.float() / 255

    def pool(self, features: Tensor) -> Tensor:
        return features.mean(dim=(1, 2, 3))[:, None]


@pytest.mark.parametrize("workers", [0, 1])
def test_augmented_batches_pair_features_with_their_labels(workers: int):
    batches = augmented_batches(
        Forward(MeanLevel()), Shades(), 32, 4, seed=0, workers=workers, unreadable=set()
    )
    for epoch in range(2):
        counts = np.zeros(3, dtype=int)
        for features, labels, positions in batches(epoch):
            assert torch.equal(positions % 3, labels)
            # Levels 50, 125 and 200 with noise of ±20 and the bicubic kernel's overshoot.
            assert torch.equal(((features[:, 0] * 255 - 50) / 75).round().long(), labels)
            counts += np.bincount(labels.numpy(), minlength=3)
        assert counts.tolist() == [4, 3, 3], "the last, smaller batch is there too"


def test_augmented_batches_are_light_views_of_the_epoch():
    """Crops and flips, others in every epoch; no colour, no blur, whatever the recipe's views."""
    backbone, source = MeanLevel(), Shades()
    batches = augmented_batches(
        Forward(backbone), source, 32, 10, seed=4, workers=0, unreadable=set()
    )
    transform, seen = light_views(32, 4), []
    for epoch in range(2):
        ((features, _, _),) = batches(epoch)
        views = backbone.seen[-1]
        expected = {
            transform(source.read(i), epoch, i).views[0].numpy().tobytes() for i in range(10)
        }
        seen.append({view.numpy().tobytes() for view in views})
        assert seen[-1] == expected
        assert torch.equal(features, backbone.pool(views.float() / 255))
    assert not seen[0] & seen[1]


# --- Values. ---


@pytest.mark.parametrize(
    "config", [LinearConfig(epochs=0), LinearConfig(batch_size=0), LinearConfig(lr=0.0)]
)
def test_values_out_of_range(config: LinearConfig):
    with pytest.raises(UserError):
        config.check()
