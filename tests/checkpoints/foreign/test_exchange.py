"""Published checkpoints: the function of the network that wrote them, or a refusal.

The slow twin is that network in its published structure (published.py).
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.exchange import (
    _read,
    export_checkpoint,
    import_checkpoint,
)
from burn.checkpoints.native import load_checkpoint, save_checkpoint, take
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.costs.compute import count_named
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from burn.evaluation.context import open_model
from burn.methods.base import mlp
from networks import randomize, tiny_reactnet
from published import (
    SMALL,
    BurnClassification,
    BurnPretraining,
    Twin,
    backbone_weights,
    below,
    classifiers,
    content,
    of_mmcv,
    of_reactnets_trainer,
    of_s2bnns_lincls,
    twin,
    weights_for_multi,
    written,
)
from seldom import few

REACTNETS = ("reactnet", "burn-release", "s2bnn")  # formats of ReActNet-A
IMAGES = torch.randint(
    0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(6), dtype=torch.uint8
)


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


@pytest.mark.long
def test_reactnet_at_full_width(tmp_path: Path):
    """Entries and parameters are the published ones, and every command can load the outcome."""
    network = twin("reactnet", 2, width=1.0, fc=nn.Linear(1024, 1000))
    state = network.state_dict()
    assert len(state) == 298
    assert sum(p.numel() for p in network.parameters()) == 29_343_592
    file = written(tmp_path / "model_best.pth.tar", "reactnet", network)
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(file, "reactnet", out)
    assert (summary.config.width, summary.notes) == (1, ())
    assert summary.heads == {"classifier": 1_025_000}
    assert summary.parameters + 1_025_000 == 29_343_592
    model = open_model(str(out), fresh=False, seed=0)
    assert model.name == "imported reactnet, stage 2"
    assert model.views == ViewConfig()
    assert not model.backbone.training
    assert_same_function(network, model.backbone, IMAGES[:1])
    cost, about = count_named(str(out), out, None, 1000, None)
    assert cost.binary_parameters + cost.float_parameters == 29_343_592
    assert (about["image_size"], about["precision"], about["stage"]) == (224, "binary", 2)


def test_s2bnns_networks_have_the_published_number_of_entries():
    """424 as built for the queue's 128 dimensions; its option --mlp adds a linear layer."""
    plain = twin("s2bnn", 1, fc=nn.Linear(256, 16)).state_dict()
    assert len(plain) == 424
    assert len(twin("s2bnn", 1).state_dict()) == 426


@pytest.mark.parametrize(
    ("format", "stage", "form"),
    [
        pytest.param(*case, marks=() if n % 4 in (0, 3) else pytest.mark.long)
        for n, case in enumerate(itertools.product(REACTNETS, [1, 2], ["latent", "scaled"]))
    ],
)  # of each format each stage and each form once
def test_the_function_is_kept(format: str, stage: int, form: str, tmp_path: Path):
    """Binary weights may be stored as they were trained, or already as ±scale."""
    network = twin(format, stage)
    if form == "scaled":
        network.binarize()
    out = tmp_path / "ours.safetensors"
    given = None if format == "reactnet" else stage
    summary = import_checkpoint(written(tmp_path / "w.pth", format, network), format, out, given)
    precision = Precision.BINARY if stage == 2 else Precision.BINARY_ACTIVATIONS
    assert (summary.stage, summary.precision, summary.config.width) == (stage, precision, SMALL)
    assert summary.notes == ()
    backbone = open_model(str(out), fresh=False, seed=0).backbone
    assert summary.parameters == sum(p.numel() for p in backbone.parameters())
    assert_same_function(network, backbone)


def test_flat_weights_of_s2bnn_are_stage_2(tmp_path: Path):
    network = twin("s2bnn", 2, flat=True)
    out = tmp_path / "ours.safetensors"
    summary = import_checkpoint(written(tmp_path / "w.pth", "s2bnn", network), "s2bnn", out)
    assert (summary.stage, summary.notes) == (2, ())
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)


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
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)


