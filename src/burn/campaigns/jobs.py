"""Several runs in one folder: trained at one budget, judged alike, gone on with where stopped."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TextIO, cast, get_args

import torch
from rich.console import Console

from burn.backbones.registry import build_backbone
from burn.campaigns.settings import (
    LABELLED_TEACHER,
    RANDOM,
    TEACHER,
    Execution,
    More,
    MoreProtocol,
)
from burn.checkpoints.foreign.weights import load_teacher
from burn.core.errors import Interrupted, UserError
from burn.core.files import Busy, locked, remove_unfinished, write_text
from burn.core.inputs import read_text
from burn.core.paths import same_path
from burn.core.results import Result, read_results, result_lines
from burn.data.checks import require_outside
from burn.data.open import open_source
from burn.evaluation.configs import KnnConfig, LinearConfig, SvmConfig, TransferConfig
from burn.evaluation.context import Subject, open_model
from burn.evaluation.protocols import check_sources, run_knn, run_linear, run_transfer
from burn.evaluation.semi import run_semi
from burn.evaluation.svm.protocol import run_svm
from burn.methods.registry import build_method
from burn.runtime.compute import Device, default_workers, torch_device, uses_bfloat16
from burn.runtime.signals import StopRequest
from burn.runtime.streams import SafeStream
from burn.training.plan import Machine, RunPlan
from burn.training.run import pretrain
from burn.training.stage import StageSummary
from burn.training.teacher_cache import is_cacheable

_BUSY = 75  # exit status of a process whose run another burn holds: "temporary failure" in sysexits
_JUDGED_FILE = "compared.jsonl"  # kNN and linear; other protocols have a file each beside it
_KEPT = "evaluation"  # folder of what protocols resume from
_LATER = {"teacher_size", "labelled_teacher_size"}  # settings that campaigns once did not have
_FEATURES = "teacher-features"  # folder of the cache that all runs share
_NUMBERS = [("knn", "top1"), ("linear", "top1"), ("linear", "top5")]


class Shared(Protocol):
    """What all runs of a campaign have in common."""

    @property
    def data(self) -> str:
        """Images to learn from."""
        ...

    @property
    def test(self) -> str:
        """Images with labels to judge on."""
        ...

    @property
    def linear(self) -> LinearConfig: ...

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Of one run. Raises UserError where the budget does not make a step."""
        ...


def run_campaign(
    name: str,
    shared: Shared,
    models: Sequence[str],
    execution: Execution,
    console: Console,
    *,
    settings: Mapping[str, Any],
    references: Mapping[str, str | None] = MappingProxyType({}),
    sizes: Mapping[str, int | None] = MappingProxyType({}),
    floor: Collection[str] = (),
    **told: Any,
) -> list[str]:
    """Train and judge every model with every seed, each in a run folder MODEL-seedN.

    settings: those that every later call must share, kept in NAME.json with `told`. references:
    networks judged besides, by name; they are the teachers. sizes: side in pixels of the views that
    they are judged on, by the same names, where it is not their own. floor: models whose network
    with random weights, of the first that is done, is judged too. Returns what failed, in a line
    each, which stops no other run. Raises UserError for what cannot be begun, Interrupted after a
    signal: the same call goes on.
    """
    out, machine = execution.out, execution.machine
    execution.check()
    processes = _check_processes(execution.processes, machine)
    train, test = open_source(shared.data, "train"), open_source(shared.test, "test")
    check_sources(train, test)
    require_outside(out, train, test)
    more = execution.more
    if more.transfer_train is not None and more.transfer_test is not None:
        check_sources(
            open_source(more.transfer_train, "train"), open_source(more.transfer_test, "test")
        )
    judging = Judging(shared.data, shared.test, shared.linear, machine, more)
    jobs = [
        Job(model, shared.plan(model, seed, len(train)), out, judging)
        for seed in execution.seeds
        for model in models
    ]
    teachers = _check_jobs(jobs[: len(models)], references.values())
    data = {"--data": train.fingerprint, "--test": test.fingerprint}
    if not out.exists():
        out.mkdir(parents=True, exist_ok=True)
    with locked(out, patience=30):  # another campaign in this folder is here for a moment only
        _open(out, name, settings, teachers | data, told)
    failed = _run_jobs(jobs, processes, console)
    random = next((str(job.folder) for job in jobs if job.done and job.model in floor), None)
    _judge_references(out, judging, {RANDOM: random, **references}, sizes, console)
    return failed


