"""Check burn on this machine's GPU: that it is correct, that it repeats, and how fast it is.

    make gpu-check                                   # writes gpu-check.json
    python benchmarks/gpu_check.py --device cpu      # the same on a CPU, with smaller networks
    python benchmarks/gpu_check.py --only methods,repeats

The checks, each of which stands in the file as soon as it has ended:

- methods: every method trains a small binary network for some steps on the CPU and on the GPU, from
  the same weights and views. In float64 losses and gradients must agree. In float32 rounding turns
  a few signs of activations, so only the first step is compared, and within a few percent.
- stages: bfloat16 training in two stages, and its evaluation, end with finite numbers.
- repeats: with --deterministic, a run that is repeated, and one that is interrupted and resumed,
  have the same weights bit for bit; without, by how much they differ.
- graphs: with --cuda-graphs, every method that can be recorded trains as without.
- options: images/s and memory of training with and without each option.
- devices: two GPUs give the first loss of one. With a single GPU this is left out.
- step: benchmarks/training.py, ReActNet-A against the same step in ordinary operations.

On a CPU, the GPU's part is played by the same CPU with one thread and without oneDNN, which rounds
otherwise; graphs, and their option, are left out.
It ends with a paragraph to paste into an issue, and with status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from safetensors.torch import load_file

from burn.backbones.config import BackboneConfig
from burn.core.errors import Interrupted, UserError
from burn.core.files import write_failures_named, write_text
from burn.evaluation.configs import KnnConfig, Request
from burn.evaluation.registry import evaluate_checkpoint
from burn.methods.entries import find_method, own_methods
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.report.load.files import read_rows
from burn.runtime.compute import Device, torch_device, uses_bfloat16
from burn.runtime.hardware import processor, source_commit
from burn.training.graphs import why_not_recorded
from burn.training.plan import Machine, RunPlan
from burn.training.records.metrics import read_metrics
from burn.training.run import train_plan

# Largest relative differences from the CPU. Between two sets of kernels of one CPU they were up to
# 0.014 for the first loss and 0.08 for the first gradient in float32, and none in float64.
BOUNDS = {
    "float64": {"first_loss": 1e-6, "first_gradient": 1e-6, "later_loss": 1e-4},
    "float32": {"first_loss": 0.05, "first_gradient": 0.25},
}
STEPS = 4
GRAPH_STEPS = 8  # of which the first are not recorded
NO_GPU = {"left_out": "they need a GPU, and this is a CPU"}
Numbers = dict[str, Any]
Check = Callable[["Bench"], Numbers]


class Failed(Exception):
    """A check whose numbers are out of bounds, with the numbers."""

    def __init__(self, why: str, numbers: Numbers) -> None:
        super().__init__(why)
        self.numbers = numbers


class Bench:
    """What the checks share.

    Args:
        device: cpu or cuda.
        folder: Where runs are written.
        methods: Names of the methods to check.
    """

    def __init__(self, device: Device, folder: Path, methods: tuple[str, ...]) -> None:
        self.device: Device = device
        self.folder, self.methods = folder, methods
        self._count = 0

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def new(self, name: str) -> Path:
        """Return a folder that does not exist yet."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def train(
        self,
        recipe: Recipe,
        out: Path,
        teacher: Path | None = None,
        *,
        device: Device | None = None,
        steps: int = STEPS,
        resume: bool = False,
        **machine: Any,
    ) -> None:
        """Train on digits, with a row of metrics for every step."""
        plan = RunPlan("gpu-check", recipe, "digits", str(teacher) if teacher else None, 0, steps)
        settings = Machine(device or self.device, workers=0, monitor_every=1, **machine)
        console = Console(file=io.StringIO())
        train_plan(plan, out, settings, console, resume=resume, overwrite=False)

    def teacher_of(self, method: str) -> Path | None:
        """Train the teacher that a method needs, on the CPU, once."""
        entry = find_method(method)
        if not entry.needs_teacher:
            return None
        labelled = "classifier" in entry.needs
        out = self.folder / f"teacher-{'labelled' if labelled else 'plain'}"
        if not out.exists():
            recipe = find_recipe("demo_teacher")
            backbone = replace(recipe.backbone, name="resnet10t", width=0.125, stem_stride=None)
            recipe = replace(recipe, batch_size=64, compute="float32", backbone=backbone)
            if labelled:
                recipe = replace(recipe, method="supervised")
            self.train(recipe, out, device="cpu", steps=2)
        return out


