"""From folders to plain values: what a report shows, read with suspicion and without torch.

A folder may come from anyone. Nothing in it is executed, no link is followed, files of senseless
size are refused, and every value is looked at before it is believed.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.core.results import Result, read_results
from burn.core.thresholds import RANK_ALARM, SPREAD_ALARM, TARGET_ALARM
from burn.report.load.images import Grid

_MB = 1 << 20
_LARGEST = 1e30  # what is larger cannot be drawn
_MOST_JSON, _MOST_CSV, _MOST_PICTURE, _MOST_TEXT = 16 * _MB, 64 * _MB, 32 * _MB, 2 * _MB
_MOST_CLASSES = 1000
_REFERENCES = ("random-weights.jsonl", "teacher.jsonl", "labelled-teacher.jsonl")
_KNOWN = (
    "a run of burn pretrain (run.json), of burn evaluate --out (results.jsonl), burn compare "
    "(comparison.json), burn ablate (ablation.json) or burn analyze (*.svg)"
)


@dataclass(frozen=True)
class Rows:
    """A monitor's CSV: rows with the numbers and texts that each has; `torn` were left out."""

    rows: tuple[Mapping[str, Any], ...] = ()
    torn: int = 0

    def points(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of a column."""
        return [(row["step"], row[name]) for row in self.rows if name in row]


@dataclass(frozen=True)
class Stage:
    """A stage of a run: what its JSON says, nothing while it is under way, and its monitors."""

    number: int
    meta: Mapping[str, Any]
    metrics: Rows
    gradients: Rows
    layers: Rows

    @property
    def finished(self) -> bool:
        """Whether the stage was trained to its end."""
        return bool(self.meta)

    @property
    def precision(self) -> str:
        """Of weights and activations, as people say it."""
        name = words(self.meta, "precision")
        return {"binary_activations": "binary activations"}.get(name, name)

    @property
    def steps(self) -> int | None:
        """Optimizer steps, so far."""
        count = number(self.meta, "steps")
        if count is None and self.metrics.rows:
            count = self.metrics.rows[-1]["step"]
        return None if count is None else int(count)

    @property
    def collapsed_at(self) -> int | None:
        """The first step at which the target told no images apart any more."""
        step = number(self.meta, "monitor", "collapsed_at")
        if step is None and not self.finished:
            entropies = self.metrics.points("target_entropy")
            low = (s for s, entropy in entropies if entropy < TARGET_ALARM)
            step = next(low, None)
        return None if step is None else int(step)

    @property
    def features_collapsed_at(self) -> int | None:
        """The first step at which the features told no images apart any more."""
        step = number(self.meta, "monitor", "features_collapsed_at")
        if step is None and not self.finished:
            step = self._features_low_twice()
        return None if step is None else int(step)

    def _features_low_twice(self) -> float | None:
        """The step at which the monitor's alarm rang, which looks twice."""
        low = 0
        for row in self.metrics.rows:
            if "feature_rank" in row and "feature_spread" in row:
                flat = row["feature_rank"] < RANK_ALARM or row["feature_spread"] < SPREAD_ALARM
                low = low + 1 if flat else 0
                if low == 2:
                    return row["step"]
        return None

    @property
    def collapsed(self) -> bool:
        """Whether target or features did."""
        return self.collapsed_at is not None or self.features_collapsed_at is not None


@dataclass(frozen=True)
class Run:
    """A folder of `burn pretrain`.

    chosen: given by itself, not as a part of a comparison. views: its picture of augmented views.
    """

    folder: Path
    about: Mapping[str, Any]
    stages: tuple[Stage, ...]
    chosen: bool = True
    views: bytes | None = None

    @property
    def name(self) -> str:
        """Short, for headings."""
        return self.folder.name

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Its settings."""
        found = dig(self.about, "plan", "recipe")
        return found if isinstance(found, Mapping) else {}

    @property
    def recipe_name(self) -> str:
        """As `--recipe` took it."""
        return words(self.about, "plan", "recipe_name")

    @property
    def method(self) -> str:
        """burn, byol …"""
        return words(self.recipe, "method")

    @property
    def num_stages(self) -> int:
        """How many it is to have."""
        told = next((number(s.meta, "num_stages") for s in self.stages if s.meta), None)
        if told is None:
            told = number(self.recipe, "stages")
        return max(int(told or 1), len(self.stages))

    @property
    def finished(self) -> bool:
        """Whether every stage is trained."""
        return len(self.stages) == self.num_stages and all(s.finished for s in self.stages)

    @property
    def is_float(self) -> bool:
        """Whether the network has no bits, as teachers have none."""
        return any(s.precision == "float" for s in self.stages)

    @property
    def seconds(self) -> float | None:
        """Of training, all stages."""
        each = [number(s.meta, "monitor", "seconds") for s in self.stages]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if known and len(known) == len(each) else None

    @property
    def images(self) -> int | None:
        """How many there are to learn from."""
        count = number(self.about, "data", "images")
        return None if count is None else int(count)

    @property
    def images_seen(self) -> int | None:
        """In all stages; the views of an image count once."""
        steps = [s.steps for s in self.stages]
        return self.images_of(sum(step or 0 for step in steps)) if steps else None

    def images_of(self, steps: int) -> int | None:
        """How many images so many optimizer steps see."""
        told = next((number(s.meta, "images_per_step") for s in self.stages if s.meta), None)
        if told is not None:
            return int(told * steps)
        batch = number(self.recipe, "batch_size")
        return None if batch is None else int(min(batch, self.images or batch) * steps)


@dataclass(frozen=True)
class Judgement:
    """A Result and the folder it was read from; `group` is the comparison or ablation, if any."""

    result: Result
    folder: Path
    group: Path | None = None


@dataclass(frozen=True)
class Confusion:
    """How often each class was taken for each.

    counts: rows are true classes, columns predicted ones.
    """

    folder: Path
    protocol: str
    model: str
    test: str
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Neighbour:
    """A training image; cosine is None for the query itself."""

    label: str
    cosine: float | None


@dataclass(frozen=True)
class Neighbours:
    """Test images and what lies nearest to them.

    file: that describes them. rows: the query first. picture: tiles in a grid, a row of it for each
    of rows.
    """

    file: Path
    model: str
    checkpoint: str
    train: str
    test: str
    grid: Grid
    picture: bytes
    rows: tuple[tuple[Neighbour, ...], ...]


@dataclass(frozen=True)
class Detected:
    """The picture that detection leaves."""

    folder: Path
    picture: bytes


@dataclass(frozen=True)
class Group:
    """A folder of `burn compare` or `burn ablate`: runs at one budget, judged alike."""

    folder: Path
    about: Mapping[str, Any]
    ablation: bool


@dataclass(frozen=True)
class Analysis:
    """A folder of `burn analyze`: pictures, each with its paragraph."""

    folder: Path
    figures: tuple[tuple[str, bytes | None, str], ...]  # name, SVG, text


@dataclass(frozen=True)
class Gathered:
    """Everything that was found, in the order in which the folders were given."""

    folders: tuple[Path, ...]
    runs: tuple[Run, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()
    detected: tuple[Detected, ...] = ()
    groups: tuple[Group, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def gather(folders: Sequence[Path]) -> Gathered:
    """All that the folders hold. Raises UserError for what is missing, unknown or damaged."""
    if not folders:
        raise UserError("give at least one folder: a run, results or a comparison")
    unique = {_folder(folder): folder for folder in folders}
    found = _Finder()
    # Groups first: a run that is given beside its comparison belongs to it all the same.
    for folder in sorted(unique.values(), key=lambda f: not _is_group(f)):
        if found.read(folder):
            continue
        within = [part for part in _parts(folder) if found.read(part)]
        if not within:
            raise UserError(f"{folder} holds nothing that a report shows: give {_KNOWN}")
    return found.gathered(tuple(unique.values()))


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
    return _there(folder / "comparison.json") or _there(folder / "ablation.json")


def _parts(folder: Path) -> list[Path]:
    """Folders in it, by name; links to elsewhere are not followed."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())


def _results_of(folder: Path, name: str) -> list[Path]:
    """A campaign's results by kNN and linear evaluation, and those by other protocols beside it."""
    stem = name.removesuffix(".jsonl")
    return [folder / name, *sorted(folder.glob(f"{stem}-*.jsonl"))]


@dataclass
class _Finder:
    """Collects; every folder and file is read once, whichever way it was reached."""

    runs: dict[Path, Run] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    confusions: list[Confusion] = field(default_factory=list)
    neighbours: list[Neighbours] = field(default_factory=list)
    detected: list[Detected] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    analyses: list[Analysis] = field(default_factory=list)
    files: dict[Path, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def read(self, folder: Path) -> bool:
        """Whether there was anything in it."""
        known = False
        for name, ablation in (("comparison.json", False), ("ablation.json", True)):
            if _there(folder / name):
                self._group(folder, self._json(folder / name), ablation)
                known = True
        if _there(folder / "run.json"):
            self._run(folder, chosen=True)
            for file in _results_of(folder, "compared.jsonl"):
                self._results(file, None)
            known = True
        known |= self._evaluation(folder)
        if known and not _there(folder / "run.json") and not _is_group(folder):
            # burn demo leaves its runs beside its results
            for part in _parts(folder):
                if _there(part / "run.json"):
                    self._run(part, chosen=True)
        return known or self._analysis(folder)

    def gathered(self, folders: tuple[Path, ...]) -> Gathered:
        torn = [
            f"{run.folder}, stage {stage.number}: {count} torn lines of its monitors were left out"
            for run in self.runs.values()
            for stage in run.stages
            if (count := stage.metrics.torn + stage.gradients.torn + stage.layers.torn)
        ]
        return Gathered(
            folders, tuple(self.runs.values()), tuple(_newest(self.judgements)),
            tuple(self.confusions), tuple(self.neighbours), tuple(self.detected),
            tuple(self.groups), tuple(self.analyses), tuple(self.files.values()),
            tuple(self.notes + torn),
        )  # fmt: skip

    def _group(self, folder: Path, about: Mapping[str, Any], ablation: bool) -> None:
        self.groups.append(Group(folder, about, ablation))
        for part in _parts(folder):
            if _there(part / "run.json"):
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
            if not _there(meta) and not monitors.is_dir():
                break
            if monitors.is_symlink():
                raise UserError(f"{monitors} is a link: give the folder that it leads to")
            stages.append(
                Stage(
                    count,
                    self._json(meta) if _there(meta) else {},
                    self._rows(monitors / "metrics.csv", ()),
                    self._rows(monitors / "gradients.csv", ("part",)),
                    self._rows(monitors / "layers.csv", ("layer",)),
                )
            )
        views = folder / "views.jpg"
        picture = read_bytes(views, _MOST_PICTURE) if _there(views) and self._note(views) else None
        self.runs[key] = Run(folder, about, tuple(stages), chosen, picture)

    def _results(self, file: Path, group: Path | None) -> bool:
        if not _there(file):
            return False
        if self._note(file):
            for result in _read_results(file):
                self.judgements.append(Judgement(result, file.parent, group))
        return True

    def _evaluation(self, folder: Path) -> bool:
        known = self._results(folder / "results.jsonl", None)
        file = folder / "confusion.json"
        if _there(file) and self._note(file):
            self.confusions.append(_confusion(folder, _object(file)))
            known = True
        for file in _neighbours_files(folder):
            if self._note(file):
                self.neighbours.append(_neighbours(file, _object(file)))
                known = True
        file = folder / "detections.png"
        if _there(file) and self._note(file):
            self.detected.append(Detected(folder, read_bytes(file, _MOST_PICTURE)))
            known = True
        return known

    def _analysis(self, folder: Path) -> bool:
        names = sorted({f.stem for f in folder.iterdir() if f.suffix in (".svg", ".md")})
        figures = []
        for name in names:
            picture, words_of = folder / f"{name}.svg", folder / f"{name}.md"
            svg = read_bytes(picture, _MOST_TEXT) if _there(picture) else None
            text = read_bytes(words_of, _MOST_TEXT).decode(errors="replace") if (
                _there(words_of)
            ) else ""  # fmt: skip
            if svg is None and len(names) > 1 and not text.strip():
                continue
            for file in (picture, words_of):
                if _there(file):
                    self._note(file)
            figures.append((name, svg, text))
        if figures and any(svg is not None for _, svg, _ in figures):
            self.analyses.append(Analysis(folder, tuple(figures)))
            return True
        return False

    def _json(self, file: Path) -> Mapping[str, Any]:
        self._note(file)
        return _object(file)

    def _rows(self, file: Path, texts: tuple[str, ...]) -> Rows:
        if not _there(file):
            return Rows()
        self._note(file)
        return _read_rows(file, texts)

    def _note(self, file: Path) -> bool:
        """Whether the file is new."""
        key = file.resolve()
        if key in self.files:
            return False
        self.files[key] = file
        return True


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def read_bytes(path: Path, most: int) -> bytes:
    """A plain file of at most so many bytes. Raises UserError for any other."""
    try:
        if path.is_symlink():
            raise UserError(f"{path} is a link: put the file itself there, or remove it")
        # not to wait for the other end of a pipe
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise UserError(f"{path} is not a plain file: remove it")
            if about.st_size > most:
                raise UserError(
                    f"{path} has {about.st_size / _MB:.0f} MB, more than {most // _MB}: too large "
                    "for a page, leave its folder out"
                )
            return file.read(most)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _object(path: Path) -> Mapping[str, Any]:
    """A JSON file's object. Raises UserError for anything else."""
    try:
        value = json.loads(read_bytes(path, _MOST_JSON))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged (not JSON): make it anew, or leave its folder out"
        ) from error
    if not isinstance(value, Mapping) or not _is_shallow(value):
        raise UserError(f"{path} is damaged (no JSON object): make it anew, or leave it out")
    return value


def _is_shallow(value: Any, levels: int = 20) -> bool:
    """Whether lists and objects lie in each other no deeper than in anything of burn's."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)


def _read_results(path: Path) -> list[Result]:
    read_bytes(path, _MOST_JSON)  # a plain file of a sensible size
    try:
        results = read_results(path)
    except UserError as error:
        raise UserError(f"{error}; remove that line, or leave the folder out") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: remove it, or leave its folder out") from error
    for line, r in enumerate(results, start=1):
        texts = (r.protocol, r.metric, r.model, r.checkpoint, r.train, r.test)
        numbers = (r.value, r.seconds, *([] if r.spread is None else [r.spread]))
        good = (
            all(isinstance(text, str) for text in texts)
            and all(finite(value) is not None for value in numbers)
            and isinstance(r.seed, int)
            and isinstance(r.settings, Mapping)
            and _is_shallow(r.settings)
            and all(
                more is None or (isinstance(more, Mapping) and _is_shallow(more))
                for more in (r.data, r.training)
            )
        )
        if not good:
            raise UserError(f"{path} line {line} is not a result: remove that line")
    return results


def _read_rows(path: Path, texts: tuple[str, ...]) -> Rows:
    """Any CSV with a column `step`: what is no number in the others counts as torn."""
    lines = read_bytes(path, _MOST_CSV).decode(errors="replace").splitlines()
    if not lines:
        return Rows()
    rows: list[Mapping[str, Any]] = []
    torn = 0
    reader = csv.reader(lines)
    try:
        header = next(reader)
        if "step" not in header or len(set(header)) < len(header):
            raise UserError(f"{path} is damaged (no column step): remove it, or leave the run out")
        for cells in reader:
            if row := _row(header, cells, texts):
                rows.append(row)
            else:
                torn += 1
    except csv.Error:
        torn += 1
    return Rows(tuple(rows), torn)


def _row(header: list[str], cells: list[str], texts: tuple[str, ...]) -> dict[str, Any] | None:
    if len(cells) != len(header):
        return None
    row: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if name in texts:
            row[name] = cell
        elif cell:
            try:
                value = float(cell)
            except ValueError:
                return None
            if math.isfinite(value):
                row[name] = value
    return row if 0 <= row.get("step", -1) < 1e15 and all(row.get(t) for t in texts) else None


# What `Result.settings` holds beside settings.
_OUTCOMES = {"sweep", "classes", "pretraining", "chosen_lr", "rates"}


def settings_of(result: Result) -> dict[str, Any]:
    """The protocol's settings without what came out of it."""
    chosen = {"lr", "head_factor"} if result.protocol == "semi" else set()
    return {k: v for k, v in result.settings.items() if k not in _OUTCOMES | chosen}


def _newest(judgements: Iterable[Judgement]) -> list[Judgement]:
    """Of numbers that are there twice, the last, in the place of the first.

    A campaign's are its own: two campaigns evaluate the same teacher, each for its own tables.
    """
    kept: dict[tuple[str, ...], Judgement] = {}
    for judgement in judgements:
        r = judgement.result
        settings = json.dumps(settings_of(r), sort_keys=True, default=str)
        key = (
            str(judgement.group), r.protocol, r.metric, r.model, r.checkpoint, r.train, r.test,
            str(r.seed), settings,
        )  # fmt: skip
        kept[key] = judgement
    return list(kept.values())


def _confusion(folder: Path, value: Mapping[str, Any]) -> Confusion:
    file = folder / "confusion.json"
    classes, counts = value.get("classes"), value.get("counts")
    try:
        names = tuple(str(name) for name in _list(classes))
        table = tuple(tuple(_count(c) for c in _list(row)) for row in _list(counts))
        if not 1 <= len(names) <= _MOST_CLASSES or len(table) != len(names):
            raise ValueError
        if any(len(row) != len(names) for row in table):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{file} is damaged (classes and counts do not fit): evaluate again, or remove it"
        ) from error
    about = {name: words(value, name) for name in ("protocol", "model", "test")}
    return Confusion(folder, **about, classes=names, counts=table)


