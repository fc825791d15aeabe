"""Learning in the JavaScript package: the numbers of burn_engine.learn, and files it can run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import burn_engine
from burn_engine.classifier_file import with_classifier
from burn_engine.format import ImageSize, parse_program
from burn_engine.images import prepare
from burn_engine.maps import averaged, equal_lengths, is_better, scaled, widened
from burn_engine.model import load_bytes
from burn_engine.packed_parts import take_apart
from burn_engine.pretrained import read_model
from nodejs import answers, needs_node
from packed import random_images, random_network

ENGINE = Path(__file__).parents[1]
PACKAGE = ENGINE / "js"

pytestmark = needs_node


def ask(*requests):
    """Return what the package learns, as js/learn.mjs prints it."""
    return answers("learn.mjs", PACKAGE, requests)


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
    expected, one = burn_engine.learn(*CASES[name]), found[name]
    assert "refused" not in one
    assert one["maps"] is None
    check_equal(one, expected)


def check_equal(one, expected):
    """Check that what JavaScript learned is what Python learned, up to rounding."""
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


@pytest.mark.parametrize(
    "count", [22, *(pytest.param(n, marks=pytest.mark.long) for n in (12, 39))]
)
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


# --- Several maps. ---

BLOCKS = tuple(
    block
    for width, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1))
    for block in ((width // stride, 3, stride, True), (width, 1, 1, True))
)
GATED = ({"out": 16}, {"out": 32, "kernel": 1}, {"out": 32, "stride": 2})
SIDES = {"out": 16, "side": (16,)}

# Networks whose features can be followed by the means of more maps, and others.
WIDE = {
    "five blocks": {"blocks": BLOCKS},
    "a classifier": {"blocks": BLOCKS, "num_classes": 4},
    "a scale": {"blocks": BLOCKS, "scaled": True, "num_classes": 2},
    "no scale": {"blocks": BLOCKS, "scaled": False},
    "two blocks": {"blocks": BLOCKS[:4]},
    "experts": {"blocks": ({"out": 16, "experts": 3}, *GATED[1:])},
    "float shortcuts": {"blocks": ({**SIDES, "float_sides": True}, *GATED), "scaled": False},
}
NARROW = {
    "a linear layer": {"blocks": BLOCKS, "linears": (5,)},
    "several maps": {"blocks": BLOCKS, "also": (1,)},
    "a single block": {"blocks": BLOCKS[:2]},
    "shortcuts of integers": {"blocks": (SIDES, *GATED)},
}


def pieces(data):
    """Return a packed file's program and tensors, and the place of each."""
    parts = take_apart(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    del header["__metadata__"]
    return parts.program, parts.tensors, header


@pytest.fixture
def wide(tmp_path):
    """A function that has JavaScript widen a file, and returns the file and what it says."""
    photo = tmp_path / "photo.raw"
    photo.write_bytes(random_images(5, (16, 20, 3)).tobytes())

    def run(base):
        (tmp_path / "base.bnn").write_bytes(base)
        (tmp_path / "wide.bnn").unlink(missing_ok=True)
        files = {"widen": tmp_path / "base.bnn", "out": tmp_path / "wide.bnn"}
        (said,) = ask({**files, "image": [photo, 20, 16]})
        file = tmp_path / "wide.bnn"
        return (file.read_bytes() if file.exists() else None), said

    return run


@pytest.mark.parametrize("name", [*WIDE, "photos"])
def test_a_file_is_widened_as_python_does(wide, name):
    base = read_model("photos") if name == "photos" else random_network(4, **WIDE[name]).to_bytes()
    data, said = wide(base)
    expected = widened(base)
    assert pieces(data) == pieces(expected)
    program = parse_program(expected)
    assert said["widths"] == [program.layers[at].channels for at in averaged(program)]
    photo = random_images(5, (16, 20, 3))
    model = load_bytes(expected)
    assert isinstance(model.image, ImageSize)
    features = model.features(prepare(photo, model.image))
    # The same sums of floats in another order, as in test_js.py.
    np.testing.assert_allclose(said["features"], features, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NARROW)
def test_what_python_does_not_widen_javascript_does_not(wide, name):
    base = random_network(4, **NARROW[name]).to_bytes()
    with pytest.raises(ValueError, match=r"has a single block|features are|are of integers"):
        widened(base)
    assert wide(base) == (None, None)


def test_torn_files_are_not_widened(wide):
    sound = random_network(4, blocks=BLOCKS).to_bytes()
    renamed = []
    for at in (3, 4):  # before a map that is averaged, and what it is of
        layers = take_apart(sound).program["layers"]
        layers[at]["name"] = "nothing"
        renamed.append(with_program(sound, layers=layers))
    for torn in (b"", b"hello", sound[:-10], *renamed):
        said = "Error: the base is no packed file: give the bytes of one that load takes"
        assert wide(torn) == (None, {"refused": said})


def mapped(counts, widths, *, better, seed=0):
    """Return images whose classes the last map tells apart, or the others do; and the widths."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    middles = random.normal(size=(len(counts), sum(widths)))
    middles[:, : widths[0]] *= 0.1 if better else 1
    values = middles[labels] + random.normal(size=(len(labels), sum(widths))) * 1.5 + 1
    units = np.repeat(random.uniform(0.1, 30, size=len(widths)), widths)
    order = random.permutation(len(labels))
    names = [f"k {c}" for c in range(len(counts))]
    return (values * units).astype(np.float32)[order], labels[order], names, list(widths)


MAPPED = {
    "several, few images": mapped((12, 14, 11), (16, 8, 8, 16), better=True),
    "several, more images than features": mapped((40, 30), (8, 12), better=True),
    "the last": mapped((20, 20), (24, 8, 8), better=False),
    "nine of a class": mapped((9, 30), (8, 12), better=True),
    "a single image": mapped((1, 12), (8, 12), better=True),
    "a map of zeros": (
        mapped((15, 15), (8, 4, 4), better=True)[0] * np.repeat([1, 1, 0], [8, 4, 4]).astype("f4"),
        *mapped((15, 15), (8, 4, 4), better=True)[1:],
    ),
    "one map": mapped((15, 15), (8,), better=True),
}


def maps_twin(values, labels, names, widths):
    """Return what `burn-engine learn` learns, and the factors of several maps."""
    last = burn_engine.learn(values[:, : widths[0]], labels, names)
    accuracies = {"last": last.accuracy}
    if len(widths) == 1 or last.counts.min() < 10:
        return last, None, accuracies
    factors = equal_lengths(values, widths)
    several = burn_engine.learn(values * factors, labels, names)
    accuracies["several"] = several.accuracy
    return (several, factors, accuracies) if is_better(several, last) else (last, None, accuracies)


@pytest.fixture(scope="module")
def found_of_maps():
    answers = ask(
        *(
            request(values, labels, names, widths=widths, classify=values[:3].tolist())
            for values, labels, names, widths in MAPPED.values()
        )
    )
    return dict(zip(MAPPED, answers, strict=True))


@pytest.mark.parametrize("name", MAPPED)
def test_several_maps_are_chosen_as_python_does(found_of_maps, name):
    values, labels, names, widths = MAPPED[name]
    expected, factors, accuracies = maps_twin(values, labels, names, widths)
    one = found_of_maps[name]
    assert "refused" not in one
    assert (factors is not None) == (name.startswith("several") or "zeros" in name)
    assert one["maps"]["widths"] == widths
    assert one["maps"]["accuracies"] == pytest.approx(accuracies, rel=1e-9)
    check_equal(one, expected)
    taken = values[:, : widths[0]]
    if factors is None:
        assert one["maps"]["factors"] is None
    else:
        np.testing.assert_allclose(one["maps"]["factors"], factors, rtol=1e-6)
        taken = values * factors
    scores = taken[:3].astype(np.float64) @ expected.weight.T + expected.bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    for row, classified in zip(powers, one["classified"], strict=True):
        by_name = {each["name"]: each["percent"] for each in classified["classes"]}
        shares = 100 * row / row.sum()
        np.testing.assert_allclose([by_name[name] for name in names], shares, atol=0.5)


@pytest.mark.parametrize("name", MAPPED)
def test_it_says_how_far_it_is_with_both(found_of_maps, name):
    progress = found_of_maps[name]["progress"]
    assert progress == sorted(progress)
    if name != "a single image":
        assert progress[-1] == pytest.approx(1)


@pytest.mark.parametrize("better", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_file_of_several_maps_is_pythons_and_runs_everywhere(tmp_path, wide, better):
    base = random_network(4, blocks=BLOCKS, num_classes=3).to_bytes()
    _, said = wide(base)
    values, labels, names, widths = mapped((20, 15), said["widths"], better=better)
    out, image = tmp_path / "mine.bnn", [tmp_path / "photo.raw", 20, 16]
    files = {"base": tmp_path / "base.bnn", "out": out, "image": image}
    usual = request(values, labels, names, widths=widths, **files)
    (one,) = ask(usual)
    expected, factors, _ = maps_twin(values, labels, names, widths)
    assert (factors is not None) == better
    whole = base if factors is None else scaled(widened(base), factors)
    program, tensors, places = pieces(with_classifier(whole, expected))
    found, own_tensors, own_places = pieces(out.read_bytes())
    assert own_places == places
    assert found["format"] == (5 if better else 1)
    learned = [each["origin"]["learned"] for each in (found, program)]
    assert learned[0].get("layers") == (
        ["block9", "block3", "block5", "block7"] if better else None
    )
    # Rounded to six digits, on both sides of which two roundings may lie.
    below = [each["none"].pop("below") for each in learned]
    assert below[0] == pytest.approx(below[1], abs=2e-6)
    towards = [each["none"].pop("towards") for each in learned]
    assert len(towards[0]) == len(towards[1])
    assert found == program
    for name, (dtype, _, data) in tensors.items():
        if dtype == "F32":
            own, other = (np.frombuffer(each, "<f4") for each in (own_tensors[name].data, data))
            # As in `check_equal`.
            np.testing.assert_allclose(own, other, atol=2e-4 * abs(other).max())
        else:
            assert own_tensors[name].data == data
    mine = burn_engine.load(out)
    assert isinstance(mine.image, ImageSize)
    photo = prepare(random_images(5, (16, 20, 3)), mine.image)
    np.testing.assert_allclose(one["own"], mine.features(photo), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(one["output"], mine(photo), rtol=2e-4, atol=2e-4)
    refused = burn_engine.none_of_these(mine, mine.features(photo)[None])
    assert refused is not None
    assert one["none"] == bool(refused[0])
    if better:
        # The wide file itself is as good a base.
        ask({**usual, "base": tmp_path / "wide.bnn", "out": tmp_path / "again.bnn"})
        assert pieces((tmp_path / "again.bnn").read_bytes()) == pieces(out.read_bytes())


def test_bases_without_the_maps_are_refused(tmp_path, wide):
    _, said = wide(random_network(4, blocks=BLOCKS).to_bytes())
    usual = request(*mapped((20, 15), said["widths"], better=True)[:3], widths=said["widths"])
    others = {
        "linear.bnn": random_network(4, linears=(192,)).to_bytes(),
        "other.bnn": random_network(4, blocks=BLOCKS[:4]).to_bytes(),
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    files = [{"base": tmp_path / name, "out": tmp_path / "mine.bnn"} for name in others]
    found = ask(*({**usual, **each, "image": []} for each in files))
    assert [one["refused"] for one in found] == [
        "Error: the classifier was learned from means of several maps, which it does not have",
        "Error: its maps have 48 means, but the classifier was learned from 192",
    ]
    assert not (tmp_path / "mine.bnn").exists()


@pytest.mark.parametrize(
    ("widths", "sentence"),
    [
        ([4, 1], "the images have 6 features, the maps 5"),
        ([7, -1], "widths is no list of each map's number of features, which widened gives"),
        ([3, "3"], "widths is no list of each map's number of features, which widened gives"),
        ([], "widths is no list of each map's number of features, which widened gives"),
        ("6", "widths is no list of each map's number of features, which widened gives"),
    ],
)
def test_widths_that_do_not_fit_are_refused(widths, sentence):
    (one,) = ask(request(*drawn((6, 6), 6), widths=widths))
    assert one == {"refused": f"Error: {sentence}"}


def test_features_of_several_maps_that_do_not_fit_are_refused():
    values, labels, names, widths = MAPPED["the last"]
    (one,) = ask(request(values, labels, names, widths=widths, classify=[[1] * widths[0]]))
    assert one == {"refused": "Error: 24 features; the classifier was learned from 40"}
    (one,) = ask(request(values * ([0] * 24 + [1] * 16), labels, names, widths=widths))
    assert one["refused"].startswith("Error: all images have the same features")
