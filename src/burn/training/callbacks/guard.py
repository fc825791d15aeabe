"""What watches a run: gradient flow on the first step, and the collapse of target and features.

When teacher's and student's classifier agree on a constant output the KL term is zero and nothing
in a loss curve says so. The entropy of the mean of p1 does: a target that still tells images apart
spreads over the classes (near 1, as a share of log C), a constant one does not (near 0). The
backbone's features are looked at for every method: those that tell images apart differ in many
directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.errors import UserError
from burn.core.types import Part

ALARM = 0.5  # share of log C below which a target counts as collapsed
# Below which features count as collapsed. RankMe of features as they are says little here: their
# mean is its largest singular value, and where it grows the rank falls to 3 with images told apart
# as well as before (BURN on digits at 100 times its learning rate: kNN 52 %, less the mean 40).
# Less the mean: 26 stages of every method, trained on CIFAR-10, at least 7.5 on 32 images, 11 on 64
# and 18 on 128; on digits, all on 64 images: BYOL without predictor, whose loss is zero and whose
# backbone still has kNN 33 %, 26; BYOL at 100 times its learning rate, kNN 49 %, 4.3; SimCLR at 300
# times its learning rate, kNN 14 to 23 %, 2.9 to 1.1.
RANK_ALARM = 3.0
# Features that differ by rounding alone have a high rank: bfloat16 makes a spread of 0.001. The
# lowest measured of features that tell images apart is 0.027 (that BYOL at kNN 49 %).
SPREAD_ALARM = 0.003
_ENOUGH_IMAGES = 32
_ENOUGH_FOR_CLASSES = 0.8  # power of the number of classes: images of a window


class GradientFlowError(UserError):
    """The loss does not train what it is meant to train."""


class GradientFlowGuard:
    """Holds the first optimizer step to what each part of a method claims about itself.

    Every parameter of a part that is meant to learn must have a gradient, and the part's must be
    finite and not zero; a part that is not meant to learn must have none. A part that the loss does
    not reach yet (λ = 1 or 0) is looked at on the first step that reaches it.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._pending = {part.name for part in parts}

    @property
    def done(self) -> bool:
        return not self._pending

    def check(self, reached: set[str], step: int) -> None:
        """After a backward pass. Raises GradientFlowError naming the part."""
        for part in self._parts:
            if part.name not in self._pending or (part.trained and part.name not in reached):
                continue
            problem = _problem(part)
            if problem:
                raise GradientFlowError(f"stopped at step {step}: {part.name} {problem}")
            self._pending.discard(part.name)


def _problem(part: Part) -> str | None:
    gradients = {name: p.grad for name, p in part.module.named_parameters()}
    if not part.trained:
        return "is frozen but received a gradient" if any(
            g is not None for g in gradients.values()
        ) else None  # fmt: skip
    missing = [name for name, gradient in gradients.items() if gradient is None]
    if len(missing) == len(gradients):
        return "is meant to learn but received no gradient: the loss is detached from it"
    if missing:
        return f"is meant to learn but {missing[0]} received no gradient"
    total = sum(
        float(g.detach().float().square().sum()) for g in gradients.values() if g is not None
    )
    if not math.isfinite(total):
        return "received a gradient that is not finite: lower the learning rate or check the images"
    return None if total > 0 else "is meant to learn but its gradient is zero"


def effective_rank(features: Tensor) -> float:
    """RankMe (Garrido et al., 2023): exp of the entropy of the normalised singular values.

    features: (batch, dimension). Between 1 and min(batch, dimension); 1 where all are 0.
    """
    singular = torch.linalg.svdvals(features.float())
    share = singular / singular.sum().clamp_min(torch.finfo(torch.float32).tiny) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


def gradient_norms(parts: Sequence[Part]) -> dict[str, float]:
    """Part -> L2 norm of its gradient, all its parameters taken as one vector; 0 without any."""
    gradients = {
        part.name: [p.grad for p in part.module.parameters() if p.grad is not None]
        for part in parts
    }
    return {name: float(torch.nn.utils.get_total_norm(own)) for name, own in gradients.items()}


class FeatureMonitor:
    """Whether the backbone's features still tell images apart, from batches of 32 images or more.

    The alarm rings when two looks in a row find them on a line (feature_rank below RANK_ALARM) or
    in one direction (feature_spread below SPREAD_ALARM). The first step's look does not count: its
    features are those of random weights. collapsed_at: the first step at which it rang, or None.
    """

    def __init__(self) -> None:
        self.collapsed_at: int | None = None
        self._low = 0  # looks in a row below an alarm

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        vars(self).update(state)

    def look(self, features: Tensor, step: int) -> dict[str, float]:
        """Numbers of a batch's features, (batch, dimension), at a step; none of fewer than 32.

        feature_rank: effective rank of the features less their mean, between 1 and batch - 1.
        feature_spread: root mean square distance of the features, each scaled to length 1, from
        their mean: 0 where all have one direction, at most 1. (SimSiam's standard deviation in
        units of 1/sqrt(dimension).)
        """
        if len(features) < _ENOUGH_IMAGES:
            return {}
        features = features.float()
        unit = F.normalize(features, dim=1)
        numbers = {
            "feature_rank": effective_rank(features - features.mean(dim=0)),
            "feature_spread": float((unit - unit.mean(dim=0)).square().sum(dim=1).mean().sqrt()),
        }
        low = numbers["feature_rank"] < RANK_ALARM or numbers["feature_spread"] < SPREAD_ALARM
        self._low = self._low + 1 if low and step > 1 else 0
        if self._low == 2 and self.collapsed_at is None:
            self.collapsed_at = step
        return numbers


class TargetMonitor:
    """Statistics of p1 over a window of steps; a single batch has too few images for 2000 classes.

    A window of fewer than C^0.8 images of C classes stays open: the mean of n images that are told
    apart perfectly has an entropy of log n alone, 0.8 log C then, well above the alarm.
    collapsed_at: the first step at which the alarm rang, or None.
    """

    def __init__(self) -> None:
        self.collapsed_at: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._sum: Tensor | None = None
        self._entropy: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        """The open window too, so that a resumed run writes the same numbers."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        vars(self).update(state)

    def add(self, probabilities: Tensor) -> None:
        """probabilities: p1, (batch, classes)."""
        entropy = torch.special.entr(probabilities).sum()
        total = probabilities.sum(dim=0)
        if self._sum is not None and self._entropy is not None:
            total += self._sum.to(total.device)
            entropy += self._entropy.to(entropy.device)
        self._sum, self._entropy = total, entropy
        self._count += len(probabilities)

    def close(self, step: int) -> dict[str, float]:
        """Numbers of the window that ends at `step`; {} where it holds too few images and goes on.

        target_entropy: of mean p1, as a share of log C; target_mean_entropy: mean entropy of p1,
        likewise; target_peak: largest entry of mean p1.
        """
        if self._sum is None or self._entropy is None:
            return {}
        if self._count < len(self._sum) ** _ENOUGH_FOR_CLASSES:
            return {}
        mean = self._sum / self._count
        log_classes = math.log(len(mean))
        numbers = {
            "target_entropy": float(torch.special.entr(mean).sum()) / log_classes,
            "target_mean_entropy": float(self._entropy) / self._count / log_classes,
            "target_peak": float(mean.max()),
        }
        self._reset()
        if numbers["target_entropy"] < ALARM and self.collapsed_at is None:
            self.collapsed_at = step
        return numbers