def test_binary_weights_of_exactly_0_are_told(tmp_path: Path):
    """Theirs count nothing, ours +scale: one bit has no third value."""
    network = twin("reactnet", 2)
    with torch.no_grad():
        network.state_dict()["feature.3.binary_pw.weights"][:7] = 0
    file = written(tmp_path / "w.pth", "reactnet", network)
    summary = import_checkpoint(file, "reactnet", tmp_path / "ours.safetensors")
    assert [note[:32] for note in summary.notes] == ["7 binary weights are exactly 0, "]


# --- Files as the trainers save them. ---


@pytest.mark.parametrize(("step", "name"), [(1, "checkpoint.pth.tar"), (2, "model_best.pth.tar")])
def test_reactnets_trainer(step: int, name: str, tmp_path: Path):
    """Its best accuracy is a tensor without dimensions, its optimizer has a state of tensors."""
    network = twin("reactnet", step)
    file, out = tmp_path / name, tmp_path / "ours.safetensors"
    torch.save(of_reactnets_trainer(network), file)
    summary = import_checkpoint(file, "reactnet", out)
    assert (summary.stage, summary.notes) == (step, ())
    assert {"epoch": 1, "best_top1_acc": 1}.items() <= summary.dropped.items()
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("latest.pth", 1),
        ("for_multi.pth", 2),
        ("backbone.pth", 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("latest.pth", 2), ("for_multi.pth", 1), ("backbone.pth", 1))
        ),
    ],
)
def test_burns_trainer_and_its_tools(kind: str, stage: int, tmp_path: Path):
    network = twin("burn-release", stage)
    model = BurnPretraining(network)
    held = of_mmcv(model)
    if kind == "for_multi.pth":
        held = weights_for_multi(held)
    elif kind == "backbone.pth":
        held = backbone_weights(held)
    file, out = tmp_path / kind, tmp_path / "ours.safetensors"
    torch.save(held, file)
    summary = import_checkpoint(file, "burn-release", out, stage)
    assert summary.stage == stage
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)
    if kind == "backbone.pth":
        assert (summary.heads, summary.dropped, summary.notes) == ({}, {"author": 1}, ())
        return
    twice = [f"held twice, with equal numbers: online_net.0.{p}.* and backbone.{p}.*"
             for p in ("feature", "fc")]  # fmt: skip
    assert sorted(summary.notes) == sorted(twice if kind == "latest.pth" else [])
    weights = load_checkpoint(out).weights
    necks = {"classifier.": model.online_net[1], "teacher_classifier.": model.diff_branch_net[1]}
    for part, neck in necks.items():
        ours = mlp(256 if part == "classifier." else 48, 20, 12)
        ours.load_state_dict(take(weights, part))
        features = torch.randn(3, ours[0].in_features)  # type: ignore[arg-type]
        with torch.no_grad():
            assert torch.equal(ours.eval()(features), neck.eval()(features))


def test_burns_neck_with_its_class_defaults(tmp_path: Path):
    """No biases, and a normalisation at the end."""
    network = twin("burn-release", 1)
    model = BurnPretraining(network, bias=False, last_norm=True)
    file, out = tmp_path / "w.pth", tmp_path / "ours.safetensors"
    torch.save(weights_for_multi(of_mmcv(model)), file)
    import_checkpoint(file, "burn-release", out, 1)
    head = take(load_checkpoint(out).weights, "classifier.")
    assert {"0.weight", "1.running_var", "3.weight", "4.running_mean"} <= set(head)
    assert not {"0.bias", "3.bias"} & set(head)


def test_burns_two_copies_that_differ(tmp_path: Path):
    held = of_mmcv(BurnPretraining(twin("burn-release", 2)))
    name = "online_net.0.feature.7.bn1.running_mean"
    held["state_dict"][name] = held["state_dict"][name] + 1
    words = rf"twice with different numbers: state_dict\.{name}, state_dict\.backbone\.feature\.7"
    refused(held, words, tmp_path / "latest.pth", "burn-release", stage=2)


@pytest.mark.parametrize("feature_layer", few([True, False], 1))
def test_burns_linear_evaluation(feature_layer: bool, tmp_path: Path):
    """Its classifier names classes once the network is packed."""
    options: dict[str, Any] = {} if feature_layer else {"fc": nn.Identity()}
    network = twin("burn-release", 2, **options)
    model = BurnClassification(network)
    file, out = tmp_path / "epoch_100.pth", tmp_path / "ours.safetensors"
    torch.save(of_mmcv(model), file)
    summary = import_checkpoint(file, "burn-release", out, 2)
    assert summary.heads == {"classifier": 256 * 10 + 10}
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)
    assert_packed_with(model.head.fc_cls, out)


