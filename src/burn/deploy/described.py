"""Description of a packed file for `burn info`; `burn-engine info` gives it without PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from burn.core.errors import UserError, printable

_SHOWN_CLASSES = 10


def packed_facts(file: Path) -> dict[str, Any]:
    """Return sizes, layers, classes, image and origin of a packed file, as JSON values.

    Raises UserError for a file that breaks a rule of the format, and OSError for an unreadable one.
    """
    from burn_engine import ModelError
    from burn_engine.errors import in_file
    from burn_engine.facts import facts_of
    from burn_engine.format import parse_program, read_bytes

    try:
        with in_file(file):
            data = read_bytes(file)
            return facts_of(parse_program(data), len(data))
    except ModelError as error:
        raise UserError(str(error)) from error


def packed_table(facts: dict[str, Any]) -> Table:
    """Return the facts as a table for a terminal."""
    classes = facts["classes"]
    shown = printable(", ".join(classes[:_SHOWN_CLASSES]))
    more = ", …" if len(classes) > _SHOWN_CLASSES else ""
    image = "any size"
    if facts["image"]:
        resize, size = facts["image"]["resize"], facts["image"]["size"]
        image = f"{size} × {size} pixels, cropped after its short side is resized to {resize}"
    rows = {
        "file": f"{facts['file_bytes']:,} bytes",
        "binary weights": f"{facts['bits']:,} bits",
        "float constants": f"{facts['floats']:,}",
        "layers": f"{len(facts['layers'])}",
        "features": f"{facts['features']:,}",
        "classes": f"{len(classes):,}: {shown}{more}" if classes else "none",
        "image": image,
    }
    if facts["origin"] is not None:
        rows["packed from"] = printable(json.dumps(facts["origin"], ensure_ascii=False))
    table = Table("", "", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table
