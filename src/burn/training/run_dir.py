"""The folder of a run: what `run.json` holds, and whether a resumed run is the same run."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from burn.backbones.entries import BACKBONES
from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.files import remove_unfinished, write_text
from burn.core.inputs import read_json
from burn.core.plugins import describe_plugin, require_plugins
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Precision
from burn.data.base import Source
from burn.methods.registry import METHODS, find_method
from burn.recipes.schema import Recipe
from burn.runtime.distributed import Processes
from burn.runtime.hardware import cores, processor, source_commit
from burn.training.callbacks.resume import difference_of_runs
from burn.training.plan import RunPlan
from burn.training.records.view_samples import NAME as VIEWS

RUN_FILE = "run.json"


_FORMAT = 1


def read_plan(out: Path) -> RunPlan:
    """The plan of a run begun earlier. Raises UserError where `out` holds none."""
    return _plan_of(read_run_file(out), out)


def _plan_of(stored: dict[str, Any], out: Path) -> RunPlan:
    require_plugins(stored.get("plugins"), "method", METHODS, f"the run in {out}")
    require_plugins(stored.get("plugins"), "backbone", BACKBONES, f"the run in {out}")
    try:
        return from_plain(RunPlan, stored["plan"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(
            f"{out / RUN_FILE} was written by burn {str(stored.get('burn'))[:20]} and does not "
            f"fit burn {version('burn-ssl')}: {error}"
        ) from error


def describe_run(plan: RunPlan, source: Source, teacher: Teacher | None) -> dict[str, Any]:
    origin = None if teacher is None else teacher.origin
    data = {"name": plan.data, "images": len(source), "fingerprint": source.fingerprint}
    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    about = {"format": _FORMAT, **versions, "plan": _plain(plan), "data": data, "teacher": origin}
    plugins = _plugins_of(plan.recipe)
    return {**about, "plugins": plugins} if plugins else about


def _plugins_of(recipe: Recipe) -> list[dict[str, Any]]:
    """The parts that plugins registered, as JSON values."""
    backbone = BACKBONES.get(recipe.backbone.name)
    method = describe_plugin("method", recipe.method, find_method(recipe.method).plugin)
    return [
        *method,
        *describe_plugin("backbone", recipe.backbone.name, backbone and backbone.plugin),
    ]


def describe_machine(processes: Processes) -> dict[str, Any]:
    """What a stage was trained on: this process's machine.

    device: "cpu" or the GPU's name. cores: that the process may use; threads: of its arithmetic.
    commit: of burn's source, as it was when the run was started or resumed.
    """
    device = processes.device
    cuda = device.type == "cuda"
    return {
        "processor": processor(),
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "processes": processes.count,
        "torch": torch.__version__,
        "burn": version("burn-ssl"),
        "commit": source_commit(),
    }


def _plain(plan: RunPlan) -> dict[str, Any]:
    return {**vars(plan), "recipe": plan.recipe.to_json()}


def read_run_file(out: Path) -> dict[str, Any]:
    if not (out / RUN_FILE).exists():
        raise UserError(f"{out} holds no run to resume (no {RUN_FILE})")
    stored = read_json(out / RUN_FILE)
    if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
        raise UserError(f"{out / RUN_FILE} was written by another version of burn")
    return stored


def make_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from error


def appears(file: Path) -> bool:
    """Whether the file is there; a network file system may show it late."""
    deadline = time.monotonic() + 60
    while not file.is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    return file.is_file()


def open_folder(out: Path, described: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Make `out` ready, refusing to touch what is not ours or not meant."""
    for folder in (out, *out.glob("stage?")):
        remove_unfinished(folder)
    if resume and ((out / RUN_FILE).exists() or not any(out.iterdir())):
        if (out / RUN_FILE).exists():
            _check_same(read_run_file(out), described, out)
            return
    elif any(out.iterdir()):
        if not (out / RUN_FILE).is_file():
            raise UserError(f"--out {out} is not empty and holds no run: give another folder")
        if not overwrite:
            raise UserError(f"--out {out} already holds a run: give --resume or --overwrite")
        _remove_run(out)
    try:
        named = {**described, "run": secrets.token_hex(8)}
        write_text(out / RUN_FILE, json.dumps(named, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from error


def _remove_run(out: Path) -> None:
    """Only what a run writes; anything else in its folders stays."""
    (out / VIEWS).unlink(missing_ok=True)
    for number in (1, 2):
        for suffix in (".safetensors", ".json"):
            (out / f"stage{number}{suffix}").unlink(missing_ok=True)
        folder = out / f"stage{number}"
        names = (
            "metrics.csv", "gradients.csv", "layers.csv", "profile.json", "resume*.ckpt",
            "events.out.tfevents.*",
        )  # fmt: skip
        for pattern in names:
            for file in folder.glob(pattern):
                file.unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _check_same(stored: dict[str, Any], described: dict[str, Any], out: Path) -> None:
    """A resumed run must be the same run. Raises UserError naming the first difference."""
    parts = ("plan", "data", "teacher")
    stored = {**stored, "plan": _plain(_plan_of(stored, out))}
    old, now = (json.loads(json.dumps({p: of.get(p) for p in parts})) for of in (stored, described))
    if difference := difference_of_runs(old, now):
        raise UserError(f"{out} cannot be resumed with other settings: {difference}")


def check_stage(
    checkpoint: Checkpoint, plan: RunPlan, described: Mapping[str, Any], number: int,
    precision: Precision,
) -> None:  # fmt: skip
    """A finished stage must be this run's. Raises UserError naming the first difference."""
    expected = {
        "stage": number,
        "precision": precision.value,
        "seed": plan.seed,
        "recipe": {"name": plan.recipe_name, **plan.recipe.to_json()},
        "max_steps": plan.max_steps,
        "data": described["data"],
        "teacher": described["teacher"],
    }
    expected = json.loads(json.dumps(expected))
    meta = {"max_steps": plan.max_steps, **checkpoint.meta}  # an earlier version did not write it
    difference = difference_of_runs({key: meta.get(key) for key in expected}, expected)
    if not difference and not isinstance(checkpoint.meta.get("monitor"), dict):
        difference = "its description is damaged"
    if difference:
        raise UserError(
            f"{checkpoint.origin} is not of this run ({difference}): remove it to "
            "train the stage again"
        )
