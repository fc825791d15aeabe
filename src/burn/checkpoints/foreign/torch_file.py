"""Check of what a torch file declares, before torch reads it.

`torch.load(weights_only=True)` executes nothing of a file, but it believes the sizes in it: a small
file can ask for any amount of memory, and objects that nest deeply overflow the stack. Here its
archive is compared with how torch reads it, and its pickles are followed by
`burn.checkpoints.foreign.pickled`.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from burn.checkpoints.foreign.pickled import Walk, is_known
from burn.core.errors import UserError, printable
from burn.core.inputs import open_regular
from burn_engine.kinds import kind_of

_PICKLE_LIMIT = 64 * 2**20  # bytes
_MOST_INSTRUCTIONS = 1_500_000  # a training file of 5,000 tensors has 700,000
_DEEPEST = 100  # nested tuples; a tensor has 3
_MOST_VIEWS = 4  # bytes of all tensors / bytes in the file, which may hold a network twice
# What other files are, by their first bytes; a dot stands for any byte.
_OTHER_FILES = {
    rb"\x89HDF": "an HDF5 file (of Keras, for example)",
    rb"GGUF": "a GGUF file",
    rb"\x1f\x8b": "a gzip archive: unpack it",
    rb"....TFL3": "a TensorFlow Lite model",
    rb"\x08[\x01-\x20]\x12": "an ONNX model",
    rb".{7}\x00\{": "a safetensors file: name it .safetensors",
    rb"version https://git-lfs": "a pointer of Git LFS: fetch the file itself with git lfs pull",
    rb"\s*<": "a page of HTML or XML",
    rb"\s*[{\[]\s*[\"{}\]]": "a file of JSON",
}
# And what zip archives are, by the ends of the names in them.
_OTHER_ARCHIVES = {
    "constants.pkl": "a TorchScript archive: open it with torch.jit.load and save its state_dict",
    ".npy": "an archive of NumPy arrays",
    ".weights.h5": "a Keras model",
    "archive_format": "a program of torch.export: save its state_dict",
}


def check_torch_file(file: Path, limit: int) -> None:
    """Check that a file of at most `limit` bytes may be given to torch.

    It is a torch file, of the zip format or the older one, or a pickle.

    Raises:
        UserError: The file is not a regular file, is of another kind, is too large, declares more
            than it holds, or its pickle holds code, unknown objects, calls that weights do not
            need, or nests too deeply. A file that is neither known, nor a zip, nor a pickle
            passes: torch refuses it.
    """
    with open_regular(file, limit) as opened:
        start = opened.read(512)
        for pattern, kind in _OTHER_FILES.items():
            if re.match(pattern, start, re.DOTALL):
                raise UserError(f"{file} is not a weights file, but {kind}")
        if _is_tar(start):
            raise UserError(f"{file} is not a weights file, but a tar archive: unpack it")
        if start.startswith(b"PK\x03\x04"):
            pickles = _of_zip(file, opened)
        elif kind := kind_of(start):
            raise UserError(f"{file} is not a weights file, but {kind}")
        else:
            opened.seek(0)
            pickles = [io.BytesIO(opened.read(_PICKLE_LIMIT))]
        size = opened.seek(0, io.SEEK_END)
    walks: list[Walk] = []
    for content in pickles:
        left = _MOST_INSTRUCTIONS - sum(walk.instructions for walk in walks)
        walks += _follow(file, content, size, left)
    for name in dict.fromkeys(name for walk in walks for name in walk.names):
        shown = printable(name[:60])
        if name.startswith("torch.") and "nested" in name:
            raise UserError(f"{file} holds a nested tensor, which burn does not read ({shown})")
        if not is_known(name):
            raise code_in(file, shown)
    for walk in walks:
        if walk.needless:
            raise UserError(
                f"{file} holds {walk.needless}, which weights have no need of: save its state_dict "
                "alone"
            )


def check_tensors(content: Any, file: Path) -> None:
    """Check that the tensors read from a file have memory, and claim no more than the file holds.

    Raises UserError otherwise.
    """
    size = file.stat().st_size
    seen: set[int] = set()
    storages: dict[int, int] = {}
    total = 0
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, Tensor):
            if value.is_nested:
                raise UserError(f"{file} holds a nested tensor, which burn does not read")
            if value.layout != torch.strided:
                continue
            if value.device.type != "cpu":
                raise UserError(f"{file} holds tensors without numbers (device {value.device})")
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            total += value.numel() * value.element_size()
            if value.numel() * value.element_size() > storage.nbytes():
                raise UserError(f"{file} holds a tensor that claims more numbers than there are")
    if sum(storages.values()) > size or total > _MOST_VIEWS * size:
        raise UserError(f"{file} holds tensors that claim more numbers than there are")


def _is_tar(start: bytes) -> bool:
    """Return whether a file begins as Python's reader of tar archives wants it.

    torch gives that reader all that is no zip, and some archives keep it busy for hours.
    """
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class _Bounded(io.BufferedIOBase):
    """File from which at most `_PICKLE_LIMIT` bytes are read at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        most = _PICKLE_LIMIT + 1
        content = self._file.read(most if size is None or size < 0 else min(size, most))
        if len(content) == most:
            raise ValueError("too much at once")
        return content


