"""Tests of `learn`: its short cuts against slow twins, the file it writes, and the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import burn_engine
import packed
from burn_engine import (
    classifier_file,
    cli,
    learn,
    learn_command,
    learning,
    load,
    none_of_these,
    write_classifier,
)
from burn_engine.classifier_file import with_classifier
from burn_engine.errors import ModelError
from burn_engine.format import parse_program
from burn_engine.images import prepare
from burn_engine.learning import SHARES, Lda, Means, Ridge, calibrate, cosine_to, rows_of, softmax


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")


def drawn(counts, features=12, seed=0):
    """Return overlapping classes: features that are far from 0, labels and names."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    middles = random.normal(size=(len(counts), features))
    values = middles[labels] + random.normal(size=(len(labels), features)) * 1.5 + 2
    order = random.permutation(len(labels))
    return values[order], labels[order], [f"class {c}" for c in range(len(counts))]


# --- Slow twins: the definitions, without decompositions, on the images that are left. ---


def lda_twin(rows, labels, classes, gamma, at, middle):
    """Return the scores at a point, with the scatter and the means written out."""
    number, features = rows.shape
    rows, at = rows - middle, at - middle
    means = [rows[labels == c].mean(axis=0) for c in range(classes)]
    within = sum(np.outer(x - means[c], x - means[c]) for x, c in zip(rows, labels, strict=True))
    inverse = np.linalg.inv((within + gamma * np.eye(features)) / number)
    return np.array([mean @ inverse @ at - mean @ inverse @ mean / 2 for mean in means])


def ridge_twin(rows, labels, classes, gamma, at, middle):
    """Return the predictions at a point, with the intercept as a column of its own."""
    del middle
    ones = np.column_stack((rows, np.ones(len(rows))))
    penalty = gamma * np.diag([*np.ones(rows.shape[1]), 0.0])
    targets = np.eye(classes)[labels]
    weights = np.linalg.solve(ones.T @ ones + penalty, ones.T @ targets)
    return np.append(at, 1) @ weights


@pytest.mark.parametrize("share", [SHARES[0], 1.0, SHARES[-1]])
@pytest.mark.parametrize("equal_length", [False, True])
@pytest.mark.parametrize(("model", "twin"), [(Lda, lda_twin), (Ridge, ridge_twin)])
@pytest.mark.parametrize("counts", [(3, 4, 2), (2, 2), (9, 20, 7)])  # fewer images than features
def test_leave_one_out_is_what_learning_without_each_image_gives(
    counts, model, twin, equal_length, share
):
    values, labels, names = drawn(counts)
    rows = rows_of(values, labels, len(names), equal_length=equal_length)
    found = model(rows).left_out(share)
    scaled = values / rows.lengths[:, None]
    for i in range(len(values)):
        others = np.arange(len(values)) != i
        expected = twin(
            scaled[others], labels[others], len(names), share * rows.unit, values[i], rows.mean
        )
        # At a point off the rows' span the means are as far from each other as on it.
        difference = found[i] - expected
        np.testing.assert_allclose(difference, difference[0], atol=1e-8)


@pytest.mark.parametrize(("model", "twin"), [(Lda, lda_twin), (Ridge, ridge_twin)])
@pytest.mark.parametrize("counts", [(3, 4, 2), (1, 1), (30, 20, 10)])
def test_the_classifier_is_the_twins(counts, model, twin):
    values, labels, names = drawn(counts)
    rows = rows_of(values, labels, len(names), equal_length=False)
    weight, bias = model(rows).classifier(1.0)
    for point in drawn((5,), seed=3)[0]:
        expected = twin(values, labels, len(names), rows.unit, point, rows.mean)
        np.testing.assert_allclose(weight @ point + bias, expected, atol=1e-8)


def test_the_way_with_the_least_cross_entropy_is_chosen_and_its_numbers_are_told():
    values, labels, names = drawn((12, 9, 6))
    learned = learn(values, labels, names)
    best = None
    for equal_length in (False, True):
        rows = rows_of(values, labels, 3, equal_length=equal_length)
        for kind, model in (("lda", Lda(rows)), ("ridge", Ridge(rows))):
            for share in SHARES:
                scores = model.left_out(share)
                factor, loss = calibrate(scores, labels, model.prior)
                if best is None or loss < best[0]:
                    best = loss, (kind, equal_length, share), factor * scores + model.prior
    assert best is not None
    assert learned.way == best[1]
    answers = best[2].argmax(axis=1)
    assert learned.accuracy == (answers == labels).mean()
    assert learned.largest == pytest.approx(12 / 27)
    confusion = np.zeros((3, 3), int)
    for true, said in zip(labels, answers, strict=True):
        confusion[true, said] += 1
    np.testing.assert_array_equal(learned.confusion, confusion)


