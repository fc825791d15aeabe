"""`burn compare`: several methods on the same images, network and budget, trained and judged."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from burn.backbones import build_backbone
from burn.compute import Device, torch_device, uses_bfloat16
from burn.data.sources import Source, open_source
from burn.errors import Interrupted, UserError
from burn.evaluation.classifier import LinearConfig
from burn.evaluation.protocols import KnnConfig, check_sources, run_knn, run_linear
from burn.evaluation.subject import Subject, load_model
from burn.files import write_text
from burn.methods.registry import METHODS, NEED_TEACHER, MethodName, build_method
from burn.processes import require_alone
from burn.recipes import find_recipe
from burn.report.plots import comparison_picture
from burn.report.tables import comparison_markdown
from burn.results import Result, read_results
from burn.stop import StopRequest
from burn.targets.weights import load_teacher
from burn.training.run import Machine, RunPlan, default_workers, pretrain

Family = Literal["small", "imagenet", "imagenet100"]
_SHARED_FILE, _JUDGED_FILE = "comparison.json", "compared.jsonl"
_NUMBERS = [("knn", "top1"), ("linear", "top1"), ("linear", "top5")]
# Not methods, but judged beside them: the floor and what was learned from.
RANDOM, TEACHER, LABELLED_TEACHER = "random weights", "teacher", "labelled teacher"


@dataclass(frozen=True)
class Comparison:
    """What every method has in common. Its own settings are those of its recipe, METHOD_FAMILY.

    Attributes:
        data: images to learn from, as for pretraining; with labels, which judging needs.
        test: images with labels to judge on.
        budget: images that each method sees in all of its stages together, to less than a batch a
            stage; the views of an image count once.
        teacher: float teacher of burn and s2bnn, as for pretraining, with its projection head for
            s2bnn.
        labelled_teacher: teacher of supervised_kl, with its classifier.
        family: whose recipes: small images, imagenet or imagenet100.
        stages: of each method; default: its recipe's.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
    """

    data: str
    test: str
    budget: int
    teacher: str | None = None
    labelled_teacher: str | None = None
    family: Family = "small"
    stages: Literal[1, 2] | None = None
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))

    def check(self, methods: Sequence[str]) -> None:
        """Raise UserError for values out of range, unknown methods and lacking teachers."""
        for method in methods:
            if method not in METHODS:
                raise UserError(f"--methods: unknown {method!r}; there are {', '.join(METHODS)}")
        if not methods or len(set(methods)) < len(methods):
            raise UserError("--methods: give each once, and at least one")
        for method in methods:
            if method in NEED_TEACHER and not self.teacher_of(method):
                option, recipe = "teacher", "teacher_small"
                if method == "supervised_kl":
                    option, recipe = "labelled-teacher", "teacher_supervised_small"
                raise UserError(
                    f"method {method} needs --{option}: a run of {recipe}, say, or "
                    f"ARCHITECTURE:FILE; or leave {method} out of --methods"
                )
        self.linear.check()

    def teacher_of(self, method: str) -> str | None:
        """What the method learns from, as `--teacher` takes it."""
        if method not in NEED_TEACHER:
            return None
        return self.labelled_teacher if method == "supervised_kl" else self.teacher

    def plan(self, method: MethodName, seed: int, num_images: int) -> RunPlan:
        """The method's recipe, cut or stretched to the budget; warm-up is a fifth at most.

        Raises UserError where the budget does not make a step.
        """
        name = f"{method}_{self.family}"
        recipe = find_recipe(name)
        if self.stages is not None:
            recipe = replace(recipe, stages=self.stages)
        batch = min(recipe.batch_size, num_images)
        steps = self.budget // (len(recipe.precisions()) * batch)
        if steps < 1:
            raise UserError(f"--budget {self.budget} is less than one batch of {batch} a stage")
        steps_per_epoch = num_images // batch
        # A short budget is not to be spent on warming up.
        warmup = min(recipe.optim.warmup_epochs, steps / steps_per_epoch / 5)
        recipe = replace(
            recipe,
            epochs=math.ceil(steps / steps_per_epoch),
            optim=replace(recipe.optim, warmup_epochs=warmup),
        )
        return RunPlan(name, recipe, self.data, self.teacher_of(method), seed, steps)


def compare(
    comparison: Comparison,
    methods: Sequence[MethodName],
    seeds: Sequence[int],
    out: Path,
    machine: Machine,
    console: Console,
    *,
    processes: int | None = None,
) -> list[Result]:
    """Train and judge every method with every seed; what `out` already holds is kept.

    Each leaves a run folder METHOD-seedN in `out`, with its compared.jsonl; later calls may add
    methods and seeds, but not change settings. comparison.md and .svg show all that `out` holds,
    which is returned. processes: how many run at once, each on a GPU of its own or with its share
    of the cores, its output in logs/; default: one for each GPU, or one. A run that fails does not
    stop the others. Raises UserError as `pretrain` does, Interrupted after a signal.
    """
    require_alone("compare")
    comparison.check(methods)
    if not seeds or len(set(seeds)) < len(seeds) or any(not 0 <= s < 2**32 for s in seeds):
        raise UserError("--seeds: give numbers in 0 … 2³² - 1, each once")
    if (machine.workers or 0) < 0:
        raise UserError(f"--workers {machine.workers} is below 0")
    train, test = open_source(comparison.data, "train"), open_source(comparison.test, "test")
    check_sources(train, test)
    jobs = [
        _Job(comparison, method, comparison.plan(method, seed, len(train)), out, machine)
        for seed in seeds
        for method in methods
    ]
    processes = _check_processes(processes, machine)
    teachers = _check_jobs(jobs[: len(methods)])
    data = {"--data": train.fingerprint, "--test": test.fingerprint}
    _open_folder(out, comparison, teachers | data)
    waiting = [job for job in jobs if _read_judged(job.judged, job.method) is None]
    if min(processes, len(waiting)) > 1:
        failed = _side_by_side(waiting, min(processes, len(waiting)), console)
    else:
        failed = _one_by_one(waiting, console)
    for name, spec in (
        (RANDOM, next((str(job.folder) for job in jobs if job.judged.is_file()), None)),
        (TEACHER, comparison.teacher),
        (LABELLED_TEACHER, comparison.labelled_teacher),
    ):
        file = out / f"{name.replace(' ', '-')}.jsonl"
        if spec and _read_judged(file, name) is None:
            console.rule(name)
            results = _judge(comparison, train, test, machine, name, spec, 0, console)
            _write_results(file, results)
    results = _all_results(out)
    if results:
        write_text(out / "comparison.md", comparison_markdown(results))
        comparison_picture(results, out / "comparison.svg")
    if failed:
        raise UserError(f"{failed[0]}; what else was asked for is in {out}")
    return results


@dataclass(frozen=True)
class _Job:
    """One method with one seed."""

    comparison: Comparison
    method: str
    plan: RunPlan
    out: Path
    machine: Machine

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.plan.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def judged(self) -> Path:
        """Its results, written last: where it is whole, the job is done."""
        return self.folder / _JUDGED_FILE

    def run(self, console: Console) -> None:
        """Train, or go on with it, and judge."""
        console.rule(self.name)
        machine = replace(self.machine, max_bad=1.0)  # counted, as in the judging
        summaries = pretrain(
            self.plan, self.folder, machine, console, overwrite=False,
            resume=(self.folder / "run.json").is_file(), resume_command="the same command",
        )  # fmt: skip
        train = open_source(self.comparison.data, "train")
        test = open_source(self.comparison.test, "test")
        results = _judge(
            self.comparison, train, test, self.machine, self.method, str(self.folder),
            self.plan.seed, console,
        )  # fmt: skip
        batch = min(self.plan.recipe.batch_size, len(train))
        seen = sum(summary.steps for summary in summaries) * batch
        training = {
            "recipe": self.plan.recipe_name,
            "images_seen": seen,
            "epochs": round(seen / len(train), 3),
            "seconds": round(sum(summary.seconds for summary in summaries), 1),
        }
        results = [replace(r, settings={**r.settings, "pretraining": training}) for r in results]
        _write_results(self.judged, results)


def _check_processes(processes: int | None, machine: Machine) -> int:
    if torch_device(machine.device).type != "cuda":
        return processes or 1
    count = torch.cuda.device_count()
    if processes is not None and processes > count:
        raise UserError(f"--processes {processes}: torch sees {count} GPUs, and each needs its own")
    return processes or count


def _check_jobs(jobs: Sequence[_Job]) -> dict[str, str]:
    """What would stop one of them after the hours that others took, now.

    Returns the SHA-256 of every teacher's file.
    """
    about = jobs[0].comparison
    specs = [spec for spec in (about.teacher, about.labelled_teacher) if spec is not None]
    teachers = {spec: load_teacher(spec) for spec in specs}
    for job in jobs:
        recipe = job.plan.recipe
        recipe.check()
        if job.plan.teacher is not None:
            backbone = build_backbone(recipe.backbone, recipe.precisions()[0])
            build_method(
                recipe.method, recipe.method_config(), backbone, teachers[job.plan.teacher], 0
            )
    return {spec: teacher.origin["sha256"] for spec, teacher in teachers.items()}


def _judge(
    comparison: Comparison, train: Source, test: Source, machine: Machine, model: str, spec: str,
    seed: int, console: Console,
) -> list[Result]:  # fmt: skip
    """kNN and linear evaluation of one network."""
    _, backbone, views = load_model(spec, fresh=model == RANDOM, seed=seed)
    device = torch_device(machine.device)
    workers = default_workers(machine.device) if machine.workers is None else machine.workers
    subject = Subject(
        model, spec, backbone.to(device), views, train, test, seed,
        workers=workers, bfloat16=uses_bfloat16("auto", machine.device),
    )  # fmt: skip
    knn = run_knn(subject, KnnConfig(), console)
    return [*knn, *run_linear(subject, comparison.linear, console)]


def _write_results(file: Path, results: Sequence[Result]) -> None:
    write_text(file, "".join(json.dumps(asdict(result)) + "\n" for result in results))


def _read_judged(file: Path, model: str) -> list[Result] | None:
    """The results that `_write_results` wrote, or None where they are not, or not whole."""
    try:
        results = read_results(file)
        whole = [(r.protocol, r.metric) for r in results] == _NUMBERS and all(
            r.model == model and 0 <= r.value <= 100 and isinstance(r.settings["compute"], str)
            for r in results
        )
        if model in METHODS:
            about = [r.settings["pretraining"] for r in results]
            whole &= all(a["seconds"] >= 0 and a["epochs"] > 0 and a["recipe"] for a in about)
    except (UserError, TypeError, KeyError, RecursionError):
        return None
    return results if whole else None


def _all_results(out: Path) -> list[Result]:
    """Of everything in the folder that is judged, in the order of names."""
    files = [
        (file, file.parent.name.rpartition("-seed")[0]) for file in out.glob(f"*/{_JUDGED_FILE}")
    ]
    files += [
        (out / f"{name.replace(' ', '-')}.jsonl", name)
        for name in (RANDOM, TEACHER, LABELLED_TEACHER)
    ]
    return [result for file, model in sorted(files) for result in _read_judged(file, model) or ()]


def _one_by_one(jobs: Sequence[_Job], console: Console) -> list[str]:
    """What failed, in a line each."""
    failed = []
    for job in jobs:
        try:
            job.run(console)
        except Interrupted:
            raise
        except UserError as error:
            failed.append(f"{job.name}: {error}")
            console.print(failed[-1], style="bold red")
    return failed


def _side_by_side(jobs: Sequence[_Job], processes: int, console: Console) -> list[str]:
    """Each job in a process of its own, so many at a time; what failed, in a line each.

    Raises Interrupted where a signal stopped them all.
    """
    logs = jobs[0].out / "logs"
    logs.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    waiting, failed = list(jobs), list[str]()
    running: dict[int, tuple[_Job, Any]] = {}
    stop = StopRequest()
    told = False
    with stop.installed():
        while running or (waiting and not stop.requested):
            for slot in range(processes):
                if slot not in running and waiting and not stop.requested:
                    job = waiting.pop(0)
                    log = logs / f"{job.name}.txt"
                    process = context.Process(target=_run_alone, args=(job, processes, log))
                    with _one_gpu(slot, job.machine.device):
                        process.start()
                    running[slot] = job, process
                    console.print(f"{job.name}: begun, see {log}")
            time.sleep(0.2)
            if stop.requested and not told:
                for _, process in running.values():
                    process.terminate()  # it saves between two steps
                told = True
            for slot, (job, process) in list(running.items()):
                if process.is_alive():
                    continue
                del running[slot]
                if process.exitcode:
                    failed.append(f"{job.name}: {_last_words(logs / f'{job.name}.txt')}")
                outcome = "stopped" if stop.requested else "failed" if process.exitcode else "done"
                console.print(f"{job.name}: {outcome}")
    if stop.requested:
        raise Interrupted("stopped and saved; the same command goes on", stop.number)
    return failed


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), f"it died, see {log}")


@contextlib.contextmanager
def _one_gpu(slot: int, device: Device) -> Iterator[None]:
    """Processes begun inside see one GPU, number `slot` of those that this one sees.

    And they leave Ctrl-C, which a terminal sends them too, to this one.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch_device(device).type == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = before.split(",")[slot] if before else str(slot)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def _run_alone(job: _Job, processes: int, log: Path) -> None:
    """A process's whole life, with its share of the cores."""
    with (
        log.open("a", buffering=1, encoding="utf-8", errors="replace") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            torch.set_num_threads(max(1, torch.get_num_threads() // processes))
            workers = job.machine.workers
            if workers is None:
                workers = max(1, default_workers(job.machine.device) // processes)
            job = replace(job, machine=replace(job.machine, workers=workers))
            job.run(Console(file=file, width=100, markup=False, highlight=False))
        except UserError as error:
            print(" ".join(str(error).split()), file=file)
            sys.exit(2)
        except Exception:
            traceback.print_exc(file=file)
            sys.exit(1)


def _open_folder(out: Path, comparison: Comparison, fingerprints: Mapping[str, str]) -> None:
    """A new folder, or one whose runs have the same settings.

    fingerprints: of data and teachers, by name; they may not change either.
    """
    shared = json.loads(json.dumps(asdict(comparison)))
    file = out / _SHARED_FILE
    if file.is_file():
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            known = {name: stored[name] for name in shared}
            before = dict(stored.get("files", {}))
        except (ValueError, OSError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged: remove it to compare anew") from error
        # A teacher may be added with the method that needs it, but not exchanged.
        differ = [
            name
            for name, value in shared.items()
            if known[name] != value and not ("teacher" in name and None in (value, known[name]))
        ]
        if differ:
            name = differ[0]
            raise UserError(
                f"{out} was begun with --{name.replace('_', '-')} {known[name]}, not "
                f"{shared[name]}: give another --out"
            )
        shared |= {name: known[name] for name in shared if shared[name] is None}
        for name, fingerprint in fingerprints.items():
            if before.get(name, fingerprint) != fingerprint:
                raise UserError(
                    f"{name} is not what it was when {out} was begun: give another --out"
                )
        fingerprints = {**before, **fingerprints}
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty and holds no comparison: give another folder")
    elif out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    out.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({**shared, "files": fingerprints}, indent=2) + "\n")
