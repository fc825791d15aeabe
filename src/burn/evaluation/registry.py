"""The work of `burn evaluate`: open images and checkpoint, run a protocol, write its results.

What needs no torch is checked before torch is imported, which takes seconds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.checkpoints.foreign.named import require_network
from burn.core.errors import UserError, printable
from burn.core.files import locked, remove_unfinished
from burn.core.paths import expand
from burn.core.results import Result, append_results, require_appendable
from burn.data.base import Source
from burn.data.checks import require_outside
from burn.data.formats.voc import Voc, is_voc, open_voc
from burn.evaluation.checks import open_labelled
from burn.evaluation.configs import Request
from burn.evaluation.entries import PROTOCOLS, Images
from burn.runtime.compute import torch_device
from burn.runtime.launch import ranks, require_alone
from burn.runtime.signals import StopsAreErrors, interrupted, signals_raise

if TYPE_CHECKING:
    from burn.checkpoints.classifier import Classifier
    from burn.evaluation.context import Model


@dataclass(frozen=True)
class Evaluated:
    """Output of an evaluation."""

    results: list[Result]
    notes: list[str]  # remarks on the data, a line each
    classifier: Classifier | None = None  # that protocol linear trained


def _open(images: Images, train: str | Source, test: str | Source) -> tuple[Source, Source]:
    have_boxes = (
        is_voc(data) if isinstance(data, str) else isinstance(data, Voc) for data in (train, test)
    )
    if images == "labels" or (images == "either" and not any(have_boxes)):
        return open_labelled(train, test)
    opened = open_voc(train, "train") if isinstance(train, str) else train
    if isinstance(test, str):
        test = open_voc(test, "test", opened.classes)
    for source in (opened, test):
        if not isinstance(source, Voc):
            raise UserError(f"{source.name} has no boxes: give images in VOC's layout")
    return opened, test


def evaluate_checkpoint(
    protocol: str,
    request: Request,
    config: Any,
    console: Console,
    show: Callable[[Sequence[Result], Sequence[str]], None] = lambda results, notes: None,
    *,
    model: Model | None = None,
    train: Source | None = None,
    test: Source | None = None,
) -> Evaluated:
    """Evaluate a checkpoint by a protocol.

    The results are first given to `show`, with remarks on the data, then appended to results.jsonl
    in `request.out`; only then are other files written there. The folder is locked meanwhile.
    `config` is of the protocol's own type; `model`, `train` and `test` are used instead of what
    the request names.

    Raises:
        UserError: Settings, checkpoint or images cannot be used, or a file could not be written,
            possibly after the results were shown.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    request.check()
    entry = PROTOCOLS[protocol]
    if hasattr(config, "check"):
        config.check()
    if not entry.shares:
        require_alone(f"evaluate {protocol}")
    out = expand(request.out) if request.out else None
    with contextlib.ExitStack() as stack:
        if out:
            stack.callback(_remove_empty, [p for p in (out, *out.parents) if not p.exists()])
            require_appendable(out / "results.jsonl")
            if ranks().rank == 0:
                stack.enter_context(locked(out))
                remove_unfinished(out)
        stack.enter_context(signals_raise())
        announced: list[Result] = []
        try:
            if model is None:
                require_network(request.checkpoint)
            given = request.train if train is None else train
            sources = _open(entry.images, given, request.test if test is None else test)
            if out:
                require_outside(out, *sources)
            from burn.runtime.gpu import gpu_failures_named

            with gpu_failures_named(_smaller(config)):
                return _evaluate(
                    protocol, request, config, console, out, announced, show, model, sources
                )
        except KeyboardInterrupt as stopped:
            kept = f"what is finished is kept in {out}; the same command resumes"
            if announced:
                kept = "the results are complete, but files that belong beside them may be missing"
            elif not out:
                kept = "nothing is kept; give --out to keep what is finished"
            elif not (out.is_dir() and any(out.iterdir())):
                kept = "nothing is finished yet; the same command begins again"
            raise interrupted(f"interrupted: {kept}", stopped) from None


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, if nothing was written in them."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not empty, or was never made
            folder.rmdir()


def _smaller(config: Any) -> str:
    """Say how an evaluation takes less of a GPU's memory."""
    if (size := getattr(config, "batch_size", None)) is None:
        return "let no other work use it, or give --device cpu"
    return f"a batch of {size} images does not fit; give a smaller --batch-size, or --device cpu"


def _check_results(protocol: str, results: Any) -> None:
    if not isinstance(results, (list, tuple)) or not results:
        got = "none" if isinstance(results, (list, tuple)) else f"a {type(results).__name__}"
        raise UserError(f"protocol {protocol} must return a list of results, got {got}")
    for result in results:
        if not isinstance(result, Result):
            raise UserError(
                f"protocol {protocol} returned a {type(result).__name__} among its results: make "
                "them with context.results"
            )
        if not math.isfinite(result.value):
            raise UserError(f"protocol {protocol}: its {result.metric} is {result.value}")


def _evaluate(
    protocol: str,
    request: Request,
    config: Any,
    console: Console,
    out: Path | None,
    announced: list[Result],
    show: Callable[[Sequence[Result], Sequence[str]], None],
    model: Model | None,
    sources: tuple[Source, Source],
) -> Evaluated:
    """Do the work of `evaluate_checkpoint`; results that were shown are added to `announced`."""
    from burn.evaluation.context import open_context, open_model
    from burn.runtime.gpu import gpu_arithmetic

    num_shown_notes = 0
    file = out / "results.jsonl" if out else None

    def announce(results: Sequence[Result]) -> None:
        nonlocal num_shown_notes
        announced.extend(results)
        show(results, context.notes)
        num_shown_notes = len(context.notes)
        if file:
            context.keep(partial(append_results, file, results))

    device, entry = torch_device(request.device), PROTOCOLS[protocol]
    if model is None:
        model = open_model(request.checkpoint, fresh=request.random_init, seed=request.seed)
    if request.compute == "packed" and not entry.frozen:
        raise UserError(
            f"--compute packed: burn-engine only computes features, and {protocol} needs more of "
            "the network: give float32, bfloat16 or auto"
        )
    context = open_context(
        model,
        request.checkpoint,
        sources,
        seed=request.seed,
        device=request.device,
        compute=request.compute,
        workers=request.workers,
        out=out,
        frozen=entry.frozen,
    )
    context = replace(context, announce=announce)
    # Images of detection differ in size, so that timing algorithms for each size would not pay.
    fixed = protocol != "detection"
    with gpu_arithmetic(device, fixed_shapes=fixed), StopsAreErrors():
        results = entry.load()(context, config, console)
    if entry.plugin is not None:
        _check_results(protocol, results)
    if results and not announced:
        announce(results)
    for note in context.notes[num_shown_notes:]:
        console.print(printable(note))
    context.require_kept()
    return Evaluated(results, context.notes, next(iter(context.classifiers), None))
