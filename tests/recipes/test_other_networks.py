"""BNext and the expert network in use: two stages with the monitor of their layers, a detector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from burn.backbones.bnext import BNext
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.evaluation.configs import DetectorConfig
from burn.evaluation.detection.detector import Detector, Images
from burn.layers import BinaryConv2d
from burn.recipes.schema import Recipe

NAMES = ("bnext_t", "expert_bnn")


def recipe_of(name: str) -> Recipe:
    backbone = BackboneConfig(name=name, width=0.125, stage_strides=(2, 2, 2, 1))
    return replace(tiny.student_recipe(), batch_size=16, backbone=backbone)


@pytest.mark.parametrize("name", NAMES)
def test_two_stages_and_the_monitor_of_binary_layers(name: str, teacher: Path, tmp_path: Path):
    recipe = recipe_of(name)
    summaries = tiny.train(recipe, tmp_path / "run", teacher, max_steps=2)
    assert [summary.steps for summary in summaries] == [2, 2]
    network = build_backbone(recipe.backbone, Precision.BINARY)
    layers = {n for n, m in network.named_modules() if isinstance(m, BinaryConv2d)}
    for stage in ("stage1", "stage2"):
        rows = tiny.rows_by("layer", tmp_path / "run" / stage / "layers.csv")
        assert set(rows) == layers
        for numbers in rows.values():
            assert 0 < numbers[-1]["activation_balance"] < 1


@pytest.mark.parametrize("name", NAMES)
def test_a_detector(name: str):
    torch.manual_seed(0)
    config = BackboneConfig(name=name, width=0.125)
    network = build_backbone(config, Precision.BINARY)
    sizes = DetectorConfig(anchors=(16, 32), proposals=20, rois=16, roi_size=3)
    detector = Detector(network, 3, sizes, bfloat16=False).train()
    images = Images(torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8), [(64, 96)] * 2)
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.tensor([3])}
    _, losses = detector(images, [target, target])
    torch.stack(list(losses.values())).sum().backward()
    assert not [label for label, p in detector.named_parameters() if p.grad is None]
    with torch.no_grad():
        detections, _ = detector.eval()(images)
    assert len(detections) == 2


def test_training_tells_a_network_its_progress(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: list[float] = []
    monkeypatch.setattr(BNext, "at_progress", lambda self, progress: told.append(progress))
    recipe = replace(recipe_of("bnext_t"), stages=1)
    tiny.train(recipe, tmp_path / "run", teacher, max_steps=4)
    assert told == [0, 0.25, 0.5, 0.75]
