"""Runs that start from the weights of another network (`--init`)."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import tiny
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import load_teacher
from burn.checkpoints.native import labels_behind, load_checkpoint, save_checkpoint
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.data.open import open_source
from burn.evaluation.context import open_model
from burn.layers.conv import BinaryConv2d
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.runtime.distributed import Processes
from burn.training.plan import Machine, RunPlan
from burn.training.prepared import PreparedRun
from burn.training.run import train_plan
from burn.training.start import Start, check_start, load_start, put_in

MACHINE = Machine(device="cpu", workers=0, monitor_every=2, save_every=0)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of SimCLR on the tiny student, of two stages."""
    out = tmp_path_factory.mktemp("before") / "run"
    tiny.train(tiny.baseline_recipe("simclr"), out, max_steps=2)
    return out


def started(
    recipe: Recipe, out: Path, init: Path, *, max_steps: int = 2, resume: bool = False
) -> str:
    """Train on from a network; returns what was printed."""
    plan = RunPlan("tiny", recipe, "digits", None, 0, max_steps, str(init))
    console = Console(file=io.StringIO(), width=200)
    train_plan(plan, out, MACHINE, console, resume=resume, overwrite=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def one_stage(recipe: Recipe) -> Recipe:
    return replace(recipe, stages=1)


@pytest.mark.parametrize("method", ["simclr", "byol", "mocov2"])
def test_a_method_and_its_momentum_networks_begin_with_the_weights(method: str, before: Path):
    recipe = one_stage(tiny.baseline_recipe(method))
    run = PreparedRun(
        RunPlan("tiny", recipe, "digits", None, 0, 2, str(before)),
        MACHINE,
        "float32",
        Processes.start(torch.device("cpu")),
        Console(file=io.StringIO()),
        open_source("digits"),
    )
    made = run.make_method(Precision.BINARY)
    given = load_checkpoint(before / "stage2.safetensors").weights
    found = made.state_dict()
    kept = [name for name in given if name.startswith("backbone.")]
    shrunk = {name for name in kept if not torch.equal(found[name], given[name])}
    may_differ = set()
    sizes = []
    for name, layer in made.backbone.named_modules():
        if isinstance(layer, BinaryConv2d):
            weight, norm = f"backbone.{name}.weight", f"backbone.{name}_norm"
            sizes.append(float(given[weight].abs().mean()))
            factor = min(1.0, 0.08 / sizes[-1])
            mean, var = f"{norm}.running_mean", f"{norm}.running_var"
            for tensor, power in ((weight, 1), (mean, 1), (var, 2)):
                expected = factor**power * given[tensor]
                torch.testing.assert_close(found[tensor], expected, rtol=1e-5, atol=0)
                may_differ.add(tensor)
    assert min(sizes) < 0.08 < max(sizes)  # the run has weights that are shrunk and others
    assert shrunk <= may_differ
    copies = [
        m for m in made.modules() if type(m) is type(made.backbone) and m is not made.backbone
    ]
    assert len(copies) == (method != "simclr")
    for copy in copies:
        state = copy.state_dict()
        for name in kept:
            assert torch.equal(state[name.removeprefix("backbone.")], found[name])


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("reactnet_xs", Precision.BINARY),
        ("bnext_t", Precision.BINARY_ACTIVATIONS),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("reactnet_xs", Precision.BINARY_ACTIVATIONS),
                ("bnext_t", Precision.BINARY),
                ("expert_bnn", Precision.BINARY),
                ("expert_bnn", Precision.BINARY_ACTIVATIONS),
            )
        ),
    ],
)
def test_a_backbone_computes_what_the_start_computes(name: str, precision: Precision):
    config = BackboneConfig(name=name, width=0.5, weight_init="fan_in")
    theirs, mine = (build_backbone(config, precision).double() for _ in range(2))
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        for layer in theirs.modules():
            if isinstance(layer, BinaryConv2d):
                layer.weight.normal_()
        for layer in (*theirs.modules(), *mine.modules()):
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.eps = 1e-30  # a larger one counts for more beside smaller weights
        for _ in range(20):
            theirs(images)  # for the running statistics
        put_in(Start(theirs.state_dict(), {}), mine)
        for network in (mine, theirs):
            network.at_progress(0.05)
        for training in (False, True):
            found, expected = (network.train(training)(images) for network in (mine, theirs))
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    sizes = [
        float(m.weight.detach().abs().mean()) for m in mine.modules() if isinstance(m, BinaryConv2d)
    ]
    assert all((size == pytest.approx(0.08)) == (name == "reactnet_xs") for size in sizes)


def test_the_start_is_told_kept_compared_and_resumed(before: Path, tmp_path: Path):
    recipe, out = one_stage(tiny.baseline_recipe("simclr")), tmp_path / "out"
    text = started(recipe, out, before)
    assert f"start    the weights of {before} (binary)\n" in text
    told = json.loads((out / "run.json").read_text())
    assert told["plan"]["init"] == told["init"]["spec"] == str(before)
    assert load_checkpoint(out / "stage1.safetensors").meta["init"] == told["init"]
    # Moved, it is the same start; another network is not.
    moved = tmp_path / "moved"
    moved.symlink_to(before)
    assert "goes on to 3 steps; it was finished with 2" in started(
        recipe, out, moved, max_steps=3, resume=True
    )
    with pytest.raises(UserError, match=r"cannot be resumed with other settings: .*init"):
        started(recipe, out, before / "stage1.safetensors", max_steps=4, resume=True)


