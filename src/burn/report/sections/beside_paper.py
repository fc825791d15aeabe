"""Numbers and the paper's, with differences in data, budget, network and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burn.paper import numbers as paper
from burn.report.load.contents import Group, Run
from burn.report.load.datasets import can_be_compared, difference
from burn.report.load.values import dig, number, short_path, words
from burn.report.model import Network, Number, Verdict
from burn.report.render.cells import DASH, Cell, Table, cell, filled, joined, setting, signed

_OTHER_DATA = "other data"
_UNKNOWN = ("its pretraining was not given: name its run folder too",)
_COLUMNS = ("network", "number", "here", "paper, same method", "difference", "table")
_RIGHT_ALIGNED = frozenset(map(_COLUMNS.index, ("here", "paper, same method", "difference")))


@dataclass(frozen=True)
class _Row:
    """A number of a network, and the paper's number of the same method, if it has one."""

    network: Network
    number: Number
    figure: paper.Figure | None


@dataclass(frozen=True)
class BesidePaper:
    """What the page says of the networks' numbers beside the paper's."""

    training: Sequence[str]  # differences in training that all networks share
    differences: Sequence[tuple[str, str]]  # names of networks, and the differences of only these
    evaluating: Sequence[tuple[str, Sequence[str]]]  # numbers, and how their evaluation differs
    table: Table | None  # of the numbers, if any can be compared
    note: str  # on the numbers that cannot be compared, or ""
    foreign: bool  # whether all images are others than the paper's


def beside_paper(
    all_networks: Sequence[Network], answer: Verdict, groups: Sequence[Group]
) -> BesidePaper | None:
    """Compare networks with the paper's numbers of the same method and protocol.

    Networks with random weights and float networks have no row in the table, and those of an
    ablation are in its own tables. The kNN of the answer's network has a row without a number of
    the paper. Numbers whose results do not say on which images they were measured are only listed
    in the note. None is returned if no network has a number to compare.
    """
    varied = {group.folder for group in groups if group.ablation}
    rows: list[_Row] = []
    unknown: dict[str, list[str]] = {}
    for network in all_networks:
        if network.kind != "binary" or network.group in varied:
            continue
        for n in network.numbers:
            figure = _figure(network, n)
            if figure is not None and not can_be_compared(_data(n)):
                unknown.setdefault(network.name, []).append(n.label)
            elif figure or (n.protocol == "knn" and network is answer.network):
                rows.append(_Row(network, n, figure))
    if not rows and not unknown:
        return None
    training = {row.network.name: _marks(row.network.run, _base(row.network)) for row in rows}
    known = [marks for marks in training.values() if marks != _UNKNOWN]
    same = [mark for mark in next(iter(known), ()) if all(mark in marks for marks in known)]
    differing: dict[tuple[str, ...], list[str]] = {}
    for name, marks in training.items():
        differing.setdefault(tuple(mark for mark in marks if mark not in same), []).append(name)
    also = "also " if same else ""
    evaluating: dict[tuple[str, ...], list[str]] = {}
    cells = []
    for row in rows:
        marks = _evaluating_marks(row.number, row.figure)
        if marks:
            labels = evaluating.setdefault(tuple(marks), [])
            if row.number.label not in labels:
                labels.append(row.number.label)
        cells.append(_paper_row(row, alike=not training[row.network.name] and not marks))
    ours = [
        ("; ".join(names), f"{'' if marks == _UNKNOWN else also}{'; '.join(marks)}")
        for marks, names in differing.items()
        if marks
    ]
    table = Table("Here and in the paper", _COLUMNS, cells, _RIGHT_ALIGNED) if cells else None
    return BesidePaper(
        training=same,
        differences=ours,
        evaluating=[(", ".join(labels), marks) for marks, labels in evaluating.items()],
        table=table,
        note=_unknown_note(unknown),
        foreign=bool(rows) and all(_is_foreign(row, training[row.network.name]) for row in rows),
    )


def _is_foreign(row: _Row, marks: Sequence[str]) -> bool:
    other_data = marks == _UNKNOWN or any(mark.startswith(_OTHER_DATA) for mark in marks)
    figure = row.figure
    return other_data and (figure is None or bool(difference(_data(row.number), figure.dataset)))


def _figure(network: Network, n: Number) -> paper.Figure | None:
    """Return the paper's number for the same method, protocol and settings."""
    method = paper.OF_RECIPE.get(_method(network), "")
    settings, base = n.results[-1].settings, _base(network)
    figure = paper.paper_figure(n.protocol, n.metric, settings, method, base)
    if figure is None and method != "burn":  # InfoMin and SimCLR v2: its tables of ImageNet100
        figure = paper.paper_figure(n.protocol, n.metric, settings, method, "imagenet100")
    return figure


