"""Finished parts of long work, kept as JSON lines, from which an interrupted command goes on."""

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
    """Parts of one key in a file; those of other keys, from other settings, are left alone.

    Without a path nothing is kept. fields: what every part must have, and of which types.
    Raises UserError for a file that is damaged or was changed; a last line that was cut short is
    dropped.
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
        """The part with these values, if it is finished."""
        return next((part for part in self.parts if wanted.items() <= part.items()), None)

    def add(self, part: dict[str, Any]) -> dict[str, Any]:
        """Keep a finished part.

        Raises:
            OSError: The file cannot be written; the part is remembered nevertheless.
        """
        self.parts.append(part)
        if self.path:
            line = {"key": self._key, **part}
            append_lines(self.path, json.dumps({**line, "sha256": _checksum(line)}) + "\n")
        return part


def _checksum(line: Mapping[str, Any]) -> str:
    """The checksum of a line as it is written; a line that is read is written the same way."""
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()[:16]
