"""A BURN step in ordinary operations alone, which `benchmarks/training.py` measures against.

It has ReActNet-A with a module for each shift, sign and norm, two 1×1 convolutions and torch.cat
where the width doubles, and signs that autograd differentiates by adding and subtracting the
surrogate; memory in PyTorch's default order, a loss of softmax and cosine, and a teacher as timm
makes it. Nothing is fused, recomputed or kept in another type. tests/test_twin.py compares its loss
and gradients with those of `burn.methods.burn.method`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.reactnet import Block, ReActNet
from burn.layers import BinaryConv2d, RPReLU
from burn.methods.burn.method import Burn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Shift(nn.Module):
    """Adds a learned number to each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.expand_as(x)


class SignActivation(nn.Module):
    """Signs; their gradient is that of a function that is quadratic on both sides of 0."""

    def forward(self, x: Tensor) -> Tensor:
        below, negative, inside = x < -1, x < 0, x < 1
        surrogate = -1 * below.to(x.dtype) + (x * x + 2 * x) * (1 - below.to(x.dtype))
        surrogate = surrogate * negative.to(x.dtype) + (2 * x - x * x) * (1 - negative.to(x.dtype))
        surrogate = surrogate * inside.to(x.dtype) + 1 * (1 - inside.to(x.dtype))
        return torch.sign(x).detach() - surrogate.detach() + surrogate


class BinaryConvolution(nn.Module):
    """Convolution with sign(W) times the mean of |W| of each output channel."""

    def __init__(self, channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        self.weight = nn.Parameter(torch.empty(out_channels, channels, kernel_size, kernel_size))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.abs().mean(dim=(1, 2, 3), keepdim=True).detach()
        binary = scale * torch.sign(self.weight)
        clipped = self.weight.clamp(-1, 1)
        weight = binary.detach() - clipped.detach() + clipped
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)


class Activation(nn.Sequential):
    """Shift, PReLU, shift."""

    def __init__(self, channels: int) -> None:
        super().__init__(Shift(channels), nn.PReLU(channels), Shift(channels))


class TwinBlock(nn.Module):
    """One block of ReActNet-A; `pointwise` and its norm have two entries if it widens."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.spatial_shift = Shift(channels)
        self.spatial_sign = SignActivation()
        self.spatial = BinaryConvolution(channels, channels, 3, stride)
        self.spatial_norm = nn.BatchNorm2d(channels)
        self.spatial_activation = Activation(channels)
        self.pointwise_shift = Shift(channels)
        self.pointwise_sign = SignActivation()
        copies = range(out_channels // channels)
        self.pointwise = nn.ModuleList(BinaryConvolution(channels, channels, 1, 1) for _ in copies)
        self.pointwise_norm = nn.ModuleList(nn.BatchNorm2d(channels) for _ in copies)
        self.pointwise_activation = Activation(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.avg_pool2d(x, 2, 2) if self.stride == 2 else x
        out = self.spatial_norm(self.spatial(self.spatial_sign(self.spatial_shift(x))))
        x = self.spatial_activation(out + shortcut)
        signs = self.pointwise_sign(self.pointwise_shift(x))
        outs = [
            norm(convolution(signs)) + x
            for convolution, norm in zip(self.pointwise, self.pointwise_norm, strict=True)
        ]
        return self.pointwise_activation(outs[0] if len(outs) == 1 else torch.cat(outs, dim=1))


class TwinReActNet(nn.Module):
    """ReActNet-A from normalized images (batch, 3, height, width) to features (batch, channels).

    Args:
        widths: Channels before the first block and after each block.
        strides: Stride of each block.
        stem_stride: Stride of the first convolution.
    """

    def __init__(self, widths: list[int], strides: list[int], stem_stride: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, stem_stride, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.Sequential(
            *(
                TwinBlock(*sizes, stride)
                for sizes, stride in zip(pairwise(widths), strides, strict=True)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem_norm(self.stem(x)))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class TwinBurn(nn.Module):
    """The loss of BURN's default settings on uint8 images at a given λ.

    Args:
        student: The student.
        teacher: A network from normalized images to features; it is in eval mode and gets no
            gradient.
        num_features: Widths of student and teacher.
        hidden: Hidden width of the classifiers.
        num_classes: Outputs of the classifiers.
        temperature: Temperature of both softmaxes.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        student: TwinReActNet,
        teacher: nn.Module,
        num_features: tuple[int, int],
        hidden: int,
        num_classes: int,
        temperature: float,
    ) -> None:
        super().__init__()
        narrow, wide = num_features
        self.student = student
        self.teacher = teacher.eval().requires_grad_(False)
        self.projection = nn.Linear(narrow, wide)
        self.classifier = _classifier(narrow, hidden, num_classes)
        self.teacher_classifier = _classifier(wide, hidden, num_classes).requires_grad_(False)
        self.temperature = temperature
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1))

    def train(self, mode: bool = True) -> TwinBurn:
        super().train(mode)
        self.teacher.eval()
        return self

    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def teach(self, images: Tensor) -> Tensor:
        """Return the teacher's features, (batch, features)."""
        with torch.no_grad():
            return self.teacher(self.normalize(images))

    def normalize(self, images: Tensor) -> Tensor:
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    def forward(self, images: Tensor, lam: float) -> Tensor:
        x = self.normalize(images)
        with torch.no_grad():
            v1 = self.teacher(x)
        v2 = self.student(x)
        logits1, logits2 = self.teacher_classifier(v1), self.classifier(v2)
        p1 = F.softmax(logits1 / self.temperature, dim=1)
        log1 = F.log_softmax(logits1 / self.temperature, dim=1)
        log2 = F.log_softmax(logits2 / self.temperature, dim=1)
        kl = (p1 * (log1 - log2)).sum(dim=1).mean()
        similarity = 1 - F.cosine_similarity(v1, self.projection(v2), dim=1).mean()
        return (1 - lam) * kl + lam * similarity


