"""Measure which share of a packed network's time its gates take.

    python benchmarks/gate_share.py [--size 224] [--width 1] [--rounds 15] [--json]

bnext_t and expert_bnn are packed as they are, with gates of one hidden unit instead of an eighth of
the channels, and without gates. The first difference is the time of the gates' two layers, the
second that of what else a gate needs: means, and a second pass over the map, since its mean is
known only when all of it has been computed. (In the expert network the means also choose the
expert, and stay.) The engine computes at least 16 hidden units at once, so the first difference is
small where there are few. Milliseconds are processor time on one thread, the best of the rounds and
their median, shares medians of interleaved rounds. Weights are random, since time does not depend
on them. BURN_ENGINE_ISA chooses the instruction set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import burn_engine
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.deploy.layout import program_of
from burn.deploy.pack import encode, folded
from burn.runtime.hardware import processor, source_commit
from burn_engine.format import GatedConvolution, Layer, Rounded, TwoMatrices

CALLS = 5  # of a network in a round, of which the best counts


def without_gate(layer: Layer) -> Layer:
    """Return the layer without its gate, if it has one."""
    if not isinstance(layer, GatedConvolution):
        return layer
    return replace(layer, gate_of="none", mix=None, gate=None)


def with_one_unit(layer: Layer) -> Layer:
    """Return the layer with a gate that has a single hidden unit, if it has a gate."""
    if not isinstance(layer, GatedConvolution) or layer.gate is None:
        return layer
    down, up = layer.gate.down, layer.gate.up
    one = Rounded(weight=down.weight[:1], scale=down.scale[:1], bias=down.bias[:1])
    return replace(layer, gate=TwoMatrices(down=one, up=replace(up, weight=up.weight[:, :1])))


def load(layers: Sequence[Layer], size: int, file: Path) -> burn_engine.Model:
    """Write layers as a packed file for images of a side in pixels, and load it."""
    program = program_of(layers, layers[-1].name, (), (size, size), {})
    save_file(encode(layers, str(file)), file, metadata={"bnn": json.dumps(program)})
    return burn_engine.load(str(file), threads=1)


def best(model: burn_engine.Model, image: np.ndarray) -> float:
    """Return the milliseconds of the fastest of some calls."""
    taken = []
    for _ in range(CALLS):
        began = time.process_time()
        model.features(image)
        taken.append(time.process_time() - began)
    return 1e3 * min(taken)


def measure(config: BackboneConfig, size: int, rounds: int, folder: Path) -> dict[str, float]:
    """Return a network's milliseconds, and the shares in percent of what its gates take."""
    torch.manual_seed(0)
    backbone = build_backbone(config, Precision.BINARY).eval()
    layers = folded(backbone)
    models = [
        load([change(layer) for layer in layers], size, folder / f"{config.name}{number}.bnn")
        for number, change in enumerate((lambda layer: layer, with_one_unit, without_gate))
    ]
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    for model in models:
        best(model, image)
    turns = [[best(model, image) for model in models] for _ in range(rounds)]
    return {
        "best_milliseconds": min(whole for whole, _, _ in turns),
        "milliseconds": statistics.median(whole for whole, _, _ in turns),
        "layers_percent": statistics.median(100 * (1 - one / whole) for whole, one, _ in turns),
        "rest_percent": statistics.median(100 * (one - none) / whole for whole, one, none in turns),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=224, help="side of the image in pixels")
    parser.add_argument("--width", type=float, default=1.0, help="of the networks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: measure(
                BackboneConfig(name=name, width=options.width),
                options.size,
                options.rounds,
                Path(folder),
            )
            for name in ("bnext_t", "expert_bnn")
        }
    isa = os.environ.get("BURN_ENGINE_ISA") or burn_engine.isas()[0]
    setting = {"processor": processor(), "isa": isa, "commit": source_commit()}
    if options.json:
        print(json.dumps({**found, **setting}, indent=2))
        return
    for network, numbers in found.items():
        print(
            f"{network:12} {numbers['best_milliseconds']:.3f} ms at best, in the median "
            f"{numbers['milliseconds']:.3f}: {numbers['layers_percent']:.1f} % the gates' layers, "
            f"{numbers['rest_percent']:.1f} % means and the second pass"
        )
    print(", ".join(str(value) for value in setting.values()))


if __name__ == "__main__":
    main()
