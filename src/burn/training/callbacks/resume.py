"""The files from which an interrupted stage goes on: the newest, and the one before it."""

from __future__ import annotations

import copy
import io
import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console

from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.inputs import require_regular
from burn.core.paths import same_path
from burn.runtime.distributed import Processes
from burn.runtime.signals import StopRequest

_HELD = ("state_dict", "loops", "optimizer_states", "lr_schedulers", "callbacks", "global_step")


def first_difference(old: Any, new: Any, name: str) -> str | None:
    """Where two descriptions of plain JSON values differ first, as `NAME was OLD, is NEW`.

    What `old` lacks, as an earlier version did not write it yet, is no difference.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            found = first_difference(old[key], new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if old == new else f"{name} was {old}, is {new}"


def difference_of_runs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Where two runs differ first in what decides their numbers, as `first_difference`.

    Both have `data` and `teacher`, and may have `plan` and more, as run.json does. Another name of
    the same data, or of a teacher with the same weights, is no difference.
    """
    old = copy.deepcopy(dict(old))
    for part, name in (("data", "name"), ("teacher", "spec")):
        before, now = old.get(part), new.get(part)
        if not isinstance(before, dict) or not isinstance(now, dict) or name not in before:
            continue
        if part == "data":
            same = same_path(str(before[name]), str(now[name]))
        else:
            same = {**before, name: now[name]} == now  # by its SHA-256
        if not same:
            continue
        before[name] = now[name]
        if isinstance(old.get("plan"), dict):
            old["plan"][part] = new["plan"][part]
    return first_difference(old, dict(new), "")


class ResumeFiles:
    """The resume files of one stage, in its folder.

    owner: names the run and its stage, in the files too, so that no other's is taken for it.
    settings: what decides the numbers of the training, as plain JSON values. It is in the files
    too, so that a run is never resumed with other settings than those that its weights come from.
    """

    def __init__(self, folder: Path, owner: str, settings: Mapping[str, Any] | None = None) -> None:
        self.owner = owner
        self.settings = json.dumps(settings or {})
        self.newest = folder / "resume.ckpt"
        self.previous = folder / "resume.previous.ckpt"
        self.damaged = folder / "resume.damaged.ckpt"

    def add(self, content: bytes) -> None:
        """A new newest file. Raises OSError with the last good one still there."""

        write_beside(self.newest, lambda to: to.write_bytes(content), keep=self.previous)

    def usable(self, shapes: Mapping[str, torch.Size], console: Console) -> Path | None:
        """The newer of those that are whole, or None where there are none.

        shapes: of the tensors of a stage's state. A damaged newest file is put aside, and that is
        said. Raises UserError for files of another stage or run, or with other settings, and where
        all are damaged.
        """
        files = [file for file in (self.newest, self.previous) if file.exists()]
        damaged: list[Path] = []
        for file in files:
            problem = _problem(file, shapes, self.owner, self.settings)
            if problem is None:
                for other in damaged:
                    other.replace(self.damaged)  # or the next one would push the good one out
                    console.print(
                        f"{other} is damaged: going on from the one before it, {file} (it is now "
                        f"{self.damaged.name})"
                    )
                return file
            if problem != "damaged":
                raise UserError(f"{file} is {problem}: remove it to begin this stage again")
            damaged.append(file)
        if damaged:
            both = " and ".join(str(file) for file in damaged)
            are = "is" if len(damaged) == 1 else "are"
            raise UserError(f"{both} {are} damaged: remove it to begin this stage again")
        return None

    def remove(self) -> None:
        """All, once the stage is done."""
        for file in (self.newest, self.previous, self.damaged):
            file.unlink(missing_ok=True)


def _problem(file: Path, shapes: Mapping[str, torch.Size], owner: str, settings: str) -> str | None:
    require_regular(file)  # a pipe would block; and without permission it is not damaged
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:  # torch itself never compares the checksums
                return "damaged"
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        found = {name: tensor.shape for name, tensor in content["state_dict"].items()}
        whole = all(content[part] for part in _HELD) and "fit_loop" in content["loops"]
        written_with = json.loads(content.get("settings", "{}"))  # an earlier version had none
    except MemoryError:
        raise
    except Exception:  # whatever a damaged file makes of the readers
        return "damaged"
    if not whole:
        return "damaged"
    if content.get("owner") != owner:
        return "not of this stage of this run"
    difference = difference_of_runs(written_with, json.loads(settings))
    if difference:
        return f"of a training with other settings ({difference})"
    return None if found == shapes else "not of this stage of this run"


class ResumeWriter(TorchCheckpointIO):
    """Lightning's writer of checkpoints: whole or not there, and a full disk does not end a run.

    failure: why the last one was not written, or None.
    """

    def __init__(self, files: ResumeFiles) -> None:
        super().__init__()
        self.files = files
        self.failure: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Called in the first process alone, while the others wait: it may not raise."""
        content = io.BytesIO()
        described = {"owner": self.files.owner, "settings": self.files.settings}
        torch.save({**checkpoint, **described}, content)
        try:
            self.files.add(content.getvalue())
            self.failure = None
        except OSError as error:
            self.failure = error.strerror or str(error)


class SaveResume(L.Callback):
    """Saves every `minutes`, and when a process was asked to stop: then training ends.

    stopped_by: the signal that ended it, or 0. Without `minutes` each step is saved.
    """

    def __init__(
        self, writer: ResumeWriter, stop: StopRequest, processes: Processes, minutes: float,
        console: Console,
    ) -> None:  # fmt: skip
        self._writer, self._stop, self._processes = writer, stop, processes
        self._seconds, self._console = 60 * minutes, console
        self._saved = time.monotonic()
        self._step = 0  # the last one that was looked at
        self.last_step: int | None = None
        self.stopped_by = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        if trainer.global_step:
            self.last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        if trainer.global_step == self._step:
            return  # a part of a batch
        self._step = trainer.global_step
        # All processes must come to the same decision at the same step: a signal counts 2 or more.
        due = time.monotonic() - self._saved >= self._seconds and self._processes.is_main
        agreed = int(self._processes.all_reduce_max(self._stop.number or int(due)))
        if not agreed:
            return
        self._save(trainer)
        if agreed > 1:
            # Told or not, every process now knows: what follows an epoch is left out.
            self._stop.number = self.stopped_by = agreed
            trainer.should_stop = True

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self._writer.files.newest)
        self._saved = time.monotonic()
        failure = self._writer.failure
        if not self._processes.is_main:
            return
        if failure is None:
            self.last_step = trainer.global_step
            return
        kept = "there is none yet" if self.last_step is None else f"that of step {self.last_step}"
        self._console.print(
            f"step {trainer.global_step} could not be saved: {self._writer.files.newest}: "
            f"{failure}; going on, the last good file is kept ({kept})",
            style="bold red",
        )
