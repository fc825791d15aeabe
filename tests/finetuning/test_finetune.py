"""`burn finetune`: what it trains, what it chooses, what it leaves, and what takes its run."""

from __future__ import annotations

import gc
import io
import json
import math
import signal
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn import functional as F

import burn
from burn.backbones.reactnet import ReActNet
from burn.checkpoints.foreign.weights import backbone_from, load_teacher
from burn.checkpoints.native import load_checkpoint
from burn.cli.commands import finetune as command
from burn.cli.main import main
from burn.core.errors import Interrupted, UserError
from burn.core.results import decode_right, read_results
from burn.core.types import Precision
from burn.costs.compute import count_named
from burn.data.builtin.digits import Digits
from burn.data.loader import random_views
from burn.data.splits import Subset, balanced_share, hold_out
from burn.data.view_config import ViewConfig
from burn.evaluation.artifacts.kept import KeptParts
from burn.evaluation.configs import LinearConfig
from burn.evaluation.fine_tuning import FineTuningLearner, Tuner, TuningPlan, tuning_loss
from burn.evaluation.linear_layer import new_head
from burn.finetuning.job import class_weights
from burn.finetuning.run import Finetuned, finetune
from burn.finetuning.settings import FinetuneConfig, FinetuneRequest
from burn.finetuning.trainings import _Metrics
from burn.learning.loop import Callback, Loop
from burn.learning.threads import ThreadChooser
from burn.runtime.signals import StopRequest
from networks import shallow_reactnet, tiny_reactnet

CONSOLE = Console(file=io.StringIO())
QUICK = FinetuneConfig(epochs=2, batch_size=32, lrs=(0.002, 0.008), budget=1.0, flip=0.0)
ONE_RATE = replace(QUICK, lrs=(0.008,))


def save(
    file: Path, precision: Precision = Precision.BINARY, network: ReActNet | None = None
) -> Path:
    """A checkpoint of 32-pixel images."""
    from dataclasses import asdict

    from burn.checkpoints.native import save_checkpoint

    network = network or shallow_reactnet(precision)
    meta = {
        "backbone": asdict(network.config), "precision": precision.value, "stage": 1, "steps": 7,
        "images_per_step": 8, "recipe": {"name": "tiny"},
        "views": asdict(ViewConfig(size=32, resize=32)),
        "teacher": {"spec": "t", "labels": "ImageNet"},
    }  # fmt: skip
    weights = {f"backbone.{name}": t for name, t in network.state_dict().items()}
    save_checkpoint(file, weights, meta)
    return file


