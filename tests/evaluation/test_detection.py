"""Detection end to end on digit scenes, and each of its steps against what it must be."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.errors import Interrupted, UserError
from burn.core.results import Result
from burn.core.types import Precision
from burn.data.formats.voc import Annotation, Voc, open_voc
from burn.data.view_config import ViewConfig
from burn.evaluation.configs import DetectionConfig, DetectorConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.detection import protocol as detection
from burn.evaluation.detection.detector import Detector, Images, region_losses
from burn.evaluation.detection.protocol import (
    detect,
    precise_batch_norm,
    resize_and_flip,
    run_detection,
)
from burn.layers import BinaryConv2d
from networks import shallow_reactnet, tiny_reactnet
from warm import CONTEXT

CONSOLE = Console(file=io.StringIO())
TINY = DetectionConfig(
    iterations=4, batch_size=2, lr=0.01, warmup=2, train_sides=(64, 96), test_side=64,
    precise_bn=2,
    detector=DetectorConfig(anchors=(16, 32), proposals=20, rois=16, roi_size=3),
)  # fmt: skip


def context_in(out: Path, scenes: Path) -> EvaluationContext:
    train, test = (open_voc(str(scenes), part) for part in ("train", "test"))
    return EvaluationContext(
        "tiny", "none", shallow_reactnet(), ViewConfig(), train, test, 0, 0, out
    )


@pytest.fixture
def context(scenes: Path, tmp_path: Path) -> EvaluationContext:
    return context_in(tmp_path, scenes)


@pytest.fixture(scope="module")
def trained(
    scenes: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EvaluationContext, list[Result]]:
    """A whole run without interruption, which its tests leave as it is."""
    context = context_in(tmp_path_factory.mktemp("trained"), scenes)
    return context, run_detection(context, TINY, CONSOLE)


# --- Settings. ---


@pytest.mark.parametrize(
    ("iteration", "rate"),
    [(0, 2e-5), (50, 0.5 * (0.02 + 2e-5)), (100, 0.02), (17999, 0.02), (18000, 0.002),
     (21999, 0.002), (22000, 0.0002), (23999, 0.0002)],
)  # fmt: skip
def test_learning_rate_of_mocos_configuration(iteration: int, rate: float):
    assert DetectionConfig().learning_rate(iteration) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"iterations": 0}, {"batch_size": 0}, {"lr": 0.0}, {"drops": (1.5,)}, {"warmup": -1},
        {"train_sides": ()}, {"test_side": 8}, {"weight_decay": 2.0}, {"precise_bn": -1},
        {"detector": DetectorConfig(anchors=())}, {"detector": DetectorConfig(rois=0)},
        {"detector": DetectorConfig(score_threshold=1.0)},
    ],
)  # fmt: skip
def test_values_out_of_range(settings: dict):
    with pytest.raises(UserError):
        DetectionConfig(**settings).check()


# --- Images and boxes. ---


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("side", [30, 60, 120])
def test_boxes_move_with_their_pixels(side: int, flip: bool):
    image = torch.zeros(3, 60, 90, dtype=torch.uint8)
    image[:, 12:24, 30:66] = 255
    annotation = Annotation(
        np.array([[30, 12, 66, 24]], np.float32), np.array([0]), np.array([False])
    )
    pixels, boxes = resize_and_flip(image, annotation, side, 1000, flip=flip)
    assert pixels.shape == (3, side, side * 3 // 2)
    rows, columns = torch.nonzero(pixels[0] > 127, as_tuple=True)
    found = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
    assert boxes[0].tolist() == found


def test_a_long_image_is_held_to_the_longest_side():
    empty = Annotation(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool))
    image = torch.zeros(3, 50, 200, dtype=torch.uint8)
    pixels, boxes = resize_and_flip(image, empty, 100, 300, flip=False)
    assert pixels.shape == (3, 75, 300)
    assert boxes.shape == (0, 4)


class _Finds(nn.Module):
    """A detector that finds the same relative box in every image."""

    def forward(self, images: Images) -> tuple[list[dict[str, torch.Tensor]], dict]:
        ((height, width),) = images.sizes
        box = torch.tensor([[0.25 * width, 0.5 * height, 0.5 * width, float(height)]])
        return [{"boxes": box, "scores": torch.ones(1), "labels": torch.ones(1).long()}], {}


def test_detections_are_in_the_pixels_of_the_image_as_it_was(context: EvaluationContext):
    source = context.test
    assert isinstance(source, Voc)
    found = detect(_Finds(), source, context, TINY, CONSOLE)  # type: ignore[arg-type]
    assert len(found) == len(source)
    for index, each in found.items():
        height, width = source.read(index).shape[1:]
        expected = [[0.25 * width, 0.5 * height, 0.5 * width, height]]
        assert each.boxes == pytest.approx(np.array(expected), rel=1e-5)
        assert each.labels.tolist() == [0]


def test_the_test_has_the_anchors_of_training(context: EvaluationContext):
    """torchvision divides the image's side by that of its map, so both must be multiples of 32."""
    seen: list[Images] = []

    class Finds(_Finds):
        def forward(self, images: Images) -> tuple[list[dict[str, torch.Tensor]], dict]:
            seen.append(images)
            return super().forward(images)

    source = context.test
    assert isinstance(source, Voc)
    config = replace(TINY, test_side=72)
    detect(Finds(), source, context, config, CONSOLE)  # type: ignore[arg-type]
    assert {min(images.sizes[0]) for images in seen} == {72}
    assert all(side % 32 == 0 for images in seen for side in images.pixels.shape[2:])


