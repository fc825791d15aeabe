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

import burn.campaigns.ablate
import tiny
from burn.campaigns.ablate import (
    VARIANTS,
    Ablation,
    ablate,
    groups_named,
    read_ablation,
    runs_of_variants,
)
from burn.campaigns.settings import Execution
from burn.core.errors import UserError
from burn.core.results import Result
from burn.evaluation.configs import LinearConfig
from burn.paper.ablations import GROUPS, ablation_rows
from burn.recipes.schema import Recipe
from burn.training.plan import Machine

pytestmark = pytest.mark.usefixtures("few_digits")
DIGITS = Ablation(
    data="digits", test="digits", budget=4 * 64, teacher="teacher", recipe="demo",
    linear=LinearConfig(augment="none", epochs=2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Recipe:
        recipe = tiny.student_recipe() if name == "demo" else tiny.baseline_recipe("byol")
        backbone = replace(recipe.backbone, activation_gradient="clip")  # as the paper's is not
        return replace(recipe, batch_size=64, backbone=backbone)

    monkeypatch.setattr(burn.campaigns.ablate, "find_recipe", find)


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


def test_every_variant_is_in_a_group_and_its_recipe_is_sound():
    assert set(VARIANTS) == {variant for group in GROUPS for variant in group.variants}
    base = tiny.student_recipe()
    for group in GROUPS:
        changed = [VARIANTS[variant](base) != base for variant in group.variants]
        if not group.variants[0].startswith("paper"):  # of what the recipe does, one is that
            unchanged = {"teacher": 2, "stages": 2}.get(group.name, 1)
            assert changed.count(False) == unchanged, group.name
        for variant in group.variants:
            VARIANTS[variant](base).check()


@pytest.mark.parametrize(
    ("variant", "burn", "stages"),
    [
        ("one-stage", {}, 1),
        ("two-stages", {}, 2),
        ("mlp-projection", {"projection": "mlp"}, 2),
        ("standardized-targets", {"standardize": True}, 2),
        ("paper-kl", {"lam": "constant", "lam_start": 0.0, "lam_end": 0.0}, 1),
        ("paper-kl+fs", {"lam": "constant", "lam_end": 0.7}, 1),
        ("paper-kl+fs+schedule", {}, 1),
        ("paper-two-stages", {}, 2),
        ("paper-l2", {"similarity": "l2"}, 1),
        ("paper-heaviside", {"lam": "heaviside"}, 1),
        ("paper-joint-kl",
         {"classifier": "joint", "lam": "constant", "lam_start": 0, "lam_end": 0}, 1),
        ("paper-joint-fresh", {"classifier": "joint", "carry_classifier": False}, 2),
        ("paper-fs", {"classifier": "none"}, 1),
    ],
)  # fmt: skip
def test_a_variant_is_the_recipe_but_for_its_choice(
    variant: str, burn: dict[str, object], stages: int
):
    base = tiny.student_recipe()
    expected = replace(base.with_settings(**burn), stages=stages)
    assert VARIANTS[variant](base) == expected


@pytest.mark.parametrize("settings", [
    {"similarity_of": "logits"}, {"classifier": "joint", "classifier_lr": 0.5},
    {"classifier": "joint", "carry_classifier": False},
])  # fmt: skip
def test_every_variant_of_any_recipe_is_sound(settings: dict[str, object]):
    base = tiny.student_recipe(**settings)
    for change in VARIANTS.values():
        change(base).check()


def test_the_papers_variants_do_not_depend_on_the_recipes_choices():
    other = tiny.student_recipe(classifier="none", standardize=True, projection="mlp")
    other = replace(
        other,
        stages=1,
        backbone=replace(other.backbone, activation_gradient="clip", feature_norm=True),
    )
    for name, change in VARIANTS.items():
        if name.startswith("paper"):
            assert change(other) == change(tiny.student_recipe()), name


def test_what_the_recipe_does_anyway_is_trained_once():
    runs = runs_of_variants(DIGITS)
    for group in GROUPS:
        if not group.variants[0].startswith("paper"):
            assert "two-stages" in {runs[variant] for variant in group.variants}
    assert runs["two-stages-double"] == "two-stages-double"  # the same recipe, more images
    labelled = runs_of_variants(replace(DIGITS, recipe="demo", labelled_teacher="teacher"))
    assert labelled["labelled-teacher"] == "two-stages"  # the same teacher


def test_doubled_stages_see_twice_the_images():
    images = {
        name: DIGITS.plan(name, 0, 10_000).max_steps for name in ("two-stages", "two-stages-double")
    }
    assert images == {"two-stages": 2, "two-stages-double": 4}


@pytest.mark.long
def test_runs_share_a_budget_and_seeds_and_groups_may_be_added(teacher: Path, tmp_path: Path):
    out = tmp_path / "ablated"
    results, _ = run(out, "direction", teacher=str(teacher))
    schedule = "paper-kl+fs+schedule"
    assert {r.model for r in results if "pretraining" in r.settings} == {
        schedule, "paper-student-first"
    }  # fmt: skip
    assert {path.name for path in out.glob("*-seed*")} == {
        f"{schedule}-seed0", "paper-student-first-seed0"
    }  # fmt: skip
    runs = json.loads((out / "ablation.json").read_text())["runs"]
    assert results == read_ablation(out, runs)
    before = (out / f"{schedule}-seed0/compared.jsonl").read_bytes()
    results, said = run(out, "direction,components,sign", seeds=(0, 1), teacher=str(teacher))
    assert (out / f"{schedule}-seed0/compared.jsonl").read_bytes() == before
    assert f"{schedule}-seed0" not in said
    seen = {
        r.model: r.settings["pretraining"]["images_seen"] for r in results
        if "pretraining" in r.settings
    }  # fmt: skip
    assert seen.pop("paper-two-stages-double") == 512
    assert set(seen.values()) == {256}
    rows = {
        row.row.variant: row for group, rows in ablation_rows(results) for row in rows
        if group.name in ("direction", "components", "sign")
    }  # fmt: skip
    assert len(rows) == 8
    assert all(len(row.knn) == len(row.linear) == 2 for row in rows.values())
    assert {"clip", "two-stages"} <= {r.model for r in results}  # of the recipe, one run
    table = (out / "ablation.md").read_text()
    assert "| ① random classifier, KL alone |" in table
    assert "±" in table
    runs = json.loads((out / "ablation.json").read_text())["runs"]
    stages = {
        name: sorted(path.name for path in (out / f"{runs[name]}-seed0").glob("stage?.safetensors"))
        for name in ("paper-kl", "paper-two-stages")
    }
    assert stages == {
        "paper-kl": ["stage1.safetensors"],
        "paper-two-stages": ["stage1.safetensors", "stage2.safetensors"],
    }


def test_a_collapse_is_counted_in_the_table():
    results = [
        Result(
            protocol, "top1", 50.0 + seed, variant, "", "", "", seed, 1.0,
            {"lr": 1.0, "epochs": 1, "augment": "none", "pretraining": {
                "seconds": 60.0, "collapsed_stages": [1] if variant == "joint" and seed else [],
            }},
        )
        for variant in ("no-classifier", "joint")
        for seed in (1, 0)
        for protocol in ("knn", "linear")
    ]  # fmt: skip
    ((group, rows),) = ablation_rows(results)
    assert group.name == "classifier"
    assert [row.collapsed for row in rows] == [0, 1]
    assert rows[1].knn == (50.0, 51.0)


@pytest.mark.parametrize(
    ("groups", "settings", "words"),
    [
        ("compnents", {}, "--groups: unknown 'compnents'; give all, or some of stages"),
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
