"""Compare binary networks with small float networks that were taught the same way, also in 8 bits.

    python benchmarks/rivals.py burn=runs/burn-0,runs/burn-1 mobilenet=runs/mobilenet lite0=lite0 \
        --set flowers=flowers/train.parquet,flowers/test.parquet --calibrate photos.parquet

For each network: the accuracy of kNN and of a linear classifier on every set, in percent, the
milliseconds of one image on one thread, and the bytes of the file. Of a network that was trained
with several seeds, the accuracy is their mean ± their standard deviation, and the first one is
timed. A binary network is packed and runs in burn-engine, once with each of its instruction sets; a
float network runs in ONNX Runtime, in float32 and in 8 bits, and what is evaluated is what is
timed: the features of the 8-bit file, not those of the network behind it. With --out, accuracies
that the file has already are not measured again.

The 8-bit files are made by static quantization in QDQ format, weights signed and with a scale for
each channel, activations unsigned. 256 views of the images of --calibrate, evenly spaced, choose
the activations' ranges, once by their extremes and once without the outermost 0.01 %; of the two
files the one whose features are nearer to the float network's on these views is taken.

All files are timed in turn in one process, as benchmarks/engine.py does. It needs
`burn-ssl[onnx]`; nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import torch
from eight_bits import quantize
from rich.console import Console
from torch import Tensor

import burn_engine
from burn.backbones.entries import is_binary
from burn.core.seeds import OverSeeds
from burn.data.loader import plain_batches
from burn.data.open import open_source
from burn.deploy.pack import pack
from burn.deploy.running import PackedForward
from burn.deploy.shared import cosines
from burn.evaluation.checks import open_labelled
from burn.evaluation.configs import KnnConfig, LinearConfig
from burn.evaluation.context import EvaluationContext, Model, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear
from burn.runtime.hardware import processor, source_commit
from engine import (
    Contender,
    Run,
    export_peer,
    instruction_sets,
    machine,
    one_round,
    onnx_run,
    write_numbers,
)

Times = dict[str, float]
ENGINE, FLOAT, INT8 = "burn-engine", "ONNX Runtime fp32", "ONNX Runtime int8"
_CALIBRATION_VIEWS = 256
_RANGES = {"extremes": None, "99.99 %": 99.99}


class OnnxForward:
    """The features of views as an ONNX file computes them, in place of burn-engine's.

    Args:
        file: The file, from `images` (n, 3, side, side) in [0, 1] to features (n, d).
        threads: Number of threads.
    """

    def __init__(self, file: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(str(file), options, providers=providers)

    def features(self, views: Tensor) -> Tensor:
        """Compute float32 features (n, d) of views, uint8 (n, 3, side, side)."""
        images = (views.float() / 255).numpy()
        return torch.from_numpy(np.asarray(self._session.run(None, {"images": images})[0]))


def quantized(file: Path, views: Tensor, threads: int) -> tuple[Path, str]:
    """Write an ONNX network in 8 bits beside it.

    Args:
        file: The float32 network.
        views: Views for calibration, uint8 (n, 3, side, side).
        threads: Number of threads.

    Returns:
        The file, and how the ranges of its activations were chosen.
    """
    exact = OnnxForward(file, threads).features(views).numpy()
    nearness: dict[str, tuple[float, Path]] = {}
    for name, percentile in _RANGES.items():
        small = file.with_suffix(f".{name[:2]}.onnx")
        quantize(file, small, (views.float() / 255).numpy(), percentile)
        rounded = OnnxForward(small, threads).features(views).numpy()
        nearness[name] = float(cosines(rounded, exact).mean()), small
    best = max(nearness, key=lambda name: nearness[name][0])
    return nearness[best][1], f"{best}, cosine {nearness[best][0]:.4f}"


@dataclass(frozen=True)
class Rival:
    """A network in a runtime.

    Attributes:
        network: Its name.
        spec: Where its weights are.
        runtime: burn-engine, or ONNX Runtime in float32 or 8 bits.
        file: The file that runs.
        model: The network that was trained.
        forward: What computes features.
        note: How it was quantized, or "".
    """

    network: str
    spec: str
    runtime: str
    file: Path
    model: Model
    forward: PackedForward | OnnxForward
    note: str = ""


def rivals_of(
    network: str, spec: str, folder: Path, side: int, views: Tensor | None, threads: int
) -> Iterator[Rival]:
    """Yield a network in its runtimes.

    Args:
        network: Its name.
        spec: A run, a checkpoint or a network that burn knows.
        folder: Folder for the files.
        side: Side of the images in pixels.
        views: Views for calibration, uint8 (n, 3, side, side); None leaves 8 bits out.
        threads: Number of threads.
    """
    model = open_model(spec, fresh=False, seed=0)
    model = replace(model, views=replace(model.views, size=side, resize=None))
    backbone = model.backbone.eval()
    if is_binary(backbone.config.name):
        file = folder / f"{network}.bnn"
        pack(Path(spec), file)
        yield Rival(network, spec, ENGINE, file, model, PackedForward(backbone, side, threads))
        return
    file = folder / f"{network}.onnx"
    export_peer(backbone.to(memory_format=torch.contiguous_format), file, side)  # type: ignore[call-overload]
    yield Rival(network, spec, FLOAT, file, model, OnnxForward(file, threads))
    if views is not None:
        small, note = quantized(file, views, threads)
        yield Rival(network, spec, INT8, small, model, OnnxForward(small, threads), note)


def accuracies(rival: Rival, train: str, test: str, console: Console) -> dict[str, float]:
    """Return the top-1 accuracies in percent by kNN and linear, of features of plain views."""
    sources = open_labelled(train, test)
    context = EvaluationContext(
        rival.network,
        rival.spec,
        rival.model.backbone,
        rival.model.views,
        *sources,
        seed=0,
        workers=1,
        packed=cast(PackedForward, rival.forward),
    )
    results = run_knn(context, KnnConfig(), console)
    results += run_linear(context, LinearConfig(augment="none"), console)
    return {result.protocol: result.value for result in results if result.metric == "top1"}


def timed(rivals: Sequence[Rival], side: int, rounds: int) -> dict[tuple[str, str], Times]:
    """Return the milliseconds of one image on one thread by network and runtime.

    Returns:
        The medians by burn-engine's instruction set, or by "" for the other runtimes.
    """
    image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)
    floats = np.ascontiguousarray(image.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    runs: dict[Contender, Run] = {}
    for rival in rivals:
        if rival.runtime == ENGINE:
            for isa in instruction_sets():
                model = burn_engine.load(rival.file, threads=1, isa=isa)
                who = Contender(rival.network, ENGINE, isa, side, 1, 1)
                runs[who] = lambda model=model: model(image)
        else:
            who = Contender(rival.network, rival.runtime, "", side, 1, 1)
            runs[who] = onnx_run(rival.file, floats, 1)
    taken: dict[Contender, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, milliseconds in one_round(runs).items():
            taken[who].append(milliseconds)
    medians: dict[tuple[str, str], Times] = {}
    for who, each in taken.items():
        times = medians.setdefault((who.network, who.runtime), {})
        times[who.isa] = round(statistics.median(each), 4)
    return medians


def calibration_views(data: str, side: int, model: Model) -> Tensor:
    """Return plain views of evenly spaced images, uint8 (n, 3, side, side).

    Args:
        data: The images.
        side: Side of the views in pixels.
        model: The network whose views they are.
    """
    source = open_source(data, "train")
    count = min(_CALIBRATION_VIEWS, len(source))
    indices = np.linspace(0, len(source) - 1, count).astype(int).tolist()
    views = replace(model.views, size=side, resize=None)
    batches = plain_batches(source, views, 64, 0, indices)
    return torch.cat([batch.views[0] for batch in batches])


def named(text: str) -> tuple[str, list[str]]:
    """Split NAME=VALUE[,VALUE…]."""
    name, _, values = text.partition("=")
    if not (name and values):
        raise argparse.ArgumentTypeError(f"{text}: give NAME=VALUE")
    return name, values.split(",")


def labelled(text: str) -> tuple[str, list[str]]:
    """Split NAME=TRAIN,TEST."""
    name, paths = named(text)
    if len(paths) != 2:
        raise argparse.ArgumentTypeError(f"{text}: give NAME=TRAIN,TEST")
    return name, paths


def measure(options: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Return all numbers, and write accuracies to `--out` as soon as they are known."""
    threads = torch.get_num_threads()
    views = None
    if options.calibrate:
        model = open_model(options.networks[0][1][0], fresh=False, seed=0)
        views = calibration_views(options.calibrate, options.side, model)
    found: dict[str, Any] = {"accuracies": {}}
    if options.out and options.out.is_file():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    known: dict[str, dict[str, dict[str, Any]]] = found["accuracies"]
    sets = dict(options.sets)
    first: list[Rival] = []
    for name, specs in options.networks:
        for number, spec in enumerate(specs):
            done = known.setdefault(spec, {})
            if number and done and all(sets.keys() <= each.keys() for each in done.values()):
                continue
            place = folder / str(number)
            place.mkdir(exist_ok=True)
            for rival in rivals_of(name, spec, place, options.side, views, threads):
                first += [rival] if number == 0 else []
                for each, (train, test) in sets.items():
                    if each not in done.setdefault(rival.runtime, {}):
                        done[rival.runtime][each] = accuracies(rival, train, test, console)
                if options.out:
                    write_numbers(found, options.out)
            console.print(f"{spec}: {done}")
    milliseconds = timed(first, options.side, options.rounds)
    rows = [
        {
            "network": rival.network,
            "runtime": rival.runtime,
            "file_bytes": rival.file.stat().st_size,
            "milliseconds": milliseconds[rival.network, rival.runtime],
            "quantized": rival.note,
            "top1": {
                each: {
                    protocol: [known[spec][rival.runtime][each][protocol] for spec in specs]
                    for protocol in ("knn", "linear")
                }
                for each in sets
            },
        }
        for name, specs in options.networks
        for rival in first
        if rival.network == name
    ]
    return {
        "name": options.name,
        "source": f"benchmarks/rivals.py, {options.rounds} rounds, commit {source_commit()}",
        "machine": {**machine(), "burn_engine": burn_engine.__version__},
        "side": options.side,
        "rows": rows,
        "accuracies": known,
    }


