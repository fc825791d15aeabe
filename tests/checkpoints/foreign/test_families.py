"""Imports of BNext and of the expert network: the function of the published one, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burn.backbones.registry import describe_backbone
from burn.checkpoints.foreign import families
from burn.checkpoints.foreign.entries import sort_entries
from burn.checkpoints.foreign.exchange import _read, import_checkpoint
from burn.checkpoints.native import load_checkpoint
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.evaluation.context import open_model
from published_families import BNextTwin, ExpertTwin, families_content
from seldom import few

IMAGES = torch.randint(
    0, 256, (3, 3, 64, 64), generator=torch.Generator().manual_seed(6), dtype=torch.uint8
)
UNUSED = "PReLUs that are not used"
TEMPERATURES = "temperatures"
CHOICES = "choices of experts in float convolutions, which take the first"


def network(format: str, **settings: Any) -> BNextTwin | ExpertTwin:
    torch.manual_seed(3)
    return BNextTwin(**settings) if format == "bnext" else ExpertTwin(**settings)


def imported(format: str, content: Any, folder: Path, **options: Any):
    torch.save(content, folder / "w.pth")
    return import_checkpoint(folder / "w.pth", format, folder / "ours.safetensors", **options)


def assert_same_function(twin: BNextTwin | ExpertTwin, file: Path) -> None:
    """In float64, where a sum's rounding of 1e-16 cannot be mistaken for a wrong weight.

    Features are of the size of 1 to 100; a thousand roundings in a row stay below 1e-10. A sign
    that differed would move them by 1e-3 and more.
    """
    backbone = open_model(str(file), fresh=False, seed=0).backbone
    with torch.no_grad():
        expected, found = twin.double().features(IMAGES), backbone.double()(IMAGES)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# --- The function is kept. ---


@pytest.mark.parametrize(
    ("blocks", "stem", "name", "width"),
    few([(13, 8, "bnext_t", 0.25), (21, 12, "bnext_m", 0.25), (29, 8, "bnext_l", 0.125)], 1),
)
def test_bnext(blocks: int, stem: int, name: str, width: float, tmp_path: Path):
    twin = network("bnext", blocks=blocks, stem=stem)
    summary = imported("bnext", families_content("bnext", twin), tmp_path)
    assert (summary.backbone, summary.config.width, summary.stage) == (name, width, 2)
    assert (summary.precision, summary.notes) == (Precision.BINARY, ())
    features = twin.fc.in_features
    assert summary.heads == {"classifier": 1000 * features + 1000}
    layers = 2 * blocks + 5
    multiplying = blocks // 2
    assert summary.dropped[UNUSED] == 1 + layers - multiplying
    assert summary.dropped[TEMPERATURES] == 2 * layers
    assert {"epoch", "best_top1_acc", "alpha", "optimizer"} <= set(summary.dropped)
    held = load_checkpoint(tmp_path / "ours.safetensors")
    assert torch.equal(held.weights["classifier.weight"], twin.fc.weight)
    assert_same_function(twin, tmp_path / "ours.safetensors")


def test_expert(tmp_path: Path):
    twin = network("expert")
    summary = imported("expert", families_content("expert", twin), tmp_path)
    assert (summary.backbone, summary.config.width, summary.stage) == ("expert_bnn", 0.25, 2)
    assert (summary.precision, summary.notes) == (Precision.BINARY, ())
    assert summary.heads == {"classifier": 10 * 256 + 10}
    assert summary.dropped == {CHOICES: 16}
    config = open_model(str(tmp_path / "ours.safetensors"), fresh=False, seed=0).backbone.config
    assert config.experts == 3
    described = describe_backbone(config, Precision.BINARY)
    assert summary.parameters == sum(p.numel() for p in described.parameters())
    assert_same_function(twin, tmp_path / "ours.safetensors")


@pytest.mark.parametrize(
    ("blocks", "stem", "name", "width"),
    [
        (13, 32, "bnext_t", 1.0),
        (13, 48, "bnext_s", 1.0),  # with as many blocks as bnext_t, and 1.5 times the channels
        (13, 16, "bnext_t", 0.5),
        (21, 48, "bnext_m", 1.0),
        (29, 64, "bnext_l", 1.0),
        (29, 48, "bnext_l", 0.75),  # "large" in the code, whose "super" is the paper's
    ],
)
def test_the_sizes_of_bnext_tell_them_apart(blocks: int, stem: int, name: str, width: float):
    content = {f"feature.{i + 1}.scale": torch.zeros(1) for i in range(blocks)}
    content["feature.0.conv1.weight"] = torch.zeros(stem, 3, 3, 3)
    config = families._bnext_config(sort_entries(content, families.PARTS["bnext"]))
    assert (config.name, config.width) == (name, width)


def test_another_number_of_classes_means_a_stem_of_stride_1(tmp_path: Path):
    twin = network("bnext", classes=10)
    summary = imported("bnext", families_content("bnext", twin), tmp_path)
    assert summary.notes == (
        "the stem has stride 1, as its code takes it for other than 1000 classes",
    )
    assert_same_function(twin, tmp_path / "ours.safetensors")


@pytest.mark.parametrize("format", ["bnext", "expert"])
def test_weights_keep_their_signs_and_get_a_mean_size_of_one(format: str, tmp_path: Path):
    twin: Any = network(format)
    bnext = format == "bnext"
    layer = twin.feature[1].Attention.binary_conv if bnext else twin.layer1[0].conv1
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape))
    imported(format, families_content(format, twin), tmp_path)
    held = load_checkpoint(tmp_path / "ours.safetensors").weights
    place = "blocks.0.spatial" if bnext else "stages.0.0.layers.0"
    weight = held[f"backbone.{place}.convolution.weight"]
    assert torch.equal(weight >= 0, layer.weight >= 0)
    sizes = weight.abs().mean(dim=(1, 2, 3) if bnext else (0, 2, 3, 4))
    torch.testing.assert_close(sizes, torch.ones_like(sizes), rtol=1e-6, atol=0)  # float32's sums


def test_weights_of_zero_are_told(tmp_path: Path):
    for format in ("bnext", "expert"):
        twin: Any = network(format)
        first = twin.feature[1].Attention.binary_conv if format == "bnext" else twin.layer1[0].conv1
        with torch.no_grad():
            first.weight.view(-1)[:5] = 0
        summary = imported(format, families_content(format, twin), tmp_path)
        assert summary.notes == (
            "5 binary weights are exactly 0, whose sign is 0 there and +1 in burn",
        )
        (tmp_path / "ours.safetensors").unlink()
        (tmp_path / "ours.json").unlink()


def test_shares_outside_their_range_are_told_and_cut_off(tmp_path: Path):
    twin: Any = network("bnext")
    with torch.no_grad():
        twin.feature[2].FFN_1.scale[0, :3] = torch.tensor([1.1, -0.1, 1.0])[:, None, None]
    summary = imported("bnext", families_content("bnext", twin), tmp_path)
    assert summary.notes == ("2 shares of mixtures outside [0, 1] are cut off there, as it trains",)


def test_weights_that_are_not_binary_yet(tmp_path: Path):
    """clamp(W / T, -1, 1) is a sign where |W| >= T."""
    twin = network("bnext")
    content = families_content("bnext", twin)
    state = content["state_dict"]
    for name in state:
        if name.endswith("binary_conv.temperature"):
            state[name] = torch.full((1,), 0.5)
    with pytest.raises(UserError, match="weights are below their temperature, so they are not"):
        imported("bnext", content, tmp_path)
    name = "module.feature.1.Attention.binary_conv."
    for other in state:
        if other.endswith("binary_conv.temperature"):
            state[other] = torch.full((1,), 1e-6)
    state[f"{name}weight"].view(-1)[:3] = 1e-7
    summary = imported("bnext", content, tmp_path)
    assert summary.notes == ("3 weights are below their temperature; burn takes their signs",)


def test_the_command_names_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    torch.save(families_content("expert", network("expert")), tmp_path / "w.pth")
    out = tmp_path / "ours.safetensors"
    arguments = ["import", str(tmp_path / "w.pth"), "--format", "expert", "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("expert_bnn, binary (")
    assert f"left out: {CHOICES} (16 entries)" in printed


# --- Refusals: one line, naming the file, and nothing written. ---


def refused(format: str, content: Any, words: str, folder: Path, **options: Any) -> None:
    with pytest.raises(UserError, match=words) as caught:
        imported(format, content, folder, **options)
    message = str(caught.value)
    assert str(folder / "w.pth") in message
    assert "\n" not in message
    assert sorted(path.name for path in folder.iterdir()) == ["w.pth"]


def unread(format: str, content: Any, words: str) -> None:
    """What a file would hold is refused; `refused` shows what becomes of it."""
    with pytest.raises(UserError, match=words) as caught:
        _read(content, format)
    assert "\n" not in str(caught.value)


ENTRIES = {
    "bnext": ("feature.2.FFN_2.se.se.3.bias", "feature.3.FFN.activation1.weight", "prelu.weight",
              "feature.4.Attention.binary_activation.temperature"),
    "expert": ("layer2.1.conv3.se_fc.2.weight", "layer1.0.downsample.1.fc.bias",
               "layer4.0.downsample.4.alpha2", "conv2_1.1.running_mean"),
}  # fmt: skip


@pytest.mark.parametrize(("format", "name"), [(f, n) for f in ENTRIES for n in ENTRIES[f]])
def test_a_missing_entry_and_another_shape(format: str, name: str):
    state = dict(network(format).state_dict())
    escaped = name.replace(".", r"\.")
    unread(format, {n: t for n, t in state.items() if n != name}, f"^it lacks {escaped}$")
    other = torch.cat([state[name], state[name]])
    unread(format, state | {name: other}, rf"{escaped} \(.*\) instead of \(")


@pytest.mark.parametrize("format", ["bnext", "expert"])
def test_a_file_with_a_missing_entry_and_another_shape(format: str, tmp_path: Path):
    state, name = dict(network(format).state_dict()), ENTRIES[format][0]
    escaped = name.replace(".", r"\.")
    lacking = {n: t for n, t in state.items() if n != name}
    refused(format, lacking, f"it lacks {escaped}$", tmp_path)
    other = torch.cat([state[name], state[name]])
    refused(format, state | {name: other}, rf"{escaped} \(.*\) instead of \(", tmp_path)


@pytest.mark.parametrize(
    ("format", "name"),
    [("bnext", "feature.3.FFN_1.scale"), ("bnext", "queue"), ("expert", "layer1.1.bn1.bias"),
     ("expert", "layer5.0.bn1.bias"), ("expert", "layer1.0.conv1.alpha")],
)  # fmt: skip
def test_an_unknown_entry(format: str, name: str, tmp_path: Path):
    state = dict(network(format).state_dict()) | {name: torch.zeros(3)}
    if name == "queue":  # of another format
        refused(format, state, f"has unknown .*{name}$", tmp_path)
    else:
        unread(format, state, f"has unknown .*{name}$")


@pytest.mark.parametrize(
    ("format", "name", "change", "words"),
    [
        ("bnext", "feature.0.conv1.weight", lambda t: t[:5], "width"),
        ("bnext", "feature.0.conv1.weight", lambda t: t.flatten(), "lacks feature.0.conv1.weight"),
        ("bnext", "feature.1.Attention.norm1.running_var", lambda t: -t, "negative variances"),
        ("bnext", "feature.1.FFN_1.scale", lambda t: t / 0, "not finite"),
        ("bnext", "fc.weight", lambda t: t[0], r"fc\.weight"),
        ("expert", "layer1.0.conv1.weight", lambda t: t[:2], "instead of"),
        ("expert", "layer1.0.conv1.weight", lambda t: t[0], "lacks"),
        ("expert", "layer1.0.conv1.weight", lambda t: t.repeat(40, 1, 1, 1, 1), "experts 120"),
        ("expert", "conv3.0.weight", lambda t: t.int(), "int32"),
    ],
)
def test_a_tensor_that_cannot_be(
    format: str, name: str, change: Callable[[Tensor], Tensor], words: str
):  # fmt: skip
    state = dict(network(format).state_dict())
    unread(format, state | {name: change(state[name])}, words)


def test_another_number_of_blocks(tmp_path: Path):
    state = {n: t for n, t in network("bnext").state_dict().items() if ".13." not in f".{n}"}
    state = {n: t for n, t in state.items() if not n.startswith("feature.13.")}
    refused("bnext", state, "it has 12 blocks, which no BNext has", tmp_path)


@pytest.mark.parametrize(("actual", "given"), [("bnext", "expert"), ("expert", "reactnet")])
def test_another_format_is_named(actual: str, given: str, tmp_path: Path):
    content = families_content(actual, network(actual))
    refused(given, content, f"of format {actual}, not {given}: give --format {actual}$", tmp_path)


@pytest.mark.parametrize("format", ["bnext", "expert"])
def test_there_is_no_other_stage(format: str, tmp_path: Path):
    content = families_content(format, network(format))
    refused(format, content, "its weights are binary, which is stage 2, not 1$", tmp_path, stage=1)