@pytest.fixture(scope="module", autouse=True)
def _quick_classifiers() -> Iterator[None]:
    """Classifiers of frozen features, which a run begins with, learn for 20 epochs, not 100."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("burn.finetuning.trainings.LinearConfig", partial(LinearConfig, epochs=20))
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("start") / "tiny.safetensors")


@pytest.fixture(scope="module")
def few() -> Subset:
    return balanced_share(Digits("train"), 0.1, seed=0)


@pytest.fixture(scope="module")
def test_images() -> Subset:
    return balanced_share(Digits("test"), 0.3, seed=0)


def request(start: Path, out: Path, **options: Any) -> FinetuneRequest:
    return FinetuneRequest(
        str(start), "-", "-", str(out), workers=0, device="cpu", compute="float32", **options
    )


@pytest.fixture(scope="module")
def tuned(
    start: Path, few: Subset, test_images: Subset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tuned"
    done = finetune(request(start, out), QUICK, CONSOLE, train=few, test=test_images)
    assert [r.metric for r in done.results] == ["top1", "top5", "mean per class"]
    return out


# The loss


def scores_and_labels() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores, taught = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in "ab")
    return scores, taught, torch.tensor([0, 1, 2, 3, 3, 3])


def plan(**settings: Any) -> TuningPlan:
    return TuningPlan(1, 6, 0.1, 0.1, lambda *_: 1.0, **settings)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0, 0.25)])
def test_the_loss_is_its_formula(smoothing: float, weights: tuple[float, ...] | None):
    """(1 - kl) · Σ w · cross-entropy of the smoothed target / n + kl · T² · KL(teacher || net)."""
    scores, taught, labels = scores_and_labels()
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    settings = plan(label_smoothing=smoothing, class_weights=given, kl=0.3, temperature=2.0)
    expected = 0.0
    s, t = scores.numpy(), taught.numpy()
    for row, label in enumerate(labels.tolist()):
        log_p = s[row] - math.log(np.exp(s[row]).sum())
        target = np.full(4, smoothing / 4)
        target[label] += 1 - smoothing
        ce = -(target * log_p).sum() * (1.0 if weights is None else weights[label])
        p, q = (np.exp(x[row] / 2) / np.exp(x[row] / 2).sum() for x in (t, s))
        expected += (0.7 * ce + 0.3 * 4 * (p * np.log(p / q)).sum()) / 6
    found = tuning_loss(scores, labels, taught, settings)
    assert float(found) == pytest.approx(expected, rel=1e-12)  # float64


def test_without_a_teacher_it_is_the_cross_entropy():
    scores, _, labels = scores_and_labels()
    found = tuning_loss(scores, labels, None, plan(kl=0.7))
    assert torch.equal(found, F.cross_entropy(scores, labels))


@pytest.mark.parametrize(("how", "ratio"), [("none", None), ("balanced", 9.0), ("sqrt", 3.0)])
def test_class_weights_of_a_rare_class(how: str, ratio: float | None):
    class Nine:
        classes = ("frequent", "rare", "absent")
        labels = np.array([0] * 9 + [1])

    weights = class_weights(Nine(), how)  # type: ignore[arg-type]
    if ratio is None:
        assert weights is None
        return
    assert weights is not None
    assert weights[1] / weights[0] == pytest.approx(ratio)
    assert (9 * weights[0] + weights[1]) / 10 == pytest.approx(1.0), "the mean over the images"
    assert weights[2] == 0


# The trainer


def tuner(
    few: Subset, teacher: Any = None, sizes: tuple[int, ...] = (), epochs: int = 2,
    threads: ThreadChooser | None = None, **settings: Any,
) -> Tuner:  # fmt: skip
    views = ViewConfig(size=32, jitter=0, grey=0, blur=0)
    network = shallow_reactnet()
    head = new_head(network.num_features, 10, seed=0)
    given = {"optimizer": "adam", "drop_last": True, **settings}
    chosen = TuningPlan(epochs, 64, 0.01, 0.001, lambda step, of: 1 / (1 + step), **given)
    theirs = tuple(replace(views, size=size) for size in sizes)
    transform = random_views((views,), 0, theirs)
    given = {"teacher": teacher, "threads": threads}
    return Tuner(network, head, few, transform, chosen, seed=0, workers=0, **given)


def test_a_resumed_training_has_the_same_bits(few: Subset):
    whole = tuner(few)
    assert whole.train()
    half = tuner(few)

    class Stop(Callback):
        def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
            loop.should_stop = loop.step == 3  # in the second epoch of two steps

    half.train([Stop()])
    content = io.BytesIO()
    torch.save(half.loop.state_dict(), content)
    content.seek(0)
    again = tuner(few)
    state = torch.load(content, weights_only=True)
    assert again.train(restore=lambda loop: loop.load_state_dict(state))
    assert again.loop.step == whole.loop.step == 4
    for name, tensor in whole.learner.state_dict().items():
        assert torch.equal(tensor, again.learner.state_dict()[name]), name


def test_a_resume_file_names_the_images_that_could_not_be_read_as_before(few: Subset):
    held: list[dict[str, Any]] = []

    class Look(Callback):
        def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
            held.append(loop.state_dict()["callbacks"])

    trained = tuner(few, epochs=1)
    trained.unreadable = {3}
    trained.train([Look()])
    assert held[0] == {"Tuner": {"unreadable": [3]}}


def test_a_training_that_is_dropped_ends_its_workers(few: Subset):
    """At once, not when Python looks for cycles."""
    trained = tuner(few, epochs=1)
    loader = weakref.ref(trained.loop._loader)
    gc.disable()
    try:
        trained.train()
        del trained
        assert loader() is None
    finally:
        gc.enable()


def test_rates_of_network_and_classifier_and_their_course(few: Subset):
    seen = []

    class Rates(Callback):
        def on_before_step(self, loop: Loop[Any]) -> None:
            seen.append([group["lr"] for group in loop.optimizer.param_groups])

    tuner(few).train([Rates()])
    expected = [[0.01 / n, 0.001 / n] for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(seen, expected, rtol=1e-12)  # float64


@pytest.mark.parametrize(("sizes", "side"), [((), 32), ((48,), 48)])
def test_the_teacher_sees_the_same_views_at_its_own_size(
    sizes: tuple[int, ...], side: int, few: Subset
):
    seen: list[torch.Tensor] = []
    students: list[torch.Tensor] = []

    def teacher(views: torch.Tensor) -> torch.Tensor:
        seen.append(views)
        return torch.zeros(len(views), 10)

    one = tuner(few, teacher, sizes, kl=1.0)
    one.learner.backbone.register_forward_pre_hook(lambda _, given: students.append(given[0]))
    one.train()
    assert len(seen) == 4
    for theirs, ours in zip(seen, students, strict=True):
        assert theirs.shape == (64, 3, side, side)
        small = F.interpolate(theirs.float(), (32, 32), mode="area")
        both = torch.stack([small.flatten(), ours.float().flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.9, "another crop has less than 0.5"


def test_with_kl_alone_the_labels_have_no_influence(few: Subset):
    other = Subset(few, range(len(few)))
    assert other.labels is not None
    other.labels = 9 - other.labels

    def taught(views: torch.Tensor) -> torch.Tensor:
        return views.float().mean(dim=(1, 2, 3))[:, None] * torch.arange(10) / 100

    one, two, three = tuner(few, taught, kl=1.0), tuner(other, taught, kl=1.0), tuner(other)
    for each in (one, two, three):
        each.train()
    assert torch.equal(one.learner.head.weight, two.learner.head.weight)
    assert not torch.equal(one.learner.head.weight, three.learner.head.weight)


# The run


def test_the_test_images_and_the_checkpoint_agree(tuned: Path, test_images: Subset):
    """Loaded, the network and its classifier have the accuracies that the results say."""
    held = load_checkpoint(tuned)
    network = backbone_from(held)
    assert held.meta["precision"] == "binary"
    assert held.meta["classes"] == [str(digit) for digit in range(10)]
    assert held.meta["teacher"]["labels"] == "ImageNet", "of pretraining"
    from burn.data.augment import plain_view

    views = ViewConfig(size=32, resize=32)
    images = torch.stack([plain_view(test_images.read(i), views) for i in range(len(test_images))])
    weight, bias = (held.weights[f"classifier.{n}"] for n in ("weight", "bias"))
    with torch.inference_mode():
        scores = network(images) @ weight.T + bias
    right = scores.argmax(dim=1).numpy() == test_images.labels
    top1, _, per_class = read_results(tuned / "results.jsonl")[-3:]
    # burn-engine, where it runs, may turn a sign within rounding of zero
    assert 100 * right.mean() == pytest.approx(top1.value, abs=2)
    answers = decode_right(top1)
    assert answers is not None
    assert 100 * answers.mean() == pytest.approx(top1.value, abs=1e-3)
    counts = np.array(json.loads((tuned / "confusion.json").read_text())["counts"])
    assert 100 * counts.trace() / counts.sum() == pytest.approx(top1.value, abs=1e-3)
    of_class = top1.settings["classes"]
    assert {name: one["images"] for name, one in of_class.items()} == dict(
        zip(map(str, range(10)), counts.sum(axis=1).tolist(), strict=True)
    )
    assert np.mean([one["top1"] for one in of_class.values()]) == pytest.approx(
        per_class.value, abs=1e-3
    )


def test_the_rates_are_chosen_on_held_out_training_images(tuned: Path, few: Subset):
    top1 = read_results(tuned / "results.jsonl")[0]
    trials = top1.settings["trials"]
    assert [(t["lr"], t["head_lr"]) for t in trials] == [(0.002, 0.001), (0.008, 0.001)]
    best = max(trials, key=lambda t: (t["top1"], -t["loss"]))
    assert (top1.settings["lr"], top1.settings["head_lr"]) == (best["lr"], best["head_lr"])
    assert load_checkpoint(tuned).meta["finetuned"]["held_out"] == 30, "a fifth of every class"
    assert top1.settings["calibration"] == best["calibration"] != 1


@pytest.mark.parametrize(
    ("settings", "trials", "epochs"),
    [
        ({}, 3, 5), ({"budget": 0.01}, 3, 1), ({"budget": 2.0}, 3, 20), ({"lrs": (0.1,)}, 0, 15),
        ({"head_lrs": (0.1, 0.2, 0.3)}, 5, 3), ({"epochs": 1}, 3, 1),
    ],
)  # fmt: skip
def test_the_budget_of_the_choice(settings: dict[str, Any], trials: int, epochs: int):
    config = replace(FinetuneConfig(epochs=30, budget=0.5), **settings)
    assert (config.trials, config.trial_epochs) == (trials, epochs)


def test_the_classifiers_rates_are_tried_at_the_networks_best(
    start: Path, few: Subset, test_images: Subset, tmp_path: Path
):
    config = replace(QUICK, epochs=1, head_lrs=(0.001, 0.1))
    done = finetune(request(start, tmp_path / "r"), config, CONSOLE, train=few, test=test_images)
    trials = done.results[0].settings["trials"]
    lr = max(trials[:2], key=lambda t: (t["top1"], -t["loss"]))["lr"]
    assert (trials[2]["lr"], trials[2]["head_lr"]) == (lr, 0.1)
    assert len(trials) == 3


def test_other_commands_take_the_run(tuned: Path, tmp_path: Path):
    packed = tmp_path / "tuned.bnn"
    assert main(["pack", str(tuned), str(packed)]) == 0
    import burn_engine

    model = burn_engine.load(packed)
    assert list(model.classes) == [str(digit) for digit in range(10)]
    data = ["--train", "digits", "--test", "digits"]
    assert main(["evaluate", "knn", str(tuned), *data]) == 0
    assert main(["info", str(tuned)]) == 0
    assert main(["embed", str(tuned), "--data", "digits", "--out", str(tmp_path / "e")]) == 0
    manifest = json.loads((tmp_path / "e/embed.json").read_text())
    assert manifest["model"]["classes"] == [str(digit) for digit in range(10)]
    page = tmp_path / "page.html"
    assert main(["report", str(tuned), "--out", str(page)]) == 0
    text = page.read_text()
    assert "fine-tuned top-1" in text
    assert "Accuracy while training" in text


@pytest.mark.parametrize(
    ("precision", "following"),
    [
        (Precision.BINARY, "burn pack my/run my/run.bnn"),
        (Precision.FLOAT, "burn export my/run my/run.onnx"),
    ],
)
def test_the_command_to_type_next_can_be_done(
    precision: Precision, following: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = Finetuned([], [], None, save(tmp_path / "n.safetensors", precision))  # type: ignore[arg-type]
    monkeypatch.setattr("burn.finetuning.run.finetune", lambda *_, **__: done)
    words = ["start", "--train", "digits", "--test", "digits", "--out", "my/run"]
    assert command.run(words, CONSOLE) == following


def test_from_python(start: Path, few: Subset, test_images: Subset, tmp_path: Path):
    network = burn.load(start)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    options = {"epochs": 1, "lrs": (0.008,), "workers": 0, "progress": False}
    run = burn.finetune(network, train=few, test=test_images, out=tmp_path / "r", **options)
    assert set(run.numbers) == {"top1", "top5", "mean per class"}
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())
    assert not torch.equal(run.backbone.state_dict()["stem.weight"], before["stem.weight"])
    assert burn.pack(run.out, tmp_path / "t.bnn").classes == 10
    assert burn.pack(run.backbone, tmp_path / "u.bnn", head=run.classifier).classes == 10
    with pytest.raises(UserError, match="unknown setting rate"):
        burn.finetune(start, train=few, test=test_images, out=tmp_path / "o", rate=1)


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Ctrl-C during a step, counted over all trainings."""
    made: list[StopRequest] = []
    make, forward = StopRequest.__init__, FineTuningLearner.forward
    count = 0

    def remember(self: StopRequest, *arguments: str) -> None:
        make(self, *arguments)
        made.append(self)

    def counted(self: FineTuningLearner, *arguments: Any) -> torch.Tensor | None:
        nonlocal count
        count += 1
        if count == steps:
            made[-1]._handle(signal.SIGINT, None)
        return forward(self, *arguments)

    monkeypatch.setattr(StopRequest, "__init__", remember)
    monkeypatch.setattr(FineTuningLearner, "forward", counted)


