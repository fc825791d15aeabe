"""Command-line parsers whose errors are one line and whose help leads with examples."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse
import yaml

from burn.errors import UserError


class Parser(jsonargparse.ArgumentParser):
    """jsonargparse's parser: options may be written with - or _, and errors are UserError."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"burn {command}",
            usage=f"burn {command} [options]",
            description=f"{description}\n\nexamples:\n{examples}",
            formatter_class=_Formatter,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self._positionals.title = "arguments"
        self._fields: tuple[str, ...] = ()
        self._num_shown_groups: int | None = None

    def add_fields(self, config: type) -> None:
        """An option for every field of a dataclass; those of nested ones only in --help-fields."""
        self.description = f"{self.description}\n\n{self.prog} --help-fields shows more options."
        self._fields = tuple(field.name for field in dataclasses.fields(config))
        self._num_shown_groups = len(self._action_groups)
        self.add_class_arguments(config, as_group=False)

    def set_field_defaults(self, values: Mapping[str, Any]) -> None:
        """Defaults of the fields, nested as in the dataclass."""
        self.set_defaults(_flatten(values))

    def fields_of(self, options: jsonargparse.Namespace) -> dict[str, Any]:
        """The fields' values, nested as in the dataclass."""
        return {name: value for name, value in options.as_dict().items() if name in self._fields}

    def peek(self, arguments: Sequence[str], name: str) -> Any:
        """One option's value before parsing, from the command line or else from --config."""
        for option in (name, "config"):
            for position, argument in enumerate(arguments):
                head, separator, value = argument.partition("=")
                if head != f"--{option}":
                    continue
                if not separator:
                    value = arguments[position + 1] if position + 1 < len(arguments) else ""
                return value if option == name else _read_yaml(Path(value)).get(name)
        return None

    def read(self, arguments: Sequence[str]) -> jsonargparse.Namespace:
        """Parse. Raises UserError for anything that does not fit, naming the nearest option."""
        plain = [_underscored(argument) for argument in arguments]
        if "--help_fields" in plain:
            print(self._help(self._action_groups[self._num_shown_groups :]), end="")
            raise SystemExit(0)
        self._reject_unknown(plain)
        try:
            return self.parse_args(plain)
        except (argparse.ArgumentError, jsonargparse.ArgumentError) as error:
            raise UserError(self._explain(str(error))) from error
        except (UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
            raise UserError("--config is not readable YAML") from error

    def _reject_unknown(self, arguments: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        leaves = {option.rpartition(".")[2].lstrip("-"): option for option in known}
        for argument in arguments:
            name = argument.partition("=")[0]
            if not name.startswith("--") or name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1) or [
                leaves[leaf] for leaf in difflib.get_close_matches(name.lstrip("-"), leaves, n=1)
            ]
            hint = f"did you mean {_hyphenated(near[0])}?" if near else f"see {self.prog} --help"
            raise UserError(f"unknown option {_hyphenated(name)}: {hint}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(self._explain(message)) from ex

    def _explain(self, message: str) -> str:
        lacking = message.partition("the following arguments are required: ")[2].strip()
        if not lacking:
            return _readable(message)
        options = (f"--{name}" for name in lacking.split(", "))
        known = self._option_string_actions
        names = [_hyphenated(o) if o in known else o[2:].upper() for o in options]
        return f"give {', '.join(names)}: see {self.prog} --help"

    def format_help(self) -> str:
        return self._help(self._action_groups[: self._num_shown_groups])

    def _help(self, groups: Sequence[Any]) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            nested = group.title not in ("options", "arguments")
            formatter.add_arguments(
                [a for a in group._group_actions if not nested or "." in a.dest]  # no whole groups
            )
            formatter.end_section()
        return re.sub(
            r"--[a-z_.0-9]+", lambda match: _hyphenated(match[0]), formatter.format_help()
        )


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that ends with the default, where there is one to tell; as wide as what stands above."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=100)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "VALUE"  # the option's name again would tell no more

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        untold = default is None or default is False or default in ("", argparse.SUPPRESS)
        if not action.option_strings or untold or "efault" in text:
            return text
        plain = list(default) if isinstance(default, tuple) else default
        shown = str(plain).replace("'", "").replace("%", "%%")
        return f"{text.removesuffix('.')} (default: {shown})"


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file") from None
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"--config {path} is not readable YAML: {_readable(str(error))}") from error
    if not isinstance(content, dict):
        raise UserError(f"--config {path} holds no options")
    return content


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + separator + value


def _hyphenated(option: str) -> str:
    return "--" + option[2:].replace("_", "-")


def _readable(message: str) -> str:
    """jsonargparse's message on one line, without its words for types."""
    line = " ".join(message.split())
    line = re.sub(r'^Parser key "([^"]+)": ', lambda m: f"{_hyphenated('--' + m[1])}: ", line)
    line = re.sub(r"<class '(\w+)'>", r"\1", line).replace("typing.Literal", "one of ")
    line = re.sub(
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*?)\] Errors:.*",
        lambda m: "expected " + m[1].replace(", NoneType", ""),
        line,
    )
    line = line if len(line) <= 300 else line[:297] + "..."
    return line.replace("Expected a one of", "expected one of").replace("Expected a ", "expected ")
