"""What stands in each part of a report: tables, charts and words, before they become HTML."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burn.report import ablations, paper
from burn.report.charts import Chart, Dot, Line, curves, dots, scatter, small, strip
from burn.report.gather import (
    Confusion,
    Gathered,
    Group,
    Run,
    dig,
    finite,
    number,
    settings_of,
    short_path,
    words,
)
from burn.report.networks import PROTOCOLS, Network, Number, Verdict
from burn.report.tables import number_name
from burn.results import Result

DASH = "—"
_KINDS = {
    "random": "random weights", "float": "float", "half": "binary activations",
    "binary": "binary",
}  # fmt: skip
_MOST_IN_LADDER = 16
_MOST_CLASSES_IN_TABLE = 20


@dataclass(frozen=True)
class Cell:
    """Of a table: text, what it is sorted by, a style, a smaller line below."""

    text: str
    key: float | str | None = None
    style: str = ""
    small: str = ""


@dataclass(frozen=True)
class Table:
    """Columns are names; those in `numbers`, by position, stand at the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Rung:
    """A network in the ladder of the first screen: its values in %, and which it is."""

    name: str
    colour: str
    what: str
    first: float | None
    second: float | None
    mine: bool


@dataclass(frozen=True)
class Tile:
    """A number of the first screen."""

    value: str
    unit: str
    name: str
    small: str = ""


# Words


def percent(value: float, digits: int = 1) -> str:
    """48.7"""
    return f"{value:.{digits}f}"


def signed(value: float) -> str:
    """+1.2 or −1.2, and 0.0 without a sign."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else '−'}{text}"


def duration(seconds: float | None) -> str:
    """As people say it: 6.9 min."""
    if seconds is None:
        return DASH
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Of a file."""
    for unit, power in (("MB", 1e6), ("kB", 1e3)):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.0f} bytes"


def colour_of(network: Network) -> str:
    """BURN's own, others' without labels, those that learned from labels, and references."""
    if network.kind in ("random", "float"):
        return "grey"
    if network.method.startswith("supervised"):
        return "pale"
    return "burn" if network.method in ("burn", "") else "blue"


# First screen


def lede(answer: Verdict) -> str:
    """The answer in a sentence or two."""
    network = answer.network
    if network is None or answer.measure is None:
        return (
            "Nothing here was judged yet, so there is no accuracy to show. "
            "burn evaluate knn RUN --train … --test … --out DIR measures one."
        )
    own = network.find(*answer.measure, answer.on)
    assert own is not None
    what = {
        "binary": "The binary network",
        "half": "The network with binary activations",
        "float": "The float network",
        "random": "The network with random weights",
    }[network.kind]
    said = f"{what} {network.name} reaches {percent(own.mean)} % ({own.label})"
    lowest = answer.floor.find(*answer.measure, answer.on) if answer.floor else None
    highest = answer.teacher.find(*answer.measure, answer.on) if answer.teacher else None
    if lowest is None and network.kind != "random":
        said += (
            ". How much of that is learning cannot be told: no random-weights floor was given, "
            "which burn evaluate … --random-init measures"
        )
    if lowest is not None:
        said += f", where random weights give {percent(lowest.mean)} %"
    if highest is not None:
        join = " and " if lowest is not None else "; "
        name = "its float teacher" if network.run and _taught(network.run) else "the float network"
        said += f"{join}{name} {percent(highest.mean)} %"
    return f"{said}."


def _taught(run: Run) -> bool:
    return isinstance(dig(run.about, "teacher"), Mapping)


def way(answer: Verdict) -> float | None:
    """How far from random weights to the teacher, in percent; None where that means nothing."""
    if answer.network is None or answer.measure is None:
        return None
    each = [
        n.find(*answer.measure, answer.on) if n else None
        for n in (answer.floor, answer.network, answer.teacher)
    ]
    if any(n is None for n in each):
        return None
    low, own, high = (n.mean for n in each if n is not None)
    return 100 * (own - low) / (high - low) if high - low >= 1 else None


def tiles(answer: Verdict, gathered: Gathered) -> list[Tile]:
    """The few numbers that matter."""
    found: list[Tile] = []
    network = answer.network
    if network is not None and answer.measure is not None:
        for protocol, metric in dict.fromkeys([answer.measure, ("linear", "top1")]):
            n = network.find(protocol, metric, answer.on)
            if n is not None:
                spread = "" if n.spread is None else f"± {percent(n.spread)}"
                seeds = f"{len(n.results)} seeds" if len(n.results) > 1 else ""
                small_print = ", ".join(part for part in (spread, seeds) if part)
                found.append(Tile(percent(n.mean), "%", number_name(protocol, metric), small_print))
    elif gathered.runs:
        for run in gathered.runs[:1]:
            knn = number(run.stages[-1].meta, "monitor", "knn") if run.stages else None
            if knn is not None:
                found.append(Tile(percent(100 * knn), "%", "kNN while training", "few images"))
    share = way(answer)
    if share is not None:
        found.append(Tile(f"{share:.0f}", "%", "of the way from random weights to the teacher"))
    run = network.run if network else gathered.runs[0] if gathered.runs else None
    for _, _, packed in _packs(gathered)[:1]:
        if (count := packed.get("bytes")) is not None:
            value, _, unit = size(count).partition(" ")
            ratio = packed.get("float32_bytes", 0) / count if count else 0
            found.append(
                Tile(value, unit, "packed file", f"1/{ratio:.1f} of float32" if ratio else "")
            )
        if (ms := packed.get("milliseconds")) is not None:
            found.append(Tile(f"{ms:.3g}", "ms", "an image, one thread"))
    if run is not None and run.seconds is not None and run.finished:
        value, _, unit = duration(run.seconds).partition(" ")
        seen = f"{run.images_seen:,} images seen" if run.images_seen else ""
        found.append(Tile(value, unit, "of training", seen))
    return found


