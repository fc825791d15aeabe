"""The work of `burn finetune`: choose learning rates, train, write the checkpoint, test it once."""

from __future__ import annotations

import contextlib
import copy
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.checkpoints.foreign.named import require_network
from burn.core.errors import Interrupted, UserError, printable
from burn.core.files import locked
from burn.core.paths import expand
from burn.core.results import Result, append_results
from burn.core.schedule import learning_rate_factor
from burn.data.base import Source
from burn.data.checks import remarks, require_outside
from burn.data.open import open_source
from burn.evaluation.checks import check_sources, doubt_of_choice
from burn.finetuning.folder import KIND, TunedFolder
from burn.finetuning.settings import FinetuneConfig, FinetuneRequest
from burn.runtime.compute import default_workers, torch_device, uses_bfloat16
from burn.runtime.ranks import ranks, require_alone
from burn.runtime.signals import StopRequest, StopsAreErrors

if TYPE_CHECKING:
    from torch import nn

    from burn.backbones.base import Backbone
    from burn.checkpoints.classifier import Classifier
    from burn.core.types import Features
    from burn.data.splits import Subset
    from burn.data.view_config import ViewConfig
    from burn.evaluation.context import EvaluationContext, Model
    from burn.evaluation.fine_tuning import Tuner, TuningPlan
    from burn.finetuning.progress import TuningProgress
    from burn.finetuning.start import SoftLabels

_HELD_OUT = 0.2  # share of the training images on which the learning rates are chosen
_WARMUP = 0.05  # share of the steps in which the learning rates rise linearly
_TRIAL = {
    "lr": float, "head_lr": float, "top1": (float, type(None)), "loss": (float, type(None)),
    "calibration": float, "seconds": float,
}  # fmt: skip

Show = Callable[[Sequence[Result], Sequence[str]], None]


@dataclass(frozen=True)
class Finetuned:
    """Output of a fine-tuning.

    Attributes:
        results: Accuracies on the test images.
        notes: Remarks, a line each.
        classifier: The classifier that was trained with the network.
        checkpoint: The file of both.
    """

    results: list[Result]
    notes: list[str]
    classifier: Classifier
    checkpoint: Path


def finetune(
    request: FinetuneRequest,
    config: FinetuneConfig,
    console: Console,
    show: Show = lambda results, notes: None,
    *,
    resume_command: str = "the same command with --resume",
    model: Model | None = None,
    train: Source | None = None,
    test: Source | None = None,
) -> Finetuned:
    """Fine-tune a network, and write it with its classifier as the run in `request.out`.

    Args:
        request: The network, the images and the folder.
        config: The settings.
        console: Where progress is shown.
        show: Called with the results and with remarks as soon as they are known.
        resume_command: What to tell a user who interrupts the run.
        model: A network to use instead of the request's checkpoint.
        train: Images to use instead of the request's training images.
        test: Images to use instead of the request's test images.

    Raises:
        UserError: Settings, network or images cannot be used, training diverged, or a file could
            not be written.
        Interrupted: After Ctrl-C or SIGTERM; the run is saved.
    """
    from burn.training.run_dir import make_folder, require_usable

    request.check()
    config.check()
    require_alone("finetune")
    out = expand(request.out)
    if model is None:
        require_network(request.checkpoint)
    if config.teacher is not None:
        require_network(config.teacher)
    require_usable(out, resume=request.resume, overwrite=request.overwrite, kind=KIND)
    sources = check_sources(
        open_source(request.train, "train") if train is None else train,
        open_source(request.test, "test") if test is None else test,
    )
    require_outside(out, *sources)
    device = torch_device(request.device)
    from burn.runtime.gpu import gpu_arithmetic, gpu_failures_named

    smaller = f"a batch of {config.batch_size} images does not fit; give a smaller --batch-size"
    stop = StopRequest("finishing this step and saving")
    with contextlib.ExitStack() as held:
        held.enter_context(gpu_failures_named(smaller))
        held.enter_context(gpu_arithmetic(device, fixed_shapes=True))
        held.enter_context(stop.installed())
        work = _Work(request, config, console, sources, stop, model)
        make_folder(out)
        held.enter_context(locked(out))
        held.enter_context(StopsAreErrors())
        folder = TunedFolder(out, work.described, request.resume, request.overwrite)
        try:
            return work.run(folder, show)
        except _Stopped:
            message = f"stopped and saved in {out}; to go on: "
            raise Interrupted(message + resume_command, stop.number, resume_command) from None


