"""Published checkpoints: the function of the network that wrote them, or a refusal.

The slow twin is that network in its published structure, written naively from its description:
shifts, `torch.sign` and convolutions one after the other, two 1×1 convolutions where width doubles.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from burn import exchange
from burn.analysis.cost import count_named
from burn.backbones import Backbone, BackboneConfig, build_backbone
from burn.checkpoint import load_checkpoint, save_checkpoint, take
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.evaluation.subject import load_model
from burn.exchange import export_checkpoint, import_checkpoint
from burn.methods.base import mlp
from burn.types import Precision
from networks import randomize, tiny_reactnet

SMALL = 0.25
IMAGES = torch.randint(
    0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(6), dtype=torch.uint8
)


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


def assert_same_function(network: Twin, backbone: Backbone, images: Tensor = IMAGES) -> None:
    """In float64, where a sum's rounding of 1e-16 cannot be mistaken for a wrong weight.

    Features are of size 1; a thousand roundings in a row, at most, stay below 1e-12. A sign that
    differed would move them by 1e-3 and more.
    """
    network, backbone = network.double(), backbone.double()
    with torch.no_grad():
        expected = network.features(images)
        if backbone.config.feature_layer:
            expected = network.fc(expected)
        actual = backbone(images)
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# --- The function is kept. ---


def test_reactnet_at_full_width(tmp_path: Path):
    """Entries and parameters are the published ones, and every command can load the outcome."""
    network = twin("reactnet", 2, width=1.0, fc=nn.Linear(1024, 1000))
    state = network.state_dict()
    assert len(state) == 298
    assert sum(p.numel() for p in network.parameters()) == 29_343_592
    file = written(tmp_path / "model_best.pth.tar", "reactnet", network)
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(file, "reactnet", out)
    assert (summary.width, summary.notes) == (1, ())
    assert summary.heads == {"classifier": 1_025_000}
    assert summary.parameters + 1_025_000 == 29_343_592
    name, backbone, views = load_model(str(out), fresh=False, seed=0)
    assert name == "imported reactnet, stage 2"
    assert views == ViewConfig()
    assert not backbone.training
    assert_same_function(network, backbone, IMAGES[:1])
    cost, about = count_named(str(out), None, 1000, None)
    assert cost.binary_parameters + cost.float_parameters == 29_343_592
    assert (about["image_size"], about["precision"], about["stage"]) == (224, "binary", 2)


def test_s2bnns_networks_have_the_published_number_of_entries():
    """424 as built for the queue's 128 dimensions; its option --mlp adds a linear layer."""
    plain = twin("s2bnn", 1, fc=nn.Linear(256, 16)).state_dict()
    assert len(plain) == 424
    assert len(twin("s2bnn", 1).state_dict()) == 426


@pytest.mark.parametrize("form", ["latent", "scaled"])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("format", exchange.FORMATS)
def test_the_function_is_kept(format: str, stage: int, form: str, tmp_path: Path):
    """Binary weights may be stored as they were trained, or already as ±scale."""
    network = twin(format, stage)
    if form == "scaled":
        network.binarize()
    out = tmp_path / "ours.safetensors"
    given = None if format == "reactnet" else stage
    summary = import_checkpoint(written(tmp_path / "w.pth", format, network), format, out, given)
    precision = Precision.BINARY if stage == 2 else Precision.BINARY_ACTIVATIONS
    assert (summary.stage, summary.precision, summary.width) == (stage, precision, SMALL)
    assert summary.notes == ()
    _, backbone, _ = load_model(str(out), fresh=False, seed=0)
    assert summary.parameters == sum(p.numel() for p in backbone.parameters())
    assert_same_function(network, backbone)


def test_flat_weights_of_s2bnn_are_stage_2(tmp_path: Path):
    network = twin("s2bnn", 2, flat=True)
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(written(tmp_path / "w.pth", "s2bnn", network), "s2bnn", out)
    assert (summary.stage, summary.notes) == (2, ())
    assert_same_function(network, load_model(str(out), fresh=False, seed=0)[1])


