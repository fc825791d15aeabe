"""Resume files, the newest and the previous one: when they are written, checked, and read."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.inputs import require_regular
from burn.learning.loop import Callback, Loop
from burn.runtime.signals import StopRequest

_NO_FILE = "not a file"
# What a `Loop` needs, and is never empty or 0.
_HELD = ("state_dict", "optimizer_states", "global_step", "batches")


def first_difference(old: Any, new: Any, name: str = "") -> str | None:
    """Return the first difference of two descriptions as `NAME was OLD, is NEW`, or None.

    They are plain JSON values. A key that the old one lacks is no difference, since earlier
    versions may not have written it.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            difference = first_difference(old[key], new.get(key), f"{name}.{key}" if name else key)
            if difference:
                return difference
        return None
    return None if old == new else f"{name} was {old}, is {new}"


class ResumeFiles:
    """The resume files of one training, such as a stage of a run.

    `owner`, which identifies the training, and `settings`, everything that affects its numbers as
    plain JSON values, are stored in the files, so that none is used for another training or with
    other settings, whose first difference `difference` returns in words. `as_now` brings the
    content of a file that an earlier version wrote into today's form; it may raise KeyError.
    """

    def __init__(
        self,
        folder: Path,
        owner: str,
        settings: Mapping[str, Any] | None = None,
        difference: Callable[[Any, Any], str | None] = first_difference,
        as_now: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda content: content,
        name: str = "resume",
    ) -> None:
        self.owner, self._difference, self._as_now = owner, difference, as_now
        self.settings = json.dumps(settings or {})
        self.newest = folder / f"{name}.ckpt"
        self.previous = folder / f"{name}.previous.ckpt"  # the one before it
        self.damaged = folder / f"{name}.damaged.ckpt"  # what a damaged newest file becomes

    def add(self, content: bytes) -> None:
        """Write a new newest file; the last becomes the previous one. An OSError loses neither."""
        write_beside(self.newest, lambda to: to.write_bytes(content), keep=self.previous)

    def resume(self, loop: Loop[Any], console: Console) -> bool:
        """Bring a loop into the state of the newest undamaged file; return whether there are files.

        A damaged newest file is renamed, with a message. UserError says that a file is of another
        training, or that all are damaged. Every process must call this.
        """
        shapes = {name: tensor.shape for name, tensor in loop.learner.weights().items()}
        processes = loop.processes
        file = processes.gather(processes.run_on_main(lambda: self._usable(shapes, console)))[0]
        if file is None:
            return False
        content = torch.load(file, map_location="cpu", weights_only=True)
        try:
            loop.load_state_dict(self._as_now(content))
        except UserError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"{file} does not fit this training: remove it to begin again"
            ) from error
        return True

    def _usable(self, shapes: Mapping[str, torch.Size], console: Console) -> Path | None:
        """Return the newest file that is not damaged, or None if there are no files."""
        files = [f for f in (self.newest, self.previous) if os.path.lexists(f)]
        damaged: list[Path] = []
        for file in files:
            problem = self._problem(file, shapes)
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
                one_more = problem == _NO_FILE and file != files[-1]
                then = f"go on from {files[-1].name}" if one_more else "begin again"
                raise UserError(f"{file} is {problem}: remove it to {then}")
            damaged.append(file)
        if damaged:
            both = " and ".join(str(file) for file in damaged)
            what = "is damaged: remove it" if len(damaged) == 1 else "are damaged: remove them"
            raise UserError(f"{both} {what} to begin again")
        return None

    def finish(self, *, keep: bool) -> None:
        """Delete what a finished training does not need; `keep` the newest for a longer run."""
        for file in (self.previous, self.damaged, *(() if keep else (self.newest,))):
            if not file.is_dir():
                file.unlink(missing_ok=True)

    def _problem(self, file: Path, shapes: Mapping[str, torch.Size]) -> str | None:
        if not file.is_file():
            return _NO_FILE
        require_regular(file)  # a file without read permission is not damaged
        try:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:  # torch never compares the checksums
                    return "damaged"
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            tensor_shapes = {name: tensor.shape for name, tensor in content["state_dict"].items()}
            content = self._as_now(content)
            whole = all(content[part] for part in _HELD) and "callbacks" in content
            written_with = json.loads(content.get("settings", "{}"))  # earlier versions had none
        except MemoryError:
            raise
        except Exception:  # a damaged file may raise any exception
            return "damaged"
        if not whole:
            return "damaged"
        if content.get("owner") != self.owner:
            return "from another training"
        if difference := self._difference(written_with, json.loads(self.settings)):
            return f"from a training with other settings ({difference})"
        return None if tensor_shapes == shapes else "from another training"


class SaveResume(Callback):
    """Saves a resume file at regular times, and ends training when a process is asked to stop.

    A file that cannot be written does not end the run. With `minutes` 0 every step is saved.
    """

    def __init__(
        self, files: ResumeFiles, stop: StopRequest, minutes: float, console: Console
    ) -> None:
        self._files, self._stop = files, stop
        self._seconds, self._console = 60 * minutes, console
        self._saved = time.monotonic()
        self.last_step: int | None = None  # that was saved
        self.stopped_by = 0  # number of the signal that ended training

    def on_start(self, loop: Loop[Any]) -> None:
        if loop.step:
            self.last_step = loop.step
        if loop.step and loop.step in loop.replanned_at:
            self._console.print(
                f"going on from step {loop.step}: the schedules of the learning rate, the loss and "
                f"all else are planned anew, over {loop.num_steps} steps",
                highlight=False,
            )

    def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
        if not loop.stepped:
            return
        # All processes must decide the same at the same step. 1 stands for a file that is due, so
        # signals, of which SIGHUP is 1, are counted from 2.
        due = time.monotonic() - self._saved >= self._seconds and loop.processes.is_main
        due = due or loop.step == loop.num_steps  # from there a longer run goes on
        signal = self._stop.number
        agreed = int(loop.processes.all_reduce_max(signal + 1 if signal else int(due)))
        if not agreed:
            return
        self._save(loop)
        if agreed > 1:
            # Processes that got no signal must stop, too, and skip what follows an epoch.
            self._stop.number = self.stopped_by = agreed - 1
            loop.should_stop = True

    def _save(self, loop: Loop[Any]) -> None:
        state = loop.state_dict()  # in every process, because callbacks communicate
        self._saved = time.monotonic()
        saved = loop.processes.is_main and self._written(loop, state)
        if loop.processes.all_reduce_max(saved):
            self.last_step = loop.step

    def _written(self, loop: Loop[Any], state: dict[str, Any]) -> bool:
        content = io.BytesIO()
        described = {"owner": self._files.owner, "settings": self._files.settings}
        torch.save({**state, **described}, content)
        try:
            self._files.add(content.getvalue())
        except OSError as error:
            kept = f"that of step {self.last_step}" if self.last_step else "there is none yet"
            self._console.print(
                f"step {loop.step} could not be saved: {self._files.newest}: "
                f"{error.strerror or error}; training continues, the last good file is kept "
                f"({kept})",
                style="bold red",
            )
            return False
        return True
