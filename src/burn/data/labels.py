"""Labels as files and data sets have them, as the numbers of classes.

An image without a label, or with the label -1, is unlabelled: it can be trained on, and it cannot
be evaluated on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from burn.core.errors import UserError, shortened

MOST_CLASSES = 100_000
UNLABELLED = -1
_LONGEST_NAME = 200  # characters of a class
_TRUTH = ("false", "true")


@dataclass(frozen=True)
class Labels:
    """The labels of some images.

    Attributes:
        numbers: int64 (images,), `UNLABELLED` for an image without a label.
        names: The class of each number; None if the numbers are the classes' own.
        reason: Why the first unlabelled image has no label, where there is more to say than that it
            has none.
    """

    numbers: np.ndarray
    names: tuple[str, ...] | None = None
    reason: str = ""


class NoLabels(Exception):
    """Raised for values that are no classes; the message says what they are."""


def labels_of(values: pa.Array | pa.ChunkedArray, what: str) -> Labels:
    """Convert a column of whole numbers, truth values, texts, or a dictionary of these.

    Missing values, NaN, empty texts and -1 are unlabelled. Other values raise NoLabels, in whose
    message `what` names the column.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):  # not expanded: a text of megabytes may occur in every row
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        return joined([_looked_up(chunk, what) for chunk in chunks])
    if pa.types.is_null(kind):
        return Labels(np.full(len(values), UNLABELLED))
    if pa.types.is_boolean(kind):
        numbers = values.cast(pa.int8()).fill_null(UNLABELLED)
        return Labels(numbers.to_numpy().astype(np.int64), _TRUTH)
    if pa.types.is_integer(kind):
        try:
            numbers = values.cast(pa.int64()).fill_null(UNLABELLED)
        except pa.ArrowInvalid:
            raise NoLabels(f"{what} holds a number above 2^63, which is no class") from None
        return numbered(numbers.to_numpy(), what)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = values.cast(pa.float64()).to_numpy(zero_copy_only=False)  # NaN where missing
        floats = np.where(np.isnan(floats), UNLABELLED, floats)
        fractions = floats[(floats != np.floor(floats)) | (np.abs(floats) > 2**53)]
        if len(fractions):
            raise NoLabels(f"{what} holds {fractions[0]:g}, which is no class number")
        return numbered(floats.astype(np.int64), what)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return named(values.cast(pa.large_string()).to_pylist(), what)
    raise NoLabels(f"{what} holds {shortened(str(kind), 80)}, and no class numbers or names")


def _looked_up(values: pa.DictionaryArray, what: str) -> Labels:
    entries = labels_of(values.dictionary, what)
    numbers = np.append(entries.numbers, UNLABELLED)  # for a missing value, at -1
    return Labels(numbers[values.indices.fill_null(-1).to_numpy()], entries.names)


def numbered(numbers: np.ndarray, what: str) -> Labels:
    """Check that numbers, int64 (images,), are those of classes, not of rows or hashes."""
    for number in (numbers.min(initial=0), numbers.max(initial=0)):
        if not UNLABELLED <= number < MOST_CLASSES:
            raise NoLabels(
                f"{what} holds {number}, which is no class number: these are 0 … "
                f"{MOST_CLASSES - 1}, and -1 means unlabelled"
            )
    return Labels(numbers.astype(np.int64))


def can_name(text: str) -> bool:
    """Return whether a text can be the name of a class: a line of limited length."""
    return len(text) <= _LONGEST_NAME and text.isprintable()


def named(texts: Sequence[str | None], what: str) -> Labels:
    """Number texts that can name classes by their order; None and empty ones are unlabelled."""
    names = sorted({text for text in texts if text})
    odd = next((name for name in names if not can_name(name)), None)
    if odd is not None:
        raise NoLabels(f"{what} holds {shortened(ascii(odd), 80)}, which cannot name a class")
    if len(names) > MOST_CLASSES:
        raise NoLabels(f"{what} holds {len(names):,} different texts, too many for classes")
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    numbers = (position.get(text, UNLABELLED) for text in texts)
    return Labels(np.fromiter(numbers, np.int64, len(texts)), tuple(names))