def test_the_two_convolutions_of_a_doubling_block_in_their_order(tmp_path: Path):
    network = twin("reactnet", 1)
    out = tmp_path / "ours.safetensors"
    import_checkpoint(written(tmp_path / "w.pth", "reactnet", network), "reactnet", out)
    ours = take(load_checkpoint(out).weights, "backbone.blocks.0.pointwise")
    theirs = take(network.state_dict(), "feature.1.")
    first, second = ours[".weight"].chunk(2)
    assert torch.equal(first, theirs["binary_pw_down1.weight"])
    assert torch.equal(second, theirs["binary_pw_down2.weight"])
    for name in ("weight", "bias", "running_mean", "running_var"):
        halves = ours[f"_norm.{name}"].chunk(2)
        for half, number in zip(halves, (1, 2), strict=True):
            assert torch.equal(half, theirs[f"bn2_{number}.{name}"])


def test_half_precision_becomes_float32(tmp_path: Path):
    network = twin("reactnet", 1).half()
    out = tmp_path / "ours.safetensors"
    import_checkpoint(written(tmp_path / "w.pth", "reactnet", network), "reactnet", out)
    weights = load_checkpoint(out).weights
    assert {t.dtype for t in weights.values()} == {torch.float32, torch.int64}
    assert_same_function(network, load_model(str(out), fresh=False, seed=0)[1])


def test_binary_weights_of_exactly_0_are_told(tmp_path: Path):
    """Theirs count nothing, ours +scale: one bit has no third value."""
    network = twin("reactnet", 2)
    with torch.no_grad():
        network.state_dict()["feature.3.binary_pw.weights"][:7] = 0
    file = written(tmp_path / "w.pth", "reactnet", network)
    summary = import_checkpoint(file, "reactnet", tmp_path / "ours.safetensors")
    assert [note[:32] for note in summary.notes] == ["7 binary weights are exactly 0, "]


# --- Formats in detail. ---


def wrappings(w: dict[str, Tensor]) -> dict[str, Any]:
    """The release's ways to write the same network."""
    student, teacher = classifiers()
    parts = {"backbone": w, "classifier": student, "teacher_classifier": teacher}
    trained = (
        below("online_net.0.", w)
        | below("online_net.1.", student)
        | below("diff_branch_net.0.", {"conv1.weight": torch.rand(2, 3), "bn1.bias": torch.rand(2)})
        | below("diff_branch_net.1.", teacher)
    )
    return {
        "literal": {f"{part}.state_dict": state for part, state in parts.items()},
        "data parallel": {f"{p}.state_dict": below("module.", s) for p, s in parts.items()},
        "nested": {part: {"state_dict": state} for part, state in parts.items()},
        "training": {"state_dict": below("module.", trained), "epoch": 3, "optimizer": {}},
        "bare": trained,
        "prefixed": {
            "state_dict": {k: v for p, s in parts.items() for k, v in below(f"{p}.", s).items()}
        },
        "backbone alone": below("module.", w),
    }


@pytest.mark.parametrize("wrapping", wrappings({}))
def test_the_releases_files(wrapping: str, tmp_path: Path):
    network = twin("burn-release", 2)
    torch.manual_seed(3)
    student, teacher = classifiers()
    torch.manual_seed(3)
    held = wrappings(network.state_dict())[wrapping]
    file, out = tmp_path / "w.pth", tmp_path / "ours.safetensors"
    torch.save(held, file)
    summary = import_checkpoint(file, "burn-release", out)
    assert summary.notes == ("the file does not tell its stage: 2, fully binary, is assumed",)
    _, backbone, _ = load_model(str(out), fresh=False, seed=0)
    expected = BackboneConfig(
        width=SMALL, feature_layer=True, activation_gradient="clip", weight_gradient="identity"
    )
    assert backbone.config == expected
    assert_same_function(network, backbone)
    if wrapping == "backbone alone":
        assert summary.heads == {}
        return
    weights = load_checkpoint(out).weights
    for part, state in (("classifier", student), ("teacher_classifier", teacher)):
        ours = mlp(48 if "teacher" in part else 256, 20, 12)
        ours.load_state_dict(take(weights, f"{part}."))
        assert all(torch.equal(t, state[name]) for name, t in ours.state_dict().items())
        assert summary.heads[part] == sum(p.numel() for p in ours.parameters())
    dropped = {"training": {"diff_branch_net.0": 2, "epoch": 1}, "bare": {"diff_branch_net.0": 2}}
    assert summary.dropped == dropped.get(wrapping, {})


def test_reactnets_classifier_is_kept(tmp_path: Path):
    network = twin("reactnet", 1)
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(written(tmp_path / "w.pth", "reactnet", network), "reactnet", out)
    head = take(load_checkpoint(out).weights, "classifier.")
    assert set(head) == {"weight", "bias"}
    assert all(torch.equal(head[name], network.state_dict()[f"fc.{name}"]) for name in head)
    assert summary.heads == {"classifier": 256 * 10 + 10}
    assert summary.dropped == {"epoch": 1, "best_top1_acc": 1, "optimizer": 2}


