"""Damaged resume files, full disks, and losses that are not finite."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import tiny
from burn.checkpoints.native import load_checkpoint, save_checkpoint
from burn.core.errors import UserError
from burn.core.types import Batch
from burn.learning.resume_files import ResumeFiles
from burn.methods.base import StepOutput
from burn.methods.burn.method import Burn
from burn.training.plan import Machine
from burn.training.pretraining import Pretraining
from seldom import few

EVERY_STEP = Machine(device="cpu", workers=0, monitor_every=1, save_every=0)


class Killed(Exception):
    """Stands for a process that ends without a word."""


def cut_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run ends in the middle of this step, with the files that it has saved by then."""
    forward, steps = Pretraining.forward, count()

    def dying(self: Pretraining, batch: Batch, progress: float) -> torch.Tensor:
        if next(steps) == step:
            raise Killed
        return forward(self, batch, progress)

    monkeypatch.setattr(Pretraining, "forward", dying)


def one_stage():
    return replace(tiny.student_recipe(), stages=1)


@pytest.fixture(scope="module")
def died(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten steps that died in its sixth."""
    out = tmp_path_factory.mktemp("died") / "cut"
    with pytest.MonkeyPatch.context() as patched:
        cut_at(5, patched)
        with pytest.raises(Killed):
            tiny.train(one_stage(), out, teacher, max_steps=10, machine=EVERY_STEP)
    return out


@pytest.fixture(scope="module")
def whole(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the same ten steps without an end between."""
    out = tmp_path_factory.mktemp("whole") / "whole"
    tiny.train(one_stage(), out, teacher, max_steps=10)
    return out / "stage1.safetensors"


@pytest.fixture
def cut(died: Path, tmp_path: Path) -> Path:
    """A copy of the run that died."""
    return Path(shutil.copytree(died, tmp_path / "cut"))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def flip_a_bit(file: Path) -> None:
    """In the middle of a tensor, where only the checksum can tell."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        pytest.param(truncate, marks=pytest.mark.long),
        pytest.param(empty, marks=pytest.mark.long),
    ],
)
def test_the_one_before_a_damaged_resume_file_is_used_and_said(
    damage, cut: Path, whole: Path, teacher: Path
):
    files = ResumeFiles(cut / "stage1", owner="")
    assert torch.load(files.newest, weights_only=True)["global_step"] == 5
    assert torch.load(files.previous, weights_only=True)["global_step"] == 4
    damage(files.newest)
    text = io.StringIO()
    console = Console(file=text, width=1000)
    tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True, console=console)
    assert "resume.ckpt is damaged, and is now resume.damaged.ckpt: resuming" in text.getvalue()
    ends = [load_file(file) for file in (cut / "stage1.safetensors", whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_both_damaged_are_named_and_kept(cut: Path, teacher: Path):
    files = ResumeFiles(cut / "stage1", owner="")
    truncate(files.newest)
    truncate(files.previous)
    with pytest.raises(UserError, match=r"resume\.ckpt and .*previous\.ckpt are damaged: remove"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)
    assert files.newest.is_file()
    assert files.previous.is_file()


def lead_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lead_nowhere])
def test_what_is_not_a_file_is_named(make: Callable[[Path], None], cut: Path, teacher: Path):
    newest = cut / "stage1" / "resume.ckpt"
    newest.unlink()
    make(newest)
    then = r"remove it to go on from resume\.previous\.ckpt"
    with pytest.raises(UserError, match=rf"resume\.ckpt is not a file: {then}"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)
    (cut / "stage1" / "resume.previous.ckpt").unlink()
    with pytest.raises(UserError, match=r"resume\.ckpt is not a file: remove it to begin again"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)


def test_a_resume_file_of_another_run_or_stage_is_refused(
    cut: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of the same network, so that only its owner tells."""
    cut_at(3, monkeypatch)
    with pytest.raises(Killed):
        tiny.train(one_stage(), tmp_path / "b", teacher, seed=7, max_steps=10, machine=EVERY_STEP)
    monkeypatch.undo()
    mine, other = (ResumeFiles(run / "stage1", owner="") for run in (cut, tmp_path / "b"))
    other.newest.replace(mine.newest)
    with pytest.raises(UserError, match=r"resume\.ckpt is from another training: remove"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)


def usable(files: ResumeFiles) -> tuple[Path | None, str]:
    """The file that a run with a network of the newest one's shapes takes, and what it says."""
    content = torch.load(files.previous, weights_only=True)
    files.owner, files.settings = content["owner"], content["settings"]
    shapes = {name: tensor.shape for name, tensor in content["state_dict"].items()}
    text = io.StringIO()
    return files._usable(shapes, Console(file=text, width=1000)), text.getvalue()


def emptied(file: Path, part: str) -> None:
    content = torch.load(file, weights_only=True)
    torch.save({**content, part: type(content[part])()}, file)


SAID = "is damaged, and is now resume.damaged.ckpt: resuming from the previous file"


@pytest.mark.parametrize(
    "part", few(["state_dict", "global_step", "optimizer_states", "batches"], 2)
)
def test_an_emptied_part_is_damage(part: str, cut: Path):
    """Of which file is resumed; the test below is of a run that does so."""
    files = ResumeFiles(cut / "stage1", owner="")
    assert usable(files) == (files.newest, "")
    emptied(files.newest, part)
    found, said = usable(files)
    assert found == files.previous
    assert SAID in said


def test_a_run_goes_on_after_an_emptied_part(cut: Path, teacher: Path):
    emptied(ResumeFiles(cut / "stage1", owner="").newest, "optimizer_states")
    text = io.StringIO()
    console = Console(file=text, width=1000)
    tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True, console=console)
    assert SAID in text.getvalue()


