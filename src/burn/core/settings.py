"""Frozen settings from JSON and YAML, where tuples are lists and dataclasses are dicts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from burn.core.errors import UserError, shown

Settings = TypeVar("Settings")

_hints = functools.cache(get_type_hints)  # each time it compiles every annotation again


def from_plain(kind: type[Settings], values: Any, name: str = "") -> Settings:
    """Return a dataclass with plain values; what is not given keeps its default.

    `values` are named, from JSON or YAML, or an instance, whose values are checked. A UserError
    names a setting, in the group `name`, that is unknown, has a wrong type or is not finite.
    """
    assert is_dataclass(kind)
    if isinstance(values, kind):
        values = {field.name: getattr(values, field.name) for field in fields(values)}
    elif not isinstance(values, Mapping):
        raise UserError(f"{name or 'settings'}: expected named values, got {shown(values)}")
    hints = _hints(kind)
    prefix = f"{name}." if name else ""
    unknown = [str(key) for key in values if key not in {field.name for field in fields(kind)}]
    if unknown:
        raise UserError(f"unknown setting {prefix}{unknown[0]}")
    return kind(**{k: _convert(hints[k], v, f"{prefix}{k}") for k, v in values.items()})


def _convert(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        return from_plain(hint, value, name)  # type: ignore[arg-type]
    value = _plain(hint, value)
    if not _fits(hint, value):
        raise UserError(f"{name}: expected {_words(hint)}, got {shown(value)}")
    return value


def _plain(hint: Any, value: Any) -> Any:
    """Return a value with tuples for lists, and floats where the hint says so; it may not fit."""
    value = tuple(value) if isinstance(value, list) else value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()  # a scalar; NumPy is not imported here
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for argument in arguments:
            if _fits(argument, plain := _plain(argument, value)):
                return plain
        return value
    if origin is tuple and isinstance(value, tuple):
        hints = _of_elements(arguments, value)
        return tuple(map(_plain, hints, value)) if len(hints) == len(value) else value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 else math.inf
    return value


def _of_elements(arguments: tuple[Any, ...], value: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[:1] * len(value)
    return arguments


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(argument, value) for argument in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        hints = _of_elements(arguments, value)
        return len(value) == len(hints) and all(map(_fits, hints, value))
    if origin is not None:
        return isinstance(value, origin)
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) < 1e300
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    return isinstance(value, NoneType if hint is None else hint)


def _words(hint: Any) -> str:
    """Return a type as a message names it, such as "auto, cpu or cuda"."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        *others, last = map(str, arguments)
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if isinstance(hint, type) and not arguments:
        return "None" if hint is NoneType else hint.__name__
    return str(hint)