@pytest.mark.parametrize("option_mlp", [True, False])
def test_s2bnns_projection_is_kept_and_the_rest_dropped(option_mlp: bool, tmp_path: Path):
    network = twin("s2bnn", 1) if option_mlp else twin("s2bnn", 1, fc=nn.Linear(256, 16))
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(written(tmp_path / "w.pth", "s2bnn", network), "s2bnn", out, 1)
    expected = network.fc.state_dict()
    head = take(load_checkpoint(out).weights, "head.")
    assert set(head) == set(expected)
    assert set(head) >= ({"0.weight", "2.bias"} if option_mlp else {"weight", "bias"})
    assert all(torch.equal(head[name], expected[name]) for name in head)
    assert summary.heads == {"head": sum(p.numel() for p in network.fc.parameters())}
    # 8 blocks of one width carry two convolutions and two BNs for nothing, 5 others one of each.
    assert summary.dropped == {
        "epoch": 1,
        "arch": 1,
        "optimizer": 2,
        "encoder_k": 426 if option_mlp else 424,
        "queue": 1,
        "queue_ptr": 1,
        "1×1 convolutions and BN that are not used": 8 * 2 * 6 + 5 * 6,
    }


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_plain_state_dict(suffix: str, tmp_path: Path):
    network = twin("reactnet", 2)
    file, out = tmp_path / f"w{suffix}", tmp_path / "ours.safetensors"
    (torch.save if suffix == ".pth" else save_file)(dict(network.state_dict()), file)
    assert import_checkpoint(file, "reactnet", out).dropped == {}
    assert_same_function(network, load_model(str(out), fresh=False, seed=0)[1])


def test_the_description(tmp_path: Path):
    file = written(tmp_path / "w.pth", "reactnet", twin("reactnet", 1))
    out = tmp_path / "ours.safetensors"
    import_checkpoint(file, "reactnet", out)
    meta = dict(load_checkpoint(out).meta)
    assert meta["recipe"] == {"name": "imported reactnet"}
    assert (meta["stage"], meta["num_stages"], meta["steps"], meta["seed"]) == (1, 2, 0, None)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert meta["source"] == {"format": "reactnet", "file": "w.pth", "sha256": digest}
    assert (tmp_path / "ours.json").exists()


# --- The way back. ---


@pytest.mark.parametrize("step", [1, 2])
def test_a_round_trip_is_exact(step: int, tmp_path: Path):
    network = twin("reactnet", step)
    file = written(tmp_path / "w.pth", "reactnet", network)
    first, back, again = (tmp_path / n for n in ("1.safetensors", "back.pth.tar", "2.safetensors"))
    import_checkpoint(file, "reactnet", first)
    summary = export_checkpoint(first, back, "reactnet")
    import_checkpoint(back, "reactnet", again)
    original = below("module.", network.state_dict())
    exported = torch.load(back, weights_only=True)["state_dict"]
    assert set(exported) == set(original)
    for name, tensor in original.items():
        # Both halves' BN saw the same batches; the twin's made-up counts differ by the name.
        if not name.endswith("bn2_2.num_batches_tracked"):
            assert torch.equal(exported[name], tensor), name
        assert exported[name].shape == tensor.shape
    assert (summary.entries, summary.left_out, summary.notes) == (298, (), ())
    assert summary.parameters == sum(p.numel() for p in network.parameters())
    one, two = load_checkpoint(first).weights, load_checkpoint(again).weights
    assert set(one) == set(two)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def save_ours(file: Path, backbone: Backbone, heads: Mapping[str, Tensor] | None = None) -> Path:
    """As training writes it, as far as an export goes by it."""
    precision: Any = backbone.precision
    meta = {"backbone": asdict(backbone.config), "precision": precision.value, "stage": 1}
    save_checkpoint(file, below("backbone.", backbone.state_dict()) | dict(heads or {}), meta)
    return file


def published(precision: Precision, **settings: Any) -> Backbone:
    settings = {"stage_strides": (2, 2, 2, 2), **settings}
    return randomize(tiny_reactnet(precision, **settings)).eval()


