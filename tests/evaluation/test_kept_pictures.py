"""confusion.json and what lies in neighbours/, against loops and the images themselves."""

import io
import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

import tiny  # noqa: F401 - one thread
from burn.cli.main import main
from burn.core.paths import stored_path
from burn.core.types import Features
from burn.data.base import Source
from burn.data.builtin.digits import Digits
from burn.data.decode import UnreadableImage
from burn.data.open import open_source
from burn.evaluation.accuracy import top_k
from burn.evaluation.artifacts import neighbours as room
from burn.evaluation.artifacts.confusion import MOST_CLASSES, confusion, keep_confusion
from burn.evaluation.artifacts.neighbours import (
    LEFT,
    NEAREST,
    ROWS,
    SIDE,
    STEP,
    TOP,
    draw,
    keep_neighbours,
    nearest_rows,
    spread,
    tiles,
)
from burn.evaluation.configs import KnnConfig, LinearConfig
from burn.evaluation.context import EvaluationContext, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear

CONSOLE = Console(file=io.StringIO())
CLASSES = ("cat", "dog", "emu")


class Slopes:
    """Images of smooth colours, of which no two are alike, in memory."""

    def __init__(
        self, number: int, classes: tuple[str, ...] = CLASSES, seed: int = 0,
        broken: Collection[int] = (), size: tuple[int, int] = (20, 31),
    ) -> None:  # fmt: skip
        random = np.random.default_rng(seed)
        self.name, self.fingerprint, self.classes = f"slopes {seed}", f"{seed}", classes
        self.labels: np.ndarray | None = random.integers(0, len(classes), number)
        self.broken = set(broken)
        self.colours = random.integers(0, 256, (number, 2, 3))
        self.size = size

    def __len__(self) -> int:
        return len(self.colours)

    def read(self, index: int) -> Tensor:
        if index in self.broken:
            raise UnreadableImage(self.describe(index))
        height, width = self.size
        share = torch.linspace(0, 1, width)
        left, right = torch.from_numpy(self.colours[index]).float()
        line = left[:, None] * (1 - share) + right[:, None] * share
        return line[:, None, :].expand(3, height, width).round().to(torch.uint8)

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


def features(source: Source, seed: int, without: Collection[int] = ()) -> Features:
    """Random ones, of all images but some."""
    positions = torch.tensor([i for i in range(len(source)) if i not in set(without)])
    values = torch.randn(len(positions), 8, generator=torch.Generator().manual_seed(seed))
    assert source.labels is not None
    labels = torch.from_numpy(source.labels)[positions]
    return Features(values, labels, source.classes, positions)


def context(out: Path | None, train: Source, test: Source) -> EvaluationContext:
    nothing: Any = None  # no network is asked
    return EvaluationContext(
        "tiny", "runs/x", nothing, nothing, train, test, seed=0, workers=0, out=out
    )


def kept(out: Path) -> tuple[dict[str, Any], np.ndarray]:
    """The only set of neighbours."""
    (file,) = (out / "neighbours").glob("*.json")
    about = json.loads(file.read_text())
    assert sorted(path.name for path in file.parent.iterdir()) == [about["picture"], file.name]
    return about, np.asarray(Image.open(file.parent / about["picture"]))


def pictures(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((out / "neighbours").glob("*.jpg"))]


def tile_at(picture: np.ndarray, row: int, column: int) -> np.ndarray:
    return picture[TOP + STEP[1] * row :, LEFT + STEP[0] * column :][:SIDE, :SIDE]


def test_confusions_are_those_of_a_double_loop():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 4, (300, 7), generator=generator).float()  # many equal ones
    labels = torch.randint(0, 7, (300,), generator=generator)
    counts = confusion(scores, labels)
    expected = [[0] * 7 for _ in range(7)]
    for true in range(7):
        for image in range(300):
            if labels[image] == true:
                expected[true][int(scores[image].topk(1).indices)] += 1
    assert counts.tolist() == expected
    assert counts.sum(dim=1).tolist() == torch.bincount(labels, minlength=7).tolist()
    assert int(counts.trace()) / 300 == pytest.approx(top_k(scores, labels, 1), abs=1e-6)


def test_classes_that_no_test_image_has_are_rows_of_zeros():
    counts = confusion(torch.eye(4)[[1, 1]], torch.tensor([1, 0]))
    assert counts.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [0] * 4, [0] * 4]