@pytest.mark.parametrize("step", few([2, 1], 1))
def test_s2bnns_linear_evaluation(step: int, tmp_path: Path):
    network = twin("s2bnn", step, fc=nn.Linear(256, 10))
    file, out = tmp_path / "model_best.pth.tar", tmp_path / "ours.safetensors"
    torch.save(of_s2bnns_lincls(network), file)
    refused(None, "is of format s2bnn, not reactnet", file, "reactnet")
    summary = import_checkpoint(file, "s2bnn", out, step)
    assert summary.heads == {"classifier": 256 * 10 + 10}
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)
    if step == 2:
        assert_packed_with(network.fc, out)


def assert_packed_with(classifier: Any, ours: Path) -> None:
    """The imported file is its own --head."""
    held = take(load_checkpoint(ours).weights, "classifier.")
    assert torch.equal(held["weight"], classifier.weight.float())
    done = pack(ours, ours.with_suffix(".bnn"), ours)
    assert (done.classes, done.same_class) == (10, done.images)


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


@pytest.mark.parametrize("wrapping", few(wrappings({}), 3))
def test_the_releases_files(wrapping: str, tmp_path: Path):
    network = twin("burn-release", 2)
    torch.manual_seed(3)
    student, teacher = classifiers()
    torch.manual_seed(3)
    held = wrappings(network.state_dict())[wrapping]
    file, out = tmp_path / "w.pth", tmp_path / "ours.safetensors"
    torch.save(held, file)
    summary = import_checkpoint(file, "burn-release", out, 2)
    assert summary.notes == ()
    backbone = open_model(str(out), fresh=False, seed=0).backbone
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
    assert_same_function(network, open_model(str(out), fresh=False, seed=0).backbone)


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
    assert (len(exported), summary.left_out, summary.notes) == (298, (), ())
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
    assert summary.left_out == ()
    step = 2 if precision == Precision.BINARY else 1
    network = twin("reactnet", step, fc=nn.Linear(256, 5))
    state = torch.load(tmp_path / "theirs.pth", weights_only=True)["state_dict"]
    assert len(state) == 298
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
    state = torch.load(tmp_path / "theirs.pth", weights_only=True)["state_dict"]
    assert len(state) == 296
    assert summary.left_out == tuple({name.split(".")[0] for name in heads})
    assert summary.notes == ("the checkpoint has no linear classifier, so the file has no fc",)
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
        (
            Precision.BINARY,
            {"name": "reactnet_m"},
            r"\[1, 1, 1, 3, 1\] blocks, and not reactnet_a's",
        ),
        (Precision.BINARY, {"depths": (2, 2, 2, 5, 2)}, r"\[2, 2, 2, 5, 2\] blocks, and not"),
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
        ("nowhere/theirs.pth", "reactnet", "there is no folder"),
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
    assert len(message.replace(str(file.parent), "")) <= 240, "more than two lines"
    assert sorted(file.parent.iterdir()) == before
    return message


def unread(held: Any, words: str, format: str = "reactnet") -> str:
    """The refusal of what a file would hold; `refused` shows what becomes of it."""
    with pytest.raises(UserError, match=words) as caught:
        _read(held, format)
    message = str(caught.value)
    assert "\n" not in message
    assert len(f"/w.pth cannot be imported as {format}: {message}") <= 240, "more than two lines"
    return message


@pytest.mark.parametrize(
    "around", ["_orig_mod.", "module._orig_mod.", "model.", "net.module.", "model.backbone."]
)
def test_wrappers_around_a_network(around: str, reactnet: dict[str, Tensor]):
    """With the same network, and whatever does not belong to it is named as before."""
    state = {"state_dict": below(around, reactnet)}
    found, expected = _read(state, "reactnet").weights, _read(reactnet, "reactnet").weights
    assert torch.equal(found["backbone.stem.weight"], reactnet["feature.0.conv1.weight"])
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(UserError, match=r"has unknown state_dict.model.queue"):
        _read({"state_dict": state["state_dict"] | {"model.queue": torch.rand(2)}}, "reactnet")


