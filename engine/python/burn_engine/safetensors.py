"""Reads and writes safetensors files of arrays, beside which there is one JSON description."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from burn_engine.errors import ModelError
from burn_engine.kinds import FIRST, kind_of, not_regular
from burn_engine.strict_json import parse_json, short
from burn_engine.whole_file import whole_file

_DTYPES = {"U8": "u1", "I64": "<i8", "F16": "<f2", "F32": "<f4"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 1_000_000


def read_tensors(path: Path, key: str, what: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """Read a file that `write_tensors` wrote, or that a stranger wrote in its place.

    Args:
        path: The file.
        key: The key of the description in the file's metadata.
        what: What the file should be, for error messages.

    Returns:
        The arrays by name, and the description.

    Raises:
        ModelError: The file is something else, or is damaged.
        OSError: The file cannot be read.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):  # a pipe would block
        raise ModelError(not_regular(mode))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise _other(start + file.read(FIRST), what)
        text = file.read(length)
        try:
            header = parse_json(text.decode("utf-8"), "header")
        except UnicodeDecodeError:
            raise _other(start + text, what) from None
        metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
            raise _other(start + text, what)
        description = parse_json(metadata[key], "description")
        entries = {name: _entry(name, entry) for name, entry in header.items()}
        end = 0
        for name, (_, _, begin, stop) in sorted(entries.items(), key=lambda item: item[1][2:]):
            if begin != end:
                raise ModelError(f"tensor {short(name)} does not follow the one before it")
            end = stop
        if end != size - 8 - length:
            raise ModelError(
                f"its tensors have {end} bytes, and {size - 8 - length} are there: the file is torn"
            )
        tensors = {}
        for name, (dtype, shape, begin, stop) in entries.items():
            file.seek(8 + length + begin)
            data = np.fromfile(file, np.uint8, stop - begin)
            if len(data) != stop - begin:
                raise ModelError("its length changed while it was read")
            try:
                tensors[name] = data.view(dtype).reshape(shape)
            except ValueError:  # a length of 0 beside others too large for an array
                raise ModelError(f"tensor {short(name)}: its shape is damaged") from None
    return tensors, description


def _other(data: bytes, what: str) -> ModelError:
    kind = kind_of(data)
    if kind == what:
        return ModelError(f"{what}, but it is damaged or cut off")
    return ModelError(f"this is not {what}" + (f" but {kind}" if kind else ""))


def _entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Check a tensor's entry; return its dtype, shape, and first and last offset."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"tensor {short(name)}: its entry is damaged")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelError(f"tensor {short(name)}: dtype {short(dtype)} is not one of an index's")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [-1]
    if (
        len(numbers) < 3
        or len(numbers) > 5
        or not all(
            isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**48 for n in numbers
        )
    ):
        raise ModelError(f"tensor {short(name)}: its shape or its offsets are damaged")
    if len(offsets) != 2:
        raise ModelError(f"tensor {short(name)}: its offsets are damaged")
    count = 1
    for length in shape:
        count *= length
    if offsets[1] - offsets[0] != count * np.dtype(_DTYPES[dtype]).itemsize:
        raise ModelError(f"tensor {short(name)}: its shape and its offsets differ in size")
    return np.dtype(_DTYPES[dtype]), tuple(shape), offsets[0], offsets[1]


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write arrays into a safetensors file, complete or not at all.

    Args:
        path: The file, which is replaced if it exists.
        tensors: The arrays by name: uint8, int64, float16 or float32.
        metadata: The file's metadata.

    Raises:
        ValueError: The file cannot be written.
    """
    # Larger items first, so that each array's position is a multiple of its items' size.
    in_order = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, array in in_order:
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in in_order:
            if array.size:
                # Not by `tofile`, whose error for a full disk does not say so.
                file.write(cast("Any", np.ascontiguousarray(array).view(np.uint8).reshape(-1)))
