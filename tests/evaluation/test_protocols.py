import copy
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny  # noqa: F401 - one thread
from burn.checkpoints.classifier import load_classifier
from burn.checkpoints.native import CLASSIFIER_NAME
from burn.core.errors import UserError
from burn.core.results import decode_right, read_results
from burn.data.open import open_source
from burn.data.splits import Subset
from burn.evaluation.cache import plain_features
from burn.evaluation.checks import check_sources, doubt_of_choice
from burn.evaluation.configs import KnnConfig, LinearConfig, Request, TransferConfig
from burn.evaluation.context import EvaluationContext, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear, run_transfer
from burn.evaluation.registry import evaluate_checkpoint

CONSOLE = Console(file=io.StringIO())


def class_folders(path: Path, names: tuple[str, ...]) -> Path:
    for number, name in enumerate(names):
        (path / name).mkdir(parents=True)
        for i in range(6):
            pixels = np.full((20, 24, 3), 40 * number + i, np.uint8)
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return path


@pytest.fixture
def context(teacher: Path, tmp_path: Path) -> EvaluationContext:
    model = open_model(str(teacher), fresh=False, seed=0)
    photos = str(class_folders(tmp_path / "photos", ("black", "grey", "white")))
    train, test = open_source(photos), open_source(photos)
    return EvaluationContext(
        model.name, str(teacher), model.backbone, model.views, train, test, seed=0, workers=0
    )


def test_uniform_grey_levels_are_told_apart(context: EvaluationContext):
    (knn,) = run_knn(context, KnnConfig(k=1), CONSOLE)
    assert (knn.protocol, knn.metric, knn.value) == ("knn", "top1", 100)
    top1, top5 = run_linear(context, LinearConfig(epochs=3, lr=0.1, augment="none"), CONSOLE)
    assert top5.value == 100  # three classes are fewer than five
    assert 0 <= top1.value <= 100
    given = {"probe": "strict", "epochs": 3, "lr": 0.1, "augment": "none", "compute": "float32"}
    assert given.items() <= top1.settings.items()


def test_every_top1_tells_which_images_were_answered_rightly(context: EvaluationContext):
    results = [
        *run_knn(context, KnnConfig(k=3), CONSOLE),
        *run_linear(context, LinearConfig(epochs=2, lr=0.1, augment="none"), CONSOLE),
        *run_transfer(context, TransferConfig(epochs=2, lr=0.1, augment="none"), CONSOLE),
    ]
    for result in results:
        answers = decode_right(result)
        if result.metric != "top1":
            assert answers is None
            continue
        assert answers is not None
        assert len(answers) == len(context.test)
        assert 100 * answers.mean() == pytest.approx(result.value, abs=1e-3)


def test_the_rate_is_chosen_and_told(context: EvaluationContext):
    top1, _ = run_linear(context, LinearConfig(epochs=3, augment="none"), CONSOLE)
    assert top1.settings["lr"] == "auto"
    rates = top1.settings["rates"]
    assert f"{top1.settings['chosen_lr']:g}" in rates
    assert rates[f"{top1.settings['chosen_lr']:g}"] == max(rates.values())
    assert any("was the best of 15 on 3 held-out" in note for note in context.notes)
    assert context.notes[-1] == (
        "linear: learning rate and calibration are uncertain: only 3 held-out images chose them "
        "(standard error up to 29 points); 1,000 training images would hold out 100, or give --lr"
    )
    told = len(context.notes)
    run_linear(context, LinearConfig(epochs=1, augment="none", lr=0.1), CONSOLE)
    assert len(context.notes) == told, "nothing was chosen"


@pytest.mark.parametrize(
    ("count", "share", "said"),
    [
        (100, 0.1, []),
        (99, 0.1, ["x are uncertain: only 99 held-out images chose them (standard error up to 5 "
                   "points); 1,000 training images would hold out 100"]),
        (1, 0.2, ["x are uncertain: a single held-out image chose them (standard error up to 50 "
                  "points); 500 training images would hold out 100"]),
    ],
)  # fmt: skip
def test_a_choice_on_few_images_is_said_to_be_uncertain(count: int, share: float, said: list[str]):
    assert doubt_of_choice(count, share, "x") == said


def test_of_one_image_a_class_no_rate_can_be_chosen(context: EvaluationContext):
    single = replace(context, train=Subset(context.train, [0, 6, 12]))
    with pytest.raises(UserError, match=r"lr auto holds .* out: .*, or give a learning rate"):
        run_linear(single, LinearConfig(epochs=1, augment="none"), CONSOLE)
    assert not single.kept, "no features were extracted"


