"""One stage of a run, which trains a method and writes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burn.checkpoints.native import save_checkpoint
from burn.core.errors import UserError
from burn.core.files import cannot_be_written
from burn.core.types import Precision
from burn.data.feature_cache import FeatureCache
from burn.data.loader import EpochLoader
from burn.layers.sync_norm import synchronize_norms
from burn.learning.loop import Callback, Loop
from burn.learning.resume_files import ResumeFiles, SaveResume
from burn.learning.threads import ThreadChooser, Threads, thread_chooser
from burn.methods.base import Method
from burn.methods.entries import find_method
from burn.methods.shared.frozen import frozen_target
from burn.runtime.distributed import Processes
from burn.runtime.signals import StopRequest
from burn.training.callbacks.checks import FiniteSteps, Guard
from burn.training.callbacks.layers import Layers
from burn.training.callbacks.monitor import (
    LEAST_IMAGES,
    Monitor,
    OnlineKnn,
    unreadable_images,
)
from burn.training.callbacks.profile import Profile
from burn.training.callbacks.progress import ProgressBar
from burn.training.compiled import compile_training
from burn.training.graphs import CudaRecorder, StepGraph
from burn.training.plan import Machine, monitor_interval
from burn.training.prepared import PreparedRun, stage_seed
from burn.training.pretraining import Pretraining, pretraining_loop, stage_batches
from burn.training.records.writer import Record
from burn.training.run_dir import PARTS, VIEWS, difference_of_runs, read_run_file


class Stage:
    """One stage of a run; `number` counts from 1, and `out` is the folder of the run."""

    def __init__(
        self, run: PreparedRun, number: int, precision: Precision, out: Path, stop: StopRequest
    ) -> None:
        self._run, self._number, self._precision = run, number, precision
        self._out, self._stop = out, stop
        self._folder = out / f"stage{number}"

    def train(self, weights: Mapping[str, torch.Tensor] | None) -> None:
        """Train the stage and write its checkpoint; without `weights` it begins as the run starts.

        A resume file, which a stage that is extended has as well, takes precedence.
        """
        run, recipe, machine = self._run, self._run.plan.recipe, self._run.machine
        processes, console = run.processes, run.console
        method = run.make_method(self._precision)
        if weights is not None:
            method.begin_from(weights)
        seed = stage_seed(run.plan.seed, self._number)
        cache = run.cache and run.cache.open(seed, method.num_taught)
        if cache is not None:
            self._keep_features(method, cache)
        loader = stage_batches(
            recipe,
            method,
            run.source,
            seed,
            run.workers,
            rank=processes.rank,
            count=processes.count,
            cache=cache,
            pin=processes.device.type == "cuda",
        )
        steps = run.steps
        assert len(loader) == steps.passes_per_epoch
        loop = self._loop(method, loader)

        processes.run_on_main(lambda: self._folder.mkdir(exist_ok=True))
        settings = {part: run.described[part] for part in PARTS}
        owner = f"{read_run_file(self._out).get('run')}, stage {self._number}"
        files = ResumeFiles(self._folder, owner, settings, difference_of_runs, _as_now)
        saver = SaveResume(files, self._stop, machine.save_every, console)
        every = monitor_interval(machine.monitor_every, steps.total)
        views = self._out / VIEWS if self._number == 1 else None
        record = Record(self._folder, console, views)
        monitor = Monitor(every, machine.bad_share, run.source, record, processes, console)
        continued = run.start is not None or self._number > 1
        callbacks: list[Callback] = [
            FiniteSteps(machine.skippable_steps, every, processes, console),
            Guard(method.parts(), continued=continued),
            monitor,
        ]
        if processes.is_main:
            layers = Layers(every, method.backbone, record)
            if layers:
                callbacks.append(layers)
            labels = run.source.labels
            labelled = None if labels is None else labels[labels >= 0]
            if labelled is not None and len(labelled) >= LEAST_IMAGES and np.ptp(labelled) > 0:
                knn = OnlineKnn(run.source, recipe.views, monitor, record, self._stop)
                callbacks.append(knn)
        chooser = stage_chooser(machine, processes, steps.total * steps.parts)
        threads = Threads(chooser) if chooser else None
        callbacks += [threads, saver] if threads else [saver]
        if processes.is_main:
            num_stages = len(recipe.precisions())
            title = f"stage {self._number}/{num_stages} {self._precision.value}"
            later = (num_stages - self._number) * steps.total
            callbacks.append(ProgressBar(title, later, steps, monitor, console, threads))
        if machine.profile:
            profile = Profile(self._folder / "profile.json", console)
            callbacks = [profile, *callbacks, profile.last]
        loop.callbacks = callbacks
        files.resume(loop, console)
        self._fit(loop, saver)
        self._finish(loop, monitor, threads)
        processes.run_on_main(lambda: files.finish(keep=run.extendable))

    def _loop(self, method: Method, loader: EpochLoader) -> Loop[Pretraining]:
        """Return the loop that trains a method, which is moved to the device of the processes."""
        run, machine = self._run, self._run.machine
        recipe, processes = run.plan.recipe, run.processes
        method.to(processes.device)
        if run.synchronizes:
            synchronize_norms(method)
        if machine.compile and run.synchronizes:
            run.say(
                "--compile: BN over several processes cannot be compiled; training goes on without",
                "yellow",
            )
        elif machine.compile:
            compile_training(method.backbone, partial(run.say, style="yellow"))
        graph = None
        if machine.cuda_graphs:
            graph = StepGraph(method, recipe.method, run.steps.images, CudaRecorder())
        bfloat16 = run.compute == "bfloat16"
        learner = Pretraining(method, processes, bfloat16=bfloat16, graph=graph)
        return pretraining_loop(learner, loader, recipe, run.steps, processes)

    def _keep_features(self, method: Method, cache: FeatureCache) -> None:
        """Write the teacher's features to the cache from now on, until that fails."""
        recipe = self._run.plan.recipe
        target = frozen_target(method)
        assert target is not None

        def keep(epoch: int, view: int, indices: list[int], values: NDArray[np.float16]) -> None:
            epoch = recipe.view_epoch(epoch)
            try:
                cache.write(epoch, view, indices, values)
            except OSError as error:
                target.keep = None
                problem = cannot_be_written(cache.file(epoch, view), error)
                self._run.say(
                    f"the teacher's features are no longer cached: {problem}; training continues",
                    "yellow",
                )

        target.keep = keep

    def _fit(self, loop: Loop[Any], saver: SaveResume) -> None:
        try:
            loop.run()
        except KeyboardInterrupt:  # a second Ctrl-C
            raise self._run.interrupted(
                f"stopped at once in stage {self._number}", self._stop.number or SIGINT
            ) from None
        if saver.stopped_by and loop.step < loop.num_steps:
            saved = "saved" if saver.last_step == loop.step else "not saved"
            raise self._run.interrupted(
                f"stopped and {saved} at step {loop.step} of {loop.num_steps} in stage "
                f"{self._number}",
                saver.stopped_by,
            )

    def _finish(self, loop: Loop[Pretraining], monitor: Monitor, threads: Threads | None) -> None:
        run, recipe = self._run, self._run.plan.recipe
        method = loop.learner.method.cpu()  # which makes room for the next stage
        weights = method.weights()
        if not loop.learner.learned:
            run.processes.fail(
                "no batch held two readable images and had a finite loss: nothing was learned or "
                "saved"
            )
        finite = all(bool(torch.isfinite(t).all()) for t in weights.values())
        # In all processes, since each has its own statistics of BN.
        if run.processes.all_reduce_max(float(not finite)):
            run.processes.fail("the weights are not finite: lower --optim.lr; nothing was saved")
        unreadable = monitor.all_unreadable()
        seconds = monitor.seconds
        images = loop.batches * run.steps.images * run.steps.processes
        meta = {
            "stage": self._number,
            "num_stages": len(recipe.precisions()),
            "precision": self._precision.value,
            "steps": loop.step,
            "images_per_step": run.steps.batch_size,
            "images_seen": images,
            **({"replanned_at": loop.replanned_at} if loop.replanned_at else {}),
            "max_steps": run.plan.max_steps,
            "seed": run.plan.seed,
            "backbone": recipe.to_json()["backbone"],
            "views": recipe.to_json()["views"],
            "recipe": {"name": run.plan.recipe_name, **recipe.to_json()},
            "data": run.described["data"],
            "teacher": run.described["teacher"],
            "init": run.described["init"],
            **({"labels": run.plan.data} if find_method(recipe.method).needs_labels else {}),
            **({"plugins": run.described["plugins"]} if "plugins" in run.described else {}),
            "machine": run.machine_described,
            "monitor": {
                **(monitor.knn.numbers() if monitor.knn else {"knn": None}),
                "collapsed_at": monitor.target.collapsed_at,
                "features_collapsed_at": monitor.features.collapsed_at,
                "seconds": seconds,
                "images_per_second": images / max(seconds, 1e-9),
                "unreadable_images": len(unreadable),
                "teacher_cached": _cached_share(method),
                "steps_by_threads": threads.chooser.steps if threads else None,
                "last": monitor.last,
            },
        }
        file = self._out / f"stage{self._number}.safetensors"
        run.processes.run_on_main(lambda: self._save(file, weights, meta))
        for watched in (monitor.target, monitor.features):
            if watched.collapsed_at is not None:
                text = f"stage {self._number}: {watched.message()}"
                run.console.print(text, style="bold red")
        if unreadable:
            run.console.print(unreadable_images(run.source, unreadable))

    def _save(self, file: Path, weights: Mapping[str, torch.Tensor], meta: dict[str, Any]) -> None:
        try:
            save_checkpoint(file, weights, meta)
        except OSError as error:
            problem = cannot_be_written(error.filename or file, error)
            raise UserError(
                f"stage {self._number} is trained but not saved: {problem}; free some space, then "
                "resume with: ",
                self._run.resume_command,
            ) from error


def stage_chooser(machine: Machine, processes: Processes, batches: int) -> ThreadChooser | None:
    """Return what chooses the number of threads of a stage while it trains.

    It is None where `thread_chooser` chooses none, where the user asked for the same bits again,
    and where compiled code would be compiled again for another number.
    """
    alone = processes.device.type == "cpu" and processes.count == 1
    if not alone or machine.deterministic or machine.compile:
        return None
    return thread_chooser(batches)


def _cached_share(method: Method) -> float | None:
    """Return the share of the teacher's features that came from a cache; None without a teacher."""
    target = frozen_target(method)
    if target is None or not target.num_given:
        return None
    return round(1 - target.num_computed / target.num_given, 4)


def _as_now(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if "loops" not in content:
        return content
    # It was written when burn trained with Lightning's Trainer.
    (loader,) = content["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    return {
        **content,
        "loader": loader,
        "batches": loader["used"],
        "learner": {"learned": content["learned"]},
    }
