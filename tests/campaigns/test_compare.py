"""burn compare: equal budgets, one table, and going on where it was stopped."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import burn.campaigns.compare
import burn.data.builtin.digits
import threads
import tiny
from burn.campaigns.compare import Comparison, compare
from burn.campaigns.folder import read_results_of
from burn.campaigns.settings import Execution, FurtherProtocols, within_budget
from burn.core.errors import Interrupted, UserError
from burn.core.files import locked
from burn.core.results import Result, read_results
from burn.core.types import Batch
from burn.data.base import Split
from burn.evaluation.configs import LinearConfig, SemiConfig, SvmConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.knn import run_knn
from burn.methods.entries import METHODS
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.report.render import plots
from burn.training.plan import Machine, stage_steps
from burn.training.pretraining import Pretraining

pytestmark = pytest.mark.usefixtures("few_digits")
BATCH, BUDGET = 64, 4 * 64
DIGITS = Comparison(
    data="digits", test="digits", budget=BUDGET, stages=1,
    linear=LinearConfig(augment="none", epochs=2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_recipes(monkeypatch)


@pytest.fixture(autouse=True)
def _one_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn where a test looks at one: they would take a fifth of the time."""
    if request.function is not test_every_method_sees_as_many_images_and_has_its_row:
        monkeypatch.setattr(plots, "comparison_picture", lambda results, file: None)


def use_tiny_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Recipe:
        method = name.removesuffix("_small")
        recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
        return replace(recipe, epochs=50, batch_size=BATCH)

    monkeypatch.setattr(burn.campaigns.compare, "find_recipe", find)


def run(
    out: Path, methods: Sequence[str], seeds: Sequence[int] = (0,), processes: int = 1,
    more: FurtherProtocols | None = None, **settings: object,
) -> tuple[list[Result], str]:  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    comparison = replace(DIGITS, **settings)  # type: ignore[arg-type]
    machine = Machine(device="cpu", workers=0, monitor_every=2)
    execution = Execution(out, seeds, machine, processes, more or FurtherProtocols())
    results = compare(comparison, methods, execution, console)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return results, console.file.getvalue()


@pytest.fixture(scope="module")
def _supervised(few_digits: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_recipes(patch)
        run(folder, ["supervised"])
    return folder


@pytest.fixture
def compared(_supervised: Path, tmp_path: Path) -> Path:
    """Of method supervised with seed 0."""
    return shutil.copytree(_supervised, tmp_path / "compared")


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(("burn", "supervised_kl"), id="two"),
        pytest.param(METHODS, id="all", marks=pytest.mark.long),
    ],
)
def test_every_method_sees_as_many_images_and_has_its_row(
    methods: tuple[str, ...], teacher: Path, labelled_teacher: Path, tmp_path: Path
):
    out = tmp_path / "compared"
    results, _ = run(out, methods, teacher=str(teacher), labelled_teacher=str(labelled_teacher))
    for method in methods:
        mine = [r for r in results if r.model == method]
        assert [(r.protocol, r.metric) for r in mine] == [
            ("knn", "top1"), ("linear", "top1"), ("linear", "top5"),
        ]  # fmt: skip
        assert all(r.settings["pretraining"]["images_seen"] == BUDGET for r in mine)
        assert mine == read_results(out / f"{method}-seed0" / "compared.jsonl")
    references = [r.model for r in results if r.model not in methods]
    assert set(references) == {"random weights", "teacher", "labelled teacher"}
    table = (out / "comparison.md").read_text()
    assert all(f"| {name} |" in table for name in (*methods, "random weights", "teacher"))
    assert "<svg" in (out / "comparison.svg").read_text()


def test_stages_share_the_budget(tmp_path: Path):
    results, _ = run(tmp_path / "compared", ["supervised"], stages=2)
    (seen,) = {r.settings["pretraining"]["images_seen"] for r in results if r.model == "supervised"}
    assert seen == BUDGET
    steps = [
        json.loads((tmp_path / f"compared/supervised-seed0/stage{n}.json").read_text())["steps"]
        for n in (1, 2)
    ]
    assert steps == [2, 2]


@pytest.mark.parametrize("budget", [BUDGET, 10 * 1437])
def test_epochs_stretch_or_shrink_to_the_budget(budget: int):
    """1,437 images make 22 batches: the recipe's 50 epochs do not matter."""
    plan = replace(DIGITS, budget=budget).plan("byol", 0, 1437)
    assert plan.max_steps == budget // BATCH
    assert plan.max_steps is not None
    assert 22 * (plan.recipe.epochs - 1) < plan.max_steps <= 22 * plan.recipe.epochs


