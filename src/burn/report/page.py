"""`burn report`: one page, which needs no other file, from several folders."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from burn.core.errors import UserError
from burn.report.load.contents import Gathered, Group, Neighbours, Run
from burn.report.load.values import short_path, words
from burn.report.model import Network, Verdict, networks, verdict
from burn.report.render.cells import joined
from burn.report.render.templates import environment, source
from burn.report.sections.analyses import analysis_part
from burn.report.sections.answer import alarms, campaign_of, cautions, opening, tiles
from burn.report.sections.beside_paper import beside_paper
from burn.report.sections.campaigns import (
    ablation_parts,
    comparison_charts,
    comparison_table,
    default_variant,
    group_note,
    of_group,
    small_multiples,
)
from burn.report.sections.confusion import confusion_part
from burn.report.sections.evaluation_pictures import Detail, neighbours_part, picture_part
from burn.report.sections.ladder import ladder
from burn.report.sections.packed import pack_table
from burn.report.sections.results_tables import result_tables
from burn.report.sections.trained import runs_table, settings_list, stage_table
from burn.report.sections.training_curves import curve_charts
from burn.report.sections.try_it import TryIt

MOST_BYTES = 5_000_000
# From most to least; the first with which the page is small enough is taken.
_DETAILS = (Detail(8, 6, 12, 1400, 85), Detail(4, 3, 8, 1000, 75), Detail(1, 1, 4, 640, 60))


def build_page(gathered: Gathered, panel: TryIt | None = None) -> str:
    """Return the page, the same text for the same values; UserError for one of more than 5 MB."""
    size, extra = 0, panel.num_bytes if panel else 0
    for detail in _DETAILS:
        page = _render(gathered, detail, panel)
        size = len(page.encode(errors="replace")) - extra
        if size <= MOST_BYTES:
            return page
    raise UserError(
        f"the page would have {size / 1e6:.1f} MB, more than the 5 "
        "allowed: give fewer folders at once"
    )


def _render(gathered: Gathered, detail: Detail, panel: TryIt | None) -> str:
    script, hashes = source("script.js"), []
    for text in (script, *([panel.script] if panel else [])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    if panel:
        hashes.append("'wasm-unsafe-eval'")  # only WebAssembly, in spite of its name
    return (
        environment()
        .get_template("report.html")
        .render(
            page=_page(gathered, detail, panel),
            script=Markup(script),
            script_hashes=Markup(" ".join(hashes)),
            try_it=panel,
            try_script=Markup(panel.script if panel else ""),
        )
    )


def _page(gathered: Gathered, detail: Detail, panel: TryIt | None) -> dict[str, Any]:
    all_networks = networks(gathered)
    ablated = {group.folder for group in gathered.groups if group.ablation}
    candidates = [network for network in all_networks if network.group not in ablated]
    for group in gathered.groups if not candidates else ():
        default = default_variant(group, of_group(group, all_networks))
        candidates += [default] if default else []
    answer = verdict(all_networks, candidates)
    chosen = [run for run in gathered.runs if run.chosen]
    notes = list(gathered.notes)
    charts = [
        (run.name, made)
        for place, run in enumerate(chosen[: detail.curves])
        if (made := curve_charts(run, f"r{place}"))
    ]
    if len(chosen) > detail.curves:
        notes.append(f"Curves of the first {detail.curves} of {len(chosen)} runs are shown.")
    neighbours = _answers_first(gathered.neighbours, answer)
    if len(neighbours) > detail.networks:
        notes.append(
            f"Neighbours by {detail.networks} of {len(neighbours)} networks are shown; the others "
            "are in the folders' neighbours/."
        )
    if detail is not _DETAILS[0]:
        notes.append("Pictures were made smaller, or left out, to keep the page below 5 MB.")
    groups = [
        _group(group, place, all_networks, gathered) for place, group in enumerate(gathered.groups)
    ]
    analyses = [analysis_part(a, place) for place, a in enumerate(gathered.analyses)]
    first = opening(answer, gathered, all_networks, [a["title"] for a in analyses])
    page: dict[str, Any] = {
        "opening": first,
        "title": f"{first.headline} · BURN report",
        "over": _over(gathered, answer),
        "alarms": alarms(gathered),
        "cautions": cautions(gathered, all_networks),
        "tiles": tiles(answer, gathered),
        "ladder": ladder(answer, all_networks, gathered.groups),
        "beside": beside_paper(all_networks, answer, gathered.groups),
        "runs": [
            {
                "name": run.name,
                "run": run,
                "stages": stage_table(run),
                "settings": list(settings_list(_own_settings(run))),
                "views": picture_part(run.views, run.folder / "views.jpg", detail)
                if run.views is not None and place < detail.curves
                else None,
            }
            for place, run in enumerate(chosen)
        ],
        "runs_table": runs_table(gathered.runs) if len(gathered.runs) > 1 else None,
        "groups": groups,
        "curves": charts,
        "results": result_tables([n for n in all_networks if n.group is None]),
        "confusions": [confusion_part(c, f"c{i}") for i, c in enumerate(gathered.confusions)],
        "neighbours": [neighbours_part(n, detail) for n in neighbours[: detail.networks]],
        "detected": [
            {
                "title": short_path(str(folder)),
                **picture_part(picture, folder / "detections.png", detail),
            }
            for folder, picture in gathered.detections
        ],
        "packed": pack_table(gathered),
        "analyses": analyses,
        "notes": notes,
        "files": [str(file) for file in gathered.files],
    }
    return page | {"nav": _nav(page, panel)}


def _answers_first(neighbours: Sequence[Neighbours], answer: Verdict) -> list[Neighbours]:
    """Return one set for each network and its images, with that of the answer's network first."""
    kept = {(n.model, n.checkpoint, n.train, n.test): n for n in neighbours}
    chosen = answer.network.checkpoint if answer.network else ""
    name = answer.network.name if answer.network else ""
    return sorted(
        kept.values(), key=lambda n: not (n.checkpoint == chosen and name.startswith(n.model))
    )