def _neighbours_files(folder: Path) -> list[Path]:
    """A file for each network; burn 0.1.0 kept one, neighbours.json, for the newest."""
    inner = folder / "neighbours"
    if inner.is_symlink():
        raise UserError(f"{inner} is a link: give the folder that it leads to")
    old = folder / "neighbours.json"
    return ([old] if _there(old) else []) + (sorted(inner.glob("*.json")) if inner.is_dir() else [])


def _neighbours(file: Path, value: Mapping[str, Any]) -> Neighbours:
    try:
        name = value["picture"]
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+\.(jpg|png)", name):
            raise ValueError
        grid, columns = _grid_of(value), _count(value["columns"])
        if not 1 <= columns <= 64:
            raise ValueError
        rows = []
        for row in _list(value["rows"]):
            others = [
                Neighbour(str(other["label"]), float(other["cosine"]))
                for other in _list(row["neighbours"])
            ]
            if len(others) >= columns or any(not math.isfinite(o.cosine or 0) for o in others):
                raise ValueError
            rows.append((Neighbour(str(row["label"]), None), *others))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{file} is damaged: evaluate again, or remove it") from error
    about = {name: words(value, name) for name in ("model", "checkpoint", "train", "test")}
    picture = read_bytes(file.parent / name, _MOST_PICTURE)
    return Neighbours(file, **about, grid=grid, picture=picture, rows=tuple(rows))


