"""The Python interface: the commands' work as functions, for a notebook or a program.

The functions return plain values, print nothing but a progress bar, and raise `UserError`, a
`ValueError` with a message of one line, for every error that the caller can fix.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import hashlib
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar

import torch
from rich.console import Console
from torch import nn

from burn.backbones.base import Backbone, modes_kept
from burn.backbones.module import ModuleBackbone
from burn.checkpoints.classifier import Classifier, fingerprint
from burn.checkpoints.foreign.weights import Teacher, backbone_from, load_backbone
from burn.checkpoints.native import find_checkpoint, load_checkpoint
from burn.checkpoints.pretrained import names_checkpoint
from burn.checkpoints.tuned import plain_meta
from burn.core.errors import UserError, foreseen, shown
from burn.core.inputs import read_bytes
from burn.core.paths import expand
from burn.core.settings import from_plain
from burn.core.types import Checkpoint
from burn.data.base import Source
from burn.data.dataset import DatasetSource
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.deploy.pack import Packed, named_classifier, pack_network, read_head
from burn.evaluation.configs import EvaluationCompute, Request
from burn.evaluation.context import Model, label_facts, model_of
from burn.evaluation.entries import PROTOCOLS
from burn.evaluation.registry import Evaluated, evaluate_checkpoint
from burn.finetuning.run import finetune as finetune_network
from burn.finetuning.settings import FinetuneConfig, FinetuneRequest
from burn.recipes.registry import DEFAULT, find_recipe
from burn.recipes.schema import Recipe
from burn.report.load.files import MOST_PICTURE
from burn.report.render.tables import number_name
from burn.runtime.compute import Compute, Device
from burn.training.plan import Machine, RunPlan
from burn.training.records.summary import StageSummary
from burn.training.run import train_plan
from burn.training.run_dir import VIEWS

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def _foreseen(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Make errors of the system, such as a full disk, UserErrors, as the commands do."""

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
        try:
            return function(*arguments, **named)
        except (OSError, UnicodeEncodeError) as error:
            raise UserError(foreseen(error) or "") from error

    return call


@dataclass(frozen=True)
class Run:
    """A finished pretraining run.

    Attributes:
        out: Folder of the run.
        stages: A summary of each stage.
    """

    out: Path
    stages: tuple[StageSummary, ...]

    @property
    def backbone(self) -> Backbone:
        """The trained network, in eval mode."""
        return load(self.out)

    def __repr__(self) -> str:
        stages = ", ".join(f"{s.precision.value} {s.steps} steps" for s in self.stages)
        return f"Run({self.out}: {stages})"

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{s.stage} ({s.precision.value})",
                f"{s.steps:,}",
                f"{s.images_seen:,}",
                f"{s.seconds:.0f} s",
                "" if s.watched is None else str(s.watched),
            )
            for s in self.stages
        ]
        picture = self.out / VIEWS
        shown = ""
        if picture.is_file():
            data = base64.b64encode(read_bytes(picture, MOST_PICTURE)).decode()
            shown = f'<img alt="augmented views" src="data:image/jpeg;base64,{data}">'
        return _table(("stage", "steps", "images seen", "time", "monitor's kNN"), rows) + shown


@dataclass(frozen=True)
class Evaluation(Evaluated):
    """The results of an evaluation protocol.

    Attributes:
        results: One `Result` for each number, with everything that the number depends on.
        notes: Remarks on the data, one line each.
        classifier: The linear classifier that protocol linear trained, for `burn.pack`, or None.
    """

    @property
    def numbers(self) -> dict[str, float]:
        """The value of each metric, in percent."""
        return {result.metric: result.value for result in self.results}

    def __getitem__(self, metric: str) -> float:
        return self.numbers[metric]

    def __repr__(self) -> str:
        model = self.results[0].model if self.results else "no results"
        numbers = ", ".join(
            f"{number_name(r.protocol, r.metric)} {r.value:.1f}" for r in self.results
        )
        return f"Evaluation({model}: {numbers})"

    def _repr_html_(self) -> str:
        rows = [(number_name(r.protocol, r.metric), f"{r.value:.1f} %") for r in self.results]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        model = self.results[0].model if self.results else "no results"
        return _table((model, ""), rows) + notes


