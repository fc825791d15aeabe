"""burn analyze cost and negatives: from a comparison's folder, and from runs of their own."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.results import Result, result_lines
from reproduction.analyses.cost.figure import cost, negatives, negatives_figure, two_errors
from reproduction.analyses.negatives import NegativesOptions


def method_row(method: str, seconds: float, linear: float, **more: object) -> dict[str, object]:
    row = {"method": method, "seed": 0, "seconds": seconds, "teacher_seconds": None, "knn": 30.0}
    return {**row, "linear": linear, **more}


def test_the_front_is_who_has_nobody_faster_and_more_accurate():
    rows = [
        method_row("burn", 100.0, 50.0, teacher_seconds=900.0),
        method_row("burn", 300.0, 52.0, teacher_seconds=900.0),
        method_row("byol", 200.0, 40.0),
        method_row("slow", 400.0, 60.0),
    ]
    text = cost(rows).text
    assert "Of 3 methods none is more accurate than slow, 60.0 % after 400 s." in text
    assert "faster and more accurate than burn (51.0 %, 100 s) and slow (60.0 %, 400 s)" in text
    assert "burn takes less time and is more accurate than byol." in text
    assert "would make burn number 3 of 3 in time" in text  # 100 + 900 s


def test_equal_methods_are_not_said_to_be_ahead():
    text = cost([method_row("burn", 3.4, 10.0), method_row("byol", 3.4, 10.0)]).text
    assert "more accurate than burn (10.0 %, 3 s) and byol (10.0 %, 3 s)" in text
    assert "takes less time" not in text
    equal = [negatives_row("binary", 64, 30.0), negatives_row("binary", 4, 30.0)]
    text = negatives([*equal, negatives_row("binary", 64, 30.0, "weak")]).text
    assert "as much with a 16th of the negatives" in text
    assert "comes to 30.0 %, as with InfoMin's" in text


def negatives_row(network: str, count: int, linear: float, augmentation: str = "InfoMin's"):
    return {
        "network": network, "augmentation": augmentation, "negatives": count, "seed": 0,
        "knn": 20.0, "linear": linear, "seconds": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(("few", "word"), [(40.0, "10.0 points more"), (25.0, "5.0 points less")])
def test_what_fewer_negatives_did_is_said_of_each_network(few: float, word: str):
    rows = [
        negatives_row("binary", 64, 30.0), negatives_row("binary", 4, few),
        negatives_row("float", 64, 50.0), negatives_row("float", 4, 50.0),
        negatives_row("binary", 64, 33.0, "weak"),
    ]  # fmt: skip
    text = negatives(rows).text
    assert f"{word} with a 16th of the negatives" in text
    assert "The float network's linear accuracy is 50.0 % with 64, 50.0 % with 4" in text
    assert "comes to 33.0 %, 3.0 points more than with InfoMin's" in text


def test_error_bars_are_two_standard_errors_of_images_or_seeds():
    rows = [negatives_row("binary", 64, 30.0), negatives_row("binary", 64, 40.0)]
    of_seeds = 2 * (50 / 2) ** 0.5  # variance of 30 and 40 is 50
    assert two_errors(rows) == pytest.approx(of_seeds)
    assert two_errors(rows[:1]) == 0  # a row of burn 0.1.0, without `images`
    for row in rows:
        row["images"] = 25
    assert two_errors(rows[:1]) == pytest.approx(2 * (30 * 70 / 25) ** 0.5)
    assert two_errors(rows) == pytest.approx(2 * (35 * 65 / 25) ** 0.5)  # the larger one
    for row in rows:
        row["images"] = 10_000
    assert two_errors(rows) == pytest.approx(of_seeds)


def test_both_networks_are_drawn_on_one_scale_with_error_bars():
    rows = [
        negatives_row(network, count, value) | {"images": 5000}
        for network, value in (("binary", 30.0), ("float", 50.0))
        for count in (64, 4)
    ]
    figure = negatives_figure(rows)
    binary, real = figure.axes
    assert binary.get_ylim() == real.get_ylim()
    for panel in (binary, real):
        low, high = panel.get_ylim()
        assert low < 30 - two_errors(rows[:1])
        assert high > 50 + two_errors(rows[2:3])
        assert len(panel.containers) == 2
    (note,) = (text.get_text() for text in figure.texts)
    assert "two standard errors of the mean, from 5,000 test images; one seed" in note


def test_a_binary_network_is_not_taken_for_a_float_one():
    options = NegativesOptions("digits", "digits", 1_000, float_recipe="burn_small")
    with pytest.raises(UserError, match="--float-recipe burn_small trains a binary network"):
        options.check()


def test_cost_reads_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    compared = tmp_path / "compared"
    (compared / "teacher").mkdir(parents=True)
    (compared / "teacher/stage1.json").write_text('{"monitor": {"seconds": 70.0}}')
    shared = {"teacher": str(compared / "teacher"), "labelled_teacher": None}
    (compared / "comparison.json").write_text(json.dumps(shared))
    for method, value in (("burn", 40.0), ("byol", 30.0)):
        settings = {"compute": "float32", "lr": 1, "epochs": 1, "augment": "none", "pretraining": {
            "recipe": "r", "seconds": 10.0, "epochs": 1.0, "images_seen": 9,
        }}  # fmt: skip
        results = [
            Result(protocol, metric, value, method, "c", "t", "v", 0, 1.0, settings)
            for protocol, metric in (("knn", "top1"), ("linear", "top1"), ("linear", "top5"))
        ]
        (compared / f"{method}-seed0").mkdir()
        (compared / f"{method}-seed0/compared.jsonl").write_text(result_lines(results, compared))
    out = tmp_path / "cost"
    assert main(["analyze", "cost", "--compared", str(compared), "--out", str(out)]) == 0
    rows = list(csv.DictReader((out / "cost.csv").read_text().splitlines()))
    assert [(r["method"], r["teacher_seconds"]) for r in rows] == [("burn", "70"), ("byol", "")]
    assert "burn's took 70 s" in capsys.readouterr().out
    assert "<svg" in (out / "cost.svg").read_text()
    (compared / "byol-seed0/compared.jsonl").unlink()
    assert main(["analyze", "cost", "--compared", str(compared), "--out", str(out)]) == 2
    assert "fewer than two methods" in capsys.readouterr().err


@pytest.mark.long
def test_negatives_trains_seven_networks_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def find(name: str):
        if name == "teacher_small":
            return tiny.teacher_recipe()
        return replace(tiny.baseline_recipe("infomin").with_settings(negatives=64), stages=1)

    monkeypatch.setattr("reproduction.analyses.negatives.find_recipe", find)
    out = tmp_path / "negatives"
    command = [
        "analyze", "negatives", "--data", "digits", "--test", "digits", "--budget", "64",
        "--linear.epochs", "1", "--workers", "0", "--device", "cpu", "--out", str(out),
    ]  # fmt: skip
    assert main(command) == 0
    rows = list(csv.DictReader((out / "negatives.csv").read_text().splitlines()))
    assert [(r["network"], r["negatives"]) for r in rows] == [
        ("binary", "64"), ("binary", "16"), ("binary", "4"),
        ("float", "64"), ("float", "16"), ("float", "4"), ("binary", "64"),
    ]  # fmt: skip
    assert rows[-1]["augmentation"] == "weak"
    assert {r["images"] for r in rows} == {"360"}
    written = (out / "negatives.csv").read_bytes()
    assert main(command) == 0
    assert (out / "negatives.csv").read_bytes() == written
    assert main([*command, "--budget", "128"]) == 2
    assert "was begun with --budget 64, not 128" in capsys.readouterr().err


def test_the_variants_differ_in_what_they_name():
    found = NegativesOptions("digits", "digits", 64).variants()
    counts = {name: recipe.settings.negatives for name, recipe in found.items()}
    assert counts == {
        "binary-4096": 4096, "binary-1024": 1024, "binary-256": 256,
        "float-4096": 4096, "float-1024": 1024, "float-256": 256, "binary-weak": 4096,
    }  # fmt: skip
    assert found["binary-weak"].views.rand_augment == 0
    assert found["binary-4096"].views.rand_augment == 2
    assert {len(r.precisions()) for name, r in found.items() if "float" in name} == {1}


def test_what_cannot_begin_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["analyze", "negatives", "--data=digits", "--test=digits", "--budget=-5"]
    assert main([*command, f"--out={tmp_path / 'new'}"]) == 2
    assert "--budget -5 is not in 1 … " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
