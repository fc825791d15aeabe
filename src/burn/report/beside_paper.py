"""Numbers beside the paper's, with what is not alike in data, budget, network and judging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burn.report import paper
from burn.report.cells import DASH, Cell, Table, percent, setting, signed
from burn.report.gather import Group, Run, number, short_path, words
from burn.report.networks import Network, Number, Verdict


@dataclass(frozen=True)
class Beside:
    """Networks beside the paper.

    training: what differs for all of them; own: (networks, what differs for them alone); judging:
    (numbers, what differs in how they were judged).
    """

    training: tuple[str, ...]
    own: tuple[tuple[str, str], ...]
    judging: tuple[tuple[str, tuple[str, ...]], ...]
    table: Table


_UNKNOWN = ("its pretraining was not given: name its run folder too",)


def beside_paper(
    found: Sequence[Network], answer: Verdict, groups: Sequence[Group]
) -> Beside | None:
    """What the paper has for the same protocols, the difference, and what is not alike.

    Networks with random weights and float ones have no row there, and an ablation's stand in its
    own tables. None where no network has a row.
    """
    varied = {group.folder for group in groups if group.ablation}
    compared: list[tuple[Network, Number, paper.Figure | None, paper.Figure | None]] = []
    training: dict[str, tuple[str, ...]] = {}
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
    same = _shared([marks for marks in training.values() if marks != _UNKNOWN])
    differing: dict[tuple[str, ...], list[str]] = {}
    for name, marks in training.items():
        differing.setdefault(tuple(mark for mark in marks if mark not in same), []).append(name)
    also = "also " if same else ""
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
        tuple(
            ("; ".join(names), f"{'' if marks == _UNKNOWN else also}{'; '.join(marks)}")
            for marks, names in differing.items()
            if marks
        ),
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
    """alike: whether nothing that is looked at differs."""

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


def _marks(run: Run | None, base: str) -> tuple[str, ...]:
    """How a pretraining differs from the paper's, in plain words."""
    if run is None:
        return _UNKNOWN
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
    return tuple(marks)


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
    stems = {
        "voc0712": ("voc",), "voc07": ("voc",), "cub200": ("cub",),
        "imagenet": ("imagenet", "ilsvrc"),
    }.get(wanted, (wanted,))  # fmt: skip
    smaller = {"imagenet": "imagenet100", "cifar10": "cifar100"}.get(wanted, "")
    if not any(stem in spoken for stem in stems) or (smaller and smaller in spoken):
        marks.append(
            f"other images, by their name (yours: {short_path(n.test)}; paper: "
            f"{paper.NAMES[figure.dataset]})"
        )
    settings = n.results[-1].settings
    for name, theirs in _PAPERS_SETTINGS.get(n.protocol, {}).items():
        ours = settings.get(name, theirs)
        if ours != theirs:
            marks.append(f"{_TOLD[name]} {setting(ours)} (paper: {setting(theirs)})")
    return marks
