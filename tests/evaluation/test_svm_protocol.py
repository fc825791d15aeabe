"""The SVM protocol from images to numbers; tests/evaluation/test_svm.py has the numerics."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as T

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.errors import Interrupted, UserError
from burn.core.types import Precision
from burn.data.builtin.digits import Digits
from burn.data.formats.voc import Voc, open_voc
from burn.data.splits import Subset, balanced_share
from burn.data.view_config import ViewConfig
from burn.evaluation.configs import SvmConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.svm import protocol as svm_protocol
from burn.evaluation.svm.protocol import run_svm
from burn.evaluation.svm.solver import SvmData, svm_few_shot, svm_full
from networks import shallow_reactnet

CONSOLE = Console(file=io.StringIO())
SMALL = SvmConfig(full=True, shots=(1, 2), samples=2, image_size=32)


@pytest.fixture
def context(scenes: Path) -> EvaluationContext:
    train, test = (open_voc(str(scenes), part) for part in ("train", "test"))
    return EvaluationContext("tiny", "none", shallow_reactnet(), ViewConfig(), train, test, 0, 0)


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[SvmData]:
    """The data that the protocol gives to the SVMs."""
    seen: list[SvmData] = []
    original = svm_full
    monkeypatch.setattr(
        svm_protocol, "svm_full", lambda data, *rest: seen.append(data) or original(data, *rest)
    )
    return seen


def test_numbers_full_and_few_by_both_choices_of_cost(context: EvaluationContext):
    results = run_svm(context, SMALL, CONSOLE)
    assert [r.metric for r in results] == [
        "full mAP cv", "full mAP oracle", "k=1 mAP cv", "k=1 mAP oracle", "k=2 mAP cv",
        "k=2 mAP oracle",
    ]  # fmt: skip
    value = {r.metric: r.value for r in results}
    for what in ("full", "k=1", "k=2"):
        assert 0 < value[f"{what} mAP cv"] <= value[f"{what} mAP oracle"] <= 100
    assert [r.spread is None for r in results] == [True, True, False, False, False, False]
    assert set(results[0].settings["classes"]) == set("0123456789")


def test_features_are_the_quarters_means_of_squashed_images(
    context: EvaluationContext, handed_over: list[SvmData]
):
    run_svm(context, replace(SMALL, shots=(), image_size=64), CONSOLE)
    (data,) = handed_over
    image = T.resize(context.train.read(3), [73], InterpolationMode.BICUBIC)  # 64 · 8/7
    image = T.resize(image, [64, 64], InterpolationMode.BICUBIC)
    with torch.no_grad():
        features = context.backbone.eval().forward_features(image[None])[0]
    assert features.shape == (256, 4, 4)
    quarters = torch.stack(
        [features[:, i : i + 2, j : j + 2].mean(dim=(1, 2)) for i in (0, 2) for j in (0, 2)], dim=1
    )
    expected = F.normalize(quarters.flatten(), dim=0)
    assert expected.shape == (1024,)
    np.testing.assert_allclose(data.train[3], expected.numpy(), rtol=1e-4, atol=1e-6)
    assert (data.train_targets == context.train.presence).all()  # type: ignore[attr-defined]
    assert (data.train_targets == 0).any(), "difficult only"


def test_labels_are_evaluated_one_against_the_rest(handed_over: list[SvmData]):
    train, test = (balanced_share(Digits(part), 0.1, 0) for part in ("train", "test"))
    views = ViewConfig(size=32, resize=32)
    context = EvaluationContext("tiny", "none", shallow_reactnet(), views, train, test, 0, 0)
    run_svm(context, replace(SMALL, shots=(1,)), CONSOLE)
    (data,) = handed_over
    assert train.labels is not None
    assert (data.train_targets.argmax(axis=1) == train.labels).all()
    assert ((data.train_targets == 1).sum(axis=1) == 1).all()
    assert set(np.unique(data.train_targets)) == {-1, 1}


def test_test_images_may_have_fewer_numbered_classes(handed_over: list[SvmData]):
    train, test = (balanced_share(Digits(part), 0.1, 0) for part in ("train", "test"))
    assert test.labels is not None
    test = Subset(test, np.flatnonzero(test.labels < 3))
    test.classes = test.classes[:3]
    views = ViewConfig(size=32, resize=32)
    context = EvaluationContext("tiny", "none", shallow_reactnet(), views, train, test, 0, 0)
    run_svm(context, replace(SMALL, shots=(1,)), CONSOLE)
    (data,) = handed_over
    assert data.classes == ("0", "1", "2")
    assert data.test_targets.shape == (len(test), 3)
    assert any("no positive test image: 3, 4, 5, 6, 7 and 2 more" in n for n in context.notes)


def test_shots_that_a_class_lacks_are_left_out_unless_asked_for(
    context: EvaluationContext, handed_over: list[SvmData]
):
    chosen = replace(SMALL, shots=None, full=False, samples=1)
    results = run_svm(context, chosen, CONSOLE)
    asked = {r.metric.split()[0] for r in results}
    assert "k=1" in asked
    assert "k=96" not in asked
    assert any("96 left out: some class has fewer positives" in note for note in context.notes)
    with pytest.raises(UserError, match=r"class . has .* positive training images, not 96"):
        run_svm(context, replace(chosen, full=True, shots=(1, 96)), CONSOLE)
    assert not handed_over, "it is said before the SVMs on all images"


@pytest.mark.long
def test_results_repeat_for_a_seed_and_features_come_from_the_folder(
    context: EvaluationContext, tmp_path: Path
):
    kept = replace(context, out=tmp_path)
    first = [r.value for r in run_svm(kept, SMALL, CONSOLE)]
    assert len(list((tmp_path / "features").iterdir())) == 2
    assert [r.value for r in run_svm(replace(kept, kept={}), SMALL, CONSOLE)] == first
    other = [r.value for r in run_svm(replace(kept, seed=1), SMALL, CONSOLE)]
    assert other != first
    run_svm(replace(kept, kept={}), replace(SMALL, image_size=64), CONSOLE)
    assert len(list((tmp_path / "features").iterdir())) == 4, "another size, other features"


def test_few_shots_have_the_mean_and_the_population_deviation_of_the_samples(
    context: EvaluationContext, handed_over: list[SvmData]
):
    results = {r.metric: r for r in run_svm(context, SMALL, CONSOLE)}
    samples = svm_few_shot(handed_over[0], 2, 0, 2)
    for choice in ("cv", "oracle"):
        first, second = (100 * sample.mean_ap(choice) for sample in samples)
        result = results[f"k=2 mAP {choice}"]
        assert result.value == round((first + second) / 2, 4)
        assert result.spread == round(abs(first - second) / 2, 4)


def test_finished_parts_are_kept_when_interrupted(
    context: EvaluationContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = [r.value for r in run_svm(context, SMALL, CONSOLE)]
    kept = replace(context, out=tmp_path)
    calls = []
    original = svm_few_shot

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(svm_protocol, "svm_few_shot", interrupted)
    with pytest.raises(Interrupted, match="features and 2 parts are kept in"):
        run_svm(kept, SMALL, CONSOLE)
    monkeypatch.setattr(svm_protocol, "svm_full", lambda *_: pytest.fail("made again"))
    assert [r.value for r in run_svm(kept, SMALL, CONSOLE)] == whole
    assert len(calls) == 3


def test_classes_without_a_positive_are_left_out_and_named(context: EvaluationContext):
    train = context.train
    assert isinstance(train, Voc)
    without = Voc(train.name, train._items, (*train.classes, "emu"), [])
    more = replace(context, train=without, test=Voc("t", context.test._items, without.classes, []))  # type: ignore[attr-defined]
    results = run_svm(more, replace(SMALL, shots=()), CONSOLE)
    assert [r.value for r in results] == [
        r.value for r in run_svm(context, replace(SMALL, shots=()), CONSOLE)
    ]
    assert "left out classes with no positive training image: emu" in more.notes


class Counted:
    """Voc's images with other classes: 1 present, -1 absent, 0 in difficult instances only."""

    labels = None

    def __init__(self, voc: Voc, **presence: np.ndarray) -> None:
        self.classes = tuple(presence)
        self.presence = np.stack(list(presence.values()), axis=1).astype(np.int8)
        self.name, self.fingerprint, self._voc = voc.name, voc.fingerprint, voc

    def __len__(self) -> int:
        return len(self._voc)

    def read(self, index: int) -> torch.Tensor:
        return self._voc.read(index)

    def describe(self, index: int) -> str:
        return self._voc.describe(index)