def show(found: Mapping[str, Any]) -> None:
    """Print the numbers as lines."""
    for name, value in found["machine"].items():
        print(f"{name:16} {value}")
    print(f"\n{found['side']} pixels, one image, one thread; kNN / linear top-1 in percent")
    sets = list(found["rows"][0]["top1"])
    heads = "".join(f"{name:>28}" for name in sets)
    print(f"  {'network':24} {'runtime':18} {'file':>9} {'ms':>7}{heads}")
    for row in found["rows"]:
        numbers = (
            " / ".join(str(OverSeeds.of(values)) for values in row["top1"][name].values())
            for name in sets
        )
        fastest = next(iter(row["milliseconds"].values()))
        print(
            f"  {row['network']:24} {row['runtime']:18} {row['file_bytes'] / 1e6:6.2f} MB "
            f"{fastest:7.3f}" + "".join(f"{each:>28}" for each in numbers)
        )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="+", type=named, metavar="NAME=RUN[,RUN]")
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        type=labelled,
        default=[],
        metavar="NAME=TRAIN,TEST",
        help="labelled images",
    )
    parser.add_argument("--calibrate", metavar="DATA", help="images; without, no 8 bits")
    parser.add_argument("--side", type=int, default=96, metavar="PIXELS")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", default=processor(), help="machine's name")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer gives advice
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder), Console(stderr=True))
    if options.out:
        write_numbers(found, options.out)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