def _grid_of(value: Mapping[str, Any]) -> Grid:
    """Of a JSON file of neighbours; burn 0.1.0 wrote tiles side by side.

    Raises ValueError and its like.
    """
    side = _count(value["side"])
    left, top = _count(value.get("left", 0)), _count(value.get("top", 0))
    right, down = (_count(number) for number in value.get("step", (side, side)))
    if not 1 <= side <= 1024 or not all(0 <= n <= 2048 for n in (left, top, right, down)):
        raise ValueError
    return Grid(side, left, top, (right, down))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError
    return value


def dig(value: Any, *names: str) -> Any:
    """What lies at the end of a path of names, or None."""
    for name in names:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def words(value: Any, *names: str) -> str:
    """A text at the end of a path of names, or nothing."""
    found = dig(value, *names)
    return found if isinstance(found, str) else ""


def number(value: Any, *names: str) -> float | None:
    """A finite number at the end of a path of names, or None."""
    return finite(dig(value, *names))


def finite(value: Any) -> float | None:
    """As a float, if it is a number that can be drawn."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if abs(as_float) < _LARGEST else None


def short_path(text: str) -> str:
    """The end of a path, enough to know it by: cifar10/train.parquet."""
    parts = [part for part in re.split(r"[/\\]", text) if part]
    return "/".join(parts[-2:]) if len(parts) > 2 or text.startswith("/") else text
