"""From the command to the files, and what the paragraphs say of which numbers."""

import errno
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burn.cli.main import main
from burn.core.errors import UserError
from reproduction.analyses.ema_toy import compute as toy
from reproduction.analyses.ema_toy import figure as ema_toy_report
from reproduction.analyses.figure import _apart
from reproduction.analyses.gradients import figure as gradients_report
from reproduction.analyses.gradients.compute import SETTINGS
from reproduction.analyses.rows import Row, from_csv
from reproduction.analyses.run import ANALYSES, analyze
from reproduction.analyses.schedules import figure as schedules_report
from reproduction.analyses.schedules.compute import schedules

ABOUT = {
    "recipe": {"name": "tiny", "batch_size": 8, "optim": {"name": "adam"}},
    "data": {"name": "digits", "images": 3},
}


def gradient_rows(steps: int = 40, seeds: int = 2, **changed: Callable[[Row], Any]) -> list[Row]:
    """KL of gradient 5 and 10, λ = 0.9, no collapse; `changed` gives columns other numbers."""
    rows: list[Row] = []
    for setting in SETTINGS:
        lam = 0.0 if setting.similarity == "none" else 0.9
        for seed in range(seeds):
            for step in range(1, steps + 1):
                row: Row = {
                    "teacher_classifier": setting.classifier, "similarity": setting.similarity,
                    "seed": seed, "step": step, "lambda": lam, "loss": 1.0, "kl": 2.0,
                    "target_entropy": 0.9, "classifier_per_weight": 5.0, "extractor_kl": 10.0,
                    "extractor_fs": 0.5 if lam else None, "extractor": 10 - 9 * lam,
                }  # fmt: skip
                row |= {name: give(row) for name, give in changed.items()}
                row["classifier"] = (1 - lam) * row["classifier_per_weight"]
                rows.append(row)
    return rows


def told(rows: list[Row], optimizer: str = "adam") -> str:
    recipe = {**ABOUT["recipe"], "optim": {"name": optimizer}}
    made = gradients_report.gradients(rows, {**ABOUT, "recipe": recipe}, 0.5)
    return f"{made.text}\n{made.table}"


def test_a_weight_is_called_a_weight_and_nothing_else_is():
    text = told(gradient_rows())
    assert "5 with KL alone and 0.5 with the cosine similarity, a factor 0.1000" in text
    assert "nothing else: divided by it all four curves start at 5." in text
    assert "Adam divides a gradient by its own size" in text
    other = gradient_rows(classifier_per_weight=lambda row: 4.0 if row["lambda"] else 5.0)
    text = told(other, "sgd")
    assert "nothing else" not in text
    assert "25.0 % apart" in text
    assert "as a lower learning rate would" in text


def test_a_collapse_is_told_with_its_step_and_its_surge():
    text = told(gradient_rows())
    assert "no run collapsed: the entropy of mean p1 stayed at or above 0.90" in text
    assert "With the jointly trained teacher's classifier no run" in text
    assert "stability" not in text

    def gone(row: Row) -> bool:
        return row["teacher_classifier"] == "joint" and row["step"] >= 12

    rows = gradient_rows(
        target_entropy=lambda row: 0.1 if gone(row) else 0.9,
        kl=lambda row: 1e-6 if gone(row) else 2.0,
        classifier_per_weight=lambda row: (20.0 if row["step"] == 12 else 1e-3) if gone(row) else 5,
    )
    text = told(rows)
    assert "collapsed (entropy of mean p1 below 0.5 of log C) in 8 of 8 runs, at step 12." in text
    assert "KL was 1.0e-06 and its gradient in l 5,000 times less than at step 1" in text
    assert "rose to 4.0 times step 1's (step 12): a surge" in text
    assert "Where no target collapsed (frozen)" in text


