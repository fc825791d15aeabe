"""The folder of a run: its file `run.json`, and the check that a resumed run is the same run."""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burn.backbones.entries import BACKBONES
from burn.core.errors import UserError, shortened
from burn.core.files import is_unfinished, remove_unfinished, write_failures_named, write_text
from burn.core.inputs import read_json
from burn.core.paths import RUN_FILE, same_path
from burn.core.plugins import changed_plugins, describe_plugin, require_plugins
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Precision
from burn.data.base import Source
from burn.data.fingerprint import is_earlier
from burn.methods.entries import METHODS, find_method
from burn.recipes.schema import Recipe, without_other_methods
from burn.runtime.hardware import cores, processor, source_commit
from burn.training.plan import RunPlan, stage_steps

if TYPE_CHECKING:
    import torch

    from burn.checkpoints.foreign.weights import Teacher

FORMAT = 1
VIEWS = "views.jpg"  # samples of the augmented views
PRETRAIN = "pretrain"  # the kind of a run whose run.json names none
PARTS = ("plan", "data", "teacher", "init")  # what a resumed run has to agree in


def read_plan(out: Path) -> RunPlan:
    """Read the plan of a run that was started earlier."""
    return _plan_of(read_run_file(out), out)


def _plan_of(stored: dict[str, Any], out: Path) -> RunPlan:
    require_plugins(stored.get("plugins"), "method", METHODS, f"the run in {out}")
    require_plugins(stored.get("plugins"), "backbone", BACKBONES, f"the run in {out}")
    try:
        plan = stored["plan"]
        return from_plain(RunPlan, {**plan, "recipe": Recipe.from_json(plan["recipe"])})
    except (KeyError, TypeError, UserError) as error:
        raise UserError(
            f"{out / RUN_FILE} was written by burn {str(stored.get('burn'))[:20]} and does not "
            f"fit burn {version('burn-ssl')}: {error}"
        ) from error


def describe_run(
    plan: RunPlan,
    source: Source,
    teacher: Teacher | None,
    init: Mapping[str, Any] | None,
    resolved: Mapping[str, str],
) -> dict[str, Any]:
    """Describe a run for run.json, in values that can be written as JSON.

    `init` is where the weights that training starts from came from. `resolved` is what `auto` means
    on this machine: compute and device.
    """
    import torch  # here, because `read_plan` and `require_usable` do not need it

    origin = None if teacher is None else teacher.origin
    data = {"name": plan.data, "images": len(source), "fingerprint": source.fingerprint}
    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    about = {"format": FORMAT, **versions, "plan": _plain(plan), "data": data}
    about |= {"teacher": origin, "init": init, "resolved": dict(resolved)}
    plugins = _plugins_of(plan.recipe)
    return {**about, "plugins": plugins} if plugins else about


def _plugins_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Describe the plugins that registered the recipe's method and backbone, as JSON values."""
    backbone = BACKBONES.get(recipe.backbone.name)
    method = describe_plugin("method", recipe.method, find_method(recipe.method).plugin)
    return [
        *method,
        *describe_plugin("backbone", recipe.backbone.name, backbone and backbone.plugin),
    ]


def describe_machine(device: torch.device, processes: int) -> dict[str, Any]:
    """Describe this process's machine for a checkpoint of a run that `processes` share.

    `cores` is the number that the process may use, and `threads` that of those that compute.
    """
    import torch

    from burn.runtime.gpu import describe_arithmetic

    cuda = device.type == "cuda"
    return {
        "processor": processor(),
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "torch": torch.__version__,
        "burn": version("burn-ssl"),
        "commit": source_commit(),
        **describe_arithmetic(device),
    }


def _plain(plan: RunPlan) -> dict[str, Any]:
    return {**vars(plan), "recipe": plan.recipe.to_json()}


def read_run_file(out: Path) -> dict[str, Any]:
    """Read run.json, or raise UserError if there is none, or one of another version of burn."""
    if not (out / RUN_FILE).exists():
        raise UserError(f"{out} holds no run to resume (no {RUN_FILE})")
    stored = read_json(out / RUN_FILE)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise UserError(f"{out / RUN_FILE} was written by another version of burn")
    _require_kind(stored, out, PRETRAIN)
    return stored


