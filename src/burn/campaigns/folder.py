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

RESULTS_FILE = "compared.jsonl"  # kNN and linear; every other protocol has its own file beside it
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
        for file in out.glob(f"*/{RESULTS_FILE}")
    ]
    files += [
        (out / reference_file(name), name, False) for name in (RANDOM, TEACHER, LABELLED_TEACHER)
    ]
    results: list[Result] = []
    for file, model, trained in sorted(files):
        network_results = read_results_of(file, model, trained=trained)
        if network_results is None:
            continue
        results += network_results
        for protocol in get_args(FurtherProtocol):
            results += read_more(file.parent, protocol, model, trained=trained) or ()
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

    The shared settings may not change, nor the fingerprints of data and teachers. A teacher and
    further protocols may be added, though, and data and teachers may be named in another way or
    have moved. Further entries are written anew each time; `check` looks at the runs in the
    folder, before anything is written.

    Raises:
        UserError: A setting or a fingerprint has changed, or the folder is not a campaign's.
    """
    shared = json.loads(json.dumps(shared))
    file = out / f"{name}.json"
    remove_unfinished(out)
    if file.is_file():
        content = read_text(file)  # outside try: a file without read permission is not damaged
        try:
            stored = json.loads(content)
            left_out = {name: stored[name] for name in _OPTIONAL - set(shared) if name in stored}
            added = {name for name in _OPTIONAL & set(shared) if name not in stored}
            expected = {name: stored[name] for name in shared if name not in _LATER | added}
            expected |= {name: shared[name] for name in added}
            expected |= {name: stored.get(name) for name in shared if name in _LATER}
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
        shared = {
            **left_out,
            **shared,
            **{n: expected[n] for n in shared if expected[n] is not None},
        }
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


def reference_file(name: str) -> str:
    return f"{name.replace(' ', '-')}.jsonl"


def more_file(folder: Path, protocol: FurtherProtocol, reference: str | None = None) -> Path:
    """Return the file of a protocol's results, in a run's folder or a reference's campaign's."""
    file = folder / (reference_file(reference) if reference else RESULTS_FILE)
    return file.with_name(f"{file.stem}-{protocol}.jsonl")


def read_more(
    folder: Path, protocol: FurtherProtocol, model: str, *, trained: bool
) -> list[Result] | None:
    """Read the results in `more_file`; None if they are missing or incomplete."""

    def are_whole(results: Sequence[Result], seed: int) -> bool:
        return bool(results) and all(
            (r.model, r.seed, type(r.seed)) == (model, seed, int)
            and protocol.startswith(r.protocol)
            and math.isfinite(r.value)
            and (not trained or 0 <= r.settings["pretraining"]["seconds"] < 1e9)
            for r in results
        )

    return _read_whole(more_file(folder, protocol, None if trained else model), trained, are_whole)


def write_results(file: Path, results: Sequence[Result]) -> None:
    write_text(file, result_lines(results, file.parent))


def read_results_of(file: Path, model: str, *, trained: bool) -> list[Result] | None:
    """Read the results of kNN and linear evaluation; None if they are missing or incomplete.

    `trained` says that the campaign trained the model; otherwise it is a reference.
    """

    def are_whole(results: Sequence[Result], seed: int) -> bool:
        return [(r.protocol, r.metric) for r in results] == _NUMBERS and all(
            _is_whole(r, model, seed, trained) for r in results
        )

    return _read_whole(file, trained, are_whole)


def _read_whole(
    file: Path, trained: bool, are_whole: Callable[[Sequence[Result], int], bool]
) -> list[Result] | None:
    try:
        results = read_results(file)
        seed = int(file.parent.name.rpartition("-seed")[2]) if trained else 0
        return results if are_whole(results, seed) else None
    except (UserError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


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
