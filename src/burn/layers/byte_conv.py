"""Convolution of signs with signs in 8-bit integers: exact, and three times as fast as in float32.

Where there are no such integers, on a GPU for instance, `float_sign_conv2d` convolves in floats.

oneDNN has such convolutions for quantized networks, but torch's operators for them are not a
documented interface. They are therefore compared once with a convolution in float, and not used
where they are missing, where they give something else, or where the processor has no instructions
for them (VNNI).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from burn.layers.sign import hard_sign, weight_scale


def sign_conv2d(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor | None:
    """Return conv2d(sign(x), sign(weight) · mean|weight|), without gradients, or None.

    x holds no -0.0. The result has the dtype of x, or of an autocast around it; each sum is exact
    and rounded once. None stands for a device, dtype or processor without 8-bit convolutions.
    """
    dtype = convolution_dtype(x)
    if dtype not in (torch.float32, torch.bfloat16) or x.dtype not in (dtype, torch.float32):
        return None
    if x.device.type != "cpu" or not _works():
        return None
    return _convolve(x, weight, stride, padding, dtype)


def convolution_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a convolution of x computes: an autocast's around it, or x's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def float_sign_conv2d(
    signs: Tensor, weight_signs: Tensor, scale: Tensor, stride: int, padding: int
) -> Tensor:
    """Return conv2d(signs, weight_signs · scale), without gradients.

    It has the dtype of `signs`, or of an autocast around it; the scale is (out channels, 1, 1, 1).
    In a narrower dtype than the scale's, the signs are convolved and the sums multiplied: rounded
    to bfloat16, a scale would be off by up to 0.39 %, for a whole channel and in every sum.
    """
    if convolution_dtype(signs) == scale.dtype:
        return F.conv2d(signs, weight_signs * scale, stride=stride, padding=padding)
    y = F.conv2d(signs, weight_signs.to(signs.dtype), stride=stride, padding=padding)
    return y.mul_(scale.view(1, -1, 1, 1))


def _convolve(x: Tensor, weight: Tensor, stride: int, padding: int, dtype: torch.dtype) -> Tensor:
    # Comparisons of bfloat16 are slow; the same bits as int16 have the same signs.
    positive = x.view(torch.int16) >= 0 if x.dtype == torch.bfloat16 else x >= 0
    signs = positive.view(torch.uint8).mul_(2)  # 0 and 2; the zero point 1 is also the padding
    window = ([stride] * 2, [padding] * 2, [1, 1], 1)
    key = (weight.data_ptr(), weight.shape, signs.shape)
    packed_weights = _packed.get()
    if packed_weights is not None and key in packed_weights:
        _, scale, packed = packed_weights[key]
    else:
        scale = weight_scale(weight).flatten().float()
        packed = torch.ops.onednn.qconv_prepack(
            hard_sign(weight).to(torch.int8), scale, 1.0, 1, *window, list(signs.shape)
        )
        if packed_weights is not None:  # it keeps the weight, so that no other one gets its address
            packed_weights[key] = weight, scale, packed
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    return torch.ops.onednn.qconv2d_pointwise(
        signs, 1.0, 1, packed, scale, zeros, None, *window, 1.0, 0, dtype, "none", [], ""
    )


@contextmanager
def constant_weights() -> Iterator[None]:
    """Pack each weight once for all convolutions of a shape within this context.

    Nothing may change a weight inside it. Packing takes about as long as a convolution of few
    images, which matters where a batch passes the network in many parts.
    """
    before = _packed.set({})
    try:
        yield
    finally:
        _packed.reset(before)


_Packed = dict[tuple[int, torch.Size, torch.Size], tuple[Tensor, Tensor, Tensor]]
_packed: ContextVar[_Packed | None] = ContextVar("packed weights", default=None)


@cache
def _works() -> bool:
    if not torch.cpu._is_vnni_supported():
        return False
    x = torch.linspace(-3, 2, 2 * 20 * 5 * 5).sin().view(2, 20, 5, 5)
    weight = torch.linspace(-1, 2, 6 * 20 * 9).cos().view(6, 20, 3, 3)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        expected = F.conv2d(hard_sign(x), hard_sign(weight) * weight_scale(weight), None, 2, 1)
        try:
            result = _convolve(x, weight, 2, 1, torch.float32)
        except (AttributeError, RuntimeError, TypeError):
            return False
        return torch.allclose(result, expected, rtol=1e-5, atol=1e-5)