@pytest.mark.parametrize("precision", [Precision.BINARY_ACTIVATIONS, Precision.BINARY])
def test_an_exported_network_is_the_twins(precision: Precision, tmp_path: Path):
    """Trained here, loaded there: its code takes every entry and computes the same."""
    ours = published(precision)
    head = {"classifier.weight": torch.rand(5, 256), "classifier.bias": torch.rand(5)}
    file = save_ours(tmp_path / "ours.safetensors", ours, head)
    summary = export_checkpoint(file, tmp_path / "theirs.pth", "reactnet")
    assert (summary.precision, summary.entries, summary.left_out) == (precision, 298, ())
    step = 2 if precision == Precision.BINARY else 1
    network = twin("reactnet", step, fc=nn.Linear(256, 5))
    state = torch.load(tmp_path / "theirs.pth", weights_only=True)["state_dict"]
    network.load_state_dict(take(state, "module."))
    assert torch.equal(network.fc.state_dict()["weight"], head["classifier.weight"])
    assert_same_function(network, ours)


@pytest.mark.parametrize(
    "heads",
    [
        {},
        below("classifier.", mlp(256, 20, 12).state_dict()),
        {"classifier.weight": torch.rand(5, 48), "classifier.bias": torch.rand(5)},
        {"classifier.weight": torch.rand(5, 256)},
        below("head.", mlp(256, 20, 12).state_dict()),
    ],
    ids=["none", "mlp", "other width", "no bias", "projection"],
)
def test_other_heads_are_left_out_and_told(heads: dict[str, Tensor], tmp_path: Path):
    file = save_ours(tmp_path / "ours.safetensors", published(Precision.BINARY), heads)
    summary = export_checkpoint(file, tmp_path / "theirs.pth", "reactnet")
    assert summary.entries == 296
    assert summary.left_out == tuple({name.split(".")[0] for name in heads})
    assert summary.notes == ("the checkpoint has no linear classifier, the file no fc",)
    imported = import_checkpoint(tmp_path / "theirs.pth", "reactnet", tmp_path / "2.safetensors")
    assert imported.heads == {}


def test_an_input_normalisation_of_its_own_is_told(tmp_path: Path):
    ours = published(Precision.BINARY, mean=(0.5, 0.5, 0.5))
    file = save_ours(tmp_path / "ours.safetensors", ours)
    summary = export_checkpoint(file, tmp_path / "theirs.pth", "reactnet")
    assert "mean (0.5, 0.5, 0.5)" in summary.notes[1]


@pytest.mark.parametrize(
    ("precision", "settings", "words"),
    [
        (Precision.FLOAT, {}, "precision is float"),
        (Precision.BINARY, {"feature_layer": True}, "feature layer"),
        (Precision.BINARY, {"stem_stride": 1}, r"strides .* \[1, 2, 2, 2, 2\]"),
        (Precision.BINARY, {"stage_strides": (2, 2, 2, 1)}, r"strides .* \[2, 2, 2, 2, 1\]"),
        (Precision.BINARY, {"width": 0.125}, "width 0.125"),
    ],
)
def test_what_reactnets_code_cannot_build(
    precision: Precision, settings: dict[str, Any], words: str, tmp_path: Path
):
    file = save_ours(tmp_path / "ours.safetensors", published(precision, **settings))
    with pytest.raises(UserError, match=words) as caught:
        export_checkpoint(file, tmp_path / "theirs.pth", "reactnet")
    assert str(file) in str(caught.value)
    assert not list(tmp_path.glob("*theirs*"))


def test_a_float_network_is_not_exported(tmp_path: Path):
    backbone = build_backbone(BackboneConfig(name="test_resnet"), Precision.FLOAT)
    file = tmp_path / "ours.safetensors"
    meta = {"backbone": asdict(backbone.config), "precision": "float"}
    save_checkpoint(file, below("backbone.", backbone.state_dict()), meta)
    with pytest.raises(UserError, match="test_resnet, not a reactnet_a"):
        export_checkpoint(file, tmp_path / "theirs.pth", "reactnet")


def test_where_an_export_may_not_go(tmp_path: Path):
    file = save_ours(tmp_path / "ours.safetensors", published(Precision.BINARY))
    (tmp_path / "there.pth").touch()
    for out, format, words in (
        ("there.pth", "reactnet", "already exists"),
        ("theirs.safetensors", "reactnet", "torch file"),
        ("nowhere/theirs.pth", "reactnet", "no such folder"),
        ("theirs.pth", "s2bnn", "cannot export to 's2bnn'"),
    ):
        with pytest.raises(UserError, match=words):
            export_checkpoint(file, tmp_path / out, format)
    assert (tmp_path / "there.pth").read_bytes() == b""


