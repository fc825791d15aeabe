"""A network is found under whatever wrappers the modules and dicts of a file put around it."""

from __future__ import annotations

import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from lightly.models.modules import MoCoProjectionHead
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from burn.backbones.config import BackboneConfig
from burn.backbones.float import FloatBackbone
from burn.backbones.registry import describe_backbone
from burn.checkpoints.foreign.heads import classifier_from, head_from
from burn.checkpoints.foreign.torch_file import check_torch_file
from burn.checkpoints.foreign.weights import Teacher, _classifiers, _fit, load_teacher
from burn.core.errors import UserError
from burn.core.types import Precision
from networks import randomize

ARCHITECTURE = "test_resnet"  # timm's smallest ResNet, 373,000 weights
WIDTH = 96
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return randomize(timm.create_model(ARCHITECTURE, num_classes=0)).eval()


NETWORK, OTHER = network(), network(1)
HEAD = randomize(MoCoProjectionHead(WIDTH, 20, 8)).eval()
MLP = randomize(nn.Sequential(nn.Linear(WIDTH, 20), nn.ReLU(), nn.Linear(20, 8))).eval()
FC = nn.Linear(WIDTH, 10)


def model(**parts: nn.Module) -> nn.Module:
    """A module, such as Lightning's, with other modules in it by name."""
    whole = nn.Module()
    for name, part in parts.items():
        whole.add_module(name, part)
    return whole


def compiled(part: nn.Module) -> nn.Module:
    """A module with the names of torch.compile's, which takes seconds to import."""
    return model(_orig_mod=part)


def state(**parts: nn.Module) -> dict[str, Tensor]:
    return dict(model(**parts).state_dict())


def children(net: nn.Module, skip: tuple[type[nn.Module], ...] = ()) -> nn.Sequential:
    return nn.Sequential(*(child for child in list(net.children())[:-1] if type(child) not in skip))


