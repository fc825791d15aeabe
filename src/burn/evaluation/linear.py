"""The protocols linear and transfer: linear evaluation, also on other datasets."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from torch import nn

from burn.checkpoints.classifier import Classifier, save_classifier
from burn.checkpoints.native import CLASSIFIER_NAME
from burn.core.errors import UserError
from burn.core.results import Result
from burn.core.types import Features
from burn.data.splits import Subset, hold_out
from burn.evaluation.accuracy import right_answers, top_k
from burn.evaluation.artifacts.confusion import keep_confusion
from burn.evaluation.cache import plain_features
from burn.evaluation.checks import doubt_of_choice
from burn.evaluation.configs import LinearConfig, TransferConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.linear_layer import (
    ChosenLinear,
    augmented_batches,
    cached_batches,
    train_linear,
    train_linear_at_best_rate,
)
from burn.evaluation.progress import progress_bar

_HELD_OUT = 0.1  # share of the training images on which the learning rate is chosen


def run_linear(context: EvaluationContext, config: LinearConfig, console: Console) -> list[Result]:
    """Run linear evaluation: top-1 and top-5 of a linear layer on the frozen backbone.

    The confusion matrix, and a strict layer, are written to `context.out` and replace older ones.
    Where the learning rate is chosen on held-out images, the scores of the written layer are
    calibrated on them.

    Raises:
        UserError: Training diverged, or images cannot be read.
    """
    return _evaluate(context, "linear", config, console)


def run_transfer(
    context: EvaluationContext, config: TransferConfig, console: Console
) -> list[Result]:
    """Run linear evaluation with the settings of another dataset than that of pretraining."""
    return _evaluate(context, "transfer", config.linear(), console, settings=config.settings)


def _evaluate(
    context: EvaluationContext,
    protocol: str,
    config: LinearConfig,
    console: Console,
    **further_settings: Any,
) -> list[Result]:
    began = time.perf_counter()
    s = context
    unreadable: set[int] = set()
    chosen_on = _held_out(s) if config.first_rate is None else None
    if config.augment == "none":
        batches = cached_batches(plain_features(s, "train", console), config.batch_size, s.seed)
    else:
        batches = augmented_batches(
            s.forward, s.train, s.views.size, config.batch_size, s.seed, s.workers, unreadable
        )
    num_classes, settings = len(s.train.classes), asdict(config)
    temperature = 1.0  # divides the scores to calibrate them
    held_out = None if chosen_on is None else _held_out_features(s, chosen_on, console)
    with progress_bar(console) as progress:
        bar = progress.add_task(protocol, total=config.epochs)

        def advance(_: int) -> None:
            progress.advance(bar)

        if held_out is None:
            width = s.backbone.num_features
            probe = train_linear(batches, width, num_classes, config, s.seed, advance, s.device)
            settings["lr"] = config.first_rate
        else:
            chosen = train_linear_at_best_rate(
                batches, held_out, num_classes, config, s.seed, advance, s.device
            )
            probe, temperature = chosen.layer, chosen.temperature
            rates = {f"{rate:g}": value for rate, value in chosen.held_out.items()}
            settings |= {"chosen_lr": chosen.lr, "rates": rates}
            s.notes.append(_about_rate(protocol, chosen, len(held_out.values)))
            what = f"{protocol}: learning rate and calibration"
            doubt = doubt_of_choice(len(held_out.values), _HELD_OUT, what)
            s.notes.extend(f"{text}, or give --lr" for text in doubt)
    s.note_unreadable(s.train, unreadable)
    test = plain_features(s, "test", console)
    assert test.labels is not None
    with torch.inference_mode():
        scores = probe(test.values)
    prefix = "" if config.probe == "strict" else "mlp "
    numbers = {f"{prefix}top{k}": 100 * top_k(scores, test.labels, k) for k in (1, 5)}
    right = right_answers(scores, test.labels, test.positions, len(s.test))
    settings |= further_settings
    results = s.results(protocol, numbers, settings, began, right=right)
    if protocol == "linear":
        s.announce(results)
        keep_confusion(s, protocol, results[0].metric, scores, test.labels)
        _keep_classifier(s, probe, temperature, settings)
    return results


def _keep_classifier(
    context: EvaluationContext, probe: nn.Module, temperature: float, settings: dict[str, Any]
) -> None:
    if isinstance(probe, nn.Linear):  # the mlp probe is not a linear classifier
        classes = context.class_names
        # The classes stay as evaluated; only their probabilities change.
        weight, bias = (t.detach() / temperature for t in (probe.weight, probe.bias))
        context.classifiers.append(Classifier(weight, bias, classes, context.fingerprint))
    if context.out and context.classifiers:
        about = {"temperature": temperature, "train": context.train.name, "seed": context.seed}
        path, classifier = context.out / CLASSIFIER_NAME, context.classifiers[0]
        context.keep(lambda: save_classifier(path, classifier, settings | about))
    elif context.out:
        context.notes.append("the mlp probe is not saved: burn pack takes only linear classifiers")


def _held_out(context: EvaluationContext) -> Subset:
    """Return a tenth of the training images, the same share of every class that has two."""
    train = context.train
    try:
        whole = Subset(train, range(len(train)))
        _, part = hold_out(whole, _HELD_OUT, context.seed, keep_single=True)
    except UserError as error:
        raise UserError(
            f"lr auto holds training images out: {error}, or give a learning rate"
        ) from error
    return part


def _held_out_features(context: EvaluationContext, part: Subset, console: Console) -> Features:
    features = plain_features(context, "train", console)
    rows = torch.isin(features.positions, torch.from_numpy(part.indices))
    if not bool(rows.any()):
        raise UserError("lr auto: none of the held-out images can be read: give a learning rate")
    return features.of(rows)


def _about_rate(protocol: str, chosen: ChosenLinear, count: int) -> str:
    text = (
        f"{protocol}: learning rate {chosen.lr:g} was the best of {len(chosen.held_out)} on "
        f"{count:,} held-out training images, {chosen.held_out[chosen.lr]:.1f} %"
    )
    if chosen.lr in (min(chosen.held_out), max(chosen.held_out)):
        text += "; it is at the end of the range: a --lr beyond it may be better"
    return text