_SMALL: dict[str, dict[str, Any]] = {  # heads and queues
    "byol": {"hidden": 128, "dimension": 64},
    "swav": {"hidden": 128, "dimension": 64, "prototypes": 32, "queue": 128},
    "mocov2": {"queue": 256},
    "infomin": {"negatives": 256},
}


def small_recipe(method: str, batch: int = 32) -> Recipe:
    """Return a method's recipe for one stage in float32 on a small binary network."""
    recipe = find_recipe("burn_small" if method == "burn" else f"{method}_small")
    return replace(
        recipe.with_settings(**_SMALL.get(method, {})),
        epochs=1, batch_size=batch, stages=1, compute="float32", teacher_size=None,
        backbone=BackboneConfig(width=0.25, stage_strides=(2, 2, 2, 1)),
        views=find_recipe("demo").views,
    )  # fmt: skip


@contextlib.contextmanager
def other_kernels(bench: Bench) -> Iterator[None]:
    """On a CPU, compute without oneDNN and with one thread in this context."""
    if bench.on_gpu:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TF32 acceleration")  # of flags, which sets it too
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.set_num_threads(threads)


def losses(run: Path) -> list[float]:
    rows = read_metrics(run / "stage1" / "metrics.csv")
    return [row["loss"] for row in rows if "loss" in row]


def first_gradients(run: Path) -> list[float]:
    rows = read_rows(run / "stage1" / "gradients.csv", ("part",)).rows
    return [row["norm"] for row in rows if row["step"] == rows[0]["step"]]


def difference(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), 1e-12)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Let float64 be the number format of all that is built and computed in this context."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(default)


def compared(run: Path, reference: Path) -> Numbers:
    """Return the largest relative differences between two runs."""
    each = [difference(*pair) for pair in zip(losses(run), losses(reference), strict=True)]
    norms = zip(first_gradients(run), first_gradients(reference), strict=True)
    return {
        "first_loss": each[0],
        "first_gradient": max(difference(*pair) for pair in norms),
        "later_loss": max(each[1:]),
    }


def check_methods(bench: Bench) -> Numbers:
    """Compare every method's first steps with the CPU's."""
    numbers: Numbers = {}
    wrong = []
    for method in bench.methods:
        recipe, teacher = small_recipe(method), bench.teacher_of(method)
        numbers[method] = {}
        for kind, arithmetic in (("float64", float64), ("float32", contextlib.nullcontext)):
            expected, found = bench.new(method), bench.new(method)
            with arithmetic():
                bench.train(recipe, expected, teacher, device="cpu")
                with other_kernels(bench):
                    bench.train(recipe, found, teacher, deterministic=True)
            numbers[method][kind] = compared(found, expected)
        wrong += [
            f"{method} in {kind}"
            for kind, bounds in BOUNDS.items()
            if any(not numbers[method][kind][name] <= bound for name, bound in bounds.items())
        ]
    if wrong:
        raise Failed(f"{', '.join(wrong)}: not what the CPU computes", numbers)
    return numbers