@dataclass(frozen=True, repr=False)
class Tuned(Evaluation):
    """A finished fine-tuning run, and its accuracies on the test images.

    Attributes:
        results: One `Result` for each number.
        notes: Remarks, one line each.
        classifier: The classifier that was trained with the network.
        out: Folder of the run.
    """

    out: Path = field(default_factory=Path)

    @property
    def backbone(self) -> Backbone:
        """The fine-tuned network, in eval mode."""
        return load(self.out)


def recipe(name: str) -> Recipe:
    """Return the recipe of that name; `dataclasses.replace` makes variants of it.

    >>> recipe("burn_small").backbone.width
    0.3125

    Raises:
        UserError: There is no such recipe. The message suggests the nearest name.
    """
    return find_recipe(name)


@_foreseen
def open_data(data: str | Path | Source | Any, split: str = "train") -> Source:
    """Open images that `--data` accepts, or a PyTorch data set; return a source unchanged.

    >>> digits = open_data("digits")
    >>> len(digits), digits.read(0).shape
    (1437, torch.Size([3, 32, 32]))

    Args:
        data: A value of `burn pretrain --data`, a map-style data set (`DatasetSource` says what its
            items may be), or a source.
        split: `train` or `test`, for data that has both.

    Raises:
        UserError: The data cannot be used, or `split` is neither of the two.
    """
    if not isinstance(split, str) or split not in ("train", "test"):
        raise UserError(f"split {shown(split)}: give train or test")
    if isinstance(data, (str, Path)):
        return open_source(str(data), split)
    is_source = all(hasattr(data, name) for name in ("read", "fingerprint", "describe", "labels"))
    return data if is_source else DatasetSource(data)


