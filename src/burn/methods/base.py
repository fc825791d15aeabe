"""What a pretraining method is: views in, a loss out, and parts that learn or do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.types import Batch, Part


@dataclass(frozen=True)
class StepOutput:
    """What one step gives.

    loss: scalar. terms: scalars to log, detached. features: the backbone's, detached, float
    (batch, dimension). target_probabilities: p1 (batch, classes), detached, or None.
    """

    loss: Tensor
    terms: Mapping[str, Tensor]
    features: Tensor
    target_probabilities: Tensor | None = None


class Method(nn.Module, ABC):
    """A method holds the backbone that is its product as `backbone`.

    num_views: the views that it is given of an image. num_taught: how many of them, the first ones,
    its teacher sees.
    """

    backbone: Backbone
    num_views: int
    num_taught: int = 0

    @abstractmethod
    def forward(self, batch: Batch, progress: float) -> StepOutput:
        """The loss of a batch at this share, in [0, 1), of the stage's optimizer steps."""

    def after_step(self, progress: float) -> None:
        """Called after every optimizer step, at the progress that it began with.

        Momentum networks follow here.
        """

    @abstractmethod
    def parts(self) -> list[Part]:
        """Every part, and whether it is meant to learn: the gradient-flow guard checks that."""

    def reached(self, progress: float) -> set[str]:
        """Names of the trained parts that the loss reaches at this progress."""
        return {part.name for part in self.parts() if part.trained}

    def weights(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: everything but a frozen teacher, which has its own file."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("teacher.")}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `weights()` gave, name for name."""
        outcome = self.load_state_dict(dict(weights), strict=False)
        lacking = [name for name in outcome.missing_keys if not name.startswith("teacher.")]
        assert not lacking, lacking
        assert not outcome.unexpected_keys, outcome.unexpected_keys

    def begin_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin a stage with the `weights()` of the stage before it."""
        self.load_weights(weights)


def mlp(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    """Linear, BN, ReLU, Linear: (batch, in_features) -> (batch, out_features)."""
    return nn.Sequential(
        nn.Linear(in_features, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out_features),
    )
