"""Finds the run that a result is about, wherever both are now.

A result of today names its run by the entry `run` of run.json, which stays when folders are moved
or renamed. Results of burn 0.2 and earlier, and those of networks that burn did not train, have a
path alone.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from burn.core.paths import is_there
from burn.core.results import Result
from burn.report.load.contents import LocatedResult, Run
from burn.report.load.values import number, words

_STAGE = re.compile(r"stage(\d)(\.safetensors)?")


class Origins:
    """The runs of a report, by what results may say of them."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._by_place = {run.folder.absolute(): run for run in runs}
        self._by_identity: dict[str, list[Run]] = {}
        self._by_name: dict[str, list[Run]] = {}
        for run in self._by_place.values():
            self._by_identity.setdefault(words(run.about, "run"), []).append(run)
            self._by_name.setdefault(run.folder.name, []).append(run)

    def find(self, checkpoint: str, training: Any = None) -> Run | None:
        """Return the run that left a result's checkpoint, or None if it is not in the report."""
        folder = Path(checkpoint)
        if folder.suffix == ".safetensors" or stage_in(checkpoint):
            folder = folder.parent
        if identity := words(training, "run"):
            copies = self._by_identity.get(identity, [])
            return max(
                copies, key=lambda run: common_names(run.folder.absolute(), folder), default=None
            )
        place = folder.absolute()
        if place in self._by_place or is_foreign(checkpoint):
            return self._by_place.get(place)
        # Where another run is at that place, only a copy of all that was around it is likely.
        least = 2 if is_there(folder) else 1
        near = {
            run.folder.absolute(): count
            for run in self._by_name.get(folder.name, [])
            if _may_be_of(run, training)
            and (count := common_names(run.folder.absolute(), folder)) >= least
        }
        nearest = [place for place, count in near.items() if count == max(near.values())]
        return self._by_place[nearest[0]] if len(nearest) == 1 else None

    def located(self, result: LocatedResult) -> LocatedResult:
        """Return a result with its run and with the run's present place as its checkpoint."""
        r = result.result
        # A result in a campaign's folder is of the run in which it lies.
        run = self._by_place.get(result.folder.absolute()) if result.group else None
        run = run or self.find(r.checkpoint, r.training)
        if run is None:
            return result
        return replace(result, result=replace(r, checkpoint=place_in(run, r.checkpoint)), run=run)


def place_in(run: Run, checkpoint: str) -> str:
    """Return where a checkpoint of a run is now; the run's folder stands for its last stage."""
    stage = stage_in(checkpoint)
    last = stage is None or stage >= run.num_stages
    return str(run.folder if last else run.folder / Path(checkpoint).name)


def stage_in(checkpoint: str) -> int | None:
    """Return the stage that the path of a checkpoint names, or None if it names none."""
    match = _STAGE.fullmatch(Path(checkpoint).name)
    return int(match[1]) if match else None


def common_names(first: Path | str, second: Path | str) -> int:
    """Return how many names at the end of two paths are equal."""
    pairs = zip(reversed(Path(first).parts), reversed(Path(second).parts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def is_foreign(checkpoint: str) -> bool:
    """Return whether a checkpoint is named as hub:resnet50 or resnet50:FILE."""
    return re.match(r"\w{2,}:", checkpoint) is not None and not is_there(checkpoint)


def _may_be_of(run: Run, training: Any) -> bool:
    """Return whether a result that tells its training may be of a run."""
    stage, steps = number(training, "stage"), number(training, "steps")
    if stage is None or steps is None:
        return True
    return any((s.number, s.steps) == (stage, steps) for s in run.stages)


def with_same_images(results: Sequence[LocatedResult]) -> list[LocatedResult]:
    """Return results with one name for the same images, which may have been moved or renamed."""
    names: dict[str, tuple[str, str]] = {}

    def named(r: Result) -> Result:
        if not isinstance(r.data, Mapping) or not words(r.data, "test_fingerprint"):
            return r
        key = json.dumps(r.data, sort_keys=True, default=str)  # classes, numbers, fingerprints
        train, test = names.setdefault(key, (r.train, r.test))
        return replace(r, train=train, test=test)

    return [replace(found_result, result=named(found_result.result)) for found_result in results]