# --- The network. ---


@pytest.mark.parametrize("name", ["reactnet_a", "reactnet_m"])
def test_the_last_stage_evaluates_regions_of_the_trunks_map(name: str):
    """A region of the whole map, cut out cell by cell, gives the backbone's own last map."""
    backbone = tiny_reactnet(name=name).eval()
    config = DetectorConfig(anchors=(16,), roi_size=4)
    detector = Detector(backbone, 3, config, bfloat16=False).eval()
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    whole = [torch.tensor([[0.0, 0.0, 64.0, 64.0]])]
    with torch.no_grad():
        trunk = backbone.trunk(images)
        assert trunk.shape[-1] == 4
        regions = detector.regions.box_roi_pool({"0": trunk}, whole, [(64, 64)])  # type: ignore[operator]
        # one sample in the middle of each cell: bilinear weights of exactly 1
        torch.testing.assert_close(regions, trunk, rtol=0, atol=0)
        features = detector.regions.box_head(regions)  # type: ignore[operator]
        norm = detector.regions.box_head.norm  # type: ignore[union-attr]
        expected = norm(backbone.forward_features(images)).mean(dim=(2, 3))  # type: ignore[operator]
    torch.testing.assert_close(features, expected)


def test_losses_of_regions_are_detectron2s():
    """Cross-entropy over all regions; |difference| of the own class's box, over all regions."""
    torch.manual_seed(0)
    scores, boxes, targets = torch.randn(5, 4), torch.randn(5, 16), torch.randn(5, 4)
    labels = torch.tensor([0, 3, 1, 0, 3])
    classes, box = region_losses(scores, boxes, labels, targets)
    expected = sum(
        abs(float(boxes[row, 4 * label + side]) - float(targets[row, side]))
        for row, label in enumerate(labels.tolist()) if label
        for side in range(4)
    ) / 5  # fmt: skip
    assert float(box) == pytest.approx(expected, rel=1e-5)
    log = scores.log_softmax(dim=1)
    assert float(classes) == pytest.approx(-float(log[range(5), labels].mean()), rel=1e-5)
    background = region_losses(scores, boxes, torch.zeros_like(labels), targets)
    assert background[1] == 0


