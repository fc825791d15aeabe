"""The contents of a report, as plain values: runs, results and pictures."""

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
    """The rows of a monitor's CSV file, by column; `torn` lines were left out as damaged."""

    rows: tuple[Mapping[str, Any], ...] = ()
    torn: int = 0

    def points(self, name: str) -> list[tuple[float, float]]:
        return [(row["step"], row[name]) for row in self.rows if name in row]


@dataclass(frozen=True)
class Stage:
    """A stage of a run; `meta`, from its JSON file, is empty until the stage is finished."""

    number: int  # from 1
    meta: Mapping[str, Any]
    metrics: Rows
    gradients: Rows
    layers: Rows

    @property
    def finished(self) -> bool:
        return bool(self.meta)

    def monitored(self, name: str) -> float | None:
        """Return a number of the monitor's summary, which a finished stage has."""
        return number(self.meta, "monitor", name)

    @property
    def precision(self) -> str:
        name = words(self.meta, "precision")
        return {"binary_activations": "binary activations"}.get(name, name)

    @property
    def steps(self) -> int | None:
        count = number(self.meta, "steps")
        if count is None and self.metrics.rows:
            count = self.metrics.rows[-1]["step"]
        return None if count is None else int(count)

    @property
    def collapsed_at(self) -> int | None:
        """The first step at which the target no longer distinguished images, or None."""
        step = self.monitored("collapsed_at")
        if step is None and not self.finished:
            entropies = self.metrics.points("target_entropy")
            step = next((at for at, entropy in entropies if entropy < TARGET_ALARM), None)
        return None if step is None else int(step)

    @property
    def features_collapsed_at(self) -> int | None:
        """The first step at which the features no longer distinguished images, or None."""
        step = self.monitored("features_collapsed_at")
        if step is None and not self.finished:
            step = self._features_low_twice()
        return None if step is None else int(step)

    def _features_low_twice(self) -> float | None:
        """Return the step of the monitor's alarm, which needs two low rows in succession."""
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
        return self.collapsed_at is not None or self.features_collapsed_at is not None


@dataclass(frozen=True)
class Run:
    """A folder of `burn pretrain`."""

    folder: Path
    about: Mapping[str, Any]  # contents of run.json
    stages: tuple[Stage, ...]  # those that have begun
    chosen: bool = True  # whether it was given directly, not as a part of a campaign
    views: bytes | None = None  # picture of augmented views

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def recipe(self) -> Mapping[str, Any]:
        recipe = dig(self.about, "plan", "recipe")
        return recipe if isinstance(recipe, Mapping) else {}

    @property
    def recipe_name(self) -> str:
        return words(self.about, "plan", "recipe_name")

    @property
    def method(self) -> str:
        return words(self.recipe, "method")

    @property
    def num_stages(self) -> int:
        """The number of stages that it is to have."""
        stages = next((number(s.meta, "num_stages") for s in self.stages if s.meta), None)
        if stages is None:
            stages = number(self.recipe, "stages")
        return max(int(stages or 1), len(self.stages))

    @property
    def finished(self) -> bool:
        return len(self.stages) == self.num_stages and all(s.finished for s in self.stages)

    @property
    def is_float(self) -> bool:
        return any(s.precision == "float" for s in self.stages)

    @property
    def seconds(self) -> float | None:
        each = [stage.monitored("seconds") for stage in self.stages]
        measured = [seconds for seconds in each if seconds is not None]
        return sum(measured) if measured and len(measured) == len(each) else None

    @property
    def images(self) -> int | None:
        count = number(self.about, "data", "images")
        return None if count is None else int(count)

    @property
    def images_seen(self) -> int | None:
        """The images seen in all stages, or None; the views of an image count once."""
        steps = [s.steps for s in self.stages]
        return self.images_of(sum(step or 0 for step in steps)) if steps else None

    def images_of(self, steps: int) -> int | None:
        """Return how many images are seen in so many optimizer steps."""
        meta = next((stage.meta for stage in self.stages if stage.meta), None)
        seen, of = number(meta, "images_seen"), number(meta, "steps")
        if seen is not None and of:
            return round(seen / of * steps)
        images_per_step = number(meta, "images_per_step")
        if images_per_step is not None:
            return int(images_per_step * steps)
        batch = number(self.recipe, "batch_size")
        return None if batch is None else int(min(batch, self.images or batch) * steps)


@dataclass(frozen=True)
class LocatedResult:
    """A result and where it lies."""

    result: Result
    folder: Path
    group: Path | None = None  # folder of its comparison or ablation
    run: Run | None = None  # the run that its checkpoint belongs to, if that was given


@dataclass(frozen=True)
class Confusion:
    """Numbers of images by class; rows are true classes, columns predicted ones."""

    protocol: str
    model: str
    test: str
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Neighbour:
    """The class of a training image and its cosine to the test image; None for that itself."""

    label: str
    cosine: float | None


@dataclass(frozen=True)
class Neighbours:
    """Test images and their nearest training images, as `file` describes them."""

    file: Path
    model: str
    checkpoint: str
    train: str
    test: str
    grid: Grid
    picture: bytes  # JPEG or PNG with a row of tiles for each of `rows`
    rows: tuple[tuple[Neighbour, ...], ...]  # the test image first, then its neighbours


@dataclass(frozen=True)
class Group:
    """A folder of `burn compare` or `burn ablate`: runs at one budget, evaluated alike."""

    folder: Path
    about: Mapping[str, Any]
    ablation: bool


@dataclass(frozen=True)
class Analysis:
    """A folder of `burn analyze`."""

    folder: Path
    figures: tuple[tuple[str, bytes | None, str], ...]  # name, SVG and text of each


@dataclass(frozen=True)
class Gathered:
    """Everything that was read, in the order in which the folders were given."""

    folders: tuple[Path, ...]
    runs: tuple[Run, ...] = ()
    results: tuple[LocatedResult, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()
    detections: tuple[tuple[Path, bytes], ...] = ()  # folder and picture of each
    groups: tuple[Group, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
