"""The command `burn ablate`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import USUAL, print_results, read_campaign


def run(arguments: list[str], console: Console) -> None:
    from burn.campaigns.ablate import Ablation, ablate, groups_named
    from burn.paper.ablations import GROUPS
    from burn.report.render.ablations import ablation_table

    named = "\n".join(f"  {group.name:<11}{group.title}" for group in GROUPS)
    parser = Parser(
        "ablate",
        "Train and evaluate variants of a recipe, one choice changed in each. Repeated, it resumes."
        f"\n\ngroups:\n{named}",
        "  burn ablate --groups components,stages --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher --seeds 0,1 --out runs/ablated",
        {"usual options": ("groups", *USUAL, "recipe")},
    )
    parser.add_argument(
        "--groups", type=str, default="all", help="all, or group names separated by commas"
    )
    options, ablation, execution = read_campaign(parser, arguments, Ablation)
    groups = groups_named(options.groups, ablation.labelled_teacher)
    ablate(
        ablation,
        groups,
        execution,
        console,
        lambda results: print_results(results, options.json, ablation_table),
    )
