"""Gradients of BURN's two terms over the first steps (the paper's two figures of gradients).

L = (1 - λ)·KL + λ·L_FS reaches the student's classifier l only by its first term, and the student's
feature extractor k by both. So the only direct effect of the feature similarity on l's gradient is
the factor 1 - λ; everything else comes from another course of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burn.backbones.registry import build_backbone
from burn.campaigns.ablate import NOT_JOINT
from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.schedule import learning_rate_factor
from burn.core.types import Batch
from burn.data.base import Source
from burn.methods.base import StepOutput
from burn.methods.burn.method import Burn
from burn.methods.registry import build_method
from burn.recipes.schema import Recipe
from burn.runtime.compute import Device, torch_device, uses_bfloat16
from burn.training.plan import stage_steps
from burn.training.pretraining import build_optimizer, stage_batches
from reproduction.analyses.rows import Row

# Columns of a row; those of _AT_TIMES may be None.
_ALWAYS = (
    "step", "lambda", "loss", "kl", "feature_similarity", "target_entropy", "classifier",
    "classifier_mean", "extractor", "extractor_mean", "learning_rate",
)  # fmt: skip
_AT_TIMES = ("classifier_per_weight", "extractor_kl", "extractor_fs")
_BELOW_ZERO = ("loss", "kl", "feature_similarity")  # columns that may be below zero

# The gradient of k is split by terms on the first step and on every tenth step; each time it costs
# two more backward passes.
SPLIT_EVERY = 10


@dataclass(frozen=True)
class Setting:
    """The loss of one run.

    Attributes:
        classifier: The teacher's classifier is trained with the student's (joint) or stays random
            (frozen).
        similarity: Distance of L_FS, with the recipe's λ(t), or none for KL alone (λ = 0).
    """

    classifier: Literal["joint", "frozen"]
    similarity: Literal["none", "cosine", "l1", "l2"]

    @property
    def name(self) -> str:
        return f"{self.classifier}-{self.similarity}"

    def of(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this loss.

        Raises:
            UserError: The recipe is of another method.
        """
        if recipe.method != "burn":
            raise UserError(
                f"method {recipe.method} has no feature similarity: give a recipe of method burn"
            )
        of_joint = {} if self.classifier == "joint" else NOT_JOINT
        recipe = recipe.with_settings(
            classifier=self.classifier, similarity_of="features", **of_joint
        )
        if self.similarity == "none":
            return recipe.with_settings(similarity="cosine", lam="constant", lam_end=0.0)
        return recipe.with_settings(similarity=self.similarity)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(classifier, similarity)
    for classifier in ("joint", "frozen")
    for similarity in ("none", "cosine", "l1", "l2")
)


def is_finite(row: Row) -> bool:
    """Return whether training can continue after this step."""
    return math.isfinite(row["loss"] + row["classifier"] + row["extractor"])


def are_first_steps(rows: Sequence[Row], steps: int) -> bool:
    """Return whether rows from a file can be those of `FirstSteps`.

    Args:
        rows: The rows.
        steps: Number of rows, unless the last one is not finite.
    """
    *before, last = rows
    return (
        all(_is_row(row, step) for step, row in enumerate(rows, start=1))
        and all(math.isfinite(row[name]) for row in before for name in _ALWAYS)
        and (len(rows) == steps or (len(rows) < steps and not is_finite(last)))
    )


def _is_row(row: Row, step: int) -> bool:
    if row.keys() != {*_ALWAYS, *_AT_TIMES} or row["step"] != step:
        return False
    numbers = [(name, row[name]) for name in row if name in _ALWAYS or row[name] is not None]
    return (
        all(isinstance(value, (int, float)) for _, value in numbers)
        and not any(value < 0 for name, value in numbers if name not in _BELOW_ZERO)
        and row["lambda"] <= 1
        and not row["target_entropy"] > 1.01  # a share, up to rounding, or not a number
    )


