"""Fine-tuning on few labels: what is trained, how it is chosen, and that nothing is lost."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from burn.checkpoints.classifier import own_classifier
from burn.checkpoints.foreign.weights import backbone_from
from burn.checkpoints.native import load_checkpoint
from burn.checkpoints.tuned import plain_meta
from burn.core.errors import Interrupted, UserError
from burn.core.results import decode_right
from burn.core.types import Precision
from burn.data.builtin.digits import Digits
from burn.data.loader import EpochSampler, light_views
from burn.data.splits import balanced_share
from burn.data.view_config import ViewConfig
from burn.evaluation import semi
from burn.evaluation.accuracy import top_k
from burn.evaluation.artifacts.kept import KeptParts
from burn.evaluation.configs import SemiConfig
from burn.evaluation.context import EvaluationContext, Model, open_context
from burn.evaluation.features import extract_features
from burn.evaluation.semi import fine_tune, run_semi
from burn.layers import BinaryConv2d
from networks import shallow_reactnet

CONSOLE = Console(file=io.StringIO())
TINY = SemiConfig(labels=3, epochs=1, batch_size=16, lrs=(0.01, 0.001), head_factors=(1.0, 10.0))


@pytest.fixture
def context(tmp_path: Path) -> EvaluationContext:
    views = ViewConfig(size=32, resize=32)
    return EvaluationContext(
        "tiny", "none", shallow_reactnet(), views, Digits("train"), Digits("test"), 0, 0, tmp_path
    )


def read(context: EvaluationContext, suffix: str) -> list[str]:
    assert context.out is not None
    return (context.out / f"semi-3percent-seed0{suffix}").read_text().splitlines()


@pytest.mark.parametrize(
    ("epoch", "rate"), [(0, 0.1), (11, 0.1), (12, 0.02), (15, 0.02), (16, 0.004), (19, 0.004)]
)
def test_learning_rate_of_the_paper(epoch: int, rate: float):
    assert SemiConfig().learning_rate(0.1, epoch) == pytest.approx(rate, rel=1e-12)


def test_the_papers_sweep_is_nine_pairs():
    config = SemiConfig()
    assert (config.lrs, config.head_factors) == ((0.1, 0.01, 0.001), (1.0, 10.0, 100.0))
    assert (config.epochs, config.weight_decay) == (20, 5e-4)


def test_fine_tuning_is_sgd_by_hand(context: EvaluationContext):
    """Two rates, momentum 0.9 and decay of every parameter, on the same batches."""
    source = balanced_share(context.train, 0.02, seed=0)
    config = SemiConfig(epochs=5, batch_size=20)
    # In float: a sign would make of a rounding error a whole step.
    trained, twin = shallow_reactnet(Precision.FLOAT), shallow_reactnet(Precision.FLOAT)
    head = fine_tune(trained, source, context, config, lr=1e-4, head_factor=10.0)
    assert head is not None

    twin_head = nn.Linear(256, 10)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        twin_head.weight.copy_(0.01 * torch.randn(10, 256, generator=generator))
        twin_head.bias.zero_()
    rates = [(p, 1e-4) for p in twin.parameters()] + [(p, 1e-3) for p in twin_head.parameters()]
    speed = {id(p): torch.zeros_like(p) for p, _ in rates}
    sampler = EpochSampler(len(source), 20, 0, drop_last=False)
    transform = light_views(context.views.size, 0)
    twin.train()
    assert source.labels is not None
    for epoch in range(5):
        drop = 0.2 ** ((epoch >= 3) + (epoch >= 4))
        sampler.epoch = epoch
        for batch in sampler:
            images = torch.stack([transform(source.read(i), e, i).views[0] for e, i in batch])
            labels = torch.tensor([source.labels[i] for _, i in batch])
            loss = F.cross_entropy(twin_head(twin(images)), labels)
            grads = torch.autograd.grad(loss, [p for p, _ in rates])
            with torch.no_grad():
                for (p, rate), grad in zip(rates, grads, strict=True):
                    p.sub_(drop * rate * speed[id(p)].mul_(0.9).add_(grad + 5e-4 * p))
    for name, tensor in trained.state_dict().items():
        # ten steps in float32, the same operations in another order
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(head.weight, twin_head.weight, rtol=1e-3, atol=1e-5)


def test_a_binary_network_stays_binary(context: EvaluationContext):
    source = balanced_share(context.train, 0.02, seed=0)
    network = shallow_reactnet()
    before = network.blocks[0].spatial.weight.clone()  # type: ignore[union-attr]
    fine_tune(network, source, context, replace(TINY, batch_size=10), 0.01, 1.0)
    conv = network.blocks[0].spatial  # type: ignore[union-attr]
    assert isinstance(conv, BinaryConv2d)
    assert not torch.equal(conv.weight, before), "the weights behind the signs learn"
    effective = conv.effective_weight()
    scale = conv.weight.abs().mean(dim=(1, 2, 3), keepdim=True)
    assert torch.equal(effective.abs(), scale.expand_as(effective))


def test_the_best_on_held_out_images_is_trained_on_all_labels_and_tested_once(
    context: EvaluationContext,
):
    results = run_semi(context, TINY, CONSOLE)
    assert [r.metric for r in results] == ["3% top1", "3% top5"]
    runs = [json.loads(line) for line in read(context, ".jsonl")]
    assert [r["on"] for r in runs] == ["held_out"] * 4 + ["final"]
    best = max(runs[:4], key=lambda r: (r["top1"], r["top5"]))
    final = runs[4]
    assert (final["lr"], final["head_factor"]) == (best["lr"], best["head_factor"])
    assert [r.value for r in results] == [final["top1"], final["top5"]]
    assert len(results[0].settings["sweep"]) == 4
    listed = read(context, ".txt")
    assert len(listed) == 40
    assert all(line.startswith("digits:train[") for line in listed)


def test_few_held_out_images_are_said_to_decide_little(context: EvaluationContext):
    run_semi(context, replace(TINY, lrs=(0.01, 0.001), head_factors=(1.0,)), CONSOLE)
    assert context.notes[-1] == (
        "semi: the learning rates are uncertain: only 10 held-out images chose them (standard "
        "error up to 16 points); 500 labelled images would hold out 100"
    )


def evaluated(top1: Iterator[float], losses: Iterator[float]) -> Callable[..., Any]:
    return lambda *_: ({"top1": next(top1), "top5": 90.0, "loss": next(losses)}, "AA==")


@pytest.mark.parametrize("old", [False, True])
def test_of_equal_pairs_the_least_cross_entropy_decides_and_it_is_said(
    old: bool, context: EvaluationContext, monkeypatch: pytest.MonkeyPatch
):
    losses = iter([2.0, 0.5, 1.0, 0.7, 3.0])
    monkeypatch.setattr(semi, "fine_tune", lambda *_: nn.Linear(256, 10))
    monkeypatch.setattr(semi, "_evaluate", evaluated(itertools.repeat(50.0), losses))
    if old:  # as sweeps of burn 0.2.0 are
        add = KeptParts.add
        monkeypatch.setattr(
            KeptParts, "add", lambda self, part: add(self, part) if part.pop("loss") else None
        )
    results = run_semi(context, TINY, CONSOLE)
    first = (0.01, 1.0) if old else (0.01, 10.0)
    assert (results[0].settings["lr"], results[0].settings["head_factor"]) == first
    how = "the first place" if old else "the least cross-entropy"
    assert any(
        "semi: all 4 pairs of learning rates have the same accuracies on the 10 held-out images: "
        f"lr 0.01 × {first[1]:g} was taken for {how}" == note
        for note in context.notes
    )


def test_a_tie_of_the_best_is_said_and_a_clear_winner_is_not(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch
):
    tops = iter([50.0, 60.0, 60.0, 40.0, 55.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(semi, "fine_tune", lambda *_: nn.Linear(256, 10))
    monkeypatch.setattr(semi, "_evaluate", evaluated(tops, itertools.repeat(1.0)))
    run_semi(context, TINY, CONSOLE)
    assert any("semi: the best 2 of 4 pairs" in note for note in context.notes)
    clear = replace(context, seed=1, notes=[])
    run_semi(clear, TINY, CONSOLE)
    assert not any("pairs of learning rates" in note for note in clear.notes)


def test_selection_on_the_test_images_is_labelled_so(context: EvaluationContext):
    results = run_semi(context, replace(TINY, select="test"), CONSOLE)
    assert results[0].settings["select"] == "test"
    sweep = results[0].settings["sweep"]
    assert {r["on"] for r in sweep} == {"test"}
    assert results[0].value == max(r["top1"] for r in sweep)


def test_an_interrupted_sweep_goes_on(context: EvaluationContext, monkeypatch: pytest.MonkeyPatch):
    whole = run_semi(replace(context, out=context.out / "whole"), TINY, CONSOLE)  # type: ignore[operator]
    calls = []

    def interrupted(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fine_tune(*arguments, **keywords)

    # Runs of another sweep, which are of the same images and settings, are none of this one.
    run_semi(context, replace(TINY, lrs=(0.1,), head_factors=(1.0,)), CONSOLE)
    monkeypatch.setattr(semi, "fine_tune", interrupted)
    with pytest.raises(Interrupted, match="2 of 5 runs are kept"):
        run_semi(context, TINY, CONSOLE)
    results = run_semi(context, TINY, CONSOLE)
    assert len(calls) == 3 + 3, "two runs were not made again"
    assert [r.value for r in results] == [r.value for r in whole]
    run_semi(context, TINY, CONSOLE)
    assert len(calls) == 6, "a finished sweep is read"


def test_the_network_that_was_tested_is_kept(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch
):
    one = replace(TINY, lrs=(0.01,), head_factors=(1.0,))
    without = run_semi(context, one, CONSOLE)
    assert context.out is not None
    assert not list(context.out.glob("*.safetensors"))
    calls = []
    monkeypatch.setattr(semi, "fine_tune", lambda *a, **k: calls.append(a) or fine_tune(*a, **k))
    keeping = replace(one, keep=True)
    kept = run_semi(context, keeping, CONSOLE)
    assert len(calls) == 1, "of the finished sweep only the last run is made again"
    assert [r.value for r in kept] == [r.value for r in without]
    assert "keep" not in kept[0].settings, "it is the same number"
    held = load_checkpoint(context.out / "semi-3percent-seed0.safetensors")
    assert held.meta["classes"] == list("0123456789")
    network = backbone_from(held)
    features = extract_features(network, context.test, context.views)
    classifier = own_classifier(held, network)
    assert classifier is not None
    assert features.labels is not None
    scores = features.values @ classifier.weight.T + classifier.bias
    assert 100 * top_k(scores, features.labels, 1) == pytest.approx(kept[0].value, abs=1e-3)
    run_semi(context, keeping, CONSOLE)
    assert len(calls) == 1, "it is there"
    run_semi(replace(context, backbone=shallow_reactnet(seed=1)), keeping, CONSOLE)
    assert len(calls) == 3
    run_semi(context, keeping, CONSOLE)
    assert len(calls) == 4, "the file is another sweep's"
    run_semi(context, replace(keeping, lrs=(0.001,)), CONSOLE)
    run_semi(context, keeping, CONSOLE)
    assert len(calls) == 7, "the file is that of another learning rate"


def test_a_network_that_the_test_images_chose_is_not_kept():
    with pytest.raises(UserError, match="--keep with --select test"):
        replace(TINY, keep=True, select="test").check()


@pytest.mark.long
def test_other_settings_or_weights_are_another_sweep(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch
):
    one = replace(TINY, lrs=(0.01,), head_factors=(1.0,))
    run_semi(context, one, CONSOLE)
    calls = []
    monkeypatch.setattr(semi, "fine_tune", lambda *a, **k: calls.append(a) or fine_tune(*a, **k))
    run_semi(context, one, CONSOLE)
    assert not calls
    run_semi(replace(context, backbone=shallow_reactnet(seed=1)), one, CONSOLE)
    run_semi(replace(context, seed=1), one, CONSOLE)
    run_semi(context, replace(one, batch_size=8), CONSOLE)
    assert len(calls) == 6
    run_semi(context, one, CONSOLE)
    assert len(calls) == 6, "the first is still there"


def test_a_run_that_diverges_is_kept_as_such_and_not_chosen(context: EvaluationContext):
    results = run_semi(context, replace(TINY, lrs=(1e6, 0.01), head_factors=(1.0,)), CONSOLE)
    first, second = results[0].settings["sweep"]
    assert first["top1"] is None
    assert second["top1"] is not None
    assert results[0].settings["lr"] == 0.01
    assert all("right" not in run for run in results[0].settings["sweep"])
    answers = decode_right(results[0])
    assert answers is not None
    assert 100 * answers.mean() == pytest.approx(results[0].value, abs=1e-3)
    assert any("1e+06 × 1: diverged" in note for note in context.notes)
    with pytest.raises(UserError, match="every run diverged"):
        run_semi(context, replace(TINY, lrs=(1e6,), head_factors=(1.0,)), CONSOLE)


def test_a_torn_last_line_is_made_again(context: EvaluationContext):
    one = replace(TINY, lrs=(0.01,), head_factors=(1.0,))
    first = run_semi(context, one, CONSOLE)
    assert context.out is not None
    path = context.out / "semi-3percent-seed0.jsonl"
    path.write_text(path.read_text()[:-20])
    assert [r.value for r in run_semi(context, one, CONSOLE)] == [r.value for r in first]
    assert [r.value for r in run_semi(context, one, CONSOLE)] == [r.value for r in first]


def test_a_kept_network_knows_how_it_was_pretrained(context: EvaluationContext):
    recipe, taught = {"name": "tiny"}, {"spec": "lite0", "labels": "ImageNet"}
    meta = plain_meta("tiny", context.backbone, context.views) | {"recipe": recipe}
    model = Model("tiny", context.backbone, context.views, meta={**meta, "teacher": taught})
    sources = context.train, context.test
    opened = open_context(model, "none", sources, seed=0, device="cpu", workers=0, out=context.out)
    run_semi(opened, replace(TINY, lrs=(0.01,), head_factors=(1.0,), keep=True), CONSOLE)
    assert context.out is not None
    held = load_checkpoint(context.out / "semi-3percent-seed0.safetensors")
    assert (held.meta["recipe"], held.meta["teacher"]) == (recipe, taught)


def test_what_is_missing_is_said(context: EvaluationContext):
    with pytest.raises(UserError, match="give --out"):
        run_semi(replace(context, out=None), TINY, CONSOLE)


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": 0}, {"labels": 101}, {"epochs": 0}, {"batch_size": 1}, {"lrs": ()},
        {"head_factors": (0.0,)}, {"weight_decay": -1},
    ],
)  # fmt: skip
def test_values_out_of_range(settings: dict):
    with pytest.raises(UserError):
        SemiConfig(**settings).check()
