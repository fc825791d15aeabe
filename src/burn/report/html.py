"""`burn report`: folders in, one page out that needs nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from burn.errors import UserError, printable
from burn.files import write_text
from burn.report.gather import (
    Analysis,
    Detected,
    Gathered,
    Group,
    Neighbours,
    Run,
    gather,
    short_path,
    words,
)
from burn.report.images import data_address, jpeg, open_picture, shrunk, tile
from burn.report.networks import Network, networks, verdict
from burn.report.sections import (
    Cell,
    Table,
    ablation_parts,
    alarms,
    beside_paper,
    cautions,
    comparison_charts,
    comparison_table,
    confusion_view,
    curve_charts,
    facts,
    group_note,
    ladder,
    lede,
    of_group,
    pack_table,
    result_tables,
    runs_table,
    settings_list,
    small_multiples,
    stage_table,
    tiles,
)
from burn.report.tables import number_name

MOST_BYTES = 5_000_000
_SHOWN = 48  # pixels of a neighbour's tile at least


@dataclass(frozen=True)
class _Detail:
    """How much room pictures and curves may take."""

    curves: int
    rows: int
    width: int
    quality: int


# From all to little; the first that fits is taken.
_DETAILS = (_Detail(8, 12, 1400, 85), _Detail(4, 8, 1000, 75), _Detail(1, 4, 640, 60))


def write_report(folders: Sequence[Path], out: Path) -> int:
    """The page about what `folders` hold, as a file; returns its size in bytes.

    Raises UserError for folders that hold nothing known or damaged files, where `out` cannot be
    written, and where the page would be larger than 5 MB.
    """
    _check_out(out)
    page = build_page(gather(folders))
    try:
        write_text(out, page)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from error
    return len(page.encode(errors="surrogateescape"))


def _check_out(out: Path) -> None:
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give a file, {out / 'report.html'} say")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def build_page(gathered: Gathered) -> str:
    """The page. The same values give the same text. Raises UserError for one that is too large."""
    page = ""
    for detail in _DETAILS:
        page = _render(gathered, detail)
        if len(page.encode(errors="surrogateescape")) <= MOST_BYTES:
            return page
    raise UserError(
        f"the page would have {len(page.encode(errors='replace')) / 1e6:.1f} MB, and 5 are the "
        "most: give fewer folders at once"
    )


def _render(gathered: Gathered, detail: _Detail) -> str:
    environment = Environment(
        loader=PackageLoader("burn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters["drawn"] = Markup  # of our own charts alone, which escape what they show
    loader = environment.loader
    assert loader is not None
    script = loader.get_source(environment, "script.js")[0].strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        page=_page(gathered, detail), script=Markup(script), script_hash=f"sha256-{digest}"
    )


def _clean(value: Any) -> Any:
    """Names come from strangers: nothing in them turns the text's direction or breaks UTF-8."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _page(gathered: Gathered, detail: _Detail) -> dict[str, Any]:
    found = networks(gathered)
    answer = verdict(found)
    chosen = [run for run in gathered.runs if run.chosen]
    notes = [*gathered.notes]
    charts = [
        (run.name, made)
        for place, run in enumerate(chosen[: detail.curves])
        if (made := curve_charts(run, f"r{place}"))
    ]
    if len(chosen) > detail.curves:
        notes.append(f"Curves of the first {detail.curves} of {len(chosen)} runs are shown.")
    if detail is not _DETAILS[0]:
        notes.append("Pictures were made smaller, or left out, to keep the page below 5 MB.")
    rungs = ladder(answer, found, gathered.groups)
    top = max((v for r in rungs for v in (r.first, r.second) if v is not None), default=1.0)
    scale = max(top * 1.03, 1e-9)
    measure = answer.measure or ("knn", "top1")
    lowest = answer.floor.find(*measure, answer.on) if answer.floor else None
    groups = [_group(group, place, found, gathered) for place, group in enumerate(gathered.groups)]
    page: dict[str, Any] = {
        "answer": answer,
        "title": f"{answer.headline} · BURN report",
        "over": _over(gathered, answer.network),
        "lede": lede(answer),
        "alarms": alarms(gathered),
        "cautions": cautions(gathered),
        "tiles": tiles(answer, gathered),
        "ladder": rungs,
        "scale": scale,
        "floor": round(100 * lowest.mean / scale, 2) if lowest else -1,
        "first_name": number_name(*measure),
        "first_short": number_name(measure[0], "").strip(),
        "second_name": "linear top-1" if any(r.second is not None for r in rungs) else "",
        "second_short": "linear" if any(r.second is not None for r in rungs) else "",
        "judged_on": short_path(answer.on[1]) if answer.on else "",
        "beside": beside_paper(found, answer, gathered.groups),
        "runs": [
            {
                "name": run.name,
                "facts": facts(run),
                "stages": stage_table(run),
                "settings": list(settings_list(_own_settings(run))),
            }
            for run in chosen
        ],
        "runs_table": runs_table(gathered.runs) if len(gathered.runs) > 1 else None,
        "groups": groups,
        "curves": charts,
        "results": result_tables([n for n in found if n.group is None]),
        "confusions": [confusion_view(c, f"c{i}") for i, c in enumerate(gathered.confusions)],
        "neighbours": [_neighbours(n, detail) for n in gathered.neighbours],
        "detected": [_detected(d, found, detail) for d in gathered.detected],
        "packed": pack_table(gathered),
        "analyses": [_analysis(a, place) for place, a in enumerate(gathered.analyses)],
        "notes": notes,
        "files": [str(file) for file in gathered.files],
    }
    return page | {"nav": _nav(page)}


