"""What `import burn` offers: the commands' work, for a notebook or a program.

Everything here gives plain values, prints nothing but a progress bar, and raises `UserError`, a
`ValueError` of one line, for whatever the caller can fix.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from burn.backbones.base import Backbone
from burn.backbones.module import ModuleBackbone
from burn.checkpoints.classifier import Classifier
from burn.checkpoints.foreign.weights import Teacher, backbone_from, load_backbone
from burn.checkpoints.native import find_checkpoint, load_checkpoint
from burn.core.errors import UserError
from burn.core.paths import expand
from burn.core.settings import from_plain
from burn.core.types import Checkpoint
from burn.data.base import Source
from burn.data.dataset import DatasetSource
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.deploy.pack import Packed, pack_network, read_head
from burn.evaluation.configs import Request
from burn.evaluation.context import Model, model_of
from burn.evaluation.entries import PROTOCOLS
from burn.evaluation.registry import Evaluated, evaluate_checkpoint
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.report.render.tables import number_name
from burn.runtime.compute import Device
from burn.training.plan import Machine, RunPlan
from burn.training.records.view_samples import NAME as VIEWS
from burn.training.run import train_plan
from burn.training.stage import StageSummary


@dataclass(frozen=True)
class Run:
    """A finished pretraining run.

    Attributes:
        out: Its folder.
        stages: How each stage ended.
    """

    out: Path
    stages: tuple[StageSummary, ...]

    @property
    def backbone(self) -> Backbone:
        """The trained network, in eval mode."""
        return load(self.out)

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{s.stage} ({s.precision.value})",
                f"{s.steps:,}",
                f"{s.images_seen:,}",
                f"{s.seconds:.0f} s",
                "" if s.knn is None else f"{100 * s.knn:.1f} %",
            )
            for s in self.stages
        ]
        picture = self.out / VIEWS
        shown = ""
        if picture.is_file():
            data = base64.b64encode(picture.read_bytes()).decode()
            shown = f'<img alt="augmented views" src="data:image/jpeg;base64,{data}">'
        return _table(("stage", "steps", "images seen", "time", "monitor's kNN"), rows) + shown


@dataclass(frozen=True)
class Evaluation(Evaluated):
    """The numbers of a protocol.

    Attributes:
        results: One for each number, with all that it depends on.
        notes: Remarks on the data, a line each.
        classifier: The linear classifier that protocol linear trained, for `burn.pack`, or None.
    """

    @property
    def numbers(self) -> dict[str, float]:
        """Metric to value, in percent."""
        return {result.metric: result.value for result in self.results}

    def __getitem__(self, metric: str) -> float:
        return self.numbers[metric]

    def _repr_html_(self) -> str:
        rows = [(number_name(r.protocol, r.metric), f"{r.value:.1f} %") for r in self.results]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return _table((self.results[0].model, ""), rows) + notes


def recipe(name: str) -> Recipe:
    """The recipe of that name; `dataclasses.replace` makes variants of it.

    Raises:
        UserError: There is none. The nearest name is suggested.
    """
    return find_recipe(name)


def open_data(data: str | Path | Source | Any, split: str = "train") -> Source:
    """Images from what `--data` takes, a PyTorch data set, or a source as it is.

    Args:
        data: A spec as of `burn pretrain --data`, a map-style data set (`DatasetSource` says what
            its items may be), or a source.
        split: `train` or `test`, where a spec has both.

    Raises:
        UserError: Nothing usable is there.
    """
    if split not in ("train", "test"):
        raise UserError(f"split {split!r}: give train or test")
    if isinstance(data, (str, Path)):
        return open_source(str(data), split)
    is_source = all(hasattr(data, name) for name in ("read", "fingerprint", "describe", "labels"))
    return data if is_source else DatasetSource(data)


def pretrain(
    recipe: str | Recipe,
    *,
    data: str | Path | Source | Any,
    out: str | Path,
    teacher: str | Path | nn.Module | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: Device = "auto",
    workers: int | None = None,
    monitor_every: int | None = None,
    save_every: float = 5.0,
    compile: bool = False,
    teacher_cache: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Train a binary backbone without labels, as `burn pretrain`.

    Args:
        recipe: Name of a recipe, or a recipe.
        data: Images, as `open_data` takes them.
        out: Folder of the run.
        teacher: A teacher as of `--teacher`, or a module that takes float images (batch, 3, height,
            width) in [0, 1], of the size that the recipe's teacher sees, and gives features
            (batch, dimension). Features that are kept and runs that are resumed know a module by
            its type, its weights and what `repr` shows of it; what differs between two modules
            only elsewhere, for example in an attribute that scales their input, goes unnoticed.
        seed: Random seed.
        max_steps: Optimizer steps after which each stage ends.
        resume: Go on where a run in `out` stopped, or begin it.
        overwrite: Begin a run in `out` again.
        device: auto, cpu or cuda.
        workers: Data-loader workers.
        monitor_every: Optimizer steps between two rows of metrics.
        save_every: Minutes between two resume files.
        compile: Run the student's training passes through `torch.compile`.
        teacher_cache: Folder that keeps the teacher's features of the views for later runs.
        progress: Show a summary and a progress bar on standard error.

    Returns:
        The run, whose `backbone` is the trained network.

    Raises:
        UserError: For whatever the caller can fix.
        Interrupted: After Ctrl-C. The run is saved: the same call with `resume=True` goes on.
    """
    if resume and overwrite:
        raise UserError("resume and overwrite contradict each other: give one")
    named = find_recipe(recipe) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else "custom"
    source = None if isinstance(data, (str, Path)) else open_data(data)
    taught: Teacher | None = None
    if isinstance(teacher, nn.Module):
        taught = _teacher_of(teacher, named)
    if taught is not None:
        spec = str(taught.origin["spec"])
    else:
        spec = None if teacher is None else str(teacher)
    called = str(data) if source is None else source.name
    plan = RunPlan(name, named, called, spec, seed, max_steps)
    cache = None if teacher_cache is None else str(expand(str(teacher_cache)))
    machine = Machine(
        device, workers, monitor_every, save_every, compile=compile, teacher_cache=cache
    )
    summaries = train_plan(
        plan, expand(str(out)), machine, _console(progress), resume=resume, overwrite=overwrite,
        resume_command="the same call with resume=True", source=source, teacher=taught,
    )  # fmt: skip
    return Run(expand(str(out)), tuple(summaries))


