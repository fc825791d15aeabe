"""Packed files: by the format's rules, the network's function, whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import read, run
from safetensors.numpy import save as safetensors
from samples import NETWORKS, save
from torch import Tensor

import burn_engine
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.reactnet import ReActNet
from burn.backbones.registry import build_backbone
from burn.checkpoints.classifier import Classifier, fingerprint, save_classifier
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.costs.compute import count
from burn.deploy import layout
from burn.deploy import pack as room
from burn.deploy.fold import fold, linear_layer
from burn.deploy.pack import Packed, pack
from burn.deploy.shared import agree, cosines
from burn.layers.sign import hard_sign
from burn_engine.facts import facts_of
from burn_engine.format import BinaryConvolution, parse_program
from networks import randomize, tiny_reactnet


def network(precision: Precision = Precision.BINARY, **settings: Any) -> ReActNet:
    return randomize(tiny_reactnet(precision, **settings)).eval()


def pixels(size: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (8, 3, size, size), generator=generator, dtype=torch.uint8)


def nhwc(images: Tensor) -> np.ndarray:
    return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())


def engine(path: Path) -> burn_engine.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where its compiled core is not built
        return burn_engine.load(path)


def header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON object at the file's begin, and where the data begin."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), 8 + length


@pytest.mark.parametrize(("settings", "size"), NETWORKS.values(), ids=NETWORKS)
def test_a_packed_file_is_the_network(settings: dict[str, Any], size: int, tmp_path: Path):
    backbone = network(**settings)
    file = save(tmp_path / "n.safetensors", backbone, size=size)
    packed = pack(file, tmp_path / "n.bnn")
    assert packed.images == 8
    images = pixels(size)
    with torch.no_grad():
        expected = backbone(images).numpy()
    program, layers = read(tmp_path / "n.bnn")
    assert packed.layers == len(layers) == len(program["layers"])
    twin = run(layers, nhwc(images).astype(np.float32) / 255)[program["features"]]
    assert agree(cosines(expected, twin))
    model = engine(tmp_path / "n.bnn")
    assert agree(cosines(expected, np.asarray(model.features(nhwc(images)))))
    assert np.array_equal(model(nhwc(images)), model.features(nhwc(images)))


def test_the_files_bytes_are_by_the_formats_rules(tmp_path: Path):
    file = save(tmp_path / "n.safetensors", network(width=0.28125, feature_layer=True), size=32)
    pack(file, tmp_path / "n.bnn")
    described, begin = header(tmp_path / "n.bnn")
    metadata = described.pop("__metadata__")
    assert set(metadata) == {"bnn"}
    end = 0
    for name, entry in sorted(described.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["data_offsets"][0] == end, name
        end = entry["data_offsets"][1]
        size = {"F32": 4, "U8": 1}[entry["dtype"]]
        assert end - entry["data_offsets"][0] == size * np.prod(entry["shape"])
        assert size == 1 or (begin + entry["data_offsets"][0]) % 4 == 0
    assert begin + end == (tmp_path / "n.bnn").stat().st_size
    program = json.loads(metadata["bnn"])
    assert set(program) == {"format", "layers", "features", "image", "origin"}
    assert (program["format"], program["features"]) == (1, "feature_layer")
    kinds = [layer["kind"] for layer in program["layers"]]
    assert kinds == ["convolution", *["binary_convolution"] * 26, "global_mean", "linear"]
    names = [layer["name"] for layer in program["layers"]]
    assert names[:3] == ["stem", "blocks.0.spatial", "blocks.0.pointwise"]
    assert names[-3:] == ["blocks.12.pointwise", "pool", "feature_layer"]
    assert [layer["input"] for layer in program["layers"]] == ["image", *names[:-1]]
    assert program["layers"][0] == {
        "kind": "convolution", "stride": 2, "name": "stem", "input": "image"
    }  # fmt: skip
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    origin = program["origin"]
    assert (origin["sha256"], origin["stage"], origin["steps"]) == (digest, 2, 7)
    assert origin["recipe"] == "burn_small"  # without what would command a terminal


@pytest.mark.parametrize(
    ("size", "resize", "image"),
    [
        (32, None, {"resize": 37, "size": 32}),
        (32, 32, {"resize": 32, "size": 32}),
        (4096, None, None),  # the format has no such side; readers are then given images
    ],
)
def test_how_a_photograph_becomes_an_input(
    size: int, resize: int | None, image: dict[str, int] | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(room, "LARGEST_CHECKED", 32)
    file = save(tmp_path / "n.safetensors", network(), size=size, resize=resize)
    pack(file, tmp_path / "n.bnn")
    assert read(tmp_path / "n.bnn")[0].get("image") == image


def test_bits_are_the_signs_of_the_weights(tmp_path: Path):
    backbone = network(width=0.28125)
    block: Any = backbone.blocks[2]
    with torch.no_grad():
        block.spatial.weight[0, :2, 0, 0] = torch.tensor([0.0, -0.0])
    pack(save(tmp_path / "n.safetensors", backbone), tmp_path / "n.bnn")
    layers = {layer.name: layer for layer in read(tmp_path / "n.bnn")[1]}
    for i, block in enumerate(backbone.blocks):
        for part in ("spatial", "pointwise"):
            layer = layers[f"blocks.{i}.{part}"]
            assert isinstance(layer, BinaryConvolution)
            expected = hard_sign(getattr(block, part).weight.detach()).permute(0, 2, 3, 1)
            assert np.array_equal(layer.weight, expected.numpy())


# --- Classifiers. ---


def classifier_of(backbone: Backbone, classes: tuple[str, ...] = ("cat", "dog", "emu")):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(len(classes), backbone.num_features, generator=generator)
    bias = torch.randn(len(classes), generator=generator)
    return Classifier(weight, bias, classes, fingerprint(backbone))


@pytest.mark.parametrize("given", ["file", "folder"])
@pytest.mark.parametrize("feature_layer", [False, True])
def test_a_kept_classifier_becomes_the_head(given: str, feature_layer: bool, tmp_path: Path):
    backbone = network(feature_layer=feature_layer)
    file = save(tmp_path / "n.safetensors", backbone)
    kept = classifier_of(backbone)
    save_classifier(tmp_path / "classifier.safetensors", kept, {"lr": 30.0})
    head = tmp_path / "classifier.safetensors" if given == "file" else tmp_path
    packed = pack(file, tmp_path / "n.bnn", head)
    parameters = sum(p.numel() for p in backbone.parameters()) + 3 * 256 + 3
    assert (packed.classes, packed.float32_bytes) == (3, 4 * parameters)
    program, layers = read(tmp_path / "n.bnn")
    assert program["classes"] == ["cat", "dog", "emu"]
    assert program["features"] == ("feature_layer" if feature_layer else "pool")
    assert layers[-1].name == "head"
    images = pixels(32)
    model = engine(tmp_path / "n.bnn")
    with torch.no_grad():
        scores = backbone(images) @ kept.weight.T + kept.bias
    assert agree(cosines(scores.numpy(), np.asarray(model(nhwc(images)))))
    assert list(model.classes) == ["cat", "dog", "emu"]


def test_a_checkpoints_own_classifier_has_numbers_for_names(tmp_path: Path):
    backbone = network()
    heads = {"classifier.weight": torch.randn(12, 256), "classifier.bias": torch.randn(12)}
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    file = save(run_folder / "stage2.safetensors", backbone, heads=heads)
    for number, head in enumerate((file, run_folder)):
        pack(run_folder, tmp_path / f"{number}.bnn", head)
        program, layers = read(tmp_path / f"{number}.bnn")
        assert program["classes"] == [str(i) for i in range(12)]
        assert np.array_equal(vars(layers[-1])["weight"], heads["classifier.weight"].numpy())
    pack(run_folder, tmp_path / "without.bnn")
    assert "classes" not in read(tmp_path / "without.bnn")[0]


def test_top_classes_may_differ_where_scores_do_not():
    expected = np.array([[0.0, 1.0, 0.999], [0.0, 1.0, 0.5], [1.0, 0.0, 0.0]])
    found = np.array([[0.0, 0.999, 1.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.0]])
    assert room._same_top(expected, found).tolist() == [True, False, True]


def test_cosines():
    one = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert cosines(one, 3 * one).tolist() == [1, 1]
    assert cosines(one, np.array([[0.0, 1.0], [1.0, 0.0]])).tolist() == [0, 0]
    assert cosines(one, np.array([[1.0, 1.0], [0.0, 0.0]]))[0] == pytest.approx(0.5**0.5)
    assert not agree(cosines(one, np.full((2, 2), np.nan)))


def test_rounding_may_spoil_an_image_or_two_of_eight():
    assert agree(np.array([1.0] * 6 + [0.9] * 2))
    assert not agree(np.array([1.0] * 5 + [0.9] * 3))


# --- Refusals: one line, and nothing written. ---


def refused(words: str, checkpoint: Path, out: Path, head: Path | None = None) -> str:
    before = sorted(out.parent.rglob("*")) if out.parent.exists() else None
    with pytest.raises(UserError, match=words) as caught:
        pack(checkpoint, out, head)
    assert "\n" not in str(caught.value)
    if before is not None:
        assert sorted(out.parent.rglob("*")) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: network(Precision.BINARY_ACTIVATIONS), "not binary: finish stage 2, or .*stage 2"),
        (lambda: network(Precision.FLOAT), "its precision is float"),
        (
            lambda: build_backbone(BackboneConfig("test_resnet"), Precision.FLOAT),
            "a test_resnet, which is not a chain of binary layers",
        ),
    ],
    ids=["stage 1", "float", "resnet"],
)
def test_networks_that_are_not_binary(build: Callable[[], Backbone], words: str, tmp_path: Path):
    file = save(tmp_path / "n.safetensors", build())
    assert str(file) in refused(words, file, tmp_path / "n.bnn")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("blocks.3.spatial.weight", float("nan"), "not finite, first in blocks.3.spatial.weight"),
        ("stem_norm.running_var", float("inf"), "not finite"),
        ("stem_norm.running_var", -1.0, "negative variances"),
        ("blocks.3.spatial_norm.weight", 3e38, r"blocks\.3\.spatial\.multiplier is too large"),
        ("blocks.4.pointwise_activation.before", 3e38, None),
        ("blocks.12.pointwise_activation.slope", 3e38, "cosine nan"),
    ],
)
def test_numbers_that_float32_does_not_hold(
    name: str, value: float, words: str | None, tmp_path: Path
):
    backbone = network()
    with torch.no_grad():
        tensor = backbone.state_dict()[name]
        tensor[(0,) * tensor.ndim] = value
        if name.endswith("slope"):
            tensor.fill_(value)  # the features of both networks overflow
        if name == "blocks.3.spatial_norm.weight":  # 3e38 / √1e-5 is beyond 3.4e38
            backbone.state_dict()["blocks.3.spatial_norm.running_var"].zero_()
            backbone.state_dict()["blocks.3.spatial.weight"].fill_(1.0)
        if words is None:  # two constants that each fit, whose sum does not
            backbone.state_dict()["blocks.4.pointwise_norm.bias"][0] = value
            words = r"blocks\.4\.pointwise\.bias is too large"
    file = save(tmp_path / "n.safetensors", backbone)
    refused(words, file, tmp_path / "n.bnn")


def test_where_a_packed_file_may_not_go(tmp_path: Path):
    file = save(tmp_path / "n.safetensors", network())
    (tmp_path / "there.bnn").touch()
    refused("already exists: remove it", file, tmp_path / "there.bnn")
    refused("there is no folder", file, tmp_path / "nowhere" / "n.bnn")
    refused(r"must end in \.bnn", file, tmp_path / "n.bin")
    refused("no checkpoint at", tmp_path / "none", tmp_path / "n.bnn")


def test_a_description_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = save(tmp_path / "n.safetensors", network(), size=7)
    refused(r"description is damaged: views\.size 7", file, tmp_path / "n.bnn")


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ({}, "no linear classifier on 256 features"),
        ({"classifier.weight": torch.ones(3, 9), "classifier.bias": torch.ones(3)}, "on 256"),
        (
            {"classifier.0.weight": torch.ones(3, 256), "classifier.0.bias": torch.ones(3)},
            "no linear classifier",
        ),
    ],
)
def test_checkpoints_without_a_linear_classifier(
    heads: dict[str, Tensor], words: str, tmp_path: Path
):
    file = save(tmp_path / "n.safetensors", network(), heads=heads)
    refused(words, file, tmp_path / "n.bnn", file)


@pytest.mark.parametrize(
    ("weight", "words"),
    [(float("nan"), "classifier holds numbers that are not finite"), (3e38, "scores overflow")],
)
def test_a_checkpoints_classifier_that_is_blamed_itself(weight: float, words: str, tmp_path: Path):
    heads = {"classifier.weight": torch.full((3, 256), weight), "classifier.bias": torch.ones(3)}
    file = save(tmp_path / "n.safetensors", network(), heads=heads)
    refused(words, file, tmp_path / "n.bnn", file)


def test_a_classifier_of_another_backbone(tmp_path: Path):
    file = save(tmp_path / "n.safetensors", network())
    other = network(seed=1)
    kept = tmp_path / "classifier.safetensors"
    save_classifier(kept, classifier_of(other), {})
    message = refused("another backbone than the one to pack", file, tmp_path / "n.bnn", kept)
    assert str(kept) in message
    heads = {"classifier.weight": torch.ones(3, 256), "classifier.bias": torch.ones(3)}
    theirs = save(tmp_path / "other.safetensors", other, heads=heads)
    refused("another backbone than the one to pack", file, tmp_path / "n.bnn", theirs)
    refused("no checkpoint at", file, tmp_path / "n.bnn", tmp_path / "none")


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("cat", "cat"), "distinct and not empty"),
        (("cat", ""), "distinct and not empty"),
        (("cat", "h\udcfcnd"), "not UTF-8"),
        (("cat", "do\ng"), "control characters"),
        (("cat", 5_000_000 * "g"), "too long for the format"),
    ],
)
def test_names_of_classes(classes: tuple[str, ...], words: str, tmp_path: Path):
    backbone = network()
    file = save(tmp_path / "n.safetensors", backbone)
    kept = tmp_path / "classifier.safetensors"
    save_classifier(kept, classifier_of(backbone, classes), {})
    refused(words, file, tmp_path / "n.bnn", kept)


def test_a_classifier_of_another_width(tmp_path: Path):
    backbone = network()
    file = save(tmp_path / "n.safetensors", backbone)
    kept = tmp_path / "classifier.safetensors"
    wide = Classifier(torch.ones(2, 300), torch.ones(2), ("a", "b"), fingerprint(backbone))
    save_classifier(kept, wide, {})
    refused("takes 300 features, the backbone has 256", file, tmp_path / "n.bnn", kept)


# --- Agreement. ---


def test_a_network_with_too_many_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MOST_CHANNELS", 255)
    file = save(tmp_path / "n.safetensors", network())
    refused("256 channels; the format has 255 at most", file, tmp_path / "n.bnn")


def test_what_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = save(tmp_path / "n.safetensors", network())
    other = network(seed=1)
    monkeypatch.setattr(room, "fold", lambda _: fold(other))
    refused(r"agree with its own only to cosine 0\.\d{6} \(needed", file, tmp_path / "n.bnn")


def test_another_top_class_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backbone = network()
    file = save(tmp_path / "n.safetensors", backbone)
    kept = tmp_path / "classifier.safetensors"
    save_classifier(kept, classifier_of(backbone), {})
    linear = linear_layer
    monkeypatch.setattr(
        room, "linear_layer", lambda name, w, b, relu: linear(name, -w, -b, relu=relu)
    )
    refused("top class is its own on only 0 of 8 images", file, tmp_path / "n.bnn", kept)


def test_what_the_engine_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout, "FORMAT", 99)
    file = save(tmp_path / "n.safetensors", network())
    message = refused("cannot be packed: .*99", file, tmp_path / "n.bnn")
    assert ".writing" not in message


# --- Whole or not there. ---


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_an_interrupted_writer_leaves_nothing(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise error

    file = save(tmp_path / "n.safetensors", network())
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(room, "save_file", fails)
    with pytest.raises((KeyboardInterrupt, UserError)):
        pack(file, tmp_path / "n.bnn")
    assert sorted(tmp_path.iterdir()) == before


_KILLED = """
import sys, time
from pathlib import Path
from burn.deploy import pack
def wait(*_):
    print("written", flush=True)
    time.sleep(600)