@dataclass(frozen=True)
class Judging:
    """The images and protocols of evaluation: kNN, `linear`, and what `more` asks for."""

    train: str
    test: str
    linear: LinearConfig
    machine: Machine
    more: More

    def judge(
        self, model: str, spec: str, seed: int, console: Console, size: int | None = None
    ) -> list[Result]:
        """Results by kNN and linear evaluation, under the name `model`.

        The network's weights stay random if that is RANDOM. size: side of the views in pixels;
        default: what the network is used to.
        """
        subject = self._subject(model, spec, seed, size, self.train, self.test)
        knn = run_knn(subject, KnnConfig(), console)
        return [*knn, *run_linear(subject, self.linear, console)]

    def judge_more(
        self, protocol: MoreProtocol, model: str, spec: str, seed: int, console: Console,
        kept: Path, size: int | None = None,
    ) -> list[Result]:  # fmt: skip
        """Results by another protocol; what it goes on from when interrupted is in `kept`."""
        train, test = self.train, self.test
        if protocol == "transfer":
            assert self.more.transfer_train is not None
            assert self.more.transfer_test is not None
            train, test = self.more.transfer_train, self.more.transfer_test
        subject = self._subject(model, spec, seed, size, train, test)
        if protocol == "transfer":
            return run_transfer(subject, TransferConfig(augment="none"), console)
        subject = replace(subject, out=kept)
        if protocol == "svm":
            return run_svm(subject, SvmConfig(full=False), console)
        labels = {"semi1": 1.0, "semi10": 10.0}[protocol]
        return run_semi(subject, replace(self.more.semi, labels=labels), console)

    def _subject(
        self, model: str, spec: str, seed: int, size: int | None, train: str, test: str
    ) -> Subject:
        network = open_model(spec, fresh=model == RANDOM, seed=seed)
        views = network.views if size is None else replace(network.views, size=size, resize=None)
        machine = self.machine
        workers = default_workers(machine.device) if machine.workers is None else machine.workers
        return Subject(
            model, spec, network.backbone.to(torch_device(machine.device)), views,
            open_source(train, "train"), open_source(test, "test"), seed, workers=workers,
            bfloat16=uses_bfloat16("auto", machine.device), training=network.training,
        )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run of a campaign in its folder, MODEL-seedN in `out`."""

    model: str
    plan: RunPlan
    out: Path
    judging: Judging

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.model}-seed{self.plan.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def done(self) -> bool:
        """Whether it is trained and judged: its results are written last."""
        return self._trained and not self._lacking()

    @property
    def _trained(self) -> bool:
        return _read_judged(self.folder / _JUDGED_FILE, self.model, trained=True) is not None

    def _lacking(self) -> list[MoreProtocol]:
        """Protocols beside kNN and linear that are asked for and not done."""
        return [
            protocol for protocol in self.judging.more.protocols
            if _read_more(self.folder, protocol, self.model, trained=True) is None
        ]  # fmt: skip

    def run(self, console: Console) -> None:
        """Train, or resume, and judge. Raises Busy where another process is at it."""
        console.rule(self.name)
        if not self._trained:
            self._train(console)
        for protocol in self._lacking():
            with locked(self.folder):
                if protocol in self._lacking():  # not done by another command, meanwhile
                    console.print(f"{self.name}: {protocol}")
                    results = self.judging.judge_more(
                        protocol, self.model, str(self.folder), self.plan.seed, console,
                        self.folder / _KEPT,
                    )  # fmt: skip
                    trained = self._about_training()
                    _write_results(_more_file(self.folder, protocol), _with(results, trained))

    def _train(self, console: Console) -> None:
        """Train, or resume, and judge by kNN and linear evaluation."""
        cache = None
        if self.plan.teacher and is_cacheable(self.plan.recipe):
            cache = self.judging.machine.teacher_cache or str(self.out / _FEATURES)
        # Unreadable images are counted, as in the judging.
        machine = replace(self.judging.machine, max_bad=1.0, teacher_cache=cache)
        summaries = pretrain(
            self.plan, self.folder, machine, console, overwrite=False,
            resume=(self.folder / "run.json").is_file(), resume_command="the same command",
        )  # fmt: skip
        with locked(self.folder):
            if not self._trained:  # by another command, since the training has ended
                self._judge(summaries, console)

    def _about_training(self) -> Mapping[str, Any]:
        """What its results say of its training."""
        results = _read_judged(self.folder / _JUDGED_FILE, self.model, trained=True)
        assert results is not None
        return results[0].settings["pretraining"]

    def _judge(self, summaries: Sequence[StageSummary], console: Console) -> None:
        """Write the results of a network that is trained."""
        results = self.judging.judge(self.model, str(self.folder), self.plan.seed, console)
        train = open_source(self.plan.data, "train")
        seen = sum(summary.images_seen for summary in summaries)
        collapsed = [s.stage for s in summaries if s.collapsed_at is not None]
        training = {
            "recipe": self.plan.recipe_name,
            "images_seen": seen,
            "epochs": round(seen / len(train), 3),
            "seconds": round(sum(summary.seconds for summary in summaries), 1),
            "collapsed_stages": collapsed,
            "teacher_cached": max((s.teacher_cached or 0.0 for s in summaries), default=0.0),
            "collapsed_features": [
                s.stage for s in summaries if s.features_collapsed_at is not None
            ],
        }
        _write_results(self.folder / _JUDGED_FILE, _with(results, training))


def _with(results: Sequence[Result], training: Mapping[str, Any]) -> list[Result]:
    return [replace(r, settings={**r.settings, "pretraining": training}) for r in results]


def _run_jobs(jobs: Sequence[Job], processes: int, console: Console) -> list[str]:
    """Train and judge what is not done yet, `processes` at once; what failed, in a line each.

    Raises Interrupted after a signal: everything is saved, and the same call goes on.
    """
    waiting = [job for job in jobs if not job.done]
    processes = min(processes, len(waiting))
    if processes > 1:
        return _side_by_side(waiting, processes, console)
    return _one_by_one(waiting, console)


def _judge_references(
    out: Path, judging: Judging, specs: Mapping[str, str | None], sizes: Mapping[str, int | None],
    console: Console,
) -> None:  # fmt: skip
    """Judge what was not trained here, by name, where it is given and not judged yet."""
    for name, spec in specs.items():
        file = out / _reference_file(name)
        if spec and _read_judged(file, name, trained=False) is None:
            console.rule(name)
            _write_results(file, judging.judge(name, spec, 0, console, sizes.get(name)))
        for protocol in judging.more.protocols if spec else ():
            if protocol.startswith("semi") and name != RANDOM:
                continue  # a float network's fine-tuning would take longer than all others
            if _read_more(out, protocol, name, trained=False) is None:
                console.rule(f"{name}, {protocol}")
                kept = out / f"{_reference_file(name).removesuffix('.jsonl')}-{_KEPT}"
                results = judging.judge_more(
                    protocol, name, cast(str, spec), 0, console, kept, sizes.get(name)
                )
                _write_results(_more_file(out, protocol, name), results)


def read_campaign(out: Path) -> list[Result]:
    """Of everything in the folder that is judged, in the order of names."""
    files = [
        (file, file.parent.name.rpartition("-seed")[0], True)
        for file in out.glob(f"*/{_JUDGED_FILE}")
    ]
    files += [
        (out / _reference_file(name), name, False) for name in (RANDOM, TEACHER, LABELLED_TEACHER)
    ]
    return [
        result
        for file, model, trained in sorted(files)
        for part in (
            _read_judged(file, model, trained=trained),
            *(_read_more(file.parent, p, model, trained=trained) for p in get_args(MoreProtocol)),
        )
        for result in part or ()
    ]


def _check_processes(processes: int | None, machine: Machine) -> int:
    """How many run at once. Raises UserError for more than there are GPUs."""
    if torch_device(machine.device).type != "cuda":
        return processes or 1
    count = torch.cuda.device_count()
    if processes is not None and processes > count:
        raise UserError(f"--processes {processes}: torch sees {count} GPUs, and each needs its own")
    return processes or count


def _check_jobs(jobs: Sequence[Job], teachers: Collection[str | None]) -> dict[str, str]:
    """What would stop one of them after the hours that others took, now.

    teachers: all that belong to the campaign. Returns the SHA-256 of every teacher's file.
    """
    loaded = {spec: load_teacher(spec) for spec in teachers if spec is not None}
    for job in jobs:
        recipe = job.plan.recipe
        recipe.check()
        if job.plan.teacher is not None:
            backbone = build_backbone(recipe.backbone, recipe.precisions()[0])
            build_method(
                recipe.method, recipe.method_config(), backbone, loaded[job.plan.teacher], 0
            )
    return {spec: teacher.origin["sha256"] for spec, teacher in loaded.items()}


def _open(
    out: Path,
    name: str,
    shared: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    told: Mapping[str, Any],
) -> None:
    """A new folder, or one whose runs have the same settings, which stand in NAME.json.

    shared: settings that may not change; but a teacher may be added, and data and teachers may be
    named in another way. fingerprints: of data and teachers, by name; they may not change. told:
    what NAME.json says besides, each time anew. Raises UserError naming what did change.
    """
    shared = json.loads(json.dumps(shared))
    file = out / f"{name}.json"
    remove_unfinished(out)
    if file.is_file():
        content = read_text(file)  # without permission it is not damaged
        try:
            stored = json.loads(content)
            known = {name: stored[name] for name in shared if name not in _LATER}
            known |= {name: stored.get(name) for name in shared if name in _LATER}
            before = dict(stored.get("files", {}))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged: remove it to begin anew") from error
        names: dict[str, str] = {}  # of the same file: as given now -> as in the campaign's file
        for name, value in shared.items():
            was, is_teacher = known[name], name in ("teacher", "labelled_teacher")
            if was == value or (is_teacher and None in (value, was)):
                continue
            if name in _LATER and known[name.removesuffix("_size")] is None:
                known[name] = value  # of a teacher that is added
                continue
            same = (is_teacher or name in ("data", "test")) and (
                same_path(str(was), str(value))
                or (is_teacher and before.get(was) == fingerprints.get(value, ""))
            )
            if not same:
                raise UserError(
                    f"{out} was begun with --{name.replace('_', '-')} {was}, not {value}: give "
                    "another --out"
                )
            names[value] = was
        shared = {**shared, **{n: known[n] for n in shared if known[n] is not None}}
        for name, fingerprint in fingerprints.items():
            if before.get(names.get(name, name), fingerprint) != fingerprint:
                raise UserError(
                    f"{name} is not what it was when {out} was begun: give another --out"
                )
        fingerprints = {**before, **fingerprints}
    elif out.is_dir() and any(not _is_ours(path) for path in out.iterdir()):
        raise UserError(f"--out {out} is not empty and holds no {name}: give another folder")
    elif out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    write_text(file, json.dumps({**shared, "files": fingerprints, **told}, indent=2) + "\n")


def _is_ours(path: Path) -> bool:
    """Whether a campaign may have left it. Its runs know themselves what they were begun with."""
    if path.is_dir():
        return "-seed" in path.name or path.name in ("logs", _FEATURES) or _KEPT in path.name
    return path.suffix in (".jsonl", ".md", ".svg")


def _reference_file(name: str) -> str:
    return f"{name.replace(' ', '-')}.jsonl"


def _more_file(folder: Path, protocol: MoreProtocol, reference: str | None = None) -> Path:
    """Of a protocol's results, in a run's folder or, for a reference, in the campaign's."""
    file = folder / (_reference_file(reference) if reference else _JUDGED_FILE)
    return file.with_name(f"{file.stem}-{protocol}.jsonl")


