"""What all parts of a fine-tuning share: the networks, the images, the settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.checkpoints.classifier import fingerprint
from burn.checkpoints.native import labels_behind
from burn.core.errors import UserError
from burn.core.schedule import learning_rate_factor
from burn.core.types import Features
from burn.data.base import Source
from burn.data.loader import random_views
from burn.data.splits import Subset, hold_out
from burn.data.view_config import ViewConfig
from burn.evaluation.context import EvaluationContext, Model, open_context, open_model
from burn.evaluation.features import extract_features
from burn.evaluation.fine_tuning import Tuner, TuningPlan
from burn.finetuning.folder import KIND
from burn.finetuning.settings import FinetuneConfig, FinetuneRequest
from burn.learning.threads import thread_chooser
from burn.runtime.compute import uses_bfloat16
from burn.runtime.signals import StopRequest

HELD_OUT = 0.2  # share of the training images on which the learning rates are chosen
_WARMUP = 0.05  # share of the steps in which the learning rates rise linearly
_LARGEST_TEACHER = 224


class Stopped(Exception):
    """Raised after a step when a signal asked the run to stop, which goes on there if `saved`."""

    def __init__(self, saved: bool = True) -> None:
        super().__init__()
        self.saved = saved


Answers = Callable[[Tensor], Tensor]  # from views to scores


class SoftLabels:
    """A float network that teaches `start`: it answers with classes of the labelled images."""

    def __init__(self, config: FinetuneConfig, start: Model, device: torch.device) -> None:
        assert config.teacher is not None
        self.model = open_model(config.teacher, fresh=False, seed=0)
        backbone = self.model.backbone
        self.size = config.teacher_size or _default_size(self.model, start)  # pixels
        if backbone.fixed_size not in (None, self.size):
            raise UserError(
                f"--teacher-size {self.size}: {config.teacher} needs {backbone.fixed_size} pixels"
            )
        self.backbone = backbone.to(device).requires_grad_(False).eval()
        self._bfloat16 = uses_bfloat16("auto", "cuda" if device.type == "cuda" else "cpu")
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        self._features = self.backbone.folded(dtype) or self.backbone

    def features(self, source: Source, workers: int) -> Features:
        views = replace(self.model.views, size=self.size, resize=None)
        return extract_features(
            self.backbone, source, views, workers=workers, bfloat16=self._bfloat16
        )

    def answers(self, layer: nn.Linear) -> Answers:
        """Return the function from views to scores by a linear classifier on its features."""
        device = next(self.backbone.parameters()).device
        layer = layer.to(device).requires_grad_(False)

        def scores(views: Tensor) -> Tensor:
            with torch.no_grad():
                with torch.autocast(device.type, torch.bfloat16, enabled=self._bfloat16):
                    features = self._features(views)
                return layer(features.float())

        return scores


def _default_size(teacher: Model, start: Model) -> int:
    if teacher.backbone.fixed_size is not None:
        return teacher.backbone.fixed_size
    recipe: Any = (start.meta or {}).get("recipe")
    size = recipe.get("teacher_size") if isinstance(recipe, dict) else None
    if isinstance(size, int) and 8 <= size <= 4096:
        return size
    if teacher.training is not None:
        return teacher.views.size
    return max(start.views.size, min(2 * start.views.size, _LARGEST_TEACHER))


class Job:
    """One call of `finetune`, once its training and test images are open."""

    def __init__(
        self,
        request: FinetuneRequest,
        config: FinetuneConfig,
        console: Console,
        sources: tuple[Source, Source],
        stop: StopRequest,
        model: Model | None,
    ) -> None:
        self.request, self.config, self.console, self.stop = request, config, console, stop
        train, self.test = sources
        if model is None:
            model = open_model(request.checkpoint, fresh=request.random_init, seed=request.seed)
        self.model = model
        self.train = Subset(train, range(len(train)))
        self.frozen = self.context(model)  # before fine-tuning
        self.device, self.notes = self.frozen.device, self.frozen.notes
        self.workers, self.bfloat16 = self.frozen.workers, self.frozen.bfloat16
        # What trials learn from, and what chooses the learning rates. Also without a choice: the
        # linear classifiers' learning rates need images held out.
        self.learn, self.held = hold_out(self.train, HELD_OUT, request.seed, keep_single=True)
        self.teacher: SoftLabels | None = None
        if config.teacher is not None:
            self.teacher = SoftLabels(config, model, self.device)
            line = f"teacher: {self.teacher.model.name}, {self.teacher.size} pixels"
            self.notes.insert(len(model.labels_notes), line)
        self.all_steps = self.steps(self.learn, config.trial_epochs) * config.trials
        self.all_steps += self.steps(self.train, config.epochs)
        self.threads = thread_chooser(self.all_steps) if self.device.type == "cpu" else None
        self.began = time.perf_counter()
        self.earlier = 0.0  # seconds of what earlier calls finished, as far as it was gone on with
        self.start = {
            "model": model.name,
            "fingerprint": fingerprint(model.backbone),
            **({"training": dict(model.training)} if model.training else {}),
        }
        teacher = None
        if self.teacher is not None:
            teacher = {
                "spec": config.teacher,
                "architecture": self.teacher.backbone.config.name,
                "fingerprint": fingerprint(self.teacher.backbone),
                "size": self.teacher.size,
                "labels": labels_behind(self.teacher.model.meta or {}),
            }
        self.described: dict[str, Any] = {  # for run.json and the checkpoint
            "kind": KIND,
            "burn": version("burn-ssl"),
            "plan": {
                "recipe_name": "finetune",
                "recipe": self._recipe(),
                "settings": asdict(config),
                "seed": request.seed,
                "random_init": request.random_init,
            },
            "start": self.start,
            "data": _about(train),
            "test": _about(self.test),
            "teacher": teacher,
            "resolved": {
                "device": self.device.type,
                "compute": "bfloat16" if self.bfloat16 else "float32",
            },
        }

    def _recipe(self) -> dict[str, Any]:
        """Return the settings as a report shows those of a recipe."""
        config, lrs = self.config, self.config.lrs
        optim = {"name": "adam", "schedule": "cosine"}
        return {
            "method": "finetune",
            "epochs": config.epochs,
            "batch_size": min(config.batch_size, len(self.train)),
            "backbone": asdict(self.model.backbone.config),
            "views": asdict(self.views()),
            "optim": optim if len(lrs) > 1 else {**optim, "lr": min(lrs)},
        }

    def views(self) -> ViewConfig:
        config, views = self.config, self.model.views
        return replace(
            views,
            crop_scale=config.crop_scale,
            flip=config.flip,
            jitter=config.jitter,
            rand_augment=0,
            grey=0.0,
            blur=0.0,
        )

    def steps(self, source: Subset, epochs: int) -> int:
        return epochs * max(1, len(source) // self.config.batch_size)

    def tuner(
        self,
        backbone: Backbone,
        head: nn.Linear,
        source: Subset,
        epochs: int,
        lr: float,
        head_lr: float,
        answers: Answers | None,
    ) -> Tuner:
        """Return a training of a network and a classifier, which it changes in place."""
        config, views, seed = self.config, self.views(), self.request.seed
        weights = class_weights(source, config.class_weights)
        plan = TuningPlan(
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
            class_weights=None if weights is None else torch.tensor(weights, device=self.device),
            kl=config.kl,
            temperature=config.temperature,
        )
        theirs: Sequence[ViewConfig] = ()
        if self.teacher is not None and self.teacher.size != views.size:
            theirs = (replace(views, size=self.teacher.size, resize=None),)
        return Tuner(
            backbone,
            head,
            source,
            random_views((views,), seed, theirs),
            plan,
            seed=seed,
            workers=self.workers,
            bfloat16=self.bfloat16,
            teacher=answers,
            threads=self.threads,
        )

    def context(self, model: Model, out: Path | None = None) -> EvaluationContext:
        """Return what the parts of evaluation ask for.

        `out` is the folder of the run for the trained network, which is then computed as it will
        run, by burn-engine if that can.
        """
        request = self.request
        return open_context(
            model,
            str(out or request.checkpoint),
            (self.train, self.test),
            seed=request.seed,
            device=request.device,
            compute=request.compute,
            workers=request.workers,
            out=out,
            frozen=out is not None,
        )


def _about(source: Source) -> dict[str, Any]:
    return {"name": source.name, "images": len(source), "fingerprint": source.fingerprint}


def class_weights(source: Source, how: str) -> list[float] | None:
    """Return the weight of each class's images in the loss; the mean over all images is 1.

    They are in proportion to 1 / count if balanced, to its square root if sqrt, 0 for a class
    without images, and None if there are to be none.
    """
    if how == "none":
        return None
    assert source.labels is not None
    counts = np.bincount(source.labels, minlength=len(source.classes)).astype(float)
    power = {"balanced": 1.0, "sqrt": 0.5}[how]
    weights = np.where(counts > 0, np.maximum(counts, 1) ** -power, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).tolist()
