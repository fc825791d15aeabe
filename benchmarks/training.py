"""Measure speed and memory of a BURN step, against the same step in ordinary operations (twin.py).

    python benchmarks/training.py [--json] [--rounds 3] [--batch 8]
    python benchmarks/training.py --rounds 5 --batch 32
    python benchmarks/training.py --device cuda [--json] [--rounds 5]

A step is the teacher's pass, the student's, the loss, the backward pass and the optimizer, without
loading of images: ResNet-50 teaches ReActNet-A at precision BINARY, 224 pixels, BURN's default loss
(frozen random classifier) and Adam. Ours runs as the trainer runs it, in float32 and, if the
processor has instructions for it, under bfloat16 autocast; the peer is float32 on a CPU and under
the same autocast on CUDA. The first form is for a first measurement on any processor: with AVX2 its
steps take some 200 seconds of processor time, about three minutes on two idle cores. The second has
the batch size of docs/project/results/training.md, and takes about six times as long.

Each contender runs in its own process, as it would in use, so that memory freed by one does not
help another. They work in turn, one at a time, on all cores; a number is the median over the rounds
of wall time, a ratio the median of the rounds' ratios, after three steps that are not counted.
Nothing else should run. The teacher is measured twice: alone in its process, as when features are
computed (`teacher_speedup`), and in a process that trains (`teacher_in_step_speedup`), which has
its memory already, so that the peer spends no time on allocating it.

Memory is measured over those first three steps. On a CPU it is the highest resident memory, less
the memory that was resident before the first step (interpreter, libraries, weights of student and
teacher); gradients and the optimizer's state, which both have, count. On CUDA it is
torch.cuda.max_memory_allocated, including weights. Decoding is measured by `decode.py` beside this
file.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import timm
import torch
from decode import decode_ratio
from torch import Tensor, nn
from twin import TwinBurn, twin_of

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.types import Batch, Precision
from burn.methods.burn.method import Burn
from burn.methods.burn.settings import BurnConfig
from burn.recipes.schema import OptimConfig
from burn.runtime.compute import Compute, uses_bfloat16
from burn.runtime.hardware import processor
from burn.training.pretraining import build_optimizer

SIDE = 224
PROGRESS = 0.5
Kind = Literal["ours", "twin"]


def randomized(module: nn.Module) -> nn.Module:
    """Set BN's parameters and running statistics as training leaves them: other than 0 and 1."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                assert part.running_mean is not None
                assert part.running_var is not None
                part.weight.uniform_(0.3, 1.0)
                part.bias.normal_(0, 0.1)
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 2)
    return module


