"""Learning in the JavaScript package: the numbers of burn_engine.learn, and files it can run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import burn_engine
from burn_engine.format import ImageSize
from burn_engine.images import prepare
from packed import random_images, random_network

ENGINE = Path(__file__).parents[1]
PACKAGE = ENGINE / "js"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="without node")


def ask(*requests):
    """Return what the package learns, as js/learn.mjs prints it."""
    done = subprocess.run(
        ["node", ENGINE / "tests" / "js" / "learn.mjs", PACKAGE],
        input=json.dumps(requests, default=str),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def request(values, labels, names, **more):
    return {"features": values.tolist(), "labels": labels.tolist(), "classes": names, **more}


def drawn(counts, features, seed=0, spread=1.5):
    """Return overlapping classes: features that are far from 0, labels and names."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    middles = random.normal(size=(len(counts), features))
    values = middles[labels] + random.normal(size=(len(labels), features)) * spread + 2
    order = random.permutation(len(labels))
    return values[order].astype(np.float32), labels[order], [f"k {c}" for c in range(len(counts))]


def of_many_lengths(values, labels, names):
    lengths = np.random.default_rng(3).uniform(0.2, 5, size=(len(values), 1))
    return values * lengths.astype(np.float32), labels, names


CASES = {
    "few images": drawn((3, 4, 2), 40),
    "more images than features": drawn((9, 20, 7), 12),
    "two classes": drawn((15, 15), 64, spread=4),
    "single images": drawn((1, 1, 1), 30),
    "a single image beside others": drawn((1, 5, 8), 30),
    "many": drawn((40, 30, 50, 20), 96, spread=5),
    "easy": drawn((12, 12), 20, spread=0.01),
    "hopeless": drawn((10, 10), 16, spread=1e3),
    "the same image twice": tuple(
        np.concatenate([one, one]) if isinstance(one, np.ndarray) else one
        for one in drawn((4, 6), 24)
    ),
    "a feature that never changes": (
        np.pad(drawn((6, 6), 10)[0], [(0, 0), (1, 1)]), *drawn((6, 6), 10)[1:]
    ),
    "many lengths": of_many_lengths(*drawn((6, 7, 5), 30, seed=3)),
    "large numbers": (drawn((6, 9), 15)[0] * 1e6, *drawn((6, 9), 15)[1:]),
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    answers = ask(
        *(
            request(values, labels, names, classify=values[:3].tolist())
            for values, labels, names in CASES.values()
        )
    )
    return dict(zip(CASES, answers, strict=True))


def test_the_cases_are_learned_in_all_ways():
    ways = {burn_engine.learn(*case).way[:2] for case in CASES.values()}
    assert ways == {("means", True), *((k, e) for k in ("lda", "ridge") for e in (False, True))}


@pytest.mark.parametrize("name", CASES)
def test_what_is_learned_is_what_python_learns(found, name):
    values, labels, names = CASES[name]
    expected, one = burn_engine.learn(values, labels, names), found[name]
    assert "refused" not in one
    assert one["classes"] == list(expected.classes)
    assert one["counts"] == expected.counts.tolist()
    assert one["way"]["kind"] == expected.way.kind
    assert one["way"]["equalLength"] == expected.way.equal_length
    assert one["way"]["share"] == pytest.approx(expected.way.share)
    assert one["confusion"] == expected.confusion.tolist()
    for key in ("accuracy", "error", "largest", "threshold"):
        value = getattr(expected, key)
        assert one[key] == (None if value is None else pytest.approx(value, rel=1e-9)), key
    # float64 on both sides, in other orders; the factor is found to 1e-4, and rounding may decide
    # its last step.
    assert one["temperature"] == pytest.approx(expected.temperature, rel=2e-4)
    weight = np.reshape(one["weight"], expected.weight.shape)
    np.testing.assert_allclose(weight, expected.weight, atol=2e-4 * abs(expected.weight).max())
    np.testing.assert_allclose(one["bias"], expected.bias, atol=2e-4 * abs(expected.bias).max())
    # The mean direction is rounded to whole numbers, of which one may lie on an edge.
    np.testing.assert_allclose(one["towards"], expected.towards, atol=1)


@pytest.mark.parametrize("name", CASES)
def test_it_says_how_far_it_is(found, name):
    progress = found[name]["progress"]
    assert progress == sorted(progress)
    if found[name]["way"]["kind"] == "means":
        assert progress == []  # a moment
    else:
        assert progress[0] > 0
        assert progress[-1] == pytest.approx(1)


@pytest.mark.parametrize("name", CASES)
def test_probabilities_of_images_are_pythons(found, name):
    values, labels, names = CASES[name]
    learned = burn_engine.learn(values, labels, names)
    scores = values[:3].astype(np.float64) @ learned.weight.T.astype(np.float64) + learned.bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = 100 * powers / powers.sum(axis=1, keepdims=True)
    for row, one in zip(expected, found[name]["classified"], strict=True):
        percents = [each["percent"] for each in one["classes"]]
        assert percents == sorted(percents, reverse=True)
        by_name = {each["name"]: each["percent"] for each in one["classes"]}
        # Scores of up to 1e2 that agree to 2e-4 of themselves.
        np.testing.assert_allclose([by_name[name] for name in names], row, atol=0.5)
        assert (one["noneOfThese"] is None) == (len(values) < 10)


def test_what_is_unlike_all_is_none_of_these():
    values, labels, names = drawn((8, 8), 40, spread=0.3)
    (one,) = ask(request(values, labels, names, classify=[(-values[0]).tolist()]))
    assert one["classified"][0]["noneOfThese"] is True


BASES = [{}, {"num_classes": 5}, {"num_classes": 5, "also": (0,)}]


@pytest.mark.parametrize("settings", BASES)
def test_a_file_of_javascripts_runs_in_python(tmp_path, settings):
    base = tmp_path / "base.bnn"
    base.write_bytes(random_network(4, **settings).to_bytes())
    network = burn_engine.load(base)
    values, labels, names = drawn((8, 9, 4), network.num_features, seed=3)
    names[1] = "größer <b>"
    photo = random_images(5, (16, 20, 3))
    (tmp_path / "photo.raw").write_bytes(photo.tobytes())
    out = tmp_path / "mine.bnn"
    image = [tmp_path / "photo.raw", 20, 16]
    (one,) = ask(request(values, labels, names, base=base, out=out, image=image))
    mine = burn_engine.load(out)
    assert mine.classes == tuple(names)
    assert mine.image == network.image
    size = network.image
    assert isinstance(size, ImageSize)
    prepared = prepare(photo, size)
    features, scores = mine.features(prepared), mine(prepared)
    np.testing.assert_array_equal(features, network.features(prepared))
    # The same sums of floats in another order, as in test_js.py.
    np.testing.assert_allclose(one["own"], features, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(one["output"], scores, rtol=2e-4, atol=2e-4)
    assert one["ranked"][0]["name"] == names[int(scores.argmax())]
    refused = burn_engine.none_of_these(mine, features[None])
    assert refused is not None
    assert one["none"] == bool(refused[0])


@pytest.mark.parametrize("settings", BASES)
def test_the_file_is_pythons_but_for_rounding(tmp_path, settings):
    """The same layers, classes and origin, and tensors of the same names."""
    base = tmp_path / "base.bnn"
    base.write_bytes(random_network(4, **settings).to_bytes())
    values, labels, names = drawn((8, 9), burn_engine.load(base).num_features, seed=3)
    (tmp_path / "photo.raw").write_bytes(bytes(12))
    image = [tmp_path / "photo.raw", 2, 2]
    ask(request(values, labels, names, base=base, out=tmp_path / "js.bnn", image=image))
    learned = burn_engine.learn(values, labels, names)
    burn_engine.write_classifier(base, learned, tmp_path / "python.bnn")
    headers = []
    for file in ("js.bnn", "python.bnn"):
        data = (tmp_path / file).read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header["__metadata__"]["bnn"] = json.loads(header["__metadata__"]["bnn"])
        headers.append(header)
    javascript, python = headers
    # The threshold is rounded to six digits, on both sides of which two roundings may lie.
    below = [
        one["__metadata__"]["bnn"]["origin"]["learned"]["none"].pop("below") for one in headers
    ]
    assert below[0] == pytest.approx(below[1], abs=2e-6)
    assert javascript == python


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"classes": ["a"]}, "there is one class; it takes two to tell apart: add one of other"),
        ({"classes": ["a", "a"]}, 'two classes are named "a"'),
        ({"classes": ["a", ""]}, '"" is not the name of a class: give a text'),
        ({"classes": ["a", "b\n"]}, 'the name of class "b\\n" has a control character'),
        ({"classes": ["a", "b", "c"]}, 'class "c" has no image'),
        ({"classes": "ab"}, "classes is not an array: give a list of names"),
        ({"labels": [0, 1, 2, 1]}, "label 2 is none of 0 to 1, the classes' numbers"),
        ({"labels": [0, 1]}, "2 labels for 4 images"),
        ({"features": [], "labels": []}, "there are no images to learn from"),
        ({"features": [[1, 2]] * 4}, "all images have the same features, so nothing tells them"),
        ({"features": [[1, 2]] * 3 + [[1]]}, "image 3 has 1 features, the first one 2"),
        ({"features": [[1, 2]] * 3 + [[1, "nan"]]}, "the features of image 3 are not finite"),
        ({"features": [[0], [0], [0], [1e-160]]}, "the largest feature is 1.00e-160; scale them"),
        ({"features": [[0], [0], [0], [1e150]]}, "the largest feature is 1.00e+150; scale them"),
        ({"labels": None}, "there are no labels"),
        ({"labels": [0, "hole", 1, 1]}, "label undefined is none of 0 to 1, the classes' numbers"),
        ({"features": ["hole", *[[1, 2]] * 3]}, "image 0 has no features"),
        ({"features": [[1, 2], "hole", [2, 1], [3, 5]]}, "image 1 has no features, the first one"),
        ({"features": [[1, 2]] * 3 + [[1, "hole"]]}, "the features of image 3 are not finite"),
        ({"features": [[]] * 4}, "image 0 has no features"),
        ({"features": {"0": [1], "length": 4}}, "features is not an array: give a list of each"),
    ],
)
def test_what_cannot_be_learned_is_refused(changed, sentence):
    usual = {"features": [[1, 2], [2, 1], [3, 5], [1, 1]], "labels": [0, 0, 1, 1]}
    (one,) = ask({"classes": ["a", "b"], **usual, **changed})
    assert one["refused"].startswith(f"Error: {sentence}")


