"""Size and speed of packed files."""

from __future__ import annotations

from burn.core.results import Result
from burn.report.load.contents import Gathered
from burn.report.load.values import finite, number, short_path, words
from burn.report.render.cells import Cell, Table, cell, filled, joined, size


def packs(gathered: Gathered) -> list[tuple[str, Result, dict[str, float]]]:
    """Return the network, a result, if possible that of the time, and all numbers of each file."""
    by_file: dict[tuple[str, str], tuple[Result, dict[str, float]]] = {}
    for item in gathered.results:
        r = item.result
        if r.protocol == "pack" and finite(r.value) is not None:
            _, numbers = by_file.setdefault((r.model, r.checkpoint), (r, {}))
            numbers[r.metric] = r.value
            if r.metric == "milliseconds":  # this result names the processor
                by_file[r.model, r.checkpoint] = (r, numbers)
    return [(model, r, numbers) for (model, _), (r, numbers) in by_file.items()]


def measured_on(result: Result) -> str:
    """Return pixels, threads, instruction set and processor, without which a time means nothing."""
    settings = result.settings
    side, threads = number(settings, "image_size"), number(settings, "threads")
    said = joined(
        filled("{0:g} × {0:g} pixels", side),
        filled("{:g} thread" if threads == 1 else "{:g} threads", threads),
        words(settings, "isa"),
        words(settings, "processor"),
    )
    return said or "pixels and processor were not recorded"


def pack_table(gathered: Gathered) -> Table | None:
    packed = packs(gathered)
    if not packed:
        return None
    metrics = list(dict.fromkeys(metric for _, _, numbers in packed for metric in numbers))
    rows = []
    for model, r, numbers in packed:
        count, whole = numbers.get("bytes"), numbers.get("float32_bytes")
        row = [Cell(model, small=short_path(r.checkpoint))]
        for metric in metrics:
            value = numbers.get(metric)
            if value is not None and metric.endswith("bytes"):
                row.append(Cell(size(value), value, small=f"{value:,.0f} bytes"))
            else:
                where = measured_on(r) if value is not None and metric == "milliseconds" else ""
                row.append(cell(value, "{:.4g}", small=where))
        row.append(cell(whole / count if count and whole else None, "1/{:.1f}"))
        rows.append(row)
    titles = {
        "bytes": "packed file",
        "float32_bytes": "as float32",
        "milliseconds": "ms an image",
        "cosine": "least cosine",
    }
    columns = ("network", *(titles.get(m, m.replace("_", " ")) for m in metrics), "of float32")
    return Table("Packed for burn-engine", columns, rows, frozenset(range(1, len(columns))))
