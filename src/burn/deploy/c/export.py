"""`burn export --format c`: a packed file as one C source and one header, for microcontrollers."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from burn.core.errors import UserError
from burn.core.files import cannot_be_written, require_free, write_beside
from burn.deploy.c.fixed_point import IntegerNetwork, real
from burn.deploy.c.fixed_point_run import run_integers
from burn.deploy.c.source import CSource
from burn.deploy.c.text import is_name, require_name
from burn.deploy.shared import cosines, sample_images
from burn.runtime.signals import signals_raise, signals_wait
from burn_engine import ModelError, reference
from burn_engine.errors import in_file
from burn_engine.format import (
    BinaryConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
    Program,
    parse_program,
    read_bytes,
)

EPILOGUES = ("float", "int32", "int16")
CODE_BYTES = 6144  # most that the code takes; tests/deploy/test_microcontroller.py measures it
STACK_BYTES = 512  # likewise
GATES_CODE_BYTES = 2048  # most that the code adds where layers have gates; likewise
LEARNING_CODE_BYTES = 1536  # most that the code adds that learns classes; likewise
LEARNING_STACK_BYTES = 256  # likewise, on the stack
MOST_CLASSES_ON_DEVICE = 1000

_IMAGE_SIZES = range(8, 2049)
_MANY_PIXELS = 8 * 96**2  # of all images that are compared; of larger images fewer are


@dataclass(frozen=True)
class Tested:
    """Comparison of a network in integers with its packed file.

    It has the mean cosine of the outputs, and the number of images with the same class or None.
    """

    images: int
    cosine: float
    same_class: int | None


@dataclass(frozen=True)
class ExportedC:
    """Summary of an export to C; all sizes are in bytes.

    Code and stack are the most that the code takes, `image_rows` is as many rows of an image as are
    needed at once, and `ram` is arena, image, scores, classes and stack. `left_out` is the number
    of classes of the packed file's classifier, where others are learned on the device; `tested` is
    None with floats, which are the packed file's own.
    """

    header: Path
    source: Path
    image_size: int
    constants: int
    code: int
    flash: int
    arena: int
    image: int
    image_rows: int
    scores: int
    classes: int
    stack: int
    ram: int
    left_out: int
    tested: Tested | None

    @property
    def ram_by_rows(self) -> int:
        """Size of arena, rows of the image, scores, classes and stack."""
        return self.ram - self.image + self.image_rows


def export_c(
    packed: Path,
    out: Path,
    *,
    name: str | None = None,
    epilogue: str = "float",
    image_size: int | None = None,
    flash: int | None = None,
    ram: int | None = None,
    classes_on_device: int | None = None,
) -> ExportedC:
    """Write a packed file as NAME.h and NAME.c.

    Args:
        packed: The packed file.
        out: Folder to write to. It is made if it does not exist, but its parent must.
        name: Prefix of all names in C, and name of both files. Default: from the packed file's.
        epilogue: One of `EPILOGUES`: numbers of the maps, and of the arithmetic on them.
        image_size: Side of the images in pixels. Default: the packed file's.
        flash: Bytes of flash that code and constants may take; None for any number.
        ram: Bytes of RAM that arena, rows of the image, scores, classes and stack may take; None
            for any number.
        classes_on_device: Number of classes that can be learned on the device, from images there;
            None for none, and no code for it. The packed file's classifier is then left out.

    Raises:
        UserError: The file cannot be read or exported, does not fit, or a file is in the way.
            Nothing is written then.
    """
    if epilogue not in EPILOGUES:
        raise UserError(f"--epilogue {epilogue!r} is none of {', '.join(EPILOGUES)}")
    name = _name_for(packed) if name is None else name
    require_name(name)
    if classes_on_device not in (None, *range(1, MOST_CLASSES_ON_DEVICE + 1)):
        raise UserError(
            f"--classes-on-device {classes_on_device} is not in 1 … {MOST_CLASSES_ON_DEVICE:,}"
        )
    header, source = out / f"{name}.h", out / f"{name}.c"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give the folder for {name}.h and {name}.c")
    if not out.exists() and not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}: make it first")
    if out.exists():
        require_free(header, source)
    program, digest = _read(packed, epilogue)
    size = _image_size(program, image_size, packed)
    left_out = len(program.classes) if classes_on_device else 0
    if left_out:
        program = replace(program, layers=program.layers[:-1], classes=())
    made = CSource(program, size, name, epilogue, str(packed), digest, classes_on_device or 0)
    code = CODE_BYTES + (LEARNING_CODE_BYTES if classes_on_device else 0)
    code += GATES_CODE_BYTES if made.has_gates else 0
    stack = STACK_BYTES + (LEARNING_STACK_BYTES if classes_on_device else 0)
    summary = ExportedC(
        header=header,
        source=source,
        image_size=size,
        constants=made.constants,
        code=code,
        flash=made.constants + code,
        arena=made.arena,
        image=made.image,
        image_rows=made.image_rows,
        scores=made.scores,
        classes=made.classes,
        stack=stack,
        ram=made.arena + made.image + made.scores + made.classes + stack,
        left_out=left_out,
        tested=_compared(made.integers, program, size, packed) if made.integers else None,
    )
    halves = epilogue != "int16" and not made.has_gates
    _check_fit(summary, packed, flash, ram, "--epilogue int16, " if halves else "")
    texts = made.texts()
    _write(out, {header: texts[0], source: texts[1]})
    return summary


def _name_for(packed: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", packed.stem.lower()).strip("_")
    return name[:40] if is_name(name[:40]) else f"network_{name}"[:40].strip("_")


def _read(packed: Path, epilogue: str) -> tuple[Program, str]:
    """Return the program of a packed file, and the file's SHA-256."""
    try:
        with in_file(packed):
            data = read_bytes(packed)
            program = parse_program(data)
    except ModelError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{packed}: {error.strerror or error}") from error
    for layer in program.layers:
        is_plain = isinstance(layer, Convolution | BinaryConvolution | GlobalMean | Linear)
        if not (is_plain or _is_bnext(layer)):
            raise UserError(
                f"{packed}: layer {layer.name!r} is a {layer.kind} that cannot be exported to C: "
                "give a network of the ReActNet or BNext family"
            )
        if not is_plain and epilogue != "float":
            raise UserError(
                f"{packed}: layer {layer.name!r} has a gate, which is computed in floats alone: "
                "give --epilogue float"
            )
        if isinstance(layer, GlobalMean) and layer.also:
            raise UserError(
                f"{packed}: layer {layer.name!r} averages several maps, which cannot be exported "
                "to C: give a network of one (burn-engine learn --layers last)"
            )
    return program, hashlib.sha256(data).hexdigest()