def test_who_learns_from_it_is_told_of_its_labels(tuned: Path):
    labels = load_teacher(str(tuned)).origin["labels"]
    own = load_checkpoint(tuned / "stage1.safetensors").meta["data"]["name"]
    assert labels == f"{own} and ImageNet"  # the latter of its teacher in pretraining


def test_a_run_that_an_earlier_version_began_goes_on(
    start: Path, few: Subset, test_images: Subset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It took settings of a teacher where there is none."""
    config = replace(QUICK, kl=0.5)
    with pytest.raises(UserError, match="--kl without --teacher: give both, or leave it out"):
        finetune(request(start, tmp_path / "r"), config, CONSOLE, train=few, test=test_images)
    with monkeypatch.context() as patched:
        patched.setattr(FinetuneConfig, "check", lambda *_, **__: None)
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            finetune(request(start, tmp_path / "r"), config, CONSOLE, train=few, test=test_images)
    again = request(start, tmp_path / "r", resume=True)
    assert finetune(again, config, CONSOLE, train=few, test=test_images).results


@pytest.mark.parametrize(
    ("steps", "earlier"),
    [
        pytest.param(2, 0, marks=pytest.mark.long),
        (5, 2000),
        pytest.param(12, 5000, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_run_resumes_to_the_same_weights(
    steps: int,
    earlier: float,
    tuned: Path,
    start: Path,
    few: Subset,
    test_images: Subset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """In the first trial, in the second, in the second epoch of the training.

    What was finished before then counts in the time that the results name.
    """
    out = tmp_path / "r"
    with monkeypatch.context() as patched:
        add = KeptParts.add
        patched.setattr(KeptParts, "add", lambda self, part: add(self, part | {"seconds": 2000.0}))
        patched.setattr(_Metrics, "seconds", 1000.0)
        stop_after(patched, steps)
        saved = "saved" if earlier else "not saved"
        with pytest.raises(Interrupted, match=f"stopped and {saved} in") as stopped:
            finetune(request(start, out), QUICK, CONSOLE, train=few, test=test_images)
        assert str(stopped.value).count("to go on: ") == 1
        assert str(stopped.value).endswith(f"to go on: {stopped.value.command}")
    assert not (out / "stage1.safetensors").exists()
    assert not (out / "results.jsonl").exists()
    again = request(start, out, resume=True)
    done = finetune(again, QUICK, CONSOLE, train=few, test=test_images)
    assert earlier < done.results[0].seconds < earlier + 1000
    ours, whole = load_checkpoint(out), load_checkpoint(tuned)
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, ours.weights[name]), name
    assert not list((out / "stage1").glob("resume*"))
    rows = (out / "stage1/metrics.csv").read_text().splitlines()
    steps_of = [int(row.split(",")[0]) for row in rows[1:]]
    assert steps_of == sorted(set(steps_of)), "no step twice"


def test_resumed_with_other_settings_it_says_which(
    tuned: Path, start: Path, few: Subset, test_images: Subset
):
    with pytest.raises(UserError, match=r"settings\.label_smoothing was 0\.1, is 0\.4"):
        finetune(
            request(start, tuned, resume=True),
            replace(QUICK, label_smoothing=0.4),
            CONSOLE,
            train=few,
            test=test_images,
        )
    with pytest.raises(UserError, match="already holds a run"):
        finetune(request(start, tuned), QUICK, CONSOLE, train=few, test=test_images)


def test_random_weights_are_another_start(
    start: Path, few: Subset, test_images: Subset, tmp_path: Path
):
    done = finetune(
        request(start, tmp_path / "r", random_init=True),
        ONE_RATE,
        CONSOLE,
        train=few,
        test=test_images,
    )
    assert done.results[0].settings["random_init"]
    assert done.results[0].settings["start"].startswith("random")


def test_a_teacher_is_asked(start: Path, few: Subset, test_images: Subset, tmp_path: Path):
    teacher = save(tmp_path / "teacher.safetensors", Precision.FLOAT)
    config = replace(ONE_RATE, epochs=1, teacher=str(teacher), kl=0.5)
    done = finetune(request(start, tmp_path / "r"), config, CONSOLE, train=few, test=test_images)
    about = load_checkpoint(tmp_path / "r").meta["finetuned"]
    assert about["teacher"]["size"] == 32
    alone = replace(config, teacher=None, kl=ONE_RATE.kl)
    other = finetune(request(start, tmp_path / "o"), alone, CONSOLE, train=few, test=test_images)
    assert not torch.equal(done.classifier.weight, other.classifier.weight)


# Bad input: one line, exit status 2, and nothing is left


def folder_of(path: Path, **counts: int) -> str:
    """Class folders with so many images each."""
    for number, (name, count) in enumerate(counts.items()):
        (path / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.full((24, 24, 3), 40 * number + index, dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index}.png")
    return str(path)


@pytest.mark.parametrize(
    ("train", "test", "options", "said"),
    [
        ({"a": 6}, {"a": 2}, [], "has no labels: give at least two class folders"),
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}, [], "with one labelled image of each class"),
        ({"a": 4, "b": 4, "c": 4}, {"a": 2, "b": 2}, [], "lacks classes of"),
        ({"a": 4, "b": 4}, {"a": 2, "c": 2}, [], "has classes that"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--lrs", "0"], "--lrs"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--kl", "2"], "--kl 2"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--teacher", "nobody"], "no checkpoint at nobody"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--teacher-size", "64"], "without --teacher"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--kl", "0.1"], "--kl without --teacher"),
        ({"a": 4, "b": 4}, {"a": 2, "b": 2}, ["--lrs", "900"], "diverged: give lower --lrs"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    train: dict[str, int],
    test: dict[str, int],
    options: list[str],
    said: str,
    start: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    images = [
        f"--train={folder_of(tmp_path / 'train', **train)}",
        f"--test={folder_of(tmp_path / 'test', **test)}",
    ]
    out = tmp_path / "r"
    if "diverged" in said:  # one block a stage survives a rate of 1000, the largest there is
        start = save(tmp_path / "deep.safetensors", network=tiny_reactnet())
    command = ["finetune", str(start), *images, "--out", str(out), "--workers", "0", *options]
    assert main(command) == 2
    told = capsys.readouterr()
    assert said in told.err.splitlines()[-1]
    assert "Traceback" not in told.err
    assert not told.out
    assert not out.exists() or not list(out.glob("*.safetensors"))
    if "diverged" not in said:
        assert not out.exists()


def test_a_name_that_is_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = str(tmp_path / "r")
    command = ["finetune", "runs/none", "--train", "digits", "--test", "digits", "--out", out]
    assert main(command) == 2
    assert "no checkpoint at runs/none" in capsys.readouterr().err
    assert not Path(out).exists()


def test_pretrain_and_finetune_leave_each_others_runs(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["pretrain", "--resume", "--out", str(tuned)]) == 2
    assert "holds a run of burn finetune" in capsys.readouterr().err
    (tmp_path / "run.json").write_text('{"format": 1}')
    images = ["--train", "digits", "--test", "digits"]
    assert main(["finetune", "photos", *images, "--overwrite", "--out", str(tmp_path)]) == 2
    assert "holds a run of burn pretrain" in capsys.readouterr().err


def test_a_class_with_one_image_keeps_it_in_training():
    source = Digits("train")
    assert source.labels is not None
    of = [np.flatnonzero(source.labels == label) for label in range(2)]
    three = Subset(source, [of[0][0], of[0][1], of[1][0]])
    learn, held = hold_out(three, 0.5, 0, keep_single=True)
    assert learn.labels is not None
    assert held.labels is not None
    assert (sorted(learn.labels), held.labels.tolist()) == ([0, 1], [0])
    with pytest.raises(UserError, match="class 1"):
        hold_out(three, 0.5, 0)


def test_the_number_of_threads_follows_the_measured_rate(
    few: Subset, monkeypatch: pytest.MonkeyPatch
):
    """Two threads of a busy machine take longer than one, and the next steps take one."""
    seconds = {1: 1.0, 2: 3.0}
    now = [0.0]
    used: list[int] = []

    class Time:
        @staticmethod
        def monotonic() -> float:
            used.append(torch.get_num_threads())
            now[0] += seconds[torch.get_num_threads()]
            return now[0]

        @staticmethod
        def process_time() -> float:
            return now[0] * torch.get_num_threads()

    monkeypatch.setattr("burn.learning.threads.time", Time)
    # Said only, since two threads of a busy machine do take longer.
    threads = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    first = tuner(few, threads=ThreadChooser(2), epochs=10)
    assert first.train()
    assert torch.get_num_threads() == 2  # as it was
    assert set(used[-4:]) == {1}
    again = tuner(few, threads=ThreadChooser(2), epochs=10)
    state = first.loop.state_dict()
    assert again.train(restore=lambda loop: loop.load_state_dict(state))  # nothing is left to do


def test_its_classifier_is_counted(tuned: Path):
    cost, about = count_named(str(tuned), tuned, None, None, None)
    assert about["classes"] == 10
    without, _ = count_named(str(tuned), tuned, None, 0, None)
    assert cost.float_parameters > without.float_parameters
