"""Published networks as their projects build them, and files as their trainers save them.

Written from the published names and shapes: shifts, `torch.sign` and convolutions one after the
other, two 1×1 convolutions where the width doubles. They are the slow twins of imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.methods.base import mlp
from networks import randomize

SMALL = 0.25


class Shift(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Conv(nn.Module):
    """4-D `weight`, or `weights` of shape (n, 1), used as they are or as sign(W) · mean|W|."""

    def __init__(self, shape: tuple[int, int, int, int], stride: int, binary: bool, flat: bool):
        super().__init__()
        self.full, self.stride, self.binary, self.flat = shape, stride, binary, flat
        values = torch.randn(shape) / (shape[1] * shape[2] * shape[3]) ** 0.5
        values[values == 0] = 0.01  # one draw in 16 million, of 29
        if flat:
            self.weights = nn.Parameter(values.view(-1, 1))
        else:
            self.weight = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights.view(self.full) if self.flat else self.weight
        if self.binary:
            w = torch.sign(w) * torch.stack([row.abs().mean() for row in w])[:, None, None, None]
        return F.conv2d(x, w, stride=self.stride, padding=self.full[2] // 2)


class Twin(nn.Module):
    """A published network; `feature.0` is the stem, `fc` what follows the pooling."""

    def __init__(
        self, step: int, *, fc: nn.Module, width: float = SMALL, flat: bool = False,
        both_kinds: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [int(width * c) for c in (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)]
        stem = nn.Module()
        stem.conv1 = nn.Conv2d(3, widths[0], 3, 2, 1, bias=False)
        stem.bn1 = nn.BatchNorm2d(widths[0])
        self.feature = nn.ModuleList([stem])
        self.fc = fc
        for i, (narrow, wide) in enumerate(pairwise(widths)):
            block: Any = nn.Module()
            self.feature.append(block)
            block.stride = 2 if wide > narrow and i > 0 else 1
            block.doubles = wide > narrow
            for name, channels in (("1", narrow), ("2", wide)):
                setattr(block, f"move{name}1", Shift(narrow))
                setattr(block, f"move{name}2", Shift(channels))
                setattr(block, f"prelu{name}", nn.PReLU(channels))
                setattr(block, f"move{name}3", Shift(channels))
            convs = {"binary_3x3": ((narrow, narrow, 3, 3), block.stride, "bn1")}
            if both_kinds or not block.doubles:
                convs["binary_pw"] = ((wide, narrow, 1, 1), 1, "bn2")
            if both_kinds or block.doubles:
                convs["binary_pw_down1"] = ((narrow, narrow, 1, 1), 1, "bn2_1")
                convs["binary_pw_down2"] = ((narrow, narrow, 1, 1), 1, "bn2_2")
            for name, (shape, stride, norm) in convs.items():
                setattr(block, name, Conv(shape, stride, step == 2, flat))
                setattr(block, norm, nn.BatchNorm2d(shape[0]))
        randomize(self)
        with torch.no_grad():
            for name, value in self.state_dict().items():
                if ".move" in name:
                    value.copy_(0.2 * torch.randn(value.shape))
                elif name.endswith("num_batches_tracked"):
                    value.fill_(len(name))

    def features(self, images: Tensor) -> Tensor:
        """uint8 (batch, 3, height, width) -> pooled (batch, 1024 · width)."""
        dtype = next(self.parameters()).dtype
        mean, std = (torch.tensor(v).to(dtype)[:, None, None] for v in MEAN_AND_STD)
        stem: Any = self.feature[0]
        x = stem.bn1(stem.conv1((images.to(dtype) / 255 - mean) / std))
        block: Any
        for block in self.feature[1:]:
            shortcut = F.avg_pool2d(x, 2, 2) if block.stride == 2 else x
            x = block.bn1(block.binary_3x3(torch.sign(block.move11(x)))) + shortcut
            x = block.move13(block.prelu1(block.move12(x)))
            signs = torch.sign(block.move21(x))
            if block.doubles:
                first = block.bn2_1(block.binary_pw_down1(signs)) + x
                second = block.bn2_2(block.binary_pw_down2(signs)) + x
                x = torch.cat([first, second], dim=1)
            else:
                x = block.bn2(block.binary_pw(signs)) + x
            x = block.move23(block.prelu2(block.move22(x)))
        return x.mean(dim=(2, 3))

    def binarize(self) -> None:
        """Store ±scale in place of latent weights, as some files do."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, Conv):
                    w = module.weights.view(module.full) if module.flat else module.weight
                    w.copy_(torch.sign(w) * w.abs().mean(dim=(1, 2, 3), keepdim=True))


MEAN_AND_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def twin(format: str, step: int, width: float = SMALL, **changes: Any) -> Twin:
    torch.manual_seed(step)
    d = int(1024 * width)
    if format == "reactnet":
        settings: dict[str, Any] = {"fc": nn.Linear(d, 10), "flat": step == 2}
    elif format == "s2bnn":
        head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 16))
        settings = {"fc": head, "both_kinds": True}
    else:
        settings = {"fc": nn.Sequential(nn.Linear(d, d), nn.ReLU())}
    return Twin(step, width=width, **{**settings, **changes}).eval()


