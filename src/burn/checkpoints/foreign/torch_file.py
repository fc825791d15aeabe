"""Check of what a torch file declares, before torch reads it.

`torch.load(weights_only=True)` executes nothing of a file, but it believes the sizes in it: a small
file can ask for any amount of memory, and objects that nest deeply overflow the stack. Here the
pickle is read instruction by instruction, without creating its objects.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from burn.checkpoints.foreign.numpy_values import STAND_INS
from burn.core.errors import UserError, printable
from burn.core.inputs import open_regular

_PICKLE_LIMIT = 64 * 2**20  # bytes
_MOST_INSTRUCTIONS = 1_500_000  # a training file of 5,000 tensors has 700,000
_DEEPEST = 100  # nested tuples; a tensor has 3
_MOST_VIEWS = 4  # bytes of all tensors / bytes in the file, which may hold a network twice
_MODULES = ("torch", "collections", "argparse", "_codecs")  # which files of weights need
_BUILTINS = ("set", "complex")

# What other files are, by their first bytes; a dot stands for any byte.
_OTHER_FILES = {
    rb"\x89HDF": "an HDF5 file (of Keras, for example)",
    rb"GGUF": "a GGUF file",
    rb"\x93NUMPY": "a NumPy array",
    rb"\x1f\x8b": "a gzip archive: unpack it",
    rb"....TFL3": "a TensorFlow Lite model",
    rb"\x08[\x01-\x20]\x12": "an ONNX model",
    rb".{7}\x00\{": "a safetensors file: name it .safetensors",
    rb".{257}ustar": "a tar archive: unpack it",
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
    """Check that a torch file may be given to torch.

    Args:
        file: A torch file, of the zip format or the older one, or a pickle.
        limit: Largest size in bytes that is accepted.

    Raises:
        UserError: The file is not a regular file, is of another kind, is too large, declares more
            than it holds, or its pickle holds code, unknown objects, or nests too deeply. A file
            that is neither known, nor a zip, nor a pickle passes: torch refuses it.
    """
    with open_regular(file, limit) as opened:
        start = opened.read(512)
        for pattern, kind in _OTHER_FILES.items():
            if re.match(pattern, start, re.DOTALL):
                raise UserError(f"{file} is not a weights file, but {kind}")
        if start.startswith(b"PK\x03\x04"):
            pickles = _of_zip(file, opened)
        else:
            opened.seek(0)
            pickles = [io.BytesIO(opened.read(_PICKLE_LIMIT))]
    names: dict[str, None] = {}
    for content in pickles:
        names |= dict.fromkeys(_names_in(file, content))
    _check_names(file, names)


def check_tensors(content: Any, file: Path) -> None:
    """Check that the tensors read from a file have memory, and claim no more than the file holds.

    Raises:
        UserError: A tensor has no numbers in memory, or claims more numbers than the file holds.
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


def _names_in(file: Path, content: BinaryIO) -> list[str]:
    """Return the names of functions and classes that the consecutive pickles in `content` use."""
    names: list[str] = []
    instructions = 0
    for _ in range(5):  # the older format has a magic number, versions, the weights and a list
        try:
            walk = _Walk()
            for opcode, argument, _position in pickletools.genops(content):
                instructions += 1
                if instructions > _MOST_INSTRUCTIONS:
                    raise UserError(f"{file} is not a file of weights: its pickle is too large")
                walk.step(opcode, argument)
                if walk.deepest > _DEEPEST:
                    raise UserError(f"{file} is not a file of weights: its objects nest too deeply")
        except UserError:
            raise
        except Exception as error:  # not a pickle, or damaged, or the weights begin here
            if content.tell() >= _PICKLE_LIMIT:
                raise UserError(
                    f"{file} is not a file of weights: its pickle is too large"
                ) from error
            if not all(map(_is_known, walk.names)):  # torch would call them before it sees the end
                raise UserError(damaged(file)) from error
            names += walk.names
            break
        names += walk.names
    return names


class _Walk:
    """Stack of a pickle machine that holds the depth and text of objects in place of the objects.

    Attributes:
        names: Functions and classes that were named, as module.name.
        deepest: Largest number of nested tuples.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.deepest = 0
        self._stack: list[tuple[int, str] | None] = []  # None: a mark
        self._memo: dict[int, tuple[int, str]] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute the next instruction. Raises IndexError or KeyError where that is impossible."""
        name, stack = opcode.name, self._stack
        if name == "MARK":
            stack.append(None)
            return
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            key = len(self._memo) if argument is None else int(argument)
            self._memo[key] = stack[-1] or (0, "")
            return
        if name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
            return
        popped: list[tuple[int, str]] = []
        for kind in reversed(opcode.stack_before):
            if kind is pickletools.stackslice:
                while (item := stack.pop()) is not None:
                    popped.append(item)
            elif kind is not pickletools.markobject:
                popped.append(stack.pop() or (0, ""))
        text = argument[:100] if isinstance(argument, str) else ""
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            text = str(argument).replace(" ", ".")
            if name == "STACK_GLOBAL":
                text = ".".join(text for _, text in reversed(popped))
            self.names.append(text)
        elif name.startswith("TUPLE"):
            text = popped[0][1] if popped else ""  # of the last item
        elif name == "REDUCE" and popped[1][1] == "_codecs.encode" and popped[0][1] != "latin1":
            self.names.append(f"codecs.{popped[0][1]}")  # some take hours for a small text
        depth = max((depth for depth, _ in popped), default=0) + name.startswith("TUPLE")
        self.deepest = max(self.deepest, depth)
        stack.extend((depth, text) for _ in opcode.stack_after)


def _check_names(file: Path, names: Iterable[str]) -> None:
    """Raise UserError for functions and classes that weights do not need."""
    for name in names:
        module = name.rpartition(".")[0]
        shown = printable(name[:60])
        if module.partition(".")[0] == "torch" and "nested" in name:
            raise UserError(f"{file} holds a nested tensor, which burn does not read ({shown})")
        if not _is_known(name):
            raise code_in(file, shown)


def _is_known(name: str) -> bool:
    """Return whether a function or class is one that weights need."""
    module, _, leaf = name.rpartition(".")
    if module in ("builtins", "__builtin__"):
        return leaf in _BUILTINS
    return module.partition(".")[0] in _MODULES or name in STAND_INS


def code_in(file: Path, name: str = "") -> UserError:
    """Return the error for a file whose objects could run code; `name` is the first of them."""
    what = f" ({name})" if name else ""
    return UserError(
        f"{file} holds pickled objects other than weights{what}; they could run code and were not "
        "run: save its state_dict alone"
    )
