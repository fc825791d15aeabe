"""Steps that are recorded and replayed (`--cuda-graphs`), on the pretended GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pretend import CUDA, Gpu, pretended
from recorder import NotRecorded, PretendedRecorder
from steps import CASES, Run, build

from burn.methods.base import StepOutput
from burn.methods.entries import METHODS
from burn.training import graphs
from burn.training.graphs import WARM_UP, why_not_recorded

RECORDED = (
    "burn", "burn joint", "burn released", "burn heaviside", "burn without classifiers",
    "supervised", "supervised_kl", "byol", "simclr", "swav", "swav with a queue", "s2bnn",
)  # fmt: skip
NOT_RECORDED = ("mocov2", "mocov2 in groups", "infomin", "s2bnn contrastive")
# Of these `make test` has others that do the same and more.
SELDOM = (
    "burn", "burn released", "burn heaviside", "burn without classifiers", "supervised", "simclr",
    "supervised_kl", "swav", "swav with a queue", "s2bnn",
)  # fmt: skip
STEPS = 8
# SwAV's first steps are not recorded, nor those until its queue is full.
LATER = {"swav": 12, "swav with a queue": 14}


def loss_of(run: Run) -> dict[str, float]:
    output = run.learner.output
    assert output is not None
    return {name: float(term) for name, term in output.terms.items()}


@pytest.mark.parametrize(
    ("case", "bfloat16"),
    [
        *(
            pytest.param(case, True, marks=pytest.mark.long if case in SELDOM else ())
            for case in RECORDED
        ),
        ("burn joint", False),
        pytest.param("byol", False, marks=pytest.mark.long),
    ],
)
def test_replayed_steps_are_ordinary_steps_bit_by_bit(case: str, bfloat16: bool):
    """Gradients, weights and buffers, while λ, learning rate and batches change.

    A replayed step waits for nothing.
    """
    with pretended() as gpu:
        recorder, steps = PretendedRecorder(), LATER.get(case, STEPS)
        usual = build(case, num_steps=steps)
        graphed = build(case, num_steps=steps, recorder=recorder)
        usual.learner.in_bfloat16 = graphed.learner.in_bfloat16 = bfloat16
        for step in range(steps):
            usual.step()
            gpu.waits.clear()
            graphed.step()
            if step == steps - 2:  # monitors look at the last one, and the guard at some before
                assert not gpu.waits
            # The loss is a sum in float64 where λ is a float64 scalar, else in float32.
            assert loss_of(graphed) == pytest.approx(loss_of(usual), rel=2e-7), step
            expected, found = usual.state(), graphed.state()
            assert found.keys() == expected.keys()
            different = [n for n in expected if not torch.equal(found[n], expected[n])]
            assert not different, (step, different)
    assert recorder.recorded == 1
    assert recorder.replayed >= 3


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_what_draws_on_the_cpu_cannot_be_recorded(case: str):
    """The table refuses it before the first step; here it is tried nevertheless."""
    with pretended():
        run = build(case, recorder=PretendedRecorder())
        for _ in range(WARM_UP):
            run.step()
        with pytest.raises(NotRecorded):
            run.step()


def test_the_table_of_methods_says_which():
    """Of every method, with the settings of the cases."""
    assert {case.split()[0] for case in (*RECORDED, *NOT_RECORDED)} == set(METHODS)
    for case in (*RECORDED, *NOT_RECORDED):
        config: Any = getattr(CASES[case].build(0, 1), "config", None)
        why = why_not_recorded(case.split()[0], config)
        assert (why is None) == (case in RECORDED), case


def test_a_number_that_python_bakes_in_is_found(monkeypatch: pytest.MonkeyPatch):
    """The comparison itself: with λ as Python's number, a replayed step has the recorded one's."""
    monkeypatch.setattr(graphs, "_NUMBERS", {})
    with pretended():
        usual = build("burn joint", num_steps=STEPS)
        graphed = build("burn joint", num_steps=STEPS, recorder=PretendedRecorder())
        losses = []
        for _ in range(WARM_UP + 2):
            usual.step()
            graphed.step()
            losses.append(
                loss_of(graphed)["loss"] == pytest.approx(loss_of(usual)["loss"], rel=2e-7)
            )
    assert losses == [True] * (WARM_UP + 1) + [False]


def test_a_batch_with_missing_images_runs_as_it_is_and_the_graph_stays():
    with pretended():
        recorder = PretendedRecorder()
        usual = build("burn joint", num_steps=20)
        graphed = build("burn joint", num_steps=20, recorder=recorder)
        for step in range(10):
            missing = {1: 1, 6: 3, 8: 7}.get(step, 0)
            for run in (usual, graphed):
                run.step(missing=missing)
            found, expected = graphed.state(), usual.state()
            assert all(torch.equal(found[name], expected[name]) for name in expected), step
    assert (recorder.warm, recorder.recorded, recorder.replayed) == (3, 1, 4)


def test_another_phase_is_recorded_again():
    """SwAV begins to use its queue in the middle of the stage."""
    with pretended():
        recorder = PretendedRecorder()
        run = build("swav with a queue", num_steps=28, recorder=recorder)
        method: Any = run.learner.method
        method.config = replace(method.config, queue_from=0.45)
        for _ in range(22):
            run.step()
    assert recorder.recorded == 2


def test_what_is_given_out_stays_when_the_next_step_is_replayed():
    with pretended():
        run = build("burn joint", num_steps=20, recorder=PretendedRecorder())
        for _ in range(WARM_UP + 2):
            run.step()
        first = run.learner.output
        assert isinstance(first, StepOutput)
        before = float(first.loss)
        kept = first.features.cpu().clone()
        run.step()
        assert float(first.loss) == before
        assert torch.equal(first.features.cpu(), kept)
        assert run.learner.output is not None
        assert float(run.learner.output.loss) != before


def test_a_loss_that_is_not_finite_is_skipped_as_ever():
    with pretended():
        run = build("supervised", num_steps=20, recorder=PretendedRecorder(), tolerated=1)
        for _ in range(WARM_UP + 2):
            run.step()
        before = run.weights()
        classifier: Any = run.learner.method.classifier
        held = classifier.bias.detach().held
        kept = held.clone()
        held[0] = torch.inf
        run.step()
        held.copy_(kept)
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())
        run.step()
        assert f"step {WARM_UP + 3} is skipped (1 of 1)" in run.said.getvalue()
        run.step()
        assert all(tensor.isfinite().all() for tensor in run.weights().values())


def test_recording_finds_what_a_graph_cannot():
    with pretended() as gpu:
        x = torch.ones(3).to(CUDA)
        assert isinstance(gpu, Gpu)
        recorder = PretendedRecorder()
        with pytest.raises(NotRecorded, match="waits"):
            recorder.record(lambda: print(x.sum().item()))
        with pytest.raises(NotRecorded, match="on the CPU"):
            recorder.record(lambda: print(x.copy_(torch.ones(3), non_blocking=True)))
        y = torch.zeros(3).to(CUDA)

        def add() -> None:
            y.add_(x * 2)

        replay = recorder.record(add)
        replay()
        replay()
        assert y.cpu().tolist() == [4.0] * 3
