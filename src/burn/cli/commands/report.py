"""The command `burn report`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser


def run(arguments: list[str], console: Console) -> None:
    """Run `burn report` with the arguments after its name."""
    parser = Parser(
        "report RUN…",
        "What runs, results and comparisons hold, as one page that needs no network: did it work, "
        "how it\nwas trained, the paper's numbers beside, curves, pictures. Each RUN is a folder "
        "of pretrain,\nevaluate, compare, ablate, analyze or demo.",
        "  burn report runs/demo\n"
        "  burn report runs/student runs/evaluated --out student.html\n"
        "  burn report runs/compared runs/ablated runs/analysis --out all.html",
    )
    parser.add_argument("run", type=str, nargs="+", help="folder with what burn left")
    parser.add_argument(
        "--out", type=str, default="report.html", help="page to write, in the place of an older one"
    )
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.report.page import write_report

    out = expand(options.out)
    size = write_report([expand(run) for run in options.run], out)
    print(f"-> {options.out} ({size / 1000:,.0f} kB)")
