"""The command `burn analyze`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import settings_of
from burn.core.errors import UserError

_EXAMPLES = {
    "gradients": "--data cifar10/train.parquet --teacher runs/teacher \\\n      ",
    "ema-toy": "",
    "schedules": "",
    "cost": "--compared runs/compared ",
    "negatives": "--data cifar10/train.parquet --test cifar10/val.parquet \\\n"
    "      --budget 100000 ",
}


def run(arguments: list[str], console: Console) -> None:
    """Run `burn analyze` with the arguments after its name."""
    from burn.core.paths import expand
    from reproduction.analyses.run import ANALYSES, analyze

    what = arguments[0] if arguments else "--help"
    if what not in (*ANALYSES, "-h", "--help"):
        raise UserError(f"unknown analysis {what!r}: give {', '.join(ANALYSES)} first")
    is_known = what in ANALYSES
    named, shown = (what, [what]) if is_known else ("WHAT", list(ANALYSES))
    how = "" if is_known else " --help after its name shows its settings."
    width = max(map(len, shown))
    parser = Parser(
        f"analyze {named}",
        f"Run one of the paper's small experiments. It writes a picture to {named}.svg, its "
        f"numbers\nto {named}.csv and a text to {named}.md.{how}\n\n"
        + "\n".join(f"  {name:<{width}}  {ANALYSES[name].title}" for name in shown),
        "\n".join(f"  burn analyze {name} {_EXAMPLES[name]}--out runs/{name}" for name in shown),
    )
    parser.add_argument("what", type=str, help=", ".join(ANALYSES))
    parser.add_argument("--out", type=str, required=True, help="folder for these three files")
    kind = ANALYSES[what].options if what in ANALYSES else None
    if kind and fields(kind):
        parser.add_class_arguments(kind, as_group=False)
    options = parser.read(arguments or ["--help"])
    assert kind is not None

    print(analyze(what, settings_of(options, kind), expand(options.out), console))
    for suffix in ("svg", "csv", "md"):
        print(f"-> {Path(options.out) / what}.{suffix}")