def _require_kind(stored: Any, out: Path, kind: str) -> None:
    of = stored.get("kind", PRETRAIN) if isinstance(stored, dict) else PRETRAIN
    if of != kind:
        raise UserError(
            f"{out} holds a run of burn {shortened(str(of), 20)}, which burn {kind} neither "
            "continues nor replaces: give another --out"
        )


def make_folder(out: Path) -> None:
    """Create the folder of a run if it does not exist."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    with write_failures_named(f"--out {out}"):
        out.mkdir(parents=True, exist_ok=True)


def appears(file: Path) -> bool:
    """Return whether a file exists, after waiting up to 60 s: a network file system may be late."""
    deadline = time.monotonic() + 60
    while not file.is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    return file.is_file()


def require_usable(out: Path, *, resume: bool, overwrite: bool, kind: str = PRETRAIN) -> None:
    """Check that a run can be written to a folder, which need not exist; nothing is changed.

    A run in it must be of the command `kind`, and to be continued (`resume`) or deleted
    (`overwrite`).
    """
    existing = next(path for path in (out, *out.parents) if os.path.lexists(path))
    if not existing.is_dir():
        what = f"--out {out}" if existing == out else f"--out {out}: {existing}"
        raise UserError(f"{what} is a file: give a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--out {out} cannot be written: {os.strerror(errno.EACCES)}")
    if existing != out or all(map(is_unfinished, out.iterdir())):
        return
    if not (out / RUN_FILE).is_file():
        raise UserError(f"--out {out} is not empty and holds no run: give another folder")
    _require_kind(read_json(out / RUN_FILE), out, kind)
    if not resume and not overwrite:
        raise UserError(
            f"--out {out} already holds a run: give --resume or --overwrite (in Python "
            "resume=True or overwrite=True)"
        )


def open_folder(
    out: Path, plan: RunPlan, described: dict[str, Any], *, resume: bool, overwrite: bool
) -> list[str]:
    """Prepare the folder of a run: check it, empty it or keep its run, and write run.json.

    Returns remarks on a resumed run, a line each.
    """
    for folder in (out, *out.glob("stage?")):
        remove_unfinished(folder)
    require_usable(out, resume=resume, overwrite=overwrite)
    if (out / RUN_FILE).exists():
        if resume:
            stored = read_run_file(out)
            remarks = _check_same(stored, plan, described, out)
            now = {"resolved": described["resolved"], **stored}
            now |= {part: described[part] for part in PARTS}
            if json.loads(json.dumps(now)) != stored:  # places, length, or an earlier burn's
                write_run_file(out, now)
            return remarks + changed_plugins(stored.get("plugins"), described.get("plugins", []))
        _remove_run(out)
    write_run_file(out, {**described, "run": secrets.token_hex(8)})
    return []


def write_run_file(out: Path, described: Mapping[str, Any]) -> None:
    with write_failures_named(f"--out {out}"):
        write_text(out / RUN_FILE, json.dumps(described, indent=2) + "\n")


def _remove_run(out: Path) -> None:
    """Delete the files that a run writes, and no others."""
    (out / VIEWS).unlink(missing_ok=True)
    for number in (1, 2):
        for suffix in (".safetensors", ".json"):
            (out / f"stage{number}{suffix}").unlink(missing_ok=True)
        folder = out / f"stage{number}"
        names = (
            "metrics.csv", "gradients.csv", "layers.csv", "terms.csv", "profile.json",
            "resume*.ckpt", "events.out.tfevents.*",
        )  # fmt: skip
        for pattern in names:
            for file in folder.glob(pattern):
                file.unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _check_same(
    stored: dict[str, Any], plan: RunPlan, described: dict[str, Any], out: Path
) -> list[str]:
    """Return remarks on a resumed run, or raise UserError with its first difference."""
    stored_plan = _plan_of(stored, out)
    stored = {**stored, "plan": _plain(stored_plan)}
    old, now = (
        json.loads(json.dumps({p: run.get(p) for p in PARTS})) for run in (stored, described)
    )
    if difference := difference_of_runs(old, now):
        # The user gave `--epochs`, not `plan.recipe.epochs`.
        difference = difference.removeprefix("plan.").removeprefix("recipe.")
        difference = re.sub(r"^recipe_name ", "recipe ", difference)
        raise UserError(
            f"{out} cannot be resumed with other settings: {difference}; leave the option out, or "
            "give another --out"
        )
    data = described["data"]
    before, steps = (
        stage_steps(each.recipe, data["images"], max_steps=each.max_steps).total
        for each in (stored_plan, plan)
    )
    if steps < before:
        raise UserError(
            f"{out} is a run of {before:,} steps in each stage, and cannot be resumed with "
            f"{steps:,}: give as many or more by --max-steps or --epochs, or another --out"
        )
    if is_earlier(stored["data"].get("fingerprint"), data["fingerprint"]):
        return [
            f"an earlier burn began {out} and did not look at the pixels of {data['name']}: only "
            "the number of images was compared"
        ]
    return []


def require_same_recipe(out: Path, plan: RunPlan) -> None:
    """Check that a run, perhaps finished, is of a plan's recipe and length, on whatever images."""
    from burn.learning.resume_files import first_difference

    run_plan = read_plan(out)
    before, now = (
        {**json.loads(json.dumps(each.recipe.to_json())), "steps": each.max_steps}
        for each in (run_plan, plan)
    )
    if difference := first_difference(before, now):
        raise UserError(f"{out} was begun with other settings: {difference}; give another --out")


