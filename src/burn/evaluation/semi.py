"""Semi-supervised fine-tuning: the whole network on a few labels (paper, appendix A)."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from torch import nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.checkpoints.native import read_description
from burn.checkpoints.tuned import plain_meta, save_tuned, tuned_meta
from burn.core.errors import UserError
from burn.core.files import write_text
from burn.core.results import Result
from burn.data.base import Source
from burn.data.loader import light_views
from burn.data.splits import Subset, balanced_share, hold_out
from burn.evaluation.accuracy import right_answers, top_k
from burn.evaluation.artifacts.kept import KeptParts
from burn.evaluation.checks import doubt_of_choice
from burn.evaluation.configs import SemiConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.features import extract_features
from burn.evaluation.fine_tuning import Tuner, TuningPlan
from burn.evaluation.linear_layer import new_head
from burn.evaluation.progress import progress_bar
from burn.learning.loop import Callback, Loop
from burn.learning.threads import thread_chooser
from burn.runtime.signals import interrupted

_HELD_OUT = 0.2  # share of the labelled images on which the learning rates are chosen
_DIVERGED = {"top1": None, "top5": None, "loss": None}
_RUN = {
    "lr": (int, float), "head_factor": (int, float), "on": str, "top1": (float, type(None)),
    "top5": (float, type(None)), "seconds": float, "notes": list,
}  # fmt: skip


def fine_tune(
    backbone: Backbone,
    source: Source,
    context: EvaluationContext,
    config: SemiConfig,
    lr: float,
    head_factor: float,
    callbacks: Sequence[Callback] = (),
) -> nn.Linear | None:
    """Train a backbone, in place, and a linear layer on it.

    Every step sees random crops and flips. BN is in training mode. The precision does not change,
    so a binary network stays binary. The linear layer's learning rate is `head_factor` times that
    of the backbone. None is returned if the loss or a weight is not finite; UserError is raised if
    too few images can be read.
    """
    device = next(backbone.parameters()).device
    head = new_head(backbone.num_features, len(source.classes), context.seed).to(device)
    plan = TuningPlan(
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=lr,
        head_lr=lr * head_factor,
        factor=lambda step, of_epoch: config.learning_rate(1.0, step // of_epoch),
        weight_decay=config.weight_decay,
    )
    steps = config.epochs * -(-len(source) // config.batch_size)
    tuner = Tuner(
        backbone,
        head,
        source,
        light_views(context.views.size, context.seed),
        plan,
        seed=context.seed,
        workers=context.workers,
        bfloat16=context.bfloat16,
        threads=thread_chooser(steps) if device.type == "cpu" else None,
    )
    finite = tuner.train(callbacks)
    context.note_unreadable(source, tuner.unreadable)
    return head if finite else None


def run_semi(context: EvaluationContext, config: SemiConfig, console: Console) -> list[Result]:
    """Run semi-supervised fine-tuning: a sweep of learning rates, and top-1 and top-5 of the best.

    It writes semi-<labels>percent-seed<seed>.txt, the labelled images, to `context.out`, and the
    same name with .jsonl, a line for each run, from which an interrupted sweep is resumed. With
    `config.keep`, the same name with .safetensors is the network that was tested, with its
    classifier.

    Raises:
        UserError: There is no `context.out`, a class has too few images, or every run diverged.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    if context.out is None:
        raise UserError("semi keeps its list of labelled images and its sweep: give --out")
    began = time.perf_counter()
    labelled = balanced_share(context.train, config.labels / 100, context.seed)
    if config.select == "test":
        learn, test_on = labelled, context.test
    else:
        try:
            learn, test_on = hold_out(labelled, _HELD_OUT, context.seed)
        except UserError as error:
            raise UserError(f"{error}, or --select test") from error
    context.out.mkdir(parents=True, exist_ok=True)
    stem = context.out / f"semi-{config.labels:g}percent-seed{context.seed}"
    names = "".join(labelled.describe(i) + "\n" for i in range(len(labelled)))
    write_text(Path(f"{stem}.txt"), names)
    kept_in = Path(f"{stem}.jsonl")
    key = _key(context, labelled, config)
    sweep = KeptParts(kept_in, key, _RUN)
    network = kept_in.with_suffix(".safetensors") if config.keep else None
    grid = [(lr, factor) for lr in config.lrs for factor in config.head_factors]
    earlier = 0.0  # seconds of the runs that earlier calls finished
    num_runs = len(grid) + (config.select == "held_out")
    with progress_bar(console) as progress:
        bar = progress.add_task("semi", total=num_runs * config.epochs)

        def run(
            lr: float, factor: float, learn: Source, test_on: Source, on: str
        ) -> dict[str, Any]:
            nonlocal earlier
            kept = sweep.find(lr=lr, head_factor=factor, on=on)
            keeps = network if on == "final" else None
            # What tells a kept network from others.
            about = {"protocol": "semi", "sweep": key, "lr": lr, "head_factor": factor}
            if kept and (keeps is None or _is_of(keeps, about)):
                earlier += kept["seconds"]
                context.notes.extend(n for n in kept["notes"] if n not in context.notes)
                progress.advance(bar, config.epochs)
                return kept
            started, num_notes = time.perf_counter(), len(context.notes)
            progress.update(bar, description=f"semi, lr {lr:g}, head × {factor:g}")
            backbone = copy.deepcopy(context.backbone)
            head = fine_tune(backbone, learn, context, config, lr, factor, [_Epochs(progress, bar)])
            numbers, right = _DIVERGED, None
            if head is not None:
                numbers, right = _evaluate(backbone, head, test_on, context)
            top1, seconds = numbers["top1"], round(time.perf_counter() - started, 3)
            if not console.is_terminal:  # there is no bar
                shown = "diverged" if top1 is None else f"top-1 {top1:.1f} %"
                console.print(f"{on}: lr {lr:g}, head × {factor:g}: {shown}, {seconds:.0f} s")
            done: dict[str, Any] = {"lr": lr, "head_factor": factor, "on": on, **numbers}
            done |= {"seconds": seconds, "notes": context.notes[num_notes:]}
            if test_on is context.test:
                done["right"] = right
            context.keep(lambda: sweep.add(done))
            if keeps is not None and head is not None:
                _keep_network(keeps, backbone, head, labelled, context, config, about)
            return done

        try:
            runs = [run(lr, factor, learn, test_on, config.select) for lr, factor in grid]
            valid = [r for r in runs if r["top1"] is not None]
            if not valid:
                raise UserError("semi: the loss of every run diverged: give lower --lrs")
            # Sweeps that an earlier version wrote have no loss; of equal ones the first is taken.
            best = max(valid, key=lambda r: (r["top1"], r["top5"], -r.get("loss", 0.0)))
            final = best
            if config.select == "held_out":
                final = run(best["lr"], best["head_factor"], labelled, context.test, "final")
        except KeyboardInterrupt as stopped:
            # The file may hold runs of other sweeps, too.
            finished = (sweep.find(lr=lr, head_factor=f, on=config.select) for lr, f in grid)
            num_kept = sum(part is not None for part in finished)
            raise interrupted(
                f"interrupted: {num_kept} of {num_runs} runs are kept in {kept_in}; the "
                "same command resumes",
                stopped,
            ) from None
    if final["top1"] is None:
        raise UserError(f"semi: lr {final['lr']:g} diverged on all labels: give lower --lrs")
    results = "; ".join(
        f"{r['lr']:g} × {r['head_factor']:g}: "
        + ("diverged" if r["top1"] is None else f"{r['top1']:.1f}")
        for r in runs
    )
    on = "the test images" if config.select == "test" else "held-out labelled images"
    context.notes.append(f"sweep, lr × factor of the linear layer: top-1 on {on}: {results}")
    context.notes.extend(_doubts(valid, best, test_on, config))
    sweep_of = [{name: value for name, value in r.items() if name != "right"} for r in runs]
    chosen = {"lr": final["lr"], "head_factor": final["head_factor"], "sweep": sweep_of}
    return context.results(
        "semi",
        {f"{config.labels:g}% {metric}": final[metric] for metric in ("top1", "top5")},
        {name: value for name, value in asdict(config).items() if name != "keep"} | chosen,
        began - earlier,
        right=final.get("right"),  # missing from sweeps that an earlier version wrote
    )