def ladder(answer: Verdict, found: Sequence[Network], groups: Sequence[Group]) -> list[Rung]:
    """Networks that were judged on the same images, the best at the top.

    Of an ablation only where the answer is of it, of another comparison than the answer's none.
    """
    hidden = {group.folder for group in groups if group.ablation}
    if answer.network is not None and answer.network.group is not None:
        hidden = {group.folder for group in groups} - {answer.network.group}
    if answer.network is None or answer.measure is None:
        return []
    protocol, metric = answer.measure
    rungs: list[Rung] = []
    known: set[object] = set()  # a run may stand for several variants of an ablation
    for network in found:
        first = network.find(protocol, metric, answer.on)
        if first is None or network.group in hidden:
            continue
        second = network.find("linear", "top1", answer.on) if protocol != "linear" else None
        what = _KINDS[network.kind] if network.kind in ("float", "half") else ""
        rung = Rung(
            network.name, colour_of(network), what, first.mean,
            second.mean if second else None, network is answer.network,
        )  # fmt: skip
        place = ("random", first.mean) if network.kind == "random" else network.checkpoint
        if place not in known or network is answer.network:
            rungs.append(rung)
        known.add(place)
    rungs.sort(key=lambda r: -(r.first or 0))
    if len(rungs) > _MOST_IN_LADDER:
        keep = {answer.network.name} | {n.name for n in (answer.floor, answer.teacher) if n}
        others = [r for r in rungs if r.name not in keep][: _MOST_IN_LADDER - len(keep)]
        rungs = [r for r in rungs if r.name in keep or r in others]
    return rungs if len(rungs) > 1 else []


def alarms(gathered: Gathered) -> list[tuple[str, str, str]]:
    """(what collapsed, in which runs, what that means), of target and features."""
    targets, features = [], []
    for run in gathered.runs:
        for stage in run.stages:
            for step, where in (
                (stage.collapsed_at, targets), (stage.features_collapsed_at, features)
            ):  # fmt: skip
                if step is not None:
                    where.append(f"{run.name} (stage {stage.number}, step {step:,})")
    found = []
    if targets:
        meaning = "From there on it told few images apart, and the KL term taught next to nothing."
        found.append(("Collapsed target", ", ".join(targets), meaning))
    if features:
        meaning = "From there on the network hardly told images apart."
        found.append(("Collapsed features", ", ".join(features), meaning))
    return found


def cautions(gathered: Gathered) -> list[tuple[str, str]]:
    """(name of the run, what else a reader should know)."""
    found = []
    for run in gathered.runs:
        if not run.finished:
            done = sum(stage.finished for stage in run.stages)
            steps = run.stages[-1].steps if run.stages else None
            at = f", at step {steps:,} of the next" if steps and done < len(run.stages) else ""
            found.append(
                (run.name, f"not trained to its end: {done} of {run.num_stages} stages{at}.")
            )
        bad = sum(int(number(s.meta, "monitor", "unreadable_images") or 0) for s in run.stages)
        if bad:
            found.append((run.name, f"{bad:,} images could not be read and were left out."))
    return found


# What was trained


def facts(run: Run) -> list[tuple[str, str, str]]:
    """(what, value, smaller print) of a run."""
    recipe, last = run.recipe, run.stages[-1].meta if run.stages else {}
    machine = next((dig(s.meta, "machine") for s in reversed(run.stages) if s.meta), None)
    machine = machine if isinstance(machine, Mapping) else {}
    views, optim = dig(recipe, "views"), dig(recipe, "optim")
    pixels, width = number(views, "size"), number(recipe, "backbone", "width")
    network = words(recipe, "backbone", "name") or DASH
    if width not in (None, 1.0):
        network += f", {width:g} × its width"
    count = f"{run.images:,} images" if run.images is not None else ""
    told = dig(run.about, "teacher")
    teacher, teacher_small = "none", ""
    if isinstance(told, Mapping):
        teacher = short_path(words(told, "spec")) or DASH
        parts = [words(told, "architecture"), words(told, "sha256")[:12]]
        teacher_small = ", SHA-256 ".join(part for part in parts if part)
    seen, epochs = run.images_seen, ""
    if seen is not None and run.images:
        epochs = f"{seen / run.images:.3g} epochs in all stages"
    seed = number(run.about, "plan", "seed")
    method = [f"method {run.method}"] if run.method else []
    method += [f"seed {seed:.0f}"] if seed is not None else []
    batch, lr = number(recipe, "batch_size"), number(optim, "lr")
    optimizer = words(optim, "name")
    commit = words(machine, "commit")
    versions = [f"burn {words(last, 'burn') or words(run.about, 'burn')}".strip()]
    torch = words(machine, "torch") or words(last, "torch") or words(run.about, "torch")
    versions += [f"torch {torch}"] if torch else []
    hardware = words(machine, "processor")
    device = words(machine, "device")
    counts = [
        f"{value:g} {one if value == 1 else many}"
        for one, many in (("core", "cores"), ("thread", "threads"), ("process", "processes"))
        if (value := number(machine, many)) is not None
    ]
    return [
        ("recipe", run.recipe_name or DASH, ", ".join(method)),
        ("network", network, f"{pixels:g} × {pixels:g} pixels" if pixels else ""),
        ("learned from", short_path(words(run.about, "data", "name")) or DASH, count),
        ("teacher", teacher, teacher_small),
        (
            "optimizer",
            f"{optimizer}, learning rate {lr:g}" if lr is not None else optimizer or DASH,
            f"batch {batch:g}" if batch else "",
        ),
        ("images seen", f"{seen:,}" if seen is not None else DASH, epochs),
        ("training time", duration(run.seconds), ""),
        ("hardware", hardware or "not recorded",
         ", ".join([device, *counts] if device else counts)),
        ("software", ", ".join(versions), f"commit {commit}" if commit else "commit not recorded"),
    ]  # fmt: skip