def test_labels_and_features_may_be_like_arrays():
    values, labels, names = drawn((6, 6), 5)

    def like_array(row):
        return {"length": len(row), **{str(i): one for i, one in enumerate(row.tolist())}}

    usual = request(values, labels, names, classify=values[:2].tolist())
    rows = [like_array(row) for row in values]
    like = {"features": rows, "labels": like_array(labels), "classify": rows[:2]}
    expected, found = ask(usual, {**usual, **like})
    assert "refused" not in expected
    assert found == expected


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ([1, 2, "nan"], "the features are not finite"),
        (["inf", 2, 3], "the features are not finite"),
        ([1, "hole", 3], "the features are not finite"),
        ("abc", "the features are not finite"),
        ([1, 2], "2 features; the classifier was learned from 3"),
        (None, "no features; the classifier was learned from 3"),
    ],
)
def test_features_that_cannot_be_classified_are_refused(features, sentence):
    (one,) = ask(request(*drawn((6, 6), 3), classify=[features]))
    assert one == {"refused": f"Error: {sentence}"}


@pytest.mark.parametrize("number", ["nan", "inf", "hole"])
def test_features_that_are_not_finite_are_not_none_of_these_either(tmp_path, number):
    (tmp_path / "base.bnn").write_bytes(random_network(4).to_bytes())
    (tmp_path / "photo.raw").write_bytes(bytes(12))
    features = burn_engine.load(tmp_path / "base.bnn").num_features
    files = {name: tmp_path / f"{name}.bnn" for name in ("base", "out")}
    usual = request(*drawn((8, 9), features), image=[tmp_path / "photo.raw", 2, 2], **files)
    sound, refused = ask(
        {**usual, "own": [1] * features}, {**usual, "own": [number, *[1] * (features - 1)]}
    )
    assert isinstance(sound["none"], bool)
    assert refused == {"refused": "Error: the features are not finite"}


