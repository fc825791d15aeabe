"""What must not wait for torch: help, the version, and the rejection of what was mistyped."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import reactnet_plan, state_shapes
from burn.checkpoints.native import save_checkpoint

HEAVY = ("torch", "torchvision", "timm", "lightly", "sklearn", "scipy", "cv2", "matplotlib")
# One process for all commands: what the first imports, the next would have imported too.
SCRIPT = f"""
import contextlib, io, json, sys
from burn.cli.main import main
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(line.split())
    print(json.dumps([line.strip(), status, [name for name in {HEAVY} if name in sys.modules]]))
"""
COMMANDS = ("demo", "pretrain", "evaluate", "compare", "ablate", "analyze", "import", "export",
            "pack", "info", "embed", "report")  # fmt: skip
PROTOCOLS = ("knn", "linear", "semi", "svm", "transfer", "detection")
ANALYSES = ("gradients", "ema-toy", "schedules", "cost", "negatives")


SHOWN = (
    "--help",
    "--version",
    *(f"{command} --help" for command in COMMANDS),
    *(f"evaluate {protocol} --help" for protocol in PROTOCOLS),
    *(f"analyze {analysis} --help" for analysis in ANALYSES),
    "pretrain --help-fields",
    "pretrain --recipe burn_small --print-config",
    "info reactnet_a --classes 10",
    "info run",
)
MISTYPED = (
    "pretrian",
    *(f"{command} --no-such-option 1" for command in COMMANDS if command != "evaluate"),
    *(f"evaluate {protocol} x --no-such-option 1" for protocol in PROTOCOLS),
    "pretrain --resume --out x --no-such-option",
    "pretrain --recipe burn_smal",
    "pretrain --recipe burn_small --epochs many",
    "pretrain --recipe burn_small --data digits",
    "pretrain --recipe burn_small --data digits --out x --workers 100000",
    "pretrain --config none.yaml",
    "info runs/none",
    "info none.safetensors",
    "info",
    "info reactnet_a --family",
    "info --family --image-size 9",
)
TRAIN = "pretrain --recipe simclr_small --data digits"
TAUGHT = "pretrain --recipe demo --data digits --out x"
KNN = "evaluate knn run --train digits --test digits"
COMPARE = "compare --methods simclr --budget 1000 --seeds 0 --data digits --test digits"
ABLATE = "ablate --groups stages --budget 1000 --data digits --test digits --teacher run"
# What a command names, and cannot be used: found without torch, whatever the command.
NAMED = {
    "data": (
        "pretrain --data nothere --teacher lite0 --out x",
        "pretrain --data unlabelled --recipe supervised_small --out x",
        "pretrain --data broken --recipe simclr_small --out x",
        "evaluate knn run --train nothere --test digits",
        "evaluate knn run --train digits --test unlabelled",
        "evaluate linear run --train unlabelled --test digits",
        "evaluate detection run --train digits --test digits",
        "compare --methods simclr --budget 1000 --data nothere --test digits --out x",
        "compare --methods simclr --budget 1000 --data digits --test unlabelled --out x",
        "ablate --budget 1000 --data nothere --test digits --teacher run --out x",
        "analyze gradients --data nothere --teacher run --out x",
        "analyze negatives --data nothere --test digits --budget 1000 --out x",
        "embed run --data nothere --out x",
    ),
    "network": (
        f"{TAUGHT} --teacher runs/typo",
        f"{TAUGHT} --teacher resnet500:weights.pth",
        f"{TAUGHT} --teacher resnet50:nothere.pth",
        f"{TAUGHT} --teacher hub:resnet500",
        f"{TAUGHT} --teacher broken.safetensors",
        f"{TRAIN} --teacher lite0 --out x",
        f"{TRAIN} --backbone.name reactnet_z --out x",
        f"{TRAIN} --method simclrr --out x",
        "pretrain --resume --out nothere",
        "pretrain --resume --out run",
        "evaluate knn nothere --train digits --test digits",
        "evaluate knn unlabelled --train digits --test digits",
        "evaluate knn broken.safetensors --train digits --test digits",
        "compare --methods burn --budget 1000 --data digits --test digits --teacher no --out x",
        "ablate --budget 1000 --data digits --test digits --teacher runs/typo --out x",
        "analyze gradients --data digits --teacher nothere --out x",
        "analyze cost --compared nothere --out x",
        "pack nothere x.bnn",
        "pack broken.safetensors x.bnn",
        "pack run x.bnn --head nothere",
        "pack run x.bnn --head unlabelled",
        "export nothere x.onnx",
        "export broken.safetensors x.onnx",
        "export run x --format tflite",
        "export nothere x.pth --format reactnet",
        "export nothere.bnn x --format c",
        "export nothere.bnn x --format c --epilogue int9",
        "import nothere.pth --format reactnet --out x.safetensors",
        "import broken.safetensors --format keras --out x.safetensors",
        "embed nothere --data digits --out x",
        "embed run --head unlabelled --data digits --out x",
        "info resnet500",
        "info broken.safetensors",
        "report nothere",
        "report unlabelled",
    ),
    "out": (
        f"{TRAIN} --out file",
        f"{TRAIN} --out file/below",
        f"{TRAIN} --out run",
        f"{TRAIN} --out begun",
        f"{TRAIN.replace('digits', 'labelled')} --out labelled/x",
        f"{KNN} --out file",
        f"{COMPARE} --out file",
        f"{COMPARE} --out begun",
        f"{ABLATE} --out begun",
        "demo --out file",
        "analyze ema-toy --out file",
        "pack run file.bnn",
        "pack run nowhere/x.bnn",
        "pack run x.zip",
        "export run taken.onnx",
        "export run taken.pth --format reactnet",
        "import broken.safetensors --format reactnet --out broken.safetensors",
        "embed run --data digits --out file",
        "report run --out file",
    ),
    "number": (
        f"{TRAIN} --out x --seed -1",
        f"{TRAIN} --out x --max-steps 0",
        f"{TRAIN} --out x --batch-size 0",
        f"{TRAIN} --out x --on-nonfinite never",
        f"{KNN} --k 0",
        f"{COMPARE} --budget 1 --out x",
        "demo --seed -1",
        "export run x.onnx --image-size 4",
        "embed run --data digits --out x --share 4/3",
    ),
}


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((8, 8, 3), 100, np.uint8))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and with things that cannot be used."""
    folder = tmp_path_factory.mktemp("startup")
    config = BackboneConfig(width=0.25)
    shapes = state_shapes(reactnet_plan(config))
    meta = {
        "backbone": asdict(config), "precision": "binary", "stage": 2, "steps": 3,
        "views": {"size": 32}, "recipe": {"name": "demo"},
    }  # fmt: skip
    (folder / "run").mkdir()
    weights = {f"backbone.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    save_checkpoint(folder / "run" / "stage2.safetensors", weights, meta)
    for number in range(4):
        picture(folder / "unlabelled" / f"{number}.png")
        picture(folder / "labelled" / "ab"[number % 2] / f"{number}.png")
    (folder / "broken").mkdir()
    (folder / "broken" / "1.png").write_bytes(b"no picture")
    (folder / "begun").mkdir()
    (folder / "begun" / "run.json").write_text("{}")
    for name in ("file", "file.bnn", "taken.onnx", "taken.pth", "broken.safetensors"):
        (folder / name).write_text("text")
    return folder


def answers(lines: Iterable[str], place: Path) -> list[list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(lines), cwd=place,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_heavy_is_imported(place: Path):
    expected = [*([line, 0, []] for line in SHOWN), *([line, 2, []] for line in MISTYPED)]
    assert answers((*SHOWN, *MISTYPED), place) == expected


def test_what_a_command_names_is_checked_before_torch_is_imported(place: Path):
    before = sorted(place.rglob("*"))
    for line, status, heavy in answers(itertools.chain(*NAMED.values()), place):
        assert (line, status, set(heavy) - {"cv2"}) == (line, 2, set())  # cv2 enlarges digits
    assert sorted(place.rglob("*")) == before  # nothing is left behind


def test_the_version_is_the_packages():
    script = "import sys, burn; print(burn.__version__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [version("burn-ssl"), "False"]
