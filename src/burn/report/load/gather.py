"""Reads folders into the plain values that a report shows, without torch.

A folder may come from anyone. Nothing in it is executed, no link is followed, files of implausible
size are refused, and every value is checked before use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.core.paths import located_path
from burn.core.results import Result
from burn.report.load.contents import (
    Analysis,
    Confusion,
    Gathered,
    Group,
    LocatedResult,
    Neighbour,
    Neighbours,
    Rows,
    Run,
    Stage,
)
from burn.report.load.files import (
    MOST_PICTURE,
    MOST_TEXT,
    is_there,
    read_bytes,
    read_object,
    read_result_lines,
    read_rows,
)
from burn.report.load.images import Grid
from burn.report.load.origins import Origins, place_in, with_same_images
from burn.report.load.values import count_of, list_of, words

_MOST_CLASSES = 1000
_REFERENCES = ("random-weights.jsonl", "teacher.jsonl", "labelled-teacher.jsonl")
_KNOWN = (
    "a run of burn pretrain (run.json), of burn evaluate --out (results.jsonl), burn compare "
    "(comparison.json), burn ablate (ablation.json) or burn analyze (*.svg)"
)


def gather(folders: Sequence[Path], tell: Callable[[str], None] = lambda _: None) -> Gathered:
    """Read all that a report shows; UserError if a folder is unknown or a file is damaged."""
    if not folders:
        raise UserError("give at least one folder: a run, results or a comparison")
    unique = {_folder(folder): folder for folder in folders}
    finder = _Finder(tell)
    # Groups first, so that a run that is given beside its comparison still belongs to it.
    for folder in sorted(unique.values(), key=lambda f: not _is_group(f)):
        if finder.read(folder):
            continue
        if not [part for part in _parts(folder) if finder.read(part)]:
            raise UserError(f"{folder} holds nothing that a report shows: give {_KNOWN}")
    return finder.gathered(tuple(unique.values()))


def _folder(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path}: there is no such folder")
    if not path.is_dir():
        raise UserError(f"{path} is a file: give the folder that it lies in")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return path.resolve()


def _is_group(folder: Path) -> bool:
    return is_there(folder / "comparison.json") or is_there(folder / "ablation.json")


def _parts(folder: Path) -> list[Path]:  # without links
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())


def _results_of(folder: Path, name: str) -> list[Path]:
    """Return the file of a campaign's kNN and linear results, and those of its other protocols."""
    stem = name.removesuffix(".jsonl")
    return [folder / name, *sorted(folder.glob(f"{stem}-*.jsonl"))]


