"""How fast packed networks run: against ONNX Runtime, PyTorch and the processor's own ceiling.

    python benchmarks/engine.py [--rounds 15] [--json] [--picture FILE]

ReActNet-A without classifier at 224×224, packed; the same network as float32 ONNX (`burn export`);
torchvision's MobileNetV2 and ResNet-18 as float32 ONNX; the same network in PyTorch eager. All are
run in turn in one process, some calls a turn after an uncounted one; a turn's value is the median
of its calls, and a ratio is the median of the turns' ratios. Weights are random: time does not
depend on them. Wants `burn-ssl[onnx]` and a C++ compiler (for the ceiling); nothing else may run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torchvision
from matplotlib.figure import Figure

import burn_engine
from burn.backbones import Backbone, BackboneConfig, build_backbone
from burn.checkpoint import save_checkpoint
from burn.data.views import ViewConfig
from burn.deploy.onnx import export_onnx
from burn.deploy.pack import pack
from burn.machine import processor
from burn.types import Precision
from burn_engine import isas

SIDE = 224
# ReActNet-A's binary multiply-adds for one image; `burn info reactnet_a` counts them.
BINARY_MACS = 4_816_896_000

Run = Callable[[], object]


def make_files(folder: Path) -> tuple[Backbone, dict[str, Path]]:
    """The network, and its files: packed, float ONNX, and the peers' ONNX."""
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(), Precision.BINARY).eval()
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
                module.bias.normal_(0, 0.1)
    checkpoint = folder / "reactnet.safetensors"
    meta = {
        "stage": 2,
        "num_stages": 2,
        "precision": Precision.BINARY.value,
        "steps": 0,
        "seed": 0,
        "backbone": asdict(backbone.config),
        "views": asdict(ViewConfig()),
        "recipe": {"name": "benchmark"},
    }
    weights = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    save_checkpoint(checkpoint, weights, meta)
    files = {"packed": folder / "reactnet.bnn", "reactnet": folder / "reactnet.onnx"}
    pack(checkpoint, files["packed"])
    export_onnx(checkpoint, files["reactnet"], SIDE)
    for name in ("mobilenet_v2", "resnet18"):
        files[name] = folder / f"{name}.onnx"
        peer = torchvision.models.get_model(name).eval()
        torch.onnx.export(
            peer, (torch.rand(2, 3, SIDE, SIDE),), files[name], input_names=["images"],
            dynamic_shapes=({0: torch.export.Dim("batch", max=1024)},), external_data=False,
            dynamo=True, verbose=False,
        )  # fmt: skip
    return backbone, files


def onnx_run(file: Path, images: np.ndarray, threads: int) -> Run:
    """A call of ONNX Runtime, by its default options but for the number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"images": images})


def contenders(
    backbone: Backbone, files: dict[str, Path], batch: int, threads: int
) -> dict[str, Run]:
    """What is timed at a number of images and of threads, by name."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, SIDE, SIDE, 3), np.uint8)
    floats = np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    runs: dict[str, Run] = {}
    for isa in isas():
        if isa not in ("reference", "portable"):
            model = burn_engine.load(files["packed"], threads=threads, isa=isa)
            runs[f"burn-engine {isa}"] = lambda model=model: model(images)
    for name in ("reactnet", "mobilenet_v2", "resnet18"):
        runs[f"onnxruntime {name}"] = onnx_run(files[name], floats, threads)
    if batch == 1:
        tensors = torch.from_numpy(floats)

        def eager() -> object:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return backbone(tensors)

        runs["pytorch reactnet"] = eager
    return runs


def one_round(runs: dict[str, Run]) -> dict[str, float]:
    """Milliseconds of each: the median of its calls, of which the first is not counted."""
    taken = {}
    for name, run in runs.items():
        time.sleep(0.03)  # the last one's threads stop spinning
        run()
        calls = []
        while len(calls) < 3 or sum(calls) < 0.15:
            began = time.perf_counter()
            run()
            calls.append(time.perf_counter() - began)
        taken[name] = 1e3 * statistics.median(calls)
    return taken


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of slow / fast."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


class Ceiling:
    """The small C++ program beside this file; knows AVX-512 VPOPCNTDQ and NEON."""

    def __init__(self, folder: Path) -> None:
        library = folder / "ceiling.so"
        source = Path(__file__).with_name("ceiling.cc")
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
        self._library = None
        built = subprocess.run(
            [compiler, "-std=c++17", "-O3", "-march=native", "-w", "-shared", "-fPIC",
             str(source), "-o", str(library)], check=False, capture_output=True,
        )  # fmt: skip
        if built.returncode != 0:
            return
        self._library = ctypes.CDLL(str(library))
        self._library.ceiling.restype = ctypes.c_double
        self._library.ceiling.argtypes = [ctypes.c_double]
        self._library.ceiling_method.restype = ctypes.c_char_p

    @property
    def method(self) -> str:
        """Instructions that it uses; "" where it knows none of this processor."""
        return self._library.ceiling_method().decode() if self._library else ""

    def __call__(self, seconds: float = 0.2) -> float:
        """Binary multiply-adds a second on one core, 0 where it does not know."""
        return float(self._library.ceiling(seconds)) if self._library else 0.0