def test_a_missing_entry(reactnet: dict[str, Tensor], tmp_path: Path):
    for name in ("feature.0.conv1.weight", "feature.5.bn1.running_var", "feature.2.move21.bias"):
        unread({n: t for n, t in reactnet.items() if n != name}, f"^it lacks {name}$")
    lacking = {n: t for n, t in reactnet.items() if n != "fc.bias"}
    refused(lacking, r"it lacks fc\.bias$", tmp_path / "w.pth")


def test_an_unknown_entry(reactnet: dict[str, Tensor], tmp_path: Path):
    for name in ("feature.14.bn1.bias", "layer1.weight", "feature.3.bn2_1.bias", "queue"):
        state = below("module.", reactnet | {name: torch.zeros(8)})
        unread({"state_dict": state}, f"has unknown .*{name}$")
    held = reactnet | {"queue_ptr": torch.tensor([3])}
    refused(held, "has unknown queue_ptr$", tmp_path / "w.pth")


def test_an_entry_twice(reactnet: dict[str, Tensor], tmp_path: Path):
    twice = reactnet | {"module.fc.bias": torch.zeros(10)}
    words = r"twice with different numbers: fc\.bias, module\.fc\.bias$"
    refused(twice, words, tmp_path / "w.pth")
    equal = reactnet | {"module.fc.bias": reactnet["fc.bias"].clone()}
    torch.save(equal, tmp_path / "w.pth")
    summary = import_checkpoint(tmp_path / "w.pth", "reactnet", tmp_path / "ours.safetensors")
    assert summary.notes == ("held twice, with equal numbers: fc.*",)


def test_few_names_are_listed_and_the_rest_counted(reactnet: dict[str, Tensor], tmp_path: Path):
    kept = {n: t for n, t in reactnet.items() if "bn1.running" not in n}
    message = refused(kept, "it lacks", tmp_path / "w.pth")
    assert message.count("running") == 2
    assert message.endswith("and 26 more")


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
        ("fc.weight", lambda t: t[:, :9], r"fc\.weight \(10, 9\) instead of \(10, 256\)"),
        ("fc.weight", lambda t: t[0], r"fc\.weight \(256,\) instead of"),
        ("fc.bias", lambda t: t.to(torch.complex64), "complex64"),
        ("feature.4.bn1.weight", lambda t: t.int(), "int32"),
        ("feature.4.bn1.num_batches_tracked", lambda t: t.float(), "float32"),
        ("feature.4.bn1.weight", lambda t: t * float("nan"), r"not finite in feature\.4\.bn1"),
        ("fc.bias", lambda t: t.double() * 1e200, "not finite"),
    ],
)
def test_a_tensor_that_cannot_be(
    name: str, change: Callable[[Tensor], Tensor], words: str, reactnet: dict[str, Tensor]
):
    """The claims of a file are checked before memory is set aside for them."""
    unread(reactnet | {name: change(reactnet[name])}, words)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        # What only a file has: claims without the numbers, and tensors of other kinds.
        (
            "feature.0.conv1.weight",
            lambda t: t[:1].expand(10**9, -1, -1, -1),
            "claims more numbers",
        ),
        ("feature.4.bn1.weight", lambda t: t.to_sparse(), "sparse_coo"),
        ("feature.4.bn1.weight", lambda t: t.to("meta"), "device meta"),
        ("fc.bias", lambda t: t / 0, r"not finite in fc\.bias"),
    ],
)
def test_a_tensor_that_cannot_be_in_a_file(
    name: str, change: Callable[[Tensor], Tensor], words: str, reactnet: dict[str, Tensor],
    tmp_path: Path,
):  # fmt: skip
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


@pytest.mark.parametrize("given", REACTNETS)
@pytest.mark.parametrize("actual", few(REACTNETS, 1))
def test_another_format_is_named(actual: str, given: str, tmp_path: Path):
    if given != actual:
        held = content(actual, twin(actual, 2))
        message = refused(held, f"is of format {actual}, not {given}", tmp_path / "w.pth", given)
        assert message.endswith(f"give --format {actual}")


