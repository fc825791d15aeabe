"""The command `burn demo`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import device_named, print_results


def run(arguments: list[str], console: Console) -> None:
    """Run `burn demo` with the arguments after its name."""
    parser = Parser(
        "demo",
        "Pretrain a float teacher and a binary network on built-in handwritten digits, and\n"
        "evaluate both.",
        "  burn demo\n  burn demo --out runs/another --seed 1\n  burn demo --overwrite",
    )
    parser.add_argument("--out", type=str, default="runs/demo", help="folder for what it makes")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--overwrite", action="store_true", help="begin again (default: keep what is finished)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON lines")
    options = parser.read(arguments)
    from burn.campaigns.demo import run_demo
    from burn.core.paths import expand
    from burn.report.render.tables import results_table

    device = device_named(options.device)
    out = expand(options.out)
    results = run_demo(out, options.seed, device, console, overwrite=options.overwrite)
    print_results(results, options.json, results_table)
