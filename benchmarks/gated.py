"""Measure a training step of BNext-T and of the expert network, against plain twins of them.

    python benchmarks/gated.py [--json] [--rounds 3] [--batch 8] [--threads 1]

A step is a forward and a backward pass and one of Adam, on images of 224 pixels, with the mean
square of the features as the loss. Ours runs in float32 and, if the processor has instructions for
it, under bfloat16 autocast, as training does; the twin (gated_twin.py) is float32. Each contender
has a process of its own, and they work in turn. A time is the best of the rounds, a ratio the
median of the rounds' ratios, after three steps that are not counted. Memory is how much the highest
resident memory of those three steps exceeds the memory before them. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from gated_twin import gated_twin

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.runtime.compute import uses_bfloat16
from training import SIDE, Worker, first_steps, randomized, ratio, setting, show, timed

NETWORKS = ("bnext_t", "expert_bnn")
KINDS = ("twin float32", "ours float32", "ours bfloat16")


class Contender:
    """One network, ours or its twin, at one number format.

    Args:
        name: Network and kind, as "bnext_t, ours float32".
        batch: Number of images.
    """

    device = "cpu"

    def __init__(self, name: str, batch: int) -> None:
        torch.manual_seed(0)
        network, kind = name.split(", ")
        backbone = build_backbone(BackboneConfig(name=network), Precision.BINARY)
        randomized(backbone)
        self.network: Backbone = gated_twin(backbone) if "twin" in kind else backbone
        self.network.train()
        self.bfloat16 = "bfloat16" in kind
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.images = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8)

    def reduced(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else nullcontext()

    def step(self) -> None:
        with self.reduced():
            loss = self.network(self.images).float().square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def serve(name: str, batch: int) -> None:
    """Run a contender: read commands, one word per line, and write each answer as JSON."""
    contender = Contender(name, batch)
    for line in sys.stdin:
        answer = first_steps(contender) if line.strip() == "memory" else timed(contender.step)
        print(json.dumps(answer), flush=True)


def measure(rounds: int, batch: int, threads: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each network's name and its milliseconds, megabytes and ratios."""
    kinds = KINDS if uses_bfloat16("auto", "cpu") else KINDS[:2]
    for network in NETWORKS:
        workers = {
            kind: Worker(f"{network}, {kind}", batch, "cpu", threads, script=__file__)
            for kind in kinds
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, worker in workers.items():
                seconds[kind].append(worker.ask("step"))
        for worker in workers.values():
            worker.close()
        growth = {kind: worker.memory["growth_mb"] for kind, worker in workers.items()}
        yield (
            network,
            {
                "milliseconds": {kind: 1e3 * min(taken) for kind, taken in seconds.items()},
                "memory_mb": growth,
                "speedup": {kind: ratio(seconds[KINDS[0]], seconds[kind]) for kind in kinds[1:]},
                "memory": {kind: growth[kind] / growth[KINDS[0]] for kind in kinds[1:]},
            },
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="images")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu",), default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.serve:
        serve(options.serve, options.batch)
        return
    found: dict[str, object] = dict(measure(options.rounds, options.batch, options.threads))
    found["setting"] = setting("cpu", options.rounds, options.threads) | {"batch": options.batch}
    print(json.dumps(found, indent=2)) if options.json else show(found)


if __name__ == "__main__":
    main()