def test_losses_of_proposals_are_over_256_anchors_an_image():
    """Where fewer can be sampled, as at these two images of three anchors each, too."""
    detector = Detector(tiny_reactnet(), 2, TINY.detector, bfloat16=False)
    labels = [torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.0, 1.0, 0.0])]  # -1: not used
    torch.manual_seed(0)
    objectness, deltas = torch.randn(6, 1), torch.randn(6, 4)
    aims = [torch.randn(3, 4), torch.randn(3, 4)]
    scores, boxes = detector.proposals.compute_loss(objectness, deltas, labels, aims)
    whole = torch.cat(labels)
    used, positive = whole >= 0, whole == 1
    expected = (deltas - torch.cat(aims))[positive].abs().sum() / 512
    assert torch.allclose(boxes, expected)
    logits = objectness.flatten()[used]
    each = nn.functional.softplus(-logits) * whole[used] + nn.functional.softplus(logits) * (
        1 - whole[used]
    )
    assert torch.allclose(scores, each.sum() / 512)


def test_every_parameter_is_trained(context: EvaluationContext):
    detector = Detector(tiny_reactnet(), 10, TINY.detector, bfloat16=False).train()
    images = Images(torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8), [(64, 96)] * 2)
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.tensor([3])}
    _, losses = detector(images, [target, target])
    assert len(losses) == 4
    torch.stack(list(losses.values())).sum().backward()
    without = [name for name, p in detector.named_parameters() if p.grad is None]
    assert not without


def test_an_image_without_objects_can_be_learned_from():
    detector = Detector(tiny_reactnet(), 2, TINY.detector, bfloat16=False).train()
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    _, losses = detector(Images(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), [(64, 64)]), [empty])
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_a_backbone_without_stages_is_refused(context: EvaluationContext):
    vit = build_backbone(BackboneConfig(name="test_vit"), Precision.FLOAT)
    with pytest.raises(UserError, match="test_vit cannot be cut"):
        run_detection(replace(context, backbone=vit), TINY, CONSOLE)


def test_precise_bn_is_the_mean_of_the_batches_statistics():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).double()
    weights = [p.clone() for p in module.parameters()]
    batches = [(torch.rand(5, 3, 2, 2).double(),) for _ in range(3)]
    precise_batch_norm(module, batches)
    with torch.no_grad():
        inputs = [module[0](batch).transpose(0, 1).flatten(1) for (batch,) in batches]
    mean = torch.stack([x.mean(1) for x in inputs]).mean(0)
    variance = torch.stack([x.var(1) for x in inputs]).mean(0)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm2d)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)
    assert norm.momentum == 0.1
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))


# --- The protocol. ---


