"""The ladder of the first screen: all that was judged alike, the best at the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.report.gather import Group
from burn.report.networks import KINDS, Network, Number, Verdict, colour_of
from burn.report.tables import number_name

_MOST = 16


@dataclass(frozen=True)
class Rung:
    """A network: its values in %, and whether the answer is about it."""

    name: str
    colour: str
    what: str
    first: float
    second: float | None
    mine: bool


@dataclass(frozen=True)
class Ladder:
    """Networks by one number, the best at the top, and beside it a second one.

    first, second: names of the two numbers, and short ones. floor: what random weights give.
    """

    rungs: Sequence[Rung]
    first: str
    first_short: str
    second: str
    second_short: str
    on: str
    floor: float | None

    @property
    def scale(self) -> float:
        """The value at the right end."""
        values = [v for r in self.rungs for v in (r.first, r.second) if v is not None]
        return max(1.03 * max(values), 1e-9)


def ladder(answer: Verdict, found: Sequence[Network], groups: Sequence[Group]) -> Ladder | None:
    """Those judged on the same images with the same settings; None where there is only one.

    Of an ablation only where the answer is of it, of another comparison than the answer's none.
    """
    network, own = answer.network, answer.own
    if network is None or own is None:
        return None
    hidden = {group.folder for group in groups if group.ablation}
    if network.group is not None:
        hidden = {group.folder for group in groups} - {network.group}
    able = {
        # a run may stand for several variants of an ablation
        (n.group, n.checkpoint) if n.kind != "random" else first.mean: (n, first)
        for n in sorted(found, key=lambda n: n is network)
        if n.group not in hidden and (first := n.like(own))
    }.values()
    second = None if own.protocol == "linear" else _second([n for n, _ in able], own)
    rungs = []
    for n, first in able:
        beside = n.like(second) if second else None
        rungs.append(
            Rung(
                n.name, colour_of(n), KINDS[n.kind] if n.kind in ("float", "half") else "",
                first.mean, beside.mean if beside else None, n is network,
            )
        )  # fmt: skip
    rungs.sort(key=lambda r: -r.first)
    if len(rungs) > _MOST:
        ends = {first for n, first in able if n.kind in ("random", "float")}
        keep = {n.name for n, first in able if n is network or first in ends}
        others = [r.name for r in rungs if r.name not in keep][: max(0, _MOST - len(keep))]
        rungs = [r for r in rungs if r.name in keep or r.name in others]
    if len(rungs) < 2:
        return None
    return Ladder(
        rungs,
        own.label,
        number_name(own.protocol, "").strip(),
        second.label if second else "",
        "linear" if second else "",
        own.test,
        answer.floor.mean if answer.floor else None,
    )


def _second(able: Sequence[Network], own: Number) -> Number | None:
    """The linear accuracy that most of them have, as settings of it may differ."""
    on = own.train, own.test
    numbers = [n for network in able if (n := network.find("linear", "top1", on))]
    labels = [n.label for n in numbers]
    return max(numbers, key=lambda n: labels.count(n.label), default=None)
