"""Text of an export to C: templates, constants and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


def filled(resource: str, parts: dict[str, str]) -> str:
    """Return a file of `c/` with parts in place of their comments."""
    text = (files("burn.deploy.c") / resource).read_text(encoding="ascii")
    for key, part in parts.items():
        text = with_part(text, key, part.strip("\n"))
    return text


def with_part(text: str, key: str, part: str) -> str:
    """Return a text with a part in place of the comment `/* @key */`."""
    comment = f"/* @{key} */"
    assert text.count(comment) == 1, comment
    return text.replace(comment, part)


def numbers(values: NDArray[np.generic]) -> list[str]:
    """Return constants of C: words in hexadecimal, float32 exactly, and integers below 2³¹."""
    if values.dtype == np.uint32:
        return [f"0x{value:08X}" for value in values.tolist()]
    if values.dtype == np.float32:
        return [_float(value) for value in values.tolist()]
    return [_integer(value) for value in values.tolist()]


def _float(value: float) -> str:
    assert math.isfinite(value)  # C has no constant for others
    text = f"{value:.9g}"  # nine digits determine a float32
    return f"{text}f" if set(text) & set(".e") else f"{text}.0f"


def _integer(value: int) -> str:
    assert abs(value) < 2**31  # C has no constant -2³¹
    return str(value)


def signed(value: int) -> str:
    """Return an integer as a macro has it."""
    return str(value) if value >= 0 else f"({value})"


def initializer(fields: dict[str, object]) -> str:
    """Return a struct's value, by the names of its fields."""
    return "{" + ", ".join(f".{key} = {value}" for key, value in fields.items()) + "}"


def table(kind: str, name: str, rows: Sequence[str]) -> str:
    """Return a constant array of structs."""
    body = ",\n".join(f"    {row}" for row in rows)
    return f"static const {kind} {name}[{len(rows)}] = {{\n{body},\n}};"


def string(text: str) -> str:
    """Return a string as C, in UTF-8, with an octal escape for all but the plainest characters."""
    plain = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-.,()/+:;")
    parts = (chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(parts)}"'
