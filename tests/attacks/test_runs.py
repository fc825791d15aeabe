"""What once did harm to a run: each is refused in one line, and nothing is lost."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from burn.cli.main import main
from burn.core.errors import UserError
from burn.data.augment import plain_view
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.methods.simclr.method import Simclr
from burn.recipes.schema import Recipe
from burn.training.plan import Machine


def photos(folder: Path, num_good: int, num_bad: int) -> Path:
    folder.mkdir()
    for i in range(num_good):
        pixels = np.full((20, 20, 3), i, np.uint8)
        Image.fromarray(pixels).save(folder / f"good{i}.png")
    for i in range(num_bad):
        (folder / f"bad{i}.png").write_bytes(b"nothing")
    return folder


def test_a_run_that_sees_no_two_images_is_no_success(tmp_path: Path):
    recipe = replace(tiny.teacher_recipe(), batch_size=4)
    data = str(photos(tmp_path / "one", 1, 19))
    with pytest.raises(UserError, match="only 1 of its 20 images can be read"):
        tiny.train(recipe, tmp_path / "a", data=data)
    data = str(photos(tmp_path / "two", 2, 38))
    every = Machine(device="cpu", workers=0, max_bad="100%")
    with pytest.raises(UserError, match="no batch held two readable images and had a finite loss"):
        tiny.train(recipe, tmp_path / "b", data=data, max_steps=2, seed=1, machine=every)
    assert not (tmp_path / "b" / "stage1.safetensors").exists()


def test_a_run_that_explodes_stops_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The guard has seen its first step; the loss turns NaN at the third."""
    forward, calls = Simclr.forward, 0

    def exploding(self, batch, progress):
        nonlocal calls
        calls += 1
        output = forward(self, batch, progress)
        return replace(output, loss=output.loss * float("nan")) if calls > 2 else output

    monkeypatch.setattr(Simclr, "forward", exploding)
    with pytest.raises(UserError, match="stopped at step 3: the gradient of backbone, projection"):
        tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=6)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_statistics_that_are_not_finite_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Loss and gradient were, at every step."""

    def spoil(self, progress):
        self.backbone.model.bn1.running_var.data[0] = torch.inf

    monkeypatch.setattr(Simclr, "after_step", spoil)
    with pytest.raises(UserError, match="the weights are not finite"):
        tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=2)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_teacher_with_numbers_that_are_not_finite_is_named(teacher: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    weights = load_file(teacher / "stage1.safetensors")
    name = next(n for n in weights if n.endswith("conv1.weight"))
    weights[name] = torch.full_like(weights[name], float("nan"))
    meta = {"burn": (teacher / "stage1.json").read_text()}
    save_file(weights, tmp_path / "nan.safetensors", metadata=meta)
    with pytest.raises(UserError, match=r"nan\.safetensors holds numbers that are not finite"):
        tiny.train(tiny.student_recipe(), tmp_path / "run", tmp_path / "nan.safetensors")


def test_two_recipes_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["pretrain", "--recipe", "demo_teacher", "--recipe", "demo", "--data", "digits"]
    assert main([*arguments, "--out", str(tmp_path / "x")]) == 2
    assert "two values of --recipe are given, demo_teacher and demo" in capsys.readouterr().err


def test_a_finished_stage_of_another_run_is_not_taken_for_ours(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    recipe = replace(tiny.student_recipe(), stages=1)
    tiny.train(recipe, out, teacher, max_steps=2)
    for suffix in ("safetensors", "json"):
        shutil.copy(teacher / f"stage1.{suffix}", out)
    with pytest.raises(UserError, match="does not belong to this run"):
        tiny.train(recipe, out, teacher, max_steps=2, resume=True)


def test_a_resume_file_of_another_network_is_refused(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    recipe = replace(tiny.student_recipe(), stages=1)
    tiny.train(recipe, out, teacher, max_steps=2)
    (out / "stage1.safetensors").unlink()
    for content in ({"a": 1}, [1], {"state_dict": {}, "loops": {}, "global_step": 3}):
        torch.save(content, out / "stage1" / "resume.ckpt")
        with pytest.raises(UserError, match=r"resume\.ckpt is (damaged|from another stage or run)"):
            tiny.train(recipe, out, teacher, max_steps=2, resume=True)


def test_overwrite_keeps_what_is_not_ours_and_never_the_teacher_away(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    tiny.train(replace(tiny.student_recipe(), stages=1), out, teacher, max_steps=2)
    (out / "stage1" / "mine.txt").write_text("mine")
    recipe = tiny.teacher_recipe()
    with pytest.raises(UserError, match="would delete the teacher"):
        tiny.train(tiny.student_recipe(), out, out, overwrite=True)
    tiny.train(recipe, out, max_steps=2, overwrite=True)
    assert (out / "stage1" / "mine.txt").read_text() == "mine"


def test_an_edited_run_file_is_named(teacher: Path, tmp_path: Path, capsys):
    out = tmp_path / "run"
    tiny.train(replace(tiny.student_recipe(), stages=1), out, teacher, max_steps=2)
    whole = json.loads((out / "run.json").read_text())
    for plan in ([], {**whole["plan"], "recipe": "x"}, {**whole["plan"], "seed": "x"}):
        (out / "run.json").write_text(json.dumps({**whole, "plan": plan}))
        assert main(["pretrain", "--resume", "--out", str(out)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim": None}, "optim: expected named values"),
        ({"views": [1]}, "views: expected named values"),
        ({"optim": {"lr": float("nan")}}, "optim.lr: expected float"),
        ({"epochs": True}, "epochs: expected int"),
        ({"backbone": {"mean": [0.1]}}, "backbone.mean: expected"),
        ({"backbone": {"name": 5}}, "backbone.name: expected str"),
        ({"method": 3}, "method: expected"),
        ({"nonsense": 1}, "unknown setting nonsense"),
    ],
)
def test_settings_are_type_checked(values: dict, message: str):
    with pytest.raises(UserError, match=message):
        Recipe.from_json(values)


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(UserError, match="unknown method byol2: did you mean byol"):
        Recipe.from_json({"method": "byol2"}).check()


def test_a_pipe_in_the_folder_does_not_block(tmp_path: Path):
    folder = photos(tmp_path / "photos", 2, 0)
    os.mkfifo(folder / "0a.png")
    assert len(open_source(str(folder))) == 2


def test_names_that_are_no_text_and_names_too_long(tmp_path: Path, capsys):
    folder = photos(tmp_path / "photos", 2, 0)
    shutil.copy(folder / "good0.png", folder / os.fsdecode(b"\xff\xfe.png"))
    assert open_source(str(folder)).fingerprint
    assert main(["info", "x" * 300]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_very_long_image_is_not_blown_up():
    view = plain_view(torch.zeros(3, 1, 60_000, dtype=torch.uint8), ViewConfig(size=32))
    assert view.shape == (3, 32, 32)
