"""A pretraining run: stages in order, hand-over between them, and resuming where it stopped."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console
from torch import nn

from burn.backbones import build_backbone
from burn.checkpoint import load_checkpoint, save_checkpoint
from burn.compute import Device, torch_device, uses_bfloat16
from burn.data.loader import EpochSampler, TrainLoader, random_views
from burn.data.sources import Source, open_source, require_readable
from burn.errors import UserError
from burn.files import locked, write_text
from burn.layers import BinaryConv2d
from burn.methods.base import Method
from burn.methods.registry import NEED_LABELS, NEED_TEACHER, build_method
from burn.settings import from_plain
from burn.stop import StopRequest
from burn.targets.weights import Teacher, load_teacher
from burn.training.callbacks import (
    Guard,
    Monitor,
    OnlineKnn,
    ProgressBar,
    ResumeFile,
    collapse_message,
)
from burn.training.module import PretrainModule
from burn.training.monitor import GradientFlowGuard
from burn.training.recipe import Recipe
from burn.types import Checkpoint, Precision

_RUN_FILE = "run.json"
_FORMAT = 1


class Interrupted(UserError):
    """The run was stopped by a signal and can be resumed."""


@dataclass(frozen=True)
class RunPlan:
    """What is trained on what: a recipe with its data, teacher and seed.

    data: as `open_source` takes it. teacher: as `load_teacher` takes it, or None. max_steps cuts
    every stage to that many optimizer steps; its schedules span what is left.
    """

    recipe_name: str
    recipe: Recipe
    data: str
    teacher: str | None
    seed: int = 0
    max_steps: int | None = None


@dataclass(frozen=True)
class Machine:
    """Where and how it runs, without influence on what comes out (beyond rounding)."""

    device: Device = "auto"
    workers: int | None = None
    monitor_every: int = 20


@dataclass(frozen=True)
class StageSummary:
    """How a stage ended; `numbers` are the last ones the monitor wrote."""

    stage: int
    precision: Precision
    checkpoint: Path
    steps: int
    seconds: float
    images_per_second: float
    knn: float | None
    collapsed_at: int | None
    numbers: Mapping[str, float]


def pretrain(
    plan: RunPlan,
    out: Path,
    machine: Machine,
    console: Console,
    *,
    resume: bool,
    overwrite: bool,
    resume_command: str | None = None,
) -> list[StageSummary]:
    """Train every stage of the plan into `out`, and say on the console how each ended.

    A stage leaves stageN.safetensors, stageN.json, and in stageN/ metrics.csv, TensorBoard's
    events and, while it is under way, Lightning's resume file. resume_command is what the user is
    told to type after an interruption. Raises UserError for what cannot be used,
    GradientFlowError where the loss does not train, Interrupted after a signal.
    """
    plan.recipe.check()
    _check_plan(plan, machine)
    if overwrite and plan.teacher and _lies_in(Path(plan.teacher), out):
        raise UserError(f"--overwrite would delete the teacher {plan.teacher}: give another --out")
    source = open_source(plan.data)
    require_readable(source, at_least=2)
    if plan.recipe.method in NEED_LABELS and source.labels is None:
        raise UserError(
            f"method {plan.recipe.method} needs labels, but {plan.data} has none: give class "
            "folders, or parquet with a column label"
        )
    teacher = load_teacher(plan.teacher) if plan.teacher else None
    _check_size(plan.recipe)
    described = _describe(plan, source, teacher)
    _make_method(plan, plan.recipe.precisions()[0], source, teacher)
    resume_command = resume_command or f"burn pretrain --resume --out {out}"
    if not resume:
        _make_folder(out)
    with locked(out):
        _open_folder(out, described, resume=resume, overwrite=overwrite)
        return _train_stages(
            plan, out, machine, console, source, teacher, described, resume_command
        )


def _train_stages(
    plan: RunPlan, out: Path, machine: Machine, console: Console, source: Source,
    teacher: Teacher | None, described: dict[str, Any], resume_command: str,
) -> list[StageSummary]:  # fmt: skip
    summaries = []
    weights: Mapping[str, torch.Tensor] | None = None
    for number, precision in enumerate(plan.recipe.precisions(), start=1):
        file = out / f"stage{number}.safetensors"
        if file.is_file():
            checkpoint = load_checkpoint(file)
            _check_stage(checkpoint, plan, number, precision)
            summaries.append(_summary(number, file, checkpoint.meta))
            console.print(f"stage {number} is done already: {file}")
        else:
            stage = _Stage(plan, number, precision, source, teacher, machine, console, out)
            stage.train(weights, described, resume_command)
            checkpoint = load_checkpoint(file)
            summaries.append(_summary(number, file, checkpoint.meta))
        weights = checkpoint.weights
    return summaries


def read_plan(out: Path) -> RunPlan:
    """The plan of a run begun earlier. Raises UserError where `out` holds none."""
    return _plan_of(_read_run_file(out), out)


def _plan_of(stored: dict[str, Any], out: Path) -> RunPlan:
    try:
        return from_plain(RunPlan, stored["plan"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(
            f"{out / _RUN_FILE} was written by burn {stored.get('burn', 'unknown')} and does not "
            f"fit burn {version('burn-ssl')}: {error}"
        ) from error


def _check_plan(plan: RunPlan, machine: Machine) -> None:
    method = plan.recipe.method
    if method in NEED_TEACHER and not plan.teacher:
        recipe = "teacher_supervised_small" if method == "supervised_kl" else "teacher_small"
        raise UserError(
            f"method {method} needs a teacher: --teacher ARCHITECTURE:FILE, or a run of a teacher "
            f"recipe, {recipe} say"
        )
    if method not in NEED_TEACHER and plan.teacher is not None:
        raise UserError(f"method {method} learns without a teacher: leave --teacher out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("pretraining runs in one process on one device: start it without torchrun")
    if machine.monitor_every < 1 or (machine.workers or 0) < 0:
        raise UserError("--monitor-every must be at least 1 and --workers at least 0")
    if plan.max_steps is not None and plan.max_steps < 1:
        raise UserError(f"max_steps {plan.max_steps} is not at least 1")
    if not 0 <= plan.seed < 2**32:
        raise UserError(f"seed {plan.seed} is not in 0 … 2³² - 1")


def _check_size(recipe: Recipe) -> None:
    """The views must be large enough for the backbone's strides, and its pooling give a vector."""
    network = build_backbone(recipe.backbone, recipe.precisions()[0]).eval()
    name = recipe.backbone.name
    num_views = 2 + recipe.swav.small_crops
    single: list[nn.Module] = []

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if layer.stride not in (1, (1, 1)) and max(inputs[0].shape[2:]) == 1:
            single.append(layer)

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, BinaryConv2d)):
            layer.register_forward_pre_hook(look)
    for size in {config.size for config in recipe.view_configs(num_views)}:
        try:
            with torch.inference_mode():
                width = network(torch.zeros(1, 3, size, size)).shape[1]
        except (RuntimeError, AssertionError, IndexError) as error:
            raise UserError(f"backbone {name} cannot take views of {size} pixels") from error
        if width != network.num_features:
            raise UserError(f"backbone {name} has no plain pooled features: use another")
        if single:
            # And torch 2.15 gives such a layer a wrong gradient in bfloat16 on a CPU.
            raise UserError(
                f"views of {size} pixels shrink to a single one before the last stride of {name}: "
                "use larger views, or smaller strides"
            )


