"""Command-line parsers with errors of one line, and with examples at the top of the help."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import docstring_parser
import jsonargparse
import yaml

from burn.cli.configuration import dump_configuration, load_value, read_configuration, reason
from burn.cli.help import Formatter, arranged, metavar, type_of
from burn.core.errors import UserError, shortened

# The command line and configurations read their values by the same bounded reader.
jsonargparse.set_loader("burn", load_value, (yaml.YAMLError,))
_MOST = 2**62  # bound of any integer option, before the option's own range is checked


class Parser(jsonargparse.ArgumentParser):
    """jsonargparse's parser, with options written with - or _, and with errors as UserErrors."""

    def __init__(
        self,
        command: str,  # its name, in lower case, and its positional arguments, in upper case
        description: str,
        examples: str,
        groups: Mapping[str, Sequence[str]] | None = None,  # options, with _ for -, by title
        notes: str = "",  # at the end of the help
    ) -> None:
        name = " ".join(word for word in command.split() if not word[0].isupper())
        super().__init__(
            prog=f"burn {name}",
            usage=f"burn {command} [options]",
            description=f"{description}\n\nexamples:\n{examples}",
            epilog=notes,
            formatter_class=Formatter,
            allow_abbrev=False,
            exit_on_error=False,
            parser_mode="burn",
        )
        self._positionals.title = "arguments"
        self._groups = dict(groups or {})
        self._fields: tuple[str, ...] = ()
        self._parts: frozenset[str] = frozenset()  # names of groups of options
        self._method, self._left_out = "", frozenset[str]()  # the run's; those of other methods
        self._num_shown_groups: int | None = None
        # Only for help: `main` handles --import before a command is parsed, because plugins add
        # options.
        self.add_argument(
            "--import",
            type=str,
            default=None,
            help="Python file or module that adds methods, backbones, protocols or recipes",
        )

    def add_options(self, config: type, *names: str, skip: Sequence[str] = ()) -> None:
        """Add options for these fields of a dataclass, or for all, as it describes them."""
        hints = get_type_hints(config)
        about = {p.arg_name: p.description for p in docstring_parser.parse(config.__doc__).params}
        for field in dataclasses.fields(config):
            if field.name in skip or (names and field.name not in names):
                continue
            option, text = f"--{field.name}", " ".join((about[field.name] or "").split())
            if field.default is False:
                self.add_switch(field.name, text.removesuffix("."))
            else:
                kind = hints[field.name]
                self.add_argument(option, type=kind, default=field.default, help=text)

    def add_optional(self, name: str, kind: type, text: str) -> None:
        """Add an option with a value of this type, which is None unless it is given."""
        self.add_argument(f"--{name}", type=kind | None, default=None, help=text)

    def add_switch(self, name: str, text: str) -> None:
        self.add_argument(f"--{name}", action="store_true", help=text)

    def add_fields(self, config: type, methods: Mapping[str, type]) -> None:
        """Add an option for every field of a dataclass; only --help-fields shows nested fields.

        In the place of its field `settings` are those of each method, as a group of options of its
        name, of which `choose_method` leaves one. UserError if a method is named as an option.
        """
        self.epilog = f"{self.prog} --help-fields shows more options.\n\n{self.epilog}"
        names = (field.name for field in dataclasses.fields(config) if field.name != "settings")
        self._fields, self._parts = (*names, *methods), frozenset(methods)
        self._num_shown_groups = len(self._action_groups)
        self.add_class_arguments(config, as_group=False, skip={"settings"})
        for name, settings in methods.items():
            if f"--{name}" in self._option_string_actions:
                raise UserError(f"method {name}: {self.prog} has an option --{name}: rename it")
            self.add_class_arguments(settings, nested_key=name)

    def choose_method(self, name: str) -> None:
        """Refuse the settings of other methods; skip them in files, where burn once wrote them."""
        self._method, self._left_out = name, self._parts - {name}

    def set_field_defaults(self, values: Mapping[str, Any]) -> None:
        """Set the defaults of the fields, which are nested as in the dataclass."""
        self.set_defaults(_flatten(values))

    def fields_of(self, options: jsonargparse.Namespace) -> dict[str, Any]:
        """Return the fields' values, nested as in the dataclass."""
        names = [name for name in self._fields if name not in self._left_out]
        return {name: value for name, value in options.as_dict().items() if name in names}

    def add_configuration(self) -> None:
        """Add --config, a YAML file with options, and --print-config, which prints one."""
        self.add_argument("--config", type=str, help="YAML file with any of these options")
        self.add_switch("print_config", "print the options as such a file, and exit")

    def peek(self, expanded: Sequence[str], name: str) -> str | None:
        """Return the value of an option in what `expand` returned; UserError for two values."""
        start = f"--{name}="
        values = [word.removeprefix(start) for word in expanded if word.startswith(start)]
        if len(set(values)) > 1:
            raise UserError(f"two values of --{name} are given, {values[0]} and {values[-1]}")
        return values[0] if values else None

    def given(self, expanded: Sequence[str], name: str) -> bool:
        """Return whether an option is in what `expand` returned, perhaps with several values."""
        return any(word.startswith(f"--{name}=") for word in expanded)

    def expand(self, arguments: Sequence[str]) -> list[str]:
        """Write option names with _, and replace each --config by the options in its file."""
        plain = [_underscored(argument) for argument in arguments]
        for argument in plain:
            name = argument.partition("=")[0]
            if name.startswith("--"):
                self._find(name, f"unknown option {shortened(_hyphenated(name))}")
            if (method := name[2:].partition(".")[0]) in self._left_out:
                raise UserError(
                    f"{_hyphenated(name)} is a setting of method {method}, and this run is of "
                    f"{self._method}: leave it out, or give --method {method}"
                )
        expanded: list[str] = []
        rest = iter(plain)
        for argument in rest:
            name, separator, value = argument.partition("=")
            action = self._option_string_actions.get(name)
            if action is None or action.nargs == 0:
                expanded.append(argument)
                continue
            value = value if separator else next(rest, None)
            if value is not None and not separator and value.startswith("--"):
                value = None  # the next option
            if name == "--config":
                if not value:
                    raise UserError("--config names no file: give a YAML file with options")
                expanded += self._configured(value)
            elif value is None:
                raise UserError(f"{_hyphenated(name)} lacks its value: see {self.prog} --help")
            elif not value:
                raise UserError(
                    f"{_hyphenated(name)} is empty, perhaps because a variable is not set: give a "
                    "value, or leave the option out"
                )
            else:
                value = "~/" if value == "~" else value  # YAML would read ~ as null
                value = _as_yaml(type_of(action), value)
                if type_of(action) not in (str, str | None):
                    _check_syntax(_hyphenated(name), value)
                expanded.append(f"{name}={value}")
        return expanded

    def _configured(self, path: str) -> list[str]:
        given: list[str] = []
        switches: list[str] = []
        for entry in read_configuration(Path(path)):
            if entry.name.partition(".")[0] in self._left_out:
                continue
            name = f"--{entry.name}"
            action = self._find(name, f"--config {path}: unknown option {shortened(entry.name)}")
            if action is None or action.nargs == 0 or name in ("--config", "--import"):
                switches.append(entry.name)
            elif type_of(action) in (bool, bool | None) and entry.kind != "bool":
                raise UserError(
                    f"--config {path}: {entry.name} is true or false, got {shortened(entry.text)}"
                )
            elif entry.kind in ("int", "float") and _SEXAGESIMAL.fullmatch(entry.text):
                raise UserError(
                    f"--config {path}: {entry.name} {entry.text} is not a number: write it without "
                    "colons"
                )
            elif entry.kind != "null" or type_of(action) is not str:
                given.append(f"{name}={_as_yaml(type_of(action), entry.text)}")
        if switches:
            them = "it is" if len(switches) == 1 else "they are"
            raise UserError(
                f"--config {path} sets {', '.join(switches)}: {them} not part of a configuration; "
                f"remove {'it' if len(switches) == 1 else 'them'}, and type "
                f"{_hyphenated('--' + switches[0])} if you mean it"
            )
        return given

    def read(
        self,
        arguments: Sequence[str],
        check: Callable[[jsonargparse.Namespace], object] = lambda options: None,
    ) -> jsonargparse.Namespace:
        """Parse the words after the command; `check` is called before --print-config prints."""
        plain = self.expand(arguments)
        if "--help_fields" in plain:
            fields = [
                group
                for group in self._action_groups[self._num_shown_groups :]
                if not any(a.dest.partition(".")[0] in self._left_out for a in group._group_actions)
            ]
            print(self._help(fields, None, f"{self.prog} --help shows the other options."), end="")
            raise SystemExit(0)
        prints = "--print_config" in plain  # removed below, as jsonargparse has its own
        try:
            options = self.parse_args([word for word in plain if word != "--print_config"])
        except (argparse.ArgumentError, jsonargparse.ArgumentError) as error:
            raise UserError(self._explain(str(error))) from error
        for name, value in _flatten(options.as_dict()).items():
            _check_value(_hyphenated(f"--{name}"), value)
        if prints:
            check(options)
            print(dump_configuration(self._without_switches(options.as_dict())), end="")
            raise SystemExit(0)
        return options

    def _without_switches(self, values: Mapping[str, Any]) -> dict[str, Any]:
        switches = (action.dest for action in self._actions if action.nargs == 0)
        left_out = {"config", "import", *switches, *self._left_out}
        return {name: value for name, value in values.items() if name not in left_out}

    def _find(self, name: str, problem: str) -> Any:
        """Return the action of an option, or raise UserError with `problem` and the nearest one."""
        # A group, such as --burn for --burn.lam, is none: jsonargparse would read a file for it.
        groups = {a for a in self._actions if type(a).__name__ == "_ActionConfigLoad"}
        actions = {
            option: action
            for option, action in self._option_string_actions.items()
            if option.startswith("--") and action not in groups
        }
        if name in actions or name == "--help_fields":
            return actions.get(name)
        options = list(actions)
        leaves = {option.rpartition(".")[2].lstrip("-"): option for option in options}
        near = [option for option in options if option.startswith(f"{name}.")][:1]
        word = name.lstrip("-")
        words = [option.lstrip("-") for option in options]
        near = near or [f"--{like}" for like in difflib.get_close_matches(word, words, n=1)]
        near = near or [leaves[leaf] for leaf in difflib.get_close_matches(word, leaves, n=1)]
        hint = f"did you mean {_hyphenated(near[0])}?" if near else f"see {self.prog} --help"
        raise UserError(f"{problem}: {hint}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(self._explain(message)) from ex

    def _explain(self, message: str) -> str:
        extra = message.partition("nrecognized arguments: ")[2]
        if extra:
            return f"unexpected argument {shortened(extra)}: see {self.prog} --help"
        switch = re.search(r"argument (--\S+): ignored explicit argument", message)
        if switch:
            return f"{_hyphenated(switch[1])} is a switch: give it without a value"
        lacking = message.partition("the following arguments are required: ")[2].strip()
        if not lacking:
            return _readable(message)
        options = (f"--{name}" for name in lacking.split(", "))
        actions = self._option_string_actions
        names = [_hyphenated(o) if o in actions else o[2:].upper() for o in options]
        return f"give {', '.join(names)}: see {self.prog} --help"

    def format_help(self) -> str:
        shown = self._action_groups[: self._num_shown_groups]
        return self._help(shown, self.description, self.epilog)

    def _help(self, groups: Sequence[Any], description: str | None, notes: str | None) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(description)
        for group in groups:
            actions = group._group_actions
            parts = [(group.title, [a for a in actions if "." in a.dest])]  # no whole groups
            if group is self._positionals:
                parts = [(group.title, actions)]
            elif group is self._optionals:
                rest = "other options" if self._groups else group.title
                parts = arranged(actions, self._groups, rest)
            for title, some in parts:
                for action in some:
                    action.metavar = metavar(action)
                formatter.start_section(title)
                formatter.add_text(group.description)
                formatter.add_arguments(some)
                formatter.end_section()
        formatter.add_text(notes)
        text = re.sub(r"`([a-z_]+)`", self._option_named, formatter.format_help())
        return re.sub(r"--[a-z_.0-9]+", lambda match: _hyphenated(match[0]), text)

    def _option_named(self, match: re.Match[str]) -> str:
        """Return a field's name in a docstring as the option that it is here, which is as long."""
        option = f"--{match[1]}"
        return option if option in self._option_string_actions else match[0]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _bracketed(text: str) -> str:
    """Return the text of a list with its brackets, which may be left out; null stays as it is."""
    try:
        value = load_value(text)
    except yaml.YAMLError:
        return text
    return text if value is None or isinstance(value, (list, dict)) else f"[{text}]"


def _as_yaml(kind: Any, text: str) -> str:
    """Return a value in YAML's syntax: a list may lack its brackets, and None be called none."""
    parts = get_args(kind)
    # Where the values of an option are words, "none" may be one of them.
    words = any(part is str or get_origin(part) is Literal for part in parts)
    if text.lower() == "none" and NoneType in parts and not words:
        return "null"
    is_list = any(get_origin(part) in (tuple, list) for part in (kind, *parts))
    return _bracketed(text) if is_list else text


_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


def _check_syntax(option: str, text: str) -> None:
    """Raise UserError for text that is not a value in YAML's syntax, which jsonargparse uses."""
    parts = [part.strip(" []") for part in text.split(",")]
    if any(_SEXAGESIMAL.fullmatch(part) for part in parts):  # 12:30 is 750 in YAML 1.1
        raise UserError(f"{option} {text} is not a number: write it without colons")
    try:
        load_value(text)
    except yaml.YAMLError as error:
        why = reason(error) if all(parts) else "a value before or after a comma is missing"
        raise UserError(f"{option} {shortened(text)} is not usable: {why}") from error


def _check_value(option: str, value: Any) -> None:
    """Raise UserError for a value that is invalid for every option."""
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, str) and "\0" in part:
            raise UserError(f"{option}: the value contains a null byte")
        if isinstance(part, int) and abs(part) >= _MOST:
            raise UserError(f"{option} {shortened(str(part))} is too large")
        if isinstance(part, float) and not math.isfinite(part):
            raise UserError(f"{option} {part} is not a finite number")


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + separator + value


