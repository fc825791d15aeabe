"""Help texts: groups of options, what stands for each option's value, and defaults as typed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

# What stands for the value of an option that is text, by the option's name: no type tells it.
_TEXTS = {
    "cluster": "HOST:PORT", "epilogue": "TYPE", "import": "PLUGIN", "init": "NETWORK",
    "max_bad": "SHARE", "on_nonfinite": "ACTION", "seeds": "N,...", "share": "K/N",
    **dict.fromkeys(("flash", "ram"), "BYTES"),
    **dict.fromkeys(("groups", "methods", "more"), "NAME,..."),
    **dict.fromkeys(("labelled_teacher", "teacher"), "TEACHER"),
    **dict.fromkeys(("float_recipe", "format", "method", "name", "recipe"), "NAME"),
    **dict.fromkeys(
        ("compared", "config", "data", "head", "out", "results", "teacher_cache", "test", "train",
         "transfer_test", "transfer_train", "with_model", "work"),
        "PATH",
    ),
}  # fmt: skip
_UNITS = {"save_every": "MINUTES"}  # numbers with a unit
_LAST = ("import", "help")  # options of every command, which say nothing about it


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help as wide as the description above it, with defaults at the end."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        untold = default is None or default is False or default in ("", argparse.SUPPRESS)
        if not action.option_strings or untold:
            return text.removesuffix(".")
        # What a field is without a value, where a recipe gives it one.
        text = re.sub(r"\.\s+Default: [^.]*", "", text)
        if "efault" in text:
            return text.removesuffix(".")
        return f"{text.removesuffix('.')} (default: {_typed(default).replace('%', '%%')})"


def metavar(action: argparse.Action) -> str | None:
    """Return what stands for an option's value in help, such as PATH; None for an argument."""
    if not action.option_strings:
        return None
    if isinstance(action.metavar, str) and action.metavar.startswith("{"):
        return action.metavar  # the words to choose from
    name, kind = action.dest.rpartition(".")[2], type_of(action)
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) in (Union, UnionType) and len(parts) > 1:
        return "|".join(_value(name, part) for part in parts)
    return _value(name, parts[0] if NoneType in get_args(kind) else kind)


def _value(name: str, kind: Any) -> str:
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "|".join(map(str, parts))
    if get_origin(kind) in (tuple, list):
        element = _value(name, parts[0])
        fixed = get_origin(kind) is tuple and Ellipsis not in parts
        return ",".join([element] * len(parts)) if fixed else f"{element},..."
    number = {int: "N", float: "NUMBER"}.get(kind)
    return _UNITS.get(name, number) if number else _TEXTS.get(name, "TEXT")


def type_of(action: argparse.Action) -> Any:
    """Return the type of an option's value, which jsonargparse keeps apart unless it is a class."""
    return getattr(action, "_typehint", action.type)


def arranged(
    actions: Sequence[argparse.Action], groups: Mapping[str, Sequence[str]], rest: str
) -> list[tuple[str, list[argparse.Action]]]:
    """Return the title and the options of each group that has any.

    The groups are of names with _ for -, of which those that are no option here are left out. The
    options that no group names come last, titled `rest`, with --import and --help at their end.
    """
    by_name = {action.dest: action for action in actions}
    named = {name for names in groups.values() for name in names}
    others = [name for name in by_name if name not in {*named, *_LAST}]
    everything = {**groups, rest: [*others, *_LAST]}
    sections = (
        (title, [by_name[name] for name in names if name in by_name])
        for title, names in everything.items()
    )
    return [(title, some) for title, some in sections if some]


def _typed(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_typed, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
