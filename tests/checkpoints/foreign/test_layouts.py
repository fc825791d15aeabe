"""Every known format gives the original network's function, by the published names."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.backbones.float import FloatBackbone
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign import weights as weights_module
from burn.checkpoints.foreign.layouts import TEACHER_SYNTAX
from burn.checkpoints.foreign.weights import load_teacher
from burn.core.errors import UserError
from burn.core.types import Precision
from networks import randomize

ARCHITECTURE = "test_resnet"  # timm's smallest ResNet, 373,000 weights
IMAGES = torch.randint(
    0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(6), dtype=torch.uint8
)
Weights = dict[str, Tensor]


def below(prefix: str, weights: Mapping[str, Tensor]) -> Weights:
    return {prefix + name: tensor for name, tensor in weights.items()}


def noise(weights: Mapping[str, Tensor]) -> Weights:
    """Other weights of the same names and shapes, to be taken by mistake."""
    return {name: torch.rand_like(t.float()).to(t.dtype) for name, t in weights.items()}


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(2)
    return randomize(nn.Sequential(*layers)).eval()


MLP = sequence(nn.Linear(96, 20), nn.ReLU(), nn.Linear(20, 8))
NORM = sequence(nn.Linear(96, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 8))
DEEP = sequence(
    nn.Linear(96, 20, bias=False), nn.BatchNorm1d(20), nn.ReLU(),
    nn.Linear(20, 20, bias=False), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 8, bias=False),
)  # fmt: skip
LAST = sequence(
    nn.Linear(96, 20, bias=False), nn.BatchNorm1d(20), nn.ReLU(),
    nn.Linear(20, 8, bias=False), nn.BatchNorm1d(8, affine=False),
)  # fmt: skip
LINEAR = sequence(nn.Linear(96, 8))
GELU = {
    "mlp.0.weight": torch.rand(8, 96), "mlp.0.bias": torch.rand(8),
    "mlp.2.weight": torch.rand(8, 8),
    "last_layer.weight_g": torch.rand(8, 1), "last_layer.weight_v": torch.rand(8, 8),
}  # fmt: skip
PREDICTOR = {"0.weight": torch.rand(4, 8)}
FC = nn.Linear(96, 10)


def moco(w: Weights, head: Weights) -> Any:
    state = below("module.encoder_q.", w | head) | below("module.encoder_k.", noise(w | head))
    state |= {"module.queue": torch.rand(8, 16), "module.queue_ptr": torch.zeros(1)}
    return {"epoch": 800, "arch": "resnet50", "state_dict": state, "optimizer": {"state": {}}}


def moco_v3(w: Weights) -> Any:
    whole = w | below("fc.", LAST.state_dict())
    state = below("module.base_encoder.", whole) | below("module.momentum_encoder.", noise(whole))
    state |= below("module.predictor.", PREDICTOR)
    return {"epoch": 1000, "arch": "resnet50", "state_dict": state, "scaler": {"scale": 1.0}}


def dino(w: Weights, prefix: str) -> Any:
    """The published full checkpoints: the teacher is wrapped where it has batch normalisation."""
    student = below("module.backbone.", noise(w)) | below("module.head.", GELU)
    return {
        "student": student,
        "teacher": below(f"{prefix}backbone.", w) | below(f"{prefix}head.", GELU),
        "epoch": 100,
        "args": argparse.Namespace(arch="resnet50", lr=0.3),
        "dino_loss": {"center": torch.rand(1, 8)},
    }


def swav(w: Weights) -> Weights:
    return below(
        "module.",
        w | below("projection_head.", NORM.state_dict()) | {"prototypes.weight": torch.rand(9, 8)},
    )


def twins(w: Weights, prefix: str) -> Any:
    state = below(f"{prefix}backbone.", w) | below(f"{prefix}projector.", DEEP.state_dict())
    state |= below(f"{prefix}bn.", nn.BatchNorm1d(8, affine=False).state_dict())
    return {"epoch": 1000, "model": state, "optimizer": {"state": {}}}


def lucidrains(w: Weights, prefix: str) -> Weights:
    fc = below("net.fc.", FC.state_dict())
    online = below("net.", w) | fc | below("projector.", NORM.state_dict())
    state = below("online_encoder.", online) | below("target_encoder.", noise(online))
    return below(prefix, state | below("online_predictor.", PREDICTOR))


def solo(w: Weights) -> Any:
    both = below("backbone.", w) | below("projector.", NORM.state_dict())
    state = both | below("momentum_", noise(both)) | below("predictor.", PREDICTOR)
    state |= below("classifier.", FC.state_dict()) | below("momentum_classifier.", FC.state_dict())
    return {"state_dict": state, "pytorch-lightning_version": "1.6.4"}


def mmlab(w: Weights) -> Any:
    state = below("backbone.", w) | below("neck.mlp.0.", PREDICTOR)
    state |= below("target_net.module.0.", noise(w)) | below("head.predictor.", PREDICTOR)
    return {"meta": {"epoch": 200}, "state_dict": state}


def infomin(w: Weights) -> Any:
    state = below("encoder.", w) | below("head.", MLP.state_dict())
    return {"model": below("module.", state | below("head_jig.fc1.", PREDICTOR)), "epoch": 800}


def simsiam(w: Weights) -> Any:
    state = below("encoder.", w | below("fc.", LAST.state_dict()))
    return {"state_dict": below("module.", state | below("predictor.", PREDICTOR)), "epoch": 100}


def torchvision(w: Weights) -> Weights:
    return w | below("fc.", FC.state_dict())


def older(w: Weights) -> Weights:
    """Files from before BN counted its batches."""
    return {name: t for name, t in w.items() if not name.endswith("num_batches_tracked")}


# What the file is: its format's name, its content, and the heads that must come out.
Case = tuple[str, Callable[[Weights], Any], nn.Module | None]
CASES: dict[str, Case] = {
    "MoCo v2": ("state_dict.encoder_q.", lambda w: moco(w, below("fc.", MLP.state_dict())), MLP),
    "MoCo v1": (
        "state_dict.encoder_q.", lambda w: moco(w, below("fc.", LINEAR[0].state_dict())), LINEAR
    ),
    "MoCo v3": ("state_dict.base_encoder.", moco_v3, LAST),
    "SimSiam": ("state_dict.encoder.", simsiam, LAST),
    "InfoMin": ("model.encoder.", infomin, MLP),
    "SwAV": ("", swav, NORM),
    "SwAV, resumable": ("state_dict.", lambda w: {"state_dict": swav(w), "epoch": 3}, NORM),
    "DINO ResNet": ("teacher.backbone.", lambda w: dino(w, "module."), None),
    "DINO ViT": ("teacher.backbone.", lambda w: dino(w, ""), None),
    "DINO, student": (
        "student.backbone.", lambda w: {"student": dino(w, "module.")["teacher"]}, None
    ),
    "Barlow Twins": ("model.backbone.", lambda w: twins(w, "module."), DEEP),
    "Barlow Twins, one device": ("model.backbone.", lambda w: twins(w, ""), DEEP),
    "BYOL, yaox12": (
        "online_backbone.",
        lambda w: {"online_backbone": below("module.", w), "target_backbone": noise(w)},
        None,
    ),
    "BYOL, yaox12, one device": ("online_backbone.", lambda w: {"online_backbone": w}, None),
    "BYOL, lucidrains": ("online_encoder.net.", lambda w: lucidrains(w, ""), NORM),
    "BYOL, lucidrains, wrapped": ("online_encoder.net.", lambda w: lucidrains(w, "module."), NORM),
    "solo-learn": ("state_dict.backbone.", solo, NORM),
    "OpenMMLab": ("state_dict.backbone.", mmlab, None),
    "timm, averaged": (
        "state_dict_ema.", lambda w: {"state_dict": noise(w), "state_dict_ema": torchvision(w)}, FC
    ),
    "timm, averaged, wrapped": (
        "state_dict_ema.", lambda w: {"state_dict_ema": below("module.", torchvision(w))}, FC
    ),
    "torchvision, averaged": (
        "model_ema.",
        lambda w: {
            "model": noise(w),
            "model_ema": below("module.", torchvision(w)) | {"n_averaged": torch.tensor(9)},
        },
        FC,
    ),
    "DeiT, averaged": ("model_ema.", lambda w: {"model_ema": torchvision(w)}, FC),
    "state dict": ("state_dict.", lambda w: {"state_dict": torchvision(w)}, FC),
    "state dict, wrapped": (
        "state_dict.", lambda w: {"state_dict": below("module.", torchvision(w))}, FC
    ),
    "state dict, backbone": (
        "state_dict.backbone.", lambda w: {"state_dict": below("backbone.", w), "epoch": 3}, None
    ),
    "state dict, wrapped backbone": (
        "state_dict.backbone.", lambda w: {"state_dict": below("module.backbone.", w)}, None
    ),
    "model": ("model.", lambda w: {"model": torchvision(w), "epoch": 3}, FC),
    "model, wrapped": ("model.", lambda w: {"model": below("module.", w)}, None),
    "torchvision": ("", torchvision, FC),
    "BYOL, Barlow Twins, VICReg, DINO: backbone alone": ("", lambda w: w, None),
    "older": ("", older, None),
    "data parallel": ("", lambda w: below("module.", torchvision(w)), FC),
    "backbone": ("backbone.", lambda w: below("backbone.", w), None),
}  # fmt: skip


@pytest.fixture(scope="module")
def source() -> FloatBackbone:
    """A network whose weights no fresh one has."""
    torch.manual_seed(42)
    backbone = build_backbone(BackboneConfig(name=ARCHITECTURE), Precision.FLOAT)
    assert isinstance(backbone, FloatBackbone)
    return randomize(backbone).eval()


def plain(source: FloatBackbone) -> Weights:
    return {name: t.clone().contiguous() for name, t in source.model.state_dict().items()}


@pytest.mark.parametrize("case", CASES)
def test_every_format_gives_the_original_networks_function(
    case: str, source: FloatBackbone, tmp_path: Path
):
    place, wrap, head = CASES[case]
    file = tmp_path / "weights.pth"
    torch.save(wrap(plain(source)), file)
    teacher = load_teacher(f"{ARCHITECTURE}:{file}")
    assert not teacher.backbone.training
    with torch.no_grad():
        features = source(IMAGES)
        assert torch.equal(teacher.backbone(IMAGES), features)
        for found, expected in (
            (teacher.head, None if head is FC else head),
            (teacher.classifier, FC if head is FC else None),
        ):
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert not found.training
                torch.testing.assert_close(found(features), expected(features), rtol=0, atol=0)
    assert teacher.origin == {
        "spec": f"{ARCHITECTURE}:{file}",
        "architecture": ARCHITECTURE,
        "place": place,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }


def test_something_unknown_beside_a_known_format_is_an_error(source: FloatBackbone, tmp_path: Path):
    file = tmp_path / "weights.pth"
    content = moco(plain(source), below("fc.", MLP.state_dict()))
    content["state_dict"] |= below("module.", {"queue2": torch.rand(1), "other.w": torch.rand(1)})
    torch.save(content, file)
    words = r"has unknown module.queue2, module.other.w; nearest: state_dict.encoder_q.\*, "
    with pytest.raises(UserError, match=words):
        load_teacher(f"{ARCHITECTURE}:{file}")


def test_a_damaged_projection_head(source: FloatBackbone, tmp_path: Path):
    file = tmp_path / "weights.pth"
    head = below("fc.", {k: v for k, v in MLP.state_dict().items() if k != "2.weight"})
    torch.save(moco(plain(source), head), file)
    with pytest.raises(UserError, match=rf"{file}: its projection head cannot be read: .* 2"):
        load_teacher(f"{ARCHITECTURE}:{file}")


# --- Transformers. ---


def transformer(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    model = timm.create_model(name, num_classes=0, dynamic_img_size=True, **options)
    return randomize(model).eval()


def same_function(spec: str, model: nn.Module, side: int) -> None:
    backbone = load_teacher(spec).backbone
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(backbone.normalize(images))
        # float32; position embeddings may have been resampled once more or once less.
        torch.testing.assert_close(backbone(images), expected, rtol=1e-3, atol=1e-4)
    assert expected.shape == (2, backbone.num_features)


@pytest.mark.parametrize("own", [160, 224])
def test_dinos_transformer_with_positions_of_this_or_another_grid(own: int, tmp_path: Path):
    model, file = transformer("test_vit", img_size=own), tmp_path / "weights.pth"
    torch.save(dino(model.state_dict(), ""), file)
    same_function(f"test_vit:{file}", model, 160)
    torch.save(model.state_dict(), file)
    same_function(f"test_vit:{file}", model, 160)


def test_moco_v3s_transformers_have_12_heads_of_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its ViT-S has timm's shapes and another number of heads: loaded there, another function."""
    model, file = transformer("test_vit"), tmp_path / "weights.pth"
    head = nn.Sequential(
        nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8, bias=False)
    )
    encoder = model.state_dict() | below("head.", head.state_dict())
    torch.save({"state_dict": below("module.base_encoder.", encoder)}, file)
    words = r"MoCo v3's transformers have 12 attention heads.*test_vit has 2"
    with pytest.raises(UserError, match=words):
        load_teacher(f"test_vit:{file}")
    monkeypatch.setattr(weights_module, "_MOCO3_HEADS", 2)
    same_function(f"test_vit:{file}", model, 160)
    assert load_teacher(f"test_vit:{file}").head is not None


