"""Checks that the training and the test images of an evaluation fit together."""

from __future__ import annotations

from burn.core.errors import UserError
from burn.data.base import Source
from burn.evaluation.context import are_numbers


def check_sources(train: Source, test: Source) -> None:
    """Check that training and test images have labels of the same classes, at least two.

    Raises:
        UserError: They do not.
    """
    for source in (train, test):
        if source.labels is None:
            raise UserError(
                f"{source.name} has no labels: give at least two class folders, a parquet with a "
                "column label, a list, CIFAR, CUB or Birdsnap, or a data set with the attribute "
                "targets"
            )
    assert train.labels is not None
    if len(train.labels) and train.labels.min() == train.labels.max():
        raise UserError(
            f"all {len(train):,} images of {train.name} have one label, "
            f"{train.classes[train.labels[0]]}: nothing can be learned from it; give images of two "
            "classes or more"
        )
    assert test.labels is not None
    _check_classes(train, test)
    if test.labels.max() >= len(train.classes):
        raise UserError(
            f"{test.name} has label {test.labels.max()}, but {train.name} has only "
            f"0 … {len(train.classes) - 1}"
        )


def _check_classes(train: Source, test: Source) -> None:
    """Raise UserError if a label would not mean the same class in both."""
    numbered = [are_numbers(source.classes) for source in (train, test)]
    if train.classes == test.classes or all(numbered):
        return
    if any(numbered):  # a list or a parquet file need not name its classes
        named = test if numbered[0] else train
        if all(name.isdigit() for name in named.classes):
            shown = ", ".join(named.classes[:5])
            raise UserError(
                f"{named.name} has classes named {shown}, which do not match the numbers of the "
                "other images' classes"
            )
    elif extra := sorted(set(test.classes) - set(train.classes)):
        raise UserError(f"{test.name} has classes that {train.name} lacks: {', '.join(extra[:5])}")
    else:
        raise UserError(f"{test.name} lacks classes of {train.name}: their numbers would not match")
