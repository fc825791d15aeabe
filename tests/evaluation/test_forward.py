"""Features that burn-engine computes for an evaluation, against PyTorch's."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

import tiny  # noqa: F401 - one thread
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.native import save_checkpoint
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.data.builtin.digits import Digits
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.deploy.running import PackedForward
from burn.evaluation.cache import plain_features
from burn.evaluation.configs import KnnConfig, LinearConfig, Request, SemiConfig, SvmConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.features import Forward, extract_features, packed_forward
from burn.evaluation.linear_layer import augmented_batches
from burn.evaluation.registry import evaluate_checkpoint
from networks import randomize, tiny_reactnet

CONSOLE = Console(file=io.StringIO())
CPU = torch.device("cpu")
VIEWS = ViewConfig(size=32)


def trained(name: str, **settings: Any) -> Backbone:
    torch.manual_seed(0)
    config = BackboneConfig(name=name, **settings)
    backbone = randomize(build_backbone(config, Precision.BINARY))
    for module in backbone.modules():
        if isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, -0.5, 0.5)
    return backbone.eval()


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether rows are equal up to a sign that rounding turned in one of many images."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == torch.float32
    error = (found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    return bool((error < 1e-4).float().mean() >= 0.9)


@pytest.mark.parametrize(
    "network",
    [
        ("reactnet_a", {"width": 0.25, "stage_strides": (2, 2, 2, 1)}),
        ("reactnet_a", {"width": 0.125, "feature_layer": True}),
        ("reactnet_m", {"width": 0.25, "feature_norm": True}),
        ("bnext_t", {"width": 0.25}),
        ("bnext_t", {"width": 0.25, "feature_norm": True}),
        ("expert_bnn", {"width": 0.125}),
    ],
    ids=["reactnet_a", "feature layer", "reactnet_m", "bnext_t", "bnext_t, norm", "expert_bnn"],
)
def test_features_and_maps_are_those_of_pytorch(network: tuple[str, dict[str, Any]]):
    name, settings = network
    backbone = trained(name, **settings)
    packed = PackedForward(backbone, 40, threads=2)
    views = torch.randint(0, 256, (20, 3, 40, 33), dtype=torch.uint8)
    with torch.no_grad():
        assert same(packed.features(views), backbone(views))
        assert same(packed.feature_maps(views), backbone.forward_features(views))


def test_without_a_pool_and_with_one():
    backbone = trained("reactnet_a", width=0.125)
    views = torch.randint(0, 256, (9, 3, 64, 64), dtype=torch.uint8)  # ends on a 2×2 map
    by_torch = Forward(backbone)
    packed = Forward(backbone, packed=PackedForward(backbone, 32, 1))
    assert (by_torch.compute, packed.compute) == ("float32", "packed")
    assert Forward(backbone, bfloat16=True).compute == "bfloat16"

    def largest(maps: Tensor) -> Tensor:
        return maps.amax(dim=(2, 3))

    assert same(packed(views), by_torch(views))
    assert same(packed(views, largest), by_torch(views, largest))
    assert not same(packed(views, largest), by_torch(views))


def test_a_float_network_runs_folded(monkeypatch: pytest.MonkeyPatch):
    config = BackboneConfig(name="mobilenetv2_050")
    backbone = randomize(build_backbone(config, Precision.FLOAT)).eval()
    views = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8)
    with torch.no_grad():
        expected, maps = backbone(views), backbone.forward_features(views)
    forward = Forward(backbone)
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(type(backbone), "forward", lambda *_: pytest.fail("not folded"))
        found = forward(views)
    # float32 through 52 convolutions whose weights were rounded once more.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(forward(views, lambda x: x.amax(dim=(2, 3))), maps.amax(dim=(2, 3)))


def test_features_of_a_source():
    backbone, source = trained("reactnet_a", width=0.125), Digits("test")
    packed = PackedForward(backbone, 32, 1)
    seen: list[int] = []
    found = extract_features(
        backbone,
        source,
        VIEWS,
        indices=range(40),
        batch_size=16,
        packed=packed,
        advance=seen.append,
    )
    expected = extract_features(backbone, source, VIEWS, indices=range(40))
    assert same(found.values, expected.values)
    assert torch.equal(found.positions, expected.positions)
    assert seen == [16, 16, 8]


def test_features_of_augmented_views():
    backbone, source = trained("reactnet_a", width=0.125), Digits("test")

    def first(packed: PackedForward | None) -> tuple[Tensor, Tensor, Tensor]:
        forward = Forward(backbone, packed=packed)
        batches = augmented_batches(forward, source, 32, 40, seed=0, workers=0, unreadable=set())
        return next(batches(0))

    found, expected = first(PackedForward(backbone, 32, 1)), first(None)
    assert same(found[0], expected[0])
    assert torch.equal(found[2], expected[2])


def test_what_auto_takes():
    binary = tiny_reactnet().eval()
    assert packed_forward(binary, 32, "auto", CPU) is not None
    assert packed_forward(binary, 32, "packed", CPU) is not None
    for compute in ("float32", "bfloat16"):
        assert packed_forward(binary, 32, compute, CPU) is None
    assert packed_forward(binary, 32, "auto", torch.device("cuda")) is None
    with pytest.raises(UserError, match=r"--compute packed runs on the CPU: give --device cpu"):
        packed_forward(binary, 32, "packed", torch.device("cuda"))


@pytest.mark.parametrize(
    ("precision", "why"),
    [
        (Precision.FLOAT, "its precision is float"),
        (Precision.BINARY_ACTIVATIONS, "its weights are not binary"),
    ],
)
def test_networks_without_binary_weights_run_in_pytorch(precision: Precision, why: str):
    backbone = tiny_reactnet(precision)
    assert packed_forward(backbone, 32, "auto", CPU) is None
    with pytest.raises(UserError, match=f"--compute packed: burn-engine cannot run .*{why}"):
        packed_forward(backbone, 32, "packed", CPU)


def test_a_network_that_diverged_runs_in_pytorch_whose_error_says_so(photos: str):
    backbone = trained("reactnet_a", width=0.125)
    with torch.no_grad():
        next(m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)).weight.fill_(torch.inf)
    assert packed_forward(backbone, 32, "auto", CPU) is None
    source = open_source(photos)
    context = EvaluationContext("it", "it", backbone, VIEWS, source, source, seed=0, workers=0)
    with pytest.raises(UserError, match="the network diverged"):
        plain_features(context, "train", CONSOLE)


def test_a_network_that_is_not_its_chain_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch):
    backbone = trained("reactnet_a", width=0.125)
    pool = backbone.pool  # a plugin's backbone may do more than its chain says
    monkeypatch.setattr(backbone, "pool", lambda maps: pool(maps).roll(1, dims=1))
    assert packed_forward(backbone, 32, "auto", CPU) is None
    with pytest.raises(
        UserError, match=r"--compute packed: .* agree with PyTorch's only to cosine"
    ):
        packed_forward(backbone, 32, "packed", CPU)


def test_without_a_compiled_core_pytorch_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    assert packed_forward(tiny_reactnet(), 32, "auto", CPU) is None
    with pytest.raises(UserError, match="--compute packed: burn-engine has no compiled core here"):
        packed_forward(tiny_reactnet(), 32, "packed", CPU)


@pytest.fixture
def photos(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    for number, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(80 * number, 80 * number + 120, (36, 36, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return str(tmp_path / "photos")


@pytest.fixture
def student(tmp_path: Path) -> str:
    backbone = trained("reactnet_a", width=0.125)
    meta = {
        "backbone": asdict(backbone.config), "precision": "binary", "stage": 1, "steps": 7,
        "recipe": {"name": "burn_small"}, "views": asdict(VIEWS),
    }  # fmt: skip
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(tmp_path / "student.safetensors", weights, meta)
    return str(tmp_path / "student.safetensors")


def evaluate(protocol: str, config: Any, **settings: Any) -> dict[str, float]:
    request = Request(**settings)
    results = evaluate_checkpoint(protocol, request, config, CONSOLE).results
    assert {r.settings["compute"] for r in results} == {
        "packed" if settings.get("compute", "auto") == "auto" else settings["compute"]
    }
    return {result.metric: result.value for result in results}


@pytest.mark.parametrize(
    ("protocol", "config"),
    [
        ("knn", KnnConfig(k=3)),
        ("linear", LinearConfig(epochs=3, lr=0.1)),
        ("linear", LinearConfig(epochs=3, lr=0.1, augment="none")),
        ("svm", SvmConfig(shots=(2,), samples=2)),
    ],
    ids=["knn", "linear", "linear, augment none", "svm"],
)
def test_a_binary_network_is_evaluated_in_the_engine(
    protocol: str, config: Any, student: str, photos: str, tmp_path: Path
):
    def numbers(compute: str) -> dict[str, float]:
        out = str(tmp_path / "out")  # one folder: no file of features may serve the other compute
        return evaluate(
            protocol, config, checkpoint=student, train=photos, test=photos, out=out,
            compute=compute, device="cpu", workers=0,
        )  # fmt: skip

    packed, by_torch = numbers("auto"), numbers("float32")
    assert packed.keys() == by_torch.keys()
    for metric, value in packed.items():
        assert value == pytest.approx(by_torch[metric], abs=100 / 24 + 1e-3)  # one image of 24
    if protocol == "knn":
        assert len(list((tmp_path / "out" / "features").iterdir())) == 2  # photos, twice


def test_protocols_that_train_the_network_refuse_packed(student: str, photos: str, tmp_path: Path):
    request = Request(student, photos, photos, out=str(tmp_path / "out"), compute="packed")
    with pytest.raises(UserError, match="packed: burn-engine only computes features, and semi"):
        evaluate_checkpoint("semi", request, SemiConfig(labels=50), CONSOLE)


def test_a_float_network_refuses_packed_in_one_line(
    teacher: Path, photos: str, capsys: pytest.CaptureFixture[str]
):
    given = [str(teacher), "--train", photos, "--test", photos, "--compute", "packed"]
    assert main(["evaluate", "knn", *given]) == 2
    assert capsys.readouterr().err.startswith("burn: --compute packed: burn-engine cannot run ")