def test_dinov2_in_its_own_names(tmp_path: Path):
    name, file = "vit_small_patch14_reg4_dinov2", tmp_path / "weights.pth"
    model = transformer(name)
    weights = dict(model.state_dict())
    # The original adds a position to its class token, and keeps a token for masked patches.
    position = torch.rand(1, 1, 384)
    weights["pos_embed"] = torch.cat([position, weights["pos_embed"]], dim=1)
    weights["cls_token"] = weights["cls_token"] - position
    weights["register_tokens"] = weights.pop("reg_token")
    weights["mask_token"] = torch.zeros(1, 384)
    torch.save(weights, file)
    same_function(f"{name}:{file}", model, 98)
    torch.save({"blocks.12.norm1.weight": torch.rand(384), **weights}, file)
    with pytest.raises(UserError, match=r"unknown blocks.12.norm1.weight.*; nearest: \*"):
        load_teacher(f"{name}:{file}")


def test_dinov3_in_its_own_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name, file = "vit_small_patch16_dinov3", tmp_path / "weights.pth"
    model = transformer(name)
    renamed = (("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"), ("reg_token", "storage_tokens"))
    weights = {}
    for key, tensor in model.state_dict().items():
        ours, theirs = next((pair for pair in renamed if pair[0] in key), ("", ""))
        weights[key.replace(ours, theirs) if ours else key] = tensor
    weights |= {"mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.rand(16)}
    for block in range(12):
        bias = {"qkv.bias": torch.zeros(1152), "qkv.bias_mask": torch.zeros(1152)}
        weights |= below(f"blocks.{block}.attn.", bias)
    torch.save(weights, file)
    same_function(f"{name}:{file}", model, 64)
    assert capsys.readouterr().out == ""


def test_patches_of_another_size_are_another_network(tmp_path: Path):
    """timm's conversion would resample the kernels."""
    model, file = transformer("test_vit", patch_size=8, img_size=80), tmp_path / "weights.pth"
    torch.save(model.state_dict(), file)
    with pytest.raises(UserError, match=r"patch_embed.proj.weight \(64, 3, 8, 8\) instead of"):
        load_teacher(f"test_vit:{file}")


def test_the_syntax_fits_a_terminal():
    assert len(TEACHER_SYNTAX.splitlines()) <= 14
    assert max(map(len, TEACHER_SYNTAX.splitlines())) <= 96


def test_a_file_of_too_many_tensors_is_refused_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("burn.checkpoints.foreign.layouts._MOST_ENTRIES", 3)
    file = tmp_path / "many.pth"
    torch.save({f"layer{number}.weight": torch.zeros(1) for number in range(4)}, file)
    with pytest.raises(UserError, match=r"many\.pth has more than 3 tensors"):
        load_teacher(f"{ARCHITECTURE}:{file}")
