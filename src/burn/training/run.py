"""A pretraining run: stages in order, hand-over between them, and resuming where it stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from signal import SIGINT
from typing import Any, NoReturn

import lightning as L
import numpy as np
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from burn.backbones.base import Backbone
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher, load_teacher
from burn.checkpoints.native import (
    complete_checkpoint,
    images_per_step,
    load_checkpoint,
    save_checkpoint,
)
from burn.core.errors import Interrupted, SaidByFirst, UserError
from burn.core.files import locked, remove_unfinished, write_text
from burn.core.inputs import read_json
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Precision
from burn.data.feature_cache import FeatureCache
from burn.data.loader import EpochLoader
from burn.data.sources import Source, open_source, require_outside, require_readable
from burn.layers import BinaryConv2d
from burn.methods.base import Method
from burn.methods.configs import NEED_LABELS, NEED_TEACHER
from burn.methods.registry import SHUFFLE_NORMS, build_method
from burn.methods.shared.frozen import FrozenTarget
from burn.recipes.schema import Recipe
from burn.runtime.compute import Device, torch_device, uses_bfloat16
from burn.runtime.distributed import Processes
from burn.runtime.hardware import cores, processor, source_commit
from burn.runtime.signals import StopRequest
from burn.training.batches import stage_batches, stage_views
from burn.training.callbacks.all import (
    Gradients,
    Guard,
    Layers,
    Monitor,
    OnlineKnn,
    ProgressBar,
    collapse_message,
    features_message,
    unreadable_images,
)
from burn.training.callbacks.finite import FiniteSteps
from burn.training.callbacks.guard import GradientFlowGuard
from burn.training.callbacks.profile import Profile
from burn.training.callbacks.resume import (
    ResumeFiles,
    ResumeWriter,
    SaveResume,
    difference_of_runs,
)
from burn.training.module import PretrainModule
from burn.training.plan import Machine, RunPlan
from burn.training.records.binary import BinaryLayers
from burn.training.records.view_samples import NAME as VIEWS
from burn.training.records.view_samples import save_view_samples, view_samples
from burn.training.records.writer import Record
from burn.training.start_summary import (
    cache_line,
    expected_time,
    learning_rate_caution,
    start_summary,
    time_line,
)
from burn.training.steps import StageSteps, monitor_interval, stage_steps
from burn.training.teacher_cache import TeacherCache

_RUN_FILE = "run.json"
# What gloo and NCCL say when another process has ended.
_LOST = re.compile("gloo|NCCL|[Cc]onnection|[Ss]ocket")
_FORMAT = 1


@dataclass(frozen=True)
class StageSummary:
    """How a stage ended; `numbers` are the last ones the monitor wrote.

    collapsed_at: the step at which its target was called collapsed, or None;
    features_collapsed_at: its backbone's features. teacher_cached: of the teacher's features, the
    share that a cache knew, in [0, 1]; None without a teacher.
    """

    stage: int
    precision: Precision
    checkpoint: Path
    steps: int
    images_seen: int
    seconds: float
    images_per_second: float
    knn: float | None
    collapsed_at: int | None
    features_collapsed_at: int | None
    teacher_cached: float | None
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
    named: Recipe | None = None,
) -> list[StageSummary]:
    """Train every stage of the plan into `out`; say on the console what is done and how it ended.

    A run leaves views.jpg, samples of its augmented views. A stage leaves stageN.safetensors,
    stageN.json, and in stageN/ metrics.csv, gradients.csv, layers.csv, TensorBoard's events and,
    while it is under way, the resume files. resume: go on with the run in `out`, or begin where
    there is none. resume_command is what the user is told to type after an interruption. named: the
    recipe as it is by its name, before the user changed its fields; where the batch size does not
    fit its learning rate any more, that is said. Raises UserError for what cannot be used,
    GradientFlowError where the loss does not train, Interrupted after a signal.

    Several processes (see `burn.runtime.distributed`) share every batch; `out` must be a folder
    that all of them see.
    """
    plan.recipe.check()
    _check_plan(plan)
    machine.check()
    if overwrite and plan.teacher and _lies_in(Path(plan.teacher), out):
        raise UserError(f"--overwrite would delete the teacher {plan.teacher}: give another --out")
    processes = Processes.start(torch_device(machine.device))
    try:
        processes.on_first(lambda: _check_shares(plan.recipe, processes))
        if not processes.first:
            console = Console(quiet=True)
        run = processes.on_first_then_all(lambda: _Run(plan, machine, processes, console))
        require_outside(out, run.source)
        run.resume_command = resume_command or f"burn pretrain --resume --out {out}"
        run.named = named or plan.recipe
        return run.train(out, resume=resume, overwrite=overwrite)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if processes.count == 1 or not _LOST.search(reason):
            raise
        raise UserError(
            f"another of {processes.count} processes has ended, and its own message says why, or "
            f"the network failed ({reason})"
        ) from error
    finally:
        processes.leave()


class _Run:
    """A plan with everything read that its stages share."""

    def __init__(
        self, plan: RunPlan, machine: Machine, processes: Processes, console: Console
    ) -> None:
        self.plan, self.machine = plan, machine
        self.processes, self.console = processes, console
        self.resume_command = ""
        self.named = plan.recipe
        self.source = open_source(plan.data)
        require_readable(self.source, at_least=2 * processes.count)
        if plan.recipe.method in NEED_LABELS and self.source.labels is None:
            raise UserError(
                f"method {plan.recipe.method} needs labels, but {plan.data} has none: give class "
                "folders, or parquet with a column label"
            )
        self.teacher = load_teacher(plan.teacher) if plan.teacher else None
        _check_size(plan.recipe)
        self.cache = self._open_cache()
        if self.teacher is not None and not (self.cache and self.cache.is_known):
            _check_teacher_size(plan.recipe, self.teacher, plan.teacher or "")
        if self.cache is not None:  # now that the teacher can take its views
            self.processes.on_first(self.cache.make)
        self.described = _describe(plan, self.source, self.teacher)
        self.machine_described = _describe_machine(processes)

    def _open_cache(self) -> TeacherCache | None:
        """Where the teacher's features are kept, if they are to be."""
        folder, recipe = self.machine.teacher_cache, self.plan.recipe
        if folder is None:
            return None
        if self.teacher is None:
            raise UserError(f"--teacher-cache: method {recipe.method} has no teacher; leave it out")
        compute = "bfloat16" if uses_bfloat16(recipe.compute, self.machine.device) else "float32"
        return TeacherCache(Path(folder), recipe, self.teacher, self.source, compute)

    def make_method(self, precision: Precision) -> Method:
        """The method of a stage with fresh weights.

        Raises UserError for a teacher that lacks what it learns from, and where memory does not do.
        """
        recipe = self.plan.recipe
        torch.manual_seed(self.plan.seed)
        try:
            backbone = build_backbone(recipe.backbone, precision)
            config, num_classes = recipe.method_config(), len(self.source.classes)
            return build_method(recipe.method, config, backbone, self.teacher, num_classes)
        except RuntimeError as error:  # the allocator's
            raise UserError(f"method {recipe.method} cannot be built: {error}") from error

    def train(self, out: Path, *, resume: bool, overwrite: bool) -> list[StageSummary]:
        """Every stage that is not done yet, in order, into `out`."""
        seen = self.processes.gather(self.source.fingerprint)
        if len(set(seen)) > 1:
            rank = next(i for i, found in enumerate(seen) if found != seen[0])
            self.fail(f"process {rank} finds other images at {self.plan.data} than process 0")
        self.processes.on_first(lambda: _make_folder(out))
        with contextlib.ExitStack() as held:

            def prepare() -> None:
                held.enter_context(locked(out))
                _open_folder(out, self.described, resume=resume, overwrite=overwrite)

            self.processes.on_first(prepare)
            if not all(self.processes.gather(_appears(out / _RUN_FILE))):
                self.fail(f"--out {out} is not a folder that all processes see")
            self.processes.on_first(lambda: self._describe_start(out))
            self.processes.on_first(lambda: self._keep_view_samples(out))
            stop = StopRequest("finishing this step and saving")
            with stop.installed():
                return self._train_stages(out, stop)

    def _train_stages(self, out: Path, stop: StopRequest) -> list[StageSummary]:
        summaries = []
        weights: Mapping[str, torch.Tensor] | None = None
        for number, precision in enumerate(self.plan.recipe.precisions(), start=1):
            file = out / f"stage{number}.safetensors"
            done = self.processes.gather(file.exists())[0]
            if not done:
                if number > 1 and (signal := int(self.processes.largest(stop.number))):
                    raise self.interrupted(f"stopped after stage {number - 1}", signal)
                _Stage(self, number, precision, out, stop).train(weights)
            checkpoint = load_checkpoint(file)
            _check_stage(checkpoint, self.plan, self.described, number, precision)
            if done:
                folder = out / f"stage{number}"
                self.processes.on_first(partial(_tidy, file, checkpoint, folder))
                self.console.print(f"stage {number} is done already: {file}")
            summaries.append(_summary(number, file, checkpoint.meta))
            weights = checkpoint.weights
        return summaries

    def _describe_start(self, out: Path) -> None:
        """Say what is going to be done, on what, and how long it takes on a CPU."""
        recipe, steps, console = self.plan.recipe, self.steps, self.console
        bfloat16 = uses_bfloat16(recipe.compute, self.machine.device)
        across = ""
        if self.processes.count > 1:
            across = f"; BN over {'all processes' if self.synchronizes else 'each its own images'}"
            if self.processes.device.type != "cuda":
                across += " (SyncBN needs CUDA)"
        lines = start_summary(
            self.source, recipe, steps, self.plan.max_steps, self.machine_described,
            "bfloat16" if bfloat16 else "float32", self.workers, across,
            self.described["teacher"],
        )  # fmt: skip
        for line in lines:
            console.print(line, markup=False, highlight=False)
        caution = learning_rate_caution(
            recipe, self.named, self.plan.recipe_name, steps.batch_size
        )  # fmt: skip
        if caution:
            console.print(caution, style="yellow", markup=False, highlight=False)
        method = self.make_method(recipe.precisions()[0])
        known = 0.0
        if self.cache is not None:
            seed = _seed(self.plan.seed, 1)
            known, line = cache_line(self.cache, seed, method, recipe, steps)
            console.print(line, markup=False, highlight=False)
        begun = any(out.glob("stage?"))  # the time would be that of the part that is done, too
        if not begun and self.processes.device.type == "cpu" and self.processes.count == 1:
            seconds = expected_time(method, recipe, steps, bfloat16=bfloat16, known=known > 0.5)
            if seconds is not None:
                line = time_line(seconds, steps, recipe)
                console.print(line, markup=False, highlight=False)

    def _keep_view_samples(self, out: Path) -> None:
        """Write what the views look like; a run goes on without the picture."""
        if (out / VIEWS).exists():
            return
        recipe = self.plan.recipe
        method = self.make_method(recipe.precisions()[0])
        views = stage_views(recipe, method, _seed(self.plan.seed, 1))
        picture = view_samples(self.source, views, self.plan.seed)
        try:
            if picture is not None:
                save_view_samples(out / VIEWS, picture)
        except OSError as error:
            self.console.print(f"{out / VIEWS} cannot be written: {error.strerror or error}")

    @property
    def workers(self) -> int:
        """Data-loader workers of each process."""
        if self.machine.workers is not None:
            return self.machine.workers
        return default_workers(self.machine.device, self.processes.local_count)

    @property
    def steps(self) -> StageSteps:
        """The steps of each stage."""
        plan = self.plan
        return stage_steps(plan.recipe, len(self.source), self.processes.count, plan.max_steps)

    @property
    def synchronizes(self) -> bool:
        """Whether BN takes its statistics from all processes' images."""
        several = self.processes.count > 1 and self.processes.device.type == "cuda"
        return several and self.plan.recipe.method not in SHUFFLE_NORMS

    def fail(self, message: str) -> NoReturn:
        """What every process finds at once is said by the first."""
        raise UserError(message) if self.processes.first else SaidByFirst(message)

    def interrupted(self, what: str, number: int) -> Interrupted:
        """After a signal."""
        return Interrupted(f"{what}; go on with: {self.resume_command}", number)