class _Epochs(Callback):
    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress, self._bar = progress, bar

    def on_epoch_end(self, loop: Loop[Any]) -> None:
        self._progress.advance(self._bar)


def _is_of(network: Path, about: Mapping[str, Any]) -> bool:
    if not network.is_file():
        return False
    described = read_description(network).meta.get("finetuned")
    return isinstance(described, dict) and about.items() <= described.items()


def _keep_network(
    path: Path,
    backbone: Backbone,
    head: nn.Linear,
    labelled: Subset,
    context: EvaluationContext,
    config: SemiConfig,
    about: Mapping[str, Any],
) -> None:
    """Write the network that was tested, with its classifier; a failure is noted, not raised."""
    before = context.meta or plain_meta(context.model, backbone, context.views)
    data = {"name": labelled.name, "images": len(labelled), "fingerprint": labelled.fingerprint}
    meta = tuned_meta(
        before,
        classes=context.class_names,
        data=data,
        steps=config.epochs * math.ceil(len(labelled) / config.batch_size),
        images_per_step=min(config.batch_size, len(labelled)),
        seed=context.seed,
        about={**about, "start": {"model": context.model, "fingerprint": context.fingerprint}},
    )
    context.keep(lambda: save_tuned(path, backbone, head, meta))


def _evaluate(
    backbone: Backbone, head: nn.Linear, source: Source, context: EvaluationContext
) -> tuple[Mapping[str, float | None], str | None]:
    """Return top-1 and top-5 in percent with the cross-entropy, and the right answers.

    All are None if a score is not finite.
    """
    features = extract_features(
        backbone, source, context.views, workers=context.workers, bfloat16=context.bfloat16
    )
    context.note_unreadable(source, set(range(len(source))) - set(features.positions.tolist()))
    assert features.labels is not None
    with torch.inference_mode():
        scores = head.cpu()(features.values)
    if not bool(torch.isfinite(scores).all()):
        return _DIVERGED, None
    numbers = {f"top{k}": round(100 * top_k(scores, features.labels, k), 4) for k in (1, 5)}
    numbers["loss"] = round(min(1e9, float(F.cross_entropy(scores, features.labels))), 6)
    return numbers, right_answers(scores, features.labels, features.positions, len(source))


