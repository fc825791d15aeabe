"""Check of what a torch file declares, before torch reads it.

`torch.load(weights_only=True)` executes nothing of a file, but it believes the sizes in it: a small
file can ask for any amount of memory, and objects that nest deeply overflow the stack. Here the
pickle is read instruction by instruction, without creating its objects.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
# Of what these have, the functions that are called. Others are only named, such as torch.float32.
_CALLED = re.compile(
    r"torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.Size|torch\.device"
    r"|torch\.nn\.parameter\.Parameter|torch\.serialization\._get_layout|argparse\.Namespace"
    r"|collections\.(OrderedDict|Counter)|(builtins|__builtin__)\.(set|complex)|_codecs\.encode"
)
# Those that make a tensor of a storage, its offset, its size and its strides.
_OF_STORAGE = re.compile(r"torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|qtensor)")
_ITERATING = re.compile(r".*\.(set|Counter|OrderedDict|Size)")
_STORAGES = re.compile(r"torch\.(?:cuda\.|storage\.)?(\w+)Storage")
_ELEMENT_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8, "QInt32": 4, "QInt8": 1,
    "QUInt8": 1, "QUInt4x2": 1, "QUInt2x4": 1, "Untyped": 1,
}  # fmt: skip
_MOST_ODD_KEYS = 1000  # of dictionaries and sets; a file can choose them so that their hashes agree

# What other files are, by their first bytes; a dot stands for any byte.
_OTHER_FILES = {
    rb"\x89HDF": "an HDF5 file (of Keras, for example)",
    rb"GGUF": "a GGUF file",
    rb"\x93NUMPY": "a NumPy array",
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
    """Check that a torch file may be given to torch.

    Args:
        file: A torch file, of the zip format or the older one, or a pickle.
        limit: Largest size in bytes that is accepted.

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
        else:
            opened.seek(0)
            pickles = [io.BytesIO(opened.read(_PICKLE_LIMIT))]
        size = opened.seek(0, io.SEEK_END)
    names: dict[str, None] = {}
    left = _MOST_INSTRUCTIONS
    for content in pickles:
        found, done = _names_in(file, content, size, left)
        left -= done
        names |= dict.fromkeys(found)
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

    Both look for its end from behind, but Python takes the directory that lies before that end, and
    torch the one at the place that the end states. In an archive as torch writes it, without a
    comment, all parts follow one another.

    Args:
        opened: The archive.
        size: Its size in bytes.
        entries: What Python finds in it.
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
    found = []
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        found.append(kind)
        extra = extra[4 + length :]
    return found


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


def _names_in(file: Path, content: BinaryIO, size: int, most: int) -> tuple[list[str], int]:
    """Return the names that consecutive pickles use, and the number of their instructions.

    Args:
        file: The file, for messages.
        content: The pickles.
        size: The file's size in bytes.
        most: Largest number of instructions.
    """
    names: list[str] = []
    instructions = 0
    for _ in range(5):  # the older format has a magic number, versions, the weights and a list
        try:
            walk = _Walk()
            for opcode, argument, _position in pickletools.genops(content):
                instructions += 1
                if instructions > most:
                    raise UserError(f"{file} is not a file of weights: its pickle is too large")
                walk.step(opcode, argument)
                if walk.deepest > _DEEPEST:
                    raise UserError(f"{file} is not a file of weights: its objects nest too deeply")
                if walk.claimed > _MOST_VIEWS * size:
                    raise UserError(
                        f"{damaged(file)}, or a tensor in it claims more numbers than there are"
                    )
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
    return names, instructions


@dataclass(slots=True)
class _Item:
    """What is known of an object that a pickle makes.

    Attributes:
        kind: What it is: "text", "number", "name" of a function or class, "tuple", "list", "dict",
            "storage", "call" of a function, or "" for another.
        text: The text, the name, or the name of the function that was called.
        value: A whole number, or the bytes of a storage's element.
        parts: Objects in a tuple or list.
        depth: Largest number of nested tuples in it.
    """

    kind: str = ""
    text: str = ""
    value: int = 0
    parts: Sequence[_Item] = ()
    depth: int = 0


