"""Names of the data whose labels a network learned from, by its checkpoint's description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burn.core.errors import printable


def labels_behind(meta: Mapping[str, Any]) -> str | None:
    """Return the data whose labels a network, its teachers or its start learned from, or None.

    In the description of its checkpoint, `labels` names the data whose labels it learned from
    itself; `teacher`, `init` and the teacher in `finetuned` are origins of other networks, whose
    `labels` are all that is behind these. The names are joined by "and", each once.
    """
    tuned = meta.get("finetuned")
    origins = [meta, meta.get("teacher"), meta.get("init"), _part(tuned, "teacher")]
    labels = [_part(origin, "labels") for origin in origins]
    # Checkpoints of earlier versions do not say `labels`.
    if labels[0] is None and _part(meta.get("recipe"), "method") == "supervised":
        labels[0] = _part(meta.get("data"), "name")
    names = dict.fromkeys(printable(name)[:80] for name in labels if isinstance(name, str))
    return " and ".join(names) or None


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