def test_another_architecture(tmp_path: Path):
    state = below("module.encoder_q.", {f"layer{i}.conv.weight": torch.rand(2) for i in range(40)})
    file = tmp_path / "w.pth"
    for format in REACTNETS:
        message = refused({"state_dict": state}, "cannot be imported as", file, format)
        assert "feature.0.conv1.weight; it has unknown" in message
        assert message.endswith("layer0.conv.weight and 39 more")


def test_names_that_would_break_the_line(reactnet: dict[str, Tensor], tmp_path: Path):
    refused(reactnet | {"a\n\x1b[2J": torch.zeros(1)}, r"a \?\[2J", tmp_path / "w.pth")


def test_stages(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    refused(reactnet, "flat, which is stage 2, not 1", file, stage=1)
    with pytest.raises(UserError, match="stage 3: give 1 "):
        import_checkpoint(file, "reactnet", tmp_path / "ours.safetensors", stage=3)
    with pytest.raises(UserError, match="unknown format 'mocov2': give one of reactnet, "):
        import_checkpoint(file, "mocov2", tmp_path / "ours.safetensors")


def test_a_stage_that_contradicts_reactnets_file(tmp_path: Path):
    """Its 4-D weights are of step 1: binarised, they would be another function."""
    held = of_reactnets_trainer(twin("reactnet", 1))
    refused(held, "4-D, which is stage 1, not 2$", tmp_path / "w.pth", stage=2)
    bare = twin("reactnet", 1, fc=nn.Identity()).state_dict()
    refused(
        bare, "not 2; for a file of BURN give --format burn-release", tmp_path / "w.pth", stage=2
    )


@pytest.mark.parametrize("format", ["burn-release", "s2bnn"])
def test_a_stage_that_the_file_does_not_tell_is_asked_for(format: str, tmp_path: Path):
    held = content(format, twin(format, 2))
    words = r"does not tell its stage: give --stage 1 \(.*\) or --stage 2 \("
    refused(held, words, tmp_path / "w.pth", format)


@pytest.mark.parametrize("stage", few([2, 1], 1))
def test_burns_network_without_its_feature_layer(stage: int, tmp_path: Path):
    """Its names and shapes are those of ReActNet's step 1, whatever its stage."""
    network = twin("burn-release", stage, fc=nn.Identity())
    file, out = tmp_path / "w.pth", tmp_path / "ours.safetensors"
    held = backbone_weights(of_mmcv(BurnPretraining(network)))
    refused(held, "may be of ReActNet's step 1 .* or of BURN", file)
    refused(held, "does not tell its stage", file, "burn-release")
    refused(held, r"is of format reactnet or burn-release, not s2bnn", file, "s2bnn")
    summary = import_checkpoint(file, "burn-release", out, stage)
    assert summary.stage == stage
    backbone = open_model(str(out), fresh=False, seed=0).backbone
    assert not backbone.config.feature_layer
    assert_same_function(network, backbone)
    if stage == 1:
        again = tmp_path / "again.safetensors"
        import_checkpoint(file, "reactnet", again, 1)
        assert_same_function(network, open_model(str(again), fresh=False, seed=0).backbone)


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
    torch.save(state, tmp_path / "w.pth")
    import_checkpoint(tmp_path / "w.pth", "reactnet", tmp_path / "ours.safetensors")
    for number in range(1000):  # a billion paths
        state[f"state_dict{number}"] = state
    (tmp_path / "ours.safetensors").unlink()
    (tmp_path / "ours.json").unlink()
    refused(state, "more than 100,000 entries", tmp_path / "w.pth")


def test_what_is_no_weights_file(reactnet: dict[str, Tensor], tmp_path: Path):
    file = tmp_path / "w.pth"
    file.write_bytes(b"<!DOCTYPE html>\n<html><body>Quota exceeded</body></html>\n")
    refused(None, "not a weights file", file)
    torch.save(reactnet, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(None, "not a weights file", file)
    file.unlink()
    refused(None, "no such file", file)


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
        ("ours.pth", "must end in .safetensors"),
        ("nowhere/ours.safetensors", "there is no folder"),
    ):
        with pytest.raises(UserError, match=words):
            import_checkpoint(file, "reactnet", tmp_path / out)
    assert sorted(tmp_path.iterdir()) == before
