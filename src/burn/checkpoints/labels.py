"""Names of the data whose labels a network learned from, by its checkpoint's description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burn.core.errors import printable

_LABELLED = {"supervised"}  # methods whose checkpoints of earlier versions do not say `labels`


def labels_behind(meta: Mapping[str, Any]) -> str | None:
    """Return the data whose labels a network, its teachers or its start learned from, or None.

    Args:
        meta: The description of the network's checkpoint. `labels` names the data whose labels it
            learned from itself; `teacher`, `init` and the teacher in `finetuned` are origins of
            other networks, whose `labels` are all that is behind these.

    Returns:
        The names, joined by "and", each once.
    """
    tuned = meta.get("finetuned")
    origins = [meta, meta.get("teacher"), meta.get("init"), _part(tuned, "teacher")]
    labels = [_part(origin, "labels") for origin in origins]
    if labels[0] is None and _part(meta.get("recipe"), "method") in _LABELLED:
        labels[0] = _part(meta.get("data"), "name")
    names = dict.fromkeys(printable(name)[:80] for name in labels if isinstance(name, str))
    return " and ".join(names) or None


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
