"""The command `burn export`."""

from __future__ import annotations

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError


def run(arguments: list[str], console: Console) -> None:
    """Run `burn export` with the arguments after its name."""
    parser = Parser(
        "export CHECKPOINT OUT",
        "Convert a checkpoint of burn's to another format.\n\n"
        "onnx      the network in float for ONNX Runtime and others: from `images`, float32\n"
        "          (batch, 3, size, size) in [0, 1], to `features`, and to `scores` if it has a\n"
        "          linear classifier; batch normalization is folded\n"
        "reactnet  a torch file for ReActNet's code, which can only build reactnet_a with all\n"
        "          strides 2, as the ImageNet recipes train it",
        "  burn export runs/student student.onnx\n"
        "  burn export runs/teacher teacher.onnx --image-size 64\n"
        "  burn export runs/imagenet runs/imagenet.pth.tar --format reactnet",
    )
    parser.add_argument("checkpoint", type=str, help="run folder or checkpoint of burn's")
    parser.add_argument("out", type=str, help="file to write")
    parser.add_argument(
        "--format",
        type=str | None,
        default=None,
        help="onnx, or reactnet (liuzechun/ReActNet); default: onnx for a name that ends in .onnx",
    )
    parser.add_argument(
        "--image_size",
        type=int | None,
        default=None,
        help="side in pixels of the images for onnx; default: that of the training views",
    )
    options = parser.read(arguments)
    onnx = options.out.endswith(".onnx")
    format = options.format or ("onnx" if onnx else None)
    if format is None:
        raise UserError("give --format, onnx or reactnet: see burn export --help")
    if format not in ("onnx", "reactnet"):
        raise UserError(f"cannot export to {format!r}: give onnx or reactnet")
    if onnx and format != "onnx":
        raise UserError(f"{options.out} ends in .onnx, but --format is {format}: change one")
    from burn.core.paths import expand

    checkpoint, out = expand(options.checkpoint), expand(options.out)
    if format == "onnx":
        from burn.deploy.onnx import export_onnx

        done = export_onnx(checkpoint, out, options.image_size)
        print(f"{done.bytes:,} bytes, images of {done.image_size} × {done.image_size} pixels")
        print(f"in ONNX Runtime: cosine to the network's features {done.cosine:.6f}")
        print(f"outputs: {', '.join(done.outputs)}")
        for name in done.left_out:
            print(f"left out: {name}, which is part of pretraining and gives no classes of yours")
        print(f"-> {options.out}")
        return
    if options.image_size is not None:
        raise UserError("--image-size belongs to format onnx")
    from burn.checkpoints.foreign.exchange import export_checkpoint

    done = export_checkpoint(checkpoint, out, format)
    for name in done.left_out:
        print(f"left out: {name}, for which the format has no place")
    for note in done.notes:
        print(note)
    print(f"-> {options.out}")
