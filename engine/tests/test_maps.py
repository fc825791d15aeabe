"""Tests of features of several maps: which, in what units, when `burn-engine learn` takes them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import packed
from burn_engine import ModelError, cli, learn, load, write_classifier
from burn_engine.classifier_file import with_classifier
from burn_engine.format import parse_program
from burn_engine.maps import averaged, earlier_maps, equal_lengths, is_better, scaled, widened
from burn_engine.model import load_bytes
from burn_engine.packed_parts import take_apart
from burn_engine.pretrained import read_model

PAIRS = (
    *((16, 3, 1, True), (16, 1, 1, True)),
    *((16, 3, 2, True), (32, 1, 1, True)),
    *((32, 3, 1, True), (32, 1, 1, True)),
    *((32, 3, 2, True), (64, 1, 1, True)),
    *((64, 3, 1, True), (64, 1, 1, True)),
)


def network(**settings):
    """A network of five blocks: a 3 × 3 convolution and a 1 × 1 one each."""
    return packed.random_network(first=(16, 3, 1), **{"blocks": PAIRS, **settings})


def names(program, layers):
    return [program.layers[at].name for at in layers]


def test_the_maps_are_those_of_the_last_four_blocks():
    program = parse_program(network().to_bytes())
    assert names(program, earlier_maps(program)) == ["block3", "block5", "block7"]
    photos = parse_program(read_model("photos"))
    ends = [f"blocks.{block}.pointwise" for block in (9, 10, 11)]
    assert names(photos, earlier_maps(photos)) == ends
    two = parse_program(network(blocks=PAIRS[:4]).to_bytes())
    assert names(two, earlier_maps(two)) == ["block1"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"linears": (5,)}, "its features are those of layer linear0"),
        ({"also": (1,)}, "its features are means of 2 maps already"),
        ({"blocks": PAIRS[:2]}, "it has a single block"),
        (
            {"blocks": ({"out": 16, "side": (16,)}, (16, 3, 1, True))},
            "its shortcuts are of integers, as in formats 2 and 3",
        ),
    ],
)
def test_networks_without_them(settings, message):
    with pytest.raises(ValueError, match=message):
        widened(network(**settings).to_bytes())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_classes": 4},
        {"scaled": True, "num_classes": 2},
        {"blocks": ({"out": 16}, {"out": 32, "kernel": 1}, {"out": 32, "stride": 2})},
        {
            "blocks": ({"out": 16, "side": (16,), "float_sides": True}, (16, 3, 1, True)),
            "scaled": False,
        },
    ],
)
def test_the_features_are_the_bases_and_the_means_of_the_maps(settings):
    base = network(**settings).to_bytes()
    images = packed.random_images(shape=(3, 20, 17, 3))
    before, after = load_bytes(base), load_bytes(widened(base))
    found = after.features(images)
    np.testing.assert_array_equal(found[:, : before.num_features], before.features(images))
    at = before.num_features
    program = parse_program(widened(base))
    for name in names(program, averaged(program)[1:]):
        mean = before.layer(images, name).mean(axis=(1, 2), dtype=np.float64)
        # Means of at most 340 float32, each added with a rounding of 6e-8.
        np.testing.assert_allclose(found[:, at : at + mean.shape[1]], mean, rtol=1e-4, atol=1e-5)
        at += mean.shape[1]
    assert at == after.num_features
    assert not after.classes


def test_each_map_gets_the_length_of_the_last():
    random = np.random.default_rng(0)
    features = random.random((9, 12)).astype(np.float32) * ([3] * 5 + [40] * 4 + [0] * 3)
    factors = equal_lengths(features.astype(np.float32), (5, 4, 3))
    np.testing.assert_array_equal(factors[:5], 1)
    first, second, third = np.split(features * factors, [5, 9], axis=1)
    lengths = [np.linalg.norm(part, axis=1).mean() for part in (first, second, third)]
    np.testing.assert_allclose(lengths, [lengths[0], lengths[0], 0], rtol=1e-6)


def test_scaled_features_are_those_that_were_learned_from():
    wide = widened(network(scaled=True).to_bytes())
    images = packed.random_images(shape=(3, 20, 17, 3))
    features = load_bytes(wide).features(images)
    widths = [parse_program(wide).layers[at].channels for at in averaged(parse_program(wide))]
    factors = equal_lengths(features, widths)
    found = load_bytes(scaled(wide, factors)).features(images)
    # A scale of two factors is rounded once more.
    np.testing.assert_allclose(found, features * factors, rtol=1e-5, atol=1e-6)


def test_more_maps_are_better_by_half_a_standard_error():
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], 10)
    last = learn(random.normal(size=(20, 3)) + labels[:, None] / 2, labels, ["a", "b"])
    assert last.accuracy is not None
    assert last.error is not None
    above, below = (
        replace(last, accuracy=last.accuracy + times * last.error) for times in (0.51, 0.49)
    )
    assert is_better(above, last)
    assert not is_better(below, last)
    assert not is_better(above, replace(last, counts=np.array([9, 11])))


def test_parts_are_put_together_as_they_were():
    for settings in packed.NETWORKS.values():
        data = packed.random_network(**settings).to_bytes()
        again = take_apart(data).to_bytes()
        assert parse_program(again).fingerprint() == parse_program(data).fingerprint()


# --- The command. ---


def run(*arguments):
    return cli.main([str(each) for each in arguments])


def picture(path, seed, bright):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = packed.random_images(shape=(16, 16, 3), seed=seed) // 2 + bright
    path.write_bytes(b"P6 16 16 255\n" + pixels.astype(np.uint8).tobytes())


@pytest.fixture
def labelled(tmp_path):
    for seed in range(10):
        picture(tmp_path / "labelled" / "dark" / f"{seed}.ppm", seed, 0)
        picture(tmp_path / "labelled" / "light" / f"{seed}.ppm", seed, 120)
    return tmp_path / "labelled"


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.bnn"
    path.write_bytes(network().to_bytes())
    return path


def test_learned_from_several(labelled, base, tmp_path, capsys):
    out = tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", base, "--layers", "several", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["layers"] == ["block9", "block3", "block5", "block7"]
    assert list(facts["accuracies"]) == ["several"]
    model = load(out)
    assert model.origin is not None
    assert model.origin["learned"]["layers"] == facts["layers"]
    assert model.num_features == 64 + 32 + 32 + 64
    assert take_apart(out.read_bytes()).program["format"] == 5
    right = [
        model.classes[int(model(path).argmax())] == path.parent.name
        for path in labelled.rglob("*.ppm")
    ]
    assert np.mean(right) > 0.8  # those that it learned from
    assert run("run", out, labelled / "dark" / "0.ppm", "--json") == 0
    assert json.loads(capsys.readouterr().out)["none_of_these"] in (True, False)
    assert run("info", out) == 0
    assert "also averages block3, block5, block7" in capsys.readouterr().out


def test_learned_from_the_last_is_what_it_was(labelled, base, tmp_path, capsys):
    out = tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", base, "--layers", "last") == 0
    assert "features:" not in capsys.readouterr().out
    program = take_apart(out.read_bytes()).program
    assert program["format"] == 1
    assert "layers" not in program["origin"]["learned"]


@pytest.mark.parametrize("better", [True, False])
def test_the_better_one_is_taken(labelled, base, tmp_path, monkeypatch, capsys, better):
    monkeypatch.setattr("burn_engine.learn_command.is_better", lambda *_: better)
    out, alone = tmp_path / "mine.bnn", tmp_path / "alone.bnn"
    assert run("learn", labelled, out, "--from", base) == 0
    text = capsys.readouterr().out
    way = "several" if better else "last"
    said = "the last 4 blocks' maps; of the last" if better else "the last map alone; with those"
    assert f"features: means of {said}" in text
    assert run("learn", labelled, alone, "--from", base, "--layers", way) == 0
    assert out.read_bytes() == alone.read_bytes()


def test_few_images_are_learned_from_the_last(labelled, base, tmp_path, capsys):
    (labelled / "dark" / "0.ppm").unlink()
    out = tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", base, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["layers"] == ["block9"]
    assert facts["accuracies"]["several"] is None
    assert run("learn", labelled, out, "--from", base, "--overwrite") == 0
    assert "those of several are tried where each class has 10 images" in capsys.readouterr().out


def test_single_images_can_be_learned_from_several(base, tmp_path, capsys):
    for name, bright in (("dark", 0), ("light", 120)):
        picture(tmp_path / "labelled" / name / "0.ppm", 0, bright)
    arguments = ("learn", tmp_path / "labelled", tmp_path / "mine.bnn", "--from", base)
    assert run(*arguments, "--layers", "several") == 0
    assert "features: means of 4 maps" in capsys.readouterr().out


def test_bases_that_have_one_map_or_several(labelled, tmp_path, capsys):
    one, several = tmp_path / "one.bnn", tmp_path / "several.bnn"
    one.write_bytes(network(linears=(5,)).to_bytes())
    several.write_bytes(network(also=(1, 3), num_classes=3).to_bytes())
    out = tmp_path / "mine.bnn"
    for path, why in ((one, "are those of layer linear0"), (several, "means of 3 maps already")):
        assert run("learn", labelled, out, "--from", path, "--layers", "several") == 2
        error = capsys.readouterr().err
        assert f"{path}: means of several maps cannot be learned from: its features" in error
        assert why in error
        assert error.count("\n") == 1
        assert not out.exists()
        assert run("learn", labelled, out, "--from", path, "--json") == 0  # as its features are
        facts = json.loads(capsys.readouterr().out)
        assert list(facts["accuracies"]) == ["last"]
        assert load(out).num_features == load(path).num_features
        out.unlink()


def test_a_classifier_of_several_maps_is_replaced(tmp_path):
    wide = widened(network().to_bytes())
    width = load_bytes(wide).num_features
    labels = np.repeat([0, 1, 2], 5)
    features = np.random.default_rng(0).normal(size=(15, width)) + labels[:, None]
    first = learn(features[:10], labels[:10], ["a", "b"])
    second = learn(features, labels, ["a", "b", "c"])
    again = with_classifier(with_classifier(wide, first), second)
    assert again == with_classifier(wide, second)
    path = tmp_path / "wide.bnn"
    path.write_bytes(wide)
    write_classifier(path, second, tmp_path / "mine.bnn")
    assert (tmp_path / "mine.bnn").read_bytes() == again
    with pytest.raises(ModelError, match="192 features, but the classifier was learned from 64"):
        with_classifier(wide, learn(features[:, :64], labels, ["a", "b", "c"]))