def test_too_many_classes_are_noted_and_not_kept(tmp_path: Path):
    for number, is_kept in ((MOST_CLASSES, True), (MOST_CLASSES + 1, False)):
        source = Slopes(4, tuple(f"class {i}" for i in range(number)))
        evaluated = context(tmp_path / str(number), source, source)
        (tmp_path / str(number)).mkdir()
        keep_confusion(evaluated, "knn", "top1", torch.eye(number), torch.arange(number))
        assert (tmp_path / str(number) / "confusion.json").exists() == is_kept
        assert len(evaluated.notes) == (not is_kept)


def test_protocols_keep_the_newest(teacher: Path, tmp_path: Path):
    model = open_model(str(teacher), fresh=False, seed=0)
    data = Digits("test")
    evaluated = EvaluationContext(
        model.name, str(teacher), model.backbone, model.views, data, data, 0, 0, tmp_path
    )

    def check(protocol: str, top1: Any) -> None:
        found = json.loads((tmp_path / "confusion.json").read_text())
        assert (found["protocol"], found["metric"]) == (protocol, top1.metric)
        about = evaluated.about()
        checkpoint = stored_path(about.pop("checkpoint"), tmp_path)
        assert {key: found[key] for key in about} == about
        assert found["checkpoint"] == checkpoint
        assert found["classes"] == list("0123456789")
        counts = np.array(found["counts"])
        assert data.labels is not None
        assert counts.sum(axis=1).tolist() == np.bincount(data.labels).tolist()
        assert 100 * counts.trace() / counts.sum() == pytest.approx(top1.value, abs=1e-4)

    (knn,) = run_knn(evaluated, KnnConfig(), CONSOLE)
    check("knn", knn)
    about, picture = kept(tmp_path)
    assert picture.shape == (TOP + ROWS * STEP[1], LEFT + (1 + NEAREST) * STEP[0], 3)
    for row in about["rows"]:  # the bank are the test images themselves
        assert row["neighbours"][0]["position"] == row["position"]
        assert row["neighbours"][0]["cosine"] == 1
    settings = LinearConfig(epochs=2, lr=0.1, augment="none")
    check("linear", run_linear(evaluated, settings, CONSOLE)[0])
    check("linear", run_linear(evaluated, replace(settings, probe="mlp"), CONSOLE)[0])
    before = sorted(tmp_path.iterdir())
    run_knn(replace(evaluated, out=None), KnnConfig(), CONSOLE)
    assert sorted(tmp_path.iterdir()) == before


def test_neighbours_are_those_of_a_sort_and_tiles_are_where_they_belong(tmp_path: Path):
    train, test = Slopes(200, seed=1), Slopes(50, seed=2)
    bank, queries = features(train, 1), features(test, 2)
    keep_neighbours(context(tmp_path, train, test), bank, queries)
    about, picture = kept(tmp_path)
    rows = about.pop("rows")
    assert about == {
        "model": "tiny", "checkpoint": "runs/x", "train": "slopes 1", "test": "slopes 2",
        "classes": list(CLASSES), "side": SIDE, "columns": 6, "left": LEFT, "top": TOP,
        "step": list(STEP), "picture": about["picture"],
    }  # fmt: skip
    assert len(rows) == ROWS
    labels = [row["label"] for row in rows]
    assert labels == sorted(labels)
    x, y = (f.values.double().numpy() for f in (bank, queries))
    cosines = (y / np.linalg.norm(y, axis=1)[:, None]) @ (x / np.linalg.norm(x, axis=1)[:, None]).T
    assert train.labels is not None
    assert test.labels is not None
    for number, row in enumerate(rows):
        query = row["position"]
        assert row["label"] == CLASSES[test.labels[query]]
        expected = np.argsort(-cosines[query])[:5].tolist()
        assert [n["position"] for n in row["neighbours"]] == expected
        for near in row["neighbours"]:
            assert near["label"] == CLASSES[train.labels[near["position"]]]
            # four digits are kept
            assert near["cosine"] == pytest.approx(cosines[query, near["position"]], abs=1e-4)
        places = [(test, query), *((train, position) for position in expected)]
        for column, (source, position) in enumerate(places):
            tile = tile_at(picture, number, column).astype(float)
            image = source.read(position).permute(1, 2, 0).numpy()[:, 5:25]  # 20 of 31 columns
            enlarged = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BOX))
            # JPEG at 88 is off by 1 to 3 on such slopes, and a box's steps by half a source pixel
            assert np.abs(tile - enlarged).mean() < 5


def drawn(*labels: str, cosine: float | None = 0.5) -> np.ndarray:
    """A row of grey tiles, a test image of class cat and neighbours of these classes."""
    tile = np.full((SIDE, SIDE, 3), 128, np.uint8)
    near = [{"position": 7, "label": label, "cosine": cosine} for label in labels]
    row = {"position": 3, "label": "cat", "neighbours": near}
    return np.asarray(draw([row], {3: tile}, {7: tile})).astype(int)