def test_a_class_with_one_image_keeps_it_in_training(context: EvaluationContext):
    few = replace(context, train=Subset(context.train, [0, *range(6, 18)]))
    run_transfer(few, TransferConfig(epochs=1, augment="none"), CONSOLE)
    (chosen,) = [note for note in few.notes if "was the best of" in note]
    assert chosen.startswith("transfer: learning rate ")
    assert "on 2 held-out training images" in chosen


def test_the_kept_classifier_has_the_names_that_the_results_have(
    context: EvaluationContext, tmp_path: Path
):
    numbered = copy.copy(context.train)
    numbered.classes = ("0", "1", "2")
    out = replace(context, train=numbered, out=tmp_path)
    top1, _ = run_linear(out, LinearConfig(epochs=1, lr=0.1, augment="none"), CONSOLE)
    kept = load_classifier(tmp_path / CLASSIFIER_NAME)
    assert kept is not None
    assert top1.data is not None
    assert list(kept.classes) == top1.data["classes"] == ["black", "grey", "white"]


def test_the_mlp_probe_keeps_the_papers_rate(context: EvaluationContext):
    config = LinearConfig(probe="mlp", epochs=1, augment="none")
    assert config.first_rate == 30
    top1, _ = run_linear(context, replace(config, lr=0.01), CONSOLE)
    assert top1.settings["lr"] == 0.01
    assert TransferConfig("places205", probe="mlp").linear().first_rate == 0.01
    assert TransferConfig("places205", probe="mlp", lr=3.0).linear().first_rate == 3


def test_the_papers_linear_augments_and_leaves_the_backbone_as_it_was(context: EvaluationContext):
    before = {k: v.clone() for k, v in context.backbone.state_dict().items()}
    top1, _ = run_linear(context, LinearConfig(epochs=2, lr=30.0), CONSOLE)
    assert top1.settings["augment"] == "crop"
    after = context.backbone.state_dict()
    assert all((after[k] == before[k]).all() for k in before)
    assert not context.backbone.training


def test_linear_repeats_itself_for_a_seed(context: EvaluationContext):
    config = LinearConfig(epochs=2)
    first, second = (run_linear(context, config, CONSOLE) for _ in range(2))
    assert [r.value for r in first] == [r.value for r in second]


def test_unreadable_images_are_left_out_and_named(context: EvaluationContext):
    photos = Path(context.train.name)
    (photos / "grey" / "2.png").write_bytes(b"")
    assert len(plain_features(context, "train", CONSOLE).values) == 17
    (note,) = context.notes
    assert note.startswith(f"unreadable images, left out: 1: {photos / 'grey' / '2.png'}: ")


def test_classes_that_do_not_match_are_refused(tmp_path: Path):
    train = open_source(str(class_folders(tmp_path / "a", ("cat", "dog"))))
    more = open_source(str(class_folders(tmp_path / "b", ("cat", "emu"))))
    fewer = open_source(str(class_folders(tmp_path / "c", ("cat", "dog", "emu"))))
    with pytest.raises(UserError, match=r"has classes that .* lacks: emu"):
        check_sources(train, more)
    with pytest.raises(UserError, match="lacks classes of"):
        check_sources(fewer, train)
    check_sources(train, train)


def test_numbers_beyond_the_names_are_refused():
    """Labels that are numbers alone are positions of the other images' names."""
    digits = open_source("digits")
    assert digits.labels is not None
    named, few = copy.copy(digits), copy.copy(digits)
    named.classes = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    check_sources(digits, named)
    few.classes, few.labels = named.classes[:9], np.minimum(digits.labels, 8)
    with pytest.raises(UserError, match=r"has label 9, but .* has only the 9 classes"):
        check_sources(digits, few)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (("0", "1", "2"), ("0", "2"), "classes named 0, 2, which do not match the numbers"),
        (("1", "x", "z"), ("1", "z"), "lacks classes of"),
        (("1", "2"), ("3", "4"), r"has classes that .* lacks: 3, 4"),
    ],
)
def test_classes_named_with_digits_are_names_too(
    train: tuple[str, ...], test: tuple[str, ...], words: str, tmp_path: Path
):
    first = open_source(str(class_folders(tmp_path / "a", train)))
    second = open_source(str(class_folders(tmp_path / "b", test)))
    with pytest.raises(UserError, match=words):
        check_sources(first, second)