def _read_more(
    folder: Path, protocol: MoreProtocol, model: str, *, trained: bool
) -> list[Result] | None:
    """The results that were written to `_more_file`, or None where they are not, or not whole."""
    file = _more_file(folder, protocol, None if trained else model)
    try:
        results = read_results(file)
        seed = int(file.parent.name.rpartition("-seed")[2]) if trained else 0
        whole = bool(results) and all(
            (r.model, r.seed, type(r.seed)) == (model, seed, int)
            and protocol.startswith(r.protocol)
            and math.isfinite(r.value)
            and (not trained or 0 <= r.settings["pretraining"]["seconds"] < 1e9)
            for r in results
        )
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return results if whole else None


def _write_results(file: Path, results: Sequence[Result]) -> None:
    write_text(file, result_lines(results))


def _read_judged(file: Path, model: str, *, trained: bool) -> list[Result] | None:
    """The results that `_write_results` wrote, or None where they are not, or not whole."""
    try:
        results = read_results(file)
        seed = int(file.parent.name.rpartition("-seed")[2]) if trained else 0
        whole = [(r.protocol, r.metric) for r in results] == _NUMBERS and all(
            _is_whole(r, model, seed, trained) for r in results
        )
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return results if whole else None


def _is_whole(result: Result, model: str, seed: int, trained: bool) -> bool:
    """Whether it is what tables and pictures take it for. May raise TypeError or KeyError."""
    settings = result.settings
    whole = (
        (result.model, result.seed, type(result.seed)) == (model, seed, int)
        and 0 <= result.value <= 100
        and isinstance(settings["compute"], str)
    )
    if result.protocol == "linear":
        rate = settings["chosen_lr"] if settings["lr"] == "auto" else settings["lr"]
        whole &= all(0 <= number < 1e9 for number in (rate, settings["epochs"]))
        whole &= isinstance(settings["augment"], str)
    if trained:
        about = settings["pretraining"]
        whole &= 0 <= about["seconds"] < 1e9 and 0 < about["epochs"] < 1e9
        whole &= isinstance(about["recipe"], str)
        for collapsed in ("collapsed_stages", "collapsed_features"):
            whole &= isinstance(about.get(collapsed, []), list)
    return whole