def test_from_scenes_to_numbers_pictures_and_a_binary_detector(
    trained: tuple[EvaluationContext, list[Result]],
):
    context, results = trained
    names = [r.metric for r in results]
    assert names[:3] == ["AP", "AP50", "AP75"]
    assert set(names[3:]) <= {f"AP {digit}" for digit in range(10)}
    assert all(0 <= r.value <= 100 for r in results)
    out = context.out
    assert out is not None
    assert {p.name for p in out.iterdir()} == {
        "detector.safetensors", "detections.json", "detections.png",
    }  # fmt: skip
    with Image.open(out / "detections.png") as picture:
        assert picture.size[0] > 600
    found = json.loads((out / "detections.json").read_text())
    assert len(found) == len(context.test)

    weights = load_file(out / "detector.safetensors")
    backbone = shallow_reactnet()
    start = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    prefix = "backbone."
    backbone.load_state_dict(
        {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
    )
    moved = [n for n, t in backbone.named_parameters() if not torch.equal(t, start[n])]
    assert len(moved) == len(list(backbone.parameters())), "trunk and last stage are trained"
    for conv in (m for m in backbone.modules() if isinstance(m, BinaryConv2d)):
        assert conv.precision == Precision.BINARY
        assert len(conv.effective_weight()[0].abs().unique()) == 1
    assert torch.equal(context.backbone.state_dict()["stem.weight"], start["stem.weight"]), (
        "the subject itself is left alone"
    )


@pytest.mark.parametrize(
    ("number", "during", "after"),
    [
        (signal.SIGINT, 2, 2),
        pytest.param(signal.SIGTERM, 2, 2, marks=pytest.mark.long),
        (signal.SIGINT, 5, 4),  # in precise BN
    ],
)
def test_an_interrupted_training_goes_on_to_the_same_bits(
    number: signal.Signals,
    during: int,
    after: int,
    context: EvaluationContext,
    trained: tuple[EvaluationContext, list[Result]],
    monkeypatch: pytest.MonkeyPatch,
):
    assert context.out is not None
    whole, results = trained
    expected = [r.value for r in results]
    to, calls = detection._Batch.to, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == during:  # within an iteration, which is finished first
            signal.raise_signal(number)
        return to(*arguments)

    monkeypatch.setattr(detection._Batch, "to", interrupted)
    with pytest.raises(Interrupted, match=f"after {after} of 4 iterations") as stopped:
        run_detection(context, TINY, CONSOLE)
    assert stopped.value.number == number
    assert (context.out / "detection-resume.ckpt").is_file()
    with pytest.raises(UserError, match="from another training: remove it"):
        run_detection(context, replace(TINY, lr=0.02), CONSOLE)
    assert [r.value for r in run_detection(context, TINY, CONSOLE)] == expected
    assert len(calls) == during + (4 - after) + 2, "the other iterations and precise BN"
    assert not (context.out / "detection-resume.ckpt").exists()
    first, second = (load_file(path / "detector.safetensors") for path in (whole.out, context.out))  # type: ignore[operator]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_trained_detector_is_tested_again_without_training(
    context: EvaluationContext,
    trained: tuple[EvaluationContext, list[Result]],
    monkeypatch: pytest.MonkeyPatch,
):
    whole, first = trained
    assert context.out is not None
    assert whole.out is not None
    shutil.copytree(whole.out, context.out, dirs_exist_ok=True)
    monkeypatch.setattr(detection, "_train", lambda *_: pytest.fail("trained again"))
    again = run_detection(context, TINY, CONSOLE)
    assert [r.value for r in again] == [r.value for r in first]
    assert again[0].seconds > 0.5 * first[0].seconds, "the training's time is counted"
    with pytest.raises(UserError, match="from another training: give another --out"):
        run_detection(replace(context, seed=1), TINY, CONSOLE)
    path = context.out / "detector.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"detector\.safetensors is damaged"):
        run_detection(context, TINY, CONSOLE)


def test_a_damaged_resume_file_is_named(context: EvaluationContext):
    assert context.out is not None
    (context.out / "detection-resume.ckpt").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match=r"detection-resume\.ckpt is damaged"):
        run_detection(context, TINY, CONSOLE)


def test_out_is_needed_and_divergence_is_said(context: EvaluationContext):
    with pytest.raises(UserError, match="give --out"):
        run_detection(replace(context, out=None), TINY, CONSOLE)
    with pytest.raises(UserError, match="lower --lr"):
        run_detection(context, replace(TINY, lr=1e6, warmup=0, iterations=20), CONSOLE)


def test_unreadable_images_are_left_out_and_named(
    context: EvaluationContext, scenes: Path, tmp_path: Path
):
    copy = tmp_path / "scenes"
    shutil.copytree(scenes, copy)
    for name in ("test", "train"):
        first = (copy / "ImageSets" / "Main" / f"{name}.txt").read_text().split()[0]
        (image,) = (copy / "JPEGImages").glob(f"{first}.*")
        image.write_bytes(image.read_bytes()[:50])
    train, test = (open_voc(str(copy), part) for part in ("train", "test"))
    broken = replace(context, train=train, test=test, out=tmp_path / "out", notes=[])
    few = Voc("few", train._items[:4], train.classes, [])
    assert run_detection(replace(broken, train=few), TINY, CONSOLE)
    named = sorted(note.split("JPEGImages")[1][1:6] for note in broken.notes)
    assert all(note.startswith("unreadable images, left out: 1:") for note in broken.notes)
    assert len(named) == 2, "one that was learned from and one that was evaluated on"


# --- Several processes. ---