def _classifier(features: int, hidden: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def twin_of(method: Burn, teacher: nn.Module) -> TwinBurn:
    """Return the twin of `method` with the same weights.

    Args:
        method: A method with a ReActNet student at precision BINARY and BURN's default loss.
        teacher: The method's teacher as a separate module, from normalized images to features.
    """
    backbone = cast(ReActNet, method.backbone)
    blocks = [cast(Block, block) for block in backbone.blocks]
    widths = [backbone.stem.out_channels, *(b.pointwise.weight.shape[0] for b in blocks)]
    student = TwinReActNet(widths, [b.stride for b in blocks], backbone.stem.stride[0])
    twin = TwinBurn(
        student,
        teacher,
        (backbone.num_features, method.teacher.num_features),
        method.config.hidden,
        method.config.num_classes,
        method.config.temperature,
    )
    for name in ("projection", "classifier", "teacher_classifier"):
        getattr(twin, name).load_state_dict(getattr(method, name).state_dict())
    student.stem.load_state_dict(backbone.stem.state_dict())
    student.stem_norm.load_state_dict(backbone.stem_norm.state_dict())
    for block, ours in zip(student.blocks, blocks, strict=True):
        _copy(cast(TwinBlock, block), ours)
    return twin.train(method.training)


@torch.no_grad()
def _copy(block: TwinBlock, ours: Block) -> None:
    for name in ("spatial", "pointwise"):
        convolution: BinaryConv2d = getattr(ours, name)
        activation: RPReLU = getattr(ours, f"{name}_activation")
        shift: Shift = getattr(block, f"{name}_shift")
        first, prelu, last = getattr(block, f"{name}_activation")
        shift.bias.copy_(convolution.sign.shift.view_as(shift.bias))
        first.bias.copy_(activation.before.view_as(first.bias))
        prelu.weight.copy_(activation.slope)
        last.bias.copy_(activation.after.view_as(last.bias))
    block.spatial.weight.copy_(ours.spatial.weight)
    block.spatial_norm.load_state_dict(ours.spatial_norm.state_dict())
    convolutions, norms = list(block.pointwise), list(block.pointwise_norm)
    state = ours.pointwise_norm.state_dict()
    for i, part in enumerate(ours.pointwise.weight.chunk(len(convolutions))):
        cast(BinaryConvolution, convolutions[i]).weight.copy_(part)
        norms[i].load_state_dict(
            {k: t.chunk(len(norms))[i] if t.ndim else t for k, t in state.items()}
        )


def gradients(twin: TwinBurn) -> dict[str, Tensor]:
    """Return the twin's gradients by the names and in the shapes of `Burn`'s parameters."""
    found: dict[str, Tensor] = {}

    def add(name: str, *parts: nn.Parameter) -> None:
        grads = [cast(Tensor, part.grad) for part in parts]
        found[name] = torch.cat(grads) if len(grads) > 1 else grads[0]

    student = twin.student
    whole = {
        "projection": twin.projection,
        "classifier": twin.classifier,
        "backbone.stem": student.stem,
        "backbone.stem_norm": student.stem_norm,
    }
    for name, part in whole.items():
        for key, parameter in part.named_parameters():
            add(f"{name}.{key}", parameter)
    for i, block in enumerate(student.blocks):
        for name in ("spatial", "pointwise"):
            at = f"backbone.blocks.{i}.{name}"
            convolutions, norms = getattr(block, name), getattr(block, f"{name}_norm")
            if name == "spatial":
                convolutions, norms = [convolutions], [norms]
            first, prelu, last = getattr(block, f"{name}_activation")
            add(f"{at}.weight", *(c.weight for c in convolutions))
            add(f"{at}.sign.shift", getattr(block, f"{name}_shift").bias)
            add(f"{at}_norm.weight", *(n.weight for n in norms))
            add(f"{at}_norm.bias", *(n.bias for n in norms))
            add(f"{at}_activation.before", first.bias)
            add(f"{at}_activation.slope", prelu.weight)
            add(f"{at}_activation.after", last.bias)
    return {
        name: grad.flatten() if "shift" in name or "activation" in name else grad
        for name, grad in found.items()
    }
