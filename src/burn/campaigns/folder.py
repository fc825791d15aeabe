"""The folder of a campaign: its settings, and the results of its runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from burn.campaigns.settings import LABELLED_TEACHER, RANDOM, TEACHER, FurtherProtocol
from burn.core.errors import UserError
from burn.core.files import is_unfinished, remove_unfinished, write_text
from burn.core.inputs import read_text
from burn.core.paths import same_path
from burn.core.results import Result, read_results, result_lines
from burn.data.fingerprint import is_earlier

RUN_STEM = "compared"  # begins the names of the files of a run's results, one for each protocol
KEPT = "evaluation"  # folder of the files from which protocols resume
_LATER = {"teacher_size", "labelled_teacher_size"}  # settings missing in older campaigns
_OPTIONAL = {"transfer_train", "transfer_test", "semi"}  # of protocols that a call may leave out
_DATA = {"data", "test", "transfer_train", "transfer_test"}
FEATURES = "teacher-features"  # folder of the cache that all runs share
_NUMBERS = [("knn", "top1"), ("linear", "top1"), ("linear", "top5")]


def read_campaign(out: Path) -> list[Result]:
    """Read the results of all evaluated networks in the folder, in the order of file names."""
    files = [
        (file, file.parent.name.rpartition("-seed")[0], True)
        for file in out.glob(f"*/{RUN_STEM}.jsonl")
    ]
    references = (RANDOM, TEACHER, LABELLED_TEACHER)
    files += [(results_file(out, reference=name), name, False) for name in references]
    results: list[Result] = []
    for file, model, trained in sorted(files):
        usual = read_results_of(file.parent, model, trained=trained)
        if usual is None:
            continue
        results += usual
        for protocol in get_args(FurtherProtocol):
            results += read_results_of(file.parent, model, protocol, trained=trained) or ()
    return results


def require_usable(out: Path, name: str) -> None:
    """Raise UserError unless the folder `out` is a campaign's, or empty, or does not exist."""
    if os.path.lexists(out) and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder")
    if (out / f"{name}.json").is_file() or not out.is_dir():
        return
    if any(not _is_ours(path) for path in out.iterdir()):
        raise UserError(f"--out {out} is not empty and holds no {name}: give another folder")


def open_folder(
    out: Path,
    name: str,
    shared: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    further_entries: Mapping[str, Any],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write NAME.json in a campaign's folder, or check that an existing one has the same settings.

    UserError is raised if a shared setting or a fingerprint of data or teachers has changed, or the
    folder is not a campaign's. A teacher and further protocols may be added, though, and data and
    teachers may be named in another way or have moved. Further entries are written anew each time;
    `check` looks at the runs in the folder, before anything is written.
    """
    shared = json.loads(json.dumps(shared))
    file = out / f"{name}.json"
    remove_unfinished(out)
    if file.is_file():
        content = read_text(file)  # outside try: a file without read permission is not damaged
        try:
            stored = json.loads(content)
            left_out = {name: stored[name] for name in _OPTIONAL - set(shared) if name in stored}
            usual = {name: shared[name] for name in _OPTIONAL & set(shared)} | dict.fromkeys(_LATER)
            expected = {
                name: stored.get(name, usual[name]) if name in usual else stored[name]
                for name in shared
            }
            before = dict(stored.get("files", {}))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged: give another --out") from error
        names: dict[str, str] = {}  # name given now -> name in NAME.json, for the same file
        for name, value in shared.items():
            was, is_teacher = expected[name], name in ("teacher", "labelled_teacher")
            if was == value or (is_teacher and None in (value, was)):
                continue
            if name in _LATER and expected[name.removesuffix("_size")] is None:
                expected[name] = value  # the size of a teacher that is added
                continue
            is_data = name in _DATA
            option = name if name == "semi" else f"--{name.replace('_', '-')}"
            if is_teacher:
                same = before.get(was) == fingerprints.get(value, "")
            else:
                same = is_data and before.get(option) == fingerprints.get(option, "")
            if not (same or ((is_teacher or is_data) and same_path(str(was), str(value)))):
                other = f"{value}, which holds other images" if is_data else value
                raise UserError(
                    f"{out} was begun with {option} {was}, not {other}: give another --out"
                )
            if is_data:
                expected[name] = value  # where its images are now
            else:
                names[value] = was
        known = {name: value for name, value in expected.items() if value is not None}
        shared = {**left_out, **shared, **known}
        for name, fingerprint in fingerprints.items():
            earlier = before.get(names.get(name, name), fingerprint)
            if earlier != fingerprint and not is_earlier(earlier, fingerprint):
                setting = name.removeprefix("--").replace("-", "_")
                what = f" {shared.get(setting)}" if setting in _DATA else ""
                raise UserError(
                    f"{name}{what} has changed since {out} was begun: give another --out"
                )
        fingerprints = {**before, **fingerprints}
    else:
        require_usable(out, name)
    check()
    write_text(
        file, json.dumps({**shared, "files": fingerprints, **further_entries}, indent=2) + "\n"
    )


def _is_ours(path: Path) -> bool:
    """Return whether a campaign may have left the path; runs check their own settings."""
    if is_unfinished(path):
        return True
    if path.is_dir():
        return "-seed" in path.name or path.name in ("logs", FEATURES) or KEPT in path.name
    return path.suffix in (".jsonl", ".md", ".svg")


def results_file(
    folder: Path, protocol: FurtherProtocol | None = None, reference: str | None = None
) -> Path:
    """Return the file of a run's results in its folder, or of a reference's in the campaign's.

    Without a protocol it has those of kNN and linear evaluation.
    """
    stem = reference.replace(" ", "-") if reference else RUN_STEM
    return folder / (f"{stem}-{protocol}.jsonl" if protocol else f"{stem}.jsonl")


def write_results(file: Path, results: Sequence[Result]) -> None:
    write_text(file, result_lines(results, file.parent))


def read_results_of(
    folder: Path, model: str, protocol: FurtherProtocol | None = None, *, trained: bool
) -> list[Result] | None:
    """Read the results in a `results_file`; None if they are missing or incomplete.

    `trained` says that the campaign trained the model; otherwise it is a reference.
    """
    try:
        results = read_results(results_file(folder, protocol, None if trained else model))
        seed = int(folder.name.rpartition("-seed")[2]) if trained else 0
        if protocol is None:
            whole = [(r.protocol, r.metric) for r in results] == _NUMBERS
            whole = whole and all(_is_whole(r, model, seed, trained) for r in results)
        else:
            whole = bool(results) and all(
                (r.model, r.seed, type(r.seed)) == (model, seed, int)
                and protocol == _protocol_of(r)
                and math.isfinite(r.value)
                and (not trained or 0 <= r.settings["pretraining"]["seconds"] < 1e9)
                for r in results
            )
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return results if whole else None


def _protocol_of(result: Result) -> str:
    """Return the further protocol of a result; semi's has the share of the labels in its name."""
    share = result.metric.partition("%")[0] if result.protocol == "semi" else ""
    return f"{result.protocol}{share}"


def _is_whole(result: Result, model: str, seed: int, trained: bool) -> bool:
    """Return whether a result has everything that tables and pictures read.

    May raise TypeError or KeyError.
    """
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
