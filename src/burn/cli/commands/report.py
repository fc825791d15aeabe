"""The command `burn report`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser


def run(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "report RUN…",
        "Write runs, results and comparisons as one HTML page that works offline: whether the\n"
        "training worked, its settings, the paper's numbers for comparison, curves and pictures.\n"
        "Each RUN is a folder of pretrain, evaluate, compare, ablate, analyze or demo.",
        "  burn report runs/demo\n"
        "  burn report runs/student runs/evaluated --out student.html\n"
        "  burn report runs/compared runs/ablated runs/analysis --out all.html\n"
        "  burn report runs/student --with-model student.bnn",
    )
    parser.add_argument("run", type=str, nargs="+", help="folder that burn wrote")
    parser.add_argument(
        "--out", type=str, default="report.html", help="page to write; an older page is replaced"
    )
    parser.add_optional(
        "with_model", str, "packed file, which the page runs on photographs, offline"
    )
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.report.write import write_report

    out = expand(options.out)
    model = expand(options.with_model) if options.with_model is not None else None
    with console.status("reading") as status:  # which shows only in a terminal
        size = write_report([expand(run) for run in options.run], out, model, status.update)
    print(f"-> {options.out} ({size / 1000:,.0f} kB)")
