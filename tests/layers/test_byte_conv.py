import pytest
import torch
from torch.nn import functional as F

from burn.layers import byte_conv
from burn.layers.byte_conv import sign_conv2d
from burn.layers.sign import hard_sign, weight_scale

needs_vnni = pytest.mark.skipif(not byte_conv._works(), reason="no 8-bit convolutions here")


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "out_channels", "side", "kernel", "stride"),
    [(8, 8, 5, 3, 1), (32, 64, 7, 1, 1), (64, 64, 9, 3, 2), (24, 48, 4, 3, 1), (16, 16, 1, 3, 1)],
)
def test_sums_are_exact(
    dtype: torch.dtype, channels: int, out_channels: int, side: int, kernel: int, stride: int
):
    """Of ±1, padded with nothing: the float64 convolution, rounded once to x's type."""
    x = torch.randn(3, channels, side, side)
    x[0, 0] = 0  # counts as +1
    x = x.to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(out_channels, channels, kernel, kernel)
    weight[0] = 0
    padding = kernel // 2
    found = sign_conv2d(x, weight, stride, padding)
    assert found is not None
    assert found.dtype == dtype
    signs, scale = hard_sign(weight).double(), weight_scale(weight)
    sums = F.conv2d(hard_sign(x).double(), signs, stride=stride, padding=padding)
    expected = sums * scale.double().view(1, -1, 1, 1)
    # Scaled in float32, then rounded: half a unit in the last place, or two of float32.
    torch.testing.assert_close(
        found.double(), expected, rtol=2**-8 if dtype == torch.bfloat16 else 2**-22, atol=0
    )


@needs_vnni
def test_autocast_decides_the_type():
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 8, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = sign_conv2d(x, weight, 1, 1)
    assert found is not None
    assert found.dtype == torch.bfloat16


def test_other_types_and_processors_are_left_to_floats(monkeypatch: pytest.MonkeyPatch):
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 8, 3, 3)
    assert sign_conv2d(x.double(), weight.double(), 1, 1) is None
    monkeypatch.setattr(byte_conv, "_works", lambda: False)
    assert sign_conv2d(x, weight, 1, 1) is None


def test_operators_that_are_not_there_are_not_called(monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("qconv_prepack")

    monkeypatch.setattr(byte_conv, "_convolve", missing)
    assert byte_conv._works.__wrapped__() is False


@needs_vnni
def test_weights_are_packed_once_where_they_are_constant(monkeypatch: pytest.MonkeyPatch):
    """With the same results, for two weights, two shapes of images, and after a weight changed."""
    images, small = torch.randn(4, 8, 6, 6), torch.randn(3, 8, 6, 6)
    weights = [torch.randn(16, 8, 3, 3) for _ in range(2)]
    packs = []
    pack = torch.ops.onednn.qconv_prepack
    monkeypatch.setattr(
        torch.ops.onednn, "qconv_prepack", lambda *given: packs.append(1) or pack(*given)
    )
    for _ in range(2):
        expected = [sign_conv2d(x, w, 1, 1) for w in weights for x in (images, small)]
        packs.clear()
        with byte_conv.constant_weights():
            for _ in range(3):
                found = [sign_conv2d(x, w, 1, 1) for w in weights for x in (images, small)]
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert len(packs) == 4
        weights[0].neg_()