def test_numbers_may_stand_for_names(tmp_path: Path):
    named = open_source(str(class_folders(tmp_path / "a", ("cat", "dog"))))
    listed = tmp_path / "a" / "list.txt"
    listed.write_text("cat/0.png 0\ndog/1.png 1\n")
    check_sources(named, open_source(str(listed)))


@pytest.mark.parametrize("augment", ["crop", "none"])
def test_nothing_readable_to_learn_from_is_said(context: EvaluationContext, augment: str):
    for image in Path(context.train.name).glob("*/*.png"):
        image.write_bytes(b"")
    config = LinearConfig(epochs=2, augment=augment)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="none of its images can be read"):
        run_linear(context, config, CONSOLE)


def test_features_that_are_not_finite_are_said(context: EvaluationContext):
    with torch.no_grad():
        next(context.backbone.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="are not finite: the network diverged"):
        run_knn(context, KnnConfig(), CONSOLE)


def test_images_that_could_not_be_read_are_tried_again(context: EvaluationContext, tmp_path: Path):
    kept = replace(context, out=tmp_path / "out", notes=[])
    bad = Path(context.train.name) / "grey" / "2.png"
    content = bad.read_bytes()
    bad.chmod(0o644)
    # The source, and so the fingerprint, is that from before.
    bad.write_bytes(content[: len(content) // 2])
    assert len(plain_features(kept, "train", CONSOLE).values) == 17
    bad.write_bytes(content)
    assert len(plain_features(replace(kept, kept={}), "train", CONSOLE).values) == 18


def test_transfer_brings_the_settings_of_the_data_set_and_options_overrule_them():
    papers = TransferConfig("places205").linear()
    assert (papers.epochs, papers.lr, papers.weight_decay) == (28, "auto", 1e-5)
    rates = [papers.factor(epoch) for epoch in (0, 6, 7, 13, 14, 20, 21, 27)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rel=1e-9)
    assert TransferConfig("cub200").linear() == LinearConfig()
    assert TransferConfig("places205", lr=1.0, weight_decay=0.0).linear() == LinearConfig(
        epochs=28, lr=1.0, drops=(0.25, 0.5, 0.75)
    )


def test_transfer_is_linear_evaluation_by_another_name(context: EvaluationContext):
    settings = {"epochs": 2, "augment": "none", "lr": 0.1}
    linear = run_linear(context, LinearConfig(**settings), CONSOLE)
    transfer = run_transfer(context, TransferConfig("cub200", **settings), CONSOLE)
    assert [r.value for r in transfer] == [r.value for r in linear]
    assert {r.protocol for r in transfer} == {"transfer"}


def test_features_are_extracted_once_and_again_for_other_weights(
    context: EvaluationContext, tmp_path: Path
):
    kept = replace(context, out=tmp_path / "out")
    first = plain_features(kept, "train", CONSOLE)
    (file,) = (tmp_path / "out" / "features").iterdir()
    written = file.stat().st_mtime_ns
    again = plain_features(replace(kept, kept={}), "train", CONSOLE)
    assert torch.equal(first.values, again.values)
    assert again.labels is not None
    assert torch.equal(again.labels, torch.from_numpy(context.train.labels))
    assert file.stat().st_mtime_ns == written
    other = open_model(context.checkpoint, fresh=True, seed=1).backbone
    third = plain_features(replace(kept, backbone=other, kept={}), "train", CONSOLE)
    assert not torch.equal(first.values, third.values)
    assert len(list((tmp_path / "out" / "features").iterdir())) == 2


def test_random_weights_of_a_file_are_refused_before_it_is_read(tmp_path: Path):
    with pytest.raises(UserError, match="random weights need a checkpoint"):
        open_model(f"resnet18:{tmp_path / 'none.pth'}", fresh=True, seed=0)


def _rewritten(
    file: Path, change: Callable[[dict[str, torch.Tensor]], object], *, checksum: bool = True
) -> None:
    with safe_open(file, framework="pt") as opened:
        about = opened.metadata() if checksum else None
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, about)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "empty": lambda file: file.write_bytes(b""),
    "a bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\x7f"),
    "not finite": lambda file: _rewritten(file, lambda t: t["values"].fill_(torch.nan)),
    "one value": lambda file: _rewritten(file, lambda t: t["values"][3].add_(1)),
    "two images swapped": lambda file: _rewritten(
        file, lambda t: t.update(values=t["values"][torch.arange(len(t["values"])).roll(1)])
    ),
    "another shape": lambda file: _rewritten(
        file, lambda t: t.update(values=t["values"][:, :-1].contiguous())
    ),
    "another type": lambda file: _rewritten(file, lambda t: t.update(values=t["values"].double())),
    "a name less": lambda file: _rewritten(file, lambda t: t.pop("positions")),
    "larger than any": lambda file: os.truncate(file, 100 * 2**30),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_features_that_are_not_what_was_written_are_an_error(
    damage: str, context: EvaluationContext, tmp_path: Path
):
    kept = replace(context, out=tmp_path)
    first = plain_features(kept, "train", CONSOLE)
    (file,) = (tmp_path / "features").iterdir()
    DAMAGED[damage](file)
    with pytest.raises(UserError, match=f"{file.name} .*does not hold the features .*: remove it"):
        plain_features(replace(kept, kept={}), "train", CONSOLE)
    file.rmdir() if file.is_dir() else file.unlink()
    again = plain_features(replace(kept, kept={}), "train", CONSOLE)
    assert torch.equal(first.values, again.values)