def stage_table(run: Run) -> Table:
    """A row a stage."""
    rows = []
    for stage in run.stages:
        knn = number(stage.meta, "monitor", "knn")
        speed = number(stage.meta, "monitor", "images_per_second")
        steps, seconds = stage.steps, number(stage.meta, "monitor", "seconds")
        state = "" if stage.finished else "under way, or stopped"
        if stage.collapsed_at is not None:
            state = f"target collapsed at step {stage.collapsed_at:,}"
        elif stage.features_collapsed_at is not None:
            state = f"features collapsed at step {stage.features_collapsed_at:,}"
        rows.append(
            [
                Cell(str(stage.number), stage.number, small=state,
                     style="bad" if stage.collapsed else ""),
                Cell(stage.precision or DASH),
                Cell(f"{steps:,}" if steps is not None else DASH, steps),
                Cell(duration(seconds), seconds),
                Cell(f"{speed:,.0f}" if speed is not None else DASH, speed),
                Cell(percent(100 * knn) if knn is not None else DASH, knn),
            ]
        )  # fmt: skip
    return Table(
        "Stages", ("stage", "precision", "steps", "time", "images/s", "kNN while training, %"),
        rows, frozenset({2, 3, 4, 5}),
    )  # fmt: skip


def runs_table(runs: Sequence[Run]) -> Table:
    """A row a run."""
    rows = []
    for run in runs:
        speed = [
            s for stage in run.stages
            if (s := number(stage.meta, "monitor", "images_per_second")) is not None
        ]  # fmt: skip
        state, style = ("done", "") if run.finished else ("not finished", "warn")
        if any(s.collapsed for s in run.stages):
            state, style = "collapsed", "bad"
        seen = run.images_seen
        rows.append(
            [
                Cell(run.name, small=run.recipe_name),
                Cell(short_path(words(run.about, "data", "name")) or DASH),
                Cell(short_path(words(run.about, "teacher", "spec")) or DASH),
                Cell(f"{seen:,}" if seen is not None else DASH, seen),
                Cell(duration(run.seconds), run.seconds),
                Cell(f"{statistics.fmean(speed):,.0f}" if speed else DASH,
                     statistics.fmean(speed) if speed else None),
                Cell(state, style=style),
            ]
        )  # fmt: skip
    return Table(
        "Runs",
        ("run", "learned from", "teacher", "images seen", "training", "images/s", "state"),
        rows, frozenset({3, 4, 5}),
    )  # fmt: skip