_MEMORY = """
import json, sys, time
import numpy as np
import burn_engine
def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))
file = sys.argv[1]
images = np.zeros((1, 224, 224, 3), np.uint8)
before = kib("VmRSS")
times = []
for _ in range(9):
    began = time.perf_counter()
    model = burn_engine.load(file)
    times.append(time.perf_counter() - began)
    if len(times) == 1:
        for _ in range(3): model(images)
        after = kib("VmRSS")
print(json.dumps({"load_ms": 1e3 * sorted(times)[4], "growth_mb": (after - before) / 1024}))
"""


def loading(file: Path) -> dict[str, float]:
    """Load time, and memory that loading and running at batch 1 add, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(file)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Everything, as `--json` prints it."""
    backbone, files = make_files(folder)
    ceiling = Ceiling(folder)
    best, times = isas()[0], {}
    settings = [(1, 1), (1, 2), (8, 1), (8, 2)]
    runs = {s: contenders(backbone, files, *s) for s in settings}
    single = {f"{name}, batch {b}, {t} threads": run
              for (b, t), made in runs.items() for name, run in made.items()}  # fmt: skip
    ceilings: list[float] = []
    for _ in range(rounds):
        ceilings.append(ceiling())
        for name, milliseconds in one_round(single).items():
            times.setdefault(name, []).append(milliseconds)

    def of(name: str, batch: int = 1, threads: int = 1) -> list[float]:
        return times[f"{name}, batch {batch}, {threads} threads"]

    ours = of(f"burn-engine {best}")
    float_bytes = 4 * sum(p.numel() for p in backbone.parameters())
    share = None
    if ceiling.method:
        shares = (BINARY_MACS / (t * 1e-3) / c for t, c in zip(ours, ceilings, strict=True))
        share = statistics.median(shares)
    loaded = loading(files["packed"])
    size = files["packed"].stat().st_size
    avx2 = "burn-engine avx2, batch 1, 1 threads" in times
    return {
        "ratios": {
            "ort_fp32_same_network": ratio(of("onnxruntime reactnet"), ours),
            "ort_fp32_mobilenetv2": ratio(of("onnxruntime mobilenet_v2"), ours),
            "ceiling_share": share,
            "threads_2_over_1": ratio(ours, of(f"burn-engine {best}", 1, 2)),
            "batch_8_over_1": 8 * ratio(ours, of(f"burn-engine {best}", 8)),
            "avx2_ort_fp32_same_network": ratio(
                of("onnxruntime reactnet"), of("burn-engine avx2")
            ) if avx2 else None,
            "file_size": float_bytes / size,
        },
        "machine": {
            "processor": processor(),
            "isa": best,
            "ceiling": ceiling.method,
            "ceiling_gmacs": statistics.median(ceilings) / 1e9,
            "onnxruntime": onnxruntime.__version__,
            "torch": torch.__version__,
        },
        "rounds": rounds,
        "milliseconds_a_call": {name: statistics.median(v) for name, v in times.items()},
        "load_ms": loaded["load_ms"],
        "memory_beyond_file_mb": loaded["growth_mb"] - size / 2**20,
        "file_bytes": size,
    }  # fmt: skip


_NAMES = {
    "burn-engine {isa}": "ReActNet-A, burn-engine",
    "burn-engine avx2": "ReActNet-A, burn-engine, AVX2",
    "onnxruntime mobilenet_v2": "MobileNetV2, ONNX Runtime",
    "onnxruntime resnet18": "ResNet-18, ONNX Runtime",
    "onnxruntime reactnet": "ReActNet-A, ONNX Runtime",
    "pytorch reactnet": "ReActNet-A, PyTorch",
}


def draw(found: dict[str, Any], file: Path) -> None:
    """Milliseconds of one 224×224 image on one thread, as bars."""
    bars = {}
    isa = found["machine"]["isa"]
    for name, shown in _NAMES.items():
        key = name.format(isa=isa) + ", batch 1, 1 threads"
        if key in found["milliseconds_a_call"] and not (isa == "avx2" and name.endswith("avx2")):
            bars[shown] = found["milliseconds_a_call"][key]
    figure = Figure(figsize=(7, 0.42 * len(bars) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    colours = ["#c8553d" if "burn-engine" in name else "#8d99ae" for name in bars]
    drawn = axes.barh(list(bars), list(bars.values()), color=colours)
    axes.bar_label(drawn, labels=[f" {value:.1f}" for value in bars.values()])
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"milliseconds an image, 224×224, one thread, {found['machine']['processor']}")
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw milliseconds of one image, .svg or .png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.rounds)
    if options.picture:
        draw(found, options.picture)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for part in ("machine", "ratios", "milliseconds_a_call"):
        print(part)
        for name, value in found[part].items():
            shown = f"{value:.3f}" if isinstance(value, float) else value
            print(f"  {name:52} {shown}")
    for name in ("load_ms", "memory_beyond_file_mb", "file_bytes"):
        print(f"{name:54} {found[name]:,.0f}")


if __name__ == "__main__":
    main()