def below(picture: np.ndarray, column: int) -> np.ndarray:
    """What stands below a tile."""
    left = LEFT + column * STEP[0]
    return picture[TOP + SIDE + 5 :, left - 4 : left + STEP[0] - 4]


def test_the_test_image_has_a_frame_and_tiles_have_gaps():
    picture = drawn("cat", "dog")
    line = picture[TOP + SIDE // 2, :, 0]
    tiles_of = [range(LEFT + c * STEP[0], LEFT + c * STEP[0] + SIDE) for c in range(3)]
    for x, value in enumerate(line):
        inside = any(x in tile for tile in tiles_of)
        framed = min(abs(x - (LEFT - 0.5)), abs(x - (LEFT + SIDE - 0.5))) < 4
        assert value == (128 if inside else 32 if framed else 236), x


def test_classes_stand_below_and_another_class_has_another_colour():
    def coloured(part: np.ndarray) -> bool:
        return bool((part[..., 0] - part[..., 2] > 80).any())

    picture = drawn("cat", "dog", "dog")
    assert [coloured(below(picture, column)) for column in range(4)] == [False, False, True, True]
    for column in range(4):
        assert (below(picture, column) < 128).any(), column
    assert not np.array_equal(below(picture, 1), below(drawn("cat", cosine=None), 1))
    assert np.array_equal(below(picture, 2), below(picture, 3))
    # however long a name is, it stays in its column and its cosine is shown
    long = drawn("cat", "d" * 60, "cat")
    assert np.array_equal(below(long, 3), below(drawn("cat", "dog", "cat"), 3))
    assert np.array_equal(below(drawn("d" * 60), 1), below(drawn("d" * 70), 1))
    assert not np.array_equal(below(drawn("d" * 60, cosine=0.1), 1), below(drawn("d" * 60), 1))


@pytest.mark.parametrize("name", ["", "$x^2$", "a\nb\x1b[2J\u202e", "猫", "\udcff"])
def test_any_name_of_a_class_can_be_drawn(name: str):
    assert drawn(name).shape == (TOP + STEP[1], LEFT + 6 * STEP[0], 3)


def test_other_networks_are_shown_on_the_same_images(tmp_path: Path):
    train, test = Slopes(200, seed=1), Slopes(50, seed=2)
    contents, shown = [], []
    for seed in (2, 2, 3):
        keep_neighbours(context(tmp_path, train, test), features(train, 1), features(test, seed))
        contents.extend(pictures(tmp_path))
        shown.append([row["position"] for row in kept(tmp_path)[0]["rows"]])
    assert contents[0] == contents[1] != contents[2]
    assert shown[0] == shown[1] == shown[2]
    # nor does an image that cannot be read change which others of its class come first
    lost = shown[0][3]
    fewer = spread(features(test, 2, without={lost}), 50)
    assert test.labels is not None
    for label in range(3):
        mine, left = (
            [position for position in order if test.labels[position] == label]
            for order in (spread(features(test, 2), 50), fewer)
        )
        assert left == [position for position in mine if position != lost]


@pytest.mark.parametrize("number", [2, 3, 30])
def test_classes_take_turns(number: int):
    classes = tuple(str(i) for i in range(number))
    test = Slopes(900, classes)
    order = spread(features(test, 0), 900)
    assert sorted(order) == list(range(900))
    assert test.labels is not None
    counts = np.bincount(test.labels[order[:ROWS]], minlength=number)
    assert counts.max() - counts.min() <= 1
    assert order[:ROWS] != sorted(order[:ROWS])


def test_images_that_cannot_be_read_any_more_are_passed_over(tmp_path: Path):
    train, test = Slopes(60, seed=1), Slopes(40, seed=2)
    bank, queries = features(train, 1), features(test, 2)
    keep_neighbours(context(tmp_path, train, test), bank, queries)
    rows = kept(tmp_path)[0]["rows"]
    test.broken = {rows[0]["position"], rows[5]["position"]}
    train.broken = {row["neighbours"][1]["position"] for row in rows}
    keep_neighbours(context(tmp_path, train, test), bank, queries)
    about, picture = kept(tmp_path)
    assert len(about["rows"]) == ROWS
    assert test.broken.isdisjoint(row["position"] for row in about["rows"])
    before = {row["position"]: row["neighbours"] for row in rows}
    for number, row in enumerate(about["rows"]):
        found = row["neighbours"]
        assert len(found) == NEAREST
        assert train.broken.isdisjoint(near["position"] for near in found)
        left = [n for n in before.get(row["position"], []) if n["position"] not in train.broken]
        assert found[: len(left)] == left
        last = tiles(train, [found[-1]["position"]])[found[-1]["position"]].astype(float)
        assert np.abs(tile_at(picture, number, NEAREST) - last).mean() < 3  # as above


def test_where_all_have_vanished_it_is_said(tmp_path: Path):
    test = Slopes(40, broken=range(40))
    evaluated = context(tmp_path, test, test)
    keep_neighbours(evaluated, features(test, 1), features(test, 2))
    assert not list(tmp_path.iterdir())
    assert evaluated.notes == [
        "neighbours are not kept: the images of slopes 0 cannot be read any more"
    ]


def test_few_images_make_few_rows_and_leave_paper(tmp_path: Path):
    train, test = Slopes(3, seed=1), Slopes(4, seed=2)
    keep_neighbours(context(tmp_path, train, test), features(train, 1), features(test, 2))
    about, picture = kept(tmp_path)
    assert [len(row["neighbours"]) for row in about["rows"]] == [3] * 4
    assert about["columns"] == 6
    assert picture.shape == (TOP + 4 * STEP[1], LEFT + 6 * STEP[0], 3)
    assert picture[TOP:, LEFT + 4 * STEP[0] :].min() >= 230  # paper of 236 to 241, as JPEG


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 3), (700, 900)])
def test_images_of_any_shape_make_tiles(size: tuple[int, int]):
    assert tiles(Slopes(2, size=size), [1])[1].shape == (SIDE, SIDE, 3)