class FirstSteps:
    """The start of stage 1 as in `burn.training.run.train_plan`, and the gradient at each step.

    Random draws, batches, arithmetic and schedules, which span the recipe's whole stage, are the
    same: after n steps the weights are those of `pretrain` to the last bit
    (tests/experiments/test_gradients.py). The networks train while `rows` is iterated.

    Args:
        recipe: The recipe in one `Setting`.
        source: Training images.
        teacher: The teacher; it becomes a part of the method.
        seed: Random seed.
        device: auto, cpu or cuda.
        workers: Number of data-loader workers.

    Raises:
        UserError: The recipe or the teacher cannot be used.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: Source,
        teacher: Teacher,
        seed: int,
        device: Device = "auto",
        workers: int = 0,
    ) -> None:
        recipe.check()
        self._recipe, self._device = recipe, torch_device(device)
        self._bfloat16 = uses_bfloat16(recipe.compute, device)
        torch.manual_seed(seed)
        backbone = build_backbone(recipe.backbone, recipe.precisions()[0])
        method = build_method("burn", recipe.settings, backbone, teacher, 0)
        assert isinstance(method, Burn)
        assert method.classifier is not None
        self.method = method.to(self._device)
        self._loader = stage_batches(recipe, method, source, seed, workers)
        self.num_steps = stage_steps(recipe, len(source)).total
        self._steps_per_epoch = self.num_steps // recipe.epochs
        self._terms = _Terms(method)

    def rows(self) -> Iterator[Row]:
        """Yield a row for each step, to the end of the stage or the first step that is not finite.

        The columns of a row:

        - `step`: from 1.
        - `lambda`: λ(t).
        - `learning_rate`: that of the first parameter group.
        - `kl`, `feature_similarity`: the two terms.
        - `target_entropy`: entropy of the mean of p1 over the step's images, as a share of log C.
        - `classifier`, `extractor`: L2 norm of the gradient of l and k over all their parameters.
        - `classifier_mean`, `extractor_mean`: mean of the gradient's absolute values.
        - `classifier_per_weight`: `classifier` divided by 1 - λ, which is the gradient of KL
          itself. None where KL has no weight.
        - `extractor_kl`, `extractor_fs`: norm of the gradients of KL and L_FS themselves in k. None
          where the term has no weight, and on steps that were not split.

        Raises:
            UserError: A batch has fewer than two readable images.
        """
        recipe, method = self._recipe, self.method
        optimizer = build_optimizer(method.parts(), recipe.optim)
        warmup = min(round(recipe.optim.warmup_epochs * self._steps_per_epoch), self.num_steps)
        rates = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: learning_rate_factor(step, self.num_steps, warmup, recipe.optim.schedule),
        )
        for step, batches in enumerate(self._steps(), start=1):
            split = step == 1 or step % SPLIT_EVERY == 0
            row = self._gradients(batches, step, split)
            row["learning_rate"] = rates.get_last_lr()[0]
            yield row
            if not is_finite(row):
                return
            optimizer.step()
            optimizer.zero_grad()
            rates.step()
            method.after_step((step - 1) / self.num_steps)

    def _steps(self) -> Iterator[list[Batch]]:
        """Yield the micro-batches of each optimizer step; an epoch's last step may have fewer."""
        done = 0
        while done < self.num_steps:
            batches: list[Batch] = []
            for number, batch in enumerate(self._loader, start=1):
                if len(batch.indices) < 2:
                    raise UserError("a batch has fewer than two readable images: fix the data")
                batches.append(batch)
                if len(batches) == self._recipe.accumulate or number == len(self._loader):
                    yield batches
                    batches, done = [], done + 1
                if done == self.num_steps:
                    return

    def _gradients(self, batches: Sequence[Batch], step: int, split: bool) -> Row:
        """Compute the step's gradient, leave it in the parameters, and return its row."""
        method, parts = self.method, len(batches)
        assert method.classifier is not None
        progress = (step - 1) / self.num_steps
        lam = method.lam(progress)
        numbers = dict.fromkeys(("loss", "kl", "feature_similarity"), 0.0)
        extractor = list(method.backbone.parameters())
        of_terms: tuple[list[Tensor], list[Tensor]] | None = None
        probabilities: list[Tensor] = []
        for batch in batches:
            output = self._forward(batch, progress)
            (output.loss / parts).backward(retain_graph=split)
            for name in numbers:
                numbers[name] += float(output.terms[name]) / parts
            assert output.target_probabilities is not None
            probabilities.append(output.target_probabilities)
            if split:
                batch_gradients = self._terms.gradients(extractor)
                of_terms = batch_gradients if of_terms is None else _sum(of_terms, batch_gradients)
            self._terms.clear()
        mean = torch.cat(probabilities).mean(dim=0)
        row: Row = {
            "step": step,
            "lambda": lam,
            **numbers,
            "target_entropy": float(torch.special.entr(mean).sum()) / math.log(len(mean)),
        }
        for name, module in (("classifier", method.classifier), ("extractor", method.backbone)):
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            row[name], row[f"{name}_mean"] = _norm(gradients), _mean_abs(gradients)
        row["classifier_per_weight"] = row["classifier"] / (1 - lam) if lam < 1 else None
        row["extractor_kl"] = row["extractor_fs"] = None
        if of_terms is not None:
            kl, similarity = of_terms
            row["extractor_kl"] = _norm(kl) / (1 - lam) if lam < 1 else None
            row["extractor_fs"] = _norm(similarity) / lam if lam > 0 else None
        return row

    def _forward(self, batch: Batch, progress: float) -> StepOutput:
        views = tuple(view.to(self._device) for view in batch.views)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            return self.method(replace(batch, views=views), progress)