pack._verify = wait
pack.pack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.long
def test_a_killed_pack_leaves_no_file_of_the_name_and_can_be_repeated(tmp_path: Path):
    file = save(tmp_path / "n.safetensors", network())
    out = tmp_path / "n.bnn"
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, file, out], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert not out.exists()
    pack(file, out)
    assert sorted(tmp_path.iterdir()) == sorted([*before, out])


@pytest.mark.parametrize("isa", ["avx1024", "neon" if platform.machine() == "x86_64" else "avx2"])
def test_an_instruction_set_that_is_not_there_is_one_line(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = save(tmp_path / "n.safetensors", network())
    before = sorted(tmp_path.iterdir())
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    assert main(["pack", str(file), str(tmp_path / "n.bnn")]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"burn: BURN_ENGINE_ISA '{isa}' is not available; choose from ")
    assert message.endswith(", reference: unset it, or give one of these\n")
    assert message.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


# --- Size, and the command. ---

# What `burn info` cannot know of a file: the text of its origin, 150 bytes or so, and of its
# `image`, whose numbers may have other lengths; the header is filled up to 8 bytes.
SIZE_UNKNOWN = 200


@pytest.mark.parametrize(("settings", "size"), NETWORKS.values(), ids=NETWORKS)
def test_info_predicts_the_size_of_the_file(settings: dict[str, Any], size: int, tmp_path: Path):
    backbone = network(**settings)
    packed = pack(save(tmp_path / "n.safetensors", backbone, size=size), tmp_path / "n.bnn")
    cost = count(backbone, size, 0)
    assert cost.packed_bytes is not None
    assert 0 <= packed.bytes - cost.packed_bytes <= SIZE_UNKNOWN
    assert cost.float_bytes == packed.float32_bytes
    # to the byte once the program is known
    program = json.loads(header(tmp_path / "n.bnn")[0]["__metadata__"]["bnn"])
    tensors = layout.tensors_of(fold(backbone))
    assert layout.file_bytes(program, tensors) == packed.bytes
    # a stage before binary weights is predicted what it will be
    assert count(network(Precision.BINARY_ACTIVATIONS, **settings), size, 0) == cost


def test_info_predicts_the_size_with_a_classifier(tmp_path: Path):
    backbone = network()
    heads = {"classifier.weight": torch.randn(12, 256), "classifier.bias": torch.randn(12)}
    file = save(tmp_path / "n.safetensors", backbone, heads=heads)
    packed = pack(file, tmp_path / "n.bnn", file)
    cost = count(backbone, 32, 12)
    assert cost.packed_bytes is not None
    assert 0 <= packed.bytes - cost.packed_bytes <= SIZE_UNKNOWN
    assert cost.float_bytes == packed.float32_bytes


def test_info_and_pack_print_the_same_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = save(tmp_path / "n.safetensors", network())
    assert main(["info", str(file)]) == 0
    predicted = re.search(r"\((\d+\.\d)× smaller\)", capsys.readouterr().out)
    assert main(["pack", str(file), str(tmp_path / "n.bnn")]) == 0
    found = re.search(r"(\d+\.\d) times less", capsys.readouterr().out)
    assert predicted
    assert found
    # 200 bytes of the 230,000 are 0.02 of a ratio of 23
    assert float(predicted[1]) == pytest.approx(float(found[1]), abs=0.11)


def test_networks_that_cannot_be_packed_have_no_predicted_size():
    assert layout.predicted_bytes(BackboneConfig(width=4.5)) is None  # 4,608 channels
    assert layout.predicted_bytes(BackboneConfig(), 10**7) is None
    assert layout.predicted_bytes(BackboneConfig(), 10**5) is not None
    assert layout.predicted_bytes(BackboneConfig(name="resnet18")) is None


def test_info_describes_a_packed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    backbone = network()
    kept = classifier_of(backbone, ("cat", "d\x9b2Jog", "em\u202eu"))
    save_classifier(tmp_path / "classifier.safetensors", kept, {})
    out = tmp_path / "n.bnn"
    packed = pack(save(tmp_path / "n.safetensors", backbone), out, tmp_path)
    assert main(["info", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"packed file {out}"
    assert all(line.isprintable() for line in lines)
    text = "\n".join(lines)
    for told in (f"{packed.bytes:,} bytes", "3: cat, d?2Jog, em?u", "32 × 32 pixels", "burn_small"):
        assert told in text
    assert lines[-1] == f"burn-engine info {out} lists its layers and what runs them here"
    assert main(["info", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bits"] == count(backbone, 32, 0).binary_parameters
    assert (facts["file_bytes"], facts["features"]) == (packed.bytes, 256)
    assert main(["info", str(out), "--width", "0.5"]) == 2
    assert "is a packed file" in capsys.readouterr().err
    out.write_bytes(out.read_bytes()[:-1])
    assert main(["info", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"burn: {out}: ")
    assert main(["info", str(tmp_path / "none.bnn")]) == 2
    assert f"did you mean {out}?" in capsys.readouterr().err


def test_reactnet_a_is_a_26th_of_float32(tmp_path: Path):
    """The paper's network at its full width: 28.3 million parameters."""
    backbone = network(width=1.0, stage_strides=(2, 2, 2, 2))
    packed = pack(save(tmp_path / "n.safetensors", backbone, size=64), tmp_path / "n.bnn")
    assert packed.bytes == (tmp_path / "n.bnn").stat().st_size
    assert packed.float32_bytes == 4 * sum(p.numel() for p in backbone.parameters())
    assert packed.bytes * 26 <= packed.float32_bytes
    assert packed.ratio == round(packed.float32_bytes / packed.bytes, 2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    backbone = network()
    file = save(tmp_path / "n.safetensors", backbone)
    save_classifier(tmp_path / "classifier.safetensors", classifier_of(backbone), {})
    out = tmp_path / "my network.bnn"
    assert main(["pack", str(file), str(out), "--head", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{out.stat().st_size:,} bytes" in lines[0]
    assert "least cosine of the features" in lines[1]
    assert lines[-2] == f"-> {out}"
    assert lines[-1] == f"next: burn-engine run '{out}' photo.jpg"
    out.unlink()
    assert main(["pack", str(file), str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("out") == str(out)
    assert Packed(**told).bytes == out.stat().st_size
    assert main(["pack", str(file), str(out)]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "width"), [("bnext_t", 0.25), ("expert_bnn", 0.5)])
def test_every_constant_of_a_gated_network_is_counted(name: str, width: float):
    backbone = build_backbone(BackboneConfig(name=name, width=width), Precision.BINARY).eval()
    layers = room.folded(backbone)
    program = layout.program_of(layers, layers[-1].name, (), (32, 32), {})
    data = safetensors(room.encode(layers, name), metadata={"bnn": json.dumps(program)})
    facts = facts_of(parse_program(data), len(data))
    assert facts["bits"] == count(backbone, 32, 0).binary_parameters
    header = 8 + int.from_bytes(data[:8], "little")
    constants = 4 * facts["floats"] + 2 * facts["integers"] + facts["bits"] / 8
    assert constants == pytest.approx(len(data) - header, rel=0.01)  # rows end at whole bytes