# --- Refusals: one line, naming the file, and nothing written. ---


@pytest.fixture(scope="module")
def reactnet() -> dict[str, Tensor]:
    """A state dict of step 2, without the prefix."""
    return dict(twin("reactnet", 2).state_dict())


def refused(held: Any, words: str, file: Path, format: str = "reactnet", **options: Any) -> str:
    if held is not None:
        torch.save(held, file)
    before = sorted(file.parent.iterdir())
    with pytest.raises(UserError, match=words) as caught:
        import_checkpoint(file, format, file.parent / "ours.safetensors", **options)
    message = str(caught.value)
    assert str(file) in message, message
    assert "\n" not in message
    assert sorted(file.parent.iterdir()) == before
    return message


def test_a_missing_entry(reactnet: dict[str, Tensor], tmp_path: Path):
    for name in ("feature.0.conv1.weight", "feature.5.bn1.running_var", "feature.2.move21.bias"):
        lacking = {n: t for n, t in reactnet.items() if n != name}
        refused(lacking, f"it lacks {name}$", tmp_path / "w.pth")
    refused(
        {n: t for n, t in reactnet.items() if n != "fc.bias"},
        r"it lacks fc\.bias$",
        tmp_path / "w.pth",
    )


def test_an_unknown_entry(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    for name in ("feature.14.bn1.bias", "layer1.weight", "feature.3.bn2_1.bias", "queue"):
        state = below("module.", reactnet | {name: torch.zeros(8)})
        refused({"state_dict": state}, f"has unknown .*{name}$", file)


def test_an_entry_twice(reactnet: dict[str, Tensor], tmp_path: Path):
    twice = reactnet | {"module.fc.bias": torch.zeros(10)}
    refused(twice, r"has unknown module\.fc\.bias", tmp_path / "w.pth")


def test_ten_names_are_listed_and_the_rest_counted(reactnet: dict[str, Tensor], tmp_path: Path):
    kept = {n: t for n, t in reactnet.items() if "bn1.running" not in n}
    message = refused(kept, "it lacks", tmp_path / "w.pth")
    assert message.count("running") == 10
    assert message.endswith("and 18 more")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("feature.4.move12.bias", lambda t: t.flatten(), r"\(32,\) instead of \(1, 32, 1, 1\)"),
        ("feature.4.binary_3x3.weights", lambda t: t[:-1], r"instead of \(9216, 1\)"),
        ("feature.4.bn1.weight", lambda t: t[:5], r"\(5,\) instead of \(32,\)"),
        ("feature.0.conv1.weight", lambda t: t.repeat(2, 1, 1, 1), "instead of"),
        ("feature.0.conv1.weight", lambda t: t[:0], "width 0"),
        ("feature.0.conv1.weight", lambda t: t[:7], "width"),
        ("feature.0.conv1.weight", lambda t: t.flatten(), "lacks"),
        (
            "feature.0.conv1.weight",
            lambda t: t[:1].expand(10**9, -1, -1, -1),
            "claims more numbers",
        ),
        ("fc.weight", lambda t: t[:, :9], r"fc\.weight \(10, 9\) instead of \(10, 256\)"),
        ("fc.weight", lambda t: t[0], r"fc\.weight \(256,\) instead of"),
        ("fc.bias", lambda t: t.to(torch.complex64), "complex64"),
        ("feature.4.bn1.weight", lambda t: t.int(), "int32"),
        ("feature.4.bn1.weight", lambda t: t.to_sparse(), "sparse_coo"),
        ("feature.4.bn1.weight", lambda t: t.to("meta"), "device meta"),
        ("feature.4.bn1.num_batches_tracked", lambda t: t.float(), "float32"),
        ("feature.4.bn1.weight", lambda t: t * float("nan"), r"not finite in feature\.4\.bn1"),
        ("fc.bias", lambda t: t / 0, r"not finite in fc\.bias"),
        ("fc.bias", lambda t: t.double() * 1e200, "not finite"),
    ],
)
def test_a_tensor_that_cannot_be(
    name: str, change: Callable[[Tensor], Tensor], words: str, reactnet: dict[str, Tensor],
    tmp_path: Path,
):  # fmt: skip
    """The claims of a file are checked before memory is set aside for them."""
    refused(reactnet | {name: change(reactnet[name])}, words, tmp_path / "w.pth")