def check_stage(
    checkpoint: Checkpoint,
    plan: RunPlan,
    described: Mapping[str, Any],
    number: int,
    precision: Precision,
) -> None:
    """Check that the checkpoint of a finished stage belongs to a run, or name a difference."""
    expected = {
        "stage": number,
        "precision": precision.value,
        "seed": plan.seed,
        "recipe": {"name": plan.recipe_name, **plan.recipe.to_json()},
        "max_steps": plan.max_steps,
        "data": described["data"],
        "teacher": described["teacher"],
        "init": described["init"],
    }
    expected = json.loads(json.dumps(expected))
    meta = {"max_steps": plan.max_steps, **checkpoint.meta}  # earlier versions did not write it
    difference = difference_of_runs({key: meta.get(key) for key in expected}, expected)
    if not difference and not (
        isinstance(meta.get("monitor"), dict) and isinstance(meta.get("steps"), int)
    ):
        difference = "its description is damaged"
    if difference:
        raise UserError(
            f"{checkpoint.origin} does not belong to this run ({difference}): remove it to "
            "train the stage again"
        )


def difference_of_runs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the first difference of two runs, as in run.json, that affects their numbers, or None.

    Another place of the same images, or of a teacher or start with the same weights, is no
    difference, nor is another length, to which a run is extended. Of a run whose fingerprint an
    earlier version of burn computed, the place and number of the images are compared.
    """
    from burn.learning.resume_files import first_difference

    old = copy.deepcopy(dict(old))
    for before, now in ((old, new), (old.get("plan"), new.get("plan"))):
        _take_length(before, now, "max_steps")
        if isinstance(before, dict) and isinstance(now, Mapping):
            if isinstance(before.get("recipe"), Mapping):
                before["recipe"] = without_other_methods(before["recipe"])
            _take_length(before.get("recipe"), now.get("recipe"), "epochs")
    for part in ("data", "teacher", "init"):
        before, now = old.get(part), new.get(part)
        if not isinstance(before, dict) or not isinstance(now, dict):
            continue
        if part == "data":
            if difference := _difference_of_data(before, now):
                return difference
        elif before | {"spec": now.get("spec")} != now:  # the rest contains the weights' SHA-256
            continue
        old[part] = now
        if isinstance(old.get("plan"), dict):
            old["plan"][part] = new["plan"][part]
    return first_difference(old, dict(new))


def _take_length(before: Any, now: Any, name: str) -> None:
    if isinstance(before, dict) and isinstance(now, Mapping) and name in before:
        before[name] = now.get(name)


def _difference_of_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    there = same_path(str(before.get("name")), str(now.get("name")))
    if is_earlier(before.get("fingerprint"), now.get("fingerprint")):
        if not there:
            return (
                f"an earlier burn began it on {before.get('name')} and did not look at the pixels: "
                f"nothing says whether {now['name']} holds the same images"
            )
        same = before.get("images") == now.get("images")
    else:
        same = before.get("fingerprint") == now.get("fingerprint")
    if same:
        return None
    numbers = f"{before.get('images')} images then, {now.get('images')} now"
    if there:
        return f"{now['name']} holds other images or labels than then ({numbers})"
    return f"{now['name']} does not hold the images and labels of {before.get('name')} ({numbers})"
