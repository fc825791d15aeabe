"""Detection of collapsed targets and features during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.thresholds import RANK_ALARM, SPREAD_ALARM, TARGET_ALARM

_ENOUGH_IMAGES = 32
_ENOUGH_FOR_CLASSES = 0.8  # a window holds at least the number of classes to this power in images


def effective_rank(features: Tensor) -> float:
    """Return RankMe (Garrido et al., 2023): exp of the entropy of the normalised singular values.

    For features (batch, dimension) it is between 1 and min(batch, dimension); 1 if all of them are
    0, NaN if one is not finite.
    """
    if not features.isfinite().all():
        return math.nan
    singular = torch.linalg.svdvals(features.float())
    share = singular / singular.sum().clamp_min(torch.finfo(torch.float32).tiny) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


class _Monitor:
    """A monitor whose attributes are its state, so that a resumed run writes the same numbers."""

    def __init__(self) -> None:
        self.collapsed_at: int | None = None  # step at which the alarm was first raised

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class FeatureMonitor(_Monitor):
    """Detects features of the backbone that have collapsed, from batches of 32 images or more.

    The alarm is raised when two measurements in a row find the features nearly on a line
    (feature_rank below RANK_ALARM) or nearly in one direction (feature_spread below SPREAD_ALARM).
    The measurement at the first step does not count, since the weights are still random.
    """

    def __init__(self) -> None:
        super().__init__()
        self._low = 0  # measurements in a row below an alarm

    def look(self, features: Tensor, step: int) -> dict[str, float]:
        """Measure the features, (batch, dimension), of a batch at an optimizer step.

        Returns:
            `feature_rank`, the effective rank of the features minus their mean, at least 1 and less
            than batch; and `feature_spread`, the root mean square distance of the features, each
            scaled to length 1, from their mean: 0 if all have one direction, and at most 1
            (SimSiam's standard deviation in units of 1/sqrt(dimension)). {} for fewer than 32
            images.
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

    def message(self, numbers: Mapping[str, float] | None = None) -> str:
        seen = ""
        if numbers:
            seen = (
                f" (its features minus their mean have rank {numbers['feature_rank']:.1f}, alarm "
                f"below {RANK_ALARM:g}; their spread is {numbers['feature_spread']:.4f}, alarm "
                f"below {SPREAD_ALARM:g})"
            )
        return (
            f"collapsed features at step {self.collapsed_at}: the backbone hardly distinguishes "
            f"images any more{seen}; lower --optim.lr, or check the loss"
        )


class TargetMonitor(_Monitor):
    """Detects a collapsed target, from statistics of p1 over a window of steps.

    If the teacher's and the student's classifier agree on a constant output, the KL term is zero,
    which a loss curve does not reveal. The entropy of the mean of p1 does: as a share of log C it
    is near 1 for a target that distinguishes images, and near 0 for a constant one.

    A single batch has too few images for 2000 classes: the mean of n images that the target
    distinguishes perfectly has an entropy of only log n. A window is therefore closed only when it
    holds C^0.8 images for C classes; the entropy is then 0.8 log C, well above the alarm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._sum: Tensor | None = None
        self._entropy: Tensor | None = None

    def add(self, probabilities: Tensor) -> None:
        """Add p1 of a batch, (batch, classes), to the window."""
        entropy = torch.special.entr(probabilities).sum()
        total = probabilities.sum(dim=0)
        if self._sum is not None and self._entropy is not None:
            total += self._sum.to(total.device)
            entropy += self._entropy.to(entropy.device)
        self._sum, self._entropy = total, entropy
        self._count += len(probabilities)

    def close(self, step: int) -> dict[str, float]:
        """Close the window at an optimizer step, unless it holds too few images.

        Returns:
            `target_entropy`, the entropy of the mean of p1 as a share of log C;
            `target_mean_entropy`, the mean of p1's entropy, likewise; and `target_peak`, the
            largest entry of the mean of p1. {} if the window stays open.
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
        if not math.isfinite(numbers["target_entropy"]):  # a step in it was skipped
            return {}
        if numbers["target_entropy"] < TARGET_ALARM and self.collapsed_at is None:
            self.collapsed_at = step
        return numbers

    def message(self, numbers: Mapping[str, float] | None = None) -> str:
        seen = ""
        if numbers:
            seen = (
                f" (entropy of mean p1 {numbers['target_entropy']:.2f} of log C, alarm below "
                f"{TARGET_ALARM}; largest class {numbers['target_peak']:.2f})"
            )
        return (
            f"collapsed target at step {self.collapsed_at}: the teacher's classifier gives nearly "
            f"the same output for every image{seen}; the KL term trains nothing from here on"
        )
