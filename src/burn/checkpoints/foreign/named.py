"""Checks of the name of a network that need no torch: whether there is something to load."""

from __future__ import annotations

import stat
from pathlib import Path

from burn.backbones.names import require_known
from burn.checkpoints.foreign import lite0
from burn.checkpoints.native import find_checkpoint, read_description
from burn.checkpoints.pretrained import PRETRAINED, names_checkpoint, nearest_network
from burn.core.errors import UserError
from burn.core.files import require_free
from burn.core.inputs import require_regular, status_of
from burn.core.paths import expand

FORMATS = ("reactnet", "burn-release", "s2bnn", "bnext", "expert")  # of `burn import`


def require_network(spec: str) -> None:
    """Check that a name stands for a network, before torch is imported to load it.

    `layouts.TEACHER_SYNTAX` explains the names. Raises UserError if there is no such architecture,
    file or run, or a run's checkpoint is damaged.
    """
    if names_checkpoint(spec):
        read_description(own_file(spec))
    elif spec == lite0.NAME:
        lite0.lite0_file()
    else:
        split_name(spec)


def own_file(spec: str) -> Path:
    """Return the file of a checkpoint of burn's, of a path that exists: the file or a run's folder.

    Raises UserError if the folder has no finished stage, or the file is from elsewhere.
    """
    file = find_checkpoint(expand(spec))
    if file.suffix in (".pth", ".pt", ".tar", ".bin"):
        raise UserError(
            f"{file} is not a checkpoint of burn's: for weights from elsewhere name their "
            f"architecture, ARCHITECTURE:{spec}"
        )
    return file


def split_name(spec: str) -> tuple[str, str]:
    """Split ARCHITECTURE:FILE or hub:NAME at the colon.

    Raises UserError if the architecture is unknown, or the file is missing.
    """
    name, separator, rest = spec.partition(":")
    if not separator:
        near = nearest_network(spec, lite0.NAME)
        hint = (
            "give a run folder or checkpoint of burn's, ARCHITECTURE:FILE, hub:NAME, lite0 or "
            + " or ".join(PRETRAINED)
        )
        raise UserError(f"no checkpoint at {spec}: {f'did you mean {near}?' if near else hint}")
    require_known(rest if name == "hub" else name)
    if name == "hub":
        return name, rest
    if not rest:
        raise UserError(f"--teacher {spec}: give a file of weights after the colon")
    status = status_of(expand(rest))
    if status is None or stat.S_ISDIR(status.st_mode):
        raise UserError(f"no weights file at {rest}")
    return name, rest


def check_import(file: Path, format: str, out: Path, stage: int | None) -> None:
    """Check the names of `burn import`. Raises UserError if one of them cannot be used."""
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: give one of {', '.join(FORMATS)}")
    if stage not in (None, 1, 2):
        raise UserError(f"stage {stage}: give 1 (binary activations) or 2 (binary weights too)")
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: a checkpoint's name must end in .safetensors")
    require_free(out, out.with_suffix(".json"))
    require_regular(file)


def check_export(checkpoint: Path, out: Path, format: str) -> None:
    """Check the names of `burn export` to a format of another project. Raises as `check_import`."""
    if format != "reactnet":
        raise UserError(f"cannot export to {format!r}: reactnet is the only format")
    if out.suffix == ".safetensors":
        raise UserError(f"{out}: the format is a torch file: name it .pth or .pth.tar")
    require_free(out)
    read_description(checkpoint)
