"""The report on benchmarks/engine.py: a picture, sentences and tables.

A machine is what the benchmark writes as JSON: `name`; `source`, how its numbers were measured;
`ratios`; and `rows`, each with network, runtime, isa (burn-engine's instruction set, else ""), size
(side in pixels), batch, threads, and milliseconds (per image). A row with `from_ratio` was not
timed: it follows from a reported ratio, is drawn hatched and written with ≈.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduction.analyses.figure import BLUE, ORANGE, SOFT, WIDTH, Report, listed, save

Machine = Mapping[str, Any]
Row = Mapping[str, Any]

_ISAS = {
    "avx512-vpopcnt": "AVX-512 VPOPCNTDQ",
    "avx512-bw": "AVX-512BW",
    "avx2": "AVX2",
    "neon": "NEON",
    "portable": "plain C++",
}
_OURS = "burn-engine"
_SIDE = 224  # pixels of the comparison's images
_RIVAL = "MobileNetV2"
_COLUMNS = {
    (1, 1): "1 thread",
    (1, 2): "2 threads",
    (8, 1): "batch 8, 1 thread",
    (8, 2): "batch 8, 2 threads",
}


def engine(machines: Sequence[Machine]) -> Report:
    """Return the report on every runtime's milliseconds per image.

    Args:
        machines: Measurements of each machine; it gets a panel and a table.
    """
    said = [_sentence(machine) for machine in machines]
    return Report(
        title="Milliseconds an image: " + "; ".join(_alt(machine) for machine in machines),
        text=" ".join(said),
        table="\n\n".join(_tables(machine) for machine in machines),
        draw=lambda file: save(engine_figure, file, machines),
    )


def _alone(machine: Machine, size: int = _SIDE) -> list[Row]:
    """Return the machine's rows of one image on one thread, the fastest first."""
    rows = [
        row
        for row in machine["rows"]
        if (row["size"], row["batch"], row["threads"]) == (size, 1, 1)
    ]
    return sorted(rows, key=lambda row: row["milliseconds"])


def _best(rows: Sequence[Row]) -> Row:
    """Return burn-engine's fastest row."""
    return next(row for row in rows if row["runtime"] == _OURS)


def _name(row: Row) -> str:
    """Return a row's label, such as "ReActNet-A, 1 bit: burn-engine, AVX2"."""
    if row["runtime"] == _OURS:
        return f"{row['network']}, 1 bit: {_OURS}, {_ISAS[row['isa']]}"
    return f"{row['network']}, float: {row['runtime']}"


def _milliseconds(row: Row) -> str:
    value = row["milliseconds"]
    shown = f"{value:.2f}" if value < 9.95 else f"{value:.1f}" if value < 99.5 else f"{value:.0f}"
    return f"≈ {value:.0f}" if row.get("from_ratio") else shown


def _against(machine: Machine) -> tuple[Row, Row | None, Row | None]:
    """Return burn-engine's fastest row, MobileNetV2's, and the same network's in ONNX Runtime."""
    rows = _alone(machine)
    ours = _best(rows)

    def of(network: str) -> Row | None:
        matching = (r for r in rows if (r["network"], r["runtime"]) == (network, "ONNX Runtime"))
        return next(matching, None)

    return ours, of(_RIVAL), of(ours["network"])


def _verdict(machine: Machine) -> str:
    """Say which is faster, MobileNetV2 in float or the binary network, and by what factor."""
    ours, rival, _ = _against(machine)
    if rival is None:
        return f"{_ISAS[ours['isa']]}"
    ratio = machine["ratios"].get("ort_fp32_mobilenetv2")
    ratio = rival["milliseconds"] / ours["milliseconds"] if ratio is None else ratio
    if ratio >= 1:
        return f"burn-engine is {ratio:.3g} times as fast as {_RIVAL} in float"
    return f"{_RIVAL} in float is {1 / ratio:.3g} times as fast as burn-engine"


def _alt(machine: Machine) -> str:
    ours, rival, same = _against(machine)
    others = [
        f"{row['network']} in ONNX Runtime {_milliseconds(row)}" for row in (rival, same) if row
    ]
    isa = _ISAS[ours["isa"]]
    told = [f"{ours['network']} in burn-engine ({isa}) {_milliseconds(ours)}", *others]
    return f"{machine['name']}: {', '.join(told)}"


