"""Writes the golden loss curves anew: `python tests/golden/record.py`, after a change meant to
change them, which CHANGELOG.md then says."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

CURVES = (
    "teacher", "burn_frozen", "burn_joint", "burn_feature_only",
    "supervised", "supervised_kl", "byol", "swav", "mocov2", "s2bnn", "s2bnn_mixed", "simclr",
    "infomin",
)  # fmt: skip
STEPS = 20
# Of these only so many steps hold where rounding differs: SimCLR's loss does not fall in twenty,
# and what it does is noise.
STABLE = {"simclr": 3}


def curve(name: str) -> list[float]:
    """The loss at each of the first steps, in float32, on digits; teachers are random ones."""
    from dataclasses import replace

    import torch

    import tiny
    from burn.training.metrics import read_metrics

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
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
            recipe = replace(recipe, s2bnn=replace(recipe.s2bnn, contrastive=1.0, queue=256))
        if name.startswith(("burn_", "s2bnn")):
            teacher = out / "teacher"
            tiny.train(tiny.teacher_recipe(), teacher, max_steps=1)
        elif name == "supervised_kl":
            teacher = out / "teacher"
            labelled = replace(tiny.teacher_recipe(), method="supervised")
            tiny.train(labelled, teacher, max_steps=1)
        tiny.train(recipe, out / "run", teacher, max_steps=STEPS, monitor_every=1)
        rows = read_metrics(out / "run" / "stage1" / "metrics.csv")
    return [row["loss"] for row in rows if "loss" in row]


if __name__ == "__main__":
    curves = {name: curve(name) for name in CURVES}
    (FOLDER / "losses.json").write_text(json.dumps(curves, indent=2) + "\n")
