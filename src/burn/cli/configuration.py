"""Configurations: YAML files whose keys are options, checked against bounds before they are used.

An entry is converted to the text that a person would type after the option's name, so that a value
means the same in a file and on the command line, and is checked in one place. Tags, aliases and
deep nesting are refused: a list of options does not need them, and aliases that nest or contain
themselves grow without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from burn.core.errors import UserError
from burn.core.inputs import read_text

_LIMIT = 2**18  # largest file in bytes; all options of a run take three kilobytes
_MOST_NODES, _MOST_DEPTH, _MOST_DIGITS = 10_000, 16, 100
_TAG = "tag:yaml.org,2002:"
_KINDS = {_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq")}


class _Loader(yaml.SafeLoader):
    """YAML 1.1, except that 1e-3 is a number and a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in rules if tag not in (_TAG + "float", _TAG + "timestamp")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


@dataclass(frozen=True)
class Entry:
    """One option of a configuration."""

    name: str  # with _ for -, nested names joined by dots: burn.lam_start
    text: str  # the value as it would be typed
    kind: str  # YAML's name of its type: bool, null, str, int, float or seq


def read_configuration(path: Path) -> list[Entry]:
    """Read the options of a YAML file, in its order; UserError if it holds anything else."""
    origin = f"--config {path}"
    try:
        text = read_text(path, _LIMIT).removeprefix("\ufeff")
    except UserError as error:
        raise UserError(f"--config {error}") from error
    try:
        _check_bounds(text)
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise UserError(f"{origin} is empty: write options into it, as `epochs: 100`")
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{origin} holds no options: write lines as `epochs: 100`")
        entries = list(_entries(root, "", origin))
    except yaml.YAMLError as error:
        raise UserError(f"{origin} is not usable YAML: {reason(error)}") from error
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{origin} gives {twice} twice: give it once")
    return entries


def load_value(text: str) -> Any:
    """Parse a scalar or a list in YAML's syntax; yaml.YAMLError for any other text."""
    _check_bounds(text)
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from error


def dump_configuration(values: dict[str, Any]) -> str:
    """Return options as YAML that `read_configuration` reads; tuples are written as lists."""
    plain = json.loads(json.dumps(values))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None)


def _check_bounds(text: str) -> None:
    """Raise yaml.YAMLError for text that must not be composed; it is parsed event by event."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not read here: write the value out"
        elif getattr(event, "tag", None):
            problem = "tags (!name) are not read here: write the value alone"
        elif depth > _MOST_DEPTH:
            problem = "it nests too deeply"
        elif nodes > _MOST_NODES:
            problem = "it has too many values"
        elif isinstance(event, yaml.ScalarEvent) and event.style is None:
            digits = sum(character.isdigit() for character in event.value)
            if digits > _MOST_DIGITS and not event.value.strip("+-.eE_0123456789"):
                problem = f"a number of {digits} digits"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _entries(node: yaml.MappingNode, prefix: str, origin: str) -> Iterator[Entry]:
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            line = key.start_mark.line + 1
            raise UserError(f"{origin} line {line}: a name of an option is expected")
        name = prefix + key.value.replace("-", "_")
        if isinstance(value, yaml.MappingNode):
            yield from _entries(value, f"{name}.", origin)
        else:
            yield Entry(name, _typed(value), value.tag.removeprefix(_TAG))


def _typed(node: yaml.Node, nested: bool = False) -> str:
    if isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="names in a list", problem_mark=node.start_mark)
    if node.tag not in _KINDS:
        raise yaml.MarkedYAMLError(problem=f"tag {node.tag}", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(_typed(item, nested=True) for item in node.value)}]"
    kind = node.tag.removeprefix(_TAG)
    if kind == "null":
        return "null"
    if kind == "bool":
        return str(yaml.SafeLoader.bool_values[node.value.lower()]).lower()
    return json.dumps(node.value) if nested and kind == "str" else str(node.value)


def reason(error: yaml.YAMLError) -> str:
    """Return what is wrong, and in which line, in a few words."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())
