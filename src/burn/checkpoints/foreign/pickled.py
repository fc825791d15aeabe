"""Rules for the pickles of weights, followed without creating their objects.

torch executes a pickle with functions that take arguments apart, which for a tensor that claims to
be large means an object for each of its numbers. So here is listed what weights need: functions
that are called, with literal arguments, and storages, states and keys of a few kinds.

A training file may hold a NumPy number, such as the best accuracy so far, or an array, such as a
random state, beside its weights. NumPy's functions, which torch may be told to call, believe what a
pickle says of a type. So classes of this module stand for NumPy's: a number is read from its bytes,
and anything else, which no weights are, becomes an empty `Array` or None.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Booleans, integers, floats and complex numbers by bytes; texts by characters.
_KIND = re.compile("b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,4}")


class Dtype:
    """Stands for `numpy.dtype`.

    Attributes:
        kind: The type, such as f8, or None if it is neither one of numbers nor one of texts.
        order: The order of bytes, as in `numpy.dtype.byteorder`.
    """

    def __init__(self, kind: object = None, *_: object) -> None:
        match = isinstance(kind, str) and _KIND.fullmatch(kind)
        self.kind, self.order = str(kind) if match else None, "="

    def __setstate__(self, state: object) -> None:
        """Take the order of bytes from a pickle's state, whose second value it is."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|"):
            self.order = str(state[1])


class Array:
    """Stands for `numpy.ndarray`, without its values."""

    def __init__(self, *_: object) -> None:
        """Make an array as NumPy's function for pickles does."""

    def __setstate__(self, state: object) -> None:
        """Leave the values of a pickle out."""


def scalar(kind: object, content: object = b"") -> Any:
    """Stand for NumPy's function that makes a number of its bytes, by a `Dtype`.

    Returns the number or text as Python's, or None where the bytes are not those of one of this
    type.
    """
    if not isinstance(kind, Dtype) or kind.kind is None or not isinstance(content, bytes):
        return None
    dtype = np.dtype(kind.order + kind.kind)
    if not content or len(content) != dtype.itemsize:
        return None
    if dtype.kind != "U":
        return np.frombuffer(content, dtype)[0].item()
    try:  # NumPy does not check that they are characters
        return content.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    except UnicodeDecodeError:
        return None


# What pickles of NumPy 1 and 2 name, and what stands for it: all that may be called.
STAND_INS = {
    "numpy.dtype": Dtype,
    "numpy.ndarray": Array,
    "numpy.core.multiarray.scalar": scalar,
    "numpy._core.multiarray.scalar": scalar,
    "numpy.core.multiarray._reconstruct": Array,
    "numpy._core.multiarray._reconstruct": Array,
}

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
_MOST_DIMENSIONS = 64  # of a tensor; NumPy has no more
_MOST_VISITED = 10**6  # parts of collections in the arguments of calls


@dataclass(slots=True)
class _Item:
    """What is known of an object that a pickle makes."""

    # "text", "number", "name" of a function or class, "tuple", "list", "dict", "storage", "call" of
    # a function, or "" for another.
    kind: str = ""
    text: str = ""  # the text, the name, or the name of the function that was called
    value: int = 0  # a whole number, or the bytes of a storage's element
    parts: Sequence[_Item] = ()  # objects in a tuple or list
    depth: int = 0  # largest number of nested tuples in it


class Walk:
    """Stack of a pickle machine that holds descriptions of objects in place of the objects.

    `names` are the functions and classes that were named, as module.name, and calls of those that
    are only named in weights. `needless` is the first thing that weights have no need of, or "".
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.needless = ""
        self.instructions = 0  # that were followed
        self.deepest = 0  # largest number of nested tuples
        self.claimed = 0  # bytes, by all tensors
        self._stack: list[_Item | None] = []  # None: a mark
        self._memo: dict[int, _Item] = {}
        self._records: dict[str, str] = {}  # names of storages by their small letters
        self._odd_keys = 0
        self._visited = 0  # parts of collections that were given to calls

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute the next instruction. Raises IndexError or KeyError where that is impossible."""
        self.instructions += 1
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
                self._refuse("a state that is no dictionary")
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
        """Refuse a call that weights have no need of: of what is only named, or other arguments."""
        name, given = function.text, arguments.parts
        allowed = True
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
            self._visited += sum(len(item.parts) for item in given)
            if self._visited > _MOST_VISITED:  # one collection may be taken any number of times
                self._refuse("collections of collections")
                return
            parts = [part for item in given for part in item.parts]
            if name == "collections.OrderedDict":
                allowed = allowed and all(part.kind in ("tuple", "list") for part in parts)
                parts = [part for pair in parts for part in pair.parts[:1]]
            self._count_odd(parts)
        if function.kind != "name":
            self._refuse("a call of an object")
        elif name not in STAND_INS and _CALLED.fullmatch(name) is None:
            self.names.append(f"a call of {name}")
        elif not (allowed and arguments.kind == "tuple"):
            self._refuse(f"a call of {name} with other arguments")

    def _storage(self, told: _Item) -> _Item:
        """Return a storage by what is told of it: its class, record, device and length."""
        given = told.parts
        kinds = [item.kind for item in given[:5]]
        is_storage = told.kind == "tuple" and kinds == ["text", "name", "text", "text", "number"]
        match = _STORAGES.fullmatch(given[1].text) if is_storage else None
        element = _ELEMENT_BYTES.get(match[1]) if match else None
        if element is None or given[0].text != "storage":
            self._refuse("a storage of another kind")
            return _Item("storage")
        # torch reads a record once for each of its names, of which it ignores capitals.
        if self._records.setdefault(given[2].text.lower(), given[2].text) != given[2].text:
            self._refuse("a storage of two names")
        return _Item("storage", value=element)

    def _refuse(self, what: str) -> None:
        self.needless = self.needless or what

    def _count_odd(self, keys: Iterable[_Item]) -> None:
        """Count the keys of a dictionary or set whose hashes a file may choose."""
        for key in keys:
            plain = key.kind in ("text", "name") or (key.kind == "number" and key.value < 2**60)
            self._odd_keys += not (plain and key.value > -(2**60))
        if self._odd_keys > _MOST_ODD_KEYS:
            self._refuse("keys that are no texts or numbers")


# Instructions that change an object below others on the stack, which stays there.
_CHANGES = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")


def _numbers(item: _Item) -> bool:
    """Return whether an object is a tuple of numbers as a tensor's sizes and strides are."""
    return (
        item.kind == "tuple"
        and len(item.parts) <= _MOST_DIMENSIONS
        and all(part.kind == "number" and abs(part.value) < 2**63 for part in item.parts)
    )


def is_known(name: str) -> bool:
    """Return whether a function or class is one that weights need."""
    module, _, leaf = name.rpartition(".")
    if module in ("builtins", "__builtin__"):
        return leaf in _BUILTINS
    return module.partition(".")[0] in _MODULES or name in STAND_INS