def test_the_threshold_refuses_one_image_of_20_when_each_is_left_out():
    values, labels, names = drawn((12, 9, 6))
    learned = learn(values, labels, names)
    rows = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = []
    for i in range(27):
        mean = rows[np.arange(27) != i].mean(axis=0)
        cosines.append(rows[i] @ mean / np.linalg.norm(mean))
    assert learned.threshold == pytest.approx(np.sort(cosines)[1])  # of 27: at most 5 %
    mean = rows.mean(axis=0)
    assert cosine_to(learned.towards, mean[None])[0] > 0.9999
    nine, answers, _ = drawn((5, 4))
    assert learn(nine, answers, names[:2]).threshold is None


def test_the_factor_is_where_the_cross_entropy_is_least():
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(50, 4)), random.integers(0, 4, 50)
    scores[np.arange(50), labels] += 1
    prior = np.log([0.1, 0.2, 0.3, 0.4])
    factor, loss = calibrate(scores, labels, prior)
    answers = np.full((50, 4), 1 / 52 / 3)
    answers[np.arange(50), labels] = 1 - 1 / 52
    losses = [
        -(answers * np.log(softmax(each * scores + prior))).sum() / 50
        for each in (factor * 0.99, factor, factor * 1.01)
    ]
    assert min(losses) == losses[1] == pytest.approx(loss)


def test_scores_that_say_nothing_leave_the_shares():
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(60, 2)), np.repeat([0, 1], [40, 20])
    scores[np.arange(60), labels] -= 2  # the wrong class is always preferred
    factor, _ = calibrate(scores, labels, np.log([2 / 3, 1 / 3]))
    found = softmax(factor * scores + np.log([2 / 3, 1 / 3]))
    np.testing.assert_allclose(found[:, 0], 2 / 3, atol=0.01)


def test_classes_far_apart_are_learned():
    values, labels, names = drawn((20, 20, 20))
    values = values + 40 * np.eye(3, values.shape[1])[labels]
    learned = learn(values, labels, names)
    assert learned.accuracy == 1
    assert learned.error is not None
    assert 0 < learned.error < 0.1
    assert ((values @ learned.weight.T + learned.bias).argmax(axis=1) == labels).all()


@pytest.mark.parametrize("counts", [(1, 1), (1, 1, 1, 1)])
def test_one_image_of_each_class(counts):
    values, labels, names = drawn(counts)
    learned = learn(values, labels, names)
    assert learned.way.kind == "means"
    assert (learned.accuracy, learned.error, learned.threshold) == (None, None, None)
    assert ((values @ learned.weight.T + learned.bias).argmax(axis=1) == labels).all()


def means_twin(values, labels, classes, deviation, length):
    """Return the weights and biases of the class means' directions, one class after another."""
    rows = [np.clip(x, -3 * deviation, 3 * deviation) for x in values]
    rows = np.array([x / np.sqrt(x @ x) for x in rows])
    means = [rows[labels == c].mean(axis=0) for c in range(classes)]
    middle = sum(means) / classes
    found = []
    for mean in means:
        away = (mean - middle) / np.sqrt((mean - middle) @ (mean - middle))
        found.append((away / length, -away @ middle))
    return np.array([w for w, _ in found]), np.array([b for _, b in found])


