"""Records the golden curves again: `python tests/golden/record.py`, after a change that is meant to
change them, which CHANGELOG.md then says."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

CURVES = (
    "teacher", "burn_frozen", "burn_joint", "burn_feature_only",
    "supervised", "supervised_kl", "byol", "swav", "mocov2", "s2bnn", "s2bnn_mixed", "simclr",
    "infomin",
)  # fmt: skip
SCHEDULES = ("learning_rate", "lambda")  # λ of methods that have one
STEPS, BATCH = 10, 16


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Let float64 be the number format of all that is built and computed inside.

    In float32 the rounding of another processor, or another number of threads, flips signs near
    zero: the third loss of SwAV was off by 0.07 of all that the curve spans. In float64 no sign is
    that near to zero, and all digits that are recorded are the same.
    """
    import torch

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(default)


@functools.cache
def _folder() -> Path:
    """A folder that is removed when this process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _teacher(method: str) -> Path:
    """A random teacher; called where float64 is the number format."""
    import tiny

    out = _folder() / method
    recipe = replace(tiny.teacher_recipe(), method=method, batch_size=64)
    tiny.train(recipe, out, max_steps=1)
    return out


def curves(name: str) -> dict[str, list[float]]:
    """Loss and schedules at each of the first steps, in float64, on digits.

    Teachers are random ones.
    """
    import tiny
    from burn.training.records.metrics import read_metrics

    with tempfile.TemporaryDirectory() as folder, float64():
        out = Path(folder)
        teacher = None
        if name == "teacher":
            recipe = tiny.teacher_recipe()
        elif name.startswith("burn_"):
            classifier = name.removeprefix("burn_").replace("feature_only", "none")
            recipe = replace(tiny.student_recipe(classifier=classifier), stages=1)
        else:
            recipe = replace(tiny.baseline_recipe(name.removesuffix("_mixed")), stages=1)
        if name == "s2bnn_mixed":
            recipe = recipe.with_settings(contrastive=1.0, queue=256)
        if name.startswith(("burn_", "s2bnn")):
            teacher = _teacher("simclr")
        elif name == "supervised_kl":
            teacher = _teacher("supervised")
        recipe = replace(recipe, batch_size=BATCH)
        tiny.train(recipe, out / "run", teacher, max_steps=STEPS, monitor_every=1)
        rows = read_metrics(out / "run" / "stage1" / "metrics.csv")
    rows = [row for row in rows if "loss" in row]
    return {
        column: [row[column] for row in rows]
        for column in ("loss", *SCHEDULES)
        if column in rows[0]
    }


if __name__ == "__main__":
    recorded = {name: curves(name) for name in CURVES}
    losses = {name: found.pop("loss") for name, found in recorded.items()}
    for file, content in (("losses", losses), ("schedules", recorded)):
        (FOLDER / f"{file}.json").write_text(json.dumps(content, indent=2) + "\n")
