"""Expert binary convolution: an image chooses one of several weights (Bulat et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient, Precision, WeightGradient, WeightInit
from burn.layers.activation import RSign, per_channel
from burn.layers.conv import BinaryConv2d
from burn.layers.gate import channel_means
from burn.layers.sign import hard_sign, pass_inside_one, sign_backward

_MOST_WEIGHTS = 2**25  # that images have at a time, 128 MB in float32


class _Choice(torch.autograd.Function):
    """The largest score is 1 and the others are 0, with the gradient of the softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return F.one_hot(scores.argmax(dim=1), scores.shape[1]).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (scores,) = ctx.saved_tensors
        probabilities = scores.softmax(dim=1)
        product = grads[0] * probabilities
        return product - probabilities * product.sum(dim=1, keepdim=True)


def choose(scores: Tensor) -> Tensor:
    """Return 1 for the largest score of each image and 0 for the others, of ties the first.

    The gradient is that of softmax(scores), (batch, experts).
    """
    return _Choice.apply(scores)  # type: ignore[no-any-return]


class _Shared(torch.autograd.Function):
    """The experts' mean. Each expert gets the gradient of the mean, whole, and the scores get 0.

    Experts that start as copies thus remain copies, and learn as a single one would. The scores
    take part only for their gradient: DistributedDataParallel waits for it.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.experts = len(weight)
        return weight.mean(dim=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (scores,) = ctx.saved_tensors
        return grads[0].expand(ctx.experts, *grads[0].shape), torch.zeros_like(scores)


class _ExpertConv2d(torch.autograd.Function):
    """Convolution of each image's signs with the binary weights that it has chosen.

    With one-hot g, the weights of an image are sign(V) · c, V = Σ g_e W_e, of which only one
    expert's are ever computed; c is the mean |W| of each output channel over all experts. The
    gradients follow from that of sign(V) · c: dL/dV is as in `binary_weight`, dL/dW_e sums
    g_e · dL/dV over the images, and dL/dg_e is <dL/dV, W_e>, also for the experts that the image
    has not chosen. Images pass in parts, because each has a gradient of the size of a weight.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gates: Tensor, weight: Tensor, stride: int, padding: int,
        groups: int, activation_gradient: ActivationGradient, weight_gradient: WeightGradient,
    ) -> Tensor:  # fmt: skip
        signs, scale = hard_sign(weight), _scale(weight)
        ctx.save_for_backward(x, gates, weight, scale)
        ctx.stride, ctx.padding, ctx.groups = stride, padding, groups
        ctx.activation_gradient, ctx.weight_gradient = activation_gradient, weight_gradient
        chosen = gates.argmax(dim=1)
        if not len(x):  # a detector may have no regions
            side = [(length - 1) // stride + 1 for length in x.shape[2:]]
            return x.new_zeros(0, weight.shape[1], *side)
        outputs = []
        for part in _parts(len(x), weight):
            weight_signs = signs[chosen[part]].to(x.dtype)
            y = _convolve(hard_sign(x[part]), weight_signs, stride, padding, groups)
            # After the convolution, whose sums of signs are then exact in any order.
            outputs.append(y.mul_(per_channel(scale, y)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gates, weight, scale = ctx.saved_tensors
        (grad,) = grads
        chosen = gates.argmax(dim=1)
        binary = hard_sign(weight).mul_(scale[:, None, None, None])
        clips = ctx.weight_gradient == "clip" and not _all_inside_one(weight)
        grad_x, grad_gates = torch.empty_like(x), torch.empty_like(gates)
        grad_weight = torch.zeros_like(weight)
        flat = weight.flatten(1)
        for part in _parts(len(x), weight):
            signs, experts = hard_sign(x[part]), chosen[part]
            grad_signs, grad_each = _convolve_backward(
                grad[part],
                signs.to(grad.dtype),
                binary[experts].to(grad.dtype),
                ctx.stride,
                ctx.padding,
                ctx.groups,
            )
            grad_x[part] = sign_backward(
                grad_signs, x[part], ctx.activation_gradient, out=grad_signs
            )
            grad_each = grad_each.to(weight.dtype)
            if ctx.weight_gradient != "clip":
                grad_each *= scale[:, None, None, None]
            elif clips:
                grad_each = pass_inside_one(grad_each, weight[experts], out=grad_each)
            grad_weight.index_add_(0, experts, grad_each)
            grad_gates[part] = (grad_each.flatten(1) @ flat.T).to(gates.dtype)
        return grad_x, grad_gates, grad_weight, None, None, None, None, None


def _all_inside_one(weight: Tensor) -> bool:
    """Return whether no |W| exceeds 1, or False on a GPU, which would have to wait for it."""
    if weight.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    least, largest = weight.aminmax()
    return bool(least >= -1) and bool(largest <= 1)


def _scale(weight: Tensor) -> Tensor:
    """Return the mean |W| of each output channel over all experts, (out channels,)."""
    return weight.abs().mean(dim=(0, 2, 3, 4))


def _parts(images: int, weight: Tensor) -> Iterator[slice]:
    step = max(1, _MOST_WEIGHTS // weight[0].numel())
    return (slice(start, start + step) for start in range(0, images, step))


def _convolve(x: Tensor, weight: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    """Convolve each image with its own weight, as one convolution with a group for each image.

    The weights are (batch, out channels, in channels / groups, k, k).
    """
    together = x.reshape(1, -1, *x.shape[2:])
    y = F.conv2d(together, weight.flatten(0, 1), None, stride, padding, groups=groups * len(x))
    return y.view(len(x), -1, *y.shape[2:])


def _convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, groups: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight of `_convolve`, from that of its output."""
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad.reshape(1, -1, *grad.shape[2:]), x.reshape(1, -1, *x.shape[2:]), weight.flatten(0, 1),
        None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups * len(x),
        [True, True, False],
    )  # fmt: skip
    return grad_x.view(x.shape), grad_weight.view(weight.shape)


class FixedSign(RSign):
    """Sign without a threshold of its own, for convolutions that follow a BN.

    Its shift is always 0 and not in the state dict. The arguments are those of `RSign`.
    """

    def __init__(self, channels: int, gradient: ActivationGradient = "poly") -> None:
        super().__init__(channels, gradient)
        del self.shift
        self.register_buffer("shift", torch.zeros(channels), persistent=False)


class ExpertConv2d(BinaryConv2d):
    """Binary convolution with several weights, of which each image chooses one.

    It maps (batch, in_channels, h, w) to (batch, out_channels, ⌈h / stride⌉, ⌈w / stride⌉). A
    linear layer maps the channels' means to a score for each expert, and the largest score wins.
    Precision BINARY convolves sign(x) with sign(W) · mean|W|, W being the winner's and the mean
    that over all experts; the output is multiplied by a factor that is learned per output channel.
    (The paper has sign(W) alone, whose constant the factor learns. mean|W| keeps the size of the
    output when float weights become binary, and is one number for all experts, as the factor is.)

    At other precisions there is a single weight W, the experts' mean: the paper first trains one
    expert and then copies it (section 4.1). Here the experts start as copies and all get the single
    weight's gradient, so they are copies when training goes on with precision BINARY. FLOAT
    convolves x, BINARY_ACTIVATIONS sign(x).

    The arguments are those of `BinaryConv2d`, and the numbers of weights (`experts`) and of groups
    of channels, which divides both numbers of channels.

    Attributes:
        weight: Shape (experts, out_channels, in_channels / groups, kernel_size, kernel_size).
        choice: The linear layer, from the channels' means to the experts' scores.
        scale: Shape (out_channels,), the factor of each output channel, which starts at 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        groups: int = 1,
        experts: int = 4,
        precision: Precision = Precision.BINARY,
        activation_gradient: ActivationGradient = "poly",
        weight_gradient: WeightGradient = "clip",
        weight_init: WeightInit = "fan_in",
    ) -> None:
        super().__init__(
            in_channels // groups,
            out_channels,
            kernel_size,
            stride,
            precision,
            activation_gradient,
            weight_gradient,
            weight_init,
        )
        self.groups, self.experts = groups, experts
        self.weight = nn.Parameter(self.weight.detach().repeat(experts, 1, 1, 1, 1))
        self.sign = FixedSign(in_channels, activation_gradient)
        self.choice = nn.Linear(in_channels, experts)
        self.scale = nn.Parameter(torch.ones(out_channels))

    def forward(self, x: Tensor, means: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        """Return the convolution.

        `means` are the `channel_means` of x, where they are known; `gate` are further factors of
        the output, (batch, out_channels, 1, 1).
        """
        scores = self.choice(channel_means(x) if means is None else means)
        if self.precision == Precision.BINARY:
            y = _ExpertConv2d.apply(
                x,
                choose(scores),
                self.weight,
                self.stride,
                self.padding,
                self.groups,
                self.sign.gradient,
                self.weight_gradient,
            )
        else:
            weight = _Shared.apply(self.weight, scores).to(x.dtype)
            x = x if self.precision == Precision.FLOAT else self.sign(x)
            y = F.conv2d(x, weight, None, self.stride, self.padding, groups=self.groups)
        factors = per_channel(self.scale, y)
        # Together, because a pass over the map takes longer than any arithmetic on these.
        return y * (factors if gate is None else factors * gate.to(y.dtype))

    def effective_weight(self) -> Tensor:
        """Return the weights that the convolution uses at this precision, in the experts' shape."""
        if self.precision == Precision.BINARY:
            return hard_sign(self.weight) * _scale(self.weight)[:, None, None, None]
        return self.weight.mean(dim=0, keepdim=True).expand_as(self.weight)

    def extra_repr(self) -> str:
        _, out_channels, in_channels, size, _ = self.weight.shape
        return (
            f"{in_channels * self.groups}, {out_channels}, kernel_size={size}, "
            f"stride={self.stride}, groups={self.groups}, experts={self.experts}, "
            f"precision={self.precision.value}"
        )