def _one_by_one(jobs: Sequence[Job], console: Console) -> list[str]:
    """What failed, in a line each."""
    failed, busy = list[str](), list[Job]()
    for job in jobs:
        if job.done:  # by another command, meanwhile
            continue
        try:
            job.run(console)
        except Interrupted:
            raise
        except Busy:
            busy.append(job)
            console.print(f"{job.name}: another burn process is using it, left to that one")
        except UserError as error:
            failed.append(f"{job.name}: {error}")
            console.print(failed[-1], style="bold red")
    return failed + _still_busy(busy)


def _still_busy(jobs: Sequence[Job]) -> list[str]:
    """A line for what another campaign in the same folder has not finished either."""
    names = [job.name for job in jobs if not job.done]
    if not names:
        return []
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [
        f"{names[0]}{others}: another burn process is using it; when that has ended, the same "
        "command finishes the rest"
    ]


def _side_by_side(jobs: Sequence[Job], processes: int, console: Console) -> list[str]:
    """Each job in a process of its own, so many at a time; what failed, in a line each.

    Raises Interrupted where a signal stopped them all.
    """
    logs = jobs[0].out / "logs"
    logs.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    waiting, failed, busy = list(jobs), list[str](), list[Job]()
    running: dict[int, tuple[Job, Any]] = {}
    stop = StopRequest()
    told = False
    with stop.installed():
        while running or (waiting and not stop.requested):
            for slot in range(processes):
                if slot not in running and waiting and not stop.requested:
                    job = waiting.pop(0)
                    log = logs / f"{job.name}.txt"
                    log.touch()
                    process = context.Process(target=_run_alone, args=(job, processes, log))
                    with _one_gpu(slot, job.judging.machine.device):
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
                outcome = "stopped" if stop.requested else "failed" if process.exitcode else "done"
                if process.exitcode == _BUSY:
                    busy.append(job)
                    outcome = "another burn process is using it, left to that one"
                elif process.exitcode:
                    why = _last_words(logs / f"{job.name}.txt", process.exitcode)
                    failed.append(f"{job.name}: {why}")
                console.print(f"{job.name}: {outcome}")
    if stop.requested:
        raise Interrupted(
            "stopped; what was under way is saved, and the same command resumes", stop.number
        )
    return failed + _still_busy(busy)