def with_classes(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch, **kinds: str
) -> EvaluationContext:
    """kinds: of each class which part, train or test, lacks positives (-) or negatives (+)."""
    monkeypatch.setattr(svm_protocol, "_targets", lambda source, _: source.presence)

    def part(name: str, source: Any) -> Any:
        mixed = np.where(np.arange(len(source)) % 2, 1, -1)
        constant = {f"{name} -": np.full(len(source), -1), f"{name} +": np.ones(len(source))}
        return Counted(source, **{c: constant.get(kind, mixed) for c, kind in kinds.items()})

    return replace(
        context, train=part("train", context.train), test=part("test", context.test), notes=[]
    )


def test_a_class_that_every_image_has_or_none_is_left_out(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch
):
    alone = with_classes(context, monkeypatch, odd="")
    expected = [r.value for r in run_svm(alone, SMALL, CONSOLE)]
    assert alone.notes == []
    many = with_classes(
        context, monkeypatch, odd="", a="train -", b="train +", c="test -", d="test +"
    )
    results = run_svm(many, SMALL, CONSOLE)
    assert [r.value for r in results] == expected
    assert set(results[0].settings["classes"]) == {"odd"}
    assert many.notes == [
        "left out classes with no positive training image: a",
        "left out classes with no negative training image: b",
        "left out classes with no positive test image: c",
        "left out classes with no negative test image: d",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["train -", "train +", "test -", "test +"])
def test_where_no_class_can_be_evaluated_there_is_no_number(
    context: EvaluationContext, monkeypatch: pytest.MonkeyPatch, kind: str, tmp_path: Path
):
    none = replace(with_classes(context, monkeypatch, person=kind), out=tmp_path)
    lacking = f"no {'positive' if '-' in kind else 'negative'} "
    with pytest.raises(UserError, match=f"svm: no class has positive .*: {lacking}.*: person"):
        run_svm(none, SMALL, CONSOLE)
    assert not (tmp_path / "svm.jsonl").exists()


def test_a_backbone_without_a_map_is_refused(context: EvaluationContext):
    vit = build_backbone(BackboneConfig(name="test_vit"), Precision.FLOAT)
    with pytest.raises(UserError, match="svm needs a feature map, which test_vit does not give"):
        run_svm(replace(context, backbone=vit), replace(SMALL, image_size=160), CONSOLE)


@pytest.mark.parametrize(
    "settings",
    [{"shots": (0,)}, {"samples": 0}, {"image_size": 4}, {"full": False, "shots": ()}],
)
def test_values_out_of_range(settings: dict):
    with pytest.raises(UserError):
        SvmConfig(**settings).check()
