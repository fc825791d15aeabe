"""The command `burn compare`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import USUAL, print_results, read_campaign


def run(arguments: list[str], console: Console) -> None:
    from burn.campaigns.compare import Comparison, compare, compared, compared_in
    from burn.campaigns.settings import words_in
    from burn.report.render.tables import comparison_table

    parser = Parser(
        "compare",
        "Train several methods on the same images, network and budget, and evaluate them by kNN "
        "and linear\nevaluation. After an interruption the same command continues; later commands "
        "may add methods\nand seeds.",
        "  burn compare --methods burn,s2bnn,mocov2 --data cifar/train.parquet \\\n"
        "      --test cifar/val.parquet --budget 400000 --teacher runs/teacher \\\n"
        "      --out runs/compared\n"
        "  burn compare --methods all --seeds 0,1 --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher \\\n"
        "      --labelled-teacher runs/teacher-supervised --out runs/compared",
        {"usual options": ("methods", *USUAL)},
    )
    parser.add_argument(
        "--methods", type=str, default="all", help=f"all, or some of {', '.join(compared())}"
    )
    options, comparison, execution = read_campaign(parser, arguments, Comparison)
    every = options.methods == "all"
    methods = compared_in(comparison.family) if every else words_in(options.methods)
    compare(
        comparison,
        methods,
        execution,
        console,
        lambda results: print_results(results, options.json, comparison_table),
    )