def _is_bnext(layer: Layer) -> bool:
    """Return whether a layer is one with a gate, as BNext has them."""
    return (
        isinstance(layer, GatedConvolution)
        and layer.gate_of == "mixed"
        and layer.shortcut
        and not layer.side
        and layer.experts == 1
        and layer.groups == layer.repeat
    )


def _image_size(program: Program, given: int | None, packed: Path) -> int:
    expected = program.image.size if program.image else None
    size = expected if given is None else given
    if size is None:
        raise UserError(f"{packed} does not say how large its images are: give --image-size")
    if size not in _IMAGE_SIZES:
        first, last = _IMAGE_SIZES[0], _IMAGE_SIZES[-1]
        raise UserError(f"--image-size {size} is not in {first} … {last} pixels")
    return size


def _compared(integers: IntegerNetwork, program: Program, size: int, packed: Path) -> Tested:
    images = sample_images(size).permute(0, 2, 3, 1).numpy()
    images = np.ascontiguousarray(images[:: max(1, len(images) * size**2 // _MANY_PIXELS)])
    with np.errstate(all="ignore"):  # whatever the constants are
        outputs = real(run_integers(integers, program, images)[-1], integers.score_bits)
        expected = reference.run(program, images)
    if not (np.isfinite(outputs).all() and np.isfinite(expected).all()):
        raise UserError(
            f"{packed}: outputs of layer {program.layers[-1].name!r} are too large for a float, so "
            "integers cannot be compared with them: pack a network with smaller constants"
        )
    same = int((outputs.argmax(axis=1) == expected.argmax(axis=1)).sum())
    cosine = float(cosines(outputs, expected).mean())
    return Tested(len(images), cosine, same if program.classes else None)


def _check_fit(
    exported: ExportedC, packed: Path, flash: int | None, ram: int | None, smaller_maps: str
) -> None:
    if flash is not None and exported.flash > flash:
        raise UserError(
            f"{packed} needs {exported.flash:,} bytes of flash ({exported.constants:,} of "
            f"constants, code of at most {exported.code:,}), more than --flash {flash:,}: train a "
            "narrower network"
        )
    if ram is not None and exported.ram_by_rows > ram:
        smaller = "a smaller --image-size or a narrower network"
        learned = ""
        if exported.classes:
            learned = f"classes {exported.classes:,}, "
            smaller = f"fewer --classes-on-device, {smaller}"
        raise UserError(
            f"{packed} needs {exported.ram_by_rows:,} bytes of RAM (arena {exported.arena:,}, "
            f"rows of the image {exported.image_rows:,}, scores "
            f"{exported.scores:,}, {learned}stack at most {exported.stack:,}), more than --ram "
            f"{ram:,}: give {smaller_maps}{smaller}"
        )


def _write(out: Path, texts: dict[Path, str]) -> None:
    """Write all files or none."""
    is_new = not out.exists()
    written: list[Path] = []
    try:
        with signals_raise(), signals_wait():
            if is_new:
                out.mkdir()
            for file, text in texts.items():
                _write_text(file, text)
                written.append(file)
    except BaseException as error:  # a signal, too, must not leave one file without the other
        for file in written:
            file.unlink(missing_ok=True)
        if is_new and out.is_dir() and not any(out.iterdir()):
            out.rmdir()
        if isinstance(error, OSError):
            raise UserError(cannot_be_written(out, error)) from error
        raise


def _write_text(file: Path, text: str) -> None:
    write_beside(file, lambda to: to.write_text(text, encoding="ascii"), new=True)
