"""Parses JSON as docs/project/pack-format.md requires: ambiguous or hostile text is refused."""

from __future__ import annotations

import json
import math
import re
import reprlib
from typing import Any, NoReturn

from burn_engine.errors import ModelError

MAX_DEPTH = 16
MAX_NUMBER = 100  # characters

# A string (closed or not), or a bracket outside strings. Possessive, so that the time is linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str, what: str) -> Any:
    """Parse JSON text.

    Args:
        text: The text.
        what: Name of the text in error messages.

    Raises:
        ModelError: The text is not JSON or is nested deeper than 16 levels; a key appears twice in
            an object; a number is not finite as float64 or has more than 100 characters; or a
            string has a lone surrogate, so that it is not Unicode text.
    """
    try:
        _check_depth(text)  # before the parser recurses
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_int=_integer,
            parse_constant=_no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None
    except UnicodeEncodeError:
        raise ModelError(f"{what}: a string with a lone surrogate is not Unicode text") from None
    except ValueError as error:
        raise ModelError(f"{what}: not JSON: {error}") from None
    return value


def short(value: Any) -> str:
    """Return a value as text for an error message: printable, on one line, shortened if long."""
    return _short.repr(value)


_short = reprlib.Repr()
_short.maxstring = 110
_short.maxother = 40


def _check_depth(text: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match.group()
        if token in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise ModelError(f"nested deeper than {MAX_DEPTH} levels")
        elif token in ("]", "}"):
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ModelError(f"the key {short(key)} appears twice in an object")
        members[key] = value
    return members


def _integer(text: str) -> int:
    _check_length(text)
    return int(text)


def _check_length(number: str) -> None:
    if len(number) > MAX_NUMBER:
        raise ModelError(f"the number {short(number)} has more than {MAX_NUMBER} characters")


def _finite(text: str) -> float:
    _check_length(text)
    number = float(text)
    if not math.isfinite(number):
        raise ModelError(f"the number {short(text)} is not finite")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ModelError(f"the number {text} is not finite")
