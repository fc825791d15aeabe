"""Weights of other frameworks' layouts, of ours, and files that are refused."""

from __future__ import annotations

import argparse
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
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, OfflineModeIsEnabled
from lightly.models.modules import MoCoProjectionHead, SimCLRProjectionHead
from safetensors.torch import save_file
from torch import Tensor

from burn.backbones.base import Backbone
from burn.backbones.config import IMAGENET_MEAN, BackboneConfig
from burn.backbones.float import FloatBackbone
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import backbone_from, load_backbone, load_teacher
from burn.checkpoints.native import load_checkpoint, save_checkpoint
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.base import mlp
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
    head = {
        "fc.0.weight": torch.rand(96, 96), "fc.0.bias": torch.rand(96),
        "fc.2.weight": torch.rand(8, 96), "fc.2.bias": torch.rand(8),
    }  # fmt: skip
    state = below("module.encoder_k.", noise(w) | head) | below("module.encoder_q.", w | head)
    state |= {"module.queue": torch.rand(8, 16), "module.queue_ptr": torch.zeros(1)}
    return {"epoch": 800, "arch": "resnet50", "state_dict": state, "optimizer": {"state": {}}}


def torchvision(w: dict[str, Tensor]) -> Any:
    return w | {"fc.weight": torch.rand(1000, 96), "fc.bias": torch.rand(1000)}


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


@pytest.mark.parametrize("name", ["reactnet_a", "reactnet_xs"])
def test_a_plain_state_dict_of_reactnet(name: str, tmp_path: Path):
    torch.manual_seed(3)
    original = randomize(build_backbone(BackboneConfig(name), Precision.FLOAT)).eval()
    file = tmp_path / "weights.pth"
    torch.save(original.state_dict(), file)
    backbone, origin = load_backbone(f"{name}:{file}")
    assert origin["place"] == ""
    with torch.no_grad():
        assert torch.equal(backbone(IMAGES), original(IMAGES))


