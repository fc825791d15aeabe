"""ONNX files in ONNX Runtime against the network; every sign has its +1 at 0 there too."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from samples import NETWORKS, save

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.deploy import onnx as room
from burn.deploy.onnx import ExportedOnnx, export_onnx
from burn.deploy.shared import agree, cosines
from burn_engine.format import BinaryConvolution
from networks import randomize, tiny_reactnet

FEW = (1, 1, 1, 1, 1)  # blocks of each stage


def network(precision: Precision = Precision.BINARY, **settings: Any) -> Backbone:
    return randomize(tiny_reactnet(precision, **settings)).eval()


def session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def assert_same_features(file: Path, backbone: Backbone, size: int) -> None:
    """On two sizes of batches that neither the export nor its own check has seen."""
    opened = session(file)
    images = torch.rand(8, 3, size, size)
    with torch.no_grad():
        expected = backbone(images).numpy()
    for count in (3, 8):
        (found,) = opened.run(["features"], {"images": images[:count].numpy()})
        assert agree(cosines(expected[:count], np.asarray(found)))


@dataclass(frozen=True)
class Made:
    """An export.

    Attributes:
        backbone: The network.
        size: Side of its images in pixels.
        done: What was returned.
        file: The file.
        there: Names of all files in its folder after the export.
    """

    backbone: Backbone
    size: int
    done: ExportedOnnx
    file: Path
    there: list[str]


PLAIN = "9 channels, fewer blocks"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Exports of networks, each made once."""

    @functools.cache
    def make(name: str) -> Made:
        settings, size = NETWORKS[name]
        backbone, folder = network(**settings), tmp_path_factory.mktemp("onnx")
        file = save(folder / "n.safetensors", backbone, size=size)
        done = export_onnx(file, folder / "n.onnx")
        there = sorted(path.name for path in folder.iterdir())
        return Made(backbone, size, done, folder / "n.onnx", there)

    return make


@pytest.fixture
def plain(exported: Callable[[str], Made]) -> Made:
    return exported(PLAIN)


@pytest.mark.parametrize(
    "name", [pytest.param("all strides 2, odd maps", marks=pytest.mark.long), PLAIN]
)
def test_a_binary_network(name: str, exported: Callable[[str], Made]):
    made = exported(name)
    assert (made.done.image_size, made.done.outputs) == (made.size, ("features",))
    assert 0.999 < made.done.cosine <= made.done.median <= 1.000001
    assert made.done.bytes == made.file.stat().st_size
    assert made.there == ["n.json", "n.onnx", "n.safetensors"]
    assert_same_features(made.file, made.backbone, made.size)