@pytest.mark.parametrize("budget", [3_000, 40_960])
@pytest.mark.parametrize("name", ["burn_imagenet", "simclr_imagenet", "swav_small"])
def test_methods_that_accumulate_see_as_many_images(name: str, budget: int):
    """Of 1,000 images a batch of 2,048 in 8 parts sees 3 parts of 256 in each epoch."""
    recipe, max_steps = within_budget(find_recipe(name), budget, 1_000)
    steps = stage_steps(recipe, 1_000, max_steps=max_steps)
    seen = len(recipe.precisions()) * steps.total_images
    assert 0 <= budget - seen < len(recipe.precisions()) * steps.batch_size


def test_runs_of_another_recipe_are_not_taken_for_the_same_model(
    compared: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither those of other seeds, nor where the campaign's settings were removed."""
    (compared / "comparison.json").rename(compared.parent / "comparison.json")
    with pytest.raises(UserError, match=r"supervised-seed0 was begun .* epochs was 1, is 2"):
        run(compared, ["supervised"], budget=2 * BUDGET)
    assert not (compared / "comparison.json").exists()
    shutil.copy(compared.parent / "comparison.json", compared)

    def changed(name: str) -> Recipe:
        recipe = replace(tiny.baseline_recipe("supervised"), epochs=50, batch_size=BATCH)
        return replace(recipe, optim=replace(recipe.optim, lr=0.123))

    monkeypatch.setattr(burn.campaigns.compare, "find_recipe", changed)
    for seeds in ((0,), (1,)):
        with pytest.raises(UserError, match=r"optim\.lr was .*, is 0\.123; give another --out"):
            run(compared, ["supervised"], seeds)


def test_what_is_done_is_kept_and_methods_and_seeds_may_be_added(compared: Path):
    before = (compared / "supervised-seed0" / "compared.jsonl").read_bytes()
    results, said = run(compared, ["supervised", "simclr"], seeds=(0, 1))
    assert (compared / "supervised-seed0" / "compared.jsonl").read_bytes() == before
    assert "supervised-seed0" not in said
    assert {(r.model, r.seed) for r in results if r.model in METHODS} == {
        ("supervised", 0), ("supervised", 1), ("simclr", 0), ("simclr", 1),
    }  # fmt: skip
    row = next(
        line
        for line in (compared / "comparison.md").read_text().splitlines()
        if line.startswith("| simclr")
    )
    assert "±" in row
    assert row.split("|")[4].strip() == "2"


def test_a_signal_in_the_last_step_of_a_run_stops_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forward = Pretraining.forward

    def stopping(self: Pretraining, batch: Batch, progress: float) -> torch.Tensor:
        if progress == 3 / 4:  # in the last of four steps
            signal.raise_signal(signal.SIGINT)
        return forward(self, batch, progress)

    monkeypatch.setattr(Pretraining, "forward", stopping)
    with pytest.raises(Interrupted, match="stopped after stage 1; resume with: the same command"):
        run(tmp_path, ["mocov2", "byol"])
    assert (tmp_path / "mocov2-seed0" / "stage1.safetensors").exists()
    assert not (tmp_path / "byol-seed0").exists()
    monkeypatch.setattr(Pretraining, "forward", forward)
    results, _ = run(tmp_path, ["mocov2", "byol"])
    assert {r.model for r in results} == {"mocov2", "byol", "random weights"}


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(tmp_path / "whole", ["mocov2"])
    out = tmp_path / "stopped"
    forward = Pretraining.forward
    steps: list[float] = []

    def stopping(self: Pretraining, batch: Batch, progress: float) -> torch.Tensor:
        steps.append(progress)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
        return forward(self, batch, progress)

    monkeypatch.setattr(Pretraining, "forward", stopping)
    with pytest.raises(Interrupted, match="step 2 of 4 in stage 1; resume with: the same command"):
        run(out, ["mocov2", "byol"])
    assert not (out / "byol-seed0").exists()
    results, _ = run(out, ["mocov2"])
    assert len(steps) == 4
    assert {r.model for r in results} == {"mocov2", "random weights"}
    whole, stopped = (
        load_file(tmp_path / name / "mocov2-seed0" / "stage1.safetensors")
        for name in ("whole", "stopped")
    )
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": 2 * BUDGET}, "begun with --budget 256, not 512"),
        ({"stages": 2}, "--stages 1, not 2"),
    ],
)
def test_other_settings_want_another_folder(change: dict, words: str, compared: Path):
    with pytest.raises(UserError, match=words):
        run(compared, ["simclr"], **change)


