"""Writes a packed file with a learned classifier: the base file's layers and one more."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import burn_engine
from burn_engine.errors import ModelError, in_file, path_of, reading
from burn_engine.format import GlobalMean, Program, parse_program
from burn_engine.kinds import FIRST, PACKED, kind_of
from burn_engine.learning import Learned, cosine_to
from burn_engine.maps import averaged
from burn_engine.model import Model
from burn_engine.packed_parts import take_apart
from burn_engine.pretrained import find, read_model
from burn_engine.whole_file import whole_file

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
    check_classifier_output(path, base, overwrite=overwrite)
    with in_file(base):
        data = with_classifier(read_model(base), learned)
    with whole_file(path, new=not overwrite) as file:
        file.write(data)


def with_classifier(base: bytes, learned: Learned) -> bytes:
    """Return the bytes of a packed file with a learned classifier.

    Layers, format, image and origin are the base's; the origin also says how it was learned, and of
    several maps which.

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
    parts = take_apart(base)
    parts.without_classifier()
    name = _new_name(program)
    parts.set_floats(f"{name}.weight", learned.weight)
    parts.set_floats(f"{name}.bias", learned.bias)
    layer = {"kind": "linear", "name": name, "input": features.name, "relu": False}
    parts.program["layers"].append(layer)
    parts.program["classes"] = list(learned.classes)
    how = _how(learned)
    if isinstance(features, GlobalMean) and features.also:
        how["layers"] = [program.layers[at].name for at in averaged(program)]
    parts.program["origin"] = {**parts.program.get("origin", {}), _ORIGIN: how}
    return parts.to_bytes()


def none_of_these(model: Model, features: ArrayLike) -> NDArray[np.bool_] | None:
    """Tell which images are unlike all that a classifier was learned from.

    Args:
        model: A network with a classifier that `write_classifier` wrote.
        features: The images' features, (images, features), which `model.features` returns.

    Returns:
        Whether each image is, bool (images,); None if the file does not say, as those of other
        commands do not, or because it was learned from fewer than 10 images.

    Raises:
        ValueError: A feature is not finite, or the features are not those of images.
    """
    rows = np.asarray(features, np.float64)
    if rows.ndim != 2 or rows.shape[1] != model.num_features:
        raise ValueError(
            f"features have shape {rows.shape}; expected (images, {model.num_features})"
        )
    if not np.isfinite(rows).all():
        raise ValueError("a feature is not finite")
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
    return cosine_to(towards, rows) < below


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


def check_classifier_output(path: Path, base: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ValueError as `check_output`, or if another file than a packed one is overwritten."""
    check_output(path, base, overwrite=overwrite)
    if not path.exists():
        return
    with reading(path), path.open("rb") as file:
        first = file.read(FIRST)
    kind = kind_of(first)
    if first and kind != PACKED:
        raise ValueError(
            f"{path} is not a packed network{f' but {kind}' if kind else ''}, which --overwrite "
            "replaces: give another name, or remove it"
        )


def check_output(path: Path, base: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ValueError if a file cannot be written, exists, or is the base itself."""
    if not path.name:
        raise ValueError(f"{str(path)!r} is not a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no such folder")
    pretrained = find(base)
    source = path_of(base) if pretrained is None else pretrained.path
    if path.exists() and source.exists() and path.samefile(source):
        raise ValueError(f"{path} is the network itself: give another name")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already: give another name, or overwrite it (--overwrite)")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: its folder is read-only")
