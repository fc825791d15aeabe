"""Checks that the training and the test images of an evaluation fit together."""

from __future__ import annotations

import copy

import numpy as np

from burn.core.errors import UserError, listed
from burn.data.base import Source
from burn.data.checks import missing_labels
from burn.data.open import open_source

_ENOUGH = 100  # held-out images to choose a setting by


def open_labelled(train: str | Source, test: str | Source) -> tuple[Source, Source]:
    """Open images that are given by a specification, and check them as `check_sources` does."""
    return check_sources(
        open_source(train, "train") if isinstance(train, str) else train,
        open_source(test, "test") if isinstance(test, str) else test,
    )


def check_sources(train: Source, test: Source) -> tuple[Source, Source]:
    """Check that every image has a label, and that labels mean the same classes, at least two.

    Classes are matched by name. A source that only numbers its classes, as a list or a parquet file
    may, fits any names, in their order; if the names are numbers themselves, as of folders
    0 … 11, it fits these.

    If the test images have the same classes in another order, those that are returned are a copy
    with the labels of the training images. If they do not fit, UserError says which classes differ.
    """
    for source in (train, test):
        if not len(source):
            raise UserError(f"{source.name} holds no image")
        if fault := missing_labels(source):
            raise UserError(fault)
    assert train.labels is not None
    if len(train.labels) and train.labels.min() == train.labels.max():
        many = f"all {len(train):,} images of {train.name} have"
        raise UserError(
            f"{many if len(train) > 1 else f'the only image of {train.name} has'} one label, "
            f"{train.classes[train.labels[0]]}: nothing can be learned from it; give images of two "
            "classes or more"
        )
    assert test.labels is not None
    numbered = all(are_numbers(source.classes) for source in (train, test))
    if train.classes != test.classes and not numbered:
        test = _matched(train, test)
    assert test.labels is not None
    if test.labels.max() >= len(train.classes):
        raise UserError(
            f"{test.name} has label {test.labels.max()}, but {train.name} has only "
            f"0 … {len(train.classes) - 1}"
        )
    return train, test


def are_numbers(classes: tuple[str, ...]) -> bool:
    """Return whether the names of classes are just 0, 1, 2 …"""
    return classes == tuple(str(i) for i in range(len(classes)))


def _matched(train: Source, test: Source) -> Source:
    """Return the test images with the training images' labels, matched by the names of classes."""
    of_train, of_test = list(train.classes), list(test.classes)
    named, numbered = (test, train) if are_numbers(train.classes) else (train, test)
    if are_numbers(numbered.classes):
        if not all(name.isdecimal() for name in named.classes):  # a number is a name's position
            assert numbered.labels is not None
            if (last := int(numbered.labels.max())) >= len(named.classes):
                raise UserError(
                    f"{numbered.name} has label {last}, but {named.name} has only the "
                    f"{len(named.classes)} classes {listed(named.classes, 5)}"
                )
            return test
        of_train, of_test = ([str(int(n)) for n in part] for part in (of_train, of_test))  # 01 is 1
        lacking = set(numbered.classes) - {str(int(name)) for name in named.classes}
        if lacking:
            raise UserError(
                f"{named.name} has classes named {listed(named.classes, 5)}, which do not match "
                f"the numbers of the classes of {numbered.name}: it lacks "
                f"{listed(sorted(lacking, key=int), 5)}"
            )
    if extra := [name for name in of_test if name not in set(of_train)]:
        raise UserError(f"{test.name} has classes that {train.name} lacks: {listed(extra, 5)}")
    missing = [name for name in of_train if name not in set(of_test)]
    if missing and not are_numbers(test.classes):
        raise UserError(
            f"{test.name} lacks classes of {train.name}, so that their numbers would not match: "
            f"{listed(missing, 5)}"
        )
    matched = copy.copy(test)
    matched.classes = train.classes
    matched.labels = np.array([of_train.index(name) for name in of_test])[test.labels]
    return matched


def doubt_of_choice(count: int, share: float, what: str, kind: str = "training") -> list[str]:
    """Return a line if few held-out images choose a setting, or nothing if they are enough.

    An accuracy of n images has a standard error of up to 50 / √n percentage points, 5 for 100.
    `share` of the images, in (0, 1), is held out; `what` is the protocol and its setting.
    """
    if count >= _ENOUGH:
        return []
    error, needed = 50 / max(1, count) ** 0.5, round(_ENOUGH / share)
    only = f"only {count} held-out images" if count > 1 else "a single held-out image"
    return [
        f"{what} are uncertain: {only} chose them (standard error up to {error:.0f} points); "
        f"{needed:,} {kind} images would hold out {_ENOUGH}"
    ]
