"""Writes a packed file with a learned classifier: the base file's layers and one more."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import burn_engine
from burn_engine.errors import ModelError, in_file, path_of
from burn_engine.format import Program, parse_program
from burn_engine.learning import Learned, cosine_to
from burn_engine.model import Model
from burn_engine.pretrained import find, read_model
from burn_engine.whole_file import whole_file

_ITEM_BYTES = {"F32": 4, "I16": 2, "U8": 1}
_ORIGIN = "learned"  # the key in `origin`, which readers of the format ignore


def write_classifier(
    base: str | os.PathLike[str],
    learned: Learned,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Write a packed file with a learned classifier; there is a whole file or none.

    Args:
        base: The packed file whose features it was learned from, or a pretrained network's name. A
            classifier that it has already is replaced.
        learned: The classifier.
        out: The new file.
        overwrite: Whether `out` may exist; it may not be `base`.

    Raises:
        ModelError: The base breaks a rule of its format, or has another number of features.
        OSError: The base cannot be read.
        ValueError: `out` cannot be written, exists, or is the base.
    """
    path = path_of(out)
    check_output(path, base, overwrite=overwrite)
    with in_file(base):
        data = with_classifier(read_model(base), learned)
    with whole_file(path) as file:
        file.write(data)


def with_classifier(base: bytes, learned: Learned) -> bytes:
    """Return the bytes of a packed file with a learned classifier.

    Layers, format, image and origin are the base's; the origin also says how it was learned.

    Args:
        base: The bytes of the base's packed file.
        learned: The classifier.

    Raises:
        ModelError: The base breaks a rule of its format, or the classifier does not fit it.
    """
    program = parse_program(base)
    features = program.layers[program.features]
    if learned.weight.shape[1] != features.channels:
        raise ModelError(
            f"it has {features.channels} features, but the classifier was learned from "
            f"{learned.weight.shape[1]}"
        )
    length = int.from_bytes(base[:8], "little")
    header = json.loads(base[8 : 8 + length])
    metadata = header.pop("__metadata__")
    described = json.loads(metadata["bnn"])
    stored = {
        name: (entry["dtype"], entry["shape"], _bytes_of(base, 8 + length, entry))
        for name, entry in header.items()
    }
    if program.classes:
        old = described["layers"].pop()["name"]
        for part in ("weight", "bias"):
            del stored[f"{old}.{part}"]
    name = _new_name(program)
    for part, array in (("weight", learned.weight), ("bias", learned.bias)):
        floats = np.ascontiguousarray(array, "<f4")
        stored[f"{name}.{part}"] = "F32", list(floats.shape), floats.tobytes()
    layer = {"kind": "linear", "name": name, "input": features.name, "relu": False}
    described["layers"].append(layer)
    described["classes"] = list(learned.classes)
    described["origin"] = {**described.get("origin", {}), _ORIGIN: _how(learned)}
    metadata["bnn"] = json.dumps(described)
    data = _safetensors(stored, metadata)
    parse_program(data)  # no file that a reader would refuse is ever written
    return data


def none_of_these(model: Model, features: ArrayLike) -> NDArray[np.bool_] | None:
    """Tell which images are unlike all that a classifier was learned from.

    Args:
        model: A network with a classifier that `write_classifier` wrote.
        features: The images' features, (images, features), which `model.features` returns.

    Returns:
        Whether each image is, bool (images,); None if the file does not say, as those of other
        commands do not, or because it was learned from fewer than 10 images.
    """
    how = (model.origin or {}).get(_ORIGIN)
    none = how.get("none") if isinstance(how, dict) else None
    if not isinstance(none, dict):
        return None
    below, text = none.get("below"), none.get("towards")
    if not isinstance(below, int | float) or not isinstance(text, str):
        return None
    try:
        towards = np.frombuffer(base64.b64decode(text, validate=True), np.int8)
    except ValueError:  # anyone may have written it
        return None
    if len(towards) != model.num_features:
        return None
    return cosine_to(towards, features) < below


def _how(learned: Learned) -> dict[str, Any]:
    """Return what the origin says of how a classifier was learned."""
    way = learned.way
    return {
        "burn_engine": burn_engine.__version__,
        "images": [int(count) for count in learned.counts],
        "kind": way.kind,
        "share": round(way.share, 6),
        "equal_length": way.equal_length,
        "accuracy": None if learned.accuracy is None else round(learned.accuracy, 6),
        "none": None if learned.threshold is None else _none(learned.towards, learned.threshold),
    }


def _none(towards: NDArray[np.int8], threshold: float) -> dict[str, Any]:
    text = base64.b64encode(towards.tobytes()).decode("ascii")
    return {"below": round(threshold, 6), "towards": text}


def _new_name(program: Program) -> str:
    kept = program.layers[: program.features + 1]
    taken = {layer.name for layer in kept} | {"image"}
    names = ("head", *(f"head{number}" for number in range(len(taken) + 1)))
    return next(name for name in names if not _clashes(name, taken))


def _clashes(name: str, taken: set[str]) -> bool:
    # A layer head.weight would have tensors beside those of a layer head.
    return any(other == name or other.startswith(f"{name}.") for other in taken)


def _bytes_of(data: bytes, start: int, entry: dict[str, Any]) -> bytes:
    begin, end = entry["data_offsets"]
    return data[start + begin : start + end]


def _safetensors(stored: dict[str, tuple[str, list[int], bytes]], metadata: Any) -> bytes:
    """Return a safetensors file; tensors of larger numbers come first, so that all are aligned."""
    header: dict[str, Any] = {"__metadata__": metadata}
    parts: list[bytes] = []
    position = 0
    for name, (dtype, shape, data) in sorted(
        stored.items(), key=lambda item: -_ITEM_BYTES[item[1][0]]
    ):
        end = position + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        parts.append(data)
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def check_output(path: Path, base: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ValueError if a file cannot be written, exists, or is the base itself."""
    if not path.name:
        raise ValueError(f"{str(path)!r} is not a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no such folder")
    own = find(base)
    source = path_of(base) if own is None else own.path
    if path.exists() and source.exists() and path.samefile(source):
        raise ValueError(f"{path} is the network that is learned from: give another name")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already: give another name, or overwrite it (--overwrite)")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: its folder is read-only")
