"""Float backbones: timm's networks behind our normalisation."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import nn

from burn.backbones.config import IMAGENET_MEAN, IMAGENET_STD, BackboneConfig
from burn.backbones.entries import is_binary
from burn.backbones.float import FloatBackbone
from burn.backbones.folded import _onednn
from burn.backbones.registry import build_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers.sync_norm import synchronize_norms
from networks import randomize


def build(name: str = "test_resnet", **settings: object) -> FloatBackbone:
    backbone = build_backbone(BackboneConfig(name=name, **settings), Precision.FLOAT)  # type: ignore[arg-type]
    assert isinstance(backbone, FloatBackbone)
    return backbone


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_features_are_timms_on_normalised_images(name: str):
    side = 160 if name == "test_vit" else 64
    backbone = build(name).eval()
    model = timm.create_model(name, num_classes=0).eval()
    model.load_state_dict(backbone.model.state_dict())
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        features = backbone(images)
        expected = model((images.float() / 255 - mean) / std)
    # float32; convolutions sum in another order in another memory format.
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    assert features.shape == (2, backbone.num_features)
    assert features.dtype == torch.float32


def test_uint8_and_float_images_are_the_same_images():
    backbone = build().eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(backbone(images), backbone(images.float() / 255))


@pytest.mark.parametrize("name", ["resnet18", "resnet10t", "resnet50"])
def test_a_resnet_is_its_trunk_and_its_top(name: str):
    backbone = randomize(build(name, width=0.25)).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        trunk = backbone.trunk(images)
        assert trunk.shape[2:] == (4, 4)
        assert torch.equal(backbone.top(trunk), backbone.forward_features(images))


def test_only_what_cannot_take_other_sizes_has_one():
    assert build("test_maxvit").fixed_size == 160
    assert build("test_vit").fixed_size is None
    assert build("resnet18", width=0.25).fixed_size is None


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "test_vit3"])
def test_a_transformer_takes_other_sizes(name: str):
    """As the same network built for that size, with its position embeddings resampled."""
    backbone = randomize(build(name)).eval()
    sized = timm.create_model(name, num_classes=0, img_size=96).eval()
    weights = backbone.model.state_dict()
    tokens = weights["pos_embed"].shape[1] - 100  # class token and registers
    prefix = tokens if weights["pos_embed"].shape[1] > 100 else 0
    weights["pos_embed"] = resample_abs_pos_embed(
        weights["pos_embed"], [6, 6], num_prefix_tokens=prefix
    )
    sized.load_state_dict(weights)
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        expected = sized(backbone.normalize(images))
        torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)  # as above


@pytest.mark.parametrize(
    ("name", "side", "words"),
    [("test_vit", 100, "100.* divisible by patch"), ("test_maxvit", 96, "divisible by window")],
)
def test_sizes_that_do_not_suit(name: str, side: int, words: str):
    with pytest.raises(UserError, match=f"backbone {name}: .*{words}"):
        build(name)(torch.rand(1, 3, side, side))


@pytest.mark.parametrize(
    "name",
    ["test_vit", "test_vit2", "test_vit3", "test_convnext", "mobilenetv3_small_050", "resnet10t"],
)
def test_pooled_features_are_the_models_own(name: str):
    """Class token, mean, or what a network computes before its classifier."""
    backbone = build(name).eval()
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        tokens = backbone.forward_features(images)
        pooled = backbone.pool(tokens)
        model: Any = timm.create_model(name, num_classes=9).eval()
        model.load_state_dict(backbone.model.state_dict(), strict=False)
        expected = model.forward_head(tokens, pre_logits=True)
    assert torch.equal(pooled, expected)
    assert pooled.shape == (2, backbone.num_features)


def test_a_transformer_has_no_trunk():
    backbone = build("test_vit")
    with pytest.raises(UserError, match="test_vit cannot be cut"):
        backbone.trunk(torch.rand(1, 3, 160, 160))


@pytest.mark.parametrize(("stride", "side"), [(None, 2), (1, 8), (2, 4)])
def test_stem_stride_makes_a_small_stem_without_pooling(stride: int | None, side: int):
    backbone = build("resnet18", width=0.25, stem_stride=stride)
    with torch.no_grad():
        assert backbone.forward_features(torch.rand(2, 3, 64, 64)).shape == (2, 128, side, side)
    assert tuple(backbone.model.conv1.kernel_size) == ((7, 7) if stride is None else (3, 3))  # type: ignore[union-attr]


def test_every_parameter_gets_a_gradient():
    """Past the start, where timm's last BN of each block is 0 and lets nothing through."""
    backbone = randomize(build("resnet18", width=0.25, stem_stride=1))
    backbone(torch.rand(4, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in backbone.parameters())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("resnet81", {}, "resnet81.*resnet18"),
        ("resnet50.a9_in1k", {}, "a9_in1k of resnet50.*similar names: resnet50.ra_in1k"),
        ("reactnet", {}, "reactnet_a"),
        ("test_vit", {"width": 0.5}, "test_vit.*width"),
        ("resnetv2_50", {"width": 0.125}, "resnetv2_50 has no settable width"),
        ("test_vit", {"stem_stride": 1}, "test_vit.*stem"),
        ("resnet10t", {"stem_stride": 1}, "resnet10t.*stem"),  # its stem is three convolutions
        ("resnet18", {"stage_strides": (1, 2, 2, 2)}, "stage_strides.*resnet18"),
        ("resnet18", {"feature_layer": True}, "feature_layer.*resnet18"),
        ("reactnet_a", {"feature_norm": True, "feature_layer": True}, "needs .*feature_norm false"),
        ("resnet18", {"resnet_strides": (1, 1, 2, 3)}, "resnet_strides.*each must be 1 or 2"),
        ("resnet18", {"resnet_strides": (2, 1, 2, 2)}, "stage 1 of resnet18 has the stride 1"),
        ("resnet10t", {"resnet_strides": (1, 1, 2, 2)}, "stage 2 of resnet10t has the stride 2"),
        ("test_vit", {"resnet_strides": (1, 1, 2, 2)}, "test_vit is not a ResNet"),
        ("reactnet_a", {"resnet_strides": (1, 1, 2, 2)}, "reactnet_a has stage_strides"),
    ],
)
def test_what_cannot_be_built_is_named(name: str, settings: dict[str, object], words: str):
    with pytest.raises(UserError, match=words):
        build(name, **settings)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_strides_of_the_stages(name: str):
    """The same weights on larger maps: a network whose strides stand elsewhere has other sides."""
    images = torch.rand(1, 3, 32, 32)
    sides = []
    for strides in (None, (1, 2, 2, 2), (1, 1, 2, 2), (1, 1, 1, 1)):
        network = build(name, width=0.25, stem_stride=2, resnet_strides=strides).eval()
        sides.append(network.forward_features(images).shape[-1])
        folded = network.folded(torch.float32)
        assert folded is not None
        torch.testing.assert_close(folded(images), network(images), rtol=1e-3, atol=1e-4)
    assert sides == [2, 2, 4, 16]