def _last_words(log: Path, exit_code: int) -> str:
    if exit_code < 0:
        return (
            f"killed by signal {-exit_code}, for want of memory perhaps, see {log}; the same "
            "command goes on"
        )
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


def _run_alone(job: Job, processes: int, log: Path) -> None:
    """A process's whole life, with its share of the cores. It ends when its parent does."""
    _end_with_parent()
    with log.open("a", buffering=1, encoding="utf-8", errors="replace") as opened:
        file = cast(TextIO, SafeStream(opened))  # a full disk ends no training for its log
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            _run_logged(job, processes, file)


def _end_with_parent() -> None:
    """End this process when the campaign that started it has gone, however that ended.

    Its run would keep the folder locked for hours, and the same command could not resume it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_logged(job: Job, processes: int, file: TextIO) -> None:
    try:
        torch.set_num_threads(max(1, torch.get_num_threads() // processes))
        machine = job.judging.machine
        workers = machine.workers
        if workers is None:
            workers = max(1, default_workers(machine.device) // processes)
        machine = replace(machine, workers=workers)
        job = replace(job, judging=replace(job.judging, machine=machine))
        job.run(Console(file=file, width=100, markup=False, highlight=False))
    except Busy:
        sys.exit(_BUSY)
    except UserError as error:
        print(" ".join(str(error).split()), file=file)
        sys.exit(2)
    except Exception:
        traceback.print_exc(file=file)
        sys.exit(1)