def test_class_means_are_those_of_the_twin():
    values, labels, _ = drawn((4, 1, 3, 2))
    values[0] *= 5  # so that something is cut
    about = 4, values.std(), np.linalg.norm(values, axis=1).mean()
    model = Means(values, labels, 4)
    for found, expected in zip(
        model.classifier(0), means_twin(values, labels, *about), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    scores = model.left_out(0)
    for i, label in enumerate(labels):
        if label != 1:
            others = np.arange(len(labels)) != i
            weight, bias = means_twin(values[others], labels[others], *about)
            np.testing.assert_allclose(scores[i], weight @ values[i] + bias, atol=1e-12)


def test_a_class_with_one_image_does_not_count_in_the_accuracy():
    values, labels, names = drawn((8, 9, 1))
    learned = learn(values, labels, names)
    assert learned.confusion.sum() == 17
    assert learned.confusion[2].sum() == 0
    assert learned.accuracy is not None
    assert learned.way.kind == "means"


def test_two_images_of_each_class_and_more_features_than_images():
    values, labels, names = drawn((2, 2), features=300)
    learned = learn(values, labels, names)
    assert np.isfinite(learned.weight).all()
    assert learned.confusion.sum() == 4


def test_equal_images_and_a_feature_that_never_changes():
    values, labels, names = drawn((4, 4))
    values[:, 3] = 7
    values[1:4] = values[0]
    assert np.isfinite(learn(values, labels, names).weight).all()
    values[:, :] = 0
    values[labels == 0, 0] = 1  # one of the classes is at 0, without a length
    assert learn(values, labels, names).accuracy == 1


def test_the_order_of_the_images_does_not_matter():
    values, labels, names = drawn((5, 6, 7))
    order = np.random.default_rng(1).permutation(len(values))
    first, second = learn(values, labels, names), learn(values[order], labels[order], names)
    assert first.way == second.way
    np.testing.assert_allclose(first.weight, second.weight, rtol=1e-4, atol=1e-6)


GOOD = np.arange(8.0).reshape(4, 2) ** 2
ANSWERS = [0, 0, 1, 1]
MANY = [str(number) for number in range(2049)]


@pytest.mark.parametrize(
    ("values", "labels", "classes", "message"),
    [
        (GOOD, ANSWERS, ["a"], "one class"),
        (GOOD, ANSWERS, [], "no classes"),
        (GOOD, ANSWERS, "ab", "give a list"),
        (GOOD, ANSWERS, ["a", "a"], "two classes are named 'a'"),
        (GOOD, ANSWERS, ["a", ""], "'' is not the name"),
        (GOOD, ANSWERS, ["a", "b\n"], "control character"),
        (GOOD, ANSWERS, ["a", "\udc80"], "not Unicode"),
        (GOOD, ANSWERS, ["a", "b", "c"], "'c' has no image"),
        (GOOD, [0, 0, 1, 2], ["a", "b"], "labels are from 0 to 2"),
        (GOOD, [0, 0, 1, -1], ["a", "b"], "labels are from -1"),
        (GOOD, [0, 0, 1], ["a", "b"], "integer for each of the 4"),
        (GOOD, [0.0, 0, 1, 1], ["a", "b"], "labels have shape"),
        (GOOD[0], ANSWERS, ["a", "b"], "features have shape"),
        (GOOD[:0], [], ["a", "b"], "no images"),
        (GOOD[:, :0], ANSWERS, ["a", "b"], "features have shape"),
        (np.where(GOOD == 9, np.nan, GOOD), ANSWERS, ["a", "b"], "image 1 are not finite"),
        (np.where(GOOD == 9, np.inf, GOOD), ANSWERS, ["a", "b"], "image 1 are not finite"),
        (np.ones((4, 2)), ANSWERS, ["a", "b"], "same features"),
        (np.array([["x"] * 2] * 4), ANSWERS, ["a", "b"], "expected numbers"),
        (GOOD * 1e-60, ANSWERS, ["a", "b"], "e-59; scale them to 1e-20"),
        (GOOD * 1e160, ANSWERS, ["a", "b"], "e.161; scale them to 1e-20"),
        (np.ones((1 << 16, 1)), [0] * (1 << 16), MANY, "65,536 images times 2,049 classes"),
    ],
)
def test_bad_input(values, labels, classes, message):
    with pytest.raises(ValueError, match=message):
        learn(values, labels, classes)


# --- The file. ---


def a_classifier(features, names=("cat", "dog", "none")):
    values, labels, _ = drawn((4,) * len(names), features)
    return learn(values, labels, list(names))


@pytest.mark.parametrize("isa", [None, "reference"])
@pytest.mark.parametrize("settings", [{}, {"linears": (5,)}, {"num_classes": 4}])
@pytest.mark.parametrize("network", packed.NETWORKS)
def test_the_file_has_the_bases_layers_and_the_classifier(
    write, tmp_path, monkeypatch, network, settings, isa
):
    if isa is None:
        monkeypatch.delenv("BURN_ENGINE_ISA")
        pytest.importorskip("burn_engine._core", exc_type=ImportError)
    base = write(network, **settings)
    features = load(base, isa=isa).num_features
    learned = a_classifier(features)
    out = tmp_path / "mine.bnn"
    write_classifier(base, learned, out)
    before, after = parse_program(base.read_bytes()), parse_program(out.read_bytes())
    assert after.classes == ("cat", "dog", "none")
    assert (after.image, after.features) == (before.image, before.features)
    old = before.layers[: before.features + 1]
    for one, other in zip(old, after.layers, strict=False):
        assert (one.kind, one.name) == (other.kind, other.name)
        tensors = other.tensors()
        for name, array in one.tensors().items():
            np.testing.assert_array_equal(array, tensors[name])
    assert len(after.layers) == len(old) + 1
    assert after.origin is not None
    assert (before.origin or {}).items() <= after.origin.items()
    model = load(out, isa=isa)
    assert learned.threshold is not None
    sides = np.array([1.0, -1.0])[:, None] * learned.towards
    np.testing.assert_array_equal(none_of_these(model, sides), [False, learned.threshold > -1])
    with pytest.raises(ValueError, match="a feature is not finite"):
        none_of_these(model, sides * np.nan)
    images = packed.random_images(shape=(2, 16, 16, 3))
    expected = model.features(images) @ learned.weight.T + learned.bias
    np.testing.assert_allclose(model(images), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(model.features(images), load(base, isa=isa).features(images))


def program_in(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bnn"])


def test_a_file_is_learned_from_again(write):
    base = write().read_bytes()
    program = parse_program(base)
    features = program.layers[program.features].channels
    first = with_classifier(base, a_classifier(features))
    second = with_classifier(first, a_classifier(features, ("ä", "b")))
    assert second == with_classifier(base, a_classifier(features, ("ä", "b")))
    assert program_in(first)["format"] == program_in(base)["format"]


def test_names_of_layers_that_the_base_has(write):
    network = packed.random_network(**packed.NETWORKS["small"] | {"num_classes": 0})
    last = network.program["layers"][-1]
    old, last["name"] = last["name"], "head"
    network.program["features"] = "head"
    for name in [name for name in network.tensors if name.startswith(f"{old}.")]:
        network.tensors[name.replace(old, "head", 1)] = network.tensors.pop(name)
    data = network.to_bytes()
    learned = a_classifier(parse_program(data).layers[-1].channels)
    assert parse_program(with_classifier(data, learned)).layers[-1].name == "head0"


def test_the_javascript_reader_runs_it(write, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("without node")
    from test_js import ask

    base = write()
    out = tmp_path / "mine.bnn"
    write_classifier(base, a_classifier(load(base).num_features, ("Blüte", 'a "b"', "c\\d")), out)
    image = packed.random_images(shape=(16, 16, 3))
    (tmp_path / "image.raw").write_bytes(image.tobytes())
    (answer,) = ask({"model": out, "images": [[tmp_path / "image.raw", 16, 16]]})
    found = answer["outputs"][0]["output"]
    expected = load(out)(prepare(image, parse_program(out.read_bytes()).image))
    assert answer["classNames"] == ["Blüte", 'a "b"', "c\\d"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_classifier_of_another_network(write):
    with pytest.raises(ModelError, match="features, but the classifier was learned from 3"):
        with_classifier(write().read_bytes(), a_classifier(3))


@pytest.mark.parametrize(
    "learned",
    [
        3,
        {},
        {"none": None},
        {"none": {}},
        {"none": {"below": "1", "towards": "AAAA"}},
        {"none": {"below": 1, "towards": "?"}},
        {"none": {"below": 1, "towards": "é"}},
        {"none": {"below": 1, "towards": "AAAA"}},
    ],
)
def test_files_that_do_not_say_what_is_none_of_these(write, learned):
    model = load(write())
    features = np.ones((2, model.num_features))
    for origin in (None, {}, {"learned": learned}):
        model.origin = origin
        assert none_of_these(model, features) is None


def test_a_file_that_another_command_wrote_meanwhile_stays(write, tmp_path, monkeypatch):
    base, out = write(), tmp_path / "mine.bnn"
    learned = a_classifier(load(base).num_features)
    for has_links in (True, False):
        original = classifier_file.with_classifier

        def meanwhile(*arguments, original=original):
            out.write_text("another's")
            return original(*arguments)

        def no_links(*_):
            raise OSError(1, "Operation not permitted")

        with monkeypatch.context() as patch:
            patch.setattr(classifier_file, "with_classifier", meanwhile)
            if not has_links:
                patch.setattr(os, "link", no_links)
            with pytest.raises(ValueError, match=r"mine.bnn exists: another command has written"):
                write_classifier(base, learned, out)
        assert out.read_text() == "another's"
        assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []
        out.unlink()
        with monkeypatch.context() as patch:
            if not has_links:
                patch.setattr(os, "link", no_links)
            write_classifier(base, learned, out)
        assert load(out).classes == learned.classes
        out.unlink()


def test_outputs_that_cannot_be_written(write, tmp_path, monkeypatch):
    base = write()
    learned = a_classifier(load(base).num_features)
    out = tmp_path / "mine.bnn"
    for path, message in (
        (base, "the network itself"), (tmp_path, "is a folder: name the file to write"),
        (tmp_path / "no/x", "no such"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            write_classifier(base, learned, path, overwrite=True)
    out.write_text("#!/bin/sh")
    with pytest.raises(ValueError, match="exists already"):
        write_classifier(base, learned, out)
    with pytest.raises(ValueError, match="is not a packed network, which --overwrite replaces"):
        write_classifier(base, learned, out, overwrite=True)
    assert out.read_text() == "#!/bin/sh"
    Path(out).write_bytes(Path(base).read_bytes())
    before = sorted(tmp_path.iterdir())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ValueError, match=r"mine.bnn cannot be written: No space left"):
        write_classifier(base, learned, out, overwrite=True)
    assert sorted(tmp_path.iterdir()) == before
    assert out.read_bytes() == Path(base).read_bytes()
    monkeypatch.undo()
    monkeypatch.setattr(classifier_file.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="read-only"):
        write_classifier(base, learned, out, overwrite=True)


# --- The command. ---


def image(path, seed, bright=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = packed.random_images(shape=(16, 16, 3), seed=seed) // 2 + bright
    path.write_bytes(b"P6 16 16 255\n" + pixels.astype(np.uint8).tobytes())


@pytest.fixture
def labelled(tmp_path):
    root = tmp_path / "labelled"
    for i in range(6):
        image(root / "dark" / f"{i}.ppm", i)
        image(root / "light & 'Ü'" / "deep" / f"{i}.ppm", i, 120)
    return root


def run(*arguments):
    return cli.main([str(each) for each in arguments])


def test_the_command(labelled, write, tmp_path, capsys):
    base, out = write(), tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", base, "--readers", 2) == 0
    text = capsys.readouterr().out
    assert "12 images of 2 classes:\n  6  dark\n  6  light & 'Ü'\n" in text
    assert "always the largest class: 50.0%" in text
    assert run("learn", labelled, out, "--from", base) == 2
    assert "exists already" in capsys.readouterr().err
    assert run("learn", labelled, out, "--from", base, "--overwrite", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == {"dark": 6, "light & 'Ü'": 6}
    assert facts["accuracy"] > 0.8
    assert load(out).classes == ("dark", "light & 'Ü'")
    assert run("run", out, labelled / "dark" / "0.ppm", "--json") == 0
    assert json.loads(capsys.readouterr().out)["none_of_these"] in (True, False)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_none_of_these_is_printed_before_the_nearest_classes(labelled, write, tmp_path, capsys):
    base, out = write(), tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", base) == 0
    data = out.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    program = json.loads(header["__metadata__"]["bnn"])
    program["origin"]["learned"]["none"]["below"] = 1.5
    header["__metadata__"]["bnn"] = json.dumps(program)
    out.write_bytes(packed.raw(header, data[8 + length :]))
    capsys.readouterr()
    assert run("run", out, labelled / "dark" / "0.ppm") == 0
    assert "0.ppm:\n           none of these; the nearest:\n" in capsys.readouterr().out


def test_images_that_cannot_be_read_are_named_once_and_left_out(labelled, write, tmp_path, capsys):
    (labelled / "dark" / "broken.ppm").write_bytes(b"P6 16 16 255\nshort")
    np.save(labelled / "dark" / "bad.npy", np.zeros((2, 2)))
    image(labelled / "stray.ppm", 0)
    out = tmp_path / "mine.bnn"
    assert run("learn", labelled, out, "--from", write(), "--json") == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["left_out"] == 2
    assert captured.err.endswith(" images were left out; see above\n")
    assert out.is_file()
    assert captured.err.count("broken.ppm") == captured.err.count("bad.npy") == 1
    assert "left out 1 image in no class's folder" in captured.err
    for path in (labelled / "dark").glob("*.ppm"):
        path.write_bytes(b"P6")
    assert run("learn", labelled, out, "--from", write(), "--overwrite") == 2
    assert "none of the images of class 'dark' can be read" in capsys.readouterr().err


def test_folders_that_do_not_do(labelled, write, tmp_path, capsys, monkeypatch):
    out = tmp_path / "mine.bnn"

    def refused(folder, message):
        assert run("learn", folder, out, "--from", write()) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()

    with monkeypatch.context() as patched:
        patched.setattr(learning, "_MOST_SCORES", 3)
        patched.setattr(learn_command, "read_input", None)  # nothing is read before
        refused(labelled, "more than the 3 that are learned at once")
    refused(labelled / "dark" / "0.ppm", "is a file")
    refused(tmp_path / "missing", "no such folder")
    refused(labelled / "dark", "holds no folder")
    for name in ("a.JPG", "a.npy", "a.index", "a.html"):
        assert run("learn", labelled, tmp_path / name, "--overwrite") == 2
        assert f"{name}: name the packed file to write" in capsys.readouterr().err
    for part in ("Train", "test"):
        (tmp_path / "parts" / part / "kind").mkdir(parents=True)
    refused(tmp_path / "parts", "holds parts, not classes ('Train', 'test'): give the images to")
    (labelled / "empty").mkdir()
    refused(labelled, "no images in the folder of class 'empty'")
    (labelled / "empty").rmdir()
    shutil.move(labelled / "dark", tmp_path / "dark")
    refused(labelled, "only the folder")
    shutil.move(tmp_path / "dark", labelled / "a\nb")
    refused(labelled, "control character")
    shutil.move(labelled / "a\nb", os.fsdecode(os.fsencode(labelled) + b"/\xff"))
    refused(labelled, "not Unicode")


def test_links_in_circles(labelled, write, tmp_path, capsys):
    (labelled / "all").symlink_to(labelled)
    (labelled / "dark" / "up").symlink_to(labelled)
    (labelled / "dark" / "other").symlink_to(labelled / "light & 'Ü'" / "deep")
    assert run("learn", labelled, tmp_path / "mine.bnn", "--from", write(), "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == {"dark": 12, "light & 'Ü'": 6}


def test_links_to_nothing(labelled, write, tmp_path, capsys):
    """One in a class is an image that cannot be read; one beside the classes may be a class."""
    out = tmp_path / "mine.bnn"
    for name in ("gone", "gone.ppm"):
        (labelled / "dark" / name).symlink_to("nothing")
    assert run("learn", labelled, out, "--from", write()) == 2
    error = capsys.readouterr().err
    assert [f"dark/{name}: No such file or directory; left out" in error for name in
            ("gone", "gone.ppm")] == [True, True]  # fmt: skip
    assert out.exists()
    for name in ("roses", "roses.2020"):
        link = labelled / name
        link.symlink_to("nothing")
        assert run("learn", labelled, out, "--from", write(), "--overwrite") == 2
        error = capsys.readouterr().err
        assert error == f"burn-engine: {link} is a link to nothing: fix it, or remove it\n"
        link.unlink()


def test_one_image_a_class_says_that_nothing_is_known(write, tmp_path, capsys):
    image(tmp_path / "labelled/a/1.ppm", 0)
    image(tmp_path / "labelled/b/1.ppm", 1, 120)
    out = tmp_path / "mine.bnn"
    assert run("learn", tmp_path / "labelled", out, "--from", write()) == 0
    text = capsys.readouterr().out
    assert "2 classes have a single image" in text
    assert "accuracy: unknown" in text
    assert run("run", out, tmp_path / "labelled/b/1.ppm", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"][0]["class"] == "b"
    assert "none_of_these" not in found


def test_the_output_is_the_base(labelled, write, capsys):
    base = write()
    before = base.read_bytes()
    assert run("learn", labelled, base, "--from", base, "--overwrite") == 2
    assert "is the network itself" in capsys.readouterr().err
    assert base.read_bytes() == before


def test_ctrl_c_leaves_nothing(labelled, write, tmp_path):
    out = tmp_path / "new" / "mine.bnn"
    out.parent.mkdir()
    script = (
        "import os, sys, time\n"
        "from burn_engine import cli\n"
        "def link(*_):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "os.link = link\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "learn", labelled, out, "--from", write()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "burn-engine: interrupted\n")
    assert not list(out.parent.iterdir())


def test_the_package_names_it():
    assert {"learn", "Learned", "write_classifier"} <= set(burn_engine.__all__)