def save_ours(
    file: Path, network: Backbone, precision: Precision, changes: Mapping[str, Any] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:  # fmt: skip
    meta = {"backbone": asdict(network.config), "precision": precision.value, "stage": 1}
    held = {**below("backbone.", network.state_dict()), **(weights or {})}
    save_checkpoint(file, held, {**meta, **(changes or {})})


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


def test_our_teachers_heads(source: FloatBackbone, tmp_path: Path):
    """The methods' own modules give, from the features, what the teacher's heads give."""
    torch.manual_seed(5)
    simclr = randomize(SimCLRProjectionHead(96, 40, 12)).eval()
    moco = randomize(MoCoProjectionHead(96, 30, 10)).eval()
    sequence = randomize(mlp(96, 20, 7)).eval()
    classifier = torch.nn.Linear(96, 5)
    file, features = tmp_path / "stage1.safetensors", torch.randn(4, 96)
    for head in (simclr, moco, sequence):
        parts = below("head.", head.state_dict()) | below("classifier.", classifier.state_dict())
        save_ours(file, source, Precision.FLOAT, weights=parts)
        teacher = load_teacher(str(tmp_path))
        assert teacher.head is not None
        assert teacher.classifier is not None
        with torch.no_grad():
            assert torch.equal(teacher.head(features), head(features))
            assert torch.equal(teacher.classifier(features), classifier(features))
    save_ours(file, source, Precision.FLOAT, weights=below("classifier.", sequence.state_dict()))
    teacher = load_teacher(str(tmp_path))
    assert teacher.head is None
    assert teacher.classifier is None, "BURN's own is no classifier of labels"
    save_ours(file, source, Precision.FLOAT, weights={"head.tokens": torch.rand(3)})
    with pytest.raises(UserError, match="projection head cannot be read: tokens"):
        load_teacher(str(tmp_path))
    load_backbone(str(tmp_path))  # evaluation asks for no head


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
    with pytest.raises(UserError):
        load_teacher(spec)
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
    wrap, prefix = {"timm": (dict, ""), "MoCo v2": (moco, "module.encoder_q.")}[layout]
    spec = save(wrap({k: v for k, v in plain.items() if k != names[3]}), file)
    refused(spec, file, f"lacks {names[3]}; nearest: .*, 89 of 90 names")
    spec = save(wrap(plain | {"layer9.weight": torch.zeros(1)}), file)
    refused(spec, file, f"unknown {prefix}layer9.weight; nearest: ")


def test_many_missing_keys_are_counted(plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    kept = dict(list(plain.items())[:5])
    lacking = [n for n in plain if n not in kept and not n.endswith("num_batches_tracked")]
    words = f"lacks {', '.join(lacking[:2])} and {len(lacking) - 2} more; nearest"
    refused(save(kept, file), file, words)


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


def test_only_an_optimizer(tmp_path: Path):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    file = tmp_path / "weights.pth"
    refused(save({"optimizer": optimizer.state_dict()}, file), file, "no weights.*: optimizer")


def test_names_of_strangers_are_printed_on_one_line(plain: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "weights.pth"
    other = {f"{name}\n\x1b[2J": tensor for name, tensor in plain.items()}
    names = "conv1.0.weight [^,]+, [^,]+ and 88 more"
    message = refused(save(other, file), file, f"none of its weights is known, of {names}")
    assert message.isprintable()
    below_strange = below("a\n\x1b[2J.", dict(list(plain.items())[:-3]))
    assert refused(save(below_strange, file), file, "nearest: a").isprintable()


@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder_q."])
def test_the_head_alone(prefix: str, tmp_path: Path):
    file = tmp_path / "weights.pth"
    head = below(prefix, {"fc.weight": torch.rand(9, 96), "fc.bias": torch.rand(9)})
    refused(save({"state_dict": head}, file), file, "none of its weights is known, of .*fc.weight")


def test_numbers_that_are_none(plain: dict[str, Tensor], tmp_path: Path):
    file, name = tmp_path / "weights.pth", "layer1.0.conv1.weight"
    for value in (float("nan"), float("inf")):
        broken = plain[name].clone()
        broken[0, 0, 0, 0] = value
        spec = save(plain | {name: broken}, file)
        refused(spec, file, f"not finite, first in {name}")
    spec = save(torchvision(plain) | {"fc.bias": torch.full((1000,), float("nan"))}, file)
    refused(spec, file, r"not finite, first in fc.bias")
    refused(save(plain | {name: plain[name].to(torch.int8)}, file), file, f"int8 in {name}")
    refused(save(plain | {name: plain[name].to_sparse()}, file), file, f"sparse_coo.* {name}")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_weights_are_converted(
    kind: torch.dtype, plain: dict[str, Tensor], tmp_path: Path
):
    file = tmp_path / "weights.pth"
    weights = {k: v.to(kind) if v.is_floating_point() else v for k, v in plain.items()}
    teacher = load_teacher(save(torchvision(weights), file))
    for name, tensor in teacher.backbone.state_dict().items():
        assert torch.equal(tensor, weights[name.removeprefix("model.")].to(tensor.dtype))
    assert teacher.classifier is not None
    assert teacher.classifier.weight.dtype == torch.float32
    with torch.no_grad():
        assert teacher.backbone(IMAGES).isfinite().all()


def test_a_whole_checkpoint_is_not_taken_for_a_file_of_weights(tmp_path: Path):
    file = tmp_path / "weights.pth"
    save(torchvision({}), file)
    refused(str(file), file, f"not a checkpoint of burn's.*ARCHITECTURE:{file}")


# --- Nothing in a file is executed. ---


def test_options_in_a_namespace_are_read_and_what_they_hold_is_not_run(
    plain: dict[str, Tensor], tmp_path: Path
):
    """DINO's and timm's checkpoints keep their command line so."""
    file, marker = tmp_path / "weights.pth", tmp_path / "marker"
    spec = save({"state_dict": plain, "args": argparse.Namespace(lr=0.1, arch="resnet50")}, file)
    assert load_teacher(spec).origin["place"] == "state_dict."
    save({"state_dict": plain, "args": argparse.Namespace(lr=Payload(marker))}, file)
    refused(spec, file, "could run code")
    assert not marker.exists()


def test_options_that_are_not_made_as_theirs(tmp_path: Path):
    class Wrong:
        def __reduce__(self) -> tuple[type, tuple[int, int]]:
            return argparse.Namespace, (1, 2)

    file = tmp_path / "weights.pth"
    refused(save({"args": Wrong()}, file), file, "not a weights file")


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
    # Without torch a tag is not known: a file that is missing is reported first.
    (tmp_path / "there.pth").touch()
    files = {"resnet81": "nowhere.pth", "resnet50.a9_in1k": "there.pth"}
    for name in (*files, *(f"hub:{name}" for name in files)):
        spec = name if name.startswith("hub:") else f"{name}:{tmp_path}/{files[name]}"
        with pytest.raises(
            UserError, match=f"unknown backbone '{name.removeprefix('hub:')}'.*similar names"
        ):
            load_backbone(spec)


# --- Weights that timm publishes, without a network. ---


def hub(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, Path]) -> list[tuple[str, str]]:
    """A hub that holds `files` alone; what is asked of it."""
    asked: list[tuple[str, str]] = []

    def download(repo_id: str, filename: str, **_: Any) -> str:
        asked.append((repo_id, filename))
        if filename not in files:
            raise EntryNotFoundError(f"404: no {filename}\nRequest ID: 1")
        return str(files[filename])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return asked


def test_the_hub_gives_architecture_weights_and_normalisation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    torch.manual_seed(9)
    model = timm.create_model("test_vit", num_classes=1000).eval()
    file = tmp_path / "model.safetensors"
    save_file(model.state_dict(), file)
    asked = hub(monkeypatch, {"model.safetensors": file, "pytorch_model.bin": file})
    images = torch.rand(2, 3, 160, 160)
    for spec in ("hub:test_vit.r160_in1k", "hub:test_vit"):
        teacher = load_teacher(spec)
        assert teacher.classifier is not None
        with torch.no_grad():
            logits = teacher.classifier(teacher.backbone(images))
            expected = model((images - 0.5) / 0.5)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)  # float32, other kernels
        assert teacher.origin == {
            "spec": spec,
            "architecture": "test_vit.r160_in1k",
            "place": "",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
    assert asked == [("timm/test_vit.r160_in1k", "model.safetensors")] * 2
    by_file = load_teacher(f"test_vit.r160_in1k:{file}").backbone
    assert by_file.config == teacher.backbone.config
    assert load_teacher(f"test_vit:{file}").backbone.config.mean == IMAGENET_MEAN


def test_the_hub_without_safetensors_and_with_wrong_weights(
    monkeypatch: pytest.MonkeyPatch, plain: dict[str, Tensor], tmp_path: Path
):
    file = tmp_path / "pytorch_model.bin"
    asked = hub(monkeypatch, {"pytorch_model.bin": file})
    torch.save(plain, file)
    load_teacher("hub:test_resnet")
    assert [name for _, name in asked] == ["model.safetensors", "pytorch_model.bin"]
    del plain["conv1.0.weight"]
    torch.save(plain, file)
    refused("hub:test_resnet", file, "lacks conv1.0.weight")


@pytest.mark.parametrize("error", [LocalEntryNotFoundError, OfflineModeIsEnabled, TimeoutError])
def test_the_hub_out_of_reach(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def download(*_: Any, **__: Any) -> str:
        raise error("no connection\nsecond line")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    words = rf"hub:resnet18.a1_in1k cannot be fetched \({error.__name__}; .*: give resnet18.*:FILE"
    with pytest.raises(UserError, match=words) as caught:
        load_teacher("hub:resnet18.a1_in1k")
    assert "\n" not in str(caught.value)


def test_an_architecture_without_published_weights():
    with pytest.raises(UserError, match="no weights of mixer_s32_224: give mixer_s32_224:FILE"):
        load_teacher("hub:mixer_s32_224")


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
