"""Run of a packed file in a fresh environment that has only numpy and burn-engine."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.deploy.shared import cosines

_PACKAGES = ("numpy", "burn-engine")
_TIMED = 30  # images


@dataclass(frozen=True)
class DeviceRun:
    """Comparison of a packed classifier there with the network in PyTorch on the same images.

    `runs_on` is the instruction set, `least_cosine` the smallest cosine between the scores of both
    for an image, and times of an image are medians; in PyTorch on one thread.
    """

    packages: tuple[str, ...]
    runs_on: str
    images: int
    same_class: int
    least_cosine: float
    load_ms: float
    image_ms: float
    torch_ms: float


def make_environment(folder: Path, packages: Sequence[str] = _PACKAGES) -> Path:
    """Create a virtual environment with copies of installed packages and nothing else.

    The folder is cleared. Returns its Python interpreter. Raises UserError if a package is not
    installed, or is installed in place.
    """
    venv.create(folder, with_pip=False, clear=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    site = Path(sysconfig.get_path("platlib", "venv", dict.fromkeys(("base", "platbase"), folder)))
    for package in packages:
        try:
            installed = distribution(package)
        except PackageNotFoundError as error:
            raise UserError(f"{package} is not installed: pip install {package}") from error
        tops = {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}
        sources = [Path(str(installed.locate_file(top))) for top in sorted(tops)]
        if not any((source / "__init__.py").is_file() for source in sources):
            raise UserError(f"{package} is installed in place: install it without --editable")
        for source in sources:
            if source.is_dir():
                skip = shutil.ignore_patterns("__pycache__", "tests")
                shutil.copytree(source, site / source.name, ignore=skip, dirs_exist_ok=True)
            else:
                shutil.copy(source, site / source.name)
    return python


def run_on_device(
    packed: Path, backbone: Backbone, classifier: tuple[Tensor, Tensor], images: Tensor
) -> DeviceRun:
    """Run a packed classifier in a fresh environment, and the network here, in eval mode.

    The classifier is weight (classes, features) and bias (classes,), images are uint8 (n, 3, h, w).
    Raises UserError if the environment cannot be made, or the run fails.
    """
    with tempfile.TemporaryDirectory(prefix="burn-device-") as name:
        folder = Path(name)
        python = make_environment(folder / "environment")
        np.save(folder / "images.npy", images.permute(0, 2, 3, 1).contiguous().numpy())
        program = Path(__file__).with_name("on_device.py")
        command = [python, "-I", program, packed, folder / "images.npy", folder / "scores.npy"]
        done = subprocess.run(
            [str(part) for part in command], check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"{packed} cannot be run with numpy and burn-engine alone: {last}")
        facts = json.loads(done.stdout)
        scores = np.load(folder / "scores.npy")
    expected, torch_ms = _in_torch(backbone, classifier, images)
    return DeviceRun(
        packages=tuple(facts["packages"]),
        runs_on=facts["runs_on"],
        images=len(images),
        same_class=int((scores.argmax(axis=1) == expected.argmax(axis=1)).sum()),
        least_cosine=float(cosines(scores, expected).min()),
        load_ms=facts["load_ms"],
        image_ms=facts["image_ms"],
        torch_ms=torch_ms,
    )


def _in_torch(
    backbone: Backbone, classifier: tuple[Tensor, Tensor], images: Tensor
) -> tuple[np.ndarray, float]:
    """Return the scores, and the median milliseconds of one image on one thread."""
    weight, bias = classifier
    threads = torch.get_num_threads()
    times = []
    try:
        torch.set_num_threads(1)
        with torch.inference_mode():
            scores = torch.cat([backbone(part) @ weight.T + bias for part in images.split(64)])
            for image in images[:_TIMED]:
                began = time.perf_counter()
                backbone(image[None])
                times.append(1e3 * (time.perf_counter() - began))
    finally:
        torch.set_num_threads(threads)
    return scores.numpy(), statistics.median(times)