def test_a_resume_file_of_lightnings_trainer_goes_on(cut: Path, whole: Path, teacher: Path):
    """It wrote burn's resume files before burn had a loop of its own."""
    newest = ResumeFiles(cut / "stage1", owner="").newest
    content = torch.load(newest, weights_only=True)
    loader, _ = content.pop("loader"), content.pop("batches")
    loops = {"fit_loop": {"state_dict": {"combined_loader": [loader]}, "epoch_loop.state_dict": {}}}
    rates = {"lr_schedulers": [{"last_epoch": 5, "base_lrs": [1.0]}], "epoch": 0}
    torch.save({**content, **rates, "loops": loops}, newest)
    tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)
    ends = [load_file(file) for file in (cut / "stage1.safetensors", whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_run_with_the_settings_of_every_method_goes_on(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Earlier versions of burn wrote them into run.json, checkpoints and resume files."""
    recipe, out = tiny.student_recipe(), tmp_path / "cut"
    with monkeypatch.context() as patched:
        cut_at(5, patched)  # in the second stage
        with pytest.raises(Killed):
            tiny.train(recipe, out, teacher, max_steps=4, machine=EVERY_STEP)
    others = {"byol": {"momentum": 0.9}, "swav": {"queue": 3}}
    run = json.loads((out / "run.json").read_text())
    run["plan"]["recipe"] |= others
    (out / "run.json").write_text(json.dumps(run))
    stage = load_checkpoint(out / "stage1.safetensors")
    meta = {**stage.meta, "recipe": {**stage.meta["recipe"], **others}}
    save_checkpoint(out / "stage1.safetensors", stage.weights, meta)
    newest = ResumeFiles(out / "stage2", owner="").newest
    content = torch.load(newest, weights_only=True)
    settings = json.loads(content["settings"])
    settings["plan"]["recipe"] |= others
    torch.save({**content, "settings": json.dumps(settings)}, newest)
    tiny.train(recipe, out, teacher, max_steps=4, resume=True)
    tiny.train(recipe, tmp_path / "whole", teacher, max_steps=4)
    ends = [load_file(path / "stage2.safetensors") for path in (out, tmp_path / "whole")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_run_on_shards_goes_on(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the middle of an epoch. Its loader's state has more than a count, which is checked."""
    recipe = replace(one_stage(), batch_size=32, epochs=3)
    data = f"stream:{tiny.some_digits(tmp_path, 96)}"  # three steps an epoch
    tiny.train(recipe, tmp_path / "whole", teacher, data=data, max_steps=7)
    out = tmp_path / "cut"
    with monkeypatch.context() as patched:
        cut_at(5, patched)
        with pytest.raises(Killed):
            tiny.train(recipe, out, teacher, data=data, max_steps=7, machine=EVERY_STEP)
    newest = ResumeFiles(out / "stage1", owner="").newest
    content = torch.load(newest, weights_only=True)
    tiny.train(recipe, out, teacher, data=data, max_steps=7, resume=True)
    ends = [load_file(path / "stage1.safetensors") for path in (out, tmp_path / "whole")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    content["loader"]["world"] = 2
    (out / "stage1.safetensors").unlink()
    torch.save(content, newest)
    with pytest.raises(UserError, match="with the number of processes that it was started with: 2"):
        tiny.train(recipe, out, teacher, data=data, max_steps=7, resume=True)


def wrong_shape(content: dict[str, Any]) -> None:
    held = content["optimizer_states"][0]["state"][0]
    held.update({name: tensor.new_zeros(3) for name, tensor in held.items() if tensor.ndim})


@pytest.mark.parametrize(
    "edit",
    few(
        [
            wrong_shape,  # PyTorch's fused optimizers end in a segmentation fault
            lambda content: content.update(global_step="5"),
            lambda content: content.update(global_step=-1),
            lambda content: content.update(global_step=100),
            lambda content: content.update(batches=1.5),
            lambda content: content.update(replanned_at=5),
            lambda content: content.update(learner={}),
            lambda content: content.update(loader={}),
            lambda content: content["callbacks"].update(Monitor={}),
            lambda content: content["state_dict"].update(
                {n: t.to(torch.complex64) for n, t in content["state_dict"].items() if t.ndim}
            ),
        ],
        5,
    ),
)
def test_a_whole_file_with_another_state_is_refused(edit: Any, cut: Path, teacher: Path):
    newest = ResumeFiles(cut / "stage1", owner="").newest
    content = torch.load(newest, weights_only=True)
    edit(content)
    torch.save(content, newest)
    with pytest.raises(UserError, match=r"resume\.ckpt does not fit this training: remove it"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)


def test_a_resume_file_with_code_is_not_run(cut: Path, teacher: Path, tmp_path: Path):
    """A pickle whose reading would make a file."""
    files = ResumeFiles(cut / "stage1", owner="")

    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"state_dict": Payload()}, files.newest)
    torch.save({"state_dict": Payload()}, files.previous)
    with pytest.raises(UserError, match="are damaged"):
        tiny.train(one_stage(), cut, teacher, max_steps=10, resume=True)
    assert not (tmp_path / "ran").exists()
    torch.load(files.newest, weights_only=False)
    assert (tmp_path / "ran").exists(), "the payload is none"


@pytest.mark.long  # beside a disk that is really full
def test_a_full_disk_is_said_and_the_run_goes_on(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Steps 3 to 6 cannot be saved; the file of step 2 stays until step 7."""
    write = Path.write_bytes
    saved: list[int] = []

    def sometimes(self: Path, content: bytes) -> int:
        if self.name == "resume.ckpt":
            step = torch.load(io.BytesIO(content), weights_only=True)["global_step"]
            if 3 <= step <= 6:
                write(self, content[: len(content) // 3])
                kept = torch.load(tmp_path / "run/stage1/resume.ckpt", weights_only=True)
                assert kept["global_step"] == 2
                raise OSError(errno.ENOSPC, "No space left on device")
            saved.append(step)
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", sometimes)
    text = io.StringIO()
    (summary,) = tiny.train(
        one_stage(), tmp_path / "run", teacher, max_steps=8, machine=EVERY_STEP,
        console=Console(file=text, width=1000),
    )  # fmt: skip
    assert summary.steps == 8
    assert saved == [1, 2, 7, 8]
    assert "step 3 could not be saved" in text.getvalue()
    said = "No space left on device; training continues, the last good file is kept (that of step 2"
    assert f"{said})" in text.getvalue()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, where this process may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    try:
        made = subprocess.run(["mount", *options], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount")
    if made.returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, teacher: Path):
    """Nothing of a run fits, not even its numbers; room is made, and the same command ends it."""
    out = small_disk / "run"
    ballast = small_disk / "ballast"
    text = io.StringIO()
    console = Console(file=text, width=1000)
    out.mkdir()
    tiny.train(one_stage(), small_disk / "probe", teacher, max_steps=1)
    size = sum(f.stat().st_size for f in (small_disk / "probe").glob("**/*") if f.is_file())
    ballast.write_bytes(bytes(24 * 2**20 - size - 200_000))
    with pytest.raises(UserError, match=r"stage1\.safetensors cannot be written: .*resume with"):
        tiny.train(one_stage(), out, teacher, max_steps=6, machine=EVERY_STEP, console=console)
    assert "step 1 could not be saved" in text.getvalue()
    assert "No space left on device" in text.getvalue()
    assert not (out / "stage1.safetensors").exists()
    assert not list(out.glob("**/.writing*"))
    ballast.unlink()
    (summary,) = tiny.train(one_stage(), out, teacher, max_steps=6, resume=True)
    assert summary.steps == 6


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int], *, statistics: bool = False) -> None:
    """KL is not finite at these (0-based) steps; with `statistics`, a mean of BN neither."""
    forward, count = Burn.forward, [0]

    def spoiled(self, batch, progress):
        output = forward(self, batch, progress)
        count[0] += 1
        if count[0] - 1 not in steps:
            return output
        if statistics:
            self.backbone.stem_norm.running_mean.data[0] = torch.nan
        terms = {**output.terms, "kl": torch.tensor(torch.inf)}
        return StepOutput(output.loss * torch.inf, terms, output.features)

    monkeypatch.setattr(Burn, "forward", spoiled)


def test_a_loss_that_is_not_finite_stops_before_it_reaches_a_weight(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spoil(monkeypatch, {4})
    hook = threading.excepthook
    with pytest.raises(
        UserError,
        match=r"stopped at step 5: kl is inf and the gradient of student backbone, .*student "
        r"classifier is not finite; lower --optim\.lr",
    ):
        tiny.train(one_stage(), tmp_path / "run", teacher, max_steps=8, machine=EVERY_STEP)
    assert threading.excepthook is hook, "a run replaces it for TensorBoard"
    kept = torch.load(tmp_path / "run/stage1/resume.ckpt", weights_only=True)
    assert kept["global_step"] == 4
    assert all(torch.isfinite(t).all() for t in kept["state_dict"].values())


def test_so_many_steps_may_be_left_out_and_no_more(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    weights: list[torch.Tensor] = []
    after = Burn.after_step

    def remember(self, progress):
        after(self, progress)
        weights.append(self.backbone.stem.weight.detach().clone())

    monkeypatch.setattr(Burn, "after_step", remember)
    spoil(monkeypatch, {0, 3})
    machine = replace(EVERY_STEP, on_nonfinite="skip:2")
    text = io.StringIO()
    (summary,) = tiny.train(
        one_stage(), tmp_path / "run", teacher, max_steps=8, machine=machine,
        console=Console(file=text, width=1000),
    )  # fmt: skip
    assert summary.steps == 8
    assert "step 4 is skipped (2 of 2): kl is inf" in text.getvalue()
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[3], weights[4])
    monkeypatch.undo()
    spoil(monkeypatch, {0, 3, 5})
    with pytest.raises(UserError, match=r"stopped at step 6 \(after 2 such steps\)"):
        tiny.train(one_stage(), tmp_path / "more", teacher, max_steps=8, machine=machine)


def test_a_step_that_spoilt_the_statistics_is_not_left_out(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spoil(monkeypatch, {3}, statistics=True)
    machine = replace(EVERY_STEP, on_nonfinite="skip:2")
    with pytest.raises(UserError, match="it has reached BN's statistics"):
        tiny.train(one_stage(), tmp_path / "run", teacher, max_steps=8, machine=machine)