def _appears(file: Path) -> bool:
    """Whether the file is there; a network file system may show it late."""
    deadline = time.monotonic() + 60
    while not file.is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    return file.is_file()


def _tidy(file: Path, checkpoint: Checkpoint, folder: Path) -> None:
    """What a stage does after its file has been written, if it was killed before."""
    complete_checkpoint(file, checkpoint.meta)
    ResumeFiles(folder, owner="").remove()


def read_plan(out: Path) -> RunPlan:
    """The plan of a run begun earlier. Raises UserError where `out` holds none."""
    return _plan_of(_read_run_file(out), out)


def _plan_of(stored: dict[str, Any], out: Path) -> RunPlan:
    try:
        return from_plain(RunPlan, stored["plan"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(
            f"{out / _RUN_FILE} was written by burn {str(stored.get('burn'))[:20]} and does not "
            f"fit burn {version('burn-ssl')}: {error}"
        ) from error


def _check_plan(plan: RunPlan) -> None:
    method = plan.recipe.method
    if method in NEED_TEACHER and not plan.teacher:
        recipe = "teacher_supervised_small" if method == "supervised_kl" else "teacher_small"
        raise UserError(
            f"method {method} needs a teacher: --teacher ARCHITECTURE:FILE, or a run of a teacher "
            f"recipe, {recipe} say"
        )
    if method not in NEED_TEACHER and plan.teacher is not None:
        raise UserError(f"method {method} learns without a teacher: leave --teacher out")
    if plan.max_steps is not None and plan.max_steps < 1:
        raise UserError(f"max_steps {plan.max_steps} is not at least 1")
    if not 0 <= plan.seed < 2**32:
        raise UserError(f"seed {plan.seed} is not in 0 … 2³² - 1")


def _check_shares(recipe: Recipe, processes: Processes) -> None:
    """Every process takes the same number of a batch's images, two at least."""
    images, rest = divmod(recipe.batch_size, recipe.accumulate * processes.count)
    if rest or images < 2:
        raise UserError(
            f"a batch of {recipe.batch_size} in {recipe.accumulate} parts cannot be shared by "
            f"{processes.count} processes, of two images or more each: change --batch-size, "
            "--accumulate or the number of devices"
        )


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
    sizes = {view.size for view in recipe.view_configs(num_views)}
    for size in sizes:
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


def _check_teacher_size(recipe: Recipe, teacher: Teacher, spec: str) -> None:
    """The teacher must be able to take its views."""
    size, fixed = recipe.teacher_size or recipe.views.size, teacher.backbone.fixed_size
    try:
        with torch.inference_mode():
            width = teacher.backbone(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1]
    except (RuntimeError, AssertionError, IndexError, UserError) as error:
        hint = f"give --teacher-size {fixed}" if fixed else "give a larger --teacher-size"
        raise UserError(f"teacher {spec} cannot take views of {size} pixels: {hint}") from error
    if width != teacher.backbone.num_features:
        raise UserError(f"teacher {spec} has no plain pooled features: use another")


def _describe(plan: RunPlan, source: Source, teacher: Teacher | None) -> dict[str, Any]:
    origin = None if teacher is None else teacher.origin
    data = {"name": plan.data, "images": len(source), "fingerprint": source.fingerprint}
    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    return {"format": _FORMAT, **versions, "plan": _plain(plan), "data": data, "teacher": origin}


def _describe_machine(processes: Processes) -> dict[str, Any]:
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


def _read_run_file(out: Path) -> dict[str, Any]:
    if not (out / _RUN_FILE).exists():
        raise UserError(f"{out} holds no run to resume (no {_RUN_FILE})")
    stored = read_json(out / _RUN_FILE)
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
    for folder in (out, *out.glob("stage?")):
        remove_unfinished(folder)
    if resume and ((out / _RUN_FILE).exists() or not any(out.iterdir())):
        if (out / _RUN_FILE).exists():
            _check_same(_read_run_file(out), described, out)
            return
    elif any(out.iterdir()):
        if not (out / _RUN_FILE).is_file():
            raise UserError(f"--out {out} is not empty and holds no run: give another folder")
        if not overwrite:
            raise UserError(f"--out {out} already holds a run: give --resume or --overwrite")
        _remove_run(out)
    try:
        named = {**described, "run": secrets.token_hex(8)}
        write_text(out / _RUN_FILE, json.dumps(named, indent=2) + "\n")
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


def _lies_in(path: Path, folder: Path) -> bool:
    return path.exists() and path.resolve().is_relative_to(folder.resolve())


def _check_same(stored: dict[str, Any], described: dict[str, Any], out: Path) -> None:
    """A resumed run must be the same run. Raises UserError naming the first difference."""
    parts = ("plan", "data", "teacher")
    stored = {**stored, "plan": _plain(_plan_of(stored, out))}
    old, now = (json.loads(json.dumps({p: of.get(p) for p in parts})) for of in (stored, described))
    if difference := difference_of_runs(old, now):
        raise UserError(f"{out} cannot be resumed with other settings: {difference}")


def _check_stage(
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


def _summary(number: int, file: Path, meta: Mapping[str, Any]) -> StageSummary:
    monitor = meta["monitor"]
    return StageSummary(
        stage=number,
        precision=Precision(meta["precision"]),
        checkpoint=file,
        steps=meta["steps"],
        images_seen=meta["steps"] * images_per_step(meta),
        seconds=monitor.get("seconds", 0.0),
        images_per_second=monitor["images_per_second"],
        knn=monitor["knn"],
        collapsed_at=monitor["collapsed_at"],
        features_collapsed_at=monitor.get("features_collapsed_at"),  # not of an earlier version
        teacher_cached=monitor.get("teacher_cached"),
        numbers=monitor["last"],
    )


class _Stage:
    """One stage of a run."""

    def __init__(
        self, run: _Run, number: int, precision: Precision, out: Path, stop: StopRequest
    ) -> None:
        self._run, self._number, self._precision = run, number, precision
        self._out, self._stop = out, stop
        self._folder = out / f"stage{number}"
        self._owner = f"{_read_run_file(out).get('run')}, stage {number}"

    def train(self, weights: Mapping[str, torch.Tensor] | None) -> None:
        """From the previous stage's weights (None: fresh) to this stage's checkpoint."""
        run, recipe, machine = self._run, self._run.plan.recipe, self._run.machine
        processes, console = run.processes, run.console
        method = run.make_method(self._precision)
        if weights is not None:
            method.begin_from(weights)
        seed = _seed(run.plan.seed, self._number)
        cache = run.cache and run.cache.open(seed, method.num_taught)
        if cache is not None:
            self._keep_features(method, cache)
        loader = stage_batches(
            recipe, method, run.source, seed, run.workers, rank=processes.rank,
            count=processes.count, cache=cache,
        )  # fmt: skip
        steps = run.steps
        assert len(loader) == steps.passes_per_epoch
        module = PretrainModule(method, recipe, steps.total, steps.per_epoch, processes)

        processes.on_first(lambda: self._folder.mkdir(exist_ok=True))
        settings = {part: run.described[part] for part in ("plan", "data", "teacher")}
        files = ResumeFiles(self._folder, self._owner, settings)
        shapes = {f"method.{name}": tensor.shape for name, tensor in method.weights().items()}
        resumed = processes.gather(processes.on_first(lambda: files.usable(shapes, console)))[0]
        writer = ResumeWriter(files)
        saver = SaveResume(writer, self._stop, processes, machine.save_every, console)
        every = monitor_interval(machine.monitor_every, steps.total)
        views = self._out / VIEWS if self._number == 1 else None
        record = Record(self._folder, console, views)
        monitor = Monitor(every, machine.max_bad, run.source, record, processes, console)
        callbacks: list[L.Callback] = [
            FiniteSteps(machine.skip_nonfinite, processes, console),
            Guard(GradientFlowGuard(method.parts())),
            monitor,
        ]
        if processes.first:
            callbacks.append(Gradients(every, method, record))
            layers = BinaryLayers(method.backbone)
            if layers:
                callbacks.append(Layers(every, layers, record))
            if run.source.labels is not None and len(run.source) >= 10:
                callbacks.append(OnlineKnn(run.source, monitor, record, self._stop))
        callbacks.append(saver)
        if processes.first:
            num_stages = len(recipe.precisions())
            title = f"stage {self._number}/{num_stages} {self._precision.value}"
            later = (num_stages - self._number) * steps.total
            callbacks.append(ProgressBar(title, later, steps, monitor, console))
        if machine.profile:
            profile = Profile(self._folder / "profile.json", console)
            callbacks = [profile, *callbacks, profile.last]
        trainer = _trainer(callbacks, writer, run, method, steps.total)
        self._fit(module, trainer, loader, saver, resumed)
        self._finish(module, monitor)
        processes.on_first(files.remove)

    def _keep_features(self, method: Method, cache: FeatureCache) -> None:
        """Have the teacher's features written to the cache, as long as that succeeds."""
        console, recipe = self._run.console, self._run.plan.recipe
        (target,) = (m for m in method.modules() if isinstance(m, FrozenTarget))

        def keep(epoch: int, view: int, indices: list[int], values: NDArray[np.float16]) -> None:
            epoch = recipe.view_epoch(epoch)
            try:
                cache.write(epoch, view, indices, values)
            except OSError as error:
                target.keep = None
                console.print(
                    f"the teacher's features are not kept from here on: {cache.file(epoch, view)} "
                    f"cannot be written: {error.strerror or error}; the run goes on",
                    style="yellow", markup=False, highlight=False,
                )  # fmt: skip

        target.keep = keep

    def _fit(
        self, module: PretrainModule, trainer: L.Trainer, loader: EpochLoader,
        saver: SaveResume, resumed: Path | None,
    ) -> None:  # fmt: skip
        """Train to the last step, from the resume file where there is one."""
        run = self._run
        with _quiet():
            try:
                trainer.fit(module, loader, ckpt_path=resumed, weights_only=True)
            except SystemExit:  # Lightning's answer to a second Ctrl-C
                raise run.interrupted(f"stopped at once in stage {self._number}", SIGINT) from None
        if saver.stopped_by and trainer.global_step < module.num_steps:
            saved = "saved" if saver.last_step == trainer.global_step else "not saved"
            raise run.interrupted(
                f"stopped and {saved} at step {trainer.global_step} of {module.num_steps} in stage "
                f"{self._number}",
                saver.stopped_by,
            )

    def _finish(self, module: PretrainModule, monitor: Monitor) -> None:
        run, recipe = self._run, self._run.plan.recipe
        weights = module.method.weights()
        if not module.learned:
            run.fail("no batch held two readable images: nothing was learned or saved")
        finite = all(bool(torch.isfinite(t).all()) for t in weights.values())
        if run.processes.largest(float(not finite)):  # BN's statistics are each process's own
            run.fail("the weights are not finite: lower --optim.lr; nothing was saved")
        unreadable = monitor.all_unreadable()
        seconds = monitor.seconds
        images = module.global_step * run.steps.batch_size
        meta = {
            "stage": self._number,
            "num_stages": len(recipe.precisions()),
            "precision": self._precision.value,
            "steps": module.global_step,
            "images_per_step": run.steps.batch_size,
            "max_steps": run.plan.max_steps,
            "seed": run.plan.seed,
            "backbone": recipe.to_json()["backbone"],
            "views": recipe.to_json()["views"],
            "recipe": {"name": run.plan.recipe_name, **recipe.to_json()},
            "data": run.described["data"],
            "teacher": run.described["teacher"],
            "machine": run.machine_described,
            "monitor": {
                "knn": monitor.knn,
                "collapsed_at": monitor.collapsed_at,
                "features_collapsed_at": monitor.features_collapsed_at,
                "seconds": seconds,
                "images_per_second": images / max(seconds, 1e-9),
                "unreadable_images": len(unreadable),
                "teacher_cached": _cached_share(module.method),
                "last": monitor.last,
            },
        }
        file = self._out / f"stage{self._number}.safetensors"
        run.processes.on_first(lambda: self._save(file, weights, meta))
        if monitor.collapsed_at is not None:
            text = collapse_message(monitor.collapsed_at)
            run.console.print(f"stage {self._number}: {text}", style="bold red")
        if monitor.features_collapsed_at is not None:
            text = features_message(monitor.features_collapsed_at)
            run.console.print(f"stage {self._number}: {text}", style="bold red")
        if unreadable:
            run.console.print(unreadable_images(run.source, unreadable))

    def _save(self, file: Path, weights: Mapping[str, torch.Tensor], meta: dict[str, Any]) -> None:
        try:
            save_checkpoint(file, weights, meta)
        except OSError as error:
            raise UserError(
                f"stage {self._number} is trained but not saved: {error.filename or file} cannot "
                f"be written: {error.strerror or error}; make room, then go on with: "
                f"{self._run.resume_command}"
            ) from error


def _cached_share(method: Method) -> float | None:
    """Of the teacher's features, the share that a cache knew; None without a teacher."""
    target = next((m for m in method.modules() if isinstance(m, FrozenTarget)), None)
    if target is None or not target.asked:
        return None
    return round(1 - target.made / target.asked, 4)


def _seed(seed: int, stage: int) -> int:
    """Of a stage's order and views: stage 2 sees other views than stage 1."""
    return seed + 1000 * (stage - 1)


def default_workers(device: Device, processes: int = 1) -> int:
    """Image-loading processes for each of `processes` that train on this machine.

    Most cores feed GPUs; on a CPU half do, and the other half trains.
    """
    cuda = torch_device(device).type == "cuda"
    return min(16, max(1, cores() // processes)) if cuda else max(1, cores() // 2 // processes)


def _compile_training(backbone: Backbone) -> None:
    """Run its training passes through torch.compile; evaluation would be compiled once more.

    Frozen networks are left alone: they run in a folded copy, with the bits that a cache keeps.
    """
    plain = backbone.forward
    compiled = torch.compile(plain)

    def forward(images: torch.Tensor) -> torch.Tensor:
        return compiled(images) if backbone.training else plain(images)

    backbone.forward = forward


def _trainer(
    callbacks: list[L.Callback], writer: ResumeWriter, run: _Run, method: Method, num_steps: int
) -> L.Trainer:
    recipe, device, processes = run.plan.recipe, run.machine.device, run.processes
    if run.machine.compile:
        _compile_training(method.backbone)
    several: dict[str, Any] = {}
    if processes.count > 1:
        several = {
            "num_nodes": processes.count // processes.local_count,
            "strategy": "ddp",
            "sync_batchnorm": run.synchronizes,
        }
    with _quiet():
        trainer = L.Trainer(
            accelerator=processes.device.type,
            devices=processes.local_count,
            plugins=[writer, LightningEnvironment()],
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
            **several,
        )
    # Signals are ours (burn.runtime.signals). Lightning's handler of SIGTERM talks to the other
    # processes from inside the handler, and hangs where only one of them was told; its
    # question at every step, whether the first one was, waits for a GPU.
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    return trainer


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
        # DistributedDataParallel, of 1×1 kernels that lie channels last: nothing is copied for it.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")

    def __exit__(self, *exception: object) -> None:
        self._caught.__exit__(None, None, None)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
