"""The command `burn analyze`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import settings_of
from burn.core.errors import UserError


def run(arguments: list[str], console: Console) -> None:
    """Run `burn analyze` with the arguments after its name."""
    from burn.core.paths import expand
    from burn.experiments.run import ANALYSES, analyze

    what = arguments[0] if arguments else "--help"
    if what not in (*ANALYSES, "-h", "--help"):
        raise UserError(f"unknown analysis {what!r}: give {', '.join(ANALYSES)} first")
    width = max(map(len, ANALYSES))
    parser = Parser(
        "analyze WHAT",
        "Run one of the paper's small experiments. It writes a picture to WHAT.svg, its numbers to "
        "WHAT.csv\nand a text to WHAT.md. --help after its name shows its settings.\n\n"
        + "\n".join(f"  {name:<{width}}  {about.title}" for name, about in ANALYSES.items()),
        "  burn analyze gradients --data cifar10/train.parquet --teacher runs/teacher \\\n"
        "      --out runs/gradients\n"
        "  burn analyze ema-toy --out runs/ema-toy\n"
        "  burn analyze cost --compared runs/compared --out runs/cost\n"
        "  burn analyze negatives --data cifar10/train.parquet --test cifar10/val.parquet \\\n"
        "      --budget 100000 --out runs/negatives",
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
