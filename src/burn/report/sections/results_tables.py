"""All results: networks and their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burn.report.load.gather import settings_of
from burn.report.load.values import short_path
from burn.report.model import PROTOCOLS, Network, Number, kind_beside
from burn.report.render.cells import DASH, Cell, Table, cell, setting
from burn.report.render.tables import number_name

_MOST_ACROSS = 5  # columns; a single network with more numbers gets a row for each


def result_tables(all_networks: Sequence[Network]) -> list[Table]:
    """Return a table for each pair of data sets and each family of protocols."""
    pairs: dict[tuple[str, str], None] = {}
    for network in all_networks:
        for n in network.numbers:
            pairs[n.train, n.test] = None
    everywhere = [n.protocol for network in all_networks for n in network.numbers]
    others = [name for name in everywhere if name not in PROTOCOLS]
    tables = []
    for train, test in pairs:
        for family in (PROTOCOLS[:5], ("svm",), ("detection",), others):
            shown = [
                (network, n)
                for network in all_networks
                for n in network.numbers
                if (n.train, n.test) == (train, test) and n.protocol in family
            ]
            if shown:
                tables.append(_pivot(shown, train, test))
    return tables


def _pivot(shown: Sequence[tuple[Network, Number]], train: str, test: str) -> Table:
    protocols = dict.fromkeys((*PROTOCOLS, *(n.protocol for _, n in shown)))
    order = {protocol: place for place, protocol in enumerate(protocols)}
    labels = sorted(
        dict.fromkeys((order[n.protocol], n.label) for _, n in shown), key=lambda pair: pair[0]
    )
    means: dict[str, list[float]] = {}
    named: dict[str, tuple[Network, dict[str, Number]]] = {}
    for network, n in shown:
        means.setdefault(n.label, []).append(n.mean)
        named.setdefault(network.name, (network, {}))[1][n.label] = n
    rows = []
    for name, (network, cells) in named.items():
        row = [Cell(name, small=kind_beside(network))]
        for _, label in labels:
            n = cells.get(label)
            if n is None:
                row.append(Cell(DASH))
                continue
            seeds = f" · {len(n.results)} seeds" if len(n.results) > 1 else ""
            top = n.mean == max(means[label]) and len(means[label]) > 2
            row.append(cell(n.mean, style="best" if top else "", small=n.plus_minus + seeds))
        rows.append(row)
    rows.sort(
        key=lambda row: -max((c.key for c in row[1:2] if isinstance(c.key, float)), default=0.0)
    )
    title = f"Learned on {short_path(train)}, evaluated on {short_path(test)}"
    if train == test:
        title = f"Learned and evaluated on {short_path(train)}"
    columns = ["network", *(label for _, label in labels)]
    largest = {n.label: n.majority_accuracy for _, n in shown if n.majority_accuracy is not None}
    if largest:
        name = Cell("always the largest class", small="needs no network")
        rows.append([name, *(cell(largest.get(label)) for _, label in labels)])
    if len(named) == 1 and len(columns) > _MOST_ACROSS:
        across = [row[1:] for row in rows]
        rows = [[Cell(label), *cells] for label, *cells in zip(columns[1:], *across, strict=True)]
        title = f"{next(iter(named))}: {title[:1].lower()}{title[1:]}"
        columns = ["number", "%"] + (["always the largest class, %"] if largest else [])
    numbers = frozenset(range(1, len(columns)))
    return Table(title, columns, rows, numbers, f"In percent. {_how([n for _, n in shown])}")


def _how(numbers: Sequence[Number]) -> str:
    """Describe the settings that all results of each protocol share."""
    said = []
    for protocol in dict.fromkeys(n.protocol for n in numbers):
        settings = [settings_of(r) for n in numbers if n.protocol == protocol for r in n.results]
        shared = {
            name: value
            for name, value in settings[0].items()
            if all(s.get(name) == value for s in settings)
            and value is not None
            and not isinstance(value, Mapping)
        }
        parts = [f"{name.replace('_', ' ')} {setting(value)}" for name, value in shared.items()]
        if parts:
            said.append(f"{number_name(protocol, '').strip()}: {', '.join(parts)}.")
    return " ".join(said)
