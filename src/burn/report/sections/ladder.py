"""The ladder of the first screen: all that was evaluated alike, the best at the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.report.load.found import Group
from burn.report.model import Network, Number, Verdict, colour_of, kind_beside, random_of
from burn.report.render.tables import number_name

_MOST = 16


@dataclass(frozen=True)
class Rung:
    """A network: its values in %, and whether the answer is about it.

    floor: what the same network with random weights, of its own precision, gives.
    """

    name: str
    colour: str
    what: str
    first: float
    second: float | None
    mine: bool
    floor: float | None


@dataclass(frozen=True)
class Ladder:
    """Networks by one number, the best at the top, and beside it a second one.

    first, second: names of the two numbers, and short ones. more: how many networks are left out.
    """

    rungs: Sequence[Rung]
    first: str
    first_short: str
    second: str
    second_short: str
    on: str
    more: int

    @property
    def has_floors(self) -> bool:
        """Whether any network stands beside itself with random weights."""
        return any(rung.floor is not None for rung in self.rungs)

    @property
    def scale(self) -> float:
        """The value at the right end."""
        values = [v for r in self.rungs for v in (r.first, r.second) if v is not None]
        return max(1.03 * max(values), 1e-9)


def ladder(answer: Verdict, found: Sequence[Network], groups: Sequence[Group]) -> Ladder | None:
    """Those evaluated on the same images with the same settings; None where there is only one.

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
    chosen = _chosen(list(able), answer)
    rungs = [
        Rung(
            n.name, colour_of(n), kind_beside(n) if n.kind in ("float", "half") else "",
            first.mean, beside.mean if second and (beside := n.like(second)) else None,
            n is network, _floor(n, own, found),
        )
        for n, first in chosen
    ]  # fmt: skip
    if (share := own.largest_class) is not None:
        rungs.append(Rung("always the largest class", "grey", "", share, None, False, None))
    rungs.sort(key=lambda r: -r.first)
    if len(rungs) < 2:
        return None
    return Ladder(
        rungs,
        own.label,
        number_name(own.protocol, "").strip(),
        second.label if second else "",
        "linear" if second else "",
        own.test,
        len(able) - len(chosen),
    )


def _chosen(
    able: Sequence[tuple[Network, Number]], answer: Verdict
) -> list[tuple[Network, Number]]:
    """At most so many: the answer's own, those it is measured against, and the best."""

    def rank(pair: tuple[Network, Number]) -> tuple[int, float]:
        network, first = pair
        reference = any(first is one for one in (answer.floor, answer.teacher))
        return (0 if network is answer.network else 1 if reference else 2, -first.mean)

    return sorted(able, key=rank)[:_MOST]


def _floor(network: Network, own: Number, found: Sequence[Network]) -> float | None:
    floor = random_of(network, own, found) if network.kind != "random" else None
    return floor.mean if floor else None


def _second(able: Sequence[Network], own: Number) -> Number | None:
    """The linear accuracy that most of them have, as settings of it may differ."""
    on = own.train, own.test
    numbers = [n for network in able if (n := network.find("linear", "top1", on))]
    labels = [n.label for n in numbers]
    return max(numbers, key=lambda n: labels.count(n.label), default=None)