def load(checkpoint: str | Path) -> Backbone:
    """A trained network: a module from images to features, in eval mode.

    It takes uint8 images (batch, 3, height, width), or float ones in [0, 1], and normalises them
    itself. `forward_features` gives its last feature map; `trunk` and `top` cut it before the last
    stage, for detection.

    Args:
        checkpoint: A run's folder, a checkpoint, or a teacher as of `--teacher`.

    Raises:
        UserError: It cannot be read.
    """
    if expand(str(checkpoint)).exists():
        held = load_checkpoint(find_checkpoint(expand(str(checkpoint))))
        backbone = backbone_from(held)
        backbone.checkpoint = Checkpoint({}, held.meta, held.origin)
        return backbone
    return load_backbone(str(checkpoint))[0]


def evaluate(
    protocol: str,
    model: str | Path | Backbone,
    *,
    train: str | Path | Source | Any,
    test: str | Path | Source | Any,
    out: str | Path | None = None,
    seed: int = 0,
    device: Device = "auto",
    workers: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Evaluation:
    """Evaluate a network by one of the paper's protocols, as `burn evaluate`.

    Args:
        protocol: knn, linear, semi, svm, transfer or detection, or one of a plugin.
        model: A run's folder, a checkpoint, a teacher, or what `load` gave.
        train: Images that the protocol learns from, as `open_data` takes them.
        test: Images that it is tested on.
        out: Folder to which results and what belongs beside them are written, or None.
        seed: Random seed.
        device: auto, cpu or cuda.
        workers: Data-loader workers.
        progress: Show a progress bar on standard error.
        settings: The protocol's own, by the names of its options: `k=20`, `epochs=30`.

    Raises:
        UserError: For whatever the caller can fix.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}: give one of {', '.join(PROTOCOLS)}")
    config = from_plain(PROTOCOLS[protocol].config, settings)
    given = None
    if isinstance(model, nn.Module):
        was_training = model.training
        given = _model_of(model)
        was_on = given.backbone.mean.device
    sources = [
        None if isinstance(data, (str, Path)) else open_data(data, part)
        for data, part in ((train, "train"), (test, "test"))
    ]
    names = [
        str(data) if source is None else source.name
        for data, source in zip((train, test), sources, strict=True)
    ]
    request = Request(
        checkpoint=str(model) if given is None else given.name, train=names[0], test=names[1],
        out=None if out is None else str(out), seed=seed, device=device, workers=workers,
    )  # fmt: skip
    try:
        done = evaluate_checkpoint(
            protocol, request, config, _console(progress), model=given, train=sources[0],
            test=sources[1],
        )  # fmt: skip
    finally:
        if given is not None:  # the caller's stays as it was
            given.backbone.to(was_on).train(was_training)
    return Evaluation(done.results, done.notes, done.classifier)


def pack(
    model: str | Path | Backbone, out: str | Path, head: str | Path | Classifier | None = None
) -> Packed:
    """Write a binary network as one file of bits for burn-engine, as `burn pack`.

    The file is run and compared with the network before it gets its name.

    Args:
        model: A run's folder, a checkpoint, or what `load` gave, with the weights that it has now.
        out: The file, .bnn, which is not there yet.
        head: The `classifier` of a linear evaluation, or what `burn pack --head` takes.

    Raises:
        UserError: The network cannot be packed. Nothing is written then.
    """
    backbone = model if isinstance(model, nn.Module) else load(model)
    held = getattr(backbone, "checkpoint", None)
    if held is None:
        raise UserError("pack takes a network of a checkpoint of burn's: what burn.load gave")
    network = copy.deepcopy(backbone).cpu().eval()  # the caller's stays where and as it is
    classifier = read_head(expand(str(head)), backbone) if isinstance(head, (str, Path)) else head
    return pack_network(network, held, expand(str(out)), classifier, {})


def _console(progress: bool) -> Console:
    return Console(stderr=True, quiet=not progress, soft_wrap=True, markup=False, highlight=False)


def _model_of(backbone: nn.Module) -> Model:
    """A network in memory, as the protocols take it."""
    if not isinstance(backbone, Backbone):
        raise UserError(
            f"model is a {type(backbone).__name__}: give a run's folder, a checkpoint, or what "
            "burn.load gave"
        )
    if backbone.checkpoint is not None:
        return model_of(backbone.checkpoint, backbone.eval())
    views = ViewConfig(size=backbone.fixed_size or 224)
    return Model(backbone.config.name, backbone.eval(), views)


def _teacher_of(module: nn.Module, recipe: Recipe) -> Teacher:
    """A module in memory as a teacher; it is known by its weights and by what `repr` shows."""
    if isinstance(module, Backbone):
        backbone = copy.deepcopy(module)  # the caller's is not frozen
    else:
        backbone = ModuleBackbone(module, recipe.teacher_size or recipe.views.size)
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    digest = hashlib.sha256(f"{kind} {module!r}".encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    name = type(module).__name__
    origin = {"spec": f"module {name}", "architecture": name, "sha256": digest.hexdigest()}
    return Teacher(backbone, None, None, origin)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table for notebooks."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"
