"""The command `burn import`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser


def run(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "import FILE",
        "Convert a published checkpoint of a binary network to burn's format. It computes the\n"
        "same function, except where the argument of a sign is exactly 0.",
        "  burn import model_best.pth.tar --format reactnet --out runs/reactnet.safetensors\n"
        "  burn import checkpoint.pth --format s2bnn --stage 2 --out runs/s2bnn.safetensors\n"
        "  burn import stage1.pth --format burn-release --stage 1 --out runs/stage1.safetensors\n"
        "  burn import tiny_checkpoint.pth.tar --format bnext --out runs/bnext.safetensors",
    )
    parser.add_argument("file", type=str, help="torch file; nothing in it is executed")
    parser.add_argument(
        "--format",
        type=str,
        required=True,
        help="reactnet (liuzechun/ReActNet), burn-release, s2bnn, bnext (hpi-xnor/BNext), or "
        "expert (1adrianb/expert-binary-networks)",
    )
    parser.add_argument("--out", type=str, required=True, help="checkpoint to write, .safetensors")
    parser.add_optional(
        "stage",
        int,
        "1: only the activations are binary, 2: the weights too; needed for burn-release and "
        "s2bnn, whose files do not say it (default: as the file says)",
    )
    options = parser.read(arguments)
    from burn.checkpoints.foreign.named import check_import
    from burn.core.paths import expand

    file, out = expand(options.file), expand(options.out)
    check_import(file, options.format, out, options.stage)  # before torch is imported
    from burn.checkpoints.foreign.exchange import import_checkpoint

    done = import_checkpoint(file, options.format, out, options.stage)
    kept = "".join(f", {name} ({count:,} parameters)" for name, count in done.heads.items())
    print(f"{done.backbone}, {done.precision.value} ({done.parameters:,} parameters){kept}")
    for note in done.notes:
        print(note)
    for name, count in done.dropped.items():
        print(f"left out: {name}" + (f" ({count} entries)" if count > 1 else ""))
    print(f"-> {options.out}")
