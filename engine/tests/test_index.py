"""The index: adding, removing, searching, and files that are whole, torn or a stranger's."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from burn_engine import Index, ModelError
from burn_engine.safetensors import read_tensors, write_tensors
from burn_engine.vectors import signs


@pytest.fixture
def features():
    """Features of 300 images, float32 (300, 20)."""
    return np.random.default_rng(0).normal(size=(300, 20)).astype(np.float32)


def names(count):
    return [f"{i}.jpg" for i in range(count)]


def filled(features, **settings):
    index = Index(features.shape[1], **settings)
    index.add(names(len(features)), features)
    return index


@pytest.mark.parametrize("kept", ["float16", "float32", "none"])
def test_search_is_the_order_of_cosines_or_of_distances(features, kept):
    index = filled(features, vectors=kept)
    query = features[7] + 0.1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ (query / np.linalg.norm(query))
    distances = ((features >= 0) != (query >= 0)).sum(axis=1)
    order = np.argsort(distances if kept == "none" else -cosines, kind="stable")[:9]
    found = index.search(query, k=9)
    assert [match.name for match in found] == [f"{i}.jpg" for i in order]
    assert [match.distance for match in found] == distances[order].tolist()
    if kept == "none":
        assert {match.similarity for match in found} == {None}
    else:
        tolerance = 1e-6 if kept == "float32" else 1e-3  # float16 has 11 bits
        similarities = np.array([match.similarity for match in found], np.float32)
        assert np.allclose(similarities, cosines[order], atol=tolerance)


def test_many_more_images_than_are_compared_again():
    """The nearest 500 codes are ordered by cosines: an image finds itself among 5,000."""
    random = np.random.default_rng(1)
    many = random.normal(size=(5000, 64)).astype(np.float32)
    index = filled(many)
    positions, distances, similarities = index.nearest(many[::1000], 3)
    assert similarities is not None
    assert positions[:, 0].tolist() == list(range(0, 5000, 1000))
    assert (distances[:, 0] == 0).all()
    assert np.allclose(similarities[:, 0], 1, atol=1e-3)
    assert (np.diff(similarities, axis=1) <= 0).all()


def test_an_image_is_replaced_under_its_name(features):
    index = filled(features[:5])
    index.add(["2.jpg", "new.jpg"], features[5:7], [[1, 2], [3, 4]])
    assert len(index) == 6
    assert index.search(features[5], k=1)[0].name == "2.jpg"
    assert index.search(features[6], k=1)[0].name == "new.jpg"
    assert index.stamps()["2.jpg"] == (1, 2)
    assert index.stamps()["0.jpg"] == (0, 0)


def test_removing_all_or_nothing(features):
    index = filled(features[:5])
    with pytest.raises(KeyError, match="no image 'x'"):
        index.remove(["1.jpg", "x"])
    assert len(index) == 5
    index.remove(["1.jpg", "3.jpg", "1.jpg"])
    assert index.names == ("0.jpg", "2.jpg", "4.jpg")
    assert index.search(features[4], k=1)[0].name == "4.jpg"
    index.remove(index.names)
    assert index.search(features[0]) == []


def test_random_changes_against_a_dictionary(features):
    """A slow twin: what the index holds after many changes is what a dictionary holds."""
    random = np.random.default_rng(3)
    index, twin = Index(20, vectors="float32"), {}
    for _ in range(60):
        chosen = random.choice(40, random.integers(1, 9), replace=False)
        if random.random() < 0.3:
            there = [f"{i}" for i in chosen if f"{i}" in twin]
            index.remove(there)
            for name in there:
                del twin[name]
        else:
            rows = random.integers(0, 300, len(chosen))
            index.add([f"{i}" for i in chosen], features[rows])
            twin |= {f"{i}": features[row] for i, row in zip(chosen, rows, strict=True)}
    assert set(index.names) == set(twin)
    stored = index.vectors_of(range(len(index)))
    for name, vector in zip(index.names, stored, strict=True):
        assert np.allclose(vector, twin[name] / np.linalg.norm(twin[name]), atol=1e-6)


@pytest.mark.parametrize("kept", ["float16", "float32", "none"])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_a_file_holds_the_index(tmp_path, features, kept, count):
    index = Index(20, vectors=kept, network="ab")
    index.add(names(count), features[:count], np.arange(2 * count).reshape(count, 2))
    index.save(tmp_path / "a.index")
    index.save(tmp_path / "a.index")  # replaces it
    again = Index.load(tmp_path / "a.index")
    assert again.names == index.names
    assert (again.network, again.vectors, again.num_features) == ("ab", kept, 20)
    assert again.stamps() == index.stamps()
    assert (again.codes == index.codes).all()
    assert again.search(features[0]) == index.search(features[0])
    again.add(["more"], features[:1])  # what was read can be changed
    assert len(again) == count + 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.index"]


def test_names_of_any_bytes(tmp_path, features):
    odd = [os.fsdecode(b"caf\xe9.jpg"), "a\nb", "日本.jpg", " ", "x" * 5000]
    index = Index(20)
    index.add(odd, features[:5])
    index.save(tmp_path / "a.index")
    assert list(Index.load(tmp_path / "a.index").names) == odd


def test_codes_alone_are_taken_by_an_index_of_codes(features):
    index = Index(20, vectors="none")
    codes = np.packbits(features >= 0, axis=1, bitorder="little")
    index.add(names(300), codes)
    assert (index.codes == codes).all()
    assert index.search(codes[3], k=1)[0].name == "3.jpg"
    assert filled(features).search(codes[3], k=1)[0][:2] == ("3.jpg", 0)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda index, x: index.add(["a"], x[:2]), "features have shape"),
        (lambda index, x: index.add(["a"], x[0]), "features have shape"),
        (lambda index, x: index.add(["a"], x[:1].astype(int)), "features have shape"),
        (lambda index, x: index.add(["a"], x[:1] * np.nan), "not finite"),
        (lambda index, x: index.add(["a"], x[:1] * 0), "all features of an image are 0"),
        (lambda index, x: index.add(["a", "a"], x[:2]), "a name is given twice"),
        (lambda index, x: index.add("ab", x[:2]), "names is one string"),
        (lambda index, x: index.add([""], x[:1]), "'' is not a name"),
        (lambda index, x: index.add([3], x[:1]), "3 is not a name"),
        (lambda index, x: index.add(["a"], x[:1], [1, 2]), "stamps have shape"),
        (lambda index, x: index.add(["a"], np.zeros((1, 3), np.uint8)), "this index keeps vectors"),
        (lambda index, x: index.search(x[:2]), "expected one image"),
        (lambda index, x: index.search(x[0, :3]), "features have shape"),
        (lambda index, x: index.search(x[0], k=0), "k 0 is not an integer"),
        (lambda index, x: index.search(x[0], k=1.5), "k 1.5 is not an integer"),
        (lambda index, x: index.search(x[0], k=True), "k True is not an integer"),
        (lambda index, x: Index(0), "num_features 0"),
        (lambda index, x: Index(4, vectors="float8"), "vectors 'float8'"),
        (lambda index, x: Index(4, vectors="none").vectors_of([0]), "keeps no vectors"),
        (
            lambda index, x: Index(4, vectors="none").add(["a"], np.full((1, 1), 16, np.uint8)),
            "bits after the last feature",
        ),
    ],
)
def test_what_is_refused(features, act, message):
    index = filled(features[:3])
    with pytest.raises(ValueError, match=message):
        act(index, features)
    assert index.names == ("0.jpg", "1.jpg", "2.jpg")


def stored(tmp_path, features):
    path = tmp_path / "a.index"
    filled(features[:9], network="n").save(path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"about": {"format": 2}}, "newer burn-engine"),
        ({"about": {"vectors": "float8"}}, "damaged"),
        ({"about": {"num_features": 21}}, "tensor vectors has another"),
        ({"about": {"num_features": 2**40}}, "damaged"),
        ({"about": {"num_features": "20"}}, "damaged"),
        ({"about": {"network": 3}}, "damaged"),
        ({"about": {"more": 3}}, "damaged"),
        ({"tensors": {"codes": np.zeros((8, 3), np.uint8)}}, "tensor codes has another"),
        ({"tensors": {"codes": np.full((9, 3), 255, np.uint8)}}, "bits after the last feature"),
        ({"tensors": {"vectors": np.full((9, 20), np.inf, np.float16)}}, "not finite"),
        ({"tensors": {"vectors": np.zeros((9, 20), np.float16)}}, "length 0"),
        ({"about": {"format": True}}, "newer burn-engine"),
        ({"tensors": {"stamps": np.zeros((9, 1), np.int64)}}, "tensor stamps has another"),
        ({"tensors": {"ends": np.zeros(9, np.int64)}}, "ends of its names"),
        ({"tensors": {"ends": np.arange(9, dtype=np.int64)}}, "ends of its names"),
        ({"tensors": {"ends": np.full((9,), 1 << 40, np.int64)}}, "ends of its names"),
        ({"tensors": {"names": np.full(45, 65, np.uint8)}}, "a name is in it twice"),
        ({"tensors": {"more": np.zeros(1, np.uint8)}}, "its tensors are not"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, features, change, message):
    path = stored(tmp_path, features)
    tensors, about = read_tensors(path, "burn_index", "an index")
    tensors, about = tensors | change.get("tensors", {}), about | change.get("about", {})
    write_tensors(path, tensors, {"burn_index": json.dumps(about)})
    with pytest.raises(ModelError, match=message) as error:
        Index.load(path)
    assert str(path) in str(error.value)


def test_a_torn_file_is_refused_wherever_it_is_torn(tmp_path, features):
    path = stored(tmp_path, features)
    whole = path.read_bytes()
    for length in [*range(0, 400, 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            Index.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ModelError, match="torn"):
        Index.load(path)


def test_every_changed_byte_of_the_header_is_an_error_or_the_same_kind_of_index(tmp_path, features):
    path = stored(tmp_path, features)
    whole = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(whole[:8], "little")
    for at in range(0, end, 3):
        damaged = whole.copy()
        damaged[at] ^= 1 << at % 7
        path.write_bytes(damaged)
        try:
            index = Index.load(path)
        except ModelError:
            continue
        assert len(index) == 9


@pytest.mark.parametrize("write", [b"", b"\0" * 9, b"\x89PNG\r\n", b"\xff" * 100])
def test_other_files_are_no_index(tmp_path, write):
    path = tmp_path / "x"
    path.write_bytes(write)
    with pytest.raises(ModelError, match="not an index"):
        Index.load(path)


def test_a_folder_is_no_index(tmp_path):
    with pytest.raises(ModelError, match="a folder: `burn-engine index"):
        Index.load(tmp_path)
    with pytest.raises(ValueError, match="cannot be written"):
        Index(3).save(tmp_path)
    with pytest.raises(ValueError, match="cannot be written"):
        Index(3).save(tmp_path / "nothere" / "a.index")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["add", "replace", "remove"])
def test_an_interruption_at_any_line_leaves_a_whole_index(tmp_path, features, change):
    """As Ctrl-C does, an exception is raised between two lines, at each of them in turn."""
    before = {f"{i}.jpg" for i in range(9)}
    after = {"add": before | {"new"}, "replace": before | {"new"}, "remove": before - {"3.jpg"}}
    for last in range(10_000):
        index, lines = filled(features[:9]), 0

        def stop(frame, event, argument, last=last):
            nonlocal lines
            if not frame.f_code.co_filename.endswith("index.py"):
                return None
            if event == "line":
                lines += 1
                if lines > last:
                    raise KeyboardInterrupt
            return stop

        sys.settrace(stop)
        try:
            if change == "remove":
                index.remove(["3.jpg"])
            else:
                names = ["3.jpg", "new"] if change == "replace" else ["new"]
                index.add(names, features[20 : 20 + len(names)])
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
        finally:
            sys.settrace(None)
        index.save(tmp_path / "a.index")
        again = Index.load(tmp_path / "a.index")
        assert set(again.names) in (before, before - {"3.jpg"}, after[change])
        for at, name in enumerate(again.names):
            if name != "new" and not (change == "replace" and name == "3.jpg"):
                number = int(name.removesuffix(".jpg"))
                assert (again.codes[at] == signs(features[number : number + 1])[0]).all()
        index.add(["more"], features[30:31])  # it can still be changed
        assert index.search(features[30], k=1)[0].name == "more"
        if not interrupted:
            break
    assert last > 5
    assert set(again.names) == after[change]


@pytest.mark.parametrize("name", ["\ud800", "\udcc3\udca9"])  # no bytes, and the bytes of "é"
def test_a_name_that_no_file_has(features, name):
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        Index(20).add([name], features[:1])


@pytest.mark.parametrize("network", ["x" * 65, "\ud800", None, 3])
def test_a_network_that_is_no_fingerprint(network):
    with pytest.raises(ValueError, match="is not a fingerprint"):
        Index(20, network=network)


def test_shapes_that_no_array_has(tmp_path):
    for shape in ([0, 2**48 - 1, 2**48 - 1], [2**48 - 1, 2**48 - 1, 0]):
        codes = {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
        header = {"__metadata__": {"burn_index": "{}"}, "codes": codes}
        text = json.dumps(header).encode()
        (tmp_path / "a.index").write_bytes(len(text).to_bytes(8, "little") + text)
        with pytest.raises(ModelError, match=r"a\.index: "):
            Index.load(tmp_path / "a.index")


def test_names_follow_what_is_added_and_removed():
    """They are listed once, not in every search, where a million took longer than the search."""
    index = Index(3, vectors="none")
    for names in (["a", "b"], ["c"], ["a"]):  # the last is replaced
        index.add(names, np.ones((len(names), 3), np.float32))
        assert index.names is index.names
    assert index.names == ("b", "c", "a")
    index.remove("b")
    assert index.names == ("c", "a")
    assert [match.name for match in index.search(np.ones(3, np.float32))] == ["c", "a"]
