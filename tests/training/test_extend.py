"""A run that is resumed with more steps goes on from where its stages are."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import burn
import tiny
from burn.checkpoints.native import load_checkpoint
from burn.cli.main import main
from burn.core.errors import Interrupted, UserError
from burn.recipes.schema import Recipe

SETTINGS = {"workers": 0, "progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Forty digits."""
    return tiny.some_digits(tmp_path_factory.mktemp("data"), 40)


def float_recipe(schedule: str = "cosine") -> Recipe:
    recipe = replace(tiny.teacher_recipe(), epochs=2, batch_size=8)  # 5 steps an epoch
    return replace(recipe, optim=replace(recipe.optim, schedule=schedule, warmup_epochs=0))


def same(a: Path, b: Path) -> bool:
    one, other = load_file(a / "stage1.safetensors"), load_file(b / "stage1.safetensors")
    return all(torch.equal(one[name], other[name]) for name in one)


def steps_of(out: Path, stage: int) -> list[int]:
    lines = (out / f"stage{stage}" / "metrics.csv").read_text().splitlines()[1:]
    return sorted({int(line.split(",")[0]) for line in lines})


def extend(
    out: Path, recipe: Recipe, data: str, max_steps: int | None, teacher: Path | None = None
) -> str:
    said = Console(file=io.StringIO(), width=200)
    tiny.train(recipe, out, teacher, data=data, max_steps=max_steps, resume=True, console=said)
    assert isinstance(said.file, io.StringIO)
    return said.file.getvalue()


@pytest.mark.parametrize(
    "first",
    [3, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 7))],
    ids=["within", "at its end", "after it"],
)
def test_without_a_schedule_an_extended_run_has_the_bits_of_a_longer_one(
    first: int, tmp_path: Path, data: str
):
    recipe = float_recipe("constant")
    tiny.train(recipe, tmp_path / "whole", data=data, max_steps=8)
    tiny.train(recipe, tmp_path / "two", data=data, max_steps=first)
    said = extend(tmp_path / "two", recipe, data, 8)
    assert f"stage 1 goes on to 8 steps; it was finished with {first}" in said
    assert f"going on from step {first}: the schedules" in said
    assert same(tmp_path / "whole", tmp_path / "two")
    meta = load_checkpoint(tmp_path / "two").meta
    assert (meta["steps"], meta["max_steps"], meta["replanned_at"]) == (8, 8, [first])
    assert json.loads((tmp_path / "two/run.json").read_text())["plan"]["max_steps"] == 8
    assert steps_of(tmp_path / "two", 1)[-1] == 8
    assert not (tmp_path / "two/stage1/resume.previous.ckpt").exists()


def test_the_first_step_of_an_extension_has_the_rate_of_the_new_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
):
    """A cosine is at 0 where a run ends, and an extended run must not begin with that."""
    rates: list[float] = []
    step = torch.optim.Adam.step

    def remember(self, *arguments, **named):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.Adam, "step", remember)
    recipe = float_recipe()
    tiny.train(recipe, tmp_path / "whole", data=data, max_steps=8)
    whole, rates[:] = list(rates), []
    tiny.train(recipe, tmp_path / "two", data=data, max_steps=4)
    extend(tmp_path / "two", recipe, data, 8)
    assert rates[4:] == whole[4:]
    assert rates[:4] != whole[:4]


def test_two_stages_are_extended_and_the_second_begins_again_from_the_first(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
):
    out, recipe = tmp_path / "run", replace(tiny.student_recipe(), batch_size=8)
    tiny.train(recipe, out, teacher, data=data, max_steps=2)
    with monkeypatch.context() as patched:  # between the stages, and within the second one
        tiny.stop_at(patched, 2)
        with pytest.raises(Interrupted, match=r"after stage 1|of 4 in stage 1"):
            extend(out, recipe, data, 4, teacher)
    with monkeypatch.context() as patched:
        tiny.stop_at(patched, 3)
        with pytest.raises(Interrupted, match="in stage"):
            extend(out, recipe, data, 4, teacher)
    extend(out, recipe, data, 4, teacher)
    assert [load_checkpoint(out / f"stage{n}.safetensors").meta["steps"] for n in (1, 2)] == [4, 4]
    assert steps_of(out, 2)[0] == 1
    meta = load_checkpoint(out / "stage2.safetensors").meta
    assert "replanned_at" not in meta, "it was trained whole, from the extended first stage"
    assert "stage 2 is done already" in extend(out, recipe, data, 4, teacher)


@pytest.mark.parametrize(
    "how",
    [
        "the last of two epochs",
        "python",
        *(pytest.param(how, marks=pytest.mark.long) for how in ("epochs", "max_steps")),
    ],
)
def test_a_first_try_goes_on_to_the_whole_run(how: str, tmp_path: Path, data: str):
    out, recipe = tmp_path / "run", float_recipe()
    burn.pretrain(recipe, data=data, out=out, max_steps=2, **SETTINGS)  # type: ignore[arg-type]
    if how == "python":
        burn.pretrain(recipe, data=data, out=out, resume=True, **SETTINGS)  # type: ignore[arg-type]
    else:
        more = {
            "epochs": ["--epochs=2"],
            "the last of two epochs": ["--epochs=1", "--epochs=2"],
            "max_steps": ["--max-steps=10"],
        }[how]
        assert main(["pretrain", "--resume", f"--out={out}", "--workers=0", *more]) == 0
    assert load_checkpoint(out).meta["steps"] == 10


def test_a_run_is_not_made_shorter_and_says_how_to_go_on(tmp_path: Path, data: str):
    out, recipe = tmp_path / "run", float_recipe()
    tiny.train(recipe, out, data=data, max_steps=4)
    before = (out / "run.json").read_bytes()
    with pytest.raises(UserError, match=r"a run of 4 steps .* cannot be resumed with 3"):
        extend(out, recipe, data, 3)
    assert (out / "run.json").read_bytes() == before
    assert "done already (4 steps; --max-steps N goes on to more)" in extend(out, recipe, data, 4)


def test_a_run_whose_state_was_not_kept_begins_again_from_its_weights(tmp_path: Path, data: str):
    out, recipe = tmp_path / "run", float_recipe()
    tiny.train(recipe, out, data=data, max_steps=2)
    (out / "stage1" / "resume.ckpt").unlink()  # as an earlier burn left it
    said = extend(out, recipe, data, 3)
    assert "stage 1 begins 3 steps from the weights that it has after 2" in said
    assert load_checkpoint(out).meta["steps"] == 3


def test_the_file_of_a_finished_stage_that_was_lost_comes_back(tmp_path: Path, data: str):
    out, recipe = tmp_path / "run", float_recipe()
    tiny.train(recipe, out, data=data, max_steps=2)
    before = (out / "stage1.safetensors").rename(tmp_path / "stage1.safetensors")
    extend(out, recipe, data, 2)
    assert same(out, before.parent)
    assert load_checkpoint(out).meta["steps"] == 2
