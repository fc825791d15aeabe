"""The command `burn export`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError

_FORMATS = "onnx, c or reactnet"


def run(arguments: list[str], console: Console) -> str | None:
    parser = Parser(
        "export CHECKPOINT OUT",
        "Convert a checkpoint of burn's, or a packed file, to another format.\n\n"
        "onnx      the network in float for ONNX Runtime and others: from `images`, float32\n"
        "          (batch, 3, size, size) in [0, 1], to `features`, and to `scores` if it has a\n"
        "          linear classifier; batch normalization is folded\n"
        "c         a packed file as one C99 source and one header in the folder OUT, for\n"
        "          microcontrollers: no heap, no threads, no C library\n"
        "reactnet  a torch file for ReActNet's code, which can only build reactnet_a with all\n"
        "          strides 2, as the ImageNet recipes train it",
        "  burn export runs/student student.onnx\n"
        "  burn export runs/teacher teacher.onnx --image-size 64\n"
        "  burn export photos photos.onnx\n"
        "  burn export student.bnn --format c firmware --flash 320K --ram 160K\n"
        "  burn export runs/imagenet runs/imagenet.pth.tar --format reactnet",
    )
    parser.add_argument(
        "checkpoint",
        type=str,
        help="run folder or checkpoint of burn's, photos or small; for c a packed file, photos or "
        "small",
    )
    parser.add_argument("out", type=str, help="file to write; for c a folder")
    parser.add_optional(
        "format",
        str,
        "onnx, c, or reactnet (liuzechun/ReActNet); default: onnx for a name that ends in .onnx",
    )
    parser.add_optional(
        "image_size",
        int,
        "side in pixels of the images for onnx and c; default: that of the training views",
    )
    parser.add_optional(
        "name",
        str,
        "c: name of the files, and prefix of all names in them; default: the packed file's",
    )
    parser.add_optional(
        "epilogue",
        str,
        "c: numbers of the maps and of the arithmetic on them: float (the default), int32 for "
        "processors without floating point, or int16, which halves the maps and is less exact",
    )
    parser.add_optional(
        "flash",
        str,
        "c: bytes of flash that the network may take, such as 320K; it is refused otherwise",
    )
    parser.add_optional("ram", str, "c: the same for RAM")
    parser.add_optional(
        "classes_on_device",
        int,
        "c: also write functions that learn up to this many classes from images on the "
        "device, and leave the packed file's classifier out; default: none",
    )
    options = parser.read(arguments)
    onnx = options.out.endswith(".onnx")
    format = options.format or ("onnx" if onnx else None)
    if format is None:
        raise UserError(f"give --format, {_FORMATS}: see burn export --help")
    if format not in ("onnx", "c", "reactnet"):
        raise UserError(f"cannot export to {format!r}: give {_FORMATS}")
    if onnx and format != "onnx":
        raise UserError(f"{options.out} ends in .onnx, but --format is {format}: change one")
    if options.image_size is not None and format == "reactnet":
        raise UserError("--image-size belongs to formats onnx and c")
    for name in ("name", "epilogue", "flash", "ram", "classes_on_device"):
        if options[name] is not None and format != "c":
            raise UserError(f"--{name.replace('_', '-')} belongs to format c")
    if format == "c":
        return _export_c(options)
    (_export_onnx if format == "onnx" else _export_reactnet)(options)
    return None


def _export_onnx(options: Any) -> None:
    from burn.core.paths import expand
    from burn.deploy.named import check_onnx_export

    checkpoint, out = expand(options.checkpoint), expand(options.out)
    check_onnx_export(checkpoint, out, options.image_size)  # before torch is imported
    from burn.deploy.onnx import export_onnx

    done = export_onnx(checkpoint, out, options.image_size)
    print(f"{done.bytes:,} bytes, images of {done.image_size} × {done.image_size} pixels")
    print(
        f"run in ONNX Runtime and compared on {done.images} images: cosine of the features "
        f"{done.median:.6f} (median), {done.cosine:.6f} (least)"
    )
    print(f"outputs: {', '.join(done.outputs)}")
    for name in done.left_out:
        print(f"left out: {name}, which is part of pretraining and gives no classes of yours")
    print(f"-> {options.out}")


def _export_c(options: Any) -> str:
    from burn.checkpoints.pretrained import nearest_network
    from burn.core.paths import expand

    flash, ram = _bytes("flash", options.flash), _bytes("ram", options.ram)
    packed = _packed_pretrained(options.checkpoint) or expand(options.checkpoint)
    if packed.suffix != ".bnn":
        if not packed.exists() and (near := nearest_network(options.checkpoint)):
            raise UserError(f"no packed file at {options.checkpoint}: did you mean {near}?")
        raise UserError(
            f"{options.checkpoint} is not a packed file, which format c needs: write one with burn "
            "pack CHECKPOINT NAME.bnn"
        )
    from burn.deploy.c.export import export_c

    done = export_c(
        packed,
        expand(options.out),
        name=options.name,
        epilogue=options.epilogue or "float",
        image_size=options.image_size,
        flash=flash,
        ram=ram,
        classes_on_device=options.classes_on_device,
    )
    print(f"images of {done.image_size} × {done.image_size} pixels")
    if done.left_out:
        print(
            f"left out: the classifier of {done.left_out:,} classes; it learns others on the device"
        )
    print(
        f"flash: {done.flash:,} bytes ({done.constants:,} of constants, code of at most "
        f"{done.code:,})"
    )
    learned = f"classes {done.classes:,}, " if done.classes else ""
    print(
        f"RAM: {done.ram:,} bytes (arena {done.arena:,}, image {done.image:,}, scores "
        f"{done.scores:,}, {learned}stack of at most {done.stack:,})"
    )
    print(f"RAM where the image comes row by row: {done.ram_by_rows:,} bytes")
    if ram is not None and done.ram > ram:
        print(f"--ram has no room for a whole image: call {done.source.stem}_run_rows")
    if (tested := done.tested) is not None:
        same = "" if tested.same_class is None else f", same class for {tested.same_class} of them"
        print(
            f"computed in {options.epilogue} and compared with the packed file on {tested.images} "
            f"images: mean cosine of the outputs {tested.cosine:.4f}{same}"
        )
    print(f"-> {done.header}")
    print(f"-> {done.source}")
    unit = "" if tested else "-mfpu=fpv4-sp-d16 -mfloat-abi=hard "
    source = shlex.quote(str(done.source))
    return f"arm-none-eabi-gcc -std=c99 -Os -mthumb -mcpu=cortex-m4 {unit}-c {source}"


def _packed_pretrained(name: str) -> Path | None:
    """Return the packed file of a pretrained network, or None if the name means a path."""
    from burn_engine.errors import ModelError
    from burn_engine.pretrained import find, read_model

    pretrained = find(name)
    if pretrained is None:
        return None
    try:
        read_model(name)  # which compares the file with its SHA-256
    except ModelError as error:
        raise UserError(f"{name}: {error}") from error
    return pretrained.path


def _bytes(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,12})([KM]?)", text)
    if not match:
        raise UserError(f"--{name} {text!r} is not a number of bytes, such as 327680, 320K or 1M")
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2]]


def _export_reactnet(options: Any) -> None:
    from burn.checkpoints.foreign.named import check_export
    from burn.core.paths import expand

    checkpoint, out = expand(options.checkpoint), expand(options.out)
    check_export(checkpoint, out, "reactnet")  # before torch is imported
    from burn.checkpoints.foreign.exchange import export_checkpoint

    done = export_checkpoint(checkpoint, out, "reactnet")
    for name in done.left_out:
        print(f"left out: {name}, for which the format has no place")
    for note in done.notes:
        print(note)
    print(f"-> {options.out}")