class _Stopped(Exception):
    """Raised after a step when a signal asked the run to stop."""


class _Work:
    """One call of `finetune`, from its sources on.

    Args:
        request: The network, the images and the folder.
        config: The settings.
        console: Where progress is shown.
        sources: The training and the test images.
        stop: Tells whether a signal asked the run to stop.
        model: The network, or None to open the request's.
    """

    def __init__(
        self,
        request: FinetuneRequest,
        config: FinetuneConfig,
        console: Console,
        sources: tuple[Source, Source],
        stop: StopRequest,
        model: Model | None,
    ) -> None:
        from burn.checkpoints.classifier import fingerprint
        from burn.data.splits import Subset, hold_out
        from burn.evaluation.context import open_model
        from burn.finetuning.start import SoftLabels

        self._request, self._config, self._console, self._stop = request, config, console, stop
        train, self._test = sources
        self._device = torch_device(request.device)
        self._bfloat16 = uses_bfloat16(request.compute, request.device)
        count = ranks().local_count
        given = request.workers
        self._workers = default_workers(request.device, count) if given is None else given
        if model is None:
            model = open_model(request.checkpoint, fresh=request.random_init, seed=request.seed)
        self._model = model
        self._model.backbone.to(self._device)
        self._all = Subset(train, range(len(train)))
        # Also without a choice: the linear classifiers' learning rates need images held out.
        self._learn, self._held = hold_out(self._all, _HELD_OUT, request.seed, keep_single=True)
        self._teacher: SoftLabels | None = None
        if config.teacher is not None:
            self._teacher = SoftLabels(config, model, self._device)
        self.notes = self._first_notes()
        self._began = time.perf_counter()
        about = {
            "model": model.name,
            "fingerprint": fingerprint(model.backbone),
            **({"training": dict(model.training)} if model.training else {}),
        }
        teacher = None
        if self._teacher is not None:
            teacher = {
                "spec": config.teacher,
                "fingerprint": fingerprint(self._teacher.backbone),
                "size": self._teacher.size,
            }
        self._start = about
        self.described: dict[str, Any] = {
            "kind": KIND,
            "burn": version("burn-ssl"),
            "plan": {
                "recipe_name": "finetune",
                "recipe": self._recipe(),
                "settings": asdict(config),
                "seed": request.seed,
                "random_init": request.random_init,
            },
            "start": about,
            "data": _about(train),
            "test": _about(self._test),
            "teacher": teacher,
            "resolved": {
                "device": self._device.type,
                "compute": "bfloat16" if self._bfloat16 else "float32",
            },
        }

    def _first_notes(self) -> list[str]:
        notes = []
        if self._model.training and "teacher_labels" in self._model.training:
            labels = self._model.training["teacher_labels"]
            notes.append(f"{self._model.name}: its teacher was trained with {labels} labels")
        if self._teacher is not None:
            notes.append(f"teacher: {self._teacher.model.name}, {self._teacher.size} pixels")
        for source in (self._all, self._test):
            lines = [f"{source.name}: {line}" for line in remarks(source)]
            notes.extend(line for line in lines if line not in notes)
        return notes

    def _recipe(self) -> dict[str, Any]:
        """Return the settings as a report shows those of a recipe."""
        config, lrs = self._config, self._config.lrs
        optim = {"name": "adam", "schedule": "cosine"}
        return {
            "method": "finetune",
            "epochs": config.epochs,
            "batch_size": min(config.batch_size, len(self._all)),
            "backbone": asdict(self._model.backbone.config),
            "views": asdict(self._views()),
            "optim": optim if len(lrs) > 1 else {**optim, "lr": min(lrs)},
        }

    def _views(self) -> ViewConfig:
        config, views = self._config, self._model.views
        return replace(
            views,
            crop_scale=config.crop_scale,
            flip=config.flip,
            jitter=config.jitter,
            rand_augment=0,
            grey=0.0,
            blur=0.0,
        )

    def run(self, folder: TunedFolder, show: Show) -> Finetuned:
        """Do what is not done yet: choose, train, test."""
        from burn.checkpoints.native import load_checkpoint

        if not folder.checkpoint.is_file():
            self._train(folder)
        tuned = load_checkpoint(folder.checkpoint)
        folder.require_own(tuned)
        return self._evaluate(folder, tuned.meta, show)

    def _train(self, folder: TunedFolder) -> None:
        from burn.finetuning.progress import TuningProgress
        from burn.finetuning.start import accuracy, frozen_features, linear_start

        config, seed = self._config, self._request.seed
        self._say_plan()
        backbone, workers = self._model.backbone, self._workers
        features = frozen_features(
            backbone, self._model.views, self._all, workers, bfloat16=self._bfloat16
        )
        self._require_classes(features)
        taught = None
        if self._teacher is not None:
            taught = self._teacher.features(self._all, workers)
        linear = linear_start(features, self._learn, seed)
        frozen = accuracy(linear.layer, features, self._held)
        said = f"linear classifier on the frozen network: {frozen:.1f} % of the held-out images"
        if taught is not None:
            of_teacher = linear_start(taught, self._learn, seed)
            known = accuracy(of_teacher.layer, taught, self._held)
            said += f", on the teacher: {known:.1f} %"
        self._console.print(said, highlight=False)
        steps = self._steps(self._learn, config.trial_epochs) * config.trials
        steps += self._steps(self._all, config.epochs)
        with TuningProgress(self._console, steps) as progress:
            answers = None
            if config.trials and self._teacher is not None and taught is not None:
                answers = self._teacher.answers(of_teacher.layer)
            trials = self._trials(folder, linear.layer, answers, progress)
            best = _best(trials) if trials else None
            lr = best["lr"] if best else config.lrs[0]
            head_lr = best["head_lr"] if best else config.head_lrs[0]
            head = linear_start(features, self._all, seed).layer
            if self._teacher is not None and taught is not None:
                layer = linear_start(taught, self._all, seed).layer
                answers = self._teacher.answers(layer)
            backbone = copy.deepcopy(self._model.backbone)
            plan = self._plan(self._all, config.epochs, lr, head_lr)
            tuner = self._tuner(backbone, head.to(self._device), self._all, plan, answers)
            began = time.monotonic()
            seconds = self._fit(folder, tuner, progress, began)
        about = {
            "start": self._start,
            "settings": asdict(config),
            "lr": lr,
            "head_lr": head_lr,
            "linear": round(frozen, 4),
            "held_out": len(self._held),
            "trials": trials,
            "calibration": best["calibration"] if best else 1.0,
            "teacher": self.described["teacher"],
            "test": self.described["test"],
            "unreadable": sorted(tuner.unreadable),
        }
        self._write(folder, tuner, head, about, seconds)

    def _say_plan(self) -> None:
        config, learn = self._config, len(self._learn)
        text = f"fine-tuning {self._model.name} on {len(self._all):,} images"
        if config.trials:
            text += (
                f": {config.trials} trials of {_epochs(config.trial_epochs)} on {learn:,} of them "
                f"choose the learning rates on the other {len(self._held):,}, then"
            )
        else:
            text += ":"
        self._console.print(f"{text} {_epochs(config.epochs)} on all", highlight=False)

    def _require_classes(self, features: Features) -> None:
        """Check that each class that has five images or more kept one."""
        context = self._context(self._model, None)
        missing = set(range(len(self._all))) - set(features.positions.tolist())
        context.note_unreadable(self._all, missing)
        self.notes.extend(note for note in context.notes if note not in self.notes)

    def _steps(self, source: Subset, epochs: int) -> int:
        return epochs * max(1, len(source) // self._config.batch_size)

    def _plan(self, source: Subset, epochs: int, lr: float, head_lr: float) -> TuningPlan:
        import torch

        from burn.evaluation.fine_tuning import TuningPlan

        config = self._config
        weights = class_weights(source, config.class_weights)
        return TuningPlan(
            epochs=epochs,
            batch_size=config.batch_size,
            lr=lr,
            head_lr=head_lr,
            factor=lambda step, of_epoch: learning_rate_factor(
                step, epochs * of_epoch, round(_WARMUP * epochs * of_epoch), "cosine"
            ),
            optimizer="adam",
            drop_last=True,
            label_smoothing=config.label_smoothing,
            class_weights=None if weights is None else torch.tensor(weights, device=self._device),
            kl=config.kl,
            temperature=config.temperature,
        )

    def _tuner(
        self,
        backbone: Backbone,
        head: nn.Linear,
        source: Subset,
        plan: TuningPlan,
        answers: Any,
    ) -> Tuner:
        from burn.data.loader import random_views
        from burn.evaluation.fine_tuning import Tuner

        views, seed = self._views(), self._request.seed
        theirs: Sequence[ViewConfig] = ()
        if self._teacher is not None and self._teacher.size != views.size:
            theirs = (replace(views, size=self._teacher.size, resize=None),)
        return Tuner(
            backbone,
            head,
            source,
            random_views((views,), seed, theirs),
            plan,
            seed=seed,
            workers=self._workers,
            bfloat16=self._bfloat16,
            teacher=answers,
        )

    def _trials(
        self, folder: TunedFolder, start: nn.Linear, answers: Any, progress: TuningProgress
    ) -> list[dict[str, Any]]:
        """Train with each learning rate; first those of the backbone, then the classifier's."""
        config = self._config
        if not config.trials:
            return []
        kept = folder.trials(_TRIAL)
        trials = [
            self._trial(kept, start, answers, lr, config.head_lrs[0], progress) for lr in config.lrs
        ]
        best = _best(trials)
        trials += [
            self._trial(kept, start, answers, best["lr"], head_lr, progress)
            for head_lr in config.head_lrs[1:]
        ]
        best = _best(trials)
        told = "; ".join(
            f"{t['lr']:g}, {t['head_lr']:g}: "
            + ("diverged" if t["top1"] is None else f"{t['top1']:.1f}")
            for t in trials
        )
        self.notes.append(
            f"learning rates of network, classifier: top-1 on {len(self._held):,} held-out "
            f"training images after {_epochs(config.trial_epochs)}: {told}"
        )
        if best["lr"] in (min(config.lrs), max(config.lrs)) and len(config.lrs) > 1:
            self.notes.append(
                f"the chosen learning rate {best['lr']:g} is at the end of the range: --lrs beyond "
                "it may be better"
            )
        self.notes += doubt_of_choice(len(self._held), _HELD_OUT, "the learning rates")
        return trials

    def _trial(
        self,
        kept: Any,
        start: nn.Linear,
        answers: Any,
        lr: float,
        head_lr: float,
        progress: TuningProgress,
    ) -> dict[str, Any]:
        """Train on the images that are not held out, and evaluate on those that are."""
        config = self._config
        if found := kept.find(lr=lr, head_lr=head_lr):
            progress.skip(self._steps(self._learn, config.trial_epochs))
            return found
        began = time.perf_counter()
        progress.begin(f"trial, lr {lr:g}, {head_lr:g}")
        backbone = copy.deepcopy(self._model.backbone)
        head = copy.deepcopy(start).to(self._device)
        plan = self._plan(self._learn, config.trial_epochs, lr, head_lr)
        tuner = self._tuner(backbone, head, self._learn, plan, answers)

        def step() -> None:
            progress.step(tuner)
            if self._stop.requested:
                raise _Stopped

        finite = tuner.train(on_step=step)
        top1 = loss = None
        calibration = 1.0
        if finite:
            top1, loss, calibration = self._held_out_scores(backbone, head)
        seconds = round(time.perf_counter() - began, 3)
        shown = "diverged" if top1 is None else f"top-1 {top1:.1f} % of the held-out images"
        self._console.print(f"lr {lr:g}, {head_lr:g}: {shown}, {seconds:.0f} s", highlight=False)
        done = {
            "lr": lr, "head_lr": head_lr, "top1": top1, "loss": loss,
            "calibration": calibration, "seconds": seconds,
        }  # fmt: skip
        return kept.add(done)

    def _held_out_scores(
        self, backbone: Backbone, head: nn.Linear
    ) -> tuple[float | None, float | None, float]:
        """Return top-1 in percent, cross-entropy and calibrating temperature on held-out images."""
        import torch
        from torch.nn import functional as F

        from burn.evaluation.features import extract_features
        from burn.evaluation.linear_layer import calibrating_temperature, top_k

        features = extract_features(
            backbone, self._held, self._model.views, workers=self._workers, bfloat16=self._bfloat16
        )
        assert features.labels is not None
        with torch.inference_mode():
            scores = head.cpu()(features.values)
        if not bool(torch.isfinite(scores).all()):
            return None, None, 1.0
        top1 = round(100 * top_k(scores, features.labels, 1), 4)
        loss = round(min(1e9, float(F.cross_entropy(scores, features.labels))), 6)
        return top1, loss, calibrating_temperature(scores, features.labels)

    def _fit(
        self, folder: TunedFolder, tuner: Tuner, progress: TuningProgress, began: float
    ) -> float:
        """Train to the end, from the resume file if there is one; return the seconds of it all."""
        import torch

        files = folder.resume_files()
        shapes = {
            f"{part}.{name}": tensor.shape
            for part in ("backbone", "head")
            for name, tensor in tuner.state_dict()[part].items()
        }
        before = 0.0
        if resumed := files.usable(shapes, self._console):
            content = torch.load(resumed, map_location="cpu", weights_only=True)
            tuner.load_state_dict(content["tuner"])
            before = content["seconds"]
            progress.skip(tuner.steps)
            self._console.print(
                f"resumed at step {tuner.steps:,} of {tuner.num_steps:,}", highlight=False
            )
        metrics = folder.metrics(tuner.steps)
        every = max(1, min(20, tuner.num_steps // 50))
        saved = time.monotonic()
        failure = ""

        def elapsed() -> float:
            return before + time.monotonic() - began

        def save() -> None:
            nonlocal saved, failure
            state = tuner.state_dict()
            weights = {
                f"{part}.{name}": tensor
                for part in ("backbone", "head")
                for name, tensor in state[part].items()
            }
            content = io.BytesIO()
            torch.save(
                {
                    "state_dict": weights, "tuner": state, "seconds": elapsed(),
                    "owner": files.owner, "settings": files.settings,
                },
                content,
            )  # fmt: skip
            saved = time.monotonic()
            try:
                files.add(content.getvalue())
                failure = ""
            except OSError as error:
                failure = error.strerror or str(error)
                self._console.print(
                    f"step {tuner.steps} could not be saved: {files.newest}: {failure}; training "
                    "continues",
                    style="bold red",
                )

        def step() -> None:
            progress.step(tuner)
            if tuner.steps % every == 0 or tuner.steps == tuner.num_steps:
                metrics(tuner)
            stopping = self._stop.requested
            if stopping or time.monotonic() - saved >= 60 * self._request.save_every:
                save()
            if stopping:
                raise _Stopped

        progress.begin("finetune")
        if not tuner.train(on_step=step):
            raise UserError("fine-tuning diverged: give lower --lrs; nothing was saved")
        return elapsed()

    def _write(
        self,
        folder: TunedFolder,
        tuner: Tuner,
        head: nn.Linear,
        about: dict[str, Any],
        seconds: float,
    ) -> None:
        """Write the checkpoint, with a classifier whose probabilities are calibrated."""
        import torch

        from burn.checkpoints.tuned import save_tuned, tuned_meta
        from burn.training.run_dir import describe_machine

        with torch.no_grad():
            for parameter in head.parameters():
                parameter.div_(about["calibration"])
        assert self._model.meta is not None
        images = min(self._config.batch_size, len(self._all))
        meta = tuned_meta(
            self._model.meta,
            classes=self._class_names(),
            data=self.described["data"],
            steps=tuner.steps,
            images_per_step=images,
            seed=self._request.seed,
            about=about,
        )
        meta["run"] = folder.name
        meta["machine"] = describe_machine(self._device, 1)
        meta["monitor"] = {
            "knn": None,
            "collapsed_at": None,
            "seconds": seconds,
            "images_per_second": tuner.steps * images / max(seconds, 1e-9),
            "unreadable_images": len(tuner.unreadable),
            "last": {},
        }
        try:
            save_tuned(folder.checkpoint, tuner.backbone, head, meta)
        except OSError as error:
            raise UserError(
                f"the network is trained but not saved: {error.filename or folder.checkpoint} "
                f"cannot be written: {error.strerror or error}; free some space, then --resume"
            ) from error
        folder.finish()

    def _class_names(self) -> tuple[str, ...]:
        return self._context(self._model, None).class_names

    def _context(self, model: Model, out: Path | None, **options: Any) -> EvaluationContext:
        from burn.evaluation.context import EvaluationContext

        return EvaluationContext(
            model.name,
            str(out or self._request.checkpoint),
            model.backbone,
            model.views,
            self._all,
            self._test,
            self._request.seed,
            self._workers,
            out,
            self._bfloat16,
            training=model.training,
            **options,
        )

    def _evaluate(self, folder: TunedFolder, meta: Mapping[str, Any], show: Show) -> Finetuned:
        """Test the trained network once, on the test images, as it will run."""
        import torch

        from burn.checkpoints.foreign.weights import backbone_from
        from burn.checkpoints.native import load_checkpoint
        from burn.deploy.shared import own_classifier
        from burn.evaluation.artifacts.confusion import keep_confusion
        from burn.evaluation.context import model_of
        from burn.evaluation.features import extract_features
        from burn.evaluation.forward import packed_forward
        from burn.evaluation.linear_layer import right_answers, top_k

        held = load_checkpoint(folder.checkpoint)
        model = model_of(held, backbone_from(held))
        model.backbone.to(self._device)
        classifier = own_classifier(held, model.backbone)
        assert classifier is not None
        packed = None
        if self._request.compute == "auto":
            packed = packed_forward(model.backbone, model.views.size, "auto", self._device)
        context = self._context(model, folder.path, packed=packed)
        context.notes.extend(self.notes)
        features = extract_features(
            model.backbone,
            self._test,
            model.views,
            workers=self._workers,
            bfloat16=self._bfloat16,
            packed=packed,
        )
        missing = set(range(len(self._test))) - set(features.positions.tolist())
        context.note_unreadable(self._test, missing)
        assert features.labels is not None
        scores = features.values @ classifier.weight.T + classifier.bias
        if not bool(torch.isfinite(scores).all()):
            raise UserError("the scores of the test images are not finite: give lower --lrs")
        of_class = _class_accuracies(scores, features.labels, context.class_names)
        numbers = {f"top{k}": 100 * top_k(scores, features.labels, k) for k in (1, 5)}
        known = [one["top1"] for one in of_class.values() if one["images"]]
        numbers["mean per class"] = sum(known) / len(known)
        about = meta["finetuned"]
        told = ("lr", "head_lr", "linear", "trials", "calibration")
        settings = {
            **asdict(self._config),
            "random_init": self._request.random_init,
            "start": about["start"]["model"],
            **{name: about[name] for name in told},
            "classes": of_class,
        }
        right = right_answers(scores, features.labels, features.positions, len(self._test))
        results = context.results("finetune", numbers, settings, self._began, right=right)
        show(results, context.notes)
        context.keep(partial(append_results, folder.path / "results.jsonl", results))
        told_so_far = len(context.notes)
        names = context.class_names
        keep_confusion(context, "finetune", "top1", scores, features.labels, names)
        for note in context.notes[told_so_far:]:
            self._console.print(printable(note))
        context.require_kept()
        return Finetuned(results, context.notes, classifier, folder.checkpoint)


def _epochs(number: int) -> str:
    return f"{number:,} epoch{'' if number == 1 else 's'}"


def _about(source: Source) -> dict[str, Any]:
    return {"name": source.name, "images": len(source), "fingerprint": source.fingerprint}


def _best(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the most accurate trial; of equal ones that of the least cross-entropy.

    Raises:
        UserError: All of them diverged.
    """
    valid = [trial for trial in trials if trial["top1"] is not None]
    if not valid:
        raise UserError("finetune: every trial diverged: give lower --lrs")
    return max(valid, key=lambda trial: (trial["top1"], -trial["loss"]))


def class_weights(source: Source, how: str) -> list[float] | None:
    """Return the weight of each class's images in the loss; the mean over all images is 1.

    Args:
        source: The images, with labels.
        how: none, balanced (in proportion to 1 / count), or sqrt (to its square root).

    Returns:
        A weight for each class, 0 for one without images; None for `none`.
    """
    import numpy as np

    if how == "none":
        return None
    assert source.labels is not None
    counts = np.bincount(source.labels, minlength=len(source.classes)).astype(float)
    power = {"balanced": 1.0, "sqrt": 0.5}[how]
    weights = np.where(counts > 0, np.maximum(counts, 1) ** -power, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).tolist()


def _class_accuracies(scores: Any, labels: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return top-1 in percent and number of test images of each class, by its name."""
    right = scores.topk(1, dim=1).indices[:, 0] == labels
    found = {}
    for label, name in enumerate(names):
        rows = labels == label
        count = int(rows.sum())
        top1 = round(100 * float(right[rows].float().mean()), 4) if count else None
        found[name] = {"top1": top1, "images": count}
    return found