class _Walk:
    """Stack of a pickle machine that holds descriptions of objects in place of the objects.

    torch executes a pickle with functions that take arguments apart, which for a tensor that claims
    to be large means an object for each of its numbers. So what they are given must be literal.

    Attributes:
        names: Functions and classes that were named, as module.name, and descriptions of what
            weights do not need.
        deepest: Largest number of nested tuples.
        claimed: Bytes that all tensors claim.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.deepest = 0
        self.claimed = 0
        self._stack: list[_Item | None] = []  # None: a mark
        self._memo: dict[int, _Item] = {}
        self._records: dict[str, str] = {}  # names of storages by their small letters
        self._odd_keys = 0

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute the next instruction. Raises IndexError or KeyError where that is impossible."""
        name, stack = opcode.name, self._stack
        if name == "MARK":
            stack.append(None)
            return
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            key = len(self._memo) if argument is None else int(argument)
            self._memo[key] = stack[-1] or _Item()
            return
        if name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
            return
        popped: list[_Item] = []  # the uppermost last
        for kind in reversed(opcode.stack_before):
            if kind is pickletools.stackslice:
                while (item := stack.pop()) is not None:
                    popped.append(item)
            elif kind is not pickletools.markobject:
                popped.append(stack.pop() or _Item())
        popped.reverse()
        if name in _CHANGES:
            made = self._changed(name, *popped)
        else:
            made = self._made(name, argument, popped)
        made.depth = max([item.depth for item in popped], default=0)
        made.depth += made.kind == "tuple" and bool(popped)
        self.deepest = max(self.deepest, made.depth)
        stack.extend(made for _ in opcode.stack_after)

    def _changed(self, name: str, made: _Item, *added: _Item) -> _Item:
        """Return an object to which others are added, or which gets a state."""
        if name in ("SETITEM", "SETITEMS"):
            self._count_odd(added[::2])
        elif name == "BUILD":
            stands_in = made.text in STAND_INS and added[0].kind == "tuple"
            if made.kind != "call" or not (stands_in or added[0].kind == "dict"):
                self.names.append("a state that is no dictionary")
        elif isinstance(made.parts, list):
            made.parts += added
        return made

    def _made(self, name: str, argument: Any, popped: list[_Item]) -> _Item:
        """Return a new object, made by the instruction `name` of objects from the stack."""
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            text = str(argument).replace(" ", ".")
            if name == "STACK_GLOBAL":
                text = ".".join(item.text for item in popped)
            self.names.append(text)
            return _Item("name", text)
        if "TUPLE" in name:
            return _Item("tuple", parts=popped)
        if name in ("LIST", "EMPTY_LIST"):
            return _Item("list", parts=popped)
        if name in ("DICT", "EMPTY_DICT"):
            self._count_odd(popped[::2])
            return _Item("dict")
        if name in ("REDUCE", "NEWOBJ"):
            self._call(*popped)
            return _Item("call", popped[0].text)
        if name in ("PERSID", "BINPERSID"):
            return self._storage(popped[0] if popped else _Item())
        if isinstance(argument, str):
            return _Item("text", argument)
        plain = isinstance(argument, (int, float)) or name in ("NEWTRUE", "NEWFALSE")
        value = argument if isinstance(argument, int) else 0
        return _Item("number", value=value) if plain else _Item()

    def _call(self, function: _Item, arguments: _Item) -> None:
        """Note a call that weights do not need: of what is only named, or with other arguments."""
        name, given = function.text, arguments.parts
        allowed = name in STAND_INS or _CALLED.fullmatch(name) is not None
        if name == "_codecs.encode":  # some codecs take hours for a small text
            allowed = [item.kind for item in given] == ["text", "text"]
            allowed = allowed and given[1].text == "latin1"
        elif name == "torch._tensor._rebuild_from_type_v2":  # calls the first with the third
            allowed = len(given) == 4 and given[0].text.startswith("torch._utils._rebuild_")
            if allowed:
                self._call(given[0], given[2])
        elif name == "torch._utils._rebuild_sparse_tensor":
            allowed = len(given) == 2 and given[1].kind == "tuple"
        elif _OF_STORAGE.fullmatch(name):
            allowed = len(given) >= 4 and given[0].kind == "storage"
            allowed = allowed and _numbers(given[2]) and _numbers(given[3])
            if allowed:
                numbers = math.prod(abs(part.value) for part in given[2].parts)
                self.claimed += numbers * given[0].value
        elif _ITERATING.fullmatch(name):
            allowed = all(item.kind in ("tuple", "list", "dict", "text") for item in given)
            parts = [part for item in given for part in item.parts]
            if name == "collections.OrderedDict":
                allowed = allowed and all(part.kind in ("tuple", "list") for part in parts)
                parts = [part for pair in parts for part in pair.parts[:1]]
            self._count_odd(parts)
        if not (allowed and function.kind == "name" and arguments.kind == "tuple"):
            self.names.append(f"a call of {name if function.kind == 'name' else 'an object'}")

    def _storage(self, told: _Item) -> _Item:
        """Return a storage by what is told of it: its class, record, device and length."""
        given = told.parts
        kinds = [item.kind for item in given[:5]]
        known = told.kind == "tuple" and kinds == ["text", "name", "text", "text", "number"]
        match = _STORAGES.fullmatch(given[1].text) if known else None
        element = _ELEMENT_BYTES.get(match[1]) if match else None
        if element is None or given[0].text != "storage":
            self.names.append("a storage of another kind")
            return _Item("storage")
        # torch reads a record once for each of its names, of which it ignores capitals.
        if self._records.setdefault(given[2].text.lower(), given[2].text) != given[2].text:
            self.names.append("a storage of two names")
        return _Item("storage", value=element)

    def _count_odd(self, keys: Iterable[_Item]) -> None:
        """Count the keys of a dictionary or set whose hashes a file may choose."""
        for key in keys:
            plain = key.kind in ("text", "name") or (key.kind == "number" and key.value < 2**60)
            self._odd_keys += not (plain and key.value > -(2**60))
        if self._odd_keys > _MOST_ODD_KEYS:
            self.names.append("keys that are no texts or numbers")


# Instructions that change an object below others on the stack, which stays there.
_CHANGES = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")


def _numbers(item: _Item) -> bool:
    return item.kind == "tuple" and all(part.kind == "number" for part in item.parts)


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