def test_growth_and_explosion_are_told_where_they_are():
    text = told(gradient_rows())
    assert "grew" not in text.replace("grew tenfold", "")
    assert "Nothing exploded" in text
    rows = gradient_rows(
        extractor=lambda row: row["step"] ** 2.0 if row["similarity"] == "l2" else 1.0
    )
    text = told(rows)
    assert re.search(r"k's whole gradient grew, .*, with L2 joint ×\d+, L2 frozen ×\d+\.", text)
    assert "Nothing exploded" not in text
    rows = gradient_rows(
        extractor=lambda row: 20.0 if row["similarity"] == "cosine" and row["step"] == 15 else 1.0
    )
    assert "Nothing exploded" not in told(rows)
    cut = [
        {**row, "loss": math.nan if row["similarity"] == "l1" and row["step"] == 6 else 1.0}
        for row in gradient_rows(seeds=1)
        if row["similarity"] != "l1" or row["step"] < 7
    ]
    text = told(cut)
    assert "Not finite, and so ended: L1 joint at step 6, L1 frozen at step 6." in text
    assert "Nothing exploded" not in text
    assert "| joint | L1 | 0.5 | – | 5 | – |" in text


def test_of_which_classifier_and_steps_the_later_gradients_are():
    rows = gradient_rows(extractor_kl=lambda row: 10.0 if row["step"] in (1, 20, 30) else None)
    text = told(rows)
    assert "(batch 3, seeds 0 and 1; means are" in text
    assert "steps: joint, in l: 5 with KL alone and 5 with the cosine similarity (×1)" in text
    assert "; frozen, in k (steps 20 and 30 alone): 10 with KL alone" in text


@pytest.mark.parametrize("number", [math.nan, math.inf, 0.0])
@pytest.mark.parametrize("name", ["classifier_per_weight", "extractor", "extractor_kl"])
@pytest.mark.parametrize("similarities", [("none", "cosine", "l1", "l2"), ("l1",), ("cosine",)])
def test_what_is_zero_or_not_finite_at_step_1_is_in_no_ratio(number, name, similarities):
    usual = {"classifier_per_weight": 5.0, "extractor": 1.0, "extractor_kl": 10.0}[name]
    rows = gradient_rows(
        40, 2, **{name: lambda r: number if r["similarity"] in similarities else usual}
    )
    ends = name != "extractor_kl" and not math.isfinite(number)
    rows = [r for r in rows if r["step"] == 1 or r["similarity"] not in similarities or not ends]
    text = told(rows)
    assert not re.search(r"\b(nan|inf)\b|×0 ", text)
    assert "which the weight does not explain" not in text
    first = "KL alone" if "none" in similarities else "L1" if "l1" in similarities else "cosine"
    assert (f"Not finite, and so ended: {first} joint at step 1 (seed 0)" in text) == ends


def test_nothing_finite_at_all_has_a_picture(tmp_path: Path):
    rows = gradient_rows(
        1, 1, classifier_per_weight=lambda _: math.nan, extractor=lambda _: math.nan,
        extractor_kl=lambda _: math.nan, target_entropy=lambda _: math.nan,
    )  # fmt: skip
    made = gradients_report.gradients(rows, ABOUT, 0.5)
    assert made.text.startswith("tiny, step 1 of stage 1 on digits (batch 3, seed 0; ")
    made.draw(tmp_path / "a.png")


