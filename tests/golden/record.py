"""Writes the golden loss curves anew: `python tests/golden/record.py`, after a change meant to
change them, which CHANGELOG.md then says."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

METHODS = ("simclr", "burn_frozen", "burn_joint", "burn_feature_only")
STEPS = 10


def curve(name: str) -> list[float]:
    """The loss at each of the first steps, in float32, on digits; the teacher is a random one."""
    from dataclasses import replace

    import torch

    import tiny
    from burn.training.metrics import read_metrics

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if name == "simclr":
            tiny.train(tiny.teacher_recipe(), out / "run", max_steps=STEPS, monitor_every=1)
        else:
            tiny.train(tiny.teacher_recipe(), out / "teacher", max_steps=1)
            classifier = name.removeprefix("burn_").replace("feature_only", "none")
            recipe = replace(tiny.student_recipe(classifier=classifier), stages=1)
            tiny.train(
                recipe, out / "run", out / "teacher", max_steps=STEPS, monitor_every=1
            )  # fmt: skip
        rows = read_metrics(out / "run" / "stage1" / "metrics.csv")
    return [row["loss"] for row in rows if "loss" in row]


if __name__ == "__main__":
    curves = {name: curve(name) for name in METHODS}
    (FOLDER / "losses.json").write_text(json.dumps(curves, indent=2) + "\n")
