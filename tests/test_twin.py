"""The benchmark's peer computes what BURN computes: otherwise its ratios would mean nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.types import Batch, Precision
from burn.methods.burn.method import Burn
from burn.methods.burn.settings import BurnConfig
from networks import randomize, tiny_reactnet

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from gated_twin import gated_twin  # pyright: ignore[reportMissingImports]
from twin import gradients, twin_of  # pyright: ignore[reportMissingImports]


def teacher_of() -> nn.Module:
    torch.manual_seed(4)
    return randomize(build_backbone(BackboneConfig(name="test_resnet"), Precision.FLOAT)).double()


@pytest.mark.parametrize("progress", [0.0, 0.7])
def test_the_same_loss_and_gradients(progress: float, monkeypatch: pytest.MonkeyPatch):
    # Features and losses are float32 by decision; here everything is to be float64.
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr("burn.methods.shared.frozen._rounded", lambda features: features)
    student = randomize(tiny_reactnet(Precision.BINARY, width=0.25, stage_strides=(2, 2, 2, 2)))
    config = BurnConfig(num_classes=24, hidden=16)
    method = Burn(student, Teacher(teacher_of(), None, None, {}), config).double().train()  # type: ignore[arg-type]
    with torch.no_grad():  # past 1 too, where clipping stops the gradient
        for name, parameter in method.backbone.named_parameters():
            if "blocks" in name and parameter.ndim > 1:
                parameter.mul_(8)
    twin = twin_of(method, teacher_of().model).double().train()  # type: ignore[arg-type]
    for constant in ("mean", "std"):
        getattr(twin, constant).copy_(getattr(method.backbone, constant))
    images = torch.randint(0, 256, (6, 3, 64, 64), dtype=torch.uint8)
    ours = method(Batch((images,), torch.arange(6)), progress).loss
    theirs = twin(images, method.lam(progress))
    # float64, sums in another order through 27 layers; a sign that flipped would move it by 1e-3.
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    ours.backward()
    theirs.backward()
    expected = gradients(twin)
    trained = {name: p.grad for name, p in method.named_parameters() if p.requires_grad}
    assert trained.keys() == expected.keys()
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in trained.items():
        assert grad is not None, name
        # Each to its own size, and, where it is zero but for rounding, to the largest one's.
        scale = float(expected[name].abs().max())
        assert scale > 0, name
        torch.testing.assert_close(
            grad, expected[name], rtol=1e-8, atol=1e-9 * scale + 1e-13 * largest, msg=name
        )
    assert sum(grad.numel() for grad in expected.values()) == sum(
        parameter.numel() for parameter in twin.trained()
    )


@pytest.mark.parametrize("name", ["bnext_t", "expert_bnn"])
def test_the_same_features_and_gradients_of_networks_with_gates(name: str):
    torch.manual_seed(0)
    config = BackboneConfig(name=name, width=0.25, stage_strides=(2, 2, 2, 1))
    network = randomize(build_backbone(config, Precision.BINARY)).double().train()
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if key.endswith("convolution.weight"):  # past 1, and no copies of one expert
                parameter.mul_(8).add_(0.2 * torch.randn_like(parameter))
            if ".layers." in key and key.endswith("activation.weight"):
                parameter.fill_(1)  # a sum of signs may be 0, where PReLU has a kink
    twin = gated_twin(network)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    found, expected = network(images), twin(images)
    # float64, sums in another order through 26 layers and more; a flipped sign would show as 1e-2.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    arriving = torch.randn_like(found)
    found.backward(arriving)
    expected.backward(arriving)
    for (key, ours), (_, theirs) in zip(
        network.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert ours.grad is not None
        assert theirs.grad is not None
        size = float(theirs.grad.abs().max()) + 1e-6
        torch.testing.assert_close(ours.grad / size, theirs.grad / size, rtol=0, atol=1e-7, msg=key)