@pytest.mark.parametrize("precision", [Precision.BINARY_ACTIVATIONS, Precision.BINARY])
def test_a_float_network_has_no_binary_precision(precision: Precision):
    with pytest.raises(UserError, match="resnet18"):
        build_backbone(BackboneConfig(name="resnet18"), precision)


def test_only_reactnet_is_binary():
    assert is_binary("reactnet_a")
    assert not is_binary("resnet18")


# --- Folded: what a teacher runs as. ---


@pytest.mark.parametrize("settings", [{}, {"width": 0.25}, {"width": 0.25, "stem_stride": 1}])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("sides", [(40, 48), (20, 20)], ids=["", "one pixel at the end"])
def test_a_folded_resnet_gives_the_same(
    name: str, settings: dict[str, float], onednn: bool, sides: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    if not onednn:
        monkeypatch.setattr("burn.backbones.folded._onednn", lambda dtype: False)
    elif not _onednn(torch.float32):
        pytest.skip("this PyTorch has no fused oneDNN convolution")
    backbone = randomize(build(name, **settings)).eval()
    images = torch.randint(0, 256, (3, 3, *sides), dtype=torch.uint8)
    with torch.no_grad():
        expected = backbone(images)
    folded = backbone.folded(torch.float32)
    assert folded is not None
    found = folded(images)
    assert found.dtype == torch.float32
    # float32 through up to 53 convolutions whose weights were rounded once more.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["resnet10t", "resnet14t", "resnet26d", "resnet50d", "resnet26t"])
def test_deep_stems_and_pooled_shortcuts_fold_exactly(name: str):
    """In float64, where a wrong constant has no rounding to hide behind."""
    backbone = randomize(build(name, width=0.125)).eval().double()
    folded = backbone.folded(torch.float64)
    assert folded is not None
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # features are float32 else
        torch.testing.assert_close(folded(images), backbone(images), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["resnetaa50d", "test_resnet", "seresnet18", "ecaresnet26t"])
def test_other_resnets_are_folded_right_or_left_alone(name: str):
    backbone = randomize(build(name)).eval()
    images = torch.rand(2, 3, 64, 64)
    folded = backbone.folded(torch.float32)
    assert (folded is None) == (name.startswith(("se", "eca"))), "it knows no attention"
    if folded is not None:
        with torch.no_grad():
            torch.testing.assert_close(folded(images), backbone(images), rtol=1e-4, atol=1e-5)


# TensorFlow's padding (tf_), which differs by the size of the map; ReLU6 and ReLU; a stem of a
# convolution with a shortcut; depthwise layers whose activation is before the shortcut.
_EFFICIENTNETS = ["tf_efficientnet_lite0", "mobilenetv2_050", "spnasnet_100", "fbnetc_100"]


@pytest.mark.parametrize("side", [(64, 64), (49, 75)])
@pytest.mark.parametrize("name", _EFFICIENTNETS)
def test_efficientnets_without_gates_fold_exactly(name: str, side: tuple[int, int]):
    """In float64, where a wrong constant has no rounding to hide behind."""
    backbone = randomize(build(name)).eval().double()
    folded = backbone.folded(torch.float64)
    assert folded is not None
    images = torch.rand(2, 3, *side, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # features are float32 else
        expected = backbone(images)
        largest = float(expected.abs().max())
        torch.testing.assert_close(folded(images), expected, rtol=1e-10, atol=1e-12 * largest)


@pytest.mark.parametrize("onednn", [True, False])
def test_a_folded_efficientnet_gives_the_same_in_parts(
    onednn: bool, monkeypatch: pytest.MonkeyPatch
):
    if not onednn:
        monkeypatch.setattr("burn.backbones.folded._onednn", lambda dtype: False)
    elif not _onednn(torch.float32):
        pytest.skip("this PyTorch has no fused oneDNN convolution")
    backbone = randomize(build("tf_efficientnet_lite0")).eval()
    images = torch.randint(0, 256, (5, 3, 40, 48), dtype=torch.uint8)
    with torch.no_grad():
        expected = backbone(images)
    for pixels in (2 * 40 * 48, 1, 10**6):
        monkeypatch.setattr("burn.backbones.folded._EFFICIENTNET_PIXELS", pixels)
        folded = backbone.folded(torch.float32)
        assert folded is not None
        largest = float(expected.abs().max())
        # float32 through 50 convolutions whose weights were rounded once more.
        torch.testing.assert_close(folded(images), expected, rtol=1e-4, atol=1e-5 * largest)


def test_synchronized_batch_norm_with_an_activation_folds_too():
    backbone = randomize(build("tf_efficientnet_lite0")).eval()
    images = torch.rand(2, 3, 32, 32)
    folded = backbone.folded(torch.float32)
    assert folded is not None
    expected = folded(images)
    synchronize_norms(backbone).eval()
    assert not any(type(part) is BatchNormAct2d for part in backbone.modules())
    converted = backbone.folded(torch.float32)
    assert converted is not None
    assert torch.equal(converted(images), expected)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_050"])
def test_weights_that_are_not_finite_are_not_hidden(name: str):
    backbone = randomize(build(name)).eval()
    with torch.no_grad():
        next(backbone.parameters()).fill_(float("nan"))
    folded = backbone.folded(torch.float32)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        found = backbone(images) if folded is None else folded(images)
    assert found.isnan().any()


# Transformers, gates, SiLU, mixed kernels, and blocks of other kinds.
@pytest.mark.parametrize(
    "name",
    ["test_vit", "test_efficientnet", "efficientnet_es", "mixnet_s", "mobilenetv3_small_050"],
)
def test_other_networks_are_not_folded(name: str):
    assert build(name).eval().folded(torch.float32) is None


def test_bfloat16_is_near_and_the_weights_stay():
    backbone = randomize(build("resnet18", width=0.5)).eval()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    images = torch.rand(4, 3, 64, 64)
    folded = backbone.folded(torch.bfloat16)
    assert folded is not None
    found = folded(images)
    with torch.no_grad():
        expected = backbone(images)
    assert found.dtype == torch.float32
    # 8 bits of mantissa, through 20 convolutions.
    assert torch.cosine_similarity(found, expected).min() > 0.999
    now = backbone.state_dict()
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


def test_a_batch_in_parts_is_the_batch(monkeypatch: pytest.MonkeyPatch):
    backbone = randomize(build("resnet18", width=0.25)).eval()
    images = torch.rand(5, 3, 32, 32)
    folded = backbone.folded(torch.float32)
    assert folded is not None
    whole = folded(images)
    monkeypatch.setattr("burn.backbones.folded._RESNET_PIXELS", 2 * 32 * 32)
    folded = backbone.folded(torch.float32)
    assert folded is not None
    torch.testing.assert_close(folded(images), whole, rtol=1e-5, atol=1e-5)  # other kernels
    monkeypatch.setattr("burn.backbones.folded._RESNET_PIXELS", 1)
    folded = backbone.folded(torch.float32)
    assert folded is not None
    torch.testing.assert_close(folded(images), whole, rtol=1e-5, atol=1e-5)


def test_synchronised_norms_fold_too():
    """A run on several GPUs converts the teacher's BN, which in eval mode stays what it was."""
    backbone = randomize(build("test_resnet")).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = backbone(images)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(backbone)
    assert isinstance(converted, FloatBackbone)
    folded = converted.folded(torch.float32)
    assert folded is not None
    with torch.no_grad():
        torch.testing.assert_close(folded(images), expected, rtol=1e-4, atol=1e-4)
