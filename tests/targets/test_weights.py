"""Weights of other frameworks' layouts, of ours, and files that are refused."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from burn.backbones import Backbone, BackboneConfig, build_backbone
from burn.backbones.float import FloatBackbone
from burn.checkpoint import load_checkpoint, save_checkpoint
from burn.errors import UserError
from burn.targets.weights import backbone_from, load_backbone
from burn.types import Precision
from networks import randomize, tiny_reactnet

ARCHITECTURE = "test_resnet"  # timm's smallest ResNet, 373,000 weights
IMAGES = torch.randint(
    0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(6), dtype=torch.uint8
)


@pytest.fixture(scope="module")
def source() -> FloatBackbone:
    """A network whose weights no fresh one has."""
    torch.manual_seed(42)
    backbone = build_backbone(BackboneConfig(name=ARCHITECTURE), Precision.FLOAT)
    assert isinstance(backbone, FloatBackbone)
    return randomize(backbone).eval()


@pytest.fixture
def plain(source: FloatBackbone) -> dict[str, Tensor]:
    return {name: t.clone().contiguous() for name, t in source.model.state_dict().items()}


def below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights.items()}


def noise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Other weights of the same names and shapes, to be taken by mistake."""
    return {name: torch.rand_like(t.float()).to(t.dtype) for name, t in weights.items()}


def moco(w: dict[str, Tensor]) -> Any:
    head = {"fc.0.weight": torch.rand(8, 96), "fc.2.bias": torch.rand(8)}
    state = below("module.encoder_k.", noise(w) | head) | below("module.encoder_q.", w | head)
    state |= {"module.queue": torch.rand(8, 16), "module.queue_ptr": torch.zeros(1)}
    return {"epoch": 800, "arch": "resnet50", "state_dict": state, "optimizer": {"state": {}}}


def dino(w: dict[str, Tensor]) -> Any:
    head = below(
        "module.head.", {"mlp.0.weight": torch.rand(8, 96), "last_layer.weight_g": torch.rand(8)}
    )
    return {
        "student": below("module.backbone.", noise(w)) | head,
        "teacher": below("module.backbone.", w) | head,
        "epoch": 100,
        "args": {"arch": "resnet50"},
    }


def torchvision(w: dict[str, Tensor]) -> Any:
    return w | {"fc.weight": torch.rand(1000, 96), "fc.bias": torch.rand(1000)}


def older(w: dict[str, Tensor]) -> Any:
    """Files from before BN counted its batches."""
    return {name: t for name, t in w.items() if not name.endswith("num_batches_tracked")}


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "MoCo v2": moco,
    "DINO": dino,
    "DINO, teacher unwrapped": lambda w: {"teacher": below("backbone.", w)},
    "torchvision": torchvision,
    "timm": lambda w: w,
    "older": older,
    "data parallel": lambda w: below("module.", torchvision(w)),
    "Lightning-like": lambda w: {"state_dict": below("backbone.", w), "epoch": 3},
    "training script": lambda w: {"model": torchvision(w), "epoch": 3},
    "data parallel script": lambda w: {"state_dict": below("module.", torchvision(w))},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_source_networks_features(
    layout: str, source: FloatBackbone, plain: dict[str, Tensor], tmp_path: Path
):
    file = tmp_path / "weights.pth"
    torch.save(LAYOUTS[layout](plain), file)
    backbone, origin = load_backbone(f"{ARCHITECTURE}:{file}")
    assert not backbone.training
    with torch.no_grad():
        assert torch.equal(backbone(IMAGES), source(IMAGES))
    assert origin == {
        "spec": f"{ARCHITECTURE}:{file}",
        "architecture": ARCHITECTURE,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }


