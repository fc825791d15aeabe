"""The demo: the whole road on built-in images, in minutes on two CPU cores."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from burn.compute import Device
from burn.data.digits import Digits
from burn.evaluation.classifier import LinearConfig
from burn.evaluation.protocols import KnnConfig, run_knn, run_linear
from burn.evaluation.subject import Subject, load_model
from burn.recipes import find_recipe
from burn.report.plots import demo_picture
from burn.results import Result, append_results
from burn.training.run import Machine, RunPlan, pretrain


def run_demo(
    out: Path, seed: int, device: Device, console: Console, *, overwrite: bool
) -> list[Result]:
    """Train a teacher and a student on digits, judge both on held-out digits, draw a picture.

    Leaves teacher/, student/, results.jsonl, demo.png and demo.svg in `out`. What an earlier demo
    finished there is kept, unless `overwrite`. Raises UserError as `pretrain` does.
    """
    machine = Machine(device=device, workers=0)
    teacher, student = out / "teacher", out / "student"
    for folder, recipe, taught_by in ((teacher, "demo_teacher", None), (student, "demo", teacher)):
        console.rule(f"{recipe}: {folder}")
        plan = RunPlan(
            recipe, find_recipe(recipe), "digits", str(taught_by) if taught_by else None, seed
        )
        begun = (folder / "run.json").is_file()
        pretrain(
            plan,
            folder,
            machine,
            console,
            resume=begun and not overwrite,
            overwrite=overwrite,
            resume_command=f"burn demo --out {out} --seed {seed}",
        )
    console.rule("evaluation on 360 held-out digits")
    results = _judge(teacher, student, seed, console)
    (out / "results.jsonl").unlink(missing_ok=True)
    append_results(out / "results.jsonl", results)
    demo_picture(results, teacher, student, [out / "demo.png", out / "demo.svg"])
    console.print(f"checkpoint: {student / 'stage2.safetensors'}   picture: {out / 'demo.png'}")
    return results


def _judge(teacher: Path, student: Path, seed: int, console: Console) -> list[Result]:
    """kNN and linear for both stages of the student, fresh and trained, and for the teacher."""
    stage1, stage2 = student / "stage1.safetensors", student / "stage2.safetensors"
    rows = (
        ("random, binary activations", stage1, True),
        ("BURN stage 1, binary activations", stage1, False),
        ("random, binary", stage2, True),
        ("BURN stage 2, binary", stage2, False),
        ("teacher, float", teacher, False),
    )
    results = []
    for name, checkpoint, fresh in rows:
        _, backbone, views = load_model(str(checkpoint), fresh=fresh, seed=seed)
        subject = Subject(
            name, str(checkpoint), backbone, views, Digits("train"), Digits("test"), seed, workers=0
        )
        results += run_knn(subject, KnnConfig(), console)
        results += run_linear(subject, LinearConfig(augment="none"), console)
    return results
