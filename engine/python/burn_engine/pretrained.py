"""The networks that come with the package: `load("photos")`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from burn_engine.errors import ModelError, path_of
from burn_engine.format import parse_program, read_bytes

_FOLDER = Path(__file__).with_name("pretrained")


@dataclass(frozen=True)
class Pretrained:
    """A network that comes with the package.

    Attributes:
        name: what `load` takes.
        sha256: digest of the packed file, hexadecimal.
        summary: what it is for and what it learned from, in a line.
    """

    name: str
    sha256: str
    summary: str

    @property
    def path(self) -> Path:
        """The packed file."""
        return _FOLDER / f"{self.name}.bnn"


PRETRAINED = (
    Pretrained(
        "photos",
        "c9b402bf73bc92fb3631be3f1f9de2eb77ac6542b4a4a6a33da51a5e9fa76eb5",
        "photographs, 96 pixels, 512 features; learned from 18,790 images of ImageNet's kinds and "
        "a teacher that was trained with ImageNet's labels",
    ),
    Pretrained(
        "small",
        "ee8b98d070c560d6b10c90824b247a36c2d754fec6dc79dae1fa7ac7a72d874b",
        "small pictures, 32 pixels; learned from 100,000 images of Tiny-ImageNet and a teacher "
        "that was trained with ImageNet's labels",
    ),
)


def find(model: str | os.PathLike[str]) -> Pretrained | None:
    """Return the pretrained network that a name means, or None if it means a file.

    A file of that name comes first, so that what worked without the network still does. A folder
    does not, since it can be no packed file: `photos` means the network beside a folder of photos.

    Args:
        model: The name, or the path of a file.

    Raises:
        TypeError: `model` is not a path.
        ValueError: `model` cannot be the name of a file.
    """
    path = path_of(model)
    named = next((each for each in PRETRAINED if each.name == os.fspath(model)), None)
    return None if named is None or path.is_file() else named


def name_of(fingerprint: str) -> str | None:
    """Return the name of the pretrained network with a fingerprint, if there is one."""
    for each in PRETRAINED:
        with contextlib.suppress(OSError, ModelError):  # damaged
            if parse_program(read_bytes(each.path)).fingerprint() == fingerprint:
                return each.name
    return None


def read_model(model: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a pretrained network, or of a packed file.

    Raises:
        ModelError: The file is too long or not a regular file, or a pretrained network's file is
            not the one that the package was made with.
        OSError: The file cannot be read.
        TypeError: `model` is not a path.
        ValueError: `model` cannot be the name of a file.
    """
    named = find(model)
    if named is None:
        try:
            return read_bytes(model)
        except ModelError as error:
            if Path(model).is_dir() and (name := Path(model).name) in _names():
                raise ModelError(f"{error}; did you mean the network {name}?") from None
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, _missing(os.fsdecode(model)), model) from None
    data = b""
    if named.path.is_file():
        data = read_bytes(named.path)
    if hashlib.sha256(data).hexdigest() != named.sha256:
        state = "damaged" if data else "missing"
        raise ModelError(f"the network's file in the package is {state}: install burn-engine again")
    return data


def _names() -> list[str]:
    return [each.name for each in PRETRAINED]


def _missing(name: str) -> str:
    """Say that there is no such file, and which networks a bare name could have meant."""
    reason = os.strerror(errno.ENOENT)
    if Path(name).name != name or Path(name).suffix:
        return reason
    names = _names()
    near = get_close_matches(name, names, n=1)
    if near:
        return f"{reason}; did you mean the pretrained network {near[0]}?"
    return f"{reason}, and no pretrained network of that name: there is {', '.join(names)}"