def test_safetensors(source: FloatBackbone, plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.safetensors"
    save_file(torchvision(plain), file)
    backbone, _ = load_backbone(f"{ARCHITECTURE}:{file}")
    with torch.no_grad():
        assert torch.equal(backbone(IMAGES), source(IMAGES))


def test_torchs_older_format(source: FloatBackbone, plain: dict[str, Tensor], tmp_path: Path):
    """MoCo's public files are of this kind: no zip archive, several pickles in a row."""
    file = tmp_path / "weights.pth.tar"
    torch.save(moco(plain), file, _use_new_zipfile_serialization=False)
    backbone, _ = load_backbone(f"{ARCHITECTURE}:{file}")
    with torch.no_grad():
        assert torch.equal(backbone(IMAGES), source(IMAGES))


@pytest.mark.parametrize("name", ["test_convnext", "test_mambaout"])
def test_a_backbone_with_weights_of_its_own_in_its_head(name: str, tmp_path: Path):
    """Only the classifier is left out; what lacks the backbone's part is refused."""
    torch.manual_seed(3)
    whole = timm.create_model(name, num_classes=10).state_dict()
    file = tmp_path / "weights.pth"
    torch.save({"state_dict": below("module.", whole)}, file)
    backbone, _ = load_backbone(f"{name}:{file}")
    found = backbone.state_dict()
    assert {n for n in whole if f"model.{n}" not in found} == {"head.fc.weight", "head.fc.bias"}
    assert all(torch.equal(tensor, whole[n.removeprefix("model.")]) for n, tensor in found.items())
    torch.save({n: t for n, t in whole.items() if n != "head.norm.bias"}, file)
    refused(f"{name}:{file}", file, "lacks head.norm.bias")
    torch.save(whole | {"heads.fc.weight": torch.zeros(1)}, file)
    refused(f"{name}:{file}", file, "unknown heads.fc.weight")


# --- Our own checkpoints. ---


def save_ours(
    file: Path, network: Backbone, precision: Precision, changes: Mapping[str, Any] | None = None
) -> None:
    meta = {"backbone": asdict(network.config), "precision": precision.value, "stage": 1}
    save_checkpoint(file, below("backbone.", network.state_dict()), {**meta, **(changes or {})})


@pytest.mark.parametrize("precision", [Precision.BINARY_ACTIVATIONS, Precision.BINARY])
def test_our_own_checkpoint(precision: Precision, tmp_path: Path):
    original = randomize(tiny_reactnet(precision, seed=8, mean=(0.4, 0.4, 0.4))).eval()
    file = tmp_path / "stage1.safetensors"
    save_ours(file, original, precision)
    for spec in (file, tmp_path):
        backbone, origin = load_backbone(str(spec))
        assert backbone.config == original.config
        assert not backbone.training
        with torch.no_grad():
            assert torch.equal(backbone(IMAGES), original(IMAGES))
        assert origin["architecture"] == "reactnet_a"
        assert origin["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_our_float_teacher(source: FloatBackbone, tmp_path: Path):
    save_ours(tmp_path / "stage1.safetensors", source, Precision.FLOAT)
    backbone, origin = load_backbone(str(tmp_path))
    with torch.no_grad():
        assert torch.equal(backbone(IMAGES), source(IMAGES))
    assert origin["architecture"] == ARCHITECTURE


def test_fresh_is_the_same_network_with_new_weights_of_the_seed(tmp_path: Path):
    original = randomize(tiny_reactnet(seed=8))
    file = tmp_path / "stage1.safetensors"
    save_ours(file, original, Precision.BINARY)
    checkpoint = load_checkpoint(file)
    one, again, other = (backbone_from(checkpoint, fresh=True, seed=s) for s in (1, 1, 2))
    assert one.config == original.config
    states = [b.state_dict() for b in (one, again, other, original)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for state in states[2:]:
        assert not torch.equal(states[0]["stem.weight"], state["stem.weight"])


# --- Refusals: one line, naming the file. ---


def refused(spec: str, file: Path, words: str | None = None) -> str:
    with pytest.raises(UserError, match=words) as caught:
        load_backbone(spec)
    message = str(caught.value)
    assert str(file) in message, message
    assert "\n" not in message, message
    return message


def save(content: Any, file: Path) -> str:
    torch.save(content, file)
    return f"{ARCHITECTURE}:{file}"


def test_wrong_architecture(plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    save(plain, file)
    refused(f"resnet18:{file}", file, "does not fit")


@pytest.mark.parametrize("layout", ["timm", "MoCo v2"])
def test_a_missing_and_an_unknown_key(layout: str, plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    names = [name for name in plain if name.endswith("weight")]
    spec = save(LAYOUTS[layout]({k: v for k, v in plain.items() if k != names[3]}), file)
    refused(spec, file, f"lacks {names[3]}")
    spec = save(LAYOUTS[layout](plain | {"layer9.weight": torch.zeros(1)}), file)
    refused(spec, file, "unknown layer9.weight")


def test_many_missing_keys_are_counted(plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    kept = dict(list(plain.items())[:5])
    lacking = [n for n in plain if n not in kept and not n.endswith("num_batches_tracked")]
    refused(save(kept, file), file, f"and {len(lacking) - 3} more")


def test_a_wrong_shape(plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    name = next(n for n in plain if n.endswith("weight"))
    spec = save(plain | {name: plain[name][:1]}, file)
    refused(spec, file, rf"{name} \(1, .*instead of")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_files(suffix: str, share: float, plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(plain, file)
    else:
        save_file(plain, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    refused(f"{ARCHITECTURE}:{file}", file, "not a weights file")


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 0.99])
def test_truncated_files_of_torchs_older_format(
    share: float, plain: dict[str, Tensor], tmp_path: Path
):
    file = tmp_path / "weights.pth"
    torch.save(plain, file, _use_new_zipfile_serialization=False)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    refused(f"{ARCHITECTURE}:{file}", file, "not a weights file")


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n",
        b"Not Found",
        b'{"message": "Not Found"}\n',
        bytes(range(256)) * 40,
        b"\x80\x02" + bytes(100),
    ],
    ids=["html", "text", "json", "noise", "pickle header"],
)
def test_what_is_no_weights_file(suffix: str, content: bytes, tmp_path: Path):
    """An error page saved under the name of weights must not be called an attack."""
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    refused(f"{ARCHITECTURE}:{file}", file, "not a weights file")


@pytest.mark.parametrize(
    "content",
    [[torch.zeros(1)], torch.zeros(3), {}, {"epoch": 3}, {"state_dict": {}}, {"model": {"a": 1}}],
    ids=["list", "tensor", "empty", "no tensors", "empty state dict", "no tensors below"],
)
def test_files_without_weights(content: Any, tmp_path: Path):
    file = tmp_path / "weights.pth"
    refused(save(content, file), file, "holds")


# --- Nothing in a file is executed. ---


class Payload:
    """Unpickled, it would create the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def plain_pickle(content: Any, file: Path) -> None:
    file.write_bytes(pickle.dumps(content, protocol=2))


def newer_pickle(content: Any, file: Path) -> None:
    """Of Python's own protocol, at which torch's reader stops before it comes to the code."""
    file.write_bytes(pickle.dumps(content, protocol=4))


def older_torch(content: Any, file: Path) -> None:
    torch.save(content, file, _use_new_zipfile_serialization=False)


def zip_around(content: Any, file: Path) -> None:
    """A hand-made archive in the shape of torch's."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(1)}, buffer)
    with zipfile.ZipFile(buffer) as original, zipfile.ZipFile(file, "w") as forged:
        for name in original.namelist():
            data = pickle.dumps(content, 2) if name.endswith("data.pkl") else original.read(name)
            forged.writestr(name, data)


@pytest.mark.parametrize("write", [torch.save, older_torch, plain_pickle, newer_pickle, zip_around])
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_a_pickle_with_code_is_refused_and_not_run(
    write: Callable[[Any, Path], None], suffix: str, plain: dict[str, Tensor], tmp_path: Path
):
    file, marker = tmp_path / f"weights{suffix}", tmp_path / "marker"
    write({"state_dict": plain, "extra": Payload(marker)}, file)
    message = refused(f"{ARCHITECTURE}:{file}", file)
    assert not marker.exists()
    if suffix != ".safetensors" and write is not newer_pickle:
        assert "could run code" in message


def test_the_payload_would_have_run(tmp_path: Path):
    """What the test above guards against is real."""
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()


# --- Specs and descriptions. ---


def test_specs_that_name_nothing(tmp_path: Path):
    with pytest.raises(UserError, match=r"no checkpoint at .*ARCHITECTURE:FILE"):
        load_backbone(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no weights file at .*nowhere.pth"):
        load_backbone(f"{ARCHITECTURE}:{tmp_path}/nowhere.pth")
    with pytest.raises(UserError, match="no weights file"):
        load_backbone(f"{ARCHITECTURE}:{tmp_path}")
    with pytest.raises(UserError, match="unknown backbone 'resnet81'"):
        load_backbone(f"resnet81:{tmp_path}/nowhere.pth")


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "ternary"},
        {"precision": None},
        {"backbone": None},
        {"backbone": {}, "precision": 3},
        {"backbone": {"name": "reactnet_a", "depth": 3}},
        {"backbone": "reactnet_a"},
    ],
    ids=str,
)
def test_our_checkpoint_with_a_description_that_cannot_be(changes: dict[str, Any], tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    save_ours(file, tiny_reactnet(), Precision.BINARY, changes)
    refused(str(file), file)


@pytest.mark.parametrize("lacking", ["backbone", "precision"])
def test_our_checkpoint_without_a_description(lacking: str, tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    backbone = tiny_reactnet()
    meta = {"backbone": asdict(backbone.config), "precision": "binary"}
    del meta[lacking]
    save_checkpoint(file, below("backbone.", backbone.state_dict()), meta)
    refused(str(file), file, lacking)


def test_our_checkpoint_that_lacks_weights(tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    backbone = tiny_reactnet()
    weights = below("backbone.", backbone.state_dict())
    del weights["backbone.stem.weight"]
    meta = {"backbone": asdict(backbone.config), "precision": "binary"}
    save_checkpoint(file, weights, meta)
    refused(str(file), file, "lacks stem.weight")