def check_stages(bench: Bench) -> Numbers:
    """Train in two stages as a user does, and evaluate."""
    recipe = replace(small_recipe("burn"), stages=2, compute="auto")
    out = bench.new("stages")
    bench.train(recipe, out, bench.teacher_of("burn"))
    request = Request(str(out), "digits", "digits", device=bench.device, workers=0)
    evaluated = evaluate_checkpoint("knn", request, KnnConfig(), Console(file=io.StringIO()))
    return {"bfloat16": uses_bfloat16("auto", bench.device), "knn": evaluated.results[0].value}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "stage1.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def check_repeats(bench: Bench) -> Numbers:
    """Repeat, and interrupt and resume, the same run."""
    recipe, teacher = small_recipe("burn"), bench.teacher_of("burn")

    first, second, resumed = (bench.new("repeats") for _ in range(3))
    for out in (first, second):
        bench.train(recipe, out, teacher, deterministic=True)
    with contextlib.suppress(Interrupted), interrupting(resumed):
        bench.train(recipe, resumed, teacher, deterministic=True)
    interrupted = not (resumed / "stage1.safetensors").exists()
    bench.train(recipe, resumed, teacher, deterministic=True, resume=True)
    free = [bench.new("repeats") for _ in range(2)]
    for out in free:
        bench.train(recipe, out, teacher)
    a, b = (weights(out) for out in free)
    numbers = {
        "repeated": same_weights(first, second),
        "resumed": same_weights(first, resumed),
        "interrupted": interrupted,
        "not_deterministic": max(
            float((a[name].double() - b[name].double()).abs().max()) for name in a
        ),
    }
    if not (numbers["repeated"] and numbers["resumed"]):
        raise Failed("--deterministic does not give the same bits", numbers)
    return numbers


@contextlib.contextmanager
def interrupting(run: Path) -> Iterator[None]:
    """Send this process SIGINT when the run has written some steps."""
    ended = threading.Event()

    def wait() -> None:
        metrics = run / "stage1" / "metrics.csv"
        while not ended.wait(0.005):
            if metrics.is_file() and metrics.read_text().count("\n") > 2:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def check_graphs(bench: Bench) -> Numbers:
    """Compare steps that are recorded and replayed with ordinary ones, in float64."""
    if not bench.on_gpu:
        return NO_GPU
    numbers: Numbers = {}
    for method in bench.methods:
        recipe, teacher = small_recipe(method), bench.teacher_of(method)
        why = why_not_recorded(method, recipe.settings)
        if why is not None:
            numbers[method] = {"left_out": why}
            continue
        usual, graphs = bench.new("graphs"), bench.new("graphs")
        with float64():
            for out, chosen in ((usual, False), (graphs, True)):
                bench.train(
                    recipe, out, teacher, steps=GRAPH_STEPS, deterministic=True, cuda_graphs=chosen
                )
        numbers[method] = compared(graphs, usual) | {"same_bits": same_weights(graphs, usual)}
    bound = BOUNDS["float64"]["later_loss"]
    wrong = [
        method
        for method, each in numbers.items()
        if "left_out" not in each and not each["later_loss"] <= bound
    ]
    if wrong:
        raise Failed(f"--cuda-graphs: {', '.join(wrong)}: other losses than without", numbers)
    return numbers


