"""Finished parts of long work, stored as JSON lines, from which an interrupted command resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.core.files import append_lines, write_text
from burn.core.inputs import read_text, status_of


class KeptParts:
    """The finished parts in a file that have one key; parts with other keys are not touched.

    An incomplete last line is dropped; UserError is raised if the file is damaged otherwise. It
    need not exist; None stores nothing. `fields` are the types of values that every part must have.
    """

    def __init__(
        self, path: Path | None, key: str, fields: Mapping[str, type | tuple[type, ...]]
    ) -> None:
        self.path, self._key = path, key
        self.parts: list[dict[str, Any]] = []
        if path is None or status_of(path) is None:
            return
        text = read_text(path)
        whole = text[: text.rfind("\n") + 1]
        try:
            for line in whole.splitlines():
                part = json.loads(line)
                # Lines that burn 0.1.0 wrote have no checksum.
                if part.pop("sha256", None) not in (None, _checksum(part)):
                    raise ValueError
                if part.pop("key") != key:
                    continue
                if not all(isinstance(part[name], kind) for name, kind in fields.items()):
                    raise TypeError
                self.parts.append(part)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is damaged: remove it to begin again") from error
        if whole != text:
            write_text(path, whole)

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        return next((part for part in self.parts if wanted.items() <= part.items()), None)

    def add(self, part: dict[str, Any]) -> dict[str, Any]:
        """Store a finished part and return it; it is in `parts` even if writing raises OSError."""
        self.parts.append(part)
        if self.path:
            line = {"key": self._key, **part}
            append_lines(self.path, json.dumps({**line, "sha256": _checksum(line)}) + "\n")
        return part


def _checksum(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()[:16]
