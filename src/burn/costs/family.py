"""The binary networks side by side, with times of this machine, for `burn info --family`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BNEXT, EXPERT
from burn.backbones.plan import REACTNETS
from burn.backbones.registry import build_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.costs.compute import Cost, count
from burn.evaluation.progress import progress_bar
from burn.runtime.hardware import processor
from burn.runtime.signals import interrupted, signals_raise

if TYPE_CHECKING:
    from burn_engine.model import Model

NAMES = (*REACTNETS, BNEXT[0], EXPERT)
IMAGE_SIZE = 96  # pixels, of the recipe burn_device
IMAGE_SIZES = range(16, 513)  # above, it takes minutes
_ROUNDS = 9
_TURN = 0.02  # seconds of a network in a round
_LEAST_CALLS = 3


@dataclass(frozen=True)
class Member:
    """A network and its cost for one image.

    It is on the front if no other member is at least as fast, at least as small and has at least as
    many binary multiply-accumulates, and is better in one of these. Accuracy is not among them.
    """

    name: str  # value of `--backbone.name`
    parameters: int  # binary and float
    binary_macs: int  # multiply-accumulates of its binary convolutions
    packed_bytes: int  # of the file that `burn pack` writes, without a classifier
    milliseconds: float | None  # in burn-engine, or None if it was not measured
    on_front: bool  # False if times were not measured


@dataclass(frozen=True)
class Family:
    """The members, and what their times hold for."""

    image_size: int  # pixels
    processor: str
    isa: str | None  # burn-engine's instruction set; None if times were not measured
    threads: int
    rounds: int  # the median of whose times is given
    not_measured: str | None  # why times were not measured; None if they were
    members: tuple[Member, ...]  # smallest ReActNet first


def measure_family(
    image_size: int, console: Console, names: Sequence[str] = NAMES, rounds: int = _ROUNDS
) -> Family:
    """Count the networks, and measure their times in burn-engine on one thread.

    Weights are random, since time does not depend on them. In each round every network is timed for
    20 ms after the others. Without burn-engine's compiled core nothing is measured, because its
    reference would take minutes.

    Raises:
        UserError: The size is out of range, or BURN_ENGINE_ISA names an instruction set that this
            processor lacks.
        Interrupted: Ctrl-C or SIGTERM ended the measurement.
    """
    if image_size not in IMAGE_SIZES:
        raise UserError(
            f"--image-size {image_size} is not in {IMAGE_SIZES[0]} … {IMAGE_SIZES[-1]}, the sizes "
            "that --family compares"
        )
    import torch

    from burn.deploy.running import NoCompiledCore, in_engine

    costs: dict[str, Cost] = {}
    models: dict[str, Model] = {}
    not_measured = None
    with signals_raise(), progress_bar(console) as bar:
        try:
            task = bar.add_task("building", total=len(names))
            for name in names:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    network = build_backbone(BackboneConfig(name), Precision.BINARY).eval()
                costs[name] = count(network, image_size, 0)
                try:
                    if not_measured is None:
                        models[name] = in_engine(network, 1)[0]
                except NoCompiledCore as error:
                    not_measured = str(error)
                bar.advance(task)
            task = bar.add_task("measuring", total=rounds * len(models))
            times: dict[str, list[float]] = {name: [] for name in models}
            for name, milliseconds in interleaved(models, image_size, rounds):
                times[name].append(milliseconds)
                bar.advance(task)
        except KeyboardInterrupt as stopped:
            raise interrupted("interrupted; nothing was measured", stopped) from None
    members = [
        Member(
            name,
            cost.binary_parameters + cost.float_parameters,
            cost.binary_macs,
            cost.packed_bytes or 0,
            round(statistics.median(times[name]), 4) if name in times else None,
            on_front=False,
        )
        for name, cost in costs.items()
    ]
    return Family(
        image_size,
        processor(),
        isa=next(iter(models.values())).isa if models else None,
        threads=1,
        rounds=rounds if models else 0,
        not_measured=not_measured,
        members=tuple(replace(member, on_front=on_front(member, members)) for member in members),
    )


def interleaved(
    models: Mapping[str, Model], image_size: int, rounds: int
) -> Iterator[tuple[str, float]]:
    """Time networks in turn, so that what else runs on the machine slows all of them alike.

    Yields:
        A network's name and its milliseconds in a round: the median of its calls after one that is
        not counted.
    """
    image = np.random.default_rng(0).integers(0, 256, (image_size, image_size, 3), dtype=np.uint8)
    for _ in range(rounds):
        for name, model in models.items():
            model(image)  # fetches it into the cache; in the first round it also lays out memory
            calls: list[float] = []
            while len(calls) < _LEAST_CALLS or sum(calls) < _TURN:
                began = time.perf_counter()
                model(image)
                calls.append(time.perf_counter() - began)
            yield name, 1e3 * statistics.median(calls)


def on_front(member: Member, members: Sequence[Member]) -> bool:
    """Return whether a member is on the front of time, size and multiply-adds: see `Member`.

    Time and size alone would leave the smallest network, which is the fastest as well.
    """

    def losses(of: Member) -> tuple[float, int, int]:
        return of.milliseconds or 0, of.packed_bytes, -of.binary_macs

    if member.milliseconds is None:
        return False
    member_costs = losses(member)
    others = [losses(other) for other in members if other.milliseconds is not None]
    return not any(
        other != member_costs
        and all(theirs <= ours for theirs, ours in zip(other, member_costs, strict=True))
        for other in others
    )


def family_table(family: Family) -> Table:
    """Return the members as a table for a terminal."""
    numbers = ("parameters", "binary multiply-adds", "packed", "ms an image")
    table = Table("backbone", *(Column(name, justify="right") for name in numbers))
    for member in family.members:
        milliseconds = "-" if member.milliseconds is None else f"{member.milliseconds:.3f}"
        table.add_row(
            f"{member.name}{' *' if member.on_front else ''}",
            f"{member.parameters:,}",
            f"{member.binary_macs:,}",
            f"{member.packed_bytes / 1e6:.2f} MB",
            milliseconds,
        )
    return table


def family_notes(family: Family) -> list[str]:
    """Return the lines below the table: what the numbers hold for."""
    size = f"{family.image_size} × {family.image_size} pixels"
    if family.not_measured is not None:
        return [f"{size}; times are not measured: {family.not_measured}"]
    return [
        f"{size}, random weights, burn-engine ({family.isa}) on {family.threads} thread of "
        f"{family.processor}, median of {family.rounds} rounds",
        "* none of the others is as fast, as small and has as many multiply-adds; accuracy is not "
        "compared here",
    ]
