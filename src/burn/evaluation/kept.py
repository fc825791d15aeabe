"""Finished parts of long work, kept as JSON lines, from which an interrupted command goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burn.errors import UserError
from burn.files import write_text


class KeptParts:
    """Parts of one key in a file; those of other keys, from other settings, are left alone.

    Without a path nothing is kept. fields: what every part must have, and of which types.
    Raises UserError for a damaged file; a last line that was cut short is dropped.
    """

    def __init__(
        self, path: Path | None, key: str, fields: Mapping[str, type | tuple[type, ...]]
    ) -> None:
        self.path, self._key = path, key
        self.parts: list[dict[str, Any]] = []
        if path is None or not path.exists():
            return
        try:
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            for line in whole.splitlines():
                part = json.loads(line)
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
        """Keep a finished part."""
        if self.path:
            with self.path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(json.dumps({"key": self._key, **part}) + "\n")
        self.parts.append(part)
        return part
