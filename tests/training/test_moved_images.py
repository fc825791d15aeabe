"""Runs whose images have moved, or were exchanged."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from burn.cli.main import main
from burn.core.errors import Interrupted, UserError
from burn.training.records.summary import StageSummary

RECIPE = replace(tiny.teacher_recipe(), batch_size=8, epochs=1)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on `here.parquet` that was interrupted at its third step."""
    Path(tiny.some_digits(tmp_path, 40)).rename(tmp_path / "here.parquet")
    with monkeypatch.context() as patched:
        tiny.stop_at(patched, 3)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", tmp_path / "here.parquet")
    return tmp_path / "run"


def train(out: Path, data: Path, *, resume: bool = False) -> Sequence[StageSummary]:
    return tiny.train(RECIPE, out, data=str(data), resume=resume)


def test_a_run_goes_on_with_images_that_have_moved(out: Path):
    data = out.parent / "here.parquet"
    moved = data.rename(out.parent / "there.parquet")
    with pytest.raises(UserError) as raised:
        train(out, data, resume=True)
    assert str(raised.value).startswith(f"no data at {data}")
    assert f"to resume the run in {out}, give --data with the place" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert main(["pretrain", "--resume", f"--out={out}", f"--data={moved}", "--workers=0"]) == 0
    about = json.loads((out / "run.json").read_text())
    assert about["plan"]["data"] == about["data"]["name"] == str(moved)
    (summary,) = train(out, moved, resume=True)  # the finished stage is recognized, too
    assert summary.steps == 4


@pytest.mark.parametrize("same_name", [True, False])
def test_other_images_are_refused_in_a_line_that_names_both(same_name: bool, out: Path):
    data = out.parent / "here.parquet"
    other = data if same_name else out.parent / "there.parquet"
    content = bytearray(data.read_bytes())
    content[300] ^= 1  # of the first image
    other.write_bytes(content)
    before = (out / "run.json").read_bytes()
    with pytest.raises(UserError) as raised:
        train(out, other, resume=True)
    said = str(raised.value)
    assert str(other) in said
    assert str(data) in said
    assert "(40 images then, 40 now)" in said
    assert (out / "run.json").read_bytes() == before


def test_a_run_of_an_earlier_burn_goes_on_in_its_place_alone(out: Path):
    about = json.loads((out / "run.json").read_text())
    about["data"]["fingerprint"] = "0123456789abcdef"
    (out / "run.json").write_text(json.dumps(about))
    data = out.parent / "here.parquet"
    copied = Path(shutil.copy(data, out.parent / "there.parquet"))
    with pytest.raises(UserError, match=r"did not look at the pixels: nothing says whether"):
        train(out, copied, resume=True)
    (summary,) = train(out, data, resume=True)
    assert summary.steps == 4
