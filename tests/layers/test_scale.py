"""The scales of binary weights in training are those of the packed file, in any number format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.types import Precision
from burn.deploy.fold import float64
from burn.layers import BinaryConv2d, byte_conv
from burn.layers.activation import RPReLU
from burn.layers.half import Half
from burn.layers.sign import hard_sign, weight_scale
from networks import randomize

CHANNELS = 16


@pytest.fixture(params=["integers", "floats"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With VNNI, and as on a GPU or a processor without it."""
    if request.param == "floats":
        monkeypatch.setattr(byte_conv, "_works", lambda: False)
    elif not byte_conv._works():
        pytest.skip("no 8-bit convolutions here")


def layer() -> BinaryConv2d:
    return randomize(BinaryConv2d(CHANNELS, 32, 3, precision=Precision.BINARY))


def packed(convolution: BinaryConv2d, x: Tensor) -> Tensor:
    """What the packed file computes: sums of signs, times the scale that `burn pack` takes."""
    scale = torch.from_numpy(float64(weight_scale(convolution.weight.double())))
    signs = hard_sign(x.double() + convolution.sign.shift.detach().double().view(1, -1, 1, 1))
    sums = F.conv2d(signs, hard_sign(convolution.weight.detach()).double(), padding=1)
    return sums * scale.view(1, -1, 1, 1)


def of_block(convolution: BinaryConv2d, x: Tensor) -> Tensor:
    half = Half(convolution, torch.nn.BatchNorm2d(32), RPReLU(32))
    shift = convolution.sign.shift.detach().to(x.dtype).view(1, -1, 1, 1)
    return half.convolve(x + shift, convolution.weight.detach())


@pytest.mark.parametrize("path", ["block", "layer", "autocast"])
@pytest.mark.usefixtures("_kernels")
def test_scales_are_not_rounded_to_bfloat16(path: str):
    """Rounded, they would be off by up to 2^-8 in a whole channel."""
    convolution = layer()
    x = 8 * torch.randn(8, CHANNELS, 12, 12).sign().bfloat16()  # far from 0 in every format
    with torch.no_grad():
        expected = packed(convolution, x)
        if path == "block":
            found = of_block(convolution, x)
        elif path == "layer":
            found = convolution(x)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                found = convolution(x.float())
    assert found.dtype == torch.bfloat16
    # The sums are below 256 and thus exact, so that only their products are rounded, once. The
    # scale's own last bit in float32 may turn a tie; a scale in bfloat16 turns far more.
    assert (found == expected.bfloat16()).double().mean() > 0.999


def test_float32_multiplies_the_weights():
    """The same bits as ever: a convolution with sign(W) · mean|W|."""
    convolution = layer()
    x = torch.randn(2, CHANNELS, 6, 6)
    signs = hard_sign(x + convolution.sign.shift.detach().view(1, -1, 1, 1))
    with torch.no_grad():
        assert torch.equal(
            convolution(x), F.conv2d(signs, convolution.effective_weight(), padding=1)
        )
