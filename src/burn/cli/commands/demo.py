"""The command `burn demo`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import machine_of, print_results


def run(arguments: list[str], console: Console) -> None:
    from burn.training.plan import Machine

    parser = Parser(
        "demo",
        "Pretrain a float teacher and a binary network on built-in handwritten digits, and\n"
        "evaluate both.",
        "  burn demo\n  burn demo --out runs/another --seed 1\n  burn demo --overwrite",
    )
    parser.add_argument("--out", type=str, default="runs/demo", help="folder for runs and results")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_options(Machine, "device")
    parser.add_switch("overwrite", "start again (default: keep finished parts)")
    parser.add_switch("json", "print the results as JSON lines")
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.runtime.bounds import require_within
    from burn.training.run_dir import make_folder

    device = machine_of(options).device
    out = expand(options.out)
    require_within(0, 2**32 - 1, seed=options.seed)
    make_folder(out)
    # From here on torch is imported, which takes seconds.
    from burn.campaigns.demo import run_demo
    from burn.report.render.tables import results_table

    results = run_demo(out, options.seed, device, console, overwrite=options.overwrite)
    print_results(results, options.json, results_table)
