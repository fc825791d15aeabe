"""Measure the speed of packed networks against ONNX Runtime, PyTorch and the processor's ceiling.

    python benchmarks/engine.py --name "AMD EPYC (Zen 4)" \
        --out reproduction/results/engine/zen4.json
    make docs       # draws the picture and writes the tables of docs/project/results/engine.md

At 224×224: ReActNet-A without classifier, packed; the same network as float32 ONNX (`burn export`);
torchvision's MobileNetV2 and ResNet-18 as float32 ONNX; the same network in PyTorch eager. At 96×96
and 128×128: the network of the recipe burn_device, packed and as ONNX, and MobileNetV2. burn-engine
is run with every instruction set that the processor has, from the environment's BURN_ENGINE_ISA
downwards. ONNX Runtime has no such switch: it always uses everything that the processor has, also
when burn-engine is limited to AVX2. Its speed on a processor without AVX-512 can only be measured
on one. PyTorch is limited by ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY.

All are run in turn in one process, some calls per turn after one that is not counted; a turn's
value is the median of its calls, and a ratio is the median of the turns' ratios. Weights are
random, since time does not depend on them. It needs `burn-ssl[onnx]` and a C++ compiler (for the
ceiling); nothing else may run meanwhile.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torchvision

import burn_engine
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.view_config import ViewConfig
from burn.deploy.onnx import export_onnx
from burn.deploy.pack import pack
from burn.recipes.registry import find_recipe
from burn.runtime.hardware import processor, source_commit
from burn_engine import isas

SIDE = 224
DEVICE_SIDES = (96, 128)  # the images of burn_device and burn_device_128
HALF = "half-width ReActNet-A"
PEERS = {"mobilenet_v2": "MobileNetV2", "resnet18": "ResNet-18"}
# ReActNet-A's binary multiply-adds for one image; `burn info reactnet_a` counts them.
BINARY_MACS = 4_816_896_000

Run = Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """A network in a runtime that is timed.

    Attributes:
        network: Name of the network.
        runtime: burn-engine, ONNX Runtime or PyTorch.
        isa: burn-engine's instruction set, else "".
        size: Side of the images in pixels.
        batch: Number of images.
        threads: Number of threads.
    """

    network: str
    runtime: str
    isa: str
    size: int
    batch: int
    threads: int


def make_files(folder: Path) -> tuple[Backbone, dict[tuple[str, int], Path]]:
    """Write the packed files and the ONNX files.

    Returns:
        ReActNet-A, and the files by network and side; a packed file has side 0.
    """
    backbone, files = network_files(folder, "ReActNet-A", BackboneConfig(), [SIDE])
    device = find_recipe("burn_device").backbone
    files |= network_files(folder, HALF, device, DEVICE_SIDES)[1]
    for name, sides in (("mobilenet_v2", [SIDE, *DEVICE_SIDES]), ("resnet18", [SIDE])):
        peer = torchvision.models.get_model(name).eval()
        for side in sides:
            files[PEERS[name], side] = folder / f"{name}-{side}.onnx"
            export_peer(peer, files[PEERS[name], side], side)
    return backbone, files


def export_peer(peer: torch.nn.Module, file: Path, side: int) -> None:
    """Write a float network as ONNX for images of a side in pixels, in any number."""
    torch.onnx.export(
        peer,
        (torch.rand(2, 3, side, side),),
        file,
        input_names=["images"],
        dynamic_shapes=({0: torch.export.Dim("batch", max=1024)},),
        external_data=False,
        dynamo=True,
        verbose=False,
    )


def network_files(
    folder: Path, name: str, config: BackboneConfig, sides: Sequence[int]
) -> tuple[Backbone, dict[tuple[str, int], Path]]:
    """Write a backbone with random weights as a packed file (side 0) and as ONNX for each side.

    Returns:
        The network, and the files by `name` and side.
    """
    torch.manual_seed(0)
    backbone = build_backbone(config, Precision.BINARY).eval()
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
                module.bias.normal_(0, 0.1)
    stem = name.replace(" ", "-")
    checkpoint = folder / f"{stem}.safetensors"
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
    weights = {f"backbone.{key}": value for key, value in backbone.state_dict().items()}
    save_checkpoint(checkpoint, weights, meta)
    files = {(name, 0): folder / f"{stem}.bnn"}
    pack(checkpoint, files[name, 0])
    for side in sides:
        files[name, side] = folder / f"{stem}-{side}.onnx"
        export_onnx(checkpoint, files[name, side], side)
    return backbone, files


def onnx_run(file: Path, images: np.ndarray, threads: int) -> Run:
    """Return a call of ONNX Runtime with its default options except for the number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"images": images})


