"""`burn train`, from labelled images to a packed file."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import burn_engine
import tiny
from burn.cli.commands import pretrain as pretraining
from burn.cli.commands.train import _newest, _text
from burn.cli.main import main
from burn.core.errors import Interrupted, UserError
from burn.core.results import read_results
from burn.recipes import registry
from burn.recipes.registry import find_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled digits, a teacher, and a network of recipe tiny to start from."""
    folder = tmp_path_factory.mktemp("place")
    tiny.some_digits(folder, 120)
    tiny.train(tiny.teacher_recipe(), folder / "teacher", max_steps=1)
    recipe = replace(tiny.baseline_recipe("simclr"), stages=1)
    tiny.train(recipe, folder / "start", max_steps=1)
    return folder


@pytest.fixture(autouse=True)
def recipe_tiny(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place)
    recipe = replace(find_recipe("demo"), backbone=tiny.STUDENT, stages=1, compute="float32")
    monkeypatch.setitem(registry.RECIPES, "tiny", lambda: recipe)


def train(*words: str, out: str = "digits.bnn", data: str = "digits.parquet") -> int:
    given = ["--init", "start", "--teacher", "teacher", "--recipe", "tiny", "--epochs", "1"]
    return main(["train", data, out, *given, *words])


def test_folders_become_a_packed_classifier(place: Path, capsys: pytest.CaptureFixture[str]):
    assert train("--data", "digits.parquet", "--pretrain-epochs", "1") == 0
    text = capsys.readouterr()
    commands = [line.split()[2] for line in text.err.splitlines() if line.startswith("$ ")]
    assert commands == ["pretrain", "evaluate", "finetune", "pack", "report"]
    files = [place / "digits" / name / "results.jsonl" for name in ("linear", "tuned")]
    results = [result for file in files for result in read_results(file)]
    top1 = {r.protocol: r for r in results if r.metric == "top1"}
    # Ten classes of 12 images: a tenth is one of each.
    assert {r.data["test_images"] for r in top1.values() if r.data} == {10}
    assert {r.data["train_images"] for r in top1.values() if r.data} == {110}
    packed = burn_engine.load(str(place / "digits.bnn"))
    assert len(packed.classes) == 10
    better = max(top1, key=lambda protocol: (top1[protocol].value, protocol == "linear"))
    chosen = {"finetune": "fine-tuning", "linear": "the linear classifier"}[better]
    assert f"%: {chosen} is packed" in text.out
    (errors,) = re.findall(r" has [\d.]+ ± ([\d.]+) % and .* [\d.]+ ± ([\d.]+) %: ", text.out)
    assert all(8.7 <= float(e) <= 15.8 for e in errors), "of none or all of ten, and of half"
    assert "on the 10 test images, " in text.out
    following = [line for line in text.out.splitlines() if line.startswith("next: ")]
    assert following == ["next: burn-engine run digits.bnn PHOTO"], "not those of the steps"
    assert (place / "digits" / "report.html").stat().st_size > 10_000
    (report,) = [line for line in text.err.splitlines() if line.startswith("$ burn report")]
    assert ("tuned" in report) == (better == "finetune"), "it tells of what was packed"
    # The same call does nothing again but the report; another one is refused.
    assert train("--data", "digits.parquet", "--pretrain-epochs", "1") == 0
    again = [line.split()[2] for line in capsys.readouterr().err.splitlines() if line[:2] == "$ "]
    assert again == ["pretrain", "report"]
    assert train("--data", "digits.parquet", "--pretrain-epochs", "2") == 2
    assert "pretrain_epochs was 1, is 2; give another folder by --work" in capsys.readouterr().err
    for kept in (True, False):  # an earlier burn kept no packed file in the work folder
        if not kept:
            (place / "digits" / "packed.bnn").unlink()
            assert train("--data", "digits.parquet", "--pretrain-epochs", "1") == 0
            (place / "digits" / "packed.bnn").unlink()
        own = (place / "digits.bnn").read_bytes()
        (place / "digits.bnn").write_bytes(b"another file")
        assert train("--data", "digits.parquet", "--pretrain-epochs", "1") == 2
        assert "digits.bnn was not made by the steps in digits:" in capsys.readouterr().err
        assert (place / "digits.bnn").read_bytes() == b"another file"
        (place / "digits.bnn").write_bytes(own)
    # What is trained again is packed again, and replaces the steps' own file.
    (place / "digits" / "packed.bnn").write_bytes(own)
    linear, tuned = place / "digits" / "linear", place / "digits" / "tuned"
    for damage, done in (
        (lambda: shutil.rmtree(linear), "evaluate"),
        ((linear / "classifier.safetensors").unlink, "evaluate"),
        (lambda: (linear / "classifier.safetensors").write_bytes(b"cut off"), "evaluate"),
        (lambda: (tuned / "stage1.safetensors").write_bytes(b"cut off"), "finetune"),
    ):
        damage()
        capsys.readouterr()
        assert train("--data", "digits.parquet", "--pretrain-epochs", "1") == 0
        printed = capsys.readouterr().err.splitlines()
        again = [line.split()[2] for line in printed if line[:2] == "$ "]
        assert again == ["pretrain", done, "pack", "report"]
        assert (place / "digits.bnn").read_bytes() == own


