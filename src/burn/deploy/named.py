"""Checks of what `burn pack` and `burn export` name, before torch is imported to do the work."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from burn.checkpoints.native import CLASSIFIER_NAME, find_checkpoint, read_description
from burn.core.errors import UserError
from burn.core.files import require_free


def check_packing(checkpoint: Path, out: Path, head: Path | None = None) -> None:
    """Check the names of `burn pack`, of which `head` is a classifier's. Raises UserError."""
    require_packed_name(out)
    read_description(checkpoint)
    if head is not None:
        head_file(head)


def require_packed_name(out: Path) -> None:
    """Check that a packed file can be written under a name, which ends in .bnn and is free."""
    if out.suffix != ".bnn":
        raise UserError(f"{out}: a packed file's name must end in .bnn")
    require_free(out)


def head_file(head: Path) -> Path:
    """Return the file of a classifier, or of a checkpoint that holds one.

    `head` is a file or folder that `burn evaluate linear --out` wrote, or a checkpoint or run of
    burn's. Raises UserError if there is no such file, or the folder holds no classifier.
    """
    if not head.is_dir():
        return find_checkpoint(head)
    file = head / CLASSIFIER_NAME
    if file.is_file():
        return file
    if not any(head.glob("stage*.safetensors")):
        raise UserError(
            f"{head} holds neither a {CLASSIFIER_NAME}, which burn evaluate linear --out keeps, "
            "nor a finished stage"
        )
    return find_checkpoint(head)


def check_onnx_export(checkpoint: Path, out: Path, image_size: int | None) -> None:
    """Check the names of `burn export` to ONNX, and that the packages it needs are installed."""
    if out.suffix != ".onnx":
        raise UserError(f"{out}: an ONNX file's name must end in .onnx")
    require_free(out)
    if image_size is not None and not 8 <= image_size <= 2048:
        raise UserError(f"--image-size {image_size} is not in 8 … 2048 pixels")
    if not all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        raise UserError("exporting to ONNX needs packages: pip install onnx onnxruntime onnxscript")
    read_description(checkpoint)