def settings_list(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of a recipe, as `--name value`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from settings_list(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name.replace("_", "-"), _setting(value)


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_setting(v) for v in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


# Results


def result_tables(found: Sequence[Network]) -> list[Table]:
    """A table for each pair of data sets and family of protocols: networks and their numbers."""
    pairs: dict[tuple[str, str], None] = {}
    for network in found:
        for n in network.numbers:
            pairs[n.train, n.test] = None
    tables = []
    for train, test in pairs:
        for family in (PROTOCOLS[:4], ("svm",), ("detection",)):
            mine = [
                (network, n)
                for network in found
                for n in network.numbers
                if (n.train, n.test) == (train, test) and n.protocol in family
            ]
            if mine:
                tables.append(_pivot(mine, train, test))
    return tables


def _pivot(mine: Sequence[tuple[Network, Number]], train: str, test: str) -> Table:
    order = {protocol: place for place, protocol in enumerate(PROTOCOLS)}
    labels = sorted(
        dict.fromkeys((order[n.protocol], n.label) for _, n in mine), key=lambda pair: pair[0]
    )
    names = list(dict.fromkeys(network.name for network, _ in mine))
    best = {label: max(n.mean for network, n in mine if n.label == label) for _, label in labels}
    rows = []
    for name in names:
        cells = {n.label: n for network, n in mine if network.name == name}
        network = next(network for network, _ in mine if network.name == name)
        row = [Cell(name, small=_KINDS[network.kind])]
        for _, label in labels:
            n = cells.get(label)
            if n is None:
                row.append(Cell(DASH))
                continue
            spread = f"± {percent(n.spread)}" if n.spread is not None else ""
            seeds = f" · {len(n.results)} seeds" if len(n.results) > 1 else ""
            top = n.mean == best[label] and sum(m.label == label for _, m in mine) > 2
            row.append(Cell(percent(n.mean), n.mean, "best" if top else "", spread + seeds))
        rows.append(row)
    rows.sort(key=lambda row: -max((c.key for c in row[1:2] if isinstance(c.key, float)),
                                   default=0.0))  # fmt: skip
    title = f"Learned on {short_path(train)}, judged on {short_path(test)}"
    if train == test:
        title = f"Learned and judged on {short_path(train)}"
    return Table(
        title, ("network", *(label for _, label in labels)), rows,
        frozenset(range(1, len(labels) + 1)), "In percent. " + _how([n for _, n in mine]),
    )  # fmt: skip


def _how(numbers: Sequence[Number]) -> str:
    """The settings that all results of each protocol share, in words."""
    said = []
    for protocol in dict.fromkeys(n.protocol for n in numbers):
        settings = [settings_of(r) for n in numbers if n.protocol == protocol for r in n.results]
        shared = {
            name: value for name, value in settings[0].items()
            if all(s.get(name) == value for s in settings) and value is not None
            and not isinstance(value, Mapping)
        }  # fmt: skip
        parts = [f"{name.replace('_', ' ')} {_setting(value)}" for name, value in shared.items()]
        if parts:
            said.append(f"{number_name(protocol, '').strip()}: {', '.join(parts)}.")
    return " ".join(said)


# Beside the paper


@dataclass(frozen=True)
class Beside:
    """Networks beside the paper.

    training: what differs for all of them; own: (network, what differs for it alone); judging:
    (numbers, what differs in how they were judged).
    """

    training: tuple[str, ...]
    own: tuple[tuple[str, str], ...]
    judging: tuple[tuple[str, tuple[str, ...]], ...]
    table: Table


def beside_paper(
    found: Sequence[Network], answer: Verdict, groups: Sequence[Group]
) -> Beside | None:
    """What the paper has for the same protocols, the difference, and what is not alike.

    Networks with random weights and float ones have no row there, and an ablation's stand in its
    own tables. None where no network has a row.
    """
    varied = {group.folder for group in groups if group.ablation}
    compared: list[tuple[Network, Number, paper.Figure | None, paper.Figure | None]] = []
    training: dict[str, list[str]] = {}
    for network in found:
        if network.kind != "binary" or network.group in varied:
            continue
        base = _base(network)
        method = paper.OF_RECIPE.get(network.method, "")
        for n in network.numbers:
            settings = n.results[-1].settings
            burn = paper.paper_figure(n.protocol, n.metric, settings, "burn", base)
            own = None
            if method and method != "burn":
                own = paper.paper_figure(
                    n.protocol, n.metric, settings, method, base
                ) or paper.paper_figure(n.protocol, n.metric, settings, method, "imagenet100")
            if burn or (n.protocol == "knn" and network is answer.network):
                compared.append((network, n, burn, own))
                training[network.name] = _marks(network.run, base)
    if not compared:
        return None
    same = _shared(list(training.values()))
    rest = [(name, [m for m in marks if m not in same]) for name, marks in training.items()]
    rivals = any(own for _, _, _, own in compared)
    columns = ["network", "number", "here", "paper: BURN", "difference"]
    if rivals:
        columns += ["paper: same method", "difference"]
    columns += ["table"]
    judging: dict[tuple[str, ...], dict[str, None]] = {}
    rows = []
    for network, n, burn, own in compared:
        marks = _judging_marks(n, burn)
        if marks:
            judging.setdefault(tuple(marks), {})[n.label] = None
        alike = not training[network.name] and not marks
        row = _paper_row(network, n, burn, own, _base(network), alike=alike)
        rows.append(row if rivals else row[:5] + row[7:])
    table = Table("Here and in the paper", columns, rows,
                  frozenset(range(2, len(columns) - 1)))  # fmt: skip
    return Beside(
        tuple(same),
        tuple((name, "; ".join(marks)) for name, marks in rest if marks),
        tuple((", ".join(labels), marks) for marks, labels in judging.items()),
        table,
    )


def _base(network: Network) -> str:
    """The data set of the paper whose tables a network belongs beside."""
    recipe = network.run.recipe_name if network.run else ""
    return "imagenet100" if "imagenet100" in recipe else "imagenet"


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    """What is in all of them, in the order of the first."""
    return [item for item in lists[0] if all(item in other for other in lists)] if lists else []


def _paper_row(
    network: Network, n: Number, burn: paper.Figure | None, own: paper.Figure | None, base: str,
    *, alike: bool,
) -> list[Cell]:  # fmt: skip
    """alike: whether the difference is one of the same experiment."""

    def against(figure: paper.Figure | None) -> tuple[Cell, Cell]:
        if figure is None:
            return Cell(DASH), Cell(DASH)
        spread = f"± {figure.std:g}" if figure.std is not None else ""
        other = paper.NAMES[figure.pretrained_on] if figure.pretrained_on != base else ""
        small_print = " · ".join(part for part in (spread, other) if part)
        gap = n.mean - figure.value
        style = ("good" if gap >= 0 else "bad") if alike else "unlike"
        return (
            Cell(f"{figure.value:g}", figure.value, small=small_print),
            Cell(signed(gap), gap, style),
        )

    spread = f"± {percent(n.spread)}" if n.spread is not None else ""
    tables = dict.fromkeys(str(f.number) for f in (burn, own) if f)
    return [
        Cell(network.name),
        Cell(n.label),
        Cell(percent(n.mean), n.mean, small=spread),
        *against(burn),
        *against(own),
        Cell(", ".join(tables) or DASH),
    ]


def _marks(run: Run | None, base: str) -> list[str]:
    """How a pretraining differs from the paper's, in plain words."""
    if run is None:
        return ["its pretraining was not given: name its run folder too"]
    marks = []
    data = short_path(words(run.about, "data", "name"))
    images, wanted = run.images, paper.IMAGES[base]
    if images is None or abs(images - wanted) > 0.02 * wanted:
        count = f", {images:,} images" if images is not None else ""
        marks.append(
            f"other data (yours: {data or 'unknown'}{count}; paper: {paper.NAMES[base]}, "
            f"{wanted:,})"
        )
    seen = run.images_seen
    budget = paper.EPOCHS * wanted * 2  # two stages
    if seen is not None and seen < 0.95 * budget:
        share = 100 * seen / budget
        marks.append(f"{share:.2g} % of the paper's images seen ({seen:,})")
    width, pixels = number(run.recipe, "backbone", "width"), number(run.recipe, "views", "size")
    if width not in (None, 1.0):
        marks.append(f"{width:g} × the network's width")
    if pixels not in (None, 224.0):
        marks.append(f"images of {pixels:g} pixels (paper: 224)")
    classifier = words(run.recipe, "burn", "classifier")
    if run.method == "burn" and classifier not in ("", "joint"):
        marks.append(f"classifier {classifier} (paper: joint)")
    architecture = words(run.about, "teacher", "architecture")
    if architecture and architecture != "resnet50" and run.method in ("burn", "s2bnn"):
        marks.append(f"teacher {architecture} (paper: resnet50)")
    return marks


_PAPERS_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"lr": 30.0, "epochs": 100, "augment": "crop", "probe": "strict"},
    "semi": {"select": "test", "epochs": 20},
    "detection": {"iterations": 24_000, "batch_size": 16, "test_side": 800},
}
_TOLD = {
    "lr": "learning rate", "augment": "augmentation", "probe": "probe", "epochs": "epochs",
    "select": "chosen by", "iterations": "iterations", "batch_size": "batch",
    "test_side": "short side",
}  # fmt: skip


