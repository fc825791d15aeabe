"""The collapse of a target or of features, found while a run trains.

When teacher's and student's classifier agree on a constant output the KL term is zero and nothing
in a loss curve says so. The entropy of the mean of p1 does: a target that still tells images apart
spreads over the classes (near 1, as a share of log C), a constant one does not (near 0). The
backbone's features are looked at for every method: those that tell images apart differ in many
directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.thresholds import RANK_ALARM, SPREAD_ALARM, TARGET_ALARM

_ENOUGH_IMAGES = 32


_ENOUGH_FOR_CLASSES = 0.8  # power of the number of classes: images of a window


def effective_rank(features: Tensor) -> float:
    """RankMe (Garrido et al., 2023): exp of the entropy of the normalised singular values.

    features: (batch, dimension). Between 1 and min(batch, dimension); 1 where all are 0.
    """
    singular = torch.linalg.svdvals(features.float())
    share = singular / singular.sum().clamp_min(torch.finfo(torch.float32).tiny) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


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
        if numbers["target_entropy"] < TARGET_ALARM and self.collapsed_at is None:
            self.collapsed_at = step
        return numbers


def collapse_message(step: int, numbers: Mapping[str, float] | None = None) -> str:
    """What a collapse is, for the log, with the step's numbers, and for the exit summary."""
    seen = (
        f" (entropy of mean p1 {numbers['target_entropy']:.2f} of log C, alarm below "
        f"{TARGET_ALARM}; largest class {numbers['target_peak']:.2f})"
        if numbers
        else ""
    )
    return (
        f"collapsed target at step {step}: the teacher's classifier gives nearly the same output "
        f"for every image{seen}; KL teaches nothing from here on"
    )


def features_message(step: int, numbers: Mapping[str, float] | None = None) -> str:
    """The same of the backbone's features."""
    seen = (
        f" (its features less their mean have rank {numbers['feature_rank']:.1f}, alarm below "
        f"{RANK_ALARM:g}; their spread is {numbers['feature_spread']:.4f}, alarm below "
        f"{SPREAD_ALARM:g})"
        if numbers
        else ""
    )
    return (
        f"collapsed features at step {step}: the backbone hardly tells images apart any more{seen}"
        "; lower --optim.lr, or look at the loss"
    )
