"""burn ablate: variants that differ in one choice, each trained once, in one table."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import burn.ablate
import tiny
from burn.ablate import Ablation, ablate, groups_named, read_ablation, runs_of_variants
from burn.campaign import Execution
from burn.errors import UserError
from burn.evaluation.classifier import LinearConfig
from burn.recipes.ablations import VARIANTS
from burn.report.ablations import GROUPS, ablation_rows, find_group
from burn.results import Result
from burn.training.recipe import Recipe
from burn.training.run import Machine

DIGITS = Ablation(
    data="digits", test="digits", budget=4 * 64, teacher="teacher", recipe="demo",
    linear=LinearConfig(augment="none", epochs=2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Recipe:
        recipe = tiny.student_recipe() if name == "demo" else tiny.baseline_recipe("byol")
        return replace(recipe, batch_size=64)

    monkeypatch.setattr(burn.ablate, "find_recipe", find)


def run(
    out: Path, groups: str, seeds: Sequence[int] = (0,), **settings: object
) -> tuple[list[Result], str]:
    console = Console(file=io.StringIO(), width=200)
    ablation = replace(DIGITS, **settings)  # type: ignore[arg-type]
    named = groups_named(groups, ablation.labelled_teacher)
    execution = Execution(out, seeds, Machine("cpu", 0, 2))
    results = ablate(ablation, named, execution, console)
    assert isinstance(console.file, io.StringIO)
    return results, console.file.getvalue()


def test_every_variant_is_in_one_group_and_differs_from_the_recipe_in_what_it_names():
    assert list(VARIANTS) == [variant for group in GROUPS for variant in group.variants]
    base = tiny.student_recipe()
    for group in GROUPS:
        changed = [VARIANTS[variant](base) != base for variant in group.variants]
        assert changed.count(False) == (2 if group.name == "teacher" else 1), group.name
        for variant in group.variants:
            VARIANTS[variant](base).check()


@pytest.mark.parametrize(
    ("variant", "burn", "stages"),
    [
        ("kl", {"lam": "constant", "lam_start": 0.0, "lam_end": 0.0}, 1),
        ("kl+fs", {"lam": "constant", "lam_end": 0.7}, 1),
        ("kl+fs+schedule", {}, 1),
        ("two-stages", {}, 2),
        ("l2", {"similarity": "l2"}, 2),
        ("lambda-heaviside", {"lam": "heaviside"}, 2),
        ("mlp-projection", {"projection": "mlp"}, 2),
        ("standardized-targets", {"standardize": True}, 2),
        ("joint-kl", {"classifier": "joint", "lam": "constant", "lam_start": 0, "lam_end": 0}, 1),
    ],
)
def test_a_variant_is_the_recipe_but_for_its_choice(
    variant: str, burn: dict[str, object], stages: int
):
    base = tiny.student_recipe()
    expected = replace(base, burn=replace(base.burn, **burn), stages=stages)  # type: ignore[arg-type]
    assert VARIANTS[variant](base) == expected


def test_what_the_recipe_does_anyway_is_trained_once():
    runs = runs_of_variants(DIGITS)
    assert len(set(runs.values())) == len(VARIANTS) - 10  # eleven groups, one run
    for group in GROUPS:
        assert "two-stages" in {runs[variant] for variant in group.variants}
    paper = runs_of_variants(replace(DIGITS, recipe="demo", labelled_teacher="teacher"))
    assert paper["labelled-teacher"] == "two-stages"  # the same teacher


def test_runs_share_a_budget_and_seeds_and_groups_may_be_added(teacher: Path, tmp_path: Path):
    out = tmp_path / "ablated"
    results, _ = run(out, "direction", teacher=str(teacher))
    assert {r.model for r in results if "pretraining" in r.settings} >= {
        "teacher-first", "student-first", "two-stages", "cosine",
    }  # fmt: skip
    assert {path.name for path in out.glob("*-seed*")} == {
        "two-stages-seed0",
        "student-first-seed0",
    }
    runs = json.loads((out / "ablation.json").read_text())["runs"]
    assert results == read_ablation(out, runs)
    seen = {
        r.settings["pretraining"]["images_seen"] for r in results if "pretraining" in r.settings
    }
    assert seen == {256}
    before = (out / "two-stages-seed0/compared.jsonl").read_bytes()
    results, said = run(out, "direction,components", seeds=(0, 1), teacher=str(teacher))
    assert (out / "two-stages-seed0/compared.jsonl").read_bytes() == before
    assert "two-stages-seed0" not in said
    rows = {
        row.row.variant: row for group, rows in ablation_rows(results) for row in rows
        if group.name in ("direction", "components")
    }  # fmt: skip
    assert len(rows) == 6
    assert all(len(row.knn) == len(row.linear) == 2 for row in rows.values())
    table = (out / "ablation.md").read_text()
    assert "| ① random classifier, KL alone |" in table
    assert "±" in table
    stages = {
        name: sorted(path.name for path in (out / f"{name}-seed0").glob("stage?.safetensors"))
        for name in ("kl", "two-stages")
    }
    assert stages == {
        "kl": ["stage1.safetensors"], "two-stages": ["stage1.safetensors", "stage2.safetensors"]
    }  # fmt: skip


def test_a_collapse_is_counted_in_the_table():
    results = [
        Result(
            protocol, "top1", 50.0 + seed, variant, "", "", "", seed, 1.0,
            {"lr": 1.0, "epochs": 1, "augment": "none", "pretraining": {
                "seconds": 60.0, "collapsed_stages": [1] if variant == "joint" and seed else [],
            }},
        )
        for variant in ("frozen", "joint") for seed in (1, 0) for protocol in ("knn", "linear")
    ]  # fmt: skip
    ((group, rows),) = ablation_rows(results)
    assert group == find_group("classifier")
    assert [row.collapsed for row in rows] == [0, 1]
    assert rows[1].knn == (50.0, 51.0)


@pytest.mark.parametrize(
    ("groups", "settings", "words"),
    [
        ("compnents", {}, "--groups: unknown 'compnents'; there are all, components"),
        ("sign,sign", {}, "--groups: sign is given twice"),
        ("teacher", {}, "group teacher needs --labelled-teacher"),
        ("sign", {"recipe": "byol_small"}, "--recipe byol_small is not of method burn"),
        ("sign", {"budget": 63}, "--budget 63 is less than one batch of 64"),
        ("sign", {"test": "nowhere"}, "nowhere"),
        ("sign", {"teacher": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(
    groups: str, settings: dict[str, Any], words: str, tmp_path: Path
):
    with pytest.raises(UserError, match=words):
        run(tmp_path / "ablated", groups, **settings)
    assert not (tmp_path / "ablated").exists()


def test_a_folder_with_other_settings_is_left_alone(teacher: Path, tmp_path: Path):
    out = tmp_path / "ablated"
    out.mkdir()
    stored = asdict(replace(DIGITS, teacher=str(teacher), budget=128))
    (out / "ablation.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="was begun with --budget 128, not 256"):
        run(out, "sign", teacher=str(teacher))