def _judging_marks(n: Number, figure: paper.Figure | None) -> list[str]:
    if figure is None:
        return []
    marks = []
    wanted = figure.dataset.replace("+", "")
    spoken = n.test.lower().replace("-", "").replace("_", "")
    stem = {"voc0712": "voc", "voc07": "voc", "cub200": "cub"}.get(wanted, wanted)
    if stem not in spoken or (wanted == "imagenet" and "imagenet100" in spoken):
        marks.append(
            f"other images (yours: {short_path(n.test)}; paper: {paper.NAMES[figure.dataset]})"
        )
    settings = n.results[-1].settings
    for name, theirs in _PAPERS_SETTINGS.get(n.protocol, {}).items():
        ours = settings.get(name, theirs)
        if ours != theirs:
            marks.append(f"{_TOLD[name]} {_setting(ours)} (paper: {_setting(theirs)})")
    return marks


# Comparisons and ablations


def of_group(group: Group, found: Sequence[Network]) -> list[Network]:
    """Its networks, the best by kNN first."""
    mine = [network for network in found if network.group == group.folder]
    return sorted(mine, key=lambda n: -_mean(n, "knn"))


def _mean(network: Network, protocol: str) -> float:
    n = network.find(protocol, "top1")
    return n.mean if n else -1.0


def training_seconds(network: Network) -> float | None:
    """The mean over seeds, as the results tell it."""
    told = [
        s
        for n in network.numbers[:1]
        for r in n.results
        if (s := number(r.settings, "pretraining", "seconds")) is not None
    ]
    return statistics.fmean(told) if told else None


def comparison_table(mine: Sequence[Network]) -> Table:
    """A row a network: means and spreads over seeds."""
    rows = []
    for network in mine:
        row = [Cell(network.name, style=colour_of(network))]
        for protocol, metric in (("knn", "top1"), ("linear", "top1"), ("linear", "top5")):
            n = network.find(protocol, metric)
            spread = f"± {percent(n.spread)}" if n and n.spread is not None else ""
            row.append(Cell(percent(n.mean), n.mean, small=spread) if n else Cell(DASH))
        seconds = training_seconds(network)
        trained = seconds is not None
        epochs = _told(network, "epochs")
        seeds = max(len(n.results) for n in network.numbers)
        row += [
            Cell(str(seeds) if trained else "", seeds if trained else None),
            Cell(f"{epochs:g}" if epochs is not None else "", epochs),
            Cell(duration(seconds) if trained else "", seconds),
        ]
        rows.append(row)
    return Table(
        "Every network",
        ("network", "kNN top-1, %", "linear top-1, %", "linear top-5, %", "seeds", "epochs",
         "training"),
        rows, frozenset(range(1, 7)),
    )  # fmt: skip


def _told(network: Network, name: str) -> float | None:
    first = network.numbers[0].results[0] if network.numbers else None
    return number(first.settings, "pretraining", name) if first else None