def _doubts(
    valid: list[dict[str, Any]], best: dict[str, Any], test_on: Source, config: SemiConfig
) -> list[str]:
    """Return a line for each reason why another choice of the sweep might be as good."""
    on = "test" if config.select == "test" else "held-out"
    equal = [r for r in valid if (r["top1"], r["top5"]) == (best["top1"], best["top5"])]
    notes = []
    if len(equal) > 1:
        how = "the least cross-entropy" if "loss" in best else "the first place"
        which = "all" if len(equal) == len(valid) else f"the best {len(equal)} of"
        notes.append(
            f"semi: {which} {len(valid)} pairs of learning rates have the same accuracies on the "
            f"{len(test_on)} {on} images: lr {best['lr']:g} × {best['head_factor']:g} was taken "
            f"for {how}"
        )
    if config.select == "held_out" and len(valid) > 1:
        notes += doubt_of_choice(len(test_on), _HELD_OUT, "semi: the learning rates", "labelled")
    return notes


def _key(context: EvaluationContext, labelled: Subset, config: SemiConfig) -> str:
    """Return a hash of everything that affects the numbers of a run of the sweep."""
    parts = [
        context.fingerprint, context.train.fingerprint, context.test.fingerprint,
        np.asarray(labelled.indices).tobytes().hex(), config.epochs, config.batch_size,
        config.weight_decay, context.seed, context.bfloat16, asdict(context.views),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