def _hyphenated(option: str) -> str:
    return "--" + option[2:].replace("_", "-")


def _readable(message: str) -> str:
    """Return jsonargparse's message on one line, without its words for types."""
    line = " ".join(message.split())
    line = re.sub(r'^Parser key "([^"]+)": ', lambda m: f"{_hyphenated('--' + m[1])}: ", line)
    line = re.sub(r"<class '(\w+)'>", r"\1", line).replace("typing.Literal", "one of ")
    line = re.sub(
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*?)\] Errors:.*? "
        r"Given value: (.*)",
        lambda m: f"expected {m[1].replace(', NoneType', ', or none')}. Got value: {m[2]}",
        line,
    )
    line, separator, value = line.partition("Got value: ")
    line += separator + shortened(value)
    line = line.replace("Expected a one of", "expected one of").replace("Expected a ", "expected ")
    line = re.sub(r"expected tuple with (\d+) elements", r"expected \1 values, with commas", line)
    line = re.sub(r"expected tuple(\[[^\]]*\])?", _values, line)
    choice = _CHOICE.fullmatch(line)
    if choice is None:
        return line
    *names, last = choice[2].replace("'", "").split(", ")
    return f"{choice[1]} {choice[3]}: give {', '.join(names)} or {last}"


def _values(kind: re.Match[str]) -> str:
    """Return the words for a type such as tuple[int, int] or tuple[int, ...]."""
    inner = kind[1] or "..."
    count = "" if "..." in inner else f"{inner.count(',') + 1} "
    what = "whole numbers" if "int" in inner else "numbers" if "float" in inner else "values"
    return f"expected {count}{what}, with commas"


_CHOICE = re.compile(r"(--[\w.-]+): expected one of \[(.+, .+)\]\. Got value: (.*)", re.DOTALL)