def _of_zip(file: Path, opened: BinaryIO) -> list[BinaryIO]:
    """Return the pickles in a torch file. Raises UserError where it declares more than it holds."""
    size = opened.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(_Bounded(opened)) as archive:
            entries = archive.infolist()
            if not _is_read_alike(opened, size, entries):
                raise UserError(
                    f"{file} is a zip archive that programs read differently: load it with torch "
                    "and save its state_dict again"
                )
            names = [entry.filename.lower() for entry in entries]  # as torch compares them
            for end, kind in _OTHER_ARCHIVES.items():
                if any(name.endswith(end) for name in names):
                    raise UserError(f"{file} is not a weights file, but {kind}")
            if not any(name.endswith(".pkl") for name in names):
                raise UserError(f"{file} is not a weights file, but a zip archive: unpack it")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise UserError(
                    f"{file} has compressed entries, which torch does not write: load it with "
                    "torch and save its state_dict again"
                )
            if sum(entry.file_size for entry in entries) > size:
                raise UserError(f"{file} declares more bytes than it has: it is damaged")
            pickles = [entry for entry in entries if entry.filename.lower().endswith(".pkl")]
            if sum(entry.file_size for entry in pickles) > _PICKLE_LIMIT:
                raise UserError(f"{file} is not a file of weights: its pickle is too large")
            return [_stored(opened, entry) for entry in pickles]
    except UserError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        raise UserError(damaged(file)) from error


def _is_read_alike(opened: BinaryIO, size: int, entries: Iterable[zipfile.ZipInfo]) -> bool:
    """Return whether Python and torch find the same directory and names in a zip archive.

    Both look for its end from behind, but Python, which finds `entries`, takes the directory that
    lies before that end, and torch the one at the place that the end states. In an archive as torch
    writes it, without a comment, all parts follow one another.
    """
    opened.seek(max(0, size - 98))
    end = opened.read().rjust(98, b"\0")
    place = size - 22  # of the end
    signature, *_, length, start, comment = struct.unpack("<4s4H2LH", end[76:])
    if signature != b"PK\5\6" or comment:
        return False
    if end[56:60] == b"PK\6\7":  # the locator of an end of 64 bits
        place = size - 98
        stated = struct.unpack("<Q", end[64:72])[0]
        signature, after, *_, length, start = struct.unpack("<4sQ2H2L4Q", end[:56])
        if signature != b"PK\6\6" or after != 44 or stated != place:
            return False
    other_names = any(0x7075 in _fields(e.extra) or "\0" in e.orig_filename for e in entries)
    return start + length == place and not other_names


def _fields(extra: bytes) -> list[int]:
    """Return the kinds of the fields that an entry of a zip archive has beside its own."""
    kinds = []
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        kinds.append(kind)
        extra = extra[4 + length :]
    return kinds


def _stored(opened: BinaryIO, entry: zipfile.ZipInfo) -> BinaryIO:
    """Return the bytes of an entry as torch reads them: whether or not its checksum is right."""
    opened.seek(entry.header_offset)
    header = opened.read(30)
    name, extra = struct.unpack("<HH", header[26:])
    opened.seek(name + extra, io.SEEK_CUR)
    return io.BytesIO(opened.read(entry.file_size))


def damaged(file: Path) -> str:
    """Return the message for a file that cannot be read as weights."""
    return f"{file} is not a weights file, or it is damaged or truncated"


def _follow(file: Path, content: BinaryIO, size: int, left: int) -> list[Walk]:
    """Follow consecutive pickles of a file of `size` bytes, for at most `left` instructions."""
    walks: list[Walk] = []
    too_large = f"{file} is not a file of weights: its pickle is too large"
    for _ in range(5):  # the older format has a magic number, versions, the weights and a list
        walk = Walk()
        walks.append(walk)
        try:
            for opcode, argument, _position in pickletools.genops(content):
                walk.step(opcode, argument)
                if walk.instructions > left:
                    raise UserError(too_large)
                if walk.deepest > _DEEPEST:
                    raise UserError(f"{file} is not a file of weights: its objects nest too deeply")
                if walk.claimed > _MOST_VIEWS * size:
                    raise UserError(
                        f"{damaged(file)}, or a tensor in it claims more numbers than there are"
                    )
        except UserError:
            raise
        except Exception as error:  # not a pickle, or damaged, or the end
            if content.tell() >= _PICKLE_LIMIT:
                raise UserError(too_large) from error
            if walk.needless or not all(map(is_known, walk.names)):
                # torch would execute them before it sees that the pickle is damaged.
                raise UserError(damaged(file)) from error
            break
        left -= walk.instructions
    return walks


def code_in(file: Path, name: str = "") -> UserError:
    """Return the error for a file whose objects could run code; `name` is the first of them."""
    what = f" ({name})" if name else ""
    return UserError(
        f"{file} holds pickled objects other than weights{what}; they could run code and were not "
        "run: save its state_dict alone"
    )