def _describe(plan: RunPlan, source: Source, teacher: Teacher | None) -> dict[str, Any]:
    origin = None if teacher is None else teacher.origin
    data = {"name": plan.data, "images": len(source), "fingerprint": source.fingerprint}
    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    return {"format": _FORMAT, **versions, "plan": _plain(plan), "data": data, "teacher": origin}


def _plain(plan: RunPlan) -> dict[str, Any]:
    return {**vars(plan), "recipe": plan.recipe.to_json()}


def _make_method(
    plan: RunPlan, precision: Precision, source: Source, teacher: Teacher | None
) -> Method:
    """The method of a stage with fresh weights.

    Raises UserError for a teacher that lacks what it learns from, and where memory does not do.
    """
    recipe = plan.recipe
    torch.manual_seed(plan.seed)
    try:
        backbone = build_backbone(recipe.backbone, precision)
        config, num_classes = recipe.method_config(), len(source.classes)
        return build_method(recipe.method, config, backbone, teacher, num_classes)
    except RuntimeError as error:  # the allocator's
        raise UserError(f"method {recipe.method} cannot be built: {error}") from error


def _read_run_file(out: Path) -> dict[str, Any]:
    try:
        stored = json.loads((out / _RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{out} holds no run to resume (no {_RUN_FILE})") from None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{out / _RUN_FILE} cannot be read: {error}") from error
    if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
        raise UserError(f"{out / _RUN_FILE} was written by another version of burn")
    return stored


def _make_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from error


def _open_folder(out: Path, described: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Make `out` ready, refusing to touch what is not ours or not meant."""
    if resume:
        _check_same(_read_run_file(out), described, out)
        return
    if any(out.iterdir()):
        if not (out / _RUN_FILE).is_file():
            raise UserError(f"--out {out} is not empty and holds no run: give another folder")
        if not overwrite:
            raise UserError(f"--out {out} already holds a run: give --resume or --overwrite")
        _remove_run(out)
    try:
        write_text(out / _RUN_FILE, json.dumps(described, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from error


def _remove_run(out: Path) -> None:
    """Only what a run writes; anything else in its folders stays."""
    for number in (1, 2):
        for suffix in (".safetensors", ".json"):
            (out / f"stage{number}{suffix}").unlink(missing_ok=True)
        folder = out / f"stage{number}"
        for pattern in ("metrics.csv", "resume.ckpt", "events.out.tfevents.*"):
            for file in folder.glob(pattern):
                file.unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _lies_in(path: Path, folder: Path) -> bool:
    return path.exists() and path.resolve().is_relative_to(folder.resolve())


def _check_same(stored: dict[str, Any], described: dict[str, Any], out: Path) -> None:
    """A resumed run must be the same run. Raises UserError naming the first difference."""
    now = json.loads(json.dumps(described))
    stored = {**stored, "plan": json.loads(json.dumps(_plain(_plan_of(stored, out))))}
    for part in ("plan", "data", "teacher"):
        difference = _first_difference(stored.get(part), now[part], part)
        if difference:
            raise UserError(f"{out} cannot be resumed with other settings: {difference}")


def _first_difference(old: Any, new: Any, name: str) -> str | None:
    if isinstance(old, dict) and isinstance(new, dict):
        # What an earlier burn did not write yet cannot differ.
        for key in sorted(old):
            found = _first_difference(old[key], new.get(key), f"{name}.{key}")
            if found:
                return found
        return None
    return None if old == new else f"{name} was {old}, is {new}"


def _check_stage(checkpoint: Checkpoint, plan: RunPlan, number: int, precision: Precision) -> None:
    """A finished stage must be this run's. Raises UserError naming the first difference."""
    expected = {
        "stage": number,
        "precision": precision.value,
        "seed": plan.seed,
        "recipe": {"name": plan.recipe_name, **plan.recipe.to_json()},
    }
    expected = json.loads(json.dumps(expected))
    difference = _first_difference(
        {key: checkpoint.meta.get(key) for key in expected}, expected, ""
    )
    if not difference and not isinstance(checkpoint.meta.get("monitor"), dict):
        difference = "its description is damaged"
    if difference:
        raise UserError(
            f"{checkpoint.origin} is not of this run ({difference.lstrip('.')}): remove it to "
            "train the stage again"
        )


def _summary(number: int, file: Path, meta: Mapping[str, Any]) -> StageSummary:
    monitor = meta["monitor"]
    return StageSummary(
        stage=number,
        precision=Precision(meta["precision"]),
        checkpoint=file,
        steps=meta["steps"],
        seconds=monitor.get("seconds", 0.0),
        images_per_second=monitor["images_per_second"],
        knn=monitor["knn"],
        collapsed_at=monitor["collapsed_at"],
        numbers=monitor["last"],
    )


class _Stage:
    """One stage of a run."""

    def __init__(
        self, plan: RunPlan, number: int, precision: Precision, source: Source,
        teacher: Teacher | None, machine: Machine, console: Console, out: Path,
    ) -> None:  # fmt: skip
        self._plan, self._number, self._precision = plan, number, precision
        self._source, self._teacher, self._machine = source, teacher, machine
        self._console, self._out = console, out
        self._folder = out / f"stage{number}"

    def train(
        self,
        weights: Mapping[str, torch.Tensor] | None,
        described: dict[str, Any],
        resume_command: str,
    ) -> None:
        """From the previous stage's weights (None: fresh) to this stage's checkpoint."""
        plan, recipe = self._plan, self._plan.recipe
        method = _make_method(plan, self._precision, self._source, self._teacher)
        if weights is not None:
            method.load_weights(weights)
        workers = self._machine.workers
        if workers is None:
            workers = default_workers(self._machine.device)
        seed = plan.seed + 1000 * (self._number - 1)  # stage 2 sees other views than stage 1
        micro_batch = recipe.batch_size // recipe.accumulate
        loader = TrainLoader(
            self._source,
            random_views(recipe.view_configs(method.num_views), seed),
            EpochSampler(len(self._source), micro_batch, seed, drop_last=True),
            workers,
        )
        steps_per_epoch = -(-len(loader) // recipe.accumulate)
        num_steps = steps_per_epoch * recipe.epochs
        if plan.max_steps is not None:
            num_steps = min(num_steps, plan.max_steps)
        module = PretrainModule(method, recipe, num_steps, steps_per_epoch)

        self._folder.mkdir(exist_ok=True)
        stop = StopRequest()
        monitor = Monitor(self._machine.monitor_every, self._folder, self._console)
        resume_path = self._folder / "resume.ckpt"
        resume_file = ResumeFile(resume_path, stop)
        knn = [OnlineKnn(self._source, monitor, stop)] if self._has_labels() else []
        title = f"stage {self._number}/{len(recipe.precisions())} {self._precision.value}"
        trainer = _trainer(
            [
                Guard(GradientFlowGuard(method.parts())),
                monitor,
                *knn,
                resume_file,
                ProgressBar(title, monitor, self._console),
            ],
            recipe, num_steps, self._machine.device,
        )  # fmt: skip
        self._fit(module, trainer, loader, resume_file, resume_command)
        self._finish(module, monitor, described)
        resume_path.unlink(missing_ok=True)

    def _fit(
        self,
        module: PretrainModule,
        trainer: L.Trainer,
        loader: TrainLoader,
        resume_file: ResumeFile,
        resume_command: str,
    ) -> None:
        """Train to the last step, from the resume file where there is one."""
        resumed = resume_file.path if resume_file.path.is_file() else None
        if resumed:
            _check_resume_file(resumed, module)
        again = f"go on with: {resume_command}"
        with resume_file.stop.installed(), _quiet():
            try:
                trainer.fit(module, loader, ckpt_path=resumed, weights_only=True)
            except SystemExit:  # Lightning's answer to SIGTERM, and to a second Ctrl-C
                if not resume_file.stopped:
                    message = f"stopped at once in stage {self._number}; {again}"
                    raise Interrupted(message) from None
        if resume_file.stopped and trainer.global_step < module.num_steps:
            raise Interrupted(
                f"stopped and saved at step {trainer.global_step} of {module.num_steps} in stage "
                f"{self._number}; {again}"
            )

    def _has_labels(self) -> bool:
        return self._source.labels is not None and len(self._source) >= 10

    def _finish(self, module: PretrainModule, monitor: Monitor, described: dict[str, Any]) -> None:
        recipe = self._plan.recipe
        weights = module.method.weights()
        if not module.learned:
            raise UserError("no batch held two readable images: nothing was learned or saved")
        if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
            raise UserError("the weights are not finite: lower --optim.lr; nothing was saved")
        seconds = monitor.seconds
        images = module.global_step * min(recipe.batch_size, len(self._source))
        meta = {
            "stage": self._number,
            "num_stages": len(recipe.precisions()),
            "precision": self._precision.value,
            "steps": module.global_step,
            "seed": self._plan.seed,
            "backbone": recipe.to_json()["backbone"],
            "views": recipe.to_json()["views"],
            "recipe": {"name": self._plan.recipe_name, **recipe.to_json()},
            "data": described["data"],
            "teacher": described["teacher"],
            "monitor": {
                "knn": monitor.knn,
                "collapsed_at": monitor.collapsed_at,
                "seconds": seconds,
                "images_per_second": images / max(seconds, 1e-9),
                "unreadable_images": len(monitor.unreadable),
                "last": monitor.last,
            },
        }
        file = self._out / f"stage{self._number}.safetensors"
        save_checkpoint(file, weights, meta)
        self._report(monitor)

    def _report(self, monitor: Monitor) -> None:
        if monitor.collapsed_at is not None:
            text = collapse_message(monitor.collapsed_at, monitor.last)
            self._console.print(f"stage {self._number}: {text}", style="bold red")
        if monitor.unreadable:
            first = sorted(monitor.unreadable)
            names = ", ".join(self._source.describe(index) for index in first[:5])
            more = f" and {len(first) - 5} more" if len(first) > 5 else ""
            self._console.print(f"unreadable images, left out: {len(first)}: {names}{more}")


def default_workers(device: Device) -> int:
    """Processes that load images: most cores feed a GPU; on a CPU half, the other half trains."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    cuda = torch_device(device).type == "cuda"
    return min(16, cores) if cuda else max(1, cores // 2)


def _check_resume_file(resume_path: Path, module: PretrainModule) -> None:
    damaged = f"{resume_path} is damaged: remove it to begin this stage again, then --resume"
    try:
        content = torch.load(resume_path, map_location="cpu", weights_only=True, mmap=True)
        names = set(content["state_dict"])
        known = {"loops", "optimizer_states", "lr_schedulers", "global_step"} <= content.keys()
    except Exception as error:  # whatever a damaged file makes of the reader
        raise UserError(damaged) from error
    if not known or names != {f"method.{name}" for name in module.method.weights()}:
        raise UserError(damaged.replace("damaged", "not of this stage"))


def _trainer(
    callbacks: list[L.Callback], recipe: Recipe, num_steps: int, device: Device
) -> L.Trainer:
    torch_device(device)  # says so where there is none
    with _quiet():
        return L.Trainer(
            accelerator="auto" if device == "auto" else device,
            devices=1,
            precision="bf16-mixed" if uses_bfloat16(recipe.compute, device) else "32-true",
            max_steps=num_steps,
            max_epochs=-1,
            accumulate_grad_batches=recipe.accumulate,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            callbacks=callbacks,
            logger=False,
            num_sanity_val_steps=0,
        )


class _quiet:
    """Lightning's tips and notices, which a user can do nothing about, stay away."""

    _LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero",
                "lightning.pytorch.accelerators.cuda")  # fmt: skip

    def __enter__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in self._LOGGERS}
        for name in self._LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=r".*num_workers.*")

    def __exit__(self, *exception: object) -> None:
        self._caught.__exit__(None, None, None)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
