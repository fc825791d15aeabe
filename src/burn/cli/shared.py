"""Functions that several commands share: reading options into settings, and printing results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar, cast

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError, one_line, typed
from burn.core.plugins import imports

T = TypeVar("T")
USUAL = ("data", "test", "budget", "teacher", "out", "seeds")  # options that a campaign begins with
CHECKPOINT = (
    "run folder or checkpoint of burn's, pretrained network (photos), lite0 or ARCHITECTURE:FILE"
)


def settings_of(options: Any, kind: type[T]) -> T:
    """Build the dataclass `kind` from the options that are its fields."""
    from burn.core.settings import from_plain

    given = options.as_dict()
    names = (field.name for field in fields(cast(Any, kind)))
    return from_plain(kind, {name: given[name] for name in names if name in given})


def read_campaign(parser: Parser, arguments: list[str], kind: type[T]) -> tuple[Any, T, Any]:
    """Parse the arguments of compare or ablate, after adding the options that both have.

    Return all options, the command's settings of type `kind`, and the `Execution`.
    """
    from burn.campaigns.settings import Execution, FurtherProtocols, seeds_in
    from burn.core.paths import expand
    from burn.training.plan import Machine

    parser.add_argument("--seeds", type=str, default="0", help="random seeds, as 0,1,2")
    parser.add_argument("--out", type=str, default=None, help="folder of the runs and the table")
    parser.add_options(Execution, "processes", "cluster", "cores")
    parser.add_options(Machine, "device", "workers", "teacher_cache", "compile")
    parser.add_switch("json", "print JSON lines instead of a table")
    parser.add_class_arguments(kind, as_group=False)
    parser.add_class_arguments(FurtherProtocols, as_group=False, skip={"semi"})
    options = parser.read(arguments)
    if not options.out:
        raise UserError("give --out, a folder for the runs and the table")
    execution = Execution(
        expand(options.out), seeds_in(options.seeds), machine_of(options), options.processes,
        settings_of(options, FurtherProtocols), options.cluster, options.cores,
    )  # fmt: skip
    return options, settings_of(options, kind), execution


def print_results(results: Sequence[Any], as_json: bool, table: Callable[..., Any]) -> None:
    """Print results as JSON lines or as the table that `table` makes of them."""
    if as_json:
        for result in results:
            line = asdict(result)
            del line["right"]  # long, and only needed for comparisons
            print(json.dumps(line))
    else:
        Console(markup=False, highlight=False, emoji=False).print(table(results))
    sys.stdout.flush()  # print the numbers before anything else can fail


def printing(as_json: bool) -> Callable[[Sequence[Any], Sequence[str]], None]:
    """Return a function that prints results, as `print_results` does, and notes on stderr."""
    from burn.report.render.tables import results_table

    def show(results: Sequence[Any], notes: Sequence[str]) -> None:
        for note in notes:
            print(one_line(note), file=sys.stderr)
        print_results(results, as_json, results_table)

    return show


def same_command(name: str, arguments: Sequence[str], *without: str) -> str:
    """Return a command with the arguments and plugins that it was given, without these words."""
    plugins = [f"--import={plugin}" for plugin in imports()]
    return typed(["burn", name, *plugins, *(word for word in arguments if word not in without)])


def machine_of(options: Any) -> Any:
    """Build the `Machine` from the options that are its fields, with `~` in paths expanded."""
    from burn.core.paths import expand
    from burn.training.plan import Machine

    machine = settings_of(options, Machine)
    cache = machine.teacher_cache
    return machine if cache is None else replace(machine, teacher_cache=str(expand(cache)))
