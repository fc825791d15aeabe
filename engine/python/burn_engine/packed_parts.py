"""Takes packed files apart and puts changed ones together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn_engine.format import parse_program

_ITEM_BYTES = {"F32": 4, "I16": 2, "U8": 1}


class Stored(NamedTuple):
    """A tensor as a file holds it.

    Attributes:
        dtype: "F32", "I16" or "U8".
        shape: its sizes.
        data: its bytes.
    """

    dtype: str
    shape: list[int]
    data: bytes


@dataclass(frozen=True)
class Parts:
    """What a packed file is made of, to be changed.

    Attributes:
        program: the program, as JSON values.
        tensors: the tensors by name.
        metadata: all metadata of the file; its program is replaced by `program`.
    """

    program: dict[str, Any]
    tensors: dict[str, Stored]
    metadata: dict[str, str]

    def set_floats(self, name: str, array: NDArray[Any]) -> None:
        """Store a tensor of float32."""
        floats = np.ascontiguousarray(array, "<f4")
        self.tensors[name] = Stored("F32", list(floats.shape), floats.tobytes())

    def without_classifier(self) -> None:
        """Remove the last layer if it is a classifier, with its tensors and the classes."""
        if self.program.pop("classes", None):
            old = self.program["layers"].pop()["name"]
            for part in ("weight", "bias"):
                del self.tensors[f"{old}.{part}"]

    def to_bytes(self) -> bytes:
        """Return the file; tensors of larger numbers come first, so that all are aligned.

        Raises:
            ModelError: A reader would refuse it.
        """
        metadata = self.metadata | {"bnn": json.dumps(self.program)}
        header: dict[str, Any] = {"__metadata__": metadata}
        parts: list[bytes] = []
        position = 0
        for name, (dtype, shape, data) in sorted(
            self.tensors.items(), key=lambda item: -_ITEM_BYTES[item[1].dtype]
        ):
            end = position + len(data)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
            parts.append(data)
            position = end
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        whole = b"".join([len(text).to_bytes(8, "little"), text, *parts])
        parse_program(whole)  # no file that a reader would refuse is ever written
        return whole


def take_apart(data: bytes) -> Parts:
    """Return the parts of a packed file that `parse_program` has accepted."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    tensors = {
        name: Stored(entry["dtype"], entry["shape"], _bytes_of(data, 8 + length, entry))
        for name, entry in header.items()
    }
    return Parts(json.loads(metadata["bnn"]), tensors, metadata)


def _bytes_of(data: bytes, start: int, entry: dict[str, Any]) -> bytes:
    begin, end = entry["data_offsets"]
    return data[start + begin : start + end]