class Contender:
    """One step of ours or of the twin's, at one number format, in parts that can be timed.

    Args:
        kind: ours or twin.
        bfloat16: Whether it runs under bfloat16 autocast.
        batch: Number of images.
        device: cpu or cuda.
    """

    def __init__(self, kind: Kind, *, bfloat16: bool, batch: int, device: str) -> None:
        torch.manual_seed(0)
        self.device, self.bfloat16 = device, bfloat16
        student = build_backbone(BackboneConfig(), Precision.BINARY)
        teacher = build_backbone(BackboneConfig(name="resnet50"), Precision.FLOAT)
        randomized(teacher)
        peer = None
        if kind == "twin":  # copy the weights before Burn changes the teacher
            peer = timm.create_model("resnet50", num_classes=0)
            peer.load_state_dict(cast(nn.Module, teacher.model).state_dict())
        method = Burn(student, Teacher(teacher, None, None, {}), BurnConfig()).train()
        optim = OptimConfig()
        self.method: Burn | TwinBurn
        if peer is None:
            self.method = method.to(device)
            self.optimizer = build_optimizer(method.parts(), optim)
        else:
            self.method = twin_of(method, peer).to(device)
            self.optimizer = torch.optim.Adam(
                self.method.trained(), lr=optim.lr, betas=(optim.momentum, optim.beta2)
            )
        self.lam = method.lam(PROGRESS)
        del method, student, teacher
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(
            0, 256, (batch, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8
        )
        self.images = images.to(device)
        self.batch = Batch((self.images,), torch.arange(batch))

    def reduced(self) -> AbstractContextManager[object]:
        """Return the autocast of the trainer's bf16-mixed, or a context without effect."""
        return torch.autocast(self.device, torch.bfloat16) if self.bfloat16 else nullcontext()

    def loss(self) -> Tensor:
        with self.reduced():
            if isinstance(self.method, Burn):
                return self.method(self.batch, PROGRESS).loss
            return self.method(self.images, self.lam)

    def step(self) -> None:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()  # every trainer reads the loss at some point

    def teach(self) -> None:
        with self.reduced():
            if isinstance(self.method, Burn):
                self.method.teacher(self.images)
            else:
                self.method.teach(self.images)

    def shares(self) -> dict[str, float]:
        """Return the seconds of each part of one step."""
        watch = Stopwatch(self.device)
        with self.reduced():
            assert isinstance(self.method, Burn)
            v1 = watch("teacher", lambda: self.method.teacher(self.images))
            v2 = watch("student forward", lambda: self.method.backbone(self.images))  # type: ignore[union-attr]
            output = watch("loss", lambda: self.method._compare(v1, v2, PROGRESS))  # type: ignore[union-attr]
        self.optimizer.zero_grad()
        watch("backward", output.loss.backward)
        watch("optimizer", self.optimizer.step)
        return watch.seconds


class Stopwatch:
    """Measures the seconds of calls, by their names."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        wait(self.device)
        began = time.perf_counter()
        result = call()
        wait(self.device)
        self.seconds[name] = time.perf_counter() - began
        return result


def timed(call: Callable[[], Any], device: str = "cpu") -> float:
    """Return the seconds of a call."""
    watch = Stopwatch(device)
    watch("call", call)
    return watch.seconds["call"]


def wait(device: str) -> None:
    """Wait until the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def ratio(slow: list[float], fast: list[float]) -> float:
    """Return the median over the rounds of slow / fast."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


def milliseconds(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)


# --- A process for each contender. ---

CONTENDERS: dict[str, tuple[Kind, bool]] = {
    "twin float32": ("twin", False),
    "twin bfloat16": ("twin", True),
    "ours float32": ("ours", False),
    "ours bfloat16": ("ours", True),
}


def serve(name: str, batch: int, device: str) -> None:
    """Run a contender: read commands, one word per line, and write each answer as JSON."""
    kind, bfloat16 = CONTENDERS[name]
    contender = Contender(kind, bfloat16=bfloat16, batch=batch, device=device)
    contender.teach()
    for line in sys.stdin:
        match line.strip():
            case "memory":
                answer = first_steps(contender)
            case "nothing":
                answer = {}
            case "shares":
                answer = contender.shares()
            case what:
                answer = timed(contender.step if what == "step" else contender.teach, device)
        print(json.dumps(answer), flush=True)


class Steps(Protocol):
    """What `first_steps` needs of a contender: its device, and one step of training."""

    device: str

    def step(self) -> None: ...


def first_steps(contender: Steps) -> dict[str, float]:
    """Return MB of this process before the first step, at the peak of three, and the growth."""
    gc.collect()
    on_gpu = contender.device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
        before = resident("VmRSS")
    for _ in range(3):
        contender.step()
    wait(contender.device)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else resident("VmHWM")
    return {"before_mb": before, "peak_mb": peak, "growth_mb": peak - before}


def resident(field: str) -> float:
    """Return the MB of memory of this process: VmRSS now, VmHWM at its peak."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field + ":"))
    return int(line.split()[1]) / 1024


class Worker:
    """A process that serves a contender; `memory` is that of its first steps, if it trains.

    Args:
        name: Name of the contender.
        batch: Number of images.
        device: cpu or cuda.
        threads: Number of threads.
        trains: Whether it trains; otherwise only its teacher is measured.
        script: The program that serves the contender.
    """

    def __init__(
        self,
        name: str,
        batch: int,
        device: str,
        threads: int,
        *,
        trains: bool = True,
        script: str = __file__,
    ) -> None:
        arguments = ["--batch", str(batch), "--device", device, "--threads", str(threads)]
        self._process = subprocess.Popen(
            [sys.executable, script, "--serve", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.memory: dict[str, float] = self.ask("memory" if trains else "nothing")

    def ask(self, what: str) -> Any:
        """Return the answer of `serve`.

        Raises:
            MemoryError: The process ended, which is taken for lack of memory.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(what, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self.close()
            raise MemoryError(f"{self._process.args} ended with {self._process.returncode}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def in_turn(workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender's step and of its teacher, in each round."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for what in ("step", "teacher"):
            for name, worker in workers.items():
                found.setdefault(f"{what}, {name}", []).append(worker.ask(what))
    return found


def shares(worker: Worker, rounds: int) -> dict[str, float]:
    """Return the share of each part in a step of ours, by medians over the rounds."""
    taken = [worker.ask("shares") for _ in range(rounds)]
    medians = {name: statistics.median(t[name] for t in taken) for name in taken[0]}
    return {name: median / sum(medians.values()) for name, median in medians.items()}


# --- CPU ---


def measure_cpu(rounds: int, batch: int, threads: int, *, bfloat16: bool) -> dict[str, Any]:
    """Measure everything on a CPU.

    Args:
        rounds: Number of rounds.
        batch: Number of images.
        threads: Number of threads.
        bfloat16: Whether bfloat16 is measured beside float32.

    Returns:
        The numbers as `--json` prints them.
    """
    twin, ours = "twin float32", ["ours float32", *(["ours bfloat16"] if bfloat16 else [])]
    names = [twin, *ours]
    teachers = twin, ours[-1]  # their teachers are also measured alone in a process
    workers = {name: Worker(name, batch, "cpu", threads) for name in names}
    alone = {name: Worker(name, batch, "cpu", threads, trains=False) for name in teachers}
    seconds = in_turn(workers, rounds)
    for _ in range(rounds):
        for name, worker in alone.items():
            seconds.setdefault(f"teacher alone, {name}", []).append(worker.ask("teacher"))
    parts = {name: shares(workers[name], rounds) for name in ours}
    for worker in (*workers.values(), *alone.values()):
        worker.close()
    decode = decode_ratio(rounds)
    growth = {name: worker.memory["growth_mb"] for name, worker in workers.items()}
    ratios: dict[str, float] = {}
    for name, key in zip(ours, ("cpu_fp32", "cpu_bf16"), strict=False):
        ratios[f"{key}_speedup"] = ratio(seconds[f"step, {twin}"], seconds[f"step, {name}"])
        ratios[f"{key}_memory"] = growth[name] / growth[twin]
    ratios["teacher_speedup"] = ratio(*(seconds[f"teacher alone, {name}"] for name in teachers))
    ratios["teacher_in_step_speedup"] = ratio(*(seconds[f"teacher, {name}"] for name in teachers))
    return {
        "ratios": ratios | {"decode_speedup": decode["decode_speedup"]},
        "milliseconds": {name: milliseconds(taken) for name, taken in seconds.items()},
        "share_of_step": parts,
        "memory": {name: worker.memory for name, worker in workers.items()},
        "decode": decode,
        "setting": setting("cpu", rounds, threads) | {"batch": batch},
    }


def setting(device: str, rounds: int, threads: int) -> dict[str, Any]:
    """Return everything that the numbers depend on."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": threads,
        "rounds": rounds,
        "side": SIDE,
        "torch": torch.__version__,
        "malloc": {k: v for k, v in os.environ.items() if k.startswith("MALLOC_")},
    }


# --- CUDA ---


def matmul_rate(rounds: int) -> float:
    """Return the multiply-adds per second of a large bfloat16 matrix product, at its best."""
    size, calls = 8192, 10
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(calls):
            torch.mm(a, b)

    watch, taken = Stopwatch("cuda"), []
    for _ in range(max(3, rounds)):
        watch("products", products)
        taken.append(watch.seconds["products"])
    return calls * size**3 / min(taken)


def teacher_macs() -> int:
    """Return the multiply-adds of the teacher's convolutions for one image."""
    model = timm.create_model("resnet50", num_classes=0).eval()
    total = 0

    def count(module: nn.Module, _: object, out: Tensor) -> None:
        nonlocal total
        total += out[0].numel() * cast(nn.Conv2d, module).weight[0].numel()

    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(count)
    with torch.no_grad():
        model(torch.zeros(1, 3, SIDE, SIDE))
    return total


def measure_cuda(rounds: int, batches: list[int], threads: int) -> dict[str, Any]:
    """Measure everything on a GPU; the ratios are those of the first of `batches`."""
    macs, rate = teacher_macs(), matmul_rate(rounds)
    sweep = {batch: at_batch(batch, rounds, threads, macs / rate) for batch in batches}
    first = sweep[batches[0]]
    return {
        "ratios": {
            "cuda_speedup": first.get("speedup"),
            "cuda_memory": first.get("memory_ratio"),
            "teacher_share_of_peak": first.get("teacher_share_of_peak"),
        },
        "matmul_tflops": 2e-12 * rate,
        "batches": sweep,
        "setting": setting("cuda", rounds, threads),
    }


def at_batch(batch: int, rounds: int, threads: int, least: float) -> dict[str, Any]:
    """Measure ours, and the twin if it fits into memory, at one batch size.

    Args:
        batch: Number of images.
        rounds: Number of rounds.
        threads: Number of threads.
        least: Seconds that the teacher needs for an image at the GPU's measured peak rate.
    """
    ours, twin = "ours bfloat16", "twin bfloat16"
    workers: dict[str, Worker] = {}
    for name in (ours, twin):
        with suppress(MemoryError):
            workers[name] = Worker(name, batch, "cuda", threads)
    seconds = in_turn(workers, rounds)
    found: dict[str, Any] = {
        "milliseconds": {name: milliseconds(taken) for name, taken in seconds.items()},
        "memory": {name: worker.memory for name, worker in workers.items()},
    }
    if ours in workers:
        taught = batch / statistics.median(seconds[f"teacher, {ours}"])
        found["images_per_second"] = batch / statistics.median(seconds[f"step, {ours}"])
        found["teacher_images_per_second"] = taught
        found["teacher_share_of_peak"] = taught * least
        found["share_of_step"] = shares(workers[ours], rounds)
    if len(workers) == 2:
        found["speedup"] = ratio(seconds[f"step, {twin}"], seconds[f"step, {ours}"])
        peak = {name: worker.memory["peak_mb"] for name, worker in workers.items()}
        found["memory_ratio"] = peak[ours] / peak[twin]
    for worker in workers.values():
        worker.close()
    return found


def show(found: dict[str, Any], indent: str = "") -> None:
    """Print a tree of numbers."""
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "  ")
        else:
            shown = f"{value:.3f}" if isinstance(value, float) else value
            print(f"{indent}{name:{44 - len(indent)}} {shown}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, help="default: 3 on a CPU, 5 on CUDA")
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        help="images (on CUDA one size or more); default: 8 on a CPU, 256 512 1024 on CUDA",
    )
    parser.add_argument(
        "--compute",
        choices=get_args(Compute),
        default="auto",
        help="on a CPU: whether bfloat16 is measured too; auto: where it has instructions for it",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    on_cpu = options.device == "cpu"
    batches = options.batch or ([8] if on_cpu else [256, 512, 1024])
    rounds = options.rounds or (3 if on_cpu else 5)
    if options.serve:
        serve(options.serve, batches[0], options.device)
        return
    if on_cpu:
        bfloat16 = uses_bfloat16(options.compute, "cpu")
        found = measure_cpu(rounds, batches[0], options.threads, bfloat16=bfloat16)
    else:
        found = measure_cuda(rounds, batches, options.threads)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
