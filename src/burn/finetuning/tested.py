"""The test of a fine-tuned network, once, on the test images, as it will run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from burn.checkpoints.classifier import Classifier, own_classifier
from burn.checkpoints.foreign.weights import backbone_from
from burn.core.errors import UserError, printable
from burn.core.results import Result, append_results
from burn.core.types import Checkpoint
from burn.evaluation.accuracy import right_answers, top_k
from burn.evaluation.artifacts.confusion import keep_confusion
from burn.evaluation.context import model_of
from burn.evaluation.features import extract_features
from burn.finetuning.folder import TunedFolder
from burn.finetuning.job import Job
from burn_engine.learning import standard_error

_NOTED_ERROR = 1.0  # points; an accuracy with a larger standard error is noted with it

Show = Callable[[Sequence[Result], Sequence[str]], None]


def test(
    job: Job, folder: TunedFolder, checkpoint: Checkpoint, show: Show
) -> tuple[list[Result], list[str], Classifier]:
    model = model_of(checkpoint, backbone_from(checkpoint))
    context = replace(job.context(model, folder.path), notes=[*job.notes])
    classifier = own_classifier(checkpoint, model.backbone)
    assert classifier is not None
    features = extract_features(
        model.backbone,
        job.test,
        model.views,
        workers=context.workers,
        bfloat16=context.bfloat16,
        packed=context.packed,
    )
    missing = set(range(len(job.test))) - set(features.positions.tolist())
    context.note_unreadable(job.test, missing)
    assert features.labels is not None
    scores = features.values @ classifier.weight.T + classifier.bias
    if not bool(torch.isfinite(scores).all()):
        raise UserError("the scores of the test images are not finite: give lower --lrs")
    of_class = _class_accuracies(scores, features.labels, context.class_names)
    numbers = {f"top{k}": 100 * top_k(scores, features.labels, k) for k in (1, 5)}
    accuracies = [measured["top1"] for measured in of_class.values() if measured["images"]]
    numbers["mean per class"] = sum(accuracies) / len(accuracies)
    tested = len(features.labels)
    error = 100 * standard_error(numbers["top1"] / 100 * tested, tested)
    if error > _NOTED_ERROR:
        context.notes.append(
            f"the standard error of top-1 on {tested:,} test images is {error:.1f} points"
        )
    about = checkpoint.meta["finetuned"]
    kept_fields = ("lr", "head_lr", "linear", "trials", "calibration")
    settings = {
        **asdict(job.config),
        "random_init": job.request.random_init,
        "start": about["start"]["model"],
        **{name: about[name] for name in kept_fields},
        "classes": of_class,
    }
    right = right_answers(scores, features.labels, features.positions, len(job.test))
    began = job.began - job.earlier
    results = context.results("finetune", numbers, settings, began, right=right)
    show(results, context.notes)
    num_shown = len(context.notes)
    keep_confusion(context, "finetune", "top1", scores, features.labels)
    for note in context.notes[num_shown:]:
        job.console.print(printable(note))
    # Last, since a resumed run that has results is finished.
    context.keep(partial(append_results, folder.path / "results.jsonl", results))
    context.require_kept()
    return results, context.notes, classifier


def _class_accuracies(scores: Tensor, labels: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return top-1 in percent and number of test images of each class, by its name."""
    right = scores.topk(1, dim=1).indices[:, 0] == labels
    accuracies = {}
    for label, name in enumerate(names):
        rows = labels == label
        count = int(rows.sum())
        top1 = round(100 * float(right[rows].float().mean()), 4) if count else None
        accuracies[name] = {"top1": top1, "images": count}
    return accuracies