@_foreseen
def pretrain(
    recipe: str | Recipe = DEFAULT,
    *,
    data: str | Path | Source | Any,
    out: str | Path,
    teacher: str | Path | nn.Module | None = None,
    init: str | Path | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: Device = "auto",
    workers: int | None = None,
    monitor_every: int | None = None,
    save_every: float = 5.0,
    compile: bool = False,
    deterministic: bool = False,
    cuda_graphs: bool = False,
    teacher_cache: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Train a binary backbone without labels, like `burn pretrain`.

    Args:
        recipe: Name of a recipe, or a recipe; default: `burn`, for photographs.
        data: Images, as `open_data` accepts them.
        out: Folder of the run.
        teacher: A value of `--teacher`, or a module that maps float images (batch, 3, height,
            width) in [0, 1], of the size that the recipe's teacher sees, to features (batch,
            dimension). Cached features and resumed runs recognize a module by its type, its weights
            and its `repr`. Any other difference between two modules, for example in an attribute
            that scales their input, goes unnoticed.
        init: Network whose weights training starts from: `photos` or another pretrained one, a
            run's folder or its file. It must be the recipe's network. None starts from random
            weights.
        seed: Random seed.
        max_steps: Optimizer steps after which each stage ends. None trains the recipe's epochs.
        resume: Continue the run in `out` where it stopped, or start it. With a larger `max_steps`
            or a recipe of more epochs, a finished run goes on, too.
        overwrite: Restart a run that exists in `out`.
        device: auto, cpu or cuda.
        workers: Number of data-loader workers. None chooses it by the device.
        monitor_every: Optimizer steps between two rows of metrics. None means a fiftieth of a
            stage's steps, at most 20.
        save_every: Minutes between two resume files.
        compile: Run the student's training passes through `torch.compile`.
        deterministic: On a GPU, the same call gives the same bits, at a cost in speed.
        cuda_graphs: Record a step's kernels once and replay them, on one GPU, which is faster.
        teacher_cache: Folder that keeps the teacher's features of the views for later runs.
        progress: Show a summary and a progress bar on standard error.

    Returns:
        The run, whose `backbone` is the trained network.

    Raises:
        UserError: An argument or the data cannot be used.
        Interrupted: After Ctrl-C. The run is saved, and the same call with `resume=True` continues
            it.
    """
    _check_flags(resume=resume, overwrite=overwrite, progress=progress)
    if resume and overwrite:
        raise UserError("resume and overwrite contradict each other: give one")
    named = find_recipe(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(named, Recipe):
        raise UserError(f"recipe is a {type(recipe).__name__}: give a name or a burn.Recipe")
    folder = _path(out, "out")
    name = recipe if isinstance(recipe, str) else "custom"
    called, source = _named(data, "train")
    taught, spec = None, teacher
    if isinstance(teacher, nn.Module):
        taught = _teacher_of(teacher, named)
        spec = taught.origin["spec"]
    elif not isinstance(teacher, (str, Path, NoneType)):
        raise UserError(
            f"teacher is a {type(teacher).__name__}: give lite0, a run's folder or a module"
        )
    if not isinstance(init, (str, Path, NoneType)):
        raise UserError(f"init is a {type(init).__name__}: give a name, a run's folder or its file")
    trained = {"recipe_name": name, "recipe": named, "data": called}
    trained["teacher"] = None if spec is None else str(spec)
    trained["init"] = None if init is None else str(init)
    plan = from_plain(RunPlan, {**trained, "seed": seed, "max_steps": max_steps})
    cache = None if teacher_cache is None else str(_path(teacher_cache, "teacher_cache"))
    machine = from_plain(
        Machine,
        {
            "device": device,
            "workers": workers,
            "monitor_every": monitor_every,
            "save_every": save_every,
            "compile": compile,
            "deterministic": deterministic,
            "cuda_graphs": cuda_graphs,
            "teacher_cache": cache,
        },
    )
    summaries = train_plan(
        plan,
        folder,
        machine,
        _console(progress),
        resume=resume,
        overwrite=overwrite,
        resume_command="the same call with resume=True",
        source=source,
        teacher=taught,
    )
    return Run(folder, tuple(summaries))


@_foreseen
def load(checkpoint: str | Path) -> Backbone:
    """Load a trained network: a module from images to features, in eval mode.

    It takes uint8 images (batch, 3, height, width), or float images in [0, 1], and normalizes them
    itself. `forward_features` returns its last feature map; `trunk` and `top` split it before the
    last stage, for detection.

    >>> images = torch.zeros(2, 3, 96, 96, dtype=torch.uint8)
    >>> load("photos")(images).shape
    torch.Size([2, 512])

    Args:
        checkpoint: A run's folder, a checkpoint, or a value of `--teacher`.

    Raises:
        UserError: The checkpoint cannot be read.
    """
    path = _path(checkpoint, "checkpoint")
    if names_checkpoint(path):
        held = load_checkpoint(find_checkpoint(path))
        backbone = backbone_from(held)
        backbone.checkpoint = Checkpoint(
            {}, held.meta, held.origin, fingerprint(backbone), str(checkpoint)
        )
        return backbone
    return load_backbone(str(checkpoint))[0]


@_foreseen
def evaluate(
    protocol: str,
    model: str | Path | Backbone,
    *,
    train: str | Path | Source | Any,
    test: str | Path | Source | Any,
    out: str | Path | None = None,
    seed: int = 0,
    random_init: bool = False,
    device: Device = "auto",
    compute: EvaluationCompute = "auto",
    workers: int | None = None,
    progress: bool = True,
    **settings: Any,
) -> Evaluation:
    """Evaluate a network by one of the paper's protocols, like `burn evaluate`.

    Args:
        protocol: knn, linear, semi, svm, transfer, detection, or a protocol of a plugin.
        model: A run's folder, a checkpoint, a teacher, or a network that `load` returned. Such a
            network keeps its device and its mode.
        train: Images that the protocol learns from, as `open_data` accepts them.
        test: Images that it is tested on.
        out: Folder for the results and the files that belong to them. None writes nothing.
        seed: Random seed.
        random_init: Evaluate random weights of the same network, for comparison.
        device: auto, cpu or cuda.
        compute: How features are computed: auto, packed, bfloat16 or float32.
        workers: Number of data-loader workers. None chooses it by the device.
        progress: Show a progress bar on standard error.
        settings: The protocol's settings, by the names of its options: `k=20`, `epochs=30`.

    Raises:
        UserError: An argument or the data cannot be used.
    """
    _check_flags(random_init=random_init, progress=progress)
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {shown(protocol)}: give one of {', '.join(PROTOCOLS)}")
    config = from_plain(PROTOCOLS[protocol].config, settings)
    with _left_as_it_was(model):
        checkpoint, given = _model_of(model, random_init=random_init)
        train_name, train_source = _named(train, "train")
        test_name, test_source = _named(test, "test")
        request = from_plain(
            Request,
            {
                "checkpoint": checkpoint,
                "train": train_name,
                "test": test_name,
                "out": None if out is None else str(_path(out, "out")),
                "seed": seed,
                "random_init": random_init,
                "device": device,
                "compute": compute,
                "workers": workers,
            },
        )
        done = evaluate_checkpoint(
            protocol,
            request,
            config,
            _console(progress),
            model=given,
            train=train_source,
            test=test_source,
        )
    return Evaluation(done.results, done.notes, done.classifier)


@_foreseen
def finetune(
    model: str | Path | Backbone,
    *,
    train: str | Path | Source | Any,
    test: str | Path | Source | Any,
    out: str | Path,
    seed: int = 0,
    random_init: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    device: Device = "auto",
    compute: Compute = "auto",
    workers: int | None = None,
    save_every: float = 5.0,
    progress: bool = True,
    **settings: Any,
) -> Tuned:
    """Train all layers of a network, and a classifier, on labelled images, like `burn finetune`.

    Args:
        model: A run's folder, a checkpoint, a teacher, or a network that `load` returned, which
            stays as it is.
        train: Labelled images to learn from, as `open_data` accepts them.
        test: Labelled images to test on, once, at the end.
        out: Folder of the run.
        seed: Random seed.
        random_init: Begin from random weights of the same network, for comparison.
        resume: Continue the run in `out` where it stopped, or start it.
        overwrite: Restart a run that exists in `out`.
        device: auto, cpu or cuda.
        compute: Number format of training: auto, bfloat16 or float32.
        workers: Number of data-loader workers. None chooses it by the device.
        save_every: Minutes between two resume files.
        progress: Show progress on standard error.
        settings: The settings, by the names of the command's options: `teacher="lite0"`,
            `epochs=60`, `lrs=(0.002,)`.

    Returns:
        The run: the accuracies on the test images, and the network, which `burn.pack(run.out,
        "tuned.bnn")` packs with its classes.

    Raises:
        UserError: An argument or the data cannot be used, or training diverged.
        Interrupted: After Ctrl-C. The run is saved, and the same call with `resume=True` continues
            it.
    """
    _check_flags(random_init=random_init, resume=resume, overwrite=overwrite, progress=progress)
    config = from_plain(FinetuneConfig, settings)
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model)
    checkpoint, given = _model_of(model, random_init=random_init)
    train_name, train_source = _named(train, "train")
    test_name, test_source = _named(test, "test")
    request = from_plain(
        FinetuneRequest,
        {
            "checkpoint": checkpoint,
            "train": train_name,
            "test": test_name,
            "out": str(_path(out, "out")),
            "seed": seed,
            "random_init": random_init,
            "resume": resume,
            "overwrite": overwrite,
            "device": device,
            "compute": compute,
            "workers": workers,
            "save_every": save_every,
        },
    )
    done = finetune_network(
        request,
        config,
        _console(progress),
        resume_command="the same call with resume=True",
        model=given,
        train=train_source,
        test=test_source,
    )
    return Tuned(done.results, done.notes, done.classifier, done.checkpoint.parent)


@_foreseen
def pack(
    model: str | Path | Backbone, out: str | Path, head: str | Path | Classifier | None = None
) -> Packed:
    """Write a binary network as one packed file for burn-engine, like `burn pack`.

    The file is run and compared with the network before it is renamed to `out`.

    Args:
        model: A run's folder, a checkpoint, or a network that `load` returned, with its current
            weights.
        out: The file to write, .bnn. It must not exist.
        head: The `classifier` of a linear evaluation, or a value of `burn pack --head`. None takes
            the classifier of a fine-tuned run or checkpoint.

    Raises:
        UserError: The network cannot be packed. Nothing is written.
    """
    backbone = model if isinstance(model, nn.Module) else load(model)
    checkpoint = getattr(backbone, "checkpoint", None)
    if checkpoint is None:
        raise UserError("pack takes a run's folder, a checkpoint, or what burn.load returned")
    network = copy.deepcopy(backbone).cpu().eval()  # leave the caller's network as it is
    if isinstance(head, Classifier):
        classifier = head
    elif head is None:
        named = not isinstance(model, nn.Module) and "classes" in checkpoint.meta
        classifier = (
            named_classifier(load_checkpoint(Path(checkpoint.origin)), network) if named else None
        )
    else:
        classifier = read_head(_path(head, "head"), backbone)
    return pack_network(network, checkpoint, _path(out, "out"), classifier, {})


def _check_flags(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, bool):
            raise UserError(f"{name} is a {type(value).__name__}: give True or False")


def _path(value: Any, name: str) -> Path:
    if not isinstance(value, (str, Path)):
        raise UserError(f"{name} is a {type(value).__name__}: give a path")
    if "\0" in str(value):
        raise UserError(f"{name} contains a null byte: give a path")
    return expand(str(value))


def _console(progress: bool) -> Console:
    return Console(stderr=True, quiet=not progress, soft_wrap=True, markup=False, highlight=False)


def _named(data: Any, split: str) -> tuple[str, Source | None]:
    """Return the name of images, and their source unless a command would open it by the name."""
    if isinstance(data, (str, Path)):
        return str(data), None
    source = open_data(data, split)
    return source.name, source


@contextlib.contextmanager
def _left_as_it_was(model: Any) -> Iterator[None]:
    """Leave a network in memory on its device and all of its layers in their modes."""
    if not isinstance(model, Backbone):
        yield
        return
    device = model.mean.device
    with modes_kept(model):
        try:
            yield
        finally:
            model.to(device)


def _model_of(model: Any, *, random_init: bool) -> tuple[str, Model | None]:
    """Return the name of a network's checkpoint and, if it is in memory, the network in eval mode.

    A network that was changed since it was loaded is none of its checkpoint, and is told apart from
    others by its weights.
    """
    if not isinstance(model, nn.Module):
        _path(model, "model")
        return str(model), None
    if not isinstance(model, Backbone):
        raise UserError(
            f"model is a {type(model).__name__}: give a run's folder, a checkpoint, or what "
            "burn.load returned"
        )
    if random_init:
        raise UserError("random_init takes the name of a network, not one in memory")
    checkpoint = model.checkpoint
    if checkpoint is None:
        views = ViewConfig(size=model.fixed_size or 224)
        meta = plain_meta(model.config.name, model, views)
        return model.config.name, Model(model.config.name, model.eval(), views, meta=meta)
    given, now = model_of(checkpoint, model.eval()), fingerprint(model)
    if now == checkpoint.fingerprint:
        return checkpoint.name or checkpoint.origin, given
    name = f"{given.name}, changed ({now[:6]})"
    return name, replace(given, name=name, training=label_facts(given.training))


def _teacher_of(module: nn.Module, recipe: Recipe) -> Teacher:
    """Return a module in memory as a teacher, identified by its type, weights and `repr`."""
    if isinstance(module, Backbone):
        backbone = copy.deepcopy(module)  # the copy is frozen, not the caller's module
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
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"