def _context_of(rank: int, port: int, scenes: str, out: Path) -> EvaluationContext:
    """That of one of two processes, which this one becomes."""
    os.environ |= {
        "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    train, test = (open_voc(scenes, part) for part in ("train", "test"))
    return EvaluationContext("t", "none", shallow_reactnet(), ViewConfig(), train, test, 0, 0, out)


def _rank(rank: int, port: int, scenes: str, out: Path) -> None:
    context = _context_of(rank, port, scenes, out)
    seen = []
    original = Detector.forward

    def forward(self: Detector, images: Images, targets: object = None) -> object:
        seen.append(len(images.sizes))
        return original(self, images, targets)  # type: ignore[arg-type]

    Detector.forward = forward  # type: ignore[method-assign]
    kept = []
    train_original = detection._train

    def train_and_keep(detector: Detector, *rest: object) -> float:
        seconds = train_original(detector, *rest)  # type: ignore[arg-type]
        kept.append({n: p.detach().clone() for n, p in detector.named_parameters()})
        return seconds

    detection._train = train_and_keep
    results = run_detection(context, replace(TINY, batch_size=4, precise_bn=0), CONSOLE)
    torch.save({"weights": kept[0], "seen": seen, "results": len(results)}, out / f"{rank}.pt")


def _in_two(target: Callable[..., None], *arguments: object) -> None:
    """Run target(rank, port, *arguments) in two processes, to their end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [CONTEXT.Process(target=target, args=(rank, port, *arguments)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(timeout=120)
    finally:
        for process in ranks:
            process.kill()  # nothing where it has ended
    assert [process.exitcode for process in ranks] == [0, 0]


def test_two_processes_share_a_batch_and_agree(scenes: Path, tmp_path: Path):
    _in_two(_rank, str(scenes), tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name])
    assert first["seen"][:4] == second["seen"] == [2] * 4
    assert first["results"] > 0
    assert second["results"] == 0, "one process reports"


_BATCHES_BEFORE = {"precise BN": TINY.iterations}


def _troubled_rank(rank: int, port: int, scenes: str, out: Path, trouble: str) -> None:
    """The second process alone gets a signal, or a loss that is not finite."""
    context = _context_of(rank, port, scenes, out)
    if rank and trouble == "not finite":
        original, seen = Detector.forward, []

        def forward(self: Detector, *arguments: Any) -> Any:
            found, losses = original(self, *arguments)
            seen.append(1)
            factor = torch.inf if len(seen) == 2 else 1
            return found, {name: factor * loss for name, loss in losses.items()}

        Detector.forward = forward  # type: ignore[method-assign]
    elif rank:
        to, calls, before = detection._Batch.to, [], _BATCHES_BEFORE.get(trouble, 1)

        def interrupted(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == before + 1:
                signal.raise_signal(signal.SIGTERM)
            return to(*arguments)

        detection._Batch.to = interrupted  # type: ignore[method-assign]
    ended: UserError | None = None
    try:
        run_detection(context, replace(TINY, batch_size=4), CONSOLE)
    except UserError as error:
        ended = error
    number = ended.number if isinstance(ended, Interrupted) else 0
    told = {"kind": type(ended).__name__, "message": str(ended), "number": number}
    (out / f"{rank}.json").write_text(json.dumps(told))


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "kinds", "message"),
    [
        ("signal", ("Interrupted",) * 2, "interrupted after 2 of 4 iterations, kept"),
        ("precise BN", ("Interrupted",) * 2, "interrupted after 4 of 4 iterations, kept"),
        ("not finite", ("UserError", "ReportedByMain"), "diverged at iteration 1: lower --lr"),
    ],
)
def test_what_stops_one_process_stops_both_at_the_same_iteration(
    trouble: str, kinds: tuple[str, str], message: str, scenes: Path, tmp_path: Path
):
    """Otherwise the other one waits for its gradients, in NCCL for half an hour."""
    _in_two(_troubled_rank, str(scenes), tmp_path, trouble)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert tuple(one["kind"] for one in told) == kinds
    assert all(message in one["message"] for one in told)
    number = 0 if trouble == "not finite" else signal.SIGTERM
    assert [one["number"] for one in told] == [number] * 2