def test_training_goes_on_from_the_weights(before: Path, tmp_path: Path):
    """At a learning rate of almost 0 only BN's statistics leave them, and the sizes of weights."""
    recipe = one_stage(tiny.baseline_recipe("simclr"))
    still = replace(recipe, optim=replace(recipe.optim, lr=1e-12, warmup_epochs=0))
    started(still, tmp_path / "out", before)
    given, found = (
        load_checkpoint(file).weights
        for file in (before / "stage2.safetensors", tmp_path / "out" / "stage1.safetensors")
    )
    names = [n for n in given if n.startswith("backbone.") and "running" not in n]
    names = [n for n in names if not n.endswith("num_batches_tracked")]
    assert len(names) > 20
    for name in names:
        size = float(found[name].abs().mean() / given[name].abs().mean())
        assert size == pytest.approx(1) or given[name].ndim == 4
        torch.testing.assert_close(found[name], size * given[name], rtol=0, atol=1e-6)


def recipe_with(**settings: object) -> Recipe:
    recipe = tiny.baseline_recipe("simclr")
    return replace(recipe, backbone=replace(recipe.backbone, **settings))


@pytest.mark.parametrize(
    ("spec", "recipe", "message"),
    [
        ("phots", recipe_with(), "--init phots is no pretrained network and no run: did you mean"),
        (
            "nothing",
            recipe_with(),
            "give photos, small, or a run's folder or file",
        ),
        ("lite0", recipe_with(), "--init lite0 is no pretrained network"),
        ("photos", recipe_with(), r"another network than the recipe's: backbone\.width 0\.5, "),
        ("small", find_recipe("burn"), r"; give --recipe burn_small, which has that network$"),
        ("RUN", recipe_with(width=0.5), r"backbone\.width 0\.25 instead of width 0\.5; "),
        ("RUN", recipe_with(name="bnext_t", depths=None), r"backbone\.name reactnet_a"),
        ("RUN", recipe_with(mean=(0.5, 0.5, 0.5)), r"backbone\.mean \[.* instead of mean \[0\.5"),
        ("EMPTY", recipe_with(), "holds no finished stage"),
        ("TEXT", recipe_with(), "TEXT"),
    ],
)
def test_a_network_that_is_no_start_is_named(
    spec: str, recipe: Recipe, message: str, before: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "TEXT").write_text("no network")
    with pytest.raises(UserError, match=message) as error:
        check_start(spec.replace("RUN", str(before)), recipe)
    assert "\n" not in str(error.value)


def test_what_training_alone_needs_may_differ(before: Path):
    assert load_start(str(before), recipe_with(activation_gradient="clip", weight_init="fan_in"))
    assert load_start("photos", find_recipe("burn")).origin["labels"] == "ImageNet"


@pytest.mark.parametrize(
    ("meta", "labels"),
    [
        ({}, None),
        ({"teacher": None, "init": None, "recipe": {"method": "burn"}}, None),
        ({"teacher": {"labels": "ImageNet"}}, "ImageNet"),
        ({"teacher": {"spec": "runs/t"}, "init": {"labels": "ImageNet"}}, "ImageNet"),
        ({"recipe": {"method": "supervised"}, "data": {"name": "clothes"}}, "clothes"),
        ({"recipe": {"method": "simclr"}, "data": {"name": "clothes"}}, None),
        ({"labels": "clothes", "teacher": {"labels": "ImageNet"}}, "clothes and ImageNet"),
        ({"labels": "clothes", "init": {"labels": "clothes"}}, "clothes"),
        ({"labels": "a", "finetuned": {"teacher": {"labels": "ImageNet"}}}, "a and ImageNet"),
        ({"recipe": "damaged", "data": 3, "teacher": 4}, None),
    ],
)
def test_labels_are_followed_to_where_they_were_used(meta: dict[str, object], labels: str | None):
    assert labels_behind(meta) == labels


def test_an_evaluation_says_which_labels_are_behind_the_start(before: Path, tmp_path: Path):
    out = tmp_path / "out"
    started(one_stage(tiny.baseline_recipe("simclr")), out, before)
    checkpoint = load_checkpoint(out / "stage1.safetensors")
    meta = {**checkpoint.meta, "init": {**checkpoint.meta["init"], "labels": "ImageNet"}}
    save_checkpoint(out / "stage1.safetensors", checkpoint.weights, meta)
    (note,) = open_model(str(out), fresh=False, seed=0).labels_notes
    assert note.endswith("behind the weights that it started from are ImageNet labels")


def test_a_teacher_that_learned_from_labels_is_called_so(tmp_path: Path):
    """A network of method supervised, whatever the data, as lite0 is."""
    recipe = replace(tiny.teacher_recipe(), method="supervised")
    tiny.train(recipe, tmp_path / "teacher", max_steps=1)
    assert load_teacher(str(tmp_path / "teacher")).origin["labels"] == "digits"
    tiny.train(tiny.teacher_recipe(), tmp_path / "other", max_steps=1)
    assert "labels" not in load_teacher(str(tmp_path / "other")).origin