def _over(gathered: Gathered, answer: Verdict) -> str:
    """Return the line above the headline, which says what the page is about."""
    group = campaign_of(answer, gathered.groups)
    if group is not None:
        parts = [str(group.folder), words(group.about, "recipe"), words(group.about, "data")]
        return joined(*map(short_path, parts), by=" · ")
    runs = [run for run in gathered.runs if run.chosen] or gathered.runs
    run = answer.network.run if answer.network else runs[0] if runs else None
    if run is None:
        return ", ".join(short_path(str(folder)) for folder in gathered.folders[:3])
    data = short_path(words(run.about, "data", "name"))
    return joined(short_path(str(run.folder)), run.recipe_name, data, by=" · ")


def _nav(page: dict[str, Any], panel: TryIt | None) -> list[tuple[str, str]]:
    entries = [
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
        ("try", "Try it", panel),
        ("sources", "Sources", True),
    ]
    return [(id, name) for id, name, there in entries if there]


def _own_settings(run: Run) -> dict[str, Any]:
    """Return a run's settings without those of other methods, which earlier versions wrote too."""
    shared = ("backbone", "views", "optim", run.method)
    return {
        name: value
        for name, value in run.recipe.items()
        if not isinstance(value, dict) or name in shared
    }


def _group(
    group: Group, place: int, all_networks: Sequence[Network], gathered: Gathered
) -> dict[str, Any]:
    members = of_group(group, all_networks)
    folder = group.folder.resolve()
    runs = [run for run in gathered.runs if run.folder.resolve().parent == folder]
    key = f"g{place}"
    if group.ablation:
        charts, tables = ablation_parts(group, members, key)
    else:
        charts, tables = comparison_charts(members, key), [comparison_table(members)]
    return {
        "id": f"group{place + 1}",
        "title": "Ablations" if group.ablation else "Methods at one budget",
        "short": "Ablations" if group.ablation else "Comparison",
        "where": str(group.folder),
        "note": group_note(group),
        "tables": tables if members else [],
        "charts": charts,
        "legend": [] if group.ablation else _GROUP_LEGEND,
        "small": small_multiples(runs, f"{key}s"),
    }


_GROUP_LEGEND = [
    ("BURN", "burn"),
    ("others without labels", "blue"),
    ("learned from labels", "pale"),
    ("for reference", "grey"),
]
