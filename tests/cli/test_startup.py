"""What must not wait for torch: help, the version, and the rejection of what was mistyped."""

import json
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import reactnet_plan, state_shapes
from burn.checkpoints.native import save_checkpoint

HEAVY = ("torch", "torchvision", "timm", "lightning", "sklearn", "scipy", "cv2", "matplotlib")
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


def test_nothing_heavy_is_imported(tmp_path: Path):
    config = BackboneConfig(width=0.25)
    shapes = state_shapes(reactnet_plan(config))
    meta = {
        "backbone": asdict(config), "precision": "binary", "stage": 2, "steps": 3,
        "views": {"size": 32}, "recipe": {"name": "demo"},
    }  # fmt: skip
    (tmp_path / "run").mkdir()
    weights = {f"backbone.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    save_checkpoint(tmp_path / "run" / "stage2.safetensors", weights, meta)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join((*SHOWN, *MISTYPED)), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers == [*([line, 0, []] for line in SHOWN), *([line, 2, []] for line in MISTYPED)]


def test_the_version_is_the_packages():
    script = "import sys, burn; print(burn.__version__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [version("burn-ssl"), "False"]