def test_features_without_a_checksum_are_extracted_again(
    context: EvaluationContext, tmp_path: Path
):
    kept = replace(context, out=tmp_path)
    first = plain_features(kept, "train", CONSOLE)
    (file,) = (tmp_path / "features").iterdir()
    _rewritten(file, lambda t: t["values"].fill_(torch.nan), checksum=False)
    again = plain_features(replace(kept, kept={}), "train", CONSOLE)
    assert torch.equal(first.values, again.values)


def test_a_class_without_a_readable_image_is_an_error(context: EvaluationContext):
    labels = context.test.labels
    assert labels is not None
    of_grey = np.flatnonzero(labels == 1)
    context.note_unreadable(context.test, of_grey[1:])
    assert context.notes[-1].startswith(f"unreadable images, left out: {len(of_grey) - 1}: ")
    with pytest.raises(UserError, match=f"none of the {len(of_grey)} images of class grey can be"):
        context.note_unreadable(context.test, of_grey)


def test_results_say_what_the_images_are_and_how_long_the_training_was(
    teacher: Path, tmp_path: Path
):
    photos = class_folders(tmp_path / "photos", ("black", "white"))
    for name in ("3.png", "4.png", "5.png"):
        (photos / "black" / name).unlink()
    about: dict[str, Any] = {
        "checkpoint": str(teacher), "train": str(photos), "test": str(photos),
    }  # fmt: skip
    config = KnnConfig(k=1)
    request = Request(**about, out=str(tmp_path / "out"))
    (knn,) = evaluate_checkpoint("knn", request, config, CONSOLE).results
    fingerprint = open_source(str(photos)).fingerprint
    assert knn.data == {
        "num_classes": 2, "classes": ["black", "white"], "train_images": 9, "test_images": 9,
        "train_fingerprint": fingerprint, "test_fingerprint": fingerprint,
        "largest_class": 66.6667,
    }  # fmt: skip
    meta = json.loads((teacher / "stage1.json").read_text())
    batch = min(meta["recipe"]["batch_size"], meta["data"]["images"])
    assert knn.training == {
        "stage": 1, "steps": meta["steps"], "images_seen": meta["steps"] * batch,
        "precision": "float", "run": json.loads((teacher / "run.json").read_text())["run"],
    }  # fmt: skip
    assert read_results(tmp_path / "out" / "results.jsonl") == [knn]
    request = Request(**about, random_init=True)
    (fresh,) = evaluate_checkpoint("knn", request, config, CONSOLE).results
    assert fresh.training is None
    linear = TransferConfig(epochs=1, augment="none")
    transfer = evaluate_checkpoint("transfer", Request(**about), linear, CONSOLE).results
    assert transfer[0].data == knn.data


def test_more_class_names_than_a_line_holds_are_counted(context: EvaluationContext):
    names = tuple(f"class {i}" for i in range(1001))

    class Many:
        classes, name, fingerprint = names, "many", "x"
        labels = np.zeros(3, dtype=np.int64)

        def __len__(self) -> int:
            return 3

    many: Any = Many()
    data = replace(context, train=many, test=many).data
    assert "classes" not in data
    assert (data["num_classes"], data["largest_class"]) == (1001, 100.0)