def check_options(bench: Bench) -> Numbers:
    """Measure training of burn_small's network with and without each option."""
    batch, steps = (512, 40) if bench.on_gpu else (32, 4)
    recipe = replace(
        find_recipe("burn_small"), batch_size=batch, epochs=40, teacher_size=None,
        views=find_recipe("demo").views,
    )  # fmt: skip
    teacher = bench.teacher_of("burn")
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "float32": ("float32", {}),
        "float32, --compile": ("float32", {"compile": True}),
        "float32, --deterministic": ("float32", {"deterministic": True}),
    }
    formats = ["float32"]
    if uses_bfloat16("auto", bench.device):
        options["bfloat16"] = ("bfloat16", {})
        options["bfloat16, --compile"] = ("bfloat16", {"compile": True})
        formats.append("bfloat16")
    for compute in formats:
        options[f"{compute}, --cuda-graphs"] = (compute, {"cuda_graphs": True})
    numbers: Numbers = {}
    for name, (compute, settings) in options.items():
        if "cuda_graphs" in settings and not bench.on_gpu:
            numbers[name] = NO_GPU
            continue
        out = bench.new("options")
        try:
            bench.train(
                replace(recipe, compute=compute),
                out,
                teacher,
                steps=steps,
                **settings,  # type: ignore[arg-type]
            )
        except UserError as error:
            numbers[name] = {"error": str(error)}
            continue
        rows = [r for r in read_metrics(out / "stage1" / "metrics.csv") if "loss" in r]
        later = rows[len(rows) // 2 :]
        numbers[name] = {
            "images_per_second": statistics.median(row["images_per_second"] for row in later),
            "memory_mb": max(row["memory"] for row in rows),
        }
    failed = [name for name, each in numbers.items() if "error" in each]
    if failed:
        raise Failed(f"{', '.join(failed)}: {numbers[failed[0]]['error']}", numbers)
    return {"batch": batch, **numbers}


def check_devices(bench: Bench) -> Numbers:
    """Compare two devices with one."""
    if bench.on_gpu and torch.cuda.device_count() < 2:
        return {"left_out": "one GPU"}
    teacher = bench.teacher_of("burn")
    runs = []
    for count in (1, 2):
        out = bench.new("devices")
        runs.append(out)
        command = [
            sys.executable, "-m", "burn", "pretrain", "--recipe", "demo", "--data", "digits",
            "--teacher", str(teacher), "--out", str(out), "--max-steps", str(STEPS),
            "--stages", "1", "--compute", "float32", "--device", bench.device, "--workers", "0",
            "--batch-size", "64", "--monitor-every", "1", "--devices", str(count),
        ]  # fmt: skip
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise Failed(f"--devices {count}: {ended.stderr.strip()[-300:]}", {})
    one, two = (losses(out) for out in runs)
    numbers = {
        "backend": "nccl" if bench.on_gpu else "gloo",
        "first_loss": difference(two[0], one[0]),
        "later_loss": max(difference(*pair) for pair in zip(two[1:], one[1:], strict=True)),
    }
    # On a CPU BN sees the images of each process; on GPUs those of all, as one device does.
    if bench.on_gpu and not numbers["first_loss"] <= BOUNDS["float32"]["first_loss"]:
        raise Failed("two GPUs do not give the loss of one", numbers)
    return numbers


def check_step(bench: Bench) -> Numbers:
    """Run benchmarks/training.py."""
    few = ["--rounds", "3"] if bench.on_gpu else ["--rounds", "1", "--batch", "2"]
    script = Path(__file__).with_name("training.py")
    command = [sys.executable, str(script), "--device", bench.device, "--json", *few]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Failed(f"benchmarks/training.py: {ended.stderr.strip()[-300:]}", {})
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


CHECKS: dict[str, Check] = {
    "methods": check_methods,
    "stages": check_stages,
    "repeats": check_repeats,
    "graphs": check_graphs,
    "options": check_options,
    "devices": check_devices,
    "step": check_step,
}


def machine_facts(device: str) -> Numbers:
    """Return everything that the numbers depend on."""
    facts: Numbers = {
        "device": device,
        "processor": processor(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "commit": source_commit(),
    }
    if device == "cuda":
        facts |= {
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "capability": list(torch.cuda.get_device_capability()),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def paragraph(report: Numbers) -> str:
    """Say in some sentences what was found, for an issue."""
    facts, checks = report["machine"], report["checks"]
    where = ", ".join(facts["gpus"]) if "gpus" in facts else f"{facts['processor']} (no GPU)"
    said = [f"burn {facts['commit'] or ''} on {where}, torch {facts['torch']}."]
    for name, check in checks.items():
        if not check["passed"]:
            said.append(f"{name} FAILED: {check['error']}.")
    done = {name: check["numbers"] for name, check in checks.items() if check["passed"]}
    if methods := done.get("methods"):
        worst = {
            kind: max(each[kind]["first_loss"] for each in methods.values()) for kind in BOUNDS
        }
        said.append(
            f"As on the CPU: {', '.join(methods)}: first losses to {worst['float64']:.1e} in "
            f"float64, {worst['float32']:.1e} in float32."
        )
    if repeats := done.get("repeats"):
        said.append(
            "With --deterministic the same bits when repeated and resumed; without, weights differ "
            f"by up to {repeats['not_deterministic']:.1e}."
        )
    if (graphs := done.get("graphs")) and "left_out" not in graphs:
        recorded = {name: each for name, each in graphs.items() if "left_out" not in each}
        exact = [name for name, each in recorded.items() if each["same_bits"]]
        said.append(
            f"With --cuda-graphs as without: {', '.join(recorded) or 'no method'}; the same bits: "
            f"{', '.join(exact) or 'none'}."
        )
    if options := done.get("options"):
        rates = ", ".join(
            f"{name} {each['images_per_second']:,.0f} images/s and {each['memory_mb']:,.0f} MB"
            for name, each in options.items()
            if name != "batch" and "left_out" not in each
        )
        said.append(f"burn_small at batch {options['batch']}: {rates}.")
    if (devices := done.get("devices")) and "backend" in devices:
        said.append(
            f"Two devices by {devices['backend']}: first loss to {devices['first_loss']:.1e}."
        )
    if step := done.get("step"):
        ratios = ", ".join(f"{k} {v:.2f}" for k, v in step["ratios"].items() if v is not None)
        said.append(f"benchmarks/training.py: {ratios}.")
    return " ".join(said)


def run_checks(bench: Bench, names: list[str], out: Path) -> Numbers:
    """Run checks, print a line for each, and write all that is known after each."""
    report: Numbers = {"format": 1, "machine": machine_facts(bench.device), "checks": {}}
    for number, name in enumerate(names, 1):
        print(f"{number}/{len(names)} {name} …", flush=True)
        began = time.perf_counter()
        entry: Numbers = {"passed": True}
        try:
            entry["numbers"] = CHECKS[name](bench)
        except Interrupted:
            raise
        except Failed as failed:
            entry |= {"passed": False, "error": str(failed), "numbers": failed.numbers}
        except Exception as error:  # a GPU fails in many ways, and the other checks go on
            text = " ".join(f"{type(error).__name__}: {error}".split())
            entry |= {"passed": False, "error": text[:500], "numbers": {}}
        entry["seconds"] = round(time.perf_counter() - began, 1)
        report["checks"][name] = entry
        write_text(out, json.dumps(report, indent=2) + "\n")
        verdict = "passed" if entry["passed"] else f"FAILED: {entry['error']}"
        print(f"{number}/{len(names)} {name}: {verdict}, {entry['seconds']:.0f} s", flush=True)
    return report


def chosen(names: str, known: tuple[str, ...], option: str) -> list[str]:
    """Return the names of a comma-separated list.

    Raises:
        UserError: One is not known.
    """
    found = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in found:
        if name not in known:
            raise UserError(f"{option} {name}: give some of {', '.join(known)}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Check, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--only", default=",".join(CHECKS), help="some of the checks, by commas")
    parser.add_argument("--methods", default=",".join(own_methods()), help="by commas")
    options = parser.parse_args(arguments)
    try:
        device: Device = "cuda" if torch_device(options.device).type == "cuda" else "cpu"
        names = chosen(options.only, tuple(CHECKS), "--only")
        methods = tuple(chosen(options.methods, own_methods(), "--methods"))
        with tempfile.TemporaryDirectory() as folder:
            with write_failures_named(options.out):
                write_text(options.out, "{}\n")
            report = run_checks(Bench(device, Path(folder), methods), names, options.out)
    except (KeyboardInterrupt, Interrupted):
        print(f"gpu_check: interrupted; finished checks are in {options.out}", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    print(f"\n{paragraph(report)}\n-> {options.out}")
    return 0 if all(check["passed"] for check in report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