def test_a_bank_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch):
    bank, queries = torch.randn(90, 8), torch.randn(4, 8)
    cosines, rows = nearest_rows(bank, queries, 100)
    assert rows.shape == (4, 90)
    monkeypatch.setattr(room, "_BANK_ROWS", 7)
    again, same = nearest_rows(bank, queries, 100)
    assert torch.equal(rows, same)
    torch.testing.assert_close(cosines, again, rtol=0, atol=1e-6)  # a few roundings of 1


def test_shards_show_the_same_as_the_file_in_memory(tmp_path: Path):
    images = Slopes(80)
    encoded = []
    for index in range(80):
        file = io.BytesIO()
        Image.fromarray(images.read(index).permute(1, 2, 0).numpy()).save(file, "PNG")
        encoded.append(file.getvalue())
    encoded[11] = b"no image"
    path = tmp_path / "images.parquet"
    pq.write_table(pa.table({"image": encoded, "label": images.labels}), path, row_group_size=30)
    contents = []
    for spec in (str(path), f"stream:{path}"):
        source = open_source(spec)
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        bank = features(source, 1)  # with those of the image that has become unreadable
        keep_neighbours(context(out, source, source), bank, features(source, 2))
        (text,) = (out / "neighbours").glob("*.json")
        contents.extend(pictures(out))
        assert '"position": 11,' not in text.read_text()
        shutil.rmtree(out / "neighbours")  # of one network, but of images by another name
    assert contents[0] == contents[1]


def test_names_come_from_whichever_source_has_them():
    numbers, named = Slopes(9, tuple("012")), Slopes(9)
    assert context(None, numbers, named).class_names == CLASSES
    assert context(None, named, numbers).class_names == CLASSES
    assert context(None, numbers, numbers).class_names == tuple("012")
    fewer, more = Slopes(9, ("cat", "dog")), Slopes(9, (*CLASSES, "fox"))
    assert context(None, numbers, fewer).class_names == ("cat", "dog", "2")
    assert context(None, numbers, more).class_names == CLASSES


def test_every_network_keeps_its_neighbours_and_confusions_are_the_newest(
    teacher: Path, tmp_path: Path, capsys
):
    given = [str(teacher), "--train", "digits", "--test", "digits", "--out", str(tmp_path)]
    found = []
    for option in (["--random-init"], [], ["--random-init"]):
        assert main(["evaluate", "knn", *given, *option]) == 0
        found.append(pictures(tmp_path))
        model = json.loads((tmp_path / "confusion.json").read_text())["model"]
        assert model == ("random resnet10t, float" if option else "tiny, stage 1")
    assert [len(each) for each in found] == [1, 2, 2]
    assert found[1] == found[2]
    names = [path.stem[:-7] for path in sorted((tmp_path / "neighbours").glob("*.jpg"))]
    assert names == ["random-resnet10t-float", "tiny-stage-1"]
    for file in (tmp_path / "neighbours").glob("*.json"):
        about = json.loads(file.read_text())
        assert file.stem.startswith(about["model"].split()[0].removesuffix(","))
    assert capsys.readouterr().err == ""