def _method(network: Network) -> str:
    """Return the method of the network's run or of its checkpoint's recipe, or "" if unknown."""
    if network.method or network.run:
        return network.method
    # A result without its run tells no method but in the name of its network, which begins with
    # that of the recipe, as in burn_small, stage 2; and a recipe is named after its method.
    words_of_name = network.name.partition(",")[0] + "_"
    methods = sorted((*paper.OF_RECIPE, "supervised_kl"), key=len, reverse=True)
    return next((method for method in methods if words_of_name.startswith(f"{method}_")), "")


def _data(n: Number) -> Any:
    return n.results[-1].data


def _unknown_note(unknown: Mapping[str, Sequence[str]]) -> str:
    if not unknown:
        return ""
    told = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in unknown.items())
    return (
        "Not compared, since their results do not say which classes and how many images they were "
        f"measured on, as those of burn 0.1.0 do not (evaluate again): {told}."
    )


def _base(network: Network) -> str:
    """Return the data set of the paper whose tables a network is compared with."""
    recipe = network.run.recipe_name if network.run else ""
    return "imagenet100" if "imagenet100" in recipe else "imagenet"


def _paper_row(row: _Row, *, alike: bool) -> list[Cell]:
    """Return the cells of a row; `alike` says that no difference to the paper is known."""
    n, figure = row.number, row.figure
    paper_cell, gap_cell = Cell(DASH), Cell(DASH)
    if figure is not None:
        same_base = figure.pretrained_on == _base(row.network)
        other = "" if same_base else paper.NAMES[figure.pretrained_on]
        method, std = paper.METHODS[figure.method], filled("± {:g}", figure.std)
        paper_cell = cell(figure.value, "{:g}", small=joined(method, std, other, by=" · "))
        gap = n.mean - figure.value
        style = ("good" if gap >= 0 else "bad") if alike else "unlike"
        gap_cell = Cell(signed(gap), gap, style)
    return [
        Cell(row.network.name),
        Cell(n.label),
        cell(n.mean, small=n.plus_minus),
        paper_cell,
        gap_cell,
        Cell(str(figure.number) if figure else DASH),
    ]


def _marks(run: Run | None, base: str) -> tuple[str, ...]:
    if run is None:
        return _UNKNOWN
    marks = []
    images, wanted = run.images, paper.IMAGES[base]
    if images is None or abs(images - wanted) > 0.02 * wanted:
        yours = short_path(words(run.about, "data", "name")) or "unknown"
        yours += filled(", {:,} images", images)
        marks.append(f"{_OTHER_DATA} (yours: {yours}; paper: {paper.NAMES[base]}, {wanted:,})")
    seen = run.images_seen
    budget = paper.EPOCHS * wanted * 2  # two stages
    if seen is not None and seen < 0.95 * budget:
        marks.append(f"{100 * seen / budget:.2g} % of the paper's images seen ({seen:,})")

    def unlike(text: str, value: float | str | None, papers: float | str) -> None:
        if value not in (None, "", papers):
            marks.append(text.format(value))

    unlike("{:g} × the network's width", number(run.recipe, "backbone", "width"), 1.0)
    unlike("images of {:g} pixels (paper: 224)", number(run.recipe, "views", "size"), 224.0)
    if run.method == "burn":
        unlike("classifier {} (paper: joint)", words(run.recipe, "burn", "classifier"), "joint")
    if run.method in ("burn", "s2bnn"):
        teacher = dig(run.about, "teacher")
        unlike("teacher {} (paper: resnet50)", words(teacher, "architecture"), "resnet50")
        labels = words(teacher, "labels")
        unlike("teacher trained with {} labels (paper: without labels)", labels, "")
    return tuple(marks)


_PAPERS_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"lr": 30.0, "epochs": 100, "augment": "crop", "probe": "strict"},
    "semi": {"select": "test", "epochs": 20},
    "detection": {"iterations": 24_000, "batch_size": 16, "test_side": 800},
}
_TOLD = {
    "lr": "learning rate",
    "augment": "augmentation",
    "select": "chosen by",
    "batch_size": "batch",
    "test_side": "short side",
}


def _evaluating_marks(n: Number, figure: paper.Figure | None) -> list[str]:
    if figure is None:
        return []
    other = difference(_data(n), figure.dataset)
    marks = [other] if other else []
    settings = n.results[-1].settings
    for name, theirs in _PAPERS_SETTINGS.get(n.protocol, {}).items():
        ours = settings.get(name, theirs)
        if ours != theirs:
            marks.append(f"{_TOLD.get(name, name)} {setting(ours)} (paper: {setting(theirs)})")
    return marks
