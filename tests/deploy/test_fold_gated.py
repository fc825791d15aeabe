"""BNext and the expert network as packed files: each layer, the whole network, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from samples import save as save_checkpoint
from torch import nn

import burn_engine
from burn.backbones.base import Backbone
from burn.backbones.bnext import BNext
from burn.backbones.config import BackboneConfig
from burn.backbones.expert import ExpertNet
from burn.backbones.registry import build_backbone
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.costs.compute import count
from burn.deploy.fold_gated import fold_gated, round_rows, with_rounded_gates
from burn.deploy.layout import Array, file_bytes, program_of, tensors_of
from burn.deploy.onnx import export_onnx
from burn.deploy.pack import encode, pack
from burn.deploy.running import PackedForward
from burn.layers.gate import ChannelGate
from burn_engine import reference
from burn_engine.format import GatedConvolution, Matrix, Program, parse_program
from networks import randomize

WIDTHS = {"bnext_t": 0.25, "bnext_s": 0.25, "expert_bnn": 0.125}
SIZE = 40  # odd maps behind the strides


def network(name: str, precision: Precision = Precision.BINARY) -> Backbone:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name=name, width=WIDTHS[name]), precision)
    randomize(backbone)
    for module in backbone.modules():  # randomize leaves these as they start
        if isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, -0.5, 0.5)
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():  # signs behind a negative gain are the opposite ones
                module.weight[::3] *= -1
    return backbone.eval()


def folded(backbone: Backbone) -> tuple[Program, bytes]:
    layers = fold_gated(backbone)
    program = program_of(layers, "pool", (), (SIZE, SIZE), {})
    data = save(encode(layers, "it"), metadata={"bnn": json.dumps(program)})
    assert len(data) == file_bytes(program, tensors_of(layers))
    assert program["format"] == (4 if isinstance(backbone, ExpertNet) else 2)
    return parse_program(data), data


def maps_of(backbone: Backbone, images: torch.Tensor) -> dict[str, Array]:
    """The output of each packed layer, as PyTorch computes it, by the layer's name."""
    found: dict[str, Array] = {}

    def keep(name: str, module: Any, after: nn.Module | None = None) -> None:
        def hook(_: nn.Module, __: Any, output: torch.Tensor) -> None:
            output = output if after is None else after(output)
            found[name] = output.permute(0, 2, 3, 1).numpy()

        module.register_forward_hook(hook)

    if isinstance(backbone, BNext):
        keep("stem", backbone.stem_norm)
        for i, block in enumerate(backbone.blocks):
            last = backbone.activation if i == len(backbone.blocks) - 1 else None
            keep(f"blocks.{i}.spatial", block.spatial)
            keep(f"blocks.{i}.pointwise", block, last)
    assert isinstance(backbone, BNext | ExpertNet)
    if isinstance(backbone, ExpertNet):
        keep("stem", backbone.stem)
        for i, stage in enumerate(backbone.stages):
            for j, block in enumerate(stage):  # type: ignore[arg-type,var-annotated]
                keep(f"stages.{i}.{j}.2", block)
    with torch.no_grad():
        found["pool"] = backbone(images).numpy()
    return found


@pytest.mark.parametrize("name", WIDTHS)
def test_every_map_is_the_networks(name: str):
    backbone = network(name)
    program, _ = folded(backbone)
    images = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    expected = maps_of(backbone, images)
    x: Any = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
    compared = 0
    for layer in program.layers:
        x = reference.run_layer(layer, x)
        if layer.name not in expected:
            continue
        compared += 1
        found, wanted = x.astype(np.float64), expected[layer.name].astype(np.float64)
        each = (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted)
        # A sign that rounding turns changes a few values of a map, a wrong constant all of them. In
        # the expert network a BN, which rounds, comes before every sign.
        assert each > (0.999 if name == "expert_bnn" else 0.999999), layer.name
        x = expected[layer.name]  # so that turned signs do not accumulate
    assert compared == len(expected)


@pytest.mark.parametrize("name", WIDTHS)
def test_the_packed_file_gives_the_networks_features(name: str, tmp_path: Path):
    backbone = network(name)
    packed = pack(
        save_checkpoint(tmp_path / "n.safetensors", backbone, size=64), tmp_path / "n.bnn"
    )
    assert packed.cosine > 0.99
    assert packed.ratio > 4
    model = burn_engine.load(tmp_path / "n.bnn")
    assert model.num_features == backbone.num_features
    # What `burn info` cannot know is the text of the file's origin.
    cost = count(backbone, 64, 0)
    assert cost.packed_bytes is not None
    assert 0 <= packed.bytes - cost.packed_bytes <= 200
    assert cost.float_bytes == packed.float32_bytes
    if name != "bnext_s":  # a stage before binary weights is predicted what it will be
        assert count(network(name, Precision.BINARY_ACTIVATIONS), 64, 0) == cost