class _Terms:
    """Splits the student's gradient into the part through its classifier and the rest.

    The features enter the classifier as an alias, whose gradient is that of the weighted KL; the
    rest of the features' gradient is that of the weighted feature similarity.

    Args:
        method: The method whose forward passes are watched.
    """

    def __init__(self, method: Burn) -> None:
        self._features: list[Tensor] = []
        self._aliases: list[Tensor] = []
        assert method.classifier is not None
        method.backbone.register_forward_hook(self._keep)
        method.classifier.register_forward_pre_hook(self._enter)

    def _keep(self, _module: nn.Module, _inputs: Any, features: Tensor) -> None:
        features.retain_grad()
        self._features.append(features)

    def _enter(self, _module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        alias = inputs[0].view_as(inputs[0])
        alias.retain_grad()
        self._aliases.append(alias)
        return (alias,)

    def gradients(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients of weighted KL and of weighted similarity in `parameters`.

        The graph of the loss must have been retained.
        """
        alone: list[Tensor] = []
        rest: list[Tensor] = []
        # Crossed views enter the classifier in the order in which the backbone gave them.
        for features, alias in zip(self._features, self._aliases, strict=True):
            assert features.grad is not None
            assert alias.grad is not None
            alone.append(alias.grad)
            rest.append(features.grad - alias.grad)

        def through(gradients: list[Tensor], *, again: bool) -> list[Tensor]:
            return list(
                torch.autograd.grad(self._features, parameters, gradients, retain_graph=again)
            )

        return through(alone, again=True), through(rest, again=False)

    def clear(self) -> None:
        """Forget the last forward pass, and with it its graph."""
        self._features.clear()
        self._aliases.clear()


def _sum(
    a: tuple[list[Tensor], list[Tensor]], b: tuple[list[Tensor], list[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    kl, similarity = (
        [x + y for x, y in zip(old, new, strict=True)] for old, new in zip(a, b, strict=True)
    )
    return kl, similarity


def _norm(gradients: Sequence[Tensor]) -> float:
    """Return the L2 norm of all gradients together."""
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients))


def _mean_abs(gradients: Sequence[Tensor]) -> float:
    total = sum(float(g.abs().sum(dtype=torch.float64)) for g in gradients)
    return total / sum(g.numel() for g in gradients)