def imported(module: str, package: str) -> Any:
    """Return a module that burn does not install, or end with what installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        sys.exit(f"this compares with {package}: pip install {package}")


def instruction_sets() -> list[str]:
    """Return burn-engine's instruction sets to time, best first, from BURN_ENGINE_ISA downwards."""
    known = [isa for isa in isas() if isa not in ("reference", "portable")] or ["portable"]
    held = os.environ.get("BURN_ENGINE_ISA")
    if held in known:
        return known[known.index(held) :]
    return [held] if held in isas() else known


def contenders(
    backbone: Backbone, files: Mapping[tuple[str, int], Path], side: int, batch: int, threads: int
) -> dict[Contender, Run]:
    """Return the contenders at a side, a number of images and a number of threads."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, side, side, 3), np.uint8)
    floats = np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    runs: dict[Contender, Run] = {}
    ours = "ReActNet-A" if side == SIDE else HALF
    for isa in instruction_sets():
        model = burn_engine.load(files[ours, 0], threads=threads, isa=isa)
        who = Contender(ours, "burn-engine", isa, side, batch, threads)
        runs[who] = lambda model=model: model(images)
    for (network, file_side), file in files.items():
        if file_side == side:
            who = Contender(network, "ONNX Runtime", "", side, batch, threads)
            runs[who] = onnx_run(file, floats, threads)
    if batch == 1 and side == SIDE:
        tensors = torch.from_numpy(floats)

        def eager() -> object:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return backbone(tensors)

        runs[Contender(ours, "PyTorch", "", side, batch, threads)] = eager
    return runs


def machine() -> dict[str, str]:
    """Return the processor, burn-engine's best instruction set, and the versions of the peers."""
    return {
        "processor": processor(),
        "isa": instruction_sets()[0],
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
    }


def one_round(runs: Mapping[Contender, Run]) -> dict[Contender, float]:
    """Return the milliseconds of each contender: the median of its calls after the first."""
    taken = {}
    for who, run in runs.items():
        time.sleep(0.03)  # wait until the previous contender's threads stop spinning
        run()
        calls = []
        while len(calls) < 3 or sum(calls) < 0.15:
            began = time.perf_counter()
            run()
            calls.append(time.perf_counter() - began)
        taken[who] = 1e3 * statistics.median(calls)
    return taken


