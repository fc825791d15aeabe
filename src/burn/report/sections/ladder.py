"""The ladder of the first screen: networks that were evaluated alike, the best at the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.report.load.contents import Group
from burn.report.model import Network, Number, Verdict, colour_of, kind_beside, random_of
from burn.report.render.tables import number_name

_MOST = 16


@dataclass(frozen=True)
class Rung:
    """One network of the ladder, with its values in %."""

    name: str
    colour: str
    what: str  # its kind, or ""
    first: float
    second: float | None
    is_answer: bool  # whether the answer is about it
    floor: float | None  # of the same network with random weights, at its own precision


@dataclass(frozen=True)
class Ladder:
    """Networks by one number, the best at the top, and by a second number beside it."""

    rungs: Sequence[Rung]
    first: str  # name of the number
    first_short: str
    second: str  # of a linear evaluation, or ""
    on: str  # test images
    more: int  # networks that are left out

    @property
    def has_floors(self) -> bool:
        return any(rung.floor is not None for rung in self.rungs)

    @property
    def scale(self) -> float:
        """The value at the right end."""
        values = [v for r in self.rungs for v in (r.first, r.second) if v is not None]
        return max(1.03 * max(values), 1e-9)


def ladder(
    answer: Verdict, all_networks: Sequence[Network], groups: Sequence[Group]
) -> Ladder | None:
    """Return the networks that were evaluated on the same images with the same settings."""
    network, number = answer.network, answer.number
    if network is None or number is None:
        return None
    # An answer about no campaign stands beside comparisons, but not beside ablations.
    hidden = {group.folder for group in groups if group.ablation}
    if network.group is not None:
        hidden = {group.folder for group in groups} - {network.group}
    able = {
        # a run may stand for several variants of an ablation
        (n.group, n.checkpoint) if n.kind != "random" else first.mean: (n, first)
        for n in sorted(all_networks, key=lambda n: n is network)
        if n.group not in hidden and (first := n.like(number))
    }.values()
    second = None if number.protocol == "linear" else _second([n for n, _ in able], number)
    chosen = _chosen(list(able), answer)
    rungs = [
        Rung(
            n.name,
            colour_of(n),
            kind_beside(n) if n.kind in ("float", "half") else "",
            first.mean,
            beside.mean if second and (beside := n.like(second)) else None,
            n is network,
            floor.mean if (floor := random_of(n, number, all_networks)) else None,
        )
        for n, first in chosen
    ]
    if (share := number.majority_accuracy) is not None:
        rungs.append(Rung("always the largest class", "grey", "", share, None, False, None))
    rungs.sort(key=lambda r: -r.first)
    if len(rungs) < 2:
        return None
    return Ladder(
        rungs,
        number.label,
        number_name(number.protocol, "").strip(),
        second.label if second else "",
        number.test,
        len(able) - len(chosen),
    )


def _chosen(
    able: Sequence[tuple[Network, Number]], answer: Verdict
) -> list[tuple[Network, Number]]:
    """Choose at most `_MOST` networks: the answer's, its floor and teacher, and the best."""

    def rank(pair: tuple[Network, Number]) -> tuple[int, float]:
        network, first = pair
        reference = any(first is other for other in (answer.floor, answer.teacher))
        return (0 if network is answer.network else 1 if reference else 2, -first.mean)

    return sorted(able, key=rank)[:_MOST]


def _second(able: Sequence[Network], number: Number) -> Number | None:
    """Return the linear accuracy whose settings most of the networks share."""
    on = number.train, number.test
    numbers = [n for network in able if (n := network.find("linear", "top1", on))]
    labels = [n.label for n in numbers]
    return max(numbers, key=lambda n: labels.count(n.label), default=None)