def test_what_changed_since_is_not_gone_on_with_or_deleted(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(place / "digits.parquet", place / "more.parquet")
    stopped = ("--data", "digits.parquet", "--pretrain-epochs", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "run", _stop)
        assert train(*stopped, out="more.bnn", data="more.parquet") == 143
        shutil.copy(tiny.some_digits(tmp_path, 119), place / "more.parquet")
        assert train(*stopped, out="more.bnn", data="more.parquet") == 2
    assert "another call: the labelled images changed; give" in capsys.readouterr().err
    shutil.copytree(place / "start", place / "more/pretrained")
    assert train("--overwrite", "--init", "more/pretrained", out="more.bnn") == 2
    assert "would delete the init more/pretrained: give another --work" in capsys.readouterr().err
    assert (place / "more/pretrained/stage1.safetensors").is_file()
    (place / "there.bnn").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "run", _stop)
        assert train(*stopped, out="there.bnn") == 2
        assert train(*stopped, "--overwrite", out="there.bnn") == 143
        assert train(*stopped, out="there.bnn") == 143, "as the message says, to go on"
    assert (place / "there.bnn").is_file(), "until there is another"


def _stop(*_: object) -> None:
    raise Interrupted("stopped; resume with: ", 15, "burn pretrain --resume")


def test_a_folder_for_the_file_that_is_missing_is_said_first(place: Path, capsys):
    assert train("--work", "new", out="nowhere/a.bnn") == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
    assert not (place / "new").exists()


def test_an_interrupted_step_names_the_whole_command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(pretraining, "run", _stop)
    assert train("--data", "digits.parquet", out="other.bnn") == 143
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("burn: stopped in burn pretrain; to go on: burn train digits.parquet")
    assert line.count("burn train") == 1
    assert "--overwrite" not in line
    assert json.loads((place / "other" / "train.json").read_text())["data"] == "digits.parquet"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--init", "phots"), "--init phots is no pretrained network and no run: did you mean"),
        (("--init", "photos", "--data", "digits"), "--init photos is another network than the"),
        (("--init", "lite0"), "--init lite0 is no pretrained network and no run"),
        (("--teacher", "nothere"), "no checkpoint at nothere"),
        (("--data", "nothere"), "no data at nothere"),
        (("--test", "nothere"), "no data at nothere"),
        (("--recipe", "simclr_small"), "--recipe simclr_small has no teacher: give another"),
        (("--epochs", "0"), "epochs 0"),
        (("--pretrain-epochs", "0"), "pretrain-epochs 0"),
        (("--pretrain-epochs", "3"), "--pretrain-epochs is of pretraining: give its images by"),
        (("--work", "digits.parquet"), "digits.parquet, the folder of the steps, is a file"),
        (("--work", "start"), "start, the folder of the steps, holds other files"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    words: tuple[str, ...], message: str, place: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(place.rglob("*"))
    assert train(*words, out="never.bnn") == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") == 0
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("digits.parquet", "never", "never does not end in .bnn"),
        ("nothere", "never.bnn", "no data at nothere"),
        ("one", "never.bnn", "one:rest needs a class of at least 3 images"),
    ],
)
def test_labelled_images_and_the_packed_file_are_checked(
    data: str, out: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
):
    for name, colour in (("a", "red"), ("b", "blue")):
        (place / "one" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), colour).save(place / "one" / name / "x.png")
    before = sorted(place.rglob("*"))
    assert train(out=out, data=data) == 2
    assert message in capsys.readouterr().err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("value", "data", "shown"),
    [
        (50.0, {"test_images": 10}, "50.0 ± 15.8 %"),
        (100.0, {"test_images": 10}, "100.0 ± 8.7 %"),
        *((50.0, data, "50.0 %") for data in (None, {}, {"test_images": 0}, {"test_images": "1"})),
        *((value, {"test_images": 10}, None) for value in (None, -50.0, 200.0, float("nan"), True)),
    ],
)
def test_the_accuracy_of_a_step_whatever_its_results_say(
    value: Any, data: Any, shown: str | None, tmp_path: Path
):
    row = {
        "protocol": "linear", "metric": "top1", "value": value, "model": "", "checkpoint": "",
        "train": "", "test": "", "seed": 0, "seconds": 1.0, "settings": {}, "data": data,
    }  # fmt: skip
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    if shown is None:
        with pytest.raises(UserError, match=r"results\.jsonl"):
            _newest(tmp_path, "linear")
    else:
        assert _text(_newest(tmp_path, "linear")) == shown
    with pytest.raises(UserError, match="has no accuracy of finetune: remove"):
        _newest(tmp_path, "finetune")
