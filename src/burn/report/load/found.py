"""What a report is made of: runs, results and pictures, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burn.core.results import Result
from burn.core.thresholds import RANK_ALARM, SPREAD_ALARM, TARGET_ALARM
from burn.report.load.images import Grid
from burn.report.load.values import dig, number, words


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
        """The precision of weights and activations, in words."""
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
        """Seconds of training, of all stages."""
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
class FoundResult:
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
    """A folder of `burn compare` or `burn ablate`: runs at one budget, evaluated alike."""

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
    found_results: tuple[FoundResult, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()
    detected: tuple[Detected, ...] = ()
    groups: tuple[Group, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
