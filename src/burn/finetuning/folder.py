"""The folder of a fine-tuning run, which resumes and which other commands take as a run."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burn.checkpoints.tuned import STAGE
from burn.core.errors import UserError
from burn.core.files import remove_unfinished, write_failures_named
from burn.core.inputs import read_json
from burn.core.paths import RUN_FILE
from burn.core.results import Result, read_results
from burn.core.types import Checkpoint
from burn.evaluation.artifacts.kept import KeptParts
from burn.learning.resume_files import ResumeFiles, first_difference
from burn.training.records.metrics import COLUMNS, StepFile
from burn.training.run_dir import FORMAT, write_run_file

KIND = "finetune"
_FILES = (
    STAGE, "stage1.json", "results.jsonl", "confusion.json", "trials.jsonl", "stage1/metrics.csv",
    "stage1/resume.ckpt", "stage1/resume.previous.ckpt", "stage1/resume.damaged.ckpt",
)  # fmt: skip


class TunedFolder:
    """The folder of a run, which exists and belongs to this process.

    The run is described in plain JSON values; `plan`, and the fingerprints in `start`, `data`,
    `test` and `teacher`, are what makes it the same run.
    """

    def __init__(
        self, path: Path, described: Mapping[str, Any], resume: bool, overwrite: bool
    ) -> None:
        self.path, self.checkpoint = path, path / STAGE  # of the network and its classifier
        self._stage, self._identity = path / "stage1", _identity(described)
        for folder in (path, self._stage):
            remove_unfinished(folder)
        file = path / RUN_FILE
        if file.exists() and resume:
            stored = read_json(file)
            if difference := first_difference(_identity(stored), self._identity):
                raise UserError(
                    f"{path} cannot be resumed with other settings: {difference}; give the same "
                    "options, or another --out"
                )
            self.name = str(stored.get("run"))
        else:
            if overwrite:
                for name in _FILES:
                    (path / name).unlink(missing_ok=True)
            self.name = secrets.token_hex(8)
            write_run_file(path, {"format": FORMAT, **described, "run": self.name})
        with write_failures_named(f"--out {path}"):
            self._stage.mkdir(exist_ok=True)

    def trials(self, fields: Mapping[str, Any]) -> KeptParts:
        text = json.dumps(self._identity, sort_keys=True)
        key = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
        return KeptParts(self.path / "trials.jsonl", key, fields)

    def resume_files(self) -> ResumeFiles:
        return ResumeFiles(self._stage, self.name, {"finetune": self._identity})

    def metrics_file(self) -> StepFile:
        return StepFile(self._stage / "metrics.csv", COLUMNS)

    def results(self) -> list[Result]:
        """Return the results of the test, if it was finished."""
        file = self.path / "results.jsonl"
        every = read_results(file) if file.is_file() else []
        # `burn evaluate --out` writes its own there, and a confusion.json.
        results = [result for result in every if result.protocol == KIND]
        return results if {result.metric for result in results} >= {"top1", "top5"} else []

    def require_own(self, checkpoint: Checkpoint) -> None:
        if checkpoint.meta.get("run") != self.name:
            raise UserError(
                f"{checkpoint.origin} does not belong to this run: remove it to train again"
            )


def _identity(described: Any) -> dict[str, Any]:
    """Return what makes two descriptions those of one run; places of images are left out."""
    if not isinstance(described, Mapping):
        return {}
    identity: dict[str, Any] = {"plan": described.get("plan")}
    for part in ("start", "data", "test", "teacher"):
        about = described.get(part)
        if isinstance(about, Mapping):
            identity[part] = {k: about[k] for k in ("fingerprint", "images", "size") if k in about}
        else:
            identity[part] = None
    return json.loads(json.dumps(identity))