@pytest.mark.parametrize("steps", [2, 12])
def test_short_runs_and_zeros_have_a_text_and_a_picture(steps: int, tmp_path: Path):
    rows = gradient_rows(steps, seeds=1, extractor_kl=lambda row: 0.0)
    made = gradients_report.gradients(rows, ABOUT, 0.5)
    assert "inf" not in made.text
    assert "nan" not in made.text
    assert "last" not in made.text
    assert "exploded" not in made.table
    made.draw(tmp_path / "a.svg")
    made.draw(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def ema_rows(real: Callable[[int], float], binary: Callable[[int], float]) -> list[Row]:
    rows = []
    for step in range(1, 101):
        row: Row = {"reading": "literal", "title": "literally", "step": step}
        row |= {"differing": 0.2, "many": 1000}
        for name, of in (("float", real), ("binary", binary)):
            row |= {f"{name}{end}": of(step) for end in ("", "_many", "_std", "_std_many")}
        rows.append(row)
    return rows


def test_the_toys_statements_are_evaluated_by_the_numbers():
    text = ema_toy_report.ema_toy(ema_rows(lambda _: 1.0, lambda step: 5.0 + step)).text
    assert "of this all three hold here" in text
    assert "different units" not in text
    assert "All three hold in 1 of 1 readings: “literally”." in text
    text = ema_toy_report.ema_toy(ema_rows(lambda _: 1.0, lambda step: 5 - step / 50)).text
    assert "of this “larger” and “of higher variance” hold here" in text
    text = ema_toy_report.ema_toy(ema_rows(lambda _: 9.0, lambda step: 5 - step / 50)).text
    assert "of this nothing holds here" in text
    assert "different units" in text
    assert "0 of 1 readings." in text


def test_schedules_are_told_with_their_restart():
    text = schedules_report.schedules(schedules()).text
    assert "λ is 0.9 at the start, 0.8 half way, 0.7 at the end, 0.8 on average" in text
    assert "λ is 0.7 throughout" in text
    assert "KL's weight grows 3 times" in text
    assert "off up to 50 % of the stage" in text
    assert "Stage 2 begins anew: cosine, Eq. 3 from 0.7 to 0.9; Heaviside from 0 to 1." in text
    level = [{**row, "cosine": 0.5, "heaviside": 0.5} for row in schedules()]
    assert "Stage 2 goes on where stage 1 ended" in schedules_report.schedules(level).text
    assert "Heaviside's function" not in schedules_report.schedules(level).text


def test_labels_lie_apart_inside_and_in_order():
    assert _apart([1, 40, 80], 10, 100) == [1, 40, 80]
    assert _apart([42, 38, 90], 10, 100) == [45, 35, 90]
    assert _apart([100, 100], 10, 100) == [90, 100]
    assert _apart([0, 0, 12], 10, 100) == [0, 10, 20]
    assert _apart([], 10, 100) == []


@pytest.mark.parametrize("what", ["ema-toy", "schedules"])
def test_the_command_leaves_three_files_that_agree(
    what: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(toy, "MANY", 20)
    assert main(["analyze", what, "--out", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    text = (tmp_path / "new" / f"{what}.md").read_text()
    assert shown.splitlines()[0] in text
    svg = (tmp_path / "new" / f"{what}.svg").read_bytes()
    assert b"<dc:date>" not in svg
    rows = from_csv((tmp_path / "new" / f"{what}.csv").read_text().splitlines())
    made = {"ema-toy": ema_toy_report.ema_toy, "schedules": schedules_report.schedules}[what](rows)
    assert made.text in text
    assert main(["analyze", what, "--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / f"{what}.svg").read_bytes() == svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradient"], "unknown analysis 'gradient': give gradients"),
        (["gradients", "--out", "x"], "--data"),
        (["schedules"], "give --out"),
        (["ema-toy", "--out", "x", "--seed", "-1"], "--seed -1 is not in"),
        (
            ["gradients", "--data", "digits", "--teacher", "t", "--out", "x", "--steps", "1"],
            "steps",
        ),
        (
            ["gradients", "--data", "digits", "--teacher", "t", "--out", "x", "--seeds", "a"],
            "seeds",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_what_is_not_of_the_analysis_is_not_replaced(tmp_path: Path, capsys):
    command = ["analyze", "schedules", "--out", str(tmp_path)]
    for name, text in (("schedules.md", "mine"), ("schedules.csv", "when,where\n")):
        file = tmp_path / name
        file.write_text(text)
        assert main(command) == 2
        assert f"{file} was not written by burn analyze schedules" in capsys.readouterr().err
        assert file.read_text() == text
        file.unlink()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_must_be_one_to_write_in(tmp_path: Path, capsys, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "deeper" / "still"):
        assert main(["analyze", "schedules", "--out", str(out)]) == 2
        assert f"--out {out}: {file} is not a folder" in capsys.readouterr().err

    def read_only(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/tmpabc")

    monkeypatch.setattr("reproduction.analyses.folder.tempfile.TemporaryFile", read_only)
    assert main(["analyze", "schedules", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"--out {tmp_path}: nothing can be written in {tmp_path} (Read-only file system)" in said


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("reproduction.analyses.folder.write_beside", full)
    with pytest.raises(UserError, match=r"schedules\.csv cannot be written \(No space left"):
        analyze("schedules", ANALYSES["schedules"].options(), tmp_path, Console())


def test_help_names_every_analysis(capsys):
    assert main(["analyze", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.index("examples:") < text.index("options:")
    assert all(f"  {name} " in text for name in ANALYSES)