def lightning(**parts: nn.Module) -> dict[str, Any]:
    whole = model(**parts)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    return {
        "epoch": 3,
        "global_step": 99,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": whole.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 3}}}},
        "callbacks": {"ModelCheckpoint{}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1},
    }


def of_submodules(net: nn.Module, wrapper: str) -> dict[str, Tensor]:
    """Names as FSDP or checkpoints of activations leave them, around stages and blocks."""
    return {
        n.replace("layer1.", f"layer1.{wrapper}.").replace(".0.bn1", f".0.{wrapper}.bn1"): t
        for n, t in net.state_dict().items()
    }


def fused(net: nn.Module) -> dict[str, Tensor]:
    half = {n: t.half() if t.is_floating_point() else t for n, t in net.state_dict().items()}
    return {f"module._orig_mod.{n}": t for n, t in half.items()}


# What a file holds, the place where the network is found in it, and the heads that come out.
Case = tuple[Callable[[], Any], str, nn.Module | None]
CASES: dict[str, Case] = {
    "compiled": (lambda: compiled(NETWORK).state_dict(), "", None),
    "compiled in data parallel": (
        lambda: nn.DataParallel(compiled(NETWORK)).state_dict(), "", None
    ),
    "data parallel, compiled": (lambda: compiled(nn.DataParallel(NETWORK)).state_dict(), "", None),
    "a compiled network inside": (
        lambda: {"state_dict": state(model=compiled(NETWORK))}, "state_dict.model.", None
    ),
    "FSDP": (lambda: of_submodules(NETWORK, "_fsdp_wrapped_module"), "", None),
    "checkpoints of activations": (
        lambda: of_submodules(NETWORK, "_checkpoint_wrapped_module"), "", None
    ),
    "data parallel stages": (lambda: of_submodules(NETWORK, "module"), "", None),
    "Lightning": (lambda: lightning(model=NETWORK), "state_dict.model.", None),
    "Lightning, with a loss's buffers": (
        lambda: lightning(model=NETWORK, criterion=nn.BatchNorm1d(3)), "state_dict.model.", None
    ),
    "Lightning, two deep": (
        lambda: lightning(model=model(backbone=NETWORK, head=FC)),
        "state_dict.model.backbone.",
        FC,
    ),
    "encoder": (lambda: state(encoder=NETWORK), "encoder.", None),
    "net": (lambda: {"net": state(net=NETWORK), "acc": 91.5, "epoch": 9}, "net.net.", None),
    "a name of the author's own": (
        lambda: state(my_lovely_resnet=model(trunk=NETWORK)), "my_lovely_resnet.trunk.", None
    ),
    "lightly": (
        lambda: state(backbone=NETWORK, projection_head=HEAD), "backbone.", HEAD
    ),
    "lightly, children": (
        lambda: state(backbone=children(NETWORK), projection_head=HEAD), "backbone.", HEAD
    ),
    "lightly, MoCo": (
        lambda: lightning(
            backbone=children(NETWORK), projection_head=HEAD,
            backbone_momentum=children(OTHER), projection_head_momentum=deepcopy(HEAD),
        ), "state_dict.backbone.", HEAD,
    ),
    "lightly, DINO": (
        lambda: lightning(
            student_backbone=OTHER, student_head=MLP, teacher_backbone=NETWORK, teacher_head=MLP,
        ), "state_dict.teacher_backbone.", None,
    ),
    "children": (lambda: children(NETWORK).state_dict(), "", None),
    "children without those that hold no weights": (
        lambda: children(NETWORK, (nn.ReLU, nn.MaxPool2d)).state_dict(), "", None
    ),
    "children in a sequence in data parallel": (
        lambda: {"model": nn.DataParallel(nn.Sequential(children(NETWORK), MLP)).state_dict()},
        "model.0.",
        MLP,
    ),
    "children, then a head": (
        lambda: nn.Sequential(*children(NETWORK), nn.Flatten(), FC).state_dict(), "", FC
    ),
    "a sequence of backbone and head": (
        lambda: {"net": nn.Sequential(NETWORK, MLP).state_dict()}, "net.0.", MLP
    ),
    "DINOv2": (
        lambda: {
            "teacher": state(backbone=NETWORK, dino_head=MLP, ibot_head=MLP),
            "student": state(backbone=OTHER, dino_head=MLP, ibot_head=MLP),
            "iteration": 9,
        },
        "teacher.backbone.",
        None,
    ),
    "DINOv2, resumable": (
        lambda: {
            "model": state(
                teacher=model(backbone=NETWORK, dino_head=MLP),
                student=model(backbone=OTHER, dino_head=MLP),
                dino_loss=nn.BatchNorm1d(3),
            ),
            "optimizer": {"state": {0: {"exp_avg": torch.rand(3)}}},
        },
        "model.teacher.backbone.",
        None,
    ),
    "supervised": (lambda: state(backbone=NETWORK, fc=FC), "backbone.", FC),
    "averaged by torch": (
        lambda: {"model": OTHER.state_dict(), "ema": AveragedModel(NETWORK).state_dict()},
        "ema.",
        None,
    ),
    "averaged by timm": (
        lambda: {"net": OTHER.state_dict(), "net_ema": ModelEmaV3(NETWORK).state_dict()},
        "net_ema.",
        None,
    ),
    "averaged, in one dict": (
        lambda: lightning(model=OTHER, ema_model=NETWORK), "state_dict.ema_model.", None
    ),
    "I-JEPA": (
        lambda: {
            "encoder": nn.DataParallel(NETWORK).state_dict(),
            "target_encoder": nn.DataParallel(OTHER).state_dict(),
            "predictor": nn.DataParallel(MLP).state_dict(),
        },
        "encoder.",
        None,
    ),
    "SupContrast": (
        lambda: {"model": nn.DataParallel(model(encoder=NETWORK, head=MLP)).state_dict()},
        "model.encoder.",
        None,
    ),
    "registered twice": (lambda: state(encoder=NETWORK, net=NETWORK), "encoder.", None),
    "half precision, compiled in data parallel": (lambda: fused(NETWORK), "", None),
    **{
        f"in {key}": (lambda key=key: {key: NETWORK.state_dict(), "epoch": 3}, f"{key}.", None)
        for key in (
            "state_dict", "model", "model_state", "model_state_dict", "net", "network", "teacher",
            "student", "ema", "state_dict_ema", "weights", "params", "0",
        )
    },
    "five dicts deep": (
        lambda: {"a": {"b": {"c": {"d": NETWORK.state_dict()}}}}, "a.b.c.d.", None
    ),
    "dicts in place of dots": (
        lambda: {"model": {"backbone": NETWORK.state_dict(), "head": FC.state_dict()}},
        "model.backbone.",
        None,
    ),
}  # fmt: skip


def loaded(content: Any, file: Path, architecture: str = ARCHITECTURE) -> Teacher:
    torch.save(content, file)
    return load_teacher(f"{architecture}:{file}")


@pytest.fixture(scope="module")
def described() -> FloatBackbone:
    backbone = describe_backbone(BackboneConfig(ARCHITECTURE), Precision.FLOAT)
    assert isinstance(backbone, FloatBackbone)
    return backbone.eval()


@pytest.mark.parametrize("case", CASES)
def test_the_network_and_its_heads_are_found(case: str, described: FloatBackbone):
    make, place, head = CASES[case]
    found = _fit(make(), Path("weights.pth"), described.model, described)
    assert found.place == place
    for name, tensor in NETWORK.state_dict().items():
        assert torch.equal(found.backbone[name].to(tensor.dtype), rounded(tensor, case))
    features = torch.rand(2, WIDTH)
    labelled = head if case in ("supervised", "Lightning, two deep") else None
    projection = head_from(found.head, WIDTH) if found.head else None
    classifier = classifier_from(found.classifier, _classifiers(described), WIDTH)
    for one, wanted in ((projection, None if labelled else head), (classifier, labelled)):
        assert (one is None) == (wanted is None)
        assert one is None or torch.equal(one(features), wanted(features))  # type: ignore[misc]


def rounded(tensor: Tensor, case: str) -> Tensor:
    return tensor.half().to(tensor.dtype) if "half" in case else tensor


def test_lightnings_file_gives_the_networks_function(tmp_path: Path):
    content = lightning(model=compiled(children(NETWORK)), projection_head=HEAD)
    teacher = loaded(content, tmp_path / "weights.ckpt")
    assert teacher.origin["place"] == "state_dict.model."
    with torch.no_grad():
        expected = NETWORK(teacher.backbone.normalize(IMAGES))
        # Some processors multiply weights in another memory layout by another kernel, whose order
        # of additions differs: 1e-7 in numbers around 1.
        torch.testing.assert_close(teacher.backbone(IMAGES), expected, rtol=1e-5, atol=1e-6)
        assert teacher.head is not None
        assert torch.equal(teacher.head(expected), HEAD(expected))


def same_tensors(architecture: str, content: Any, wanted: Mapping[str, Tensor]) -> None:
    backbone = describe_backbone(BackboneConfig(architecture), Precision.FLOAT)
    assert isinstance(backbone, FloatBackbone)
    found = _fit(content, Path("weights.pth"), backbone.model, backbone).backbone
    assert found.keys() <= wanted.keys()
    assert all(tensor is wanted[name] for name, tensor in found.items())


def test_torchvisions_children():
    """The tutorials' form, whose numbers count activations and poolings."""
    with torch.device("meta"):
        resnet = torchvision.models.resnet18()
    named = resnet.state_dict(keep_vars=True)
    numbered = children(resnet).state_dict(keep_vars=True)
    assert {"0.weight", "1.weight", "4.0.conv1.weight"} <= numbered.keys()
    same_tensors("resnet18", numbered, named)


def test_dinov2s_chunks_of_blocks():
    """A block's number goes on in the next chunk."""
    with torch.device("meta"):
        vit = timm.create_model("test_vit", num_classes=0, dynamic_img_size=True)
    weights = vit.state_dict(keep_vars=True)
    last = max(int(n.split(".")[1]) for n in weights if n.startswith("blocks."))
    chunked = {
        n.replace(f"blocks.{last}.", f"blocks.1.{last}.", 1)
        if n.startswith(f"blocks.{last}.") else n.replace("blocks.", "blocks.0.", 1): t
        for n, t in weights.items()
    }  # fmt: skip
    held = {"teacher": {f"backbone.{n}": t for n, t in chunked.items()}}
    same_tensors("test_vit", held, weights)


def without(net: nn.Module, name: str) -> dict[str, Tensor]:
    return {n: t for n, t in net.state_dict().items() if n != name}


def reshaped(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: t[:, :1] if n == name else t for n, t in weights.items()}


def quantized(tensor: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop these tensors; files have them
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "two networks": (
        lambda: state(one=NETWORK, two=OTHER),
        r"more than once, with different numbers, at one\.\*, two\.\*: save the one",
    ),
    "two dicts": (
        lambda: {"model": NETWORK.state_dict(), "best": OTHER.state_dict()},
        r"at model\.\*, best\.\*",
    ),
    "wrapped and not": (
        lambda: {**NETWORK.state_dict(), **nn.DataParallel(OTHER).state_dict()},
        r"at \*, module\.\*",
    ),
    "two teachers": (
        lambda: {"teacher": NETWORK.state_dict(), "model_ema": OTHER.state_dict()},
        r"at teacher\.\*, model_ema\.\*",
    ),
    "a part lacks": (
        lambda: {"state_dict": {f"model._orig_mod.{n}": t
                                for n, t in without(NETWORK, "bn1.weight").items()}},
        r"lacks bn1.weight; nearest: state_dict.model\.\*, 89 of 90",
    ),
    "a child of another shape": (
        lambda: reshaped(children(NETWORK).state_dict(), "4.0.conv1.weight"),
        r"has layer1.0.conv1.weight \(32, 1, 3, 3\) instead of",
    ),
    "unknown beside": (
        lambda: state(model=NETWORK, decoder=MLP), r"unknown decoder.0.weight, decoder.0.bias and 2"
    ),
    "unknown below": (
        lambda: {"model": NETWORK.state_dict() | {"layer1.9.x": torch.rand(2)}},
        r"unknown layer1.9.x; nearest: model\.\*",
    ),
    "unknown below a copy": (
        lambda: state(one=NETWORK, two=NETWORK) | {"two.x": torch.rand(2)}, r"unknown two.x"
    ),
    "two parts behind the children": (
        lambda: nn.Sequential(*children(NETWORK), FC, MLP).state_dict(), r"unknown 9.weight"
    ),
    "float8": (
        lambda: {n: t.to(torch.float8_e4m3fn) for n, t in NETWORK.state_dict().items()},
        r"holds float8_e4m3fn weights, first in conv1.0.weight: save it as float32",
    ),
    "quantized": (
        lambda: NETWORK.state_dict() | {"bn1.weight": quantized(torch.rand(32))},
        r"holds qint8 weights, first in bn1.weight",
    ),
    "integers": (
        lambda: {n: t.to(torch.int8) for n, t in NETWORK.state_dict().items()},
        r"holds torch.int8 in conv1.0.weight: give float weights",
    ),
    "complex": (
        lambda: {n: t.to(torch.complex64) for n, t in NETWORK.state_dict().items()},
        r"holds torch.complex64 in conv1.0.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_one_whole_network_is_refused_in_a_line(case: str, tmp_path: Path):
    make, words = REFUSED[case]
    file = tmp_path / "weights.pth"
    with pytest.raises(UserError, match=words) as caught:
        loaded(make(), file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message


def of_torchscript(file: Path) -> None:
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.rand(1, 2))
    torch.jit.save(scripted, file)


def of_members(*names: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, b"content")

    return write


def of_bytes(content: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content + bytes(600))

    return write


def of_tar(file: Path) -> None:
    with tarfile.open(file, "w") as archive:
        archive.addfile(tarfile.TarInfo("weights"))


OTHER_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "TorchScript": (of_torchscript, "a TorchScript archive: open it with torch.jit.load"),
    "NumPy archive": (of_members("conv1.npy", "bn1.npy"), "an archive of NumPy arrays"),
    "Keras": (of_members("config.json", "model.weights.h5"), "a Keras model"),
    "exported": (of_members("m/archive_format", "m/models/model.json"), "torch.export"),
    "zip": (of_members("resnet50.pth"), "a zip archive: unpack it"),
    "NumPy": (of_bytes(b"\x93NUMPY\x01\x00"), "a NumPy array"),
    "HDF5": (of_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    "GGUF": (of_bytes(b"GGUF\x03"), "a GGUF file"),
    "TensorFlow Lite": (of_bytes(b"\x1c\0\0\0TFL3"), "a TensorFlow Lite model"),
    "ONNX": (of_bytes(b"\x08\x08\x12\x07pytorch"), "an ONNX model"),
    "safetensors": (of_bytes(b"\x09\0\0\0\0\0\0\0{}       "), "name it .safetensors"),
    "gzip": (of_bytes(b"\x1f\x8b\x08"), "a gzip archive: unpack it"),
    "tar": (of_tar, "a tar archive: unpack it"),
    "JPEG": (of_bytes(b"\xff\xd8\xff\xe0" + bytes(100)), "a JPEG image"),
    "Git LFS": (of_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "HTML": (of_bytes(b"<!DOCTYPE html>"), "a page of HTML"),
    "JSON": (of_bytes(b'{"weight_map": {}}'), "JSON"),
}


@pytest.mark.filterwarnings("ignore:.torch.jit")  # deprecated; its files stay
@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_kinds_of_files_are_named_as_what_they_are(kind: str, tmp_path: Path):
    write, words = OTHER_FILES[kind]
    file = tmp_path / "weights.pth"
    write(file)
    with pytest.raises(UserError, match=rf"{file} is not a weights file, but .*{words}"):
        check_torch_file(file, 10**6)