def test_the_command_with_a_feature_layer_and_a_classifier(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """It says little."""
    backbone = network(feature_layer=True, depths=FEW, mean=(0.1, 0.5, 0.9), std=(0.5, 0.1, 0.3))
    heads = {"classifier.weight": torch.randn(5, 256), "classifier.bias": torch.randn(5)}
    other = {"head.weight": torch.ones(3, 256)}
    file = save(tmp_path / "n.safetensors", backbone, heads=heads | other)
    out = tmp_path / "n.onnx"
    assert main(["export", str(file), str(out)]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert len(lines) == 5
    assert lines[3].startswith("left out: head, ")
    assert lines[0] == f"{out.stat().st_size:,} bytes, images of 32 × 32 pixels"
    assert lines[-1] == f"-> {out}"
    assert_same_features(out, backbone, 32)
    images = torch.rand(2, 3, 32, 32)
    opened = session(out)
    assert [output.name for output in opened.get_outputs()] == ["features", "scores"]
    features, scores = opened.run(None, {"images": images.numpy()})
    expected = np.asarray(features) @ heads["classifier.weight"].numpy().T
    np.testing.assert_allclose(
        np.asarray(scores), expected + heads["classifier.bias"].numpy(), rtol=1e-4, atol=1e-4
    )


def test_a_classifier_of_other_features_is_left_out(
    plain: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    width = plain.backbone.num_features + 1
    misfit = {"classifier.weight": torch.ones(3, width), "classifier.bias": torch.ones(3)}
    file = save(tmp_path / "n.safetensors", plain.backbone, size=plain.size, heads=misfit)
    monkeypatch.setattr(room, "_export", lambda *given: shutil.copy(plain.file, given[3]))
    done = export_onnx(file, tmp_path / "n.onnx")
    assert (done.outputs, done.left_out) == (("features",), ("classifier",))


@pytest.mark.parametrize(
    "precision",
    [Precision.FLOAT, Precision.BINARY_ACTIVATIONS],
)
@pytest.mark.long
def test_the_stages_before(precision: Precision, tmp_path: Path):
    backbone = network(precision, depths=FEW)
    file = save(tmp_path / "n.safetensors", backbone)
    export_onnx(file, tmp_path / "n.onnx")
    assert_same_features(tmp_path / "n.onnx", backbone, 32)


@pytest.mark.long
def test_a_float_network(tmp_path: Path):
    backbone = randomize(build_backbone(BackboneConfig("resnet10t", 0.125), Precision.FLOAT)).eval()
    file = save(tmp_path / "n.safetensors", backbone)
    assert export_onnx(file, tmp_path / "n.onnx", image_size=48).image_size == 48
    assert_same_features(tmp_path / "n.onnx", backbone, 48)
    operations = {node.op_type for node in onnx.load(tmp_path / "n.onnx").graph.node}
    assert not operations & {"Transpose", "Cast", "Identity"}


def test_the_graph_is_as_by_hand_and_as_large_as_its_weights(plain: Made):
    graph = onnx.load(plain.file).graph
    operations = [node.op_type for node in graph.node]
    # A stem; seven blocks of two binary layers; three of them halve the map, five double the width.
    assert operations.count("Conv") == 15
    assert operations.count("Where") == operations.count("GreaterOrEqual") == 14
    assert operations.count("PRelu") == 14
    assert (operations.count("AveragePool"), operations.count("Concat")) == (3, 5)
    assert len(operations) == 82
    others = {"Conv", "Where", "GreaterOrEqual", "PRelu", "Add", "Concat", "AveragePool"}
    assert set(operations) == others | {"Sub", "ReduceMean"}
    float32 = 4 * sum(p.numel() for p in plain.backbone.parameters())
    assert 0.98 * float32 < plain.file.stat().st_size < 1.02 * float32
    assert str(Path(room.__file__).parent).encode() not in plain.file.read_bytes()
    batch, *image = graph.input[0].type.tensor_type.shape.dim
    assert batch.dim_param
    assert [d.dim_value for d in image] == [3, 35, 35]


def test_an_argument_of_zero_is_plus_one(tmp_path: Path):
    """Numbers that binary fractions hold: a sum that is exactly at the threshold."""
    layer = BinaryConvolution(
        name="x",
        stride=1,
        shortcut=True,
        weight=np.ones((1, 1, 1, 1), np.uint8),
        threshold=np.array([0.75]),
        multiplier=np.ones(1),
        bias=np.zeros(1),
        slope=np.ones(1),
    )
    convolution = torch.nn.Sequential(room._module(layer, signs=True)).eval()
    images = torch.tensor([0.75, 0.75 - 2**-20]).view(2, 1, 1, 1)
    room._export(convolution, images, ["features"], tmp_path / "n.onnx", "n")
    (found,) = session(tmp_path / "n.onnx").run(None, {"images": images.numpy()})
    assert (np.asarray(found) - images.numpy()).flatten().tolist() == [1, -1]


# --- Refusals: one line, and nothing written. ---


def refused(words: str, file: Path, out: Path, **options: Any) -> None:
    before = sorted(file.parent.rglob("*"))
    with pytest.raises(UserError, match=words) as caught:
        export_onnx(file, out, **options)
    assert "\n" not in str(caught.value)
    assert sorted(file.parent.rglob("*")) == before


def test_where_an_export_may_not_go(tmp_path: Path):
    file = save(tmp_path / "n.safetensors", network())
    (tmp_path / "there.onnx").touch()
    refused("already exists: remove it", file, tmp_path / "there.onnx")
    refused("there is no folder", file, tmp_path / "nowhere" / "n.onnx")
    refused(r"must end in \.onnx", file, tmp_path / "n.pb")
    refused(r"--image-size 7 is not in 8", file, tmp_path / "n.onnx", image_size=7)
    refused("no checkpoint at", tmp_path / "none", tmp_path / "n.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_packages_that_are_missing(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    file = save(tmp_path / "n.safetensors", network())
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", str(file), str(tmp_path / "n.onnx")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install onnx" in error


class Branching(torch.nn.Module):
    """What the exporter needs to know of an image, in the place of a network."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3)) if x.sum() > 0 else x.amax(dim=(2, 3))


def test_what_the_exporter_cannot_do_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "_Network", Branching)
    file = save(tmp_path / "n.safetensors", network(depths=FEW))
    refused("cannot be exported to ONNX: ", file, tmp_path / "n.onnx")


def test_a_full_disk_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device", str(given[3]))

    monkeypatch.setattr(room, "_export", full)
    file = save(tmp_path / "n.safetensors", network())
    refused(r"n\.onnx cannot be written: No space left on device$", file, tmp_path / "n.onnx")


def test_what_computes_something_else_is_not_kept(
    plain: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = network(**NETWORKS[PLAIN][0], seed=1)
    file = save(tmp_path / "n.safetensors", other, size=plain.size)
    monkeypatch.setattr(room, "_export", lambda *given: shutil.copy(plain.file, given[3]))
    refused("agrees with the network only to cosine ", file, tmp_path / "n.onnx")