def ratio(slow: list[float], fast: list[float]) -> float:
    """Return the median over the rounds of slow / fast."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


# The flags that choose an instruction set's method in ceiling.cc.
CEILING_FLAGS = {
    "avx512-vpopcnt": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vpopcntdq"],
    "avx512-bw": ["-mavx512f", "-mavx512bw", "-mavx512vl"],
    "avx2": ["-mavx2"],
}


class Ceiling:
    """The small C++ program beside this file, compiled for an instruction set of burn-engine's.

    Args:
        isa: Name of the instruction set.
        folder: Folder for the compiled program.
    """

    def __init__(self, isa: str, folder: Path) -> None:
        library = folder / f"ceiling-{isa}.so"
        source = Path(__file__).with_name("ceiling.cc")
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
        subprocess.run(
            [compiler, "-std=c++17", "-O3", *CEILING_FLAGS.get(isa, []), "-w", "-shared", "-fPIC",
             str(source), "-o", str(library)], check=True,
        )  # fmt: skip
        self._library = ctypes.CDLL(str(library))
        self._library.ceiling.restype = ctypes.c_double
        self._library.ceiling.argtypes = [ctypes.c_double]
        self._library.ceiling_method.restype = ctypes.c_char_p

    @property
    def method(self) -> str:
        """How it counts."""
        return self._library.ceiling_method().decode()

    def __call__(self, seconds: float = 0.2) -> float:
        """Return the binary multiply-adds per second on one core."""
        return float(self._library.ceiling(seconds))


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
    """Return load time, and the memory that loading and running at batch 1 add, in a process."""
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(file)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def measure(folder: Path, rounds: int, name: str) -> dict[str, Any]:
    """Return all numbers, as `--out` writes them."""
    backbone, files = make_files(folder)
    ceilings = {isa: Ceiling(isa, folder) for isa in instruction_sets()}
    best = instruction_sets()[0]
    times: dict[Contender, list[float]] = {}
    settings = [(SIDE, 1, 1), (SIDE, 1, 2), (SIDE, 8, 1), (SIDE, 8, 2)]
    settings += [(side, 1, 1) for side in DEVICE_SIDES]
    runs = {who: run for s in settings for who, run in contenders(backbone, files, *s).items()}
    rates: dict[str, list[float]] = {isa: [] for isa in ceilings}
    for _ in range(rounds):
        for isa, ceiling in ceilings.items():
            rates[isa].append(ceiling())
        for who, milliseconds in one_round(runs).items():
            times.setdefault(who, []).append(milliseconds)

    def of(network: str, isa: str = "", batch: int = 1, threads: int = 1) -> list[float]:
        runtime = "burn-engine" if isa else "ONNX Runtime"
        return times[Contender(network, runtime, isa, SIDE, batch, threads)]

    ours, mobilenet = of("ReActNet-A", best), PEERS["mobilenet_v2"]
    float_bytes = 4 * sum(p.numel() for p in backbone.parameters())
    tiers = {}
    for isa, ceiling in ceilings.items():
        pairs = zip(of("ReActNet-A", isa), rates[isa], strict=True)
        tiers[isa] = {
            "ceiling": ceiling.method,
            "ceiling_gmacs": statistics.median(rates[isa]) / 1e9,
            "share": statistics.median(BINARY_MACS / (t * 1e-3) / rate for t, rate in pairs),
        }
    packed = files["ReActNet-A", 0]
    loaded = loading(packed)
    size = packed.stat().st_size
    avx2 = of("ReActNet-A", "avx2") if "avx2" in instruction_sets() else None
    return {
        "name": name,
        "source": f"benchmarks/engine.py, {rounds} rounds, commit {source_commit()}",
        "machine": {
            **machine(),
            "ceiling": tiers[best]["ceiling"],
            "ceiling_gmacs": tiers[best]["ceiling_gmacs"],
        },
        "ratios": {
            "ort_fp32_same_network": ratio(of("ReActNet-A"), ours),
            "ort_fp32_mobilenetv2": ratio(of(mobilenet), ours),
            "ceiling_share": tiers[best]["share"],
            "threads_2_over_1": ratio(ours, of("ReActNet-A", best, threads=2)),
            "batch_8_over_1": 8 * ratio(ours, of("ReActNet-A", best, batch=8)),
            "avx2_ort_fp32_same_network": ratio(of("ReActNet-A"), avx2) if avx2 else None,
            "avx2_ort_fp32_mobilenetv2": ratio(of(mobilenet), avx2) if avx2 else None,
            "file_size": float_bytes / size,
        },
        "tiers": tiers,
        "rows": [
            {**asdict(who), "milliseconds": round(statistics.median(found) / who.batch, 4)}
            for who, found in times.items()
        ],
        "load_ms": loaded["load_ms"],
        "memory_beyond_file_mb": loaded["growth_mb"] - size / 2**20,
        "file_bytes": size,
    }


def write_numbers(found: Mapping[str, Any], out: Path) -> None:
    """Write what was measured as JSON, and the folder that it is in."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", default=processor(), help="machine's name, for picture and table")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--picture", type=Path, help="draw this machine's rows, .svg or .png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.rounds, options.name)
    if options.out:
        write_numbers(found, options.out)
    if options.picture:
        sys.path.append(str(Path(__file__).parents[1]))  # where reproduction/ is
        from reproduction.documents.engine_figure import engine

        engine([found]).draw(options.picture)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for part in ("machine", "ratios"):
        print(part)
        for name, value in found[part].items():
            shown = f"{value:.3f}" if isinstance(value, float) else value
            print(f"  {name:52} {shown}")
    print("binary multiply-adds, G/s: ceiling, and the share of it that ReActNet-A reaches")
    for isa, tier in found["tiers"].items():
        gmacs, share = tier["ceiling_gmacs"], tier["share"]
        print(f"  {isa + ', ' + tier['ceiling']:52} {gmacs:.0f} {100 * share:.0f} %")
    print("milliseconds an image")
    for row in found["rows"]:
        who = f"{row['network']}, {row['runtime']} {row['isa']}".strip()
        setting = f"{row['size']} px, batch {row['batch']}, {row['threads']} threads"
        print(f"  {who:52} {setting:30} {row['milliseconds']:.3f}")
    for name in ("load_ms", "memory_beyond_file_mb", "file_bytes"):
        print(f"{name:54} {found[name]:,.0f}")


if __name__ == "__main__":
    main()
