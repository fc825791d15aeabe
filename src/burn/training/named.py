"""What a run names, checked before torch takes seconds to import, and the weights of `--init`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burn.backbones.registry import is_binary
from burn.checkpoints.foreign.named import own_file, require_network
from burn.checkpoints.native import labels_behind, load_checkpoint, read_description, take
from burn.checkpoints.pretrained import PRETRAINED, names_checkpoint, nearest_network
from burn.core.errors import UserError, listed, printable
from burn.core.inputs import sha256_of
from burn.core.paths import RUN_FILE, require_kept, resolved
from burn.core.types import Precision
from burn.data.base import Source
from burn.data.checks import missing_labels, require_outside, require_readable
from burn.data.open import open_source
from burn.methods.entries import find_method
from burn.recipes.registry import RECIPES
from burn.recipes.schema import Recipe
from burn.training.plan import Machine, RunPlan
from burn.training.run_dir import require_usable

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


def open_named(
    plan: RunPlan, out: Path, machine: Machine, *, resume: bool, overwrite: bool
) -> Source:
    """Check everything that a run of one process names, and open its images."""
    check_settings(plan, out, machine, overwrite=overwrite)
    require_usable(out, resume=resume, overwrite=overwrite)
    if plan.teacher is not None:
        require_network(plan.teacher)
    if plan.init is not None:
        check_start(plan.init, plan.recipe)
    source = open_images(plan, out, resume=resume)
    check_images(plan, source)
    require_outside(out, source)
    return source


def check_settings(plan: RunPlan, out: Path, machine: Machine, *, overwrite: bool) -> None:
    """Check the settings of a run, and that they do not contradict each other."""
    plan.check()
    method = plan.recipe.method
    needs_teacher = find_method(method).needs_teacher
    if needs_teacher and not plan.teacher:
        recipe = "teacher_supervised_small" if method == "supervised_kl" else "teacher_small"
        raise UserError(
            f"method {method} needs a teacher: --teacher lite0, ARCHITECTURE:FILE, or a run of a "
            f"teacher recipe such as {recipe}"
        )
    if not needs_teacher and plan.teacher is not None:
        raise UserError(f"method {method} learns without a teacher: leave --teacher out")
    machine.check()
    for name, spec in (("teacher", plan.teacher), ("start", plan.init)):
        if overwrite:
            require_kept(name, spec, out)
    cache = machine.teacher_cache
    if cache is not None and resolved(Path(cache)).is_relative_to(resolved(out)):
        raise UserError(
            f"--teacher-cache {cache} lies in the folder of this run: give a folder elsewhere, or "
            "move it there if it exists"
        )
    if cache is not None and plan.teacher is None:
        raise UserError(f"--teacher-cache: method {method} has no teacher; leave it out")


def open_images(plan: RunPlan, out: Path, *, resume: bool) -> Source:
    """Open the images of a run, or say to a user who resumes it where to name their place."""
    try:
        return open_source(plan.data)
    except UserError as error:
        if not resume or not (out / RUN_FILE).exists():
            raise
        raise UserError(
            f"{error}; to resume the run in {out}, give --data with the place of its images now"
        ) from error


def check_images(plan: RunPlan, source: Source, processes: int = 1) -> None:
    """Check that images can be read, at least two for each process, and have labels if needed."""
    require_readable(source, at_least=2 * processes)
    if find_method(plan.recipe.method).needs_labels and (why := missing_labels(source)):
        raise UserError(f"method {plan.recipe.method} needs labels, but {why}")


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