def group_note(group: Group) -> str:
    """What its networks have in common."""
    about = group.about
    budget = number(about, "budget")
    said = []
    if budget is not None:
        said.append(f"Each saw {budget:,.0f} images in all its stages")
    if data := words(about, "data"):
        said.append(f"learned from {short_path(data)}")
    if test := words(about, "test"):
        said.append(f"judged on {short_path(test)}")
    linear = dig(about, "linear")
    if isinstance(linear, Mapping):
        parts = [
            f"{word} {_setting(linear[name])}"
            for name, word in (("lr", "learning rate"), ("epochs", "epochs"),
                               ("augment", "augmentation"))
            if name in linear
        ]  # fmt: skip
        said.append(f"linear evaluation with {', '.join(parts)}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}. ± is the standard deviation over seeds." if text else ""


def comparison_charts(mine: Sequence[Network], key: str) -> list[Chart]:
    """kNN, linear, and training time against linear."""
    floor = next((n for n in mine if n.kind == "random"), None)
    charts = []
    for protocol, title in (("knn", "kNN top-1, %"), ("linear", "Linear top-1, %")):
        able = [(n, number_) for n in mine if (number_ := n.find(protocol, "top1"))]
        able.sort(key=lambda pair: -pair[1].mean)
        lowest = floor.find(protocol, "top1") if floor else None
        rows = [Dot(n.name, colour_of(n), n_.values) for n, n_ in able]
        note = "lines begin at random weights" if lowest else ""
        charts.append(dots(title, rows, f"{key}{protocol}", lowest.mean if lowest else None, note))
    points = [
        (n.name, colour_of(n), seconds / 60, linear.mean)
        for n in mine
        if (seconds := training_seconds(n)) is not None and (linear := n.find("linear", "top1"))
    ]
    charts.append(
        scatter("Training time against linear accuracy", points, f"{key}time",
                "minutes of training", "linear top-1, %")
    )  # fmt: skip
    return [chart for chart in charts if chart]


@dataclass(frozen=True)
class Small:
    """One of many small curves."""

    name: str
    svg: str
    first: str
    last: str
    state: str


def small_multiples(runs: Sequence[Run], key: str) -> list[Small]:
    """The loss of every run, each on its own scale."""
    found = []
    for place, run in enumerate(runs):
        points = joined(run, "loss")
        if not points:
            continue
        state = "" if run.finished else "not finished"
        if any(s.collapsed for s in run.stages):
            state = "collapsed"
        colour = "burn" if run.method == "burn" else (
            "pale" if run.method.startswith("supervised") else "blue"
        )  # fmt: skip
        svg = small(points, colour, f"{key}{place}")
        found.append(Small(run.name, svg, f"{points[0][1]:.3g}", f"{points[-1][1]:.3g}", state))
    return found


def ablation_parts(
    about: Group, mine: Sequence[Network], key: str
) -> tuple[list[Chart], list[Table]]:
    """Of an ablation's folder: a chart and a table for each group with two variants or more.

    A run may stand for several variants, as what the recipe does anyway is one of every group.
    """
    names = {network.name: network for network in mine}
    variants = [row.variant for group in ablations.GROUPS for row in group.rows]
    by_name = {
        variant: network
        for variant in variants
        if (network := names.get(words(about.about, "runs", variant)) or names.get(variant))
    }
    floor = next((n for n in mine if n.kind == "random"), None)
    lowest = floor.find("linear", "top1") if floor else None
    charts, tables = [], []
    for group in ablations.GROUPS:
        rows = [(row, by_name[row.variant]) for row in group.rows if row.variant in by_name]
        if len(rows) < 2:
            continue
        able = [(row, n) for row, network in rows if (n := network.find("linear", "top1"))]
        bars = [Dot(row.label, "burn", n.values) for row, n in able]
        note = "linear top-1, %" + ("; lines begin at random weights" if lowest else "")
        charts.append(
            dots(group.title, bars, f"{key}{group.name}", lowest.mean if lowest else None, note,
                 above=True)
        )  # fmt: skip
        tables.append(_ablation_table(group, rows))
    return [chart for chart in charts if chart], tables


def _ablation_table(group: ablations.Group, rows: Sequence[tuple[ablations.Row, Network]]) -> Table:
    told = any(row.paper for row, _ in rows)
    cells = []
    for row, network in rows:
        collapsed = _collapsed(network)
        line = [Cell(row.label, small=collapsed, style="bad" if collapsed else "")]
        for protocol in ("knn", "linear"):
            n = network.find(protocol, "top1")
            spread = f"± {percent(n.spread)}" if n and n.spread is not None else ""
            line.append(Cell(percent(n.mean), n.mean, small=spread) if n else Cell(DASH))
        seeds = max((len(n.results) for n in network.numbers), default=0)
        seconds = training_seconds(network)
        line += [Cell(str(seeds), seeds), Cell(duration(seconds), seconds)]
        if told:
            figure = paper.ablation_figure(*row.paper) if row.paper else None
            small_print = f"Table {figure.number}" if figure else ""
            line.append(
                Cell(f"{figure.value:g}", figure.value, small=small_print) if figure else Cell(DASH)
            )
        cells.append(line)
    columns = ["variant", "kNN top-1, %", "linear top-1, %", "seeds", "training"]
    if told:
        columns.append("paper: linear, ImageNet")
    return Table(group.title, columns, cells, frozenset(range(1, len(columns))))


def _collapsed(network: Network) -> str:
    """In how many of its runs the target collapsed, if in any."""
    runs = {
        (r.checkpoint, r.seed): bool(dig(r.settings, "pretraining", "collapsed_stages"))
        for n in network.numbers
        for r in n.results
    }
    count = sum(runs.values())
    return f"target collapsed in {count} of {len(runs)} runs" if count else ""


# Curves


def joined(run: Run, name: str) -> list[tuple[float, float]]:
    """A column of the monitors, stages one after the other."""
    points: list[tuple[float, float]] = []
    for stage, start in zip(run.stages, _starts(run), strict=True):
        points += [(start + step, value) for step, value in stage.metrics.points(name)]
    return points


def _starts(run: Run) -> list[float]:
    starts, at = [], 0.0
    for stage in run.stages:
        starts.append(at)
        last = stage.metrics.rows[-1]["step"] if stage.metrics.rows else 0
        at += stage.steps or last
    return starts


_RANK_ALARM = 3.0  # burn.training.monitor's, which needs torch
_LOSSES = (
    ("loss", "whole loss", "ink"), ("kl", "KL divergence", "grey"),
    ("feature_similarity", "feature similarity", "burn"),
    ("distillation", "distillation", "violet"), ("contrastive", "contrastive", "blue"),
)  # fmt: skip


def curve_charts(run: Run, key: str) -> list[Chart]:
    """All that the monitors of a run tell."""
    borders = _starts(run)[1:]
    end = _starts(run)[-1] + (run.stages[-1].steps or 0) if run.stages else 0
    columns = {name for s in run.stages for row in s.metrics.rows for name in row}

    def lines(*wanted: tuple[str, str, str]) -> list[Line]:
        return [Line(label, colour, joined(run, name)) for name, label, colour in wanted
                if name in columns]  # fmt: skip

    losses = lines(*_LOSSES)
    if len(losses) == 2 and losses[0].points == losses[1].points:
        losses = losses[1:]
    positive = all(value > 0 for line in losses for _, value in line.points)
    spread = [v for line in losses for _, v in line.points if v > 0]
    log = positive and bool(spread) and max(spread) > 8 * min(spread)
    charts = [
        curves("Losses", losses, f"{key}loss", log=log, stages=borders, end=end,
               note="logarithmic scale" if log else ""),
        curves("Balance λ", lines(("lambda", "λ", "blue")), f"{key}lam", stages=borders, end=end,
               note="share of the feature similarity in the loss"),
        curves("Does the target tell images apart?",
               lines(("target_entropy", "entropy of the mean", "burn"),
                     ("target_mean_entropy", "mean entropy", "grey")),
               f"{key}target", alarm=0.5, bottom=0, top=1.03, stages=borders, end=end,
               note="share of log C; below the line the target has collapsed"),
        curves("Effective rank of the features",
               lines(("effective_rank", "effective rank", "blue")), f"{key}rank",
               stages=borders, end=end, bottom=0, note="how many dimensions they use"),
        curves("Directions in which images differ",
               lines(("feature_rank", "rank", "burn")), f"{key}frank", alarm=_RANK_ALARM,
               stages=borders, end=end, bottom=0,
               note="rank of the features less their mean; below the line they have collapsed"),
        curves("Spread of the features", lines(("feature_std", "standard deviation", "blue")),
               f"{key}std", stages=borders, end=end, bottom=0,
               note="standard deviation, mean over dimensions"),
        curves("Spread of their directions", lines(("feature_spread", "spread", "blue")),
               f"{key}fspread", stages=borders, end=end, bottom=0,
               note="of features of length 1, from their mean"),
        curves("kNN while training", lines(("knn", "kNN", "burn")), f"{key}knn", percent=True,
               stages=borders, end=end, note="on a few held-out images"),
        curves("Accuracy while training", lines(("accuracy", "accuracy", "pale")), f"{key}acc",
               percent=True, stages=borders, end=end, note="on augmented training images"),
        curves("Learning rate", lines(("learning_rate", "learning rate", "grey")), f"{key}lr",
               stages=borders, end=end),
        _gradients(run, key, borders, end),
        curves("Weights that change sign", lines(("weight_flips", "flips", "burn")), f"{key}flips",
               percent=_is_share(joined(run, "weight_flips")), stages=borders, end=end),
        *_layers(run, key),
        curves("Images a second", lines(("images_per_second", "images/s", "green")),
               f"{key}speed", stages=borders, end=end, bottom=0),
        curves("Memory", lines(("memory", "memory", "violet")), f"{key}memory", stages=borders,
               end=end, bottom=0, note="MB"),
    ]  # fmt: skip
    return [chart for chart in charts if chart]


def _is_share(points: Sequence[tuple[float, float]]) -> bool:
    return bool(points) and all(0 <= value <= 1 for _, value in points)


def _gradients(run: Run, key: str, borders: Sequence[float], end: float) -> Chart | None:
    parts: dict[str, list[tuple[float, float]]] = {}
    for stage, start in zip(run.stages, _starts(run), strict=True):
        for row in stage.gradients.rows:
            if row.get("norm", 0) > 0:
                parts.setdefault(row["part"], []).append((start + row["step"], row["norm"]))
    roles = ("burn", "blue", "grey", "violet", "green", "teal", "ink")
    lines = [
        Line(name, roles[i % len(roles)], points, dashed=i >= len(roles))
        for i, (name, points) in enumerate(list(parts.items())[:14])
    ]
    return curves("Size of the gradients, by part", lines, f"{key}grad", log=True,
                  stages=borders, end=end, note="norm, logarithmic scale")  # fmt: skip


_LAYER_COLUMNS = (
    ("weight_flips", "Weights that change sign, by layer", "burn"),
    ("dead_channels", "Dead channels, by layer", "alarm"),
    ("weight_balance", "Weights that are +1, by layer", "blue"),
    ("activation_balance", "Activations that are +1, by layer", "teal"),
)


def _layers(run: Run, key: str) -> list[Chart | None]:
    rows = [
        (row, start)
        for stage, start in zip(run.stages, _starts(run), strict=True)
        for row in stage.layers.rows
    ]
    names = list(dict.fromkeys(row["layer"] for row, _ in rows))[:60]
    steps = sorted({start + row["step"] for row, start in rows})
    if len(steps) > 80:
        steps = steps[:: -(-len(steps) // 80)]
    charts: list[Chart | None] = []
    for name, title, colour in _LAYER_COLUMNS:
        values = {
            (row["layer"], start + row["step"]): row[name]
            for row, start in rows
            if name in row and row["layer"] in names and start + row["step"] in steps
        }
        if not values:
            continue
        even = "balance" in name
        low, high = 0.0, 1.0 if even else max(values.values())
        note = f"from 0, pale, to {100 * high:.2g} %, full" + ("; half is even" if even else "")
        charts.append(
            strip(title, names, steps, values, f"{key}{name}", low=low, high=high, colour=colour,
                  note=note)
        )  # fmt: skip
    return charts


# Confusion


@dataclass(frozen=True)
class ConfusionView:
    """A confusion matrix as a table of shares or, of many classes, as a picture.

    rows: true class, its accuracy, its images, and (count, share in percent) for each class that
    was predicted.
    """

    title: str
    accuracy: str
    classes: Sequence[str]
    rows: Sequence[tuple[str, str, int, Sequence[tuple[int, float]]]]
    chart: Chart | None
    worst: Table


def confusion_view(confusion: Confusion, key: str) -> ConfusionView:
    """With the pairs that are most often taken for each other."""
    counts, classes = confusion.counts, confusion.classes
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in range(len(classes)))
    rows = []
    for name, row, place in zip(classes, counts, range(len(classes)), strict=True):
        whole = sum(row)
        shares = [(c, 100 * c / whole if whole else 0.0) for c in row]
        rows.append((name, f"{shares[place][1]:.0f}" if whole else DASH, whole, shares))
    pairs = sorted(
        (
            (counts[i][j], i, j)
            for i in range(len(classes))
            for j in range(len(classes))
            if i != j and counts[i][j]
        ),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    worst = Table(
        "Most often confused", ("true class", "taken for", "images", "of its class, %"),
        [
            [Cell(classes[i]), Cell(classes[j]), Cell(f"{c:,}", c),
             Cell(percent(100 * c / sum(counts[i])), 100 * c / sum(counts[i]))]
            for c, i, j in pairs[:8]
        ],
        frozenset({2, 3}),
    )  # fmt: skip
    chart = None
    if len(classes) > _MOST_CLASSES_IN_TABLE:
        recall = [rows[i][3][i][1] for i in range(len(classes))]
        ordered = sorted(range(len(classes)), key=lambda i: -recall[i])
        chart = dots(
            "Accuracy of each class, %",
            [Dot(classes[i], "burn", [recall[i]]) for i in ordered[:12] + ordered[-12:]]
            if len(ordered) > 24 else [Dot(classes[i], "burn", [recall[i]]) for i in ordered],
            key,
        )  # fmt: skip
    protocol = number_name(confusion.protocol, "").strip()
    names = ", ".join(part for part in (confusion.model, protocol) if part)
    where = f" on {short_path(confusion.test)}" if confusion.test else ""
    accuracy = "no image"
    if total:
        accuracy = f"{percent(100 * right / total)} % of {total:,} images right"
    shown = rows if chart is None else []
    return ConfusionView(f"{names}{where}", accuracy, classes, shown, chart, worst)


# Packed


def _packs(gathered: Gathered) -> list[tuple[str, Result, dict[str, float]]]:
    packs: dict[tuple[str, str], tuple[Result, dict[str, float]]] = {}
    for j in gathered.judgements:
        r = j.result
        if r.protocol == "pack" and finite(r.value) is not None:
            packs.setdefault((r.model, r.checkpoint), (r, {}))[1][r.metric] = r.value
    return [(model, r, numbers) for (model, _), (r, numbers) in packs.items()]


def pack_table(gathered: Gathered) -> Table | None:
    """Size and speed of packed files."""
    packs = _packs(gathered)
    if not packs:
        return None
    metrics = list(dict.fromkeys(metric for _, _, numbers in packs for metric in numbers))
    rows = []
    for model, r, numbers in packs:
        count, whole = numbers.get("bytes"), numbers.get("float32_bytes")
        row = [Cell(model, small=short_path(r.checkpoint))]
        for metric in metrics:
            value = numbers.get(metric)
            if value is None:
                row.append(Cell(DASH))
            elif metric.endswith("bytes"):
                row.append(Cell(size(value), value, small=f"{value:,.0f} bytes"))
            else:
                row.append(Cell(f"{value:.4g}", value))
        ratio = whole / count if count and whole else None
        row.append(Cell(f"1/{ratio:.1f}" if ratio else DASH, ratio))
        rows.append(row)
    told = {
        "bytes": "packed file", "float32_bytes": "as float32", "milliseconds": "ms an image",
        "load_milliseconds": "ms to load", "cosine": "least cosine",
    }  # fmt: skip
    columns = ("network", *(told.get(m, m.replace("_", " ")) for m in metrics), "of float32")
    return Table("Packed for burn-engine", columns, rows, frozenset(range(1, len(columns))))