@pytest.mark.long
def test_two_processes_give_what_one_gives(
    few_digits: Callable[[Split], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(burn.data.builtin.digits, "_enlarged", few_digits)
    # Each takes half of these; other numbers of threads than here would round differently.
    monkeypatch.setenv("OMP_NUM_THREADS", str(2 * threads.THREADS))
    alone, _ = run(tmp_path / "alone", ["supervised", "simclr"])
    beside, said = run(tmp_path / "beside", ["supervised", "simclr"], processes=2)
    assert "simclr-seed0: done" in said

    def numbers(results: Sequence[Result]) -> list[tuple[str, str, float]]:
        return sorted((r.model, r.metric, r.value) for r in results)

    assert numbers(alone) == numbers(beside)
    assert "seed0" in (tmp_path / "beside" / "logs" / "simclr-seed0.txt").read_text()


@pytest.mark.long  # beside each other; one after another is in `make test`
def test_one_that_fails_does_not_stop_the_other(tmp_path: Path):
    out = tmp_path / "compared"
    (out / "logs").mkdir(parents=True)
    shared = json.loads(json.dumps(asdict(DIGITS)))
    (out / "comparison.json").write_text(json.dumps(shared))
    (out / "simclr-seed0").mkdir()
    (out / "simclr-seed0" / "mine.txt").write_text("not a run")
    with pytest.raises(UserError, match=r"simclr-seed0: .*holds no run"):
        run(out, ["simclr", "supervised"], processes=2)
    assert (out / "supervised-seed0" / "compared.jsonl").is_file()


def test_one_after_another_a_failure_does_not_stop_the_others_either(compared: Path):
    (compared / "simclr-seed0").mkdir()
    (compared / "simclr-seed0" / "mine.txt").write_text("not a run")
    with pytest.raises(UserError, match=r"simclr-seed0: .*holds no run"):
        run(compared, ["simclr", "byol"])
    assert "| byol |" in (compared / "comparison.md").read_text()


def test_a_teacher_is_not_exchanged(teacher: Path, tmp_path: Path):
    mine = tmp_path / "teacher"
    shutil.copytree(teacher, mine)
    run(tmp_path / "compared", ["supervised", "s2bnn"], teacher=str(mine))
    tiny.train(tiny.teacher_recipe(), mine, max_steps=1, overwrite=True)
    with pytest.raises(UserError, match="has changed since"):
        run(tmp_path / "compared", ["burn"], teacher=str(mine))


@pytest.mark.parametrize(
    ("methods", "seeds", "settings", "words"),
    [
        (["moco"], (0,), {}, "unknown 'moco'"),
        ([], (0,), {}, "at least one"),
        (["byol", "byol"], (0,), {}, "each once"),
        (["burn"], (0,), {}, "burn needs --teacher"),
        (["s2bnn"], (0,), {"labelled_teacher": "x"}, "s2bnn needs --teacher"),
        (["supervised_kl"], (0,), {"teacher": "x"}, "supervised_kl needs --labelled-teacher"),
        (["byol"], (-1,), {}, "--seeds"),
        (["byol"], (), {}, "--seeds"),
        (["byol"], (0, 0), {}, "each once"),
        (["burn"], (0,), {"teacher": ""}, "burn needs --teacher"),
        (["byol"], (0,), {"teacher": "runs/typo"}, "no checkpoint at runs/typo"),
        (["byol"], (0,), {"budget": 63}, "--budget 63 is less than one batch of 64"),
        (["byol"], (0,), {"budget": -5}, "--budget -5"),
        (["byol"], (0,), {"data": "nowhere"}, "nowhere"),
        (["byol"], (0,), {"linear": LinearConfig(lr=-1.0)}, "lr -1.0"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_written(
    methods: list[str], seeds: tuple[int, ...], settings: dict, words: str, tmp_path: Path
):
    with pytest.raises(UserError, match=words):
        run(tmp_path / "compared", methods, seeds, **settings)
    assert not (tmp_path / "compared").exists()


def test_a_teacher_that_lacks_what_a_method_needs_is_found_at_once(teacher: Path, tmp_path: Path):
    with pytest.raises(UserError, match="needs a teacher trained with labels"):
        run(
            tmp_path / "compared", ["supervised", "supervised_kl"], teacher=str(teacher),
            labelled_teacher=str(teacher),
        )  # fmt: skip
    assert not (tmp_path / "compared").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"budget": 256', "null"])
def test_damaged_settings_are_named(text: str, tmp_path: Path):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(UserError, match=r"comparison.json is damaged"):
        run(tmp_path, ["supervised"])


@pytest.mark.parametrize(
    "damage", ["", "{}", "[" * 10_000, '{"model": 1}', "cut", "first line", "other", "NaN"]
)
def test_what_is_not_whole_is_evaluated_again(damage: str, compared: Path):
    file = compared / "supervised-seed0" / "compared.jsonl"
    text, first = file.read_text(), read_results(file)
    file.write_text(
        {
            "cut": text[:-20],
            "first line": text.splitlines()[0],
            "other": text.replace("supervised", "byol"),
            "NaN": text.replace('"value": ', '"value": NaN, "was": '),
        }.get(damage, damage)
    )
    _, said = run(compared, ["supervised"])
    assert "is done already" in said
    assert [r.value for r in read_results(file)] == [r.value for r in first]


FAST = SemiConfig(epochs=1, lrs=(0.01,), head_factors=(1.0,))


def test_protocols_may_be_added_to_what_is_trained(compared: Path):
    run_folder = compared / "supervised-seed0"
    before = (run_folder / "compared.jsonl").read_bytes()
    more = FurtherProtocols("semi10,transfer", "digits", "digits", FAST)
    results, said = run(compared, ["supervised"], more=more)
    assert "stage 1 is done already" not in said  # nothing is trained or evaluated anew
    assert (run_folder / "compared.jsonl").read_bytes() == before
    found = {(r.model, r.protocol, r.metric) for r in results}
    for model in ("supervised", "random weights"):
        assert {(model, "semi", "10% top1"), (model, "transfer", "top1")} <= found
    header = (compared / "comparison.md").read_text().splitlines()[0]
    assert header.startswith("|  | kNN | linear | semi 10% | transfer | seeds |")
    trained = [r for r in results if r.model == "supervised"]
    assert len({json.dumps(r.settings["pretraining"]) for r in trained}) == 1
    assert all(r.right for r in trained if r.metric.endswith("top1"))
    other = FurtherProtocols("transfer", "digits", "digits:train")
    with pytest.raises(UserError, match="begun with --transfer-test digits, not digits:train"):
        run(compared, ["supervised"], more=other)
    kept = run_folder / "compared-semi10.jsonl"
    stamp = kept.stat().st_mtime_ns
    again, said = run(compared, ["supervised"], more=more)
    assert again == results
    assert kept.stat().st_mtime_ns == stamp
    shutil.copy(kept, run_folder / "compared-semi1.jsonl")  # of another share of the labels
    assert read_results_of(run_folder, "supervised", "semi1", trained=True) is None
    assert read_results_of(run_folder, "supervised", "semi10", trained=True)
    kept.write_text(kept.read_text()[:-20])
    torn, _ = run(compared, ["supervised"])  # what is not asked for is not made anew
    assert not any(r.protocol == "semi" and r.model == "supervised" for r in torn)
    mended, _ = run(compared, ["supervised"], more=more)
    assert [r.value for r in mended] == [r.value for r in results]


@pytest.mark.long
def test_few_shots_are_evaluated_for_teachers_too(compared: Path, monkeypatch: pytest.MonkeyPatch):
    few = partial(SvmConfig, shots=(16,), samples=2)  # all shots take minutes
    monkeypatch.setattr("burn.campaigns.jobs.SvmConfig", few)
    results, _ = run(compared, ["supervised"], more=FurtherProtocols("svm"))
    shots = {(r.model, r.metric) for r in results if r.protocol == "svm"}
    assert {("supervised", "k=16 mAP cv"), ("random weights", "k=16 mAP cv")} <= shots
    assert "| svm k=16 mAP |" in (compared / "comparison.md").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            FurtherProtocols("semi5"),
            "--more: unknown 'semi5'; give some of semi1, semi10, svm, transfer",
        ),
        (FurtherProtocols("svm, svm"), "--more: svm is given twice"),
        (FurtherProtocols("transfer"), "--more transfer needs --transfer-train"),
        (FurtherProtocols("transfer", "digits"), "--more transfer needs --transfer-test"),
        (
            FurtherProtocols("svm", "digits"),
            "--transfer-train is given, but transfer is not among --more",
        ),
        (FurtherProtocols("transfer", "digits", "nowhere"), "nowhere"),
        (FurtherProtocols("semi1", semi=SemiConfig(epochs=0)), "epochs 0"),
    ],
)
def test_protocols_that_cannot_be_are_said_before_anything_is_written(
    more: FurtherProtocols, words: str, tmp_path: Path
):
    with pytest.raises(UserError, match=re.escape(words)):
        run(tmp_path / "compared", ["supervised"], more=more)
    assert not (tmp_path / "compared").exists()


def test_other_results_in_the_folder_are_left_alone(compared: Path):
    for file in (compared / "notes.jsonl", compared / "supervised-seed0" / "results.jsonl"):
        file.write_text('{"my": "notes"}\n')
    results, _ = run(compared, ["supervised"])
    assert {r.model for r in results} == {"supervised", "random weights"}
    assert (compared / "notes.jsonl").read_text() == '{"my": "notes"}\n'


def test_two_at_once_in_one_run_folder_are_told_apart(compared: Path):
    (compared / "supervised-seed0" / "compared.jsonl").unlink()
    with (
        locked(compared / "supervised-seed0"),
        pytest.raises(UserError, match="another burn process is"),
    ):
        run(compared, ["supervised"])


def test_a_busy_run_is_not_a_failed_one(compared: Path):
    """The others are made, and it is left to the one that is at it."""
    (compared / "supervised-seed0" / "compared.jsonl").unlink()
    with locked(compared / "supervised-seed0"), pytest.raises(UserError) as raised:
        run(compared, ["supervised", "byol"])
    assert "supervised-seed0: another burn process is using it; when that has ended" in (
        str(raised.value)
    )
    assert (compared / "byol-seed0" / "compared.jsonl").is_file()


@pytest.mark.long
def test_a_teacher_may_be_named_in_another_way(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(tmp_path / "compared", ["s2bnn"], teacher=str(teacher))
    monkeypatch.chdir(teacher.parent)
    shutil.copytree(teacher, tmp_path / "moved")
    for name in (f"./{teacher.name}/", str(tmp_path / "moved")):
        results, _ = run(tmp_path / "compared", ["s2bnn"], teacher=name)
        assert {r.model for r in results} >= {"s2bnn", "teacher"}
    stored = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    assert stored["teacher"] == str(teacher)


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and holds no comparison"):
        run(tmp_path, ["supervised"])
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_teacher_is_evaluated_at_the_size_that_it_taught_at(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: dict[str, int] = {}

    def remember(context: EvaluationContext, *arguments: object) -> list[Result]:
        seen[context.model] = context.views.size
        return run_knn(context, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("burn.campaigns.jobs.run_knn", remember)
    run(tmp_path / "out", ["burn"], teacher=str(teacher), teacher_size=40)
    assert seen == {"burn": 32, "random weights": 32, "teacher": 40}


@pytest.mark.long
def test_methods_of_one_teacher_share_its_features(teacher: Path, tmp_path: Path):
    """The second run finds what the first one kept, and its table says that its time is less."""
    results, said = run(
        tmp_path / "out", ["burn", "feature_only"], teacher=str(teacher), teacher_size=40
    )
    assert said.count("none cached") == 1
    assert said.count(" % cached") == 1  # of an epoch, of which four batches are trained on
    cached = {
        r.model: r.settings["pretraining"]["teacher_cached"]
        for r in results
        if "pretraining" in r.settings
    }
    assert cached == {"burn": 0.0, "feature_only": 1.0}
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "training times are without it, of some seeds at least: feature_only" in table
    assert (tmp_path / "out" / "teacher-features").is_dir()
    again, said = run(
        tmp_path / "out", ["burn", "feature_only"], teacher=str(teacher), teacher_size=40
    )
    assert len(again) == len(results)
    with pytest.raises(UserError, match="begun with --teacher-size 40, not 48"):
        run(tmp_path / "out", ["burn"], teacher=str(teacher), teacher_size=48)


def test_a_folder_from_before_teacher_sizes_goes_on(teacher: Path, tmp_path: Path):
    run(tmp_path / "out", ["burn"], teacher=str(teacher))
    file = tmp_path / "out" / "comparison.json"
    stored = json.loads(file.read_text())
    del stored["teacher_size"], stored["labelled_teacher_size"]
    file.write_text(json.dumps(stored))
    run(tmp_path / "out", ["burn"], teacher=str(teacher))
    with pytest.raises(UserError, match="begun with --teacher-size None, not 48"):
        run(tmp_path / "out", ["burn"], teacher=str(teacher), teacher_size=48)
