"""Resume files, from which an interrupted stage is resumed: the newest and the previous one."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.inputs import require_regular
from burn.core.paths import same_path
from burn.data.fingerprint import is_earlier

_HELD = ("state_dict", "optimizer_states", "callbacks", "global_step")


def _is_stage(content: Mapping[str, Any]) -> bool:
    """Return whether a file's content is all that a stage needs to go on."""
    return all(content[part] for part in _HELD) and num_batches(content) > 0


def num_batches(content: Mapping[str, Any]) -> int:
    """Return the number of micro-batches before the state in a file's content.

    Raises:
        KeyError: It is not there.
    """
    if "loops" in content:  # written when burn trained with Lightning's Trainer
        (loader,) = content["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        return int(loader["used"])
    return int(content["batches"])


def first_difference(old: Any, new: Any, name: str) -> str | None:
    """Find the first difference between two descriptions of plain JSON values.

    Args:
        old: The old description. A key that it lacks is no difference, since earlier versions may
            not have written it.
        new: The new description.
        name: Name of the descriptions in the result; "" for none.

    Returns:
        The difference as `NAME was OLD, is NEW`, or None.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            found = first_difference(old[key], new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if old == new else f"{name} was {old}, is {new}"


def difference_of_runs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Find the first difference between two runs that affects their numbers.

    Another place of the same images, or of a teacher or start with the same weights, is no
    difference, nor is another length, to which a run is extended. Of a run whose fingerprint an
    earlier version of burn computed, the place and number of the images are compared.

    Args:
        old: The old run: `data`, `teacher`, `init`, and possibly `plan` and more, as in run.json.
        new: The new run, likewise.

    Returns:
        The difference in words, such as `NAME was OLD, is NEW`, or None.
    """
    old = copy.deepcopy(dict(old))
    for before, now in ((old, new), (old.get("plan"), new.get("plan"))):
        _take_length(before, now, "max_steps")
        if isinstance(before, dict) and isinstance(now, Mapping):
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
    return first_difference(old, dict(new), "")


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


class ResumeFiles:
    """The resume files of one stage, in its folder.

    Args:
        folder: The folder of the stage.
        owner: Identifies the run and its stage. It is stored in the files, so that the file of
            another run or stage is never used.
        settings: Everything that affects the numbers of the training, as plain JSON values. It is
            stored in the files, so that a run is never resumed with other settings.
        whole: Returns whether the content of a file is complete; it may raise KeyError.

    Attributes:
        newest: The newest file.
        previous: The one before it.
        damaged: The name that a damaged newest file is given.
    """

    def __init__(
        self,
        folder: Path,
        owner: str,
        settings: Mapping[str, Any] | None = None,
        whole: Callable[[Mapping[str, Any]], bool] = _is_stage,
    ) -> None:
        self.owner, self._whole = owner, whole
        self.settings = json.dumps(settings or {})
        self.newest = folder / "resume.ckpt"
        self.previous = folder / "resume.previous.ckpt"
        self.damaged = folder / "resume.damaged.ckpt"

    def add(self, content: bytes) -> None:
        """Write a new newest file; the last one becomes the previous one.

        Raises:
            OSError: It cannot be written. The last good file is kept.
        """

        write_beside(self.newest, lambda to: to.write_bytes(content), keep=self.previous)

    def usable(self, shapes: Mapping[str, torch.Size], console: Console) -> Path | None:
        """Return the newest file that is not damaged, or None if there are no files.

        A damaged newest file is renamed, with a message.

        Args:
            shapes: Names and shapes of the tensors in the stage's state dict.
            console: Where the message is printed.

        Raises:
            UserError: A file is from another stage or run or has other settings, or all files are
                damaged.
        """
        files = [file for file in (self.newest, self.previous) if file.exists()]
        damaged: list[Path] = []
        for file in files:
            problem = _problem(file, shapes, self.owner, self.settings, self._whole)
            if problem is None:
                for other in damaged:
                    # Otherwise the next file would take the good one's place.
                    other.replace(self.damaged)
                    console.print(
                        f"{other} is damaged, and is now {self.damaged.name}: resuming from the "
                        f"previous file, {file}"
                    )
                return file
            if problem != "damaged":
                raise UserError(f"{file} is {problem}: remove it to begin this stage again")
            damaged.append(file)
        if damaged:
            both = " and ".join(str(file) for file in damaged)
            what = "is damaged: remove it" if len(damaged) == 1 else "are damaged: remove them"
            raise UserError(f"{both} {what} to begin this stage again")
        return None

    def finish(self, *, keep: bool) -> None:
        """Delete what a finished stage does not need.

        Args:
            keep: Whether to keep the newest file, from which a longer run goes on.
        """
        for file in (self.previous, self.damaged, *(() if keep else (self.newest,))):
            file.unlink(missing_ok=True)


def _problem(
    file: Path,
    shapes: Mapping[str, torch.Size],
    owner: str,
    settings: str,
    is_whole: Callable[[Mapping[str, Any]], bool],
) -> str | None:
    require_regular(file)  # a pipe would block; a file without read permission is not damaged
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:  # torch never compares the checksums
                return "damaged"
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        found = {name: tensor.shape for name, tensor in content["state_dict"].items()}
        whole = is_whole(content)
        written_with = json.loads(content.get("settings", "{}"))  # earlier versions had none
    except MemoryError:
        raise
    except Exception:  # a damaged file may raise any exception
        return "damaged"
    if not whole:
        return "damaged"
    if content.get("owner") != owner:
        return "from another stage or run"
    difference = difference_of_runs(written_with, json.loads(settings))
    if difference:
        return f"from a run with other settings ({difference})"
    return None if found == shapes else "from another stage or run"