@pytest.mark.parametrize("change", ["missing", "shape", "unknown"])
def test_the_releases_classifiers_are_checked_as_well(change: str, tmp_path: Path):
    held = content("burn-release", twin("burn-release", 2))
    classifier = held["classifier.state_dict"]
    if change == "missing":
        del classifier["1.running_mean"]
    elif change == "shape":
        classifier["3.weight"] = classifier["3.weight"][:, :-1]
    else:
        classifier["4.weight"] = torch.zeros(1)
    name = {"missing": "1.running_mean", "shape": "3.weight", "unknown": "4.weight"}[change]
    refused(held, rf"classifier\.{name}", tmp_path / "w.pth", "burn-release")


@pytest.mark.parametrize("given", exchange.FORMATS)
@pytest.mark.parametrize("actual", exchange.FORMATS)
def test_another_format_is_named(actual: str, given: str, tmp_path: Path):
    if given != actual:
        held = content(actual, twin(actual, 2))
        message = refused(held, f"is of format {actual}, not {given}", tmp_path / "w.pth", given)
        assert len(message) < 1500  # what the command line prints of it


def test_another_architecture(tmp_path: Path):
    state = below("module.encoder_q.", {f"layer{i}.conv.weight": torch.rand(2) for i in range(40)})
    file = tmp_path / "w.pth"
    for format in exchange.FORMATS:
        message = refused({"state_dict": state}, "cannot be imported as", file, format)
        assert "lacks feature.0.conv1.weight; it has unknown" in message
        assert "layer9" in message
        assert message.endswith("and 30 more")


def test_names_that_would_break_the_line(reactnet: dict[str, Tensor], tmp_path: Path):
    refused(reactnet | {"a\n\x1b[2J": torch.zeros(1)}, r"a \?\[2J", tmp_path / "w.pth")


def test_stages(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    refused(reactnet, "flat, which is stage 2, not 1", file, stage=1)
    with pytest.raises(UserError, match="stage 3: 1 "):
        import_checkpoint(file, "reactnet", tmp_path / "ours.safetensors", stage=3)
    with pytest.raises(UserError, match="unknown format 'mocov2': reactnet, "):
        import_checkpoint(file, "mocov2", tmp_path / "ours.safetensors")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([torch.zeros(1)], "holds a list"),
        (torch.zeros(3), "holds a Tensor"),
        ({}, "lacks feature.0.conv1.weight$"),
        ({"state_dict": {}}, "lacks"),
        ({"state_dict": [torch.zeros(1)]}, "lacks"),
        ({3: torch.zeros(1)}, "unknown 3"),
    ],
)
def test_files_without_a_network(held: Any, words: str, tmp_path: Path):
    refused(held, words, tmp_path / "w.pth")


def test_dicts_within_each_other_without_end(reactnet: dict[str, Tensor], tmp_path: Path):
    """A pickle can hold a dict that holds itself; its entries are then there twice."""
    state: dict[str, Any] = dict(reactnet)
    state["state_dict"] = state
    refused(state, "has unknown", tmp_path / "w.pth")


def test_what_is_no_weights_file(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    file.write_bytes(b"<!DOCTYPE html>\n<html><body>Quota exceeded</body></html>\n")
    refused(None, "not a weights file", file)
    torch.save(reactnet, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(None, "not a weights file", file)
    file.unlink()
    refused(None, "no file at", file)


class Payload:
    """Unpickled, it would create the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_with_code_is_refused_and_not_run(reactnet: dict[str, Tensor], tmp_path: Path):
    marker = tmp_path / "marker"
    held = {"state_dict": reactnet, "extra": Payload(marker)}
    refused(held, "could run code", tmp_path / "w.pth")
    assert not marker.exists()
    torch.load(tmp_path / "w.pth", weights_only=False)  # what is guarded against is real
    assert marker.exists()


def test_where_an_import_may_not_go(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    torch.save(reactnet, file)
    (tmp_path / "there.safetensors").touch()
    (tmp_path / "described.json").touch()
    before = sorted(tmp_path.iterdir())
    for out, words in (
        ("there.safetensors", "there.safetensors already exists"),
        ("described.safetensors", "described.json already exists"),
        ("ours.pth", "ends in .safetensors"),
        ("nowhere/ours.safetensors", "no such folder"),
    ):
        with pytest.raises(UserError, match=words):
            import_checkpoint(file, "reactnet", tmp_path / out)
    assert sorted(tmp_path.iterdir()) == before
