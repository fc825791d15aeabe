"""Whether two runs are the same, and the resume files of a stage, also of earlier versions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burn.core.paths import same_path
from burn.data.fingerprint import is_earlier
from burn.learning.resume_files import ResumeFiles, first_difference
from burn.recipes.schema import without_other_methods


def stage_files(
    folder: Path, owner: str = "", settings: Mapping[str, Any] | None = None
) -> ResumeFiles:
    """Return the resume files of a stage in a folder; owner and settings as for `ResumeFiles`."""
    return ResumeFiles(folder, owner, settings, difference_of_runs, _as_now)


def _as_now(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if "loops" not in content:
        return content
    # It was written when burn trained with Lightning's Trainer.
    (loader,) = content["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    return {
        **content,
        "loader": loader,
        "batches": loader["used"],
        "learner": {"learned": content["learned"]},
    }


def difference_of_runs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the first difference of two runs, as in run.json, that affects their numbers, or None.

    Another place of the same images, or of a teacher or start with the same weights, is no
    difference, nor is another length, to which a run is extended. Of a run whose fingerprint an
    earlier version of burn computed, the place and number of the images are compared.
    """
    old = copy.deepcopy(dict(old))
    for before, now in ((old, new), (old.get("plan"), new.get("plan"))):
        _take_length(before, now, "max_steps")
        if isinstance(before, dict) and isinstance(now, Mapping):
            if isinstance(before.get("recipe"), Mapping):
                before["recipe"] = without_other_methods(before["recipe"])
            _take_length(before.get("recipe"), now.get("recipe"), "epochs")
    for part in ("data", "teacher", "init"):
        before, now = old.get(part), new.get(part)
        if not isinstance(before, dict) or not isinstance(now, dict):
            continue
        if part == "data":
            if difference := _difference_of_data(before, now):
                return difference
        elif before | {"spec": now.get("spec")} != now:  # the rest contains the weights' SHA-256
            continue
        old[part] = now
        if isinstance(old.get("plan"), dict):
            old["plan"][part] = new["plan"][part]
    return first_difference(old, dict(new))


def _take_length(before: Any, now: Any, name: str) -> None:
    if isinstance(before, dict) and isinstance(now, Mapping) and name in before:
        before[name] = now.get(name)


def _difference_of_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    there = same_path(str(before.get("name")), str(now.get("name")))
    if is_earlier(before.get("fingerprint"), now.get("fingerprint")):
        if not there:
            return (
                f"an earlier burn began it on {before.get('name')} and did not look at the pixels: "
                f"nothing says whether {now['name']} holds the same images"
            )
        same = before.get("images") == now.get("images")
    else:
        same = before.get("fingerprint") == now.get("fingerprint")
    if same:
        return None
    numbers = f"{before.get('images')} images then, {now.get('images')} now"
    if there:
        return f"{now['name']} holds other images or labels than then ({numbers})"
    return f"{now['name']} does not hold the images and labels of {before.get('name')} ({numbers})"
