"""`burn demo`: pretrain, evaluate and pack on built-in images, in minutes on two CPU cores."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console

from burn.checkpoints.classifier import load_classifier
from burn.checkpoints.native import CLASSIFIER_NAME, find_checkpoint
from burn.core.errors import typed
from burn.core.files import locked, remove_unfinished, write_text
from burn.core.results import Result, append_results
from burn.data.builtin.digits import Digits
from burn.data.loader import plain_batches
from burn.deploy.environment import run_on_device
from burn.deploy.measured import pack_results
from burn.deploy.pack import pack
from burn.evaluation.configs import KnnConfig, LinearConfig
from burn.evaluation.context import EvaluationContext, Model, open_context, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear
from burn.recipes.registry import find_recipe
from burn.report.render.plots import demo_picture
from burn.runtime.compute import Device
from burn.runtime.launch import require_alone
from burn.training.plan import Machine, RunPlan
from burn.training.run import train_plan

_STUDENT = "BURN, binary"  # the packed network's name in tables


def run_demo(
    out: Path, seed: int, device: Device, console: Console, *, overwrite: bool
) -> list[Result]:
    """Train a teacher and a student on digits, evaluate both on held-out digits, pack the student.

    The folder then has teacher/, student/, linear/ (the classifier), student.bnn, packed.json,
    results.jsonl (with the packed file's numbers), the files that kNN keeps of the student,
    demo.png and demo.svg. Finished parts of an earlier demo are kept, unless `overwrite` is set.

    Raises:
        UserError: `out` cannot be used.
        Interrupted: After a signal. The same command resumes.
    """
    require_alone("demo")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        remove_unfinished(out)
        teacher, student = out / "teacher", out / "student"
        command = typed(["demo", "--out", str(out), "--seed", str(seed)])
        runs = ((teacher, "demo_teacher", None), (student, "demo", str(teacher)))
        for folder, recipe, taught_by in runs:
            console.rule(f"{recipe}: {folder}")
            begun = (folder / "run.json").is_file()
            train_plan(
                RunPlan(recipe, find_recipe(recipe), "digits", taught_by, seed),
                folder,
                Machine(device=device, workers=0),
                console,
                resume=begun and not overwrite,
                overwrite=overwrite,
                resume_command=f"{_program()} {command}",
                caller_continues=True,
            )
        console.rule("evaluation on 360 held-out digits")
        results = _evaluate(teacher, student, out, seed, console)
        (out / "results.jsonl").unlink(missing_ok=True)
        append_results(out / "results.jsonl", results)
        demo_picture(results, teacher, student, [out / "demo.png", out / "demo.svg"])
        console.rule("the student as one file of bits, without PyTorch")
        _ship(student, out, seed, console)
        console.print(f"checkpoint: {find_checkpoint(student)}   picture: {out / 'demo.png'}")
        return results


def _evaluate(teacher: Path, student: Path, out: Path, seed: int, console: Console) -> list[Result]:
    """Evaluate the student, with random and trained weights, and the teacher by kNN and linear.

    The files that kNN keeps of the trained student are written to `out`.
    """
    trained = find_checkpoint(student)
    rows = (
        ("random, binary", trained, True),
        (_STUDENT, trained, False),
        ("teacher, float", teacher, False),
    )
    results = []
    for name, checkpoint, fresh in rows:
        model = open_model(str(checkpoint), fresh=fresh, seed=seed)
        context = _context(replace(model, name=name), checkpoint, seed)
        shown = replace(context, out=out) if name == _STUDENT else context
        results += run_knn(shown, KnnConfig(), console)
        results += run_linear(context, LinearConfig(augment="none"), console)
        shown.require_kept()
    return results


def _context(model: Model, checkpoint: Path, seed: int) -> EvaluationContext:
    """Return what evaluates a network on digits in float32, which gives the same everywhere."""
    digits = Digits("train"), Digits("test")
    return open_context(
        model, str(checkpoint), digits, seed=seed, device="cpu", compute="float32", workers=0
    )


def _ship(student: Path, out: Path, seed: int, console: Console) -> None:
    """Pack the student with a classifier and run the file with numpy and burn-engine alone."""
    folder = out / "linear"
    folder.mkdir(exist_ok=True)
    context = _context(open_model(str(student), fresh=False, seed=seed), student, seed)
    context = replace(context, out=folder)
    run_linear(context, LinearConfig(augment="none"), console)
    context.require_kept()
    classifier = load_classifier(folder / CLASSIFIER_NAME)
    assert classifier is not None
    file = out / "student.bnn"
    file.unlink(missing_ok=True)
    packed = pack(student, file, folder)
    results = pack_results(packed, file, str(find_checkpoint(student)), _STUDENT)
    append_results(out / "results.jsonl", results)
    images = torch.cat(
        [batch.views[0] for batch in plain_batches(context.test, context.views, 256, 0)]
    )
    run = run_on_device(file, context.backbone, (classifier.weight, classifier.bias), images)
    numbers = {"file": asdict(packed), "run": asdict(run)}
    write_text(out / "packed.json", json.dumps(numbers, indent=2) + "\n")
    lines = [
        f"{file}: {packed.bytes:,} bytes, 1/{packed.ratio:.1f} of float32",
        f"in a fresh environment that holds {' and '.join(run.packages)} ({run.runs_on}):",
        f"  the class that PyTorch gives for {run.same_class} of {run.images} held-out digits, "
        f"scores alike to cosine {run.least_cosine:.6f} at least",
        f"  {run.image_ms:.3f} ms an image on one thread, PyTorch {run.torch_ms:.2f} ms: "
        f"{run.torch_ms / run.image_ms:.0f} times faster; loaded in {run.load_ms:.0f} ms",
    ]
    for line in lines:
        console.print(line)


def _program() -> str:
    """Return how a shell finds the command: `make demo` runs one that is not on the PATH."""
    return "burn" if shutil.which("burn") else str(Path(sys.argv[0]))
