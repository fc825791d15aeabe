"""`burn embed`: the values of its files, what it refuses, and what it names as lost."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import burn_engine
from burn.checkpoints.classifier import load_classifier
from burn.checkpoints.native import save_checkpoint
from burn.cli.main import main
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from burn.embedding.network import PackedNetwork
from burn.embedding.settings import EmbedConfig
from burn.evaluation.context import open_model
from burn.evaluation.features import extract_features
from networks import randomize, shallow_reactnet

COUNT, SIDE = 70, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with and without a classifier, both packed; photos, in a folder and in tars."""
    folder = tmp_path_factory.mktemp("embed")
    backbone = randomize(shallow_reactnet()).eval()
    heads = {"classifier.weight": torch.randn(5, 256), "classifier.bias": torch.randn(5)}
    meta = {
        "backbone": asdict(backbone.config), "precision": "binary", "stage": 2, "steps": 7,
        "recipe": {"name": "burn_small"}, "views": asdict(ViewConfig(size=SIDE)),
    }  # fmt: skip
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(folder / "plain.safetensors", weights, meta)
    save_checkpoint(folder / "scored.safetensors", weights | heads, meta)
    pack(folder / "plain.safetensors", folder / "plain.bnn")
    pack(folder / "scored.safetensors", folder / "scored.bnn", folder / "scored.safetensors")
    random = np.random.default_rng(0)
    for number in range(COUNT):
        path = folder / "photos" / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sizes differ, so that the preparation of images matters.
        pixels = random.integers(0, 255, (40 + number % 3, 37, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    write_shards(folder / "shards", sorted((folder / "photos").glob("*/*.png")))
    return folder


def write_shards(folder: Path, photos: Sequence[Path], size: int = 30) -> None:
    """Tars of `size` photos each, with the folder's name as class."""
    folder.mkdir()
    for start in range(0, len(photos), size):
        with tarfile.open(folder / f"{start // size:03}.tar", "w") as tar:
            for photo in photos[start : start + size]:
                label = str("ab".index(photo.parent.name)).encode()
                for suffix, content in ((".png", photo.read_bytes()), (".cls", label)):
                    member = tarfile.TarInfo(photo.stem + suffix)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def embed(folder: Path, model: str, data: str, out: str | Path, *more: str) -> int:
    """Run the command on names in `folder`."""
    prefix, _, name = data.rpartition(":") if data.startswith("stream:") else ("", "", data)
    spec = f"{prefix}:{folder / name}" if prefix else str(folder / name)
    words = ["embed", str(folder / model), "--data", spec, "--out", str(folder / out)]
    return main([*words, "--device", "cpu", "--threads", "2", *more])


def columns(*files: Path) -> dict[str, Any]:
    """The columns of files, one after the other, as arrays."""
    read = [pq.read_table(file, page_checksum_verification=True).to_pydict() for file in files]
    return {name: np.array([value for one in read for value in one[name]]) for name in read[0]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_pretrained_networks_name_stands_for_its_packed_file(folder: Path, tmp_path: Path):
    for name, more in (("packed", ()), ("checkpoint", ("--compute", "float32"))):
        words = ["embed", "photos", "--data", str(folder / "photos"), "--out", str(tmp_path / name)]
        assert main([*words, "--threads", "2", *more]) == 0
    found = columns(*sorted((tmp_path / "packed").glob("*.parquet")))["features"]
    images = [str(path) for path in sorted((folder / "photos").glob("*/*.png"))]
    network = burn_engine.load("photos")
    np.testing.assert_array_equal(found[:5], [network.features(path) for path in images[:5]])
    settings = json.loads((tmp_path / "checkpoint" / "embed.json").read_text())
    assert settings["settings"]["compute"] == "float32"


def test_a_run_of_a_pretrained_networks_name_comes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert EmbedConfig("photos").packed  # a folder of photographs
    shutil.copy(folder / "scored.safetensors", "photos/stage1.safetensors")
    assert not EmbedConfig("photos").packed


def fails(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> None:
    assert status == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("burn: ")
    assert all(word in error for word in words), error


@pytest.mark.parametrize("data", ["photos", "stream:shards"])
def test_a_checkpoints_features_are_those_of_evaluations(data: str, folder: Path, tmp_path: Path):
    more = ("--part-size", "30", "--batch-size", "16", "--compute", "float32")
    assert embed(folder, "scored.safetensors", data, tmp_path, *more) == 0
    files = sorted(tmp_path.glob("*.parquet"))
    first = "part-00000" if data == "photos" else "000"
    assert files[0].stem == first
    assert len(files) == 3
    found = columns(*files)
    model = open_model(str(folder / "scored.safetensors"), fresh=False, seed=0)
    source = open_source(str(folder / "photos"))
    # Bits may depend on the images that are in a batch together, so the batches are the same.
    expected = torch.cat(
        [
            extract_features(
                model.backbone,
                source,
                model.views,
                batch_size=16,
                indices=range(at, min(at + 30, COUNT)),
            ).values
            for at in range(0, COUNT, 30)
        ]
    )
    np.testing.assert_array_equal(found["features"].astype(np.float32), expected.numpy())
    np.testing.assert_array_equal(found["label"], source.labels)
    weight, bias = held_classifier(folder)
    scores = expected.numpy() @ weight.T + bias
    # Sums of 256 products, in another order.
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-4, atol=1e-4)
    manifest = json.loads((tmp_path / "embed.json").read_text())
    assert manifest["model"]["classes"] == ["0", "1", "2", "3", "4"]
    if data == "photos":
        assert found["index"].tolist() == list(range(COUNT))
        assert found["name"][1] == str(folder / "photos/a/002.png") == source.describe(1)
    else:
        assert found["index"].tolist() == [*range(30), *range(30), *range(10)]
        shards = open_source(f"stream:{folder / 'shards'}")
        assert found["name"].tolist() == [shards.describe(i) for i in range(COUNT)]


def held_classifier(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    held = load_file(folder / "scored.safetensors")
    return held["classifier.weight"], held["classifier.bias"]


@pytest.mark.parametrize("data", ["photos", "stream:shards"])
def test_a_packed_files_features_are_the_engines(data: str, folder: Path, tmp_path: Path):
    assert embed(folder, "scored.bnn", data, tmp_path) == 0
    found = columns(*sorted(tmp_path.glob("*.parquet")))
    model = burn_engine.load(folder / "scored.bnn")
    photos = sorted((folder / "photos").glob("*/*.png"))
    expected = np.stack([model.features(photo) for photo in photos])
    np.testing.assert_array_equal(found["features"].astype(np.float32), expected)
    # The engine adds the 256 products in another order.
    np.testing.assert_allclose(
        found["scores"], np.stack([model(photo) for photo in photos]), rtol=1e-4, atol=1e-4
    )


def test_a_tenth_and_the_rest_of_labelled_photographs(folder: Path, tmp_path: Path):
    parts = {}
    for data in ("photos", "photos:tenth", "photos:rest"):
        assert embed(folder, "scored.bnn", data, tmp_path / data) == 0
        found = columns(*sorted((tmp_path / data).glob("*.parquet")))
        parts[data] = dict(zip(found["name"], map(bytes, found["features"]), strict=True))
    assert len(parts["photos:tenth"]) == 2 * round(0.1 * COUNT / 2)  # of two classes
    assert parts["photos:tenth"].keys().isdisjoint(parts["photos:rest"])
    assert parts["photos"] == parts["photos:tenth"] | parts["photos:rest"]


@pytest.mark.parametrize("name", ["a:b", "s3:x", "c:\\d", "ä %20?#"])
def test_a_folder_is_not_taken_for_an_address(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    photos = [photo.read_bytes() for photo in (folder / "photos" / "a").iterdir()]
    pq.write_table(pa.table({"image": photos}), tmp_path / "it")
    shutil.move(tmp_path / "it", tmp_path / name / "it.parquet")
    model = str(folder / "scored.bnn")
    for kind in ("", "stream:"):
        data, out = f"{kind}{name}/it.parquet", f"{name} {kind}"
        assert main(["embed", model, "--data", data, "--out", out]) == 0
    assert len(list(tmp_path.glob("*/*.parquet"))) == 3


def test_a_packed_file_does_not_import_torch(folder: Path, tmp_path: Path):
    script = (
        "import sys; from burn.cli.main import main\n"
        "for number, data in enumerate(sys.argv[3:]):\n"
        "    out = f'{sys.argv[2]}/{number}'\n"
        "    status = main(['embed', sys.argv[1], '--data', data, '--out', out, '--json'])\n"
        "    print('ended', status, 'torch' in sys.modules)\n"
    )
    data = [folder / "photos", f"stream:{folder / 'shards'}", "digits"]
    done = subprocess.run(
        [sys.executable, "-c", script, folder / "plain.bnn", tmp_path, *data],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ends == ["ended 0 False"] * 3, done.stderr


def test_scores_have_the_names_of_the_classes(folder: Path, tmp_path: Path):
    linear = tmp_path / "linear"
    data = str(folder / "photos")
    words = ["evaluate", "linear", str(folder / "plain.safetensors"), "--train", data]
    more = ["--test", data, "--augment", "none", "--epochs", "1", "--out", str(linear)]
    assert main([*words, *more, "--workers", "0"]) == 0
    classifier = load_classifier(linear / "classifier.safetensors")
    assert classifier is not None
    assert embed(folder, "plain.safetensors", "photos", tmp_path / "f", "--head", str(linear)) == 0
    file = pq.ParquetFile(tmp_path / "f" / "part-00000.parquet")
    about = json.loads(file.metadata.metadata[b"burn"])
    assert about["classes"] == about["label_names"] == ["a", "b"]
    found = columns(tmp_path / "f" / "part-00000.parquet")
    scores = found["features"] @ classifier.weight.numpy().T + classifier.bias.numpy()
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-4, atol=1e-4)  # rounding
    # The same network without a classifier has no scores, and is another model.
    assert embed(folder, "plain.safetensors", "photos", tmp_path / "f") == 2
    assert embed(folder, "plain.safetensors", "photos", tmp_path / "g") == 0
    assert "scores" not in columns(tmp_path / "g" / "part-00000.parquet")


def test_a_teacher_and_float16(folder: Path, teacher: Path, tmp_path: Path):
    for number in ("float32", "float16"):
        out = tmp_path / number
        words = ["embed", str(teacher), "--data", "digits:test", "--out", str(out)]
        assert main([*words, "--dtype", number, "--device", "cpu"]) == 0
    whole, half = (columns(tmp_path / n / "part-00000.parquet") for n in ("float32", "float16"))
    table = pq.read_table(tmp_path / "float16" / "part-00000.parquet")
    assert str(table.schema.field("features").type.value_type) == "halffloat"
    np.testing.assert_array_equal(whole["features"].astype(np.float16), half["features"])
    assert whole["name"][3] == "digits:test[3]"


def test_numbers_that_float16_cannot_hold(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    original = PackedNetwork.prepare

    def large(self: PackedNetwork, image: np.ndarray) -> Any:
        features, scores = original(self, image)
        return np.full_like(features, 1e5), scores

    monkeypatch.setattr(PackedNetwork, "prepare", large)
    status = embed(folder, "plain.bnn", "photos", tmp_path, "--dtype", "float16")
    fails(capsys, status, "photos/a/000.png", "--dtype float32")
    assert list(contents(tmp_path)) == ["embed.json"]


def test_unreadable_images_are_named_and_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    photos = sorted((folder / "photos").glob("*/*.png"))
    (tmp_path / "data").mkdir()
    for number, photo in enumerate(photos[:40]):
        content = photo.read_bytes()
        copy = tmp_path / "data" / f"{number:02}-{photo.name}"
        copy.write_bytes(content[:60] if number == 25 else content)
    more = ("--part-size", "20")
    assert embed(tmp_path, str(folder / "plain.bnn"), "data", "out", *more, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["unreadable"], told["files"]) == (39, 1, 2)
    bad = tmp_path / "out" / "part-00001.unreadable.jsonl"
    (line,) = map(json.loads, bad.read_text().splitlines())
    name = sorted((tmp_path / "data").iterdir())[25]
    assert line["index"] == 25
    assert str(name) in line["why"]
    found = columns(tmp_path / "out" / "part-00001.parquet")
    assert found["index"].tolist() == [i for i in range(20, 40) if i != 25]
    assert not (tmp_path / "out" / "part-00000.unreadable.jsonl").exists()
    # The same values as with the whole image.
    assert embed(folder, "plain.bnn", "photos", tmp_path / "whole") == 0
    whole = columns(tmp_path / "whole" / "part-00000.parquet")
    all_found = {Path(n).name: f for n, f in zip(whole["name"], whole["features"], strict=True)}
    for photo, features in zip(found["name"], found["features"], strict=True):
        np.testing.assert_array_equal(features, all_found[Path(photo).name[3:]])
    # More than are allowed: this file is not written, the others are.
    status = embed(tmp_path, str(folder / "plain.bnn"), "data", "o2", *more, "--max-bad", "4%")
    fails(capsys, status, "1 of 2 files", "part-00001", "--max-bad", str(name))
    kept = [file for file in contents(tmp_path / "o2") if file.startswith("part")]
    assert kept == ["part-00000.parquet", "part-00001.unreadable.jsonl"]


def test_a_torn_shard_loses_only_itself(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shards = tmp_path / "shards"
    write_shards(shards, sorted((folder / "photos").glob("*/*.png")))
    whole = (shards / "001.tar").read_bytes()
    (shards / "001.tar").write_bytes(whole[: len(whole) // 2])
    status = embed(tmp_path, str(folder / "plain.bnn"), "stream:shards", "out")
    fails(capsys, status, "1 of 3 files", str(shards / "001.tar"), "cut off", "same command")
    kept = contents(tmp_path / "out")
    assert list(kept) == ["000.parquet", "002.parquet", "embed.json"]
    (shards / "001.tar").write_bytes(whole)
    assert embed(tmp_path, str(folder / "plain.bnn"), "stream:shards", "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["new"] == 1
    now = contents(tmp_path / "out")
    assert {name: now[name] for name in kept} == kept
    assert embed(folder, "plain.bnn", "stream:shards", tmp_path / "other") == 0
    np.testing.assert_array_equal(
        columns(tmp_path / "other" / "001.parquet")["features"],
        columns(tmp_path / "out" / "001.parquet")["features"],
    )


def test_a_shard_without_images_gives_an_empty_file(folder: Path, tmp_path: Path):
    shards = tmp_path / "shards"
    write_shards(shards, sorted((folder / "photos").glob("*/*.png"))[:5])
    tarfile.open(shards / "empty.tar", "w").close()
    assert embed(tmp_path, str(folder / "scored.bnn"), "stream:shards", "out") == 0
    empty = pq.read_table(tmp_path / "out" / "empty.parquet")
    assert len(empty) == 0
    assert empty.schema == pq.read_table(tmp_path / "out" / "000.parquet").schema


def test_shares_make_together_what_one_process_makes(folder: Path, tmp_path: Path):
    size = ("--part-size", "10")
    assert embed(folder, "plain.bnn", "photos", tmp_path / "one", *size) == 0
    for share in ("2/3", "1/3"):
        assert embed(folder, "plain.bnn", "photos", tmp_path / "all", *size, "--share", share) == 0
    assert len(list((tmp_path / "all").glob("*.parquet"))) == 5
    assert embed(folder, "plain.bnn", "photos", tmp_path / "all", *size, "--threads", "1") == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "all")


def test_another_model_data_or_setting_in_the_same_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert embed(folder, "plain.bnn", "photos", tmp_path, "--part-size", "30") == 0
    before = contents(tmp_path)
    same = ("--part-size", "30")
    fails(capsys, embed(folder, "scored.bnn", "photos", tmp_path, *same), "another model")
    fails(capsys, embed(folder, "plain.safetensors", "photos", tmp_path, *same), "another model")
    fails(capsys, embed(folder, "plain.bnn", "photos", tmp_path), "--part-size 30, not 10000")
    status = embed(folder, "plain.bnn", "photos", tmp_path, *same, "--dtype", "float16")
    fails(capsys, status, "--dtype float32, not float16")
    fails(capsys, embed(folder, "plain.bnn", "photos/a", tmp_path, *same), "as it is now")
    fails(capsys, embed(folder, "plain.bnn", "stream:shards", tmp_path), "another --out")
    assert contents(tmp_path) == before


def test_other_shards_in_the_same_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    photos = sorted((folder / "photos").glob("*/*.png"))
    write_shards(tmp_path / "a", photos[:20], 10)
    write_shards(tmp_path / "b", photos[:5], 10)
    write_shards(tmp_path / "c", photos[:30], 10)
    model = str(folder / "plain.bnn")
    assert embed(tmp_path, model, "stream:a", "out") == 0
    fails(capsys, embed(tmp_path, model, "stream:b", "out"), "001.parquet", "other data")
    # More shards of the same data are welcome, and a changed one is not.
    assert embed(tmp_path, model, "stream:c", "out") == 0
    (tmp_path / "c" / "000.tar").write_bytes((tmp_path / "b" / "000.tar").read_bytes())
    fails(capsys, embed(tmp_path, model, "stream:c", "out"), "000.parquet", "other images")


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_noticed(
    damage: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert embed(folder, "plain.bnn", "photos", tmp_path, "--part-size", "30") == 0
    whole = contents(tmp_path)
    file = tmp_path / "part-00001.parquet"
    content = {"cut": whole[file.name][:-9], "empty": b"", "other": whole["part-00000.parquet"]}
    file.write_bytes(content[damage])
    status = embed(folder, "plain.bnn", "photos", tmp_path, "--part-size", "30")
    fails(capsys, status, str(file), "remove it", "same command")
    file.unlink()
    assert embed(folder, "plain.bnn", "photos", tmp_path, "--part-size", "30") == 0
    assert contents(tmp_path) == whole


def test_what_a_kill_after_the_last_file_leaves_is_removed(folder: Path, tmp_path: Path):
    assert embed(folder, "plain.bnn", "photos", tmp_path) == 0
    whole = contents(tmp_path)
    (tmp_path / ".writing.0123456789abcdef").mkdir()
    assert embed(folder, "plain.bnn", "photos", tmp_path) == 0
    assert contents(tmp_path) == whole


def test_readers_find_a_changed_byte(folder: Path, tmp_path: Path):
    assert embed(folder, "plain.bnn", "photos", tmp_path) == 0
    file = tmp_path / "part-00000.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match=r"CRC|checksum"):
        columns(file)


def test_signals_end_with_the_way_to_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    original = PackedNetwork.finish

    def interrupted(number: int) -> Any:
        def finish(self: PackedNetwork, prepared: Any) -> Any:
            if len(list(tmp_path.glob("*.parquet"))) == 1:
                signal.raise_signal(number)
            return original(self, prepared)

        return finish

    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with monkeypatch.context() as patch:
            patch.setattr(PackedNetwork, "finish", interrupted(number))
            assert embed(folder, "plain.bnn", "photos", tmp_path, "--part-size", "30") == status
        assert "1 of 3 files are complete" in (said := capsys.readouterr().err)
        assert "the same command resumes" in said
        assert list(contents(tmp_path)) == ["embed.json", "part-00000.parquet"]


def test_a_full_disk_leaves_no_half_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    class Full(pq.ParquetWriter):
        def write_table(self, *arguments: Any, **options: Any) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("burn.embedding.files.pq.ParquetWriter", Full)
    fails(capsys, embed(folder, "plain.bnn", "photos", tmp_path), "No space", "part-00000.parquet")
    assert list(contents(tmp_path)) == ["embed.json"]


def test_errors_of_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def refused(
        *words: str, model: str = "plain.bnn", data: str = "photos", out: str = "out",
        more: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        place = str(tmp_path / out)
        fails(capsys, embed(folder, model, data, place, *more), *words)
        assert not (tmp_path / "out").exists()

    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (folder / "broken.bnn").write_bytes(b"no network")
    refused("none.bnn", "no such file", model="none.bnn")
    refused("broken.bnn", model="broken.bnn")
    refused("none.safetensors", model="none.safetensors")
    refused("no data at", data="none")
    refused("holds no image", data=str(tmp_path / "empty"))
    refused("no shards at", data=f"stream:{tmp_path / 'empty'}")
    refused("is a file: give a folder", out="file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    refused("the folder of a run", out="run")
    refused("the folder of a run", out="run/features")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused("symbolic links form a loop", out="loop")
    for data in ("photos", "photos:train", "photos:tenth"):
        refused("lies in the folder of", data=data, out=str(folder / "photos" / "features"))
    refused("lies in the folder of", data="stream:shards", out=str(folder / "shards"))
    for more, word in (
        (("--share", "4/3"), "--share 4/3"),
        (("--share", "0/3"), "--share 0/3"),
        (("--max-bad", "lots"), "--max-bad lots"),
        (("--part-size", "0"), "--part-size 0"),
        (("--head", "x"), "--head"),
        (("--compute", "bfloat16"), "--compute"),
        (("--batch-size", "16"), "takes one image at a time"),
        (("--no-such-option", "1"), "unknown option"),
    ):
        refused(word, more=more)
    for words, said in (([], "MODEL"), (["x.bnn", "--out", "o"], "--data"),
                        (["x.bnn", "--data", "d"], "--out")):  # fmt: skip
        fails(capsys, main(["embed", *words]), said)


def test_two_shards_of_one_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    photos = sorted((folder / "photos").glob("*/*.png"))[:3]
    write_shards(tmp_path / "a", photos)
    write_shards(tmp_path / "b", photos)
    status = embed(tmp_path, str(folder / "plain.bnn"), "stream:[ab]/*.tar", tmp_path / "out")
    fails(capsys, status, "000.tar", "one folder at a time")
