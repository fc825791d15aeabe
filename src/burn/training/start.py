"""The network whose weights a run starts from (`--init`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burn.backbones.entries import is_binary
from burn.checkpoints.foreign.named import own_file
from burn.checkpoints.native import labels_behind, load_checkpoint, read_description, take
from burn.checkpoints.pretrained import PRETRAINED, names_checkpoint, nearest_network
from burn.core.errors import UserError, listed, printable
from burn.core.inputs import sha256_of
from burn.core.types import Precision
from burn.recipes.registry import RECIPES
from burn.recipes.schema import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from burn.backbones.base import Backbone

# Mean size of a layer's latent weights, above which few signs change any more. A long training
# leaves 0.9: from there an hour of Adam at a learning rate of 0.016 changed one sign in seven, and
# weights above 1 have no gradient at all where it is clipped. Starts from a tenth of that size were
# 2 to 3 points more accurate after 5 and 15 minutes on clothes, three seeds each, and as much after
# an hour, one seed (docs/project/log.md).
_EASILY_CHANGED = 0.08

# Settings of a backbone that say how it is trained. All others say what it computes.
_OF_TRAINING = {"activation_gradient", "weight_gradient", "weight_init", "temperature"}


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, the backbone's tensors by name.

    `origin` says where they came from, as plain JSON values: `spec`, `sha256`, `precision`, and
    `labels`, the data whose labels are behind them, where there is one.
    """

    weights: Mapping[str, Tensor]
    origin: dict[str, Any]


def load_start(spec: str, recipe: Recipe) -> Start:
    """Load the weights that a run starts from.

    `spec` is a pretrained network's name, the folder of a run, or a checkpoint of burn's, whose
    network must compute what the recipe's does.
    """
    from burn.checkpoints.foreign.weights import backbone_from

    check_start(spec, recipe)
    file = own_file(spec)
    checkpoint = load_checkpoint(file)
    backbone_from(checkpoint)  # which checks that names, shapes and numbers fit
    origin = {"spec": spec, "sha256": sha256_of(file), "precision": checkpoint.meta["precision"]}
    if labels := labels_behind(checkpoint.meta):
        origin["labels"] = labels
    return Start(take(checkpoint.weights, "backbone."), origin)


def put_in(start: Start, backbone: Backbone) -> None:
    """Give a backbone the weights of a start, so that training can still change their signs.

    Where BN follows the binary convolutions, as in a ReActNet, their latent weights keep signs and
    proportions, but are shrunk to a mean size of 0.08 if it is larger, and BN's running statistics
    with them. So the network computes the same, up to rounding.
    """
    import torch

    backbone.load_state_dict(dict(start.weights), strict=False)
    chain = backbone.chain()
    with torch.no_grad():
        for _, half in chain.layers if chain is not None else ():
            weight, norm = half.convolution.weight, half.norm
            factor = _EASILY_CHANGED / max(float(weight.double().abs().mean()), _EASILY_CHANGED)
            weight.mul_(factor)
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.mul_(factor)
                norm.running_var.mul_(factor**2)


def check_start(spec: str, recipe: Recipe | None) -> None:
    """Check by its description that a network can be started from; nothing imports torch.

    If no recipe trains it further, it must be binary.
    """
    if not names_checkpoint(spec):
        near = nearest_network(spec)
        others = f"give {listed(list(PRETRAINED))}, or a run's folder or file"
        hint = f"did you mean {near}?" if near else others
        raise UserError(f"--init {spec} is no pretrained network and no run: {hint}")
    meta = read_description(own_file(spec)).meta
    theirs = meta.get("backbone")
    if not isinstance(theirs, Mapping) or "precision" not in meta:
        raise UserError(f"--init {spec}: its description is damaged")
    if recipe is None:
        if meta["precision"] != Precision.BINARY.value:
            raise UserError(f"--init {spec}: its weights are not binary; give another network")
        return
    if is_binary(recipe.backbone.name) and meta["precision"] == Precision.FLOAT.value:
        raise UserError(f"--init {spec} is a float network, and the recipe's is binary")
    if other := _differences(theirs, recipe):
        recipe_settings = _backbone_of(recipe)
        there = [f"{name} {printable(str(value))}" for name, value in other.items()]
        here = [f"{name} {recipe_settings[name]}" for name in other]
        raise UserError(
            f"--init {spec} is another network than the recipe's: backbone.{listed(there, 3)} "
            f"instead of {listed(here, 3)}; give {_way_to(theirs)}"
        )


def _way_to(theirs: Mapping[str, Any]) -> str:
    """Say how to train a described network: by the first recipe that has it, or by options."""
    for name, make in RECIPES.items():
        with contextlib.suppress(Exception):  # a plugin's recipe, which nobody asked for
            if not _differences(theirs, make()):
                return f"--recipe {name}, which has that network"
    return "the recipe that it was trained with, or --backbone options to burn pretrain"


def _backbone_of(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(recipe.to_json()["backbone"]))


def _differences(theirs: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return what of a described network makes it another one than the recipe's, by name."""
    ours = _backbone_of(recipe)
    return {
        name: value
        for name, value in theirs.items()
        if name not in _OF_TRAINING and name in ours and value != ours[name]
    }