def _over(gathered: Gathered, network: Network | None) -> str:
    """What the page is about, above its headline."""
    run = network.run if network else gathered.runs[0] if gathered.runs else None
    if run is None:
        return ", ".join(short_path(str(folder)) for folder in gathered.folders[:3])
    parts = [run.recipe_name, short_path(words(run.about, "data", "name"))]
    return " · ".join(part for part in (short_path(str(run.folder)), *parts) if part)


def _nav(page: dict[str, Any]) -> list[tuple[str, str]]:
    known = [
        ("answer", "Answer", True),
        ("paper", "The paper", page["beside"]),
        ("runs", "Training", page["runs"] or page["runs_table"]),
        *((g["id"], g["short"], True) for g in page["groups"]),
        ("curves", "Curves", page["curves"]),
        ("results", "All results", page["results"]),
        ("confusion", "Confusion", page["confusions"]),
        ("neighbours", "Neighbours", page["neighbours"]),
        ("detections", "Detections", page["detected"]),
        ("packed", "Size, speed", page["packed"]),
        *((a["id"], a["short"], True) for a in page["analyses"]),
        ("sources", "Sources", True),
    ]
    return [(id, name) for id, name, there in known if there]


def _own_settings(run: Run) -> dict[str, Any]:
    """Without those of other methods, which a recipe carries along."""
    shared = ("backbone", "views", "optim", run.method)
    return {
        name: value
        for name, value in run.recipe.items()
        if not isinstance(value, dict) or name in shared
    }


def _group(
    group: Group, place: int, found: Sequence[Network], gathered: Gathered
) -> dict[str, Any]:
    mine = of_group(group, found)
    folder = group.folder.resolve()
    runs = [run for run in gathered.runs if run.folder.resolve().parent == folder]
    key = f"g{place}"
    if group.ablation:
        charts, tables = ablation_parts(group, mine, key)
    else:
        charts, tables = comparison_charts(mine, key), [comparison_table(mine)]
    return {
        "id": f"group{place + 1}",
        "title": "Ablations" if group.ablation else "Methods at one budget",
        "short": "Ablations" if group.ablation else "Comparison",
        "where": str(group.folder),
        "note": group_note(group),
        "tables": tables if mine else [],
        "charts": charts,
        "legend": [] if group.ablation else _GROUP_LEGEND,
        "small": small_multiples(runs, f"{key}s"),
    }


_GROUP_LEGEND = [
    ("BURN", "burn"), ("others without labels", "blue"), ("learned from labels", "pale"),
    ("for reference", "grey"),
]  # fmt: skip


def _neighbours(found: Neighbours, detail: _Detail) -> dict[str, Any]:
    picture = open_picture(found.picture, found.folder / "neighbours.jpg")
    columns = max((len(row) for row in found.rows), default=1)
    if picture.width < columns * found.side or picture.height < len(found.rows) * found.side:
        raise UserError(
            f"{found.folder / 'neighbours.json'} names more images than its picture holds: judge "
            "anew, or remove both"
        )
    shown = found.rows[: detail.rows]
    rows = [
        [
            {
                "image": jpeg(tile(picture, r, c, found.side), detail.quality),
                "label": one.label,
                "cosine": "" if one.cosine is None else f"{one.cosine:.2f}",
                "other": c > 0 and one.label != row[0].label,
            }
            for c, one in enumerate(row)
        ]
        for r, row in enumerate(shown)
    ]
    note = ""
    if len(shown) < len(found.rows):
        note = f"The first {len(shown)} of {len(found.rows)} test images."
    names = [found.model, f"among {short_path(found.train)}" if found.train else ""]
    title = ", ".join(name for name in names if name) or found.folder.name
    return {
        "title": title, "columns": columns, "side": max(found.side, _SHOWN), "rows": rows,
        "note": note,
    }  # fmt: skip


def _detected(found: Detected, known: Sequence[Network], detail: _Detail) -> dict[str, Any]:
    picture = open_picture(found.picture, found.folder / "detections.png")
    width = min(picture.width, detail.width)
    return {
        "title": short_path(str(found.folder)),
        "image": shrunk(picture, detail.width, detail.quality),
        "width": width,
        "height": max(1, round(picture.height * width / picture.width)),
    }


def _analysis(found: Analysis, place: int) -> dict[str, Any]:
    figures = [
        {
            "name": name.replace("-", " ").replace("_", " "),
            # As an image: scripts in it do not run, and it reaches for nothing.
            "image": data_address(svg, "image/svg+xml") if svg is not None else "",
            **_markdown(text),
        }
        for name, svg, text in found.figures
    ]
    title = found.folder.name.replace("-", " ").replace("_", " ")
    return {"id": f"analysis{place + 1}", "title": f"Analysis: {title}", "short": title[:24],
            "figures": figures}  # fmt: skip


def _markdown(text: str) -> dict[str, Any]:
    """Title, paragraphs and table of what burn analyze writes; anything else is a paragraph."""
    title, paragraphs, table = "", [], None
    for part in text.split("\n\n"):
        lines = [line.strip() for line in part.strip().splitlines()]
        if not lines or lines[0].startswith("!["):
            continue
        if lines[0].startswith("#") and len(lines) == 1:
            title = title or lines[0].lstrip("# ")
        elif len(lines) > 2 and all(line.startswith("|") for line in lines):
            cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
            rows = [[Cell(c) for c in row] for row in cells[2:] if len(row) == len(cells[0])]
            table = Table(title or "Numbers", cells[0], rows)
        else:
            paragraphs.append(" ".join(lines))
    return {"title": title, "text": paragraphs, "table": table}