@pytest.mark.parametrize("name", WIDTHS)
def test_rounded_gates_are_those_of_the_file(name: str):
    # Gates whose rounding is coarse: one weight of each row is a thousand times as large.
    backbone = network(name).double()
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, ChannelGate):
                module.squeeze.weight[:, 0] *= 1000
    before = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    rounded = with_rounded_gates(backbone)
    assert all(torch.equal(tensor, before[key]) for key, tensor in backbone.state_dict().items())
    assert any(not torch.equal(tensor, before[key]) for key, tensor in rounded.state_dict().items())
    compared = 0
    for once, twice in zip(fold_gated(backbone), fold_gated(rounded), strict=True):
        if not isinstance(once, GatedConvolution):
            continue
        assert isinstance(twice, GatedConvolution)
        assert once.gate is not None
        assert twice.gate is not None
        for first, second in ((once.gate.down, twice.gate.down), (once.gate.up, twice.gate.up)):
            np.testing.assert_allclose(second.matrix().weight, first.matrix().weight, rtol=1e-6)
            np.testing.assert_allclose(second.matrix().bias, first.matrix().bias, atol=1e-9)
            compared += 1
    assert compared > 20
    plain = build_backbone(BackboneConfig(width=0.125), Precision.BINARY)
    assert with_rounded_gates(plain) is plain


def test_gates_that_rounding_changes_are_said_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """One weight of each row is so large that the others are lost; its unit is never on."""
    backbone = network("bnext_t")
    gates = [module for module in backbone.modules() if isinstance(module, ChannelGate)]
    gates = [gate for gate in gates if gate.squeeze.out_features > 1]
    with torch.no_grad():
        for gate in gates:
            gate.squeeze.bias[0] = -1e3
            gate.excite.weight *= 300
    for largest, status in ((1e8, 2), (1e6, 0)):
        with torch.no_grad():
            for gate in gates:
                gate.excite.weight[:, 0] = largest
        file = save_checkpoint(tmp_path / "n.safetensors", backbone, size=64)
        assert main(["pack", str(file), str(tmp_path / "n.bnn")]) == status
        assert (tmp_path / "n.bnn").exists() == (status == 0)
        said = capsys.readouterr()
        if status:
            with pytest.raises(UserError, match=r"only to cosine 0\.9"):
                PackedForward(backbone, 64, threads=1)
            assert "too unlike to be rounded to 16 bits" in said.err
        else:
            assert "least cosine of the features 1.0000" in said.out
            assert "are rounded to 16 bits: cosine to the features of before 0.9" in said.out


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_gate_that_diverged_is_refused(value: float):
    first, *others = fold_gated(network("bnext_t").double())[1:]
    assert isinstance(first, GatedConvolution)
    assert first.gate is not None
    matrix = first.gate.down.matrix()
    matrix.weight[0, 0] = value
    broken = replace(first, gate=replace(first.gate, down=round_rows(matrix)))
    with pytest.raises(UserError, match=r"gate\.down\.scale is too large for float32"):
        encode([broken, *others], "it")


def test_rows_are_rounded_to_multiples_of_the_stored_scale():
    weight = np.array([[1.0, -0.5, 1e-9], [0, 0, 0], [1e-45, -1e-44, 0], [3e4, -3e4, 1.0]])
    rounded = round_rows(Matrix(weight=weight, bias=np.zeros(4)))
    assert rounded.weight.dtype == np.int16
    assert np.abs(rounded.weight).max(axis=1).tolist() == [32_767, 0, 0, 32_767]
    stored = rounded.scale.astype(np.float32).astype(np.float64)
    error = np.abs(rounded.weight * stored[:, None] - weight).max(axis=1)
    assert (error <= np.maximum(stored, 1e-40) / 2 * 1.001).all()


@pytest.mark.parametrize("name", ["bnext_t", "expert_bnn"])
def test_other_precisions_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    backbone = network(name, Precision.BINARY_ACTIVATIONS)
    file = save_checkpoint(tmp_path / "n.safetensors", backbone, size=32)
    assert main(["pack", str(file), str(tmp_path / "n.bnn")]) == 2
    assert "its weights are not binary: finish stage 2" in capsys.readouterr().err
    assert not (tmp_path / "n.bnn").exists()
    assert main(["export", str(file), str(tmp_path / "n.onnx")]) == 2
    assert "its weights are not binary: finish stage 2" in capsys.readouterr().err
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["bnext_t", "expert_bnn"])
def test_onnx_runtime_gives_the_networks_features(name: str, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    file = save_checkpoint(tmp_path / "n.safetensors", network(name), size=SIZE)
    assert export_onnx(file, tmp_path / "n.onnx").cosine > 0.99
