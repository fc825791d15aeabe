"""Entries of a published file: sorted by what they are, and compared with a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burn.checkpoints.foreign.layouts import unwrapped
from burn.core.errors import UserError, listed, printable

Shapes = dict[str, tuple[int, ...]]

# Entries that training leaves beside the weights; they are dropped without a look at their content.
_OF_TRAINING = ("optimizer", "scheduler", "lr_scheduler", "scaler", "amp")
_MOST_ENTRIES = 100_000
# Names that people's modules and dicts put around a network.
_AROUND = ("model", "net", "network", "backbone", "encoder", "model_state", "model_state_dict")


@dataclass(frozen=True)
class Entries:
    """Entries of a file by the names that the import gives them, and notes for the user.

    The numbers of dropped entries are by reason; `unknown` are the paths of all others, and `parts`
    pairs of prefixes in the file and here, those in use first.
    """

    tensors: dict[str, Tensor]
    dropped: dict[str, int]
    unknown: list[str]
    parts: list[tuple[str, str]]
    notes: tuple[str, ...]

    def theirs(self, name: str) -> str:
        """Return the name that the file gives, or would give, to what is `name` here."""
        there, here = next(p for p in self.parts if name.startswith(p[1]))
        return there + name.removeprefix(here)


def sort_entries(content: Mapping[Any, Any], parts: Mapping[str, str | None]) -> Entries:
    """Sort the entries of a file by prefixes of their names, as `families.PARTS` has them.

    Raises UserError for two different tensors of the same name, or too many entries.
    """
    tensors: dict[str, Tensor] = {}
    origins: dict[str, tuple[str, str]] = {}  # by name: the part and the path it was found in
    dropped: Counter[str] = Counter()
    unknown: list[str] = []
    copies: dict[tuple[str, str], None] = {}
    nested = any(isinstance(value, Mapping) for value in content.values())
    for number, (path, value) in enumerate(_flatten(content)):
        if number == _MOST_ENTRIES:
            raise UserError(f"it has more than {_MOST_ENTRIES:,} entries")
        first = path.partition(".")[0]
        # A single number beside a dict of weights is a measurement, such as the best accuracy.
        measured = isinstance(value, Tensor) and nested and first == path and value.numel() == 1
        if not isinstance(value, Tensor) or measured or first in _OF_TRAINING:
            dropped[printable(first)] += 1
            continue
        part, name = _part_of(path, parts)
        place = None if part is None else parts[part]
        if part is None:
            unknown.append(path)
        elif place is None:
            dropped[part.removesuffix(".")] += 1
        elif (here := place + name.removeprefix(part)) not in tensors:
            tensors[here] = value
            origins[here] = part, path
        elif _same(tensors[here], value):
            copies[origins[here][0], part] = None
        else:
            both = listed([origins[here][1], path], 2)
            raise UserError(f"it holds weights twice with different numbers: {both}")
    used = {part: parts[part] for part, _ in origins.values()}
    counterparts = {there: here for there, here in {**used, **parts}.items() if here is not None}
    notes = tuple(
        f"held twice, with equal numbers: {first}*" + (f" and {second}*" if second != first else "")
        for first, second in copies
    )
    return Entries(tensors, dict(dropped), unknown, list(counterparts.items()), notes)


def _part_of(path: str, parts: Collection[str]) -> tuple[str | None, str]:
    """Return the part that a path belongs to, and its name from there on; None if to none."""
    name = ".".join(word for word in unwrapped(path).split(".") if word != "state_dict")
    while True:
        for part in parts:
            if name == part or (part[-1] == "." and name.startswith(part)):
                return part, name
        first, _, name = name.partition(".")
        if first not in _AROUND:
            return None, path


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two dense tensors are equal, by their storage or by their numbers."""
    if first.shape != second.shape or first.dtype != second.dtype or first.layout != second.layout:
        return False
    if first.layout != torch.strided or first.device != second.device:
        return False
    same_memory = (first.data_ptr(), first.stride()) == (second.data_ptr(), second.stride())
    return same_memory or torch.equal(first, second)


def _flatten(content: Mapping[Any, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield entries by dotted path; no format has its weights more than three dicts deep."""
    for key, value in content.items():
        if isinstance(value, Mapping) and depth > 1:
            yield from ((f"{key}.{path}", leaf) for path, leaf in _flatten(value, depth - 1))
        else:
            yield str(key), value


def check_entries(tensors: Mapping[str, Tensor], shapes: Shapes, entries: Entries) -> None:
    """Check that `tensors` has exactly these names and shapes, and finite numbers.

    Raises UserError otherwise, with the names that `entries` says the file has.
    """
    theirs = entries.theirs
    expected = {name: tensor for name, tensor in tensors.items() if name in shapes}
    shape = [
        f"{theirs(name)} {tuple(tensor.shape)} instead of {shapes[name]}"
        for name, tensor in expected.items()
        if tensor.shape != shapes[name]
    ]
    kind = [
        f"{theirs(name)} as {tensor.dtype}, {tensor.layout} on {tensor.device}"
        for name, tensor in expected.items()
        if tensor.layout != torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_floating_point() == name.endswith("num_batches_tracked")
        or tensor.is_complex()
        or tensor.is_quantized
    ]
    unknown = [*entries.unknown, *(theirs(name) for name in tensors if name not in shapes)]
    problems = {
        "lacks": [theirs(name) for name in shapes if name not in tensors],
        "has unknown": unknown,
        "has": shape or kind,
    }
    if not any(problems.values()):
        problems["has numbers that are not finite in"] = [
            theirs(name)
            for name, tensor in expected.items()
            if not bool(tensor.float().isfinite().all())
        ]
        problems["has negative variances in"] = [
            theirs(name)
            for name, tensor in expected.items()
            if name.endswith("running_var") and bool((tensor < 0).any())
        ]
    if any(problems.values()):
        raise misfit(problems)


def misfit(problems: Mapping[str, Sequence[str]]) -> UserError:
    """Return an error of the first two kinds of problems, on two lines of a terminal at most."""
    kinds = [(words, names) for words, names in problems.items() if names][:2]
    most = 2 if len(kinds) == 1 else 1
    return UserError("; ".join(f"it {words} {listed(names, most)}" for words, names in kinds))