def test_too_many_classes_are_refused_at_once():
    """Not when the memory ends: the confusions alone would take 80 GB."""
    names = [str(i) for i in range(100_000)]
    labels = list(range(100_000))
    found = ask(
        {"features": [[i] for i in labels], "labels": labels, "classes": names},
        {
            "features": [[i] for i in range(3_200)],
            "labels": labels[:3_200],
            "classes": names[:3_200],
        },
    )
    assert [one["refused"] for one in found] == [
        f"Error: {count} images of {count} classes are too many for JavaScript: the two multiplied "
        "must not be more than 10000000; burn_engine.learn in Python takes more"
        for count in (100_000, 3_200)
    ]


@pytest.mark.parametrize("count", [12, 22, 39])
@pytest.mark.parametrize("features", [8, 32])
@pytest.mark.parametrize("rank", [1, 2])
def test_the_same_few_photographs_again_and_again_are_learned(count, features, rank):
    """What is left of 0 by rounding is not divided by its own length."""
    labels = np.arange(count) % 2
    values = np.repeat(0.1 * labels[:, None], features, axis=1)
    if rank == 2:
        values[:, 1::2] += labels[:, None] == 0
    (one,) = ask(request(values, labels, ["a", "b"]))
    assert one["accuracy"] == burn_engine.learn(values, labels, ["a", "b"]).accuracy == 1


def with_program(packed, **changes):
    """Return a packed file with other keys of its program."""
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    program = {**json.loads(header["__metadata__"]["bnn"]), **changes}
    header["__metadata__"]["bnn"] = json.dumps(program)
    text = json.dumps(header).encode()
    start = 8 + int.from_bytes(packed[:8], "little")
    return len(text).to_bytes(8, "little") + text + packed[start:]


def test_bases_that_do_not_fit_are_refused(tmp_path):
    sound = random_network(4).to_bytes()
    bases = {
        "base": sound,
        "none": b"hello",
        "cut": sound[:-10],
        "no features": with_program(sound, features=None),
        "other features": with_program(sound, features="nothing"),
        "no layers": with_program(sound, layers=[]),
        "null layers": with_program(sound, layers=None),
        "an origin that is a list": with_program(sound, origin=[1]),
    }
    for name, content in bases.items():
        (tmp_path / name).write_bytes(content)
    usual = request(*drawn((3, 3), 7), out=tmp_path / "out.bnn", image=[])
    found = ask(*({**usual, "base": tmp_path / name} for name in bases))
    features = burn_engine.load(tmp_path / "base").num_features
    first, *others = (one["refused"] for one in found)
    assert first == f"Error: it has {features} features, but the classifier was learned from 7"
    said = "Error: the base is no packed file: give the bytes of one that load takes"
    assert others == [said] * len(others)
    assert not (tmp_path / "out.bnn").exists()