@dataclass
class _Finder:
    """Collects the contents of folders; every folder and file is read once."""

    tell: Callable[[str], None]
    runs: dict[Path, Run] = field(default_factory=dict)
    results: list[LocatedResult] = field(default_factory=list)
    confusions: list[Confusion] = field(default_factory=list)
    neighbours: list[Neighbours] = field(default_factory=list)
    detections: list[tuple[Path, bytes]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    analyses: list[Analysis] = field(default_factory=list)
    files: dict[Path, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def read(self, folder: Path) -> bool:
        """Read a folder, and return whether there was anything in it."""
        has_content = False
        for name, ablation in (("comparison.json", False), ("ablation.json", True)):
            if is_there(folder / name):
                self._group(folder, self._json(folder / name), ablation)
                has_content = True
        if is_there(folder / "run.json"):
            self._run(folder, chosen=True)
            for file in _results_of(folder, "compared.jsonl"):
                self._results(file, None)
            has_content = True
        has_content |= self._evaluation(folder)
        if has_content and not is_there(folder / "run.json") and not _is_group(folder):
            # burn demo leaves its runs beside its results
            for part in _parts(folder):
                if is_there(part / "run.json"):
                    self._run(part, chosen=True)
        return has_content or self._analysis(folder)

    def gathered(self, folders: tuple[Path, ...]) -> Gathered:
        torn = [
            f"{run.folder}, stage {stage.number}: {count} torn lines of its monitors were left out"
            for run in self.runs.values()
            for stage in run.stages
            if (count := stage.metrics.torn + stage.gradients.torn + stage.layers.torn)
        ]
        origins = Origins(self.runs.values())
        located = with_same_images([origins.located(result) for result in self.results])
        return Gathered(
            folders,
            tuple(self.runs.values()),
            tuple(_newest(located)),
            tuple(self.confusions),
            tuple(
                replace(n, checkpoint=place_in(run, n.checkpoint))
                if (run := origins.find(n.checkpoint))
                else n
                for n in self.neighbours
            ),
            tuple(self.detections),
            tuple(self.groups),
            tuple(self.analyses),
            tuple(self.files.values()),
            tuple(self.notes + torn),
        )

    def _group(self, folder: Path, about: Mapping[str, Any], ablation: bool) -> None:
        self.groups.append(Group(folder, about, ablation))
        for part in _parts(folder):
            if is_there(part / "run.json"):
                self._run(part, chosen=False)
        for part in _parts(folder):
            for file in _results_of(part, "compared.jsonl"):
                self._results(file, folder)
        for name in _REFERENCES:
            for file in _results_of(folder, name):
                self._results(file, folder)

    def _run(self, folder: Path, *, chosen: bool) -> None:
        key = folder.resolve()
        if key in self.runs:
            if chosen:
                self.runs[key] = replace(self.runs[key], chosen=True)
            return
        about = self._json(folder / "run.json")
        stages = []
        for count in range(1, 10):
            meta, monitors = folder / f"stage{count}.json", folder / f"stage{count}"
            if not is_there(meta) and not monitors.is_dir():
                break
            if monitors.is_symlink():
                raise UserError(f"{monitors} is a link: give the folder that it leads to")
            stages.append(
                Stage(
                    count,
                    self._json(meta) if is_there(meta) else {},
                    self._rows(monitors / "metrics.csv", ()),
                    self._rows(monitors / "gradients.csv", ("part",)),
                    self._rows(monitors / "layers.csv", ("layer",)),
                )
            )
        views, picture = folder / "views.jpg", None
        if is_there(views) and self._record(views):
            picture = read_bytes(views, MOST_PICTURE)
        self.runs[key] = Run(folder, about, tuple(stages), chosen, picture)

    def _results(self, file: Path, group: Path | None) -> bool:
        if not is_there(file):
            return False
        if self._record(file):
            for result in read_result_lines(file):
                self.results.append(LocatedResult(result, file.parent, group))
        return True

    def _evaluation(self, folder: Path) -> bool:
        has_content = self._results(folder / "results.jsonl", None)
        file = folder / "confusion.json"
        if is_there(file) and self._record(file):
            self.confusions.append(_confusion(file, read_object(file)))
            has_content = True
        for file in _neighbours_files(folder):
            if self._record(file):
                self.neighbours.append(_neighbours(file, read_object(file)))
                has_content = True
        file = folder / "detections.png"
        if is_there(file) and self._record(file):
            self.detections.append((folder, read_bytes(file, MOST_PICTURE)))
            has_content = True
        return has_content

    def _analysis(self, folder: Path) -> bool:
        names = sorted({f.stem for f in folder.iterdir() if f.suffix in (".svg", ".md")})
        figures = []
        for name in names:
            picture, text_file = folder / f"{name}.svg", folder / f"{name}.md"
            svg = read_bytes(picture, MOST_TEXT) if is_there(picture) else None
            told = read_bytes(text_file, MOST_TEXT) if is_there(text_file) else b""
            text = told.decode(errors="replace")
            if svg is None and len(names) > 1 and not text.strip():
                continue
            for file in (picture, text_file):
                if is_there(file):
                    self._record(file)
            figures.append((name, svg, text))
        has_content = any(svg is not None for _, svg, _ in figures)
        if has_content:
            self.analyses.append(Analysis(folder, tuple(figures)))
        return has_content

    def _json(self, file: Path) -> Mapping[str, Any]:
        self._record(file)
        return read_object(file)

    def _rows(self, file: Path, texts: tuple[str, ...]) -> Rows:
        if not is_there(file):
            return Rows()
        self._record(file)
        return read_rows(file, texts)

    def _record(self, file: Path) -> bool:
        """Record a file, and return whether it is new."""
        key = file.resolve()
        if key in self.files:
            return False
        self.files[key] = file
        self.tell(f"reading: {len(self.files):,} files, {len(self.results):,} results")
        return True


# Entries of `Result.settings` that are not settings.
_OUTCOMES = {"sweep", "classes", "pretraining", "chosen_lr", "rates", "trials"}
# Those that a protocol chooses or measures itself.
_CHOSEN = {
    "semi": {"lr", "head_factor"},
    "finetune": {"lr", "head_lr", "linear", "calibration"},
}


def settings_of(result: Result) -> dict[str, Any]:
    """Return the protocol's settings without its outcomes."""
    chosen = _CHOSEN.get(result.protocol, set())
    return {k: v for k, v in result.settings.items() if k not in _OUTCOMES | chosen}


def _newest(results: Iterable[LocatedResult]) -> list[LocatedResult]:
    """Keep the last of repeated numbers, in the place of the first."""
    kept: dict[tuple[Any, ...], LocatedResult] = {}
    for result in results:
        r = result.result
        number = (r.protocol, r.metric, r.model, r.checkpoint, r.train, r.test, r.seed)
        settings = json.dumps(settings_of(r), sort_keys=True, default=str)
        # Not across campaigns: two evaluate the same teacher, each for its own tables.
        kept[result.group, *number, settings] = result
    return list(kept.values())


def _confusion(file: Path, value: Mapping[str, Any]) -> Confusion:
    try:
        names = tuple(str(name) for name in list_of(value.get("classes")))
        rows = list_of(value.get("counts"))
        counts = tuple(tuple(count_of(c) for c in list_of(row)) for row in rows)
        if not 1 <= len(names) <= _MOST_CLASSES:
            raise ValueError
        if [len(row) for row in counts] != [len(names)] * len(names):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{file} is damaged (classes and counts do not fit): evaluate again, or remove it"
        ) from error
    about = {name: words(value, name) for name in ("protocol", "model", "test")}
    return Confusion(**about, classes=names, counts=counts)


def _neighbours_files(folder: Path) -> list[Path]:
    """Return a file for each network; burn 0.1.0 kept only neighbours.json, for the newest."""
    inner = folder / "neighbours"
    if inner.is_symlink():
        raise UserError(f"{inner} is a link: give the folder that it leads to")
    old = folder / "neighbours.json"
    return [*([old] if is_there(old) else []), *sorted(inner.glob("*.json"))]


def _neighbours(file: Path, value: Mapping[str, Any]) -> Neighbours:
    try:
        name = value["picture"]
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+\.(jpg|png)", name):
            raise ValueError
        grid, columns = _grid_of(value), count_of(value["columns"])
        if not 1 <= columns <= 64:
            raise ValueError
        rows = []
        for row in list_of(value["rows"]):
            others = [
                Neighbour(str(other["label"]), float(other["cosine"]))
                for other in list_of(row["neighbours"])
            ]
            if len(others) >= columns or any(not math.isfinite(o.cosine or 0) for o in others):
                raise ValueError
            rows.append((Neighbour(str(row["label"]), None), *others))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{file} is damaged: evaluate again, or remove it") from error
    about = {name: words(value, name) for name in ("model", "checkpoint", "train", "test")}
    about["checkpoint"] = located_path(about["checkpoint"], file.parent)
    picture = read_bytes(file.parent / name, MOST_PICTURE)
    return Neighbours(file, **about, grid=grid, picture=picture, rows=tuple(rows))


def _grid_of(value: Mapping[str, Any]) -> Grid:
    """Return the grid of a file of neighbours; burn 0.1.0 wrote tiles side by side."""
    side = count_of(value["side"])
    left, top = count_of(value.get("left", 0)), count_of(value.get("top", 0))
    right, down = (count_of(number) for number in value.get("step", (side, side)))
    if not 1 <= side <= 1024 or not all(0 <= n <= 2048 for n in (left, top, right, down)):
        raise ValueError
    return Grid(side, left, top, (right, down))