def below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights.items()}


def noise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Other weights of the same names and shapes, to be taken by mistake."""
    return {name: torch.rand_like(t.float()).to(t.dtype) for name, t in weights.items()}


def classifiers() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The student's, on 256 features, and the teacher's, on 48."""
    return randomize(mlp(256, 20, 12)).state_dict(), randomize(mlp(48, 20, 12)).state_dict()


def content(format: str, network: Twin) -> dict[str, Any]:
    """What the file of a format holds: the state dict, and what training left beside it."""
    w = network.state_dict()
    optimizer = {"state": {0: {"step": 7, "exp_avg": torch.rand(3)}}, "param_groups": [{"lr": 1.0}]}
    if format == "reactnet":
        state = below("module.", w)
        return {"epoch": 255, "state_dict": state, "best_top1_acc": 69.4, "optimizer": optimizer}
    if format == "s2bnn":
        state = below("module.encoder_q.", w) | below("module.encoder_k.", noise(w))
        state |= {"module.queue": torch.rand(16, 32), "module.queue_ptr": torch.tensor([3])}
        return {"epoch": 200, "arch": "resnet50", "state_dict": state, "optimizer": optimizer}
    student, teacher = classifiers()
    return {
        "backbone.state_dict": w,
        "classifier.state_dict": student,
        "teacher_classifier.state_dict": teacher,
    }


def written(file: Path, format: str, network: Twin) -> Path:
    torch.save(content(format, network), file)
    return file


# --- Files as the projects' trainers and tools write them. ---


def _trained(module: nn.Module, **options: Any) -> dict[str, Any]:
    """An optimizer's state after a step, as its state_dict."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.0}]
    optimizer = torch.optim.Adam(groups, lr=0.0, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer.state_dict()


def of_reactnets_trainer(network: nn.Module) -> dict[str, Any]:
    """checkpoint.pth.tar and model_best.pth.tar of both steps."""
    correct = torch.tensor([[True, False, True]])
    return {
        "epoch": 255,
        "state_dict": nn.DataParallel(network).state_dict(),
        "best_top1_acc": correct.float().sum(0, keepdim=True).mean(1)[0],
        "optimizer": _trained(network),
    }


class Neck(nn.Module):
    """NonLinearNeckSimCLR of two layers: fc0, bn0, ReLU, fc1, and bn1 by its default."""

    def __init__(self, features: int, bias: bool, last_norm: bool) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.fc0 = nn.Linear(features, 20, bias=bias)
        self.bn0 = nn.BatchNorm1d(20)
        self.fc1 = nn.Linear(20, 12, bias=bias)
        if last_norm:
            self.bn1 = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(self.relu(self.bn0(self.fc0(x))))


class BurnPretraining(nn.Module):
    """The backbone is registered twice; the float teacher is a stand-in of two layers."""

    def __init__(self, network: Twin, bias: bool = True, last_norm: bool = False) -> None:
        super().__init__()
        student, teacher = (randomize(Neck(d, bias, last_norm)) for d in (256, 48))
        self.online_net = nn.Sequential(network, student)
        self.backbone = self.online_net[0]
        layers = nn.ModuleDict({"conv1": nn.Conv2d(3, 4, 1), "bn1": nn.BatchNorm2d(4)})
        self.diff_branch_net = nn.Sequential(layers, teacher)


class BurnClassification(nn.Module):
    """Linear evaluation."""

    def __init__(self, network: Twin) -> None:
        super().__init__()
        self.backbone = network
        self.head = nn.Module()
        self.head.fc_cls = nn.Linear(256, 10)


def of_mmcv(model: nn.Module) -> dict[str, Any]:
    """latest.pth and epoch_N.pth. Every tensor is copied from the GPU: no two share a storage."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    meta = {"epoch": 200, "iter": 125_000, "mmcv_version": "1.0.3", "config": "model = dict()"}
    return {"meta": meta, "state_dict": state, "optimizer": _trained(model)}


def weights_for_multi(held: dict[str, Any]) -> dict[str, Any]:
    """What extract_weights_for_multi.py makes of latest.pth."""
    parts = {
        "backbone": "backbone.",
        "classifier": "online_net.1.",
        "teacher_classifier": "diff_branch_net.1.",
    }
    state = held["state_dict"]
    made: dict[str, Any] = {
        part: {
            "state_dict": {n.removeprefix(p): t for n, t in state.items() if n.startswith(p)}
        }
        for part, p in parts.items()
    }  # fmt: skip
    return made | {"author": "OpenSelfSup"}


def backbone_weights(held: dict[str, Any]) -> dict[str, Any]:
    """What extract_backbone_weights.py makes of latest.pth."""
    state = weights_for_multi(held)["backbone"]["state_dict"]
    return {"state_dict": state, "author": "OpenSelfSup"}


def of_s2bnns_lincls(network: Twin) -> dict[str, Any]:
    """checkpoint.pth.tar and model_best.pth.tar of main_lincls.py."""
    return {
        "epoch": 100,
        "arch": "resnet50",
        "state_dict": nn.DataParallel(network).state_dict(),
        "best_acc1": torch.tensor(61.5),
        "optimizer": _trained(network.fc),
    }
