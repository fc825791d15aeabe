"""Interface of the pretraining methods: views in, a loss out, and parts that learn or do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.types import Batch, Part


@dataclass(frozen=True)
class StepOutput:
    """Output of one training step.

    Attributes:
        loss: Scalar.
        terms: Scalars to log, detached.
        features: The backbone's features, detached, float (batch, dimension).
        target_probabilities: p1 (batch, classes), detached, or None.
    """

    loss: Tensor
    terms: Mapping[str, Tensor]
    features: Tensor
    target_probabilities: Tensor | None = None


class Method(nn.Module, ABC):
    """Base class of the pretraining methods.

    Attributes:
        backbone: The network that is trained, which is the product of the method.
        num_views: Number of views that it is given of an image.
        num_taught: Number of these views, the first ones, that its teacher sees.
    """

    backbone: Backbone
    num_views: int
    num_taught: int = 0

    @abstractmethod
    def forward(self, batch: Batch, progress: float) -> StepOutput:
        """Return the loss of a batch.

        Args:
            batch: As many views of each image as `num_views`.
            progress: Share of the stage's optimizer steps that have been done, in [0, 1).
        """

    def after_step(self, progress: float) -> None:
        """Update momentum networks and the like after an optimizer step.

        Args:
            progress: Progress with which the step began.
        """

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return every part and whether it is meant to learn; the gradient-flow guard checks it."""

    def reached(self, progress: float) -> set[str]:
        """Return the names of the trained parts that the loss reaches at this progress."""
        return {part.name for part in self.parts() if part.trained}

    def weights(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps: all but a frozen teacher, which has its own file."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("teacher.")}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load what `weights()` returned, name for name."""
        outcome = self.load_state_dict(dict(weights), strict=False)
        lacking = [name for name in outcome.missing_keys if not name.startswith("teacher.")]
        assert not lacking, lacking
        assert not outcome.unexpected_keys, outcome.unexpected_keys

    def begin_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin a stage with the `weights()` of the stage before it."""
        self.load_weights(weights)


def mlp(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    """Return Linear, BN, ReLU and Linear: (batch, in_features) -> (batch, out_features)."""
    return nn.Sequential(
        nn.Linear(in_features, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out_features),
    )
