"""Statistics of the binary layers: which weights change their sign, and which channels are dead.

A weight counts as +1 if W >= 0, as everywhere in burn. This also holds at precision
BINARY_ACTIVATIONS, whose convolutions use W itself: the next stage starts from these signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burn.backbones.base import Backbone
from burn.core.types import Batch, Precision
from burn.layers import BinaryConv2d
from burn.layers.activation import per_channel
from burn.learning.loop import Callback, Loop
from burn.training.callbacks.monitor import memory
from burn.training.pretraining import Pretraining
from burn.training.records.writer import Record

_MOST_IMAGES = 16


class Layers(Callback):
    """Writes statistics of the binary layers at the end of every epoch and of the stage.

    They are computed from images of every `every`-th step and of the last step of an epoch. Only
    the main process uses this callback, which is false if there are no such layers.
    """

    def __init__(self, every: int, backbone: Backbone, record: Record) -> None:
        self._every, self._backbone, self._record = every, backbone, record
        self._layers = {
            name: layer
            for name, layer in backbone.named_modules()
            if isinstance(layer, BinaryConv2d) and layer.precision != Precision.FLOAT
        }
        self._signs: dict[str, Tensor] = {}  # of the weights when the last window closed, as bits
        self._reset()

    def __bool__(self) -> bool:
        return bool(self._layers)

    def _reset(self) -> None:
        # For each layer: the number of pixels with sign +1 in each input channel, and of all.
        self._positive: dict[str, Tensor] = {}
        self._pixels: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the signs and the open window, so that a resumed run writes the same rows."""
        return {"signs": self._signs, "positive": self._positive, "pixels": self._pixels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._signs = {name: bits.cpu() for name, bits in state["signs"].items()}
        self._positive, self._pixels = dict(state["positive"]), dict(state["pixels"])

    def on_batch_end(self, loop: Loop[Pretraining], batch: Batch) -> None:
        if not loop.stepped:
            return
        step = loop.step
        # Not in on_epoch_end: a resume file of the epoch's last step is written before that.
        ends = loop.ends_epoch
        if (ends or step % self._every == 0) and len(batch.indices):
            self.look(batch.views[0], loop.learner.autocast())
        if not ends:
            return
        rows = self.close()
        self._record.layers(step, loop.epoch, rows)
        flips = self.share_of_flips(rows)
        numbers = {} if flips is None else {"weight_flips": flips}
        numbers["memory"] = memory(loop.device)
        self._record.metrics(step, loop.epoch, numbers)

    def look(self, images: Tensor, autocast: AbstractContextManager[Any]) -> None:
        """Add an eighth of a batch of images, at most 16 and at least one, to the window.

        The images, (batch, 3, height, width), pass through the network again, in eval mode (BN uses
        its running statistics) and layer by layer: in training a block is a single autograd
        function, which does not call its convolutions. Weights, BN's statistics and random states
        are not changed.
        """
        images = images[: min(_MOST_IMAGES, max(1, len(images) // 8))]
        modes = [(module, module.training) for module in self._backbone.modules()]
        handles = [
            layer.register_forward_pre_hook(self._counter(name))
            for name, layer in self._layers.items()
        ]
        self._backbone.eval()
        try:
            with torch.no_grad(), autocast:
                # Not `forward`: --compile replaces it, and would compile it again for this.
                self._backbone.forward_features(images)
        finally:
            for module, training in modes:
                module.training = training
            for handle in handles:
                handle.remove()

    def _counter(self, name: str) -> Any:
        def count(layer: BinaryConv2d, inputs: tuple[Tensor, ...]) -> None:
            (x,) = inputs
            positive = (x + per_channel(layer.sign.shift, x) >= 0).sum(dim=(0, 2, 3))
            if name in self._positive:
                positive += self._positive[name].to(positive.device)
            self._positive[name] = positive
            self._pixels[name] = self._pixels.get(name, 0) + x[:, 0].numel()

        return count

    def close(self) -> dict[str, dict[str, float]]:
        """Begin the next window, and return what each layer did in this one, by its name.

        Returns:
            Shares in [0, 1]. `weight_flips`: of the weights, those whose sign differs from that at
            the end of the previous window, which the first one lacks. `weight_balance`: of the
            weights, those that are +1. `activation_balance`: of the signs that entered the
            convolution (after RSign; over all pixels of the images in the window), those that are
            +1. `dead_channels`: of the input channels, those that have the same sign at all these
            pixels. Without images there are none of the last two.
        """
        rows: dict[str, dict[str, float]] = {}
        for name, layer in self._layers.items():
            number, row = layer.weight.numel(), {}
            signs, before = _packed(layer.weight), self._signs.get(name)
            if before is not None:
                row["weight_flips"] = _ones(before ^ signs) / number
            row["weight_balance"] = _ones(signs) / number
            if name in self._positive:
                share = self._positive[name].double() / self._pixels[name]
                row["activation_balance"] = float(share.mean())
                row["dead_channels"] = float(((share == 0) | (share == 1)).double().mean())
            rows[name], self._signs[name] = row, signs
        self._reset()
        return rows

    def share_of_flips(self, rows: Mapping[str, Mapping[str, float]]) -> float | None:
        """Return the share of all binary layers' weights that flipped, or None if no row has it."""
        sizes = {name: layer.weight.numel() for name, layer in self._layers.items()}
        flipped = [
            row["weight_flips"] * sizes[name] for name, row in rows.items() if "weight_flips" in row
        ]
        return sum(flipped) / sum(sizes.values()) if flipped else None


def _packed(weight: Tensor) -> Tensor:
    """Pack eight signs into a byte, a bit being 1 if W >= 0; uint8, on the CPU."""
    return torch.from_numpy(np.packbits((weight.detach() >= 0).cpu().numpy()))


def _ones(bits: Tensor) -> int:
    return int(np.bitwise_count(bits.numpy()).sum())
