"""Size and speed of packed files."""

from __future__ import annotations

from burn.report.cells import DASH, Cell, Table, size
from burn.report.gather import Gathered, finite, short_path
from burn.results import Result


def packs(gathered: Gathered) -> list[tuple[str, Result, dict[str, float]]]:
    """(network, one of its results, its numbers by name) of each packed file."""
    found: dict[tuple[str, str], tuple[Result, dict[str, float]]] = {}
    for j in gathered.judgements:
        r = j.result
        if r.protocol == "pack" and finite(r.value) is not None:
            found.setdefault((r.model, r.checkpoint), (r, {}))[1][r.metric] = r.value
    return [(model, r, numbers) for (model, _), (r, numbers) in found.items()]


def pack_table(gathered: Gathered) -> Table | None:
    """Size and speed of packed files."""
    found = packs(gathered)
    if not found:
        return None
    metrics = list(dict.fromkeys(metric for _, _, numbers in found for metric in numbers))
    rows = []
    for model, r, numbers in found:
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
