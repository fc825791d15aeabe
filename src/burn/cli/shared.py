"""What several commands share: options that become settings, results that are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar, cast

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError, printable, shortened

T = TypeVar("T")


def settings_of(options: Any, kind: type[T]) -> T:
    """The dataclass whose fields are among the options; what is no option keeps its default."""
    from burn.core.settings import from_plain

    given = options.as_dict()
    names = (field.name for field in fields(cast(Any, kind)))
    return from_plain(kind, {name: given[name] for name in names if name in given})


def read_campaign(parser: Parser, arguments: list[str], kind: type[T]) -> tuple[Any, T, Any]:
    """The options of compare and ablate: all of them, those of `kind`, and the Execution."""
    from burn.campaigns.settings import Execution, More, seeds_in
    from burn.core.paths import expand
    from burn.training.plan import Machine

    parser.add_argument("--seeds", type=str, default="0", help="random seeds, 0,1,2 …")
    parser.add_argument("--out", type=str, default=None, help="folder of the runs and the table")
    parser.add_argument(
        "--processes", type=int | None, default=None,
        help="runs at once; default: one for each GPU, or one",
    )  # fmt: skip
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument("--workers", type=int | None, default=None, help="data-loader workers")
    parser.add_argument(
        "--teacher_cache", type=str | None, default=None,
        help="folder that keeps the teachers' features of the views, which other campaigns may "
        "share (default: teacher-features in --out)",
    )  # fmt: skip
    parser.add_argument(
        "--compile", action="store_true", help="train the networks through torch.compile"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_class_arguments(kind, as_group=False)
    parser.add_class_arguments(More, as_group=False, skip={"semi"})
    options = parser.read(arguments)
    if not options.out:
        raise UserError("give --out: a folder for the runs and the table")
    cache = teacher_cache(options.teacher_cache)
    machine = Machine(
        device_named(options.device), options.workers, compile=options.compile, teacher_cache=cache
    )
    execution = Execution(
        expand(options.out), seeds_in(options.seeds), machine, options.processes,
        settings_of(options, More),
    )  # fmt: skip
    return options, settings_of(options, kind), execution


def print_results(results: Sequence[Any], as_json: bool, table: Callable[..., Any]) -> None:
    if as_json:
        for result in results:
            line = asdict(result)
            del line["right"]  # it is for comparisons, and long
            print(json.dumps(line))
    else:
        Console(markup=False, highlight=False, emoji=False).print(table(results))
    sys.stdout.flush()  # the numbers are out before anything else may fail


def device_named(name: str) -> Any:
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: auto, cpu or cuda")
    return name


def teacher_cache(given: str | None) -> str | None:
    """The folder that --teacher-cache names."""
    from burn.core.paths import expand

    return None if given is None else str(expand(given))


def one_line(text: str) -> str:
    """A few lines of a terminal at most: the beginning says what, the end what to do."""
    words = (w if len(w) <= _LONG_PATH else shortened(w, 100) for w in printable(text).split(" "))
    return shortened(" ".join(words), _MOST_CHARACTERS)


_LONG_PATH, _MOST_CHARACTERS = 200, 600
