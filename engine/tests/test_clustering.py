"""Groups of similar images: k-means itself, and the command `cluster`."""

from __future__ import annotations

import json
import os
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import packed
from burn_engine import Index, cluster
from burn_engine.clustering import usual_number


def clouds(sizes, spread=0.05, features=16):
    """Vectors around orthogonal directions, and the number of each one's direction."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    vectors = np.eye(features)[labels] + random.normal(0, spread, (len(labels), features))
    order = random.permutation(len(labels))
    return vectors[order].astype(np.float32), labels[order]


def test_clouds_are_found_the_largest_first():
    vectors, labels = clouds([10, 40, 25])
    found = cluster(vectors, 3)
    expected = np.array([2, 0, 1])[labels]
    assert (found.labels == expected).all()
    centres = [vectors[found.labels == label].mean(axis=0) for label in range(3)]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    # Means of vectors whose lengths differ a little: the centres are those of units.
    for label, centre in enumerate(centres):
        cosines = units[found.labels == label] @ (centre / np.linalg.norm(centre))
        assert np.allclose(found.centrality[found.labels == label], cosines, atol=1e-2)


def test_no_image_is_nearer_to_another_centre():
    random = np.random.default_rng(1)
    vectors = random.normal(size=(300, 8)).astype(np.float32)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = cluster(vectors, 7)
    centres = np.stack([units[found.labels == label].sum(axis=0) for label in range(7)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    between = units @ centres.T
    assert (between.argmax(axis=1) == found.labels).mean() > 0.97  # 50 rounds may end it before
    sizes = np.bincount(found.labels)
    assert (np.diff(sizes) <= 0).all()
    again = cluster(vectors, 7)
    assert (again.labels == found.labels).all()


def test_fewer_groups_if_fewer_images_differ():
    same = np.ones((5, 4), np.float32)
    assert cluster(same, 3).labels.tolist() == [0] * 5
    assert cluster(same[:1]).labels.tolist() == [0]
    assert sorted(cluster(np.eye(4), 4).labels.tolist()) == [0, 1, 2, 3]


def test_the_usual_number():
    assert [usual_number(n) for n in (1, 2, 8, 50, 5_000, 10**6)] == [1, 1, 2, 5, 50, 100]


@pytest.mark.parametrize(
    ("vectors", "k", "message"),
    [
        (np.ones((3, 4)), 0, "k 0"),
        (np.ones((3, 4)), 4, "k 4"),
        (np.ones((3, 4)), True, "k True"),
        (np.ones((3, 4)), 1.5, "k 1.5"),
        (np.ones(4), 1, "shape"),
        (np.ones((0, 4)), None, "shape"),
        (np.ones((3, 4), int), 1, "dtype"),
        (np.zeros((3, 4)), 1, "all features of an image are 0"),
        (np.full((3, 4), 1e200), 1, "the features of an image are too large or too small"),
        (np.full((3, 4), 1e-200), 1, "the features of an image are too large or too small"),
        ([[1.0, 2.0], [1.0]], 1, "the features of some images are more than those of others"),
        (np.full((3, 4), np.nan), 1, "not finite"),
    ],
)
def test_what_the_function_refuses(vectors, k, message):
    with pytest.raises(ValueError, match=message):
        cluster(vectors, k)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index of 30 images of three kinds, of which those of the first are files."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    vectors, labels = clouds([15, 10, 5])
    names = [f"photos/{label} {at}.ppm" for at, label in enumerate(labels)]
    for name in names:
        pixels = packed.random_images(len(name), shape=(16, 16, 3))
        Path(name).write_bytes(b"P6 16 16 255\n" + pixels.tobytes())
    found = Index(16)
    found.add(names, vectors)
    found.save("a.index")
    codes = Index(16, vectors="none")
    codes.add(names, vectors)
    codes.save("codes.index")
    return found


@pytest.fixture
def command(run_command):
    return partial(run_command, "cluster")


def test_groups_are_printed(index, command):
    status, out, err = command("a.index", "--k", 3)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line for line in lines if "images" in line] == ["15 images:", "10 images:", "5 images:"]
    assert len(lines) == 3 + 3 * 5
    assert all("photos/0 " in line for line in lines[1:6])
    groups = [json.loads(line) for line in command("a.index", "--k", 3, "--json")[1].splitlines()]
    assert [len(group["images"]) for group in groups] == [15, 10, 5]
    cosines = [image["centrality"] for image in groups[0]["images"]]
    assert cosines == sorted(cosines, reverse=True)
    assert {image["image"] for group in groups for image in group["images"]} == set(index.names)
    assert command("a.index")[1].count("image") == usual_number(30)
    assert command("codes.index", "--k", 3)[0] == 0


def test_an_index_elsewhere_and_of_a_tar_file(index, command, monkeypatch):
    moved = Index(16)
    moved.add(["b.tar:x.ppm", "photos/y.ppm"], np.eye(16, dtype=np.float32)[:2])
    moved.save("tar.index")
    with tarfile.open("b.tar", "w") as tar:
        tar.add("photos", "x.ppm")
    monkeypatch.chdir("photos")
    out = command("../tar.index", "--k", 1)[1]
    assert out.count(str(Path().resolve().parent / "b.tar:x.ppm")) == 1
    assert "  0.707  y.ppm\n" in out


def test_a_page_shows_the_most_central(index, command):
    pytest.importorskip("PIL")
    assert command("a.index", "--k", 3, "--html", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert page.count("<section>") == 3
    assert page.count("data:image/jpeg;base64,") == 30
    image = next(Path("photos").iterdir())
    image.unlink()
    os.mkfifo(image)  # which would wait for ever to be opened
    assert command("a.index", "--k", 3, "--html", "page.html")[0] == 0
    assert Path("page.html").read_text().count("data:image/jpeg;base64,") == 29


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothere.index"], "nothere.index: No such file"),
        (["photos"], "photos: a folder: `burn-engine index"),
        (["empty.index"], "empty.index: it has no images"),
        (["a.index", "--k", "31"], "--k 31: a.index has only 30 images"),
        (["a.index", "--k", "0"], "--k"),
        (["a.index", "--html", "no/a.html"], "there is no folder no"),
        (["a.index", "--html", "a.index"], "a.index is not the name of a page"),
        (["a.index", "--html", "photos/0 0.ppm"], "is not the name of a page"),
        (["bad.index"], "bad.index: "),
    ],
)
def test_what_the_command_refuses(index, command, arguments, message):
    Index(4).save("empty.index")
    Path("bad.index").write_bytes(b"x" * 100)
    if "photos/0 0.ppm" in arguments:
        arguments = [*arguments[:-1], index.names[0]]
    before = {path: path.read_bytes() for path in Path().rglob("*.*")}
    status, _, err = command(*arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
