"""Latent weights in 8 bits: what is exact, what is rounded, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from burn.checkpoints.native import load_checkpoint, read_description, save_checkpoint
from burn.checkpoints.pretrained import in_eight_bits, in_full
from burn.core.errors import UserError


def weights() -> dict[str, torch.Tensor]:
    binary = torch.randn(6, 16, 3, 3) * torch.tensor([1e-6, 1e-3, 1, 1, 30, 0]).view(-1, 1, 1, 1)
    binary[2, 0, 0] = torch.tensor([0.0, -0.0, 1e-30])
    return {"stem": torch.randn(6, 3, 3, 3), "binary": binary, "gain": torch.randn(6)}


def test_signs_and_sizes_are_exact_and_the_rest_is_near():
    given = weights()
    kept = in_eight_bits(given)
    assert kept["binary"].dtype == torch.float8_e5m2
    found = in_full(kept, "it")
    assert found.keys() == given.keys()
    for name in ("stem", "gain"):
        assert torch.equal(found[name], given[name])
    expected, binary = given["binary"].double(), found["binary"].double()
    assert found["binary"].dtype == torch.float32
    assert torch.equal(torch.signbit(binary), torch.signbit(expected))
    for row in range(6):  # float32 rounds each of the 144 numbers
        size, of = (float(each[row].abs().mean()) for each in (binary, expected))
        assert size == pytest.approx(of, rel=1e-6, abs=0)
    usual = expected[2:5].abs() > 1e-4
    # Half a step of 2 bits is at most an eighth; the row's scale is near 1.
    off = (binary / expected - 1)[2:5][usual].abs()
    assert float(off.max()) < 0.14
    assert float(off.mean()) > 0.01  # they are rounded


def test_a_checkpoint_is_read_in_full(tmp_path: Path):
    given = weights()
    save_checkpoint(tmp_path / "n.safetensors", in_eight_bits(given), {})
    found = load_checkpoint(tmp_path / "n.safetensors").weights
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(
        given, torch.float32
    )
    assert torch.equal(torch.signbit(found["binary"]), torch.signbit(given["binary"]))
    shapes = read_description(tmp_path / "n.safetensors").shapes
    assert shapes == {name: tuple(tensor.shape) for name, tensor in given.items()}


@pytest.mark.parametrize(
    "size",
    [
        None, torch.ones(5), torch.ones(6, 1), torch.ones(6, dtype=torch.float64),
        torch.tensor([1, 1, 1, 1, 1, -1.0]), torch.full((6,), torch.nan),
    ],
)  # fmt: skip
def test_weights_without_their_sizes_are_damage(size: torch.Tensor | None):
    kept = in_eight_bits(weights())
    del kept["binary.size"]
    if size is not None:
        kept["binary.size"] = size
    with pytest.raises(UserError, match=r"^it is damaged: binary has 8 bits and no size of each"):
        in_full(kept, "it")


@pytest.mark.parametrize("shape", [(), (6,), (6, 4), (0,)])
def test_eight_bits_of_anything_but_a_convolution_are_damage(shape: tuple[int, ...]):
    kept = {"norm": torch.ones(shape).to(torch.float8_e5m2), "norm.size": torch.ones(shape[:1])}
    with pytest.raises(UserError, match=r"^it is damaged: norm has 8 bits"):
        in_full(kept, "it")


def test_a_size_beside_other_weights_is_a_tensor_like_any_other(tmp_path: Path):
    given = {"x": torch.ones(2), "x.size": torch.ones(2), "x.size.size": torch.ones(2)}
    save_checkpoint(tmp_path / "n.safetensors", given, {})
    assert read_description(tmp_path / "n.safetensors").shapes.keys() == given.keys()
    assert load_checkpoint(tmp_path / "n.safetensors").weights.keys() == given.keys()
