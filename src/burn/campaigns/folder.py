"""The folder of a campaign: its settings, and the results of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from burn.campaigns.settings import LABELLED_TEACHER, RANDOM, TEACHER, MoreProtocol
from burn.core.errors import UserError
from burn.core.files import remove_unfinished, write_text
from burn.core.inputs import read_text
from burn.core.paths import same_path
from burn.core.results import Result, read_results, result_lines

RESULTS_FILE = "compared.jsonl"  # kNN and linear; other protocols have a file each beside it
KEPT = "evaluation"  # folder of what protocols resume from
_LATER = {"teacher_size", "labelled_teacher_size"}  # settings that campaigns once did not have
FEATURES = "teacher-features"  # folder of the cache that all runs share
_NUMBERS = [("knn", "top1"), ("linear", "top1"), ("linear", "top5")]


def read_campaign(out: Path) -> list[Result]:
    """Results of everything in the folder that is evaluated, in the order of names."""
    files = [
        (file, file.parent.name.rpartition("-seed")[0], True)
        for file in out.glob(f"*/{RESULTS_FILE}")
    ]
    files += [
        (out / reference_file(name), name, False) for name in (RANDOM, TEACHER, LABELLED_TEACHER)
    ]
    return [
        result
        for file, model, trained in sorted(files)
        for part in (
            read_results_of(file, model, trained=trained),
            *(read_more(file.parent, p, model, trained=trained) for p in get_args(MoreProtocol)),
        )
        for result in part or ()
    ]


def open_folder(
    out: Path,
    name: str,
    shared: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    told: Mapping[str, Any],
) -> None:
    """A new folder, or one whose runs have the same settings, which stand in NAME.json.

    shared: settings that may not change; but a teacher may be added, and data and teachers may be
    named in another way. fingerprints: of data and teachers, by name; they may not change. told:
    what NAME.json says besides, each time anew. Raises UserError naming what did change.
    """
    shared = json.loads(json.dumps(shared))
    file = out / f"{name}.json"
    remove_unfinished(out)
    if file.is_file():
        content = read_text(file)  # without permission it is not damaged
        try:
            stored = json.loads(content)
            known = {name: stored[name] for name in shared if name not in _LATER}
            known |= {name: stored.get(name) for name in shared if name in _LATER}
            before = dict(stored.get("files", {}))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged: remove it to begin anew") from error
        names: dict[str, str] = {}  # of the same file: as given now -> as in the campaign's file
        for name, value in shared.items():
            was, is_teacher = known[name], name in ("teacher", "labelled_teacher")
            if was == value or (is_teacher and None in (value, was)):
                continue
            if name in _LATER and known[name.removesuffix("_size")] is None:
                known[name] = value  # of a teacher that is added
                continue
            same = (is_teacher or name in ("data", "test")) and (
                same_path(str(was), str(value))
                or (is_teacher and before.get(was) == fingerprints.get(value, ""))
            )
            if not same:
                raise UserError(
                    f"{out} was begun with --{name.replace('_', '-')} {was}, not {value}: give "
                    "another --out"
                )
            names[value] = was
        shared = {**shared, **{n: known[n] for n in shared if known[n] is not None}}
        for name, fingerprint in fingerprints.items():
            if before.get(names.get(name, name), fingerprint) != fingerprint:
                raise UserError(
                    f"{name} is not what it was when {out} was begun: give another --out"
                )
        fingerprints = {**before, **fingerprints}
    elif out.is_dir() and any(not _is_ours(path) for path in out.iterdir()):
        raise UserError(f"--out {out} is not empty and holds no {name}: give another folder")
    elif out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    write_text(file, json.dumps({**shared, "files": fingerprints, **told}, indent=2) + "\n")


def _is_ours(path: Path) -> bool:
    """Whether a campaign may have left it. Its runs know themselves what they were begun with."""
    if path.is_dir():
        return "-seed" in path.name or path.name in ("logs", FEATURES) or KEPT in path.name
    return path.suffix in (".jsonl", ".md", ".svg")


def reference_file(name: str) -> str:
    return f"{name.replace(' ', '-')}.jsonl"


def more_file(folder: Path, protocol: MoreProtocol, reference: str | None = None) -> Path:
    """The file of a protocol's results: in a run's folder, or a reference's in the campaign's."""
    file = folder / (reference_file(reference) if reference else RESULTS_FILE)
    return file.with_name(f"{file.stem}-{protocol}.jsonl")


def read_more(
    folder: Path, protocol: MoreProtocol, model: str, *, trained: bool
) -> list[Result] | None:
    """The results that were written to `more_file`, or None where they are not, or not whole."""
    file = more_file(folder, protocol, None if trained else model)
    try:
        results = read_results(file)
        seed = int(file.parent.name.rpartition("-seed")[2]) if trained else 0
        whole = bool(results) and all(
            (r.model, r.seed, type(r.seed)) == (model, seed, int)
            and protocol.startswith(r.protocol)
            and math.isfinite(r.value)
            and (not trained or 0 <= r.settings["pretraining"]["seconds"] < 1e9)
            for r in results
        )
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return results if whole else None


def write_results(file: Path, results: Sequence[Result]) -> None:
    write_text(file, result_lines(results))


def read_results_of(file: Path, model: str, *, trained: bool) -> list[Result] | None:
    """The results that `write_results` wrote, or None where they are not, or not whole."""
    try:
        results = read_results(file)
        seed = int(file.parent.name.rpartition("-seed")[2]) if trained else 0
        whole = [(r.protocol, r.metric) for r in results] == _NUMBERS and all(
            _is_whole(r, model, seed, trained) for r in results
        )
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return results if whole else None


def _is_whole(result: Result, model: str, seed: int, trained: bool) -> bool:
    """Whether it is what tables and pictures take it for. May raise TypeError or KeyError."""
    settings = result.settings
    whole = (
        (result.model, result.seed, type(result.seed)) == (model, seed, int)
        and 0 <= result.value <= 100
        and isinstance(settings["compute"], str)
    )
    if result.protocol == "linear":
        rate = settings["chosen_lr"] if settings["lr"] == "auto" else settings["lr"]
        whole &= all(0 <= number < 1e9 for number in (rate, settings["epochs"]))
        whole &= isinstance(settings["augment"], str)
    if trained:
        about = settings["pretraining"]
        whole &= 0 <= about["seconds"] < 1e9 and 0 < about["epochs"] < 1e9
        whole &= isinstance(about["recipe"], str)
        for collapsed in ("collapsed_stages", "collapsed_features"):
            whole &= isinstance(about.get(collapsed, []), list)
    return whole
