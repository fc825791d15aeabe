"""Folders of `burn compare` and `burn ablate`: runs at one budget, for comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from burn.paper import ablations
from burn.paper import numbers as paper
from burn.report.load.contents import Group, Run
from burn.report.load.values import dig, number, short_path, words
from burn.report.model import Network, colour_of
from burn.report.render.cells import DASH, Cell, Table, cell, duration, filled, joined, setting
from burn.report.render.charts import Chart, Dot, dots, scatter, small
from burn.report.sections.training_curves import by_stage


def of_group(group: Group, all_networks: Sequence[Network]) -> list[Network]:
    """Return the networks of a campaign, the best by kNN first."""
    members = [network for network in all_networks if network.group == group.folder]
    return sorted(members, key=lambda n: -_mean(n, "knn"))


def _mean(network: Network, protocol: str) -> float:
    n = network.find(protocol, "top1")
    return n.mean if n else -1.0


def training_seconds(network: Network) -> float | None:
    """Return the mean training time over seeds, as recorded in the results."""
    each = [number(r.settings, "pretraining", "seconds") for r in network.numbers[0].results]
    measured = [seconds for seconds in each if seconds is not None]
    return statistics.fmean(measured) if measured else None


def comparison_table(members: Sequence[Network]) -> Table:
    rows = []
    for network in members:
        seconds = training_seconds(network)
        trained = seconds is not None
        epochs = number(network.numbers[0].results[0].settings, "pretraining", "epochs")
        seeds = max(len(n.results) for n in network.numbers)
        rows.append(
            [
                Cell(network.name, style=colour_of(network)),
                _mean_cell(network, "knn"),
                _mean_cell(network, "linear"),
                _mean_cell(network, "linear", "top5"),
                Cell(str(seeds) if trained else "", seeds if trained else None),
                Cell(f"{epochs:g}" if epochs is not None else "", epochs),
                Cell(duration(seconds) if trained else "", seconds),
            ]
        )
    numbers = [n for network in members for n in network.numbers]
    largest = {n.protocol: n.majority_accuracy for n in numbers if n.majority_accuracy is not None}
    if largest:
        shares = [cell(largest.get(protocol)) for protocol in ("knn", "linear")]
        name = Cell("always the largest class", style="grey")
        rows.append([name, *shares, Cell(DASH), *(3 * [Cell("")])])
    accuracies = ("kNN top-1, %", "linear top-1, %", "linear top-5, %")
    columns = ("network", *accuracies, "seeds", "epochs", "training")
    return Table("Every network", columns, rows, frozenset(range(1, 7)))


def _mean_cell(network: Network, protocol: str, metric: str = "top1") -> Cell:
    n = network.find(protocol, metric)
    return cell(n.mean, small=n.plus_minus) if n else Cell(DASH)


def group_note(group: Group) -> str:
    about = group.about
    linear, parts = dig(about, "linear"), None
    if isinstance(linear, Mapping):
        named = (("lr", "learning rate"), ("epochs", "epochs"), ("augment", "augmentation"))
        parts = [f"{said} {setting(linear[name])}" for name, said in named if name in linear]
    text = joined(
        filled("each saw {:,.0f} images in all its stages", number(about, "budget")),
        filled("learned from {}", short_path(words(about, "data"))),
        filled("evaluated on {}", short_path(words(about, "test"))),
        "" if parts is None else f"linear evaluation with {', '.join(parts)}",
        by="; ",
    )
    return f"{text[:1].upper()}{text[1:]}. ± is the standard deviation over seeds." if text else ""


def comparison_charts(members: Sequence[Network], key: str) -> list[Chart]:
    floor = next((n for n in members if n.kind == "random"), None)
    charts = []
    for protocol, title in (("knn", "kNN top-1, %"), ("linear", "Linear top-1, %")):
        able = [(n, measured) for n in members if (measured := n.find(protocol, "top1"))]
        able.sort(key=lambda pair: -pair[1].mean)
        lowest = floor.find(protocol, "top1") if floor else None
        rows = [Dot(n.name, colour_of(n), measured.values) for n, measured in able]
        note = "lines begin at random weights" if lowest else ""
        charts.append(dots(title, rows, f"{key}{protocol}", lowest.mean if lowest else None, note))
    points = [
        (n.name, colour_of(n), seconds / 60, linear.mean)
        for n in members
        if (seconds := training_seconds(n)) is not None and (linear := n.find("linear", "top1"))
    ]
    title = "Training time against linear accuracy"
    axes = ("minutes of training", "linear top-1, %")
    charts.append(scatter(title, points, f"{key}time", *axes))
    return [chart for chart in charts if chart]


def small_multiples(runs: Sequence[Run], key: str) -> list[dict[str, str]]:
    """Return the loss of every run, each on its own scale, with its first and last value."""
    curves = []
    for place, run in enumerate(runs):
        parts = by_stage(run, "loss")
        points = [point for part in parts for point in part]
        if not points:
            continue
        state = "" if run.finished else "not finished"
        if any(s.collapsed for s in run.stages):
            state = "collapsed"
        labelled = run.method.startswith("supervised")
        colour = "burn" if run.method == "burn" else "pale" if labelled else "blue"
        svg = small(parts, colour, f"{key}{place}")
        first, last = (f"{points[place][1]:.3g}" for place in (0, -1))
        curves.append({"name": run.name, "svg": svg, "first": first, "last": last, "state": state})
    return curves


def default_variant(group: Group, members: Sequence[Network]) -> Network | None:
    """Return the variant that changes nothing: the run that stands for the most variants."""
    runs = dig(group.about, "runs")
    names = [v for v in runs.values() if isinstance(v, str)] if isinstance(runs, Mapping) else []
    usual = max(dict.fromkeys(names), key=names.count, default="two-stages")
    return next((network for network in members if network.name == usual), None)


def ablation_parts(
    about: Group, members: Sequence[Network], key: str
) -> tuple[list[Chart], list[Table]]:
    """Return a chart and a table for each group of an ablation with two variants or more."""
    # A run may stand for several variants, since the recipe's own choice is in every group.
    names = {network.name: network for network in members}
    variants = [row.variant for group in ablations.GROUPS for row in group.rows]
    by_name = {
        variant: network
        for variant in variants
        if (network := names.get(words(about.about, "runs", variant)) or names.get(variant))
    }
    floor = next((n for n in members if n.kind == "random"), None)
    lowest = floor.find("linear", "top1") if floor else None
    charts, tables = [], []
    for group in ablations.GROUPS:
        rows = [(row, by_name[row.variant]) for row in group.rows if row.variant in by_name]
        if len(rows) < 2:
            continue
        able = [(row, n) for row, network in rows if (n := network.find("linear", "top1"))]
        bars = [Dot(row.label, "burn", n.values) for row, n in able]
        note = "linear top-1, %" + ("; lines begin at random weights" if lowest else "")
        begin = lowest.mean if lowest else None
        charts.append(dots(group.title, bars, f"{key}{group.name}", begin, note, above=True))
        tables.append(_ablation_table(group, rows))
    return [chart for chart in charts if chart], tables


def _ablation_table(group: ablations.Group, rows: Sequence[tuple[ablations.Row, Network]]) -> Table:
    with_paper = any(row.paper for row, _ in rows)
    cells = []
    for row, network in rows:
        collapsed = _collapsed(network)
        line = [Cell(row.label, small=collapsed, style="bad" if collapsed else "")]
        line += [_mean_cell(network, protocol) for protocol in ("knn", "linear")]
        seeds = max(len(n.results) for n in network.numbers)
        seconds = training_seconds(network)
        line += [Cell(str(seeds), seeds), Cell(duration(seconds), seconds)]
        if with_paper:
            figure = paper.ablation_figure(*row.paper) if row.paper else None
            table = f"Table {figure.number}" if figure else ""
            line.append(cell(figure.value if figure else None, "{:g}", small=table))
        cells.append(line)
    columns = ["variant", "kNN top-1, %", "linear top-1, %", "seeds", "training"]
    if with_paper:
        columns.append("paper: linear, ImageNet")
    return Table(group.title, columns, cells, frozenset(range(1, len(columns))))


def _collapsed(network: Network) -> str:
    """Say in how many of a network's runs target or features collapsed, if in any."""
    said = []
    for what, name in (("target", "collapsed_stages"), ("features", "collapsed_features")):
        runs = {
            (r.checkpoint, r.seed): bool(dig(r.settings, "pretraining", name))
            for n in network.numbers
            for r in n.results
        }
        if count := sum(runs.values()):
            said.append(f"{what} collapsed in {count} of {len(runs)} runs")
    return ", ".join(said)