def joined(parts: Sequence[Labels]) -> Labels:
    """Join the labels of several files; names that only some files have are classes of all.

    Where names stand among numbers, they are mistakes, unless more images have them.
    """
    reason = next((part.reason for part in parts if part.reason), "")
    named_images, numbered_images = (
        sum(int((p.numbers != UNLABELLED).sum()) for p in parts if (p.names is None) == is_numbered)
        for is_numbered in (False, True)
    )
    if named_images > numbered_images or not numbered_images:
        names = [part.names or _digits(part.numbers) for part in parts]
        every = tuple(sorted({name for part in names for name in part}))
        position = {name: i for i, name in enumerate(every)}
        maps = [[position[name] for name in part_names] for part_names in names]
    else:
        every, maps = None, [[_number(name) for name in part.names or ()] for part in parts]
        odd = next((n for part in parts for n in part.names or () if _number(n) < 0), None)
        if odd is not None and not reason:
            reason = f"{shortened(ascii(odd), 80)} is no class number, as most labels are"
    numbers = [
        part.numbers if every is None and part.names is None
        else np.array([*positions, UNLABELLED], dtype=np.int64)[part.numbers]
        for positions, part in zip(maps, parts, strict=True)
    ]  # fmt: skip
    return Labels(np.concatenate([np.empty(0, np.int64), *numbers]), every, reason)


def _digits(numbers: np.ndarray) -> tuple[str, ...]:
    return tuple(str(i) for i in range(int(numbers.max(initial=UNLABELLED)) + 1))


def _number(name: str) -> int:
    digits = name.isascii() and name.isdigit() and len(name) < 6
    return int(name) if digits else UNLABELLED


def unnamed(labels: Labels, names: Sequence[str]) -> str | None:
    """Return the first text label that `names` lacks, or None."""
    name_set = set(names)
    return next((text for text in _texts(labels, names) if text not in name_set), None)


def _texts(labels: Labels, names: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that are labels; none for truth values, which other names may number."""
    truth = labels.names == _TRUTH and not set(_TRUTH) <= set(names)
    return () if labels.names is None or truth else labels.names


def classes_of(
    labels: Labels, names: Sequence[str], describe: Callable[[int], str]
) -> tuple[np.ndarray | None, tuple[str, ...], str]:
    """Return a source's `labels`, `classes` and `unlabelled`.

    `names` of the classes, from elsewhere, in the order of their numbers, are not used if there are
    fewer than numbers, or if they are not those of labels that are texts. `describe` names an
    image.
    """
    numbers = labels.numbers
    if names and (texts := _texts(labels, names)):
        if unnamed(labels, names) is None:
            position = {name: i for i, name in enumerate(names)}
            class_numbers = [position[text] for text in texts]
            numbers = np.array([*class_numbers, UNLABELLED], np.int64)[numbers]
        else:
            names = ()
    missing = np.flatnonzero(numbers == UNLABELLED)
    reason = ""
    if len(missing):
        reason = (
            f"{len(missing):,} of {len(numbers):,} images have no label, or -1, such as "
            f"{describe(int(missing[0]))}" + (f": {labels.reason}" if labels.reason else "")
        )
    if len(missing) == len(numbers):
        return None, (), reason
    class_names = labels.names or _digits(numbers)
    return numbers, tuple(names) if len(names) >= len(class_names) else class_names, reason


def joined_labels(
    name: str,
    labels: Sequence[Labels | str],
    names: Sequence[tuple[str, ...]],
    describe: Callable[[int], str],
) -> tuple[np.ndarray | None, tuple[str, ...], str]:
    """Return `labels`, `classes` and `unlabelled` of a source that consists of several files.

    `labels` are those of each file, or why it has none, and `names` what each file calls its
    numbers, or empty. Where files call a number differently, their labels have names themselves,
    and there are no others. `describe` names an image.
    """
    parts = [part for part in labels if isinstance(part, Labels)]
    reason = next((part for part in labels if isinstance(part, str)), "")
    if parts and reason:
        raise UserError(f"{name}: only some of its shards have labels: {reason}")
    if not parts:
        return None, (), reason
    longest = max(names, key=len)
    if any(part_names != longest[: len(part_names)] for part_names in names):
        longest = ()
        for i, part_names in enumerate(names):
            if parts[i].names is not None:
                continue
            largest = int(parts[i].numbers.max(initial=UNLABELLED))
            if largest >= len(part_names):
                reason = (
                    f"its files name the classes differently, and one that has a label {largest} "
                    f"has names for {len(part_names)}"
                )
                return None, (), reason
            parts[i] = replace(parts[i], names=part_names)
    return classes_of(joined(parts), longest, describe)