def _sentence(machine: Machine) -> str:
    """Describe the result on one machine and how it was measured."""
    ours, _, same = _against(machine)
    told = [_verdict(machine)]
    ratio = machine["ratios"].get("ort_fp32_same_network")
    if same and ratio is not None:
        told.append(f"{ratio:.3g} times as fast as ONNX Runtime with the same network in float")
    if told[0].startswith(_RIVAL) and len(told) > 1:
        told[1] = f"which is {told[1]}"
    return (
        f"On {machine['name']}, with {_ISAS[ours['isa']]}, {' and '.join(told)} "
        f"({machine['source']})."
    ).replace(" and which", ", which")


def _tables(machine: Machine) -> str:
    """Return a table of the images of 224 pixels and, if there are any, one of smaller images.

    The first has a column for each batch size and number of threads.
    """
    columns = [
        key
        for key in _COLUMNS
        if any((r["size"], r["batch"], r["threads"]) == (_SIDE, *key) for r in machine["rows"])
    ]
    title = f"{machine['name']}, milliseconds an image"
    lines = [_line([title, *(_COLUMNS[key] for key in columns)])]
    lines.append(_line(["---"] + ["---:"] * len(columns)))
    best = _best(_alone(machine))
    for first in _alone(machine):
        cells = [_name(first)]
        for batch, threads in columns:
            wanted = {**first, "batch": batch, "threads": threads}
            found = [r for r in machine["rows"] if all(r[k] == wanted[k] for k in _KEY)]
            cells.append(_milliseconds(found[0]) if found else "")
        lines.append(_line([f"**{cell}**" if cell and first is best else cell for cell in cells]))
    sizes = sorted({row["size"] for row in machine["rows"]} - {_SIDE})
    if sizes:
        lines += ["", _line([f"{machine['name']}, 1 thread", *(f"{n}×{n} pixels" for n in sizes)])]
        lines.append(_line(["---"] + ["---:"] * len(sizes)))
        for first in _alone(machine, sizes[0]):
            found = [
                next((r for r in _alone(machine, n) if _name(r) == _name(first)), None)
                for n in sizes
            ]
            lines.append(_line([_name(first), *(_milliseconds(r) if r else "" for r in found)]))
    return "\n".join(lines)


_KEY = ("network", "runtime", "isa", "size", "batch", "threads")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def engine_figure(machines: Sequence[Machine]) -> Figure:
    """Draw bars of one image on one thread, the fastest at the top, all on one scale."""
    heights = [len(_alone(machine)) + 1.6 for machine in machines]
    figure, axes = plt.subplots(
        len(machines),
        1,
        figsize=(WIDTH, 0.3 * sum(heights) + 0.6),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    longest = max(row["milliseconds"] for m in machines for row in _alone(m))
    for panel, machine in zip(axes.flat, machines, strict=True):
        _panel(panel, machine, longest)
    axes.flat[-1].set_xlabel(f"milliseconds an image of {_SIDE}×{_SIDE} pixels, one thread")
    notes = ["ONNX Runtime always uses all that the processor has."]
    if derived := [m["name"] for m in machines if any(r.get("from_ratio") for r in _alone(m))]:
        notes.append(f"Hatched, ≈: from reported ratios, not timed here ({listed(derived)}).")
    figure.tight_layout(rect=(0, 0.045, 1, 0.965), h_pad=2.8)
    figure.text(0.01, 0.012, " ".join(notes), fontsize=7.5, color=SOFT)
    return figure


def _panel(panel: Axes, machine: Machine, longest: float) -> None:
    rows = _alone(machine)
    for place, row in enumerate(rows):
        ours = row["runtime"] == _OURS
        derived = {"hatch": "////", "fill": False} if row.get("from_ratio") else {}
        colour = ORANGE if ours else BLUE if row["network"] == _RIVAL else "#b8bec7"
        panel.barh(place, row["milliseconds"], 0.7, color=colour, edgecolor=colour, **derived)
        panel.text(
            row["milliseconds"] + longest / 100, place, _milliseconds(row), va="center", fontsize=8
        )
    panel.set_yticks(range(len(rows)), [_name(row) for row in rows], fontsize=8)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelbottom=True)
    panel.invert_yaxis()
    panel.set_xlim(0, 1.1 * longest)
    best = _ISAS[_best(rows)["isa"]]
    title = panel.annotate(
        f"{machine['name']}, {best}: {_verdict(machine)}",
        (0.01, 1),
        (0, 6),
        xycoords=("figure fraction", "axes fraction"),
        textcoords="offset points",
        fontsize=8.5,
        weight="bold",
        annotation_clip=False,
    )
    title.set_in_layout(False)  # otherwise it would narrow the panels
    figure = panel.get_figure(root=True)
    assert figure is not None
    width, most = title.get_window_extent().width, 0.98 * figure.get_window_extent().width
    title.set_fontsize(8.5 * min(1.0, most / width))
