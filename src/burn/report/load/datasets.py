"""The paper's data sets, by classes and numbers of images, and how other images differ.

A path proves nothing: any folder may be called voc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burn.paper import numbers as paper
from burn.report.load.values import dig, number

_TOLERANCE = 0.02  # share of the images that may be missing, because unreadable or deleted

_VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
)
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse "
    "mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy "
    "porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television "
    "tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)


@dataclass(frozen=True)
class Dataset:
    """The numbers of classes and images by which a data set of the paper is recognized."""

    num_classes: int
    train: int
    test: int
    names: str = ""  # of the classes, separated by spaces, if they are listed here


# By the names of paper.csv. Where no classes are listed, the numbers of classes and images
# distinguish the data set from any other that is likely to be used.
DATASETS = {
    "imagenet": Dataset(1000, paper.IMAGES["imagenet"], 50_000),
    "imagenet100": Dataset(100, paper.IMAGES["imagenet100"], 5_000),
    "voc07": Dataset(20, 5_011, 4_952, _VOC),
    "voc07+12": Dataset(20, 16_551, 4_952, _VOC),
    "cifar10": Dataset(10, 50_000, 10_000, _CIFAR10),
    "cifar100": Dataset(100, 50_000, 10_000, _CIFAR100),
    "cub200": Dataset(200, 5_994, 5_794),
    "birdsnap": Dataset(500, 47_386, 2_443),
    "places205": Dataset(205, 2_448_873, 20_500),
}


def can_be_compared(data: Any) -> bool:
    """Return whether a result's `data` says enough to compare it with a data set."""
    return all(number(data, name) is not None for name in ("num_classes", *_COUNTS))


_COUNTS = ("train_images", "test_images")


def difference(data: Any, dataset: str) -> str:
    """Describe how images that can be compared differ from a data set of paper.csv, if at all."""
    wanted = DATASETS[dataset]
    classes = number(data, "num_classes")
    counts = [number(data, name) for name in _COUNTS]
    assert classes is not None
    other = ""
    if classes != wanted.num_classes:
        other = f"{classes:,.0f} classes"
    elif (names := _names(data)) and wanted.names and _plain(names) != _plain(wanted.names.split()):
        other = f"other classes: {', '.join(names[:3])} …"
    near = all(
        count is not None and abs(count - there) <= _TOLERANCE * there
        for count, there in zip(counts, (wanted.train, wanted.test), strict=True)
    )
    if not other and near:
        return ""
    what = "other images" if other else "another number of images"
    theirs = f", {wanted.num_classes:,} classes" if other else ""
    yours = ", ".join(part for part in (other, _counted(*counts)) if part)
    return (
        f"{what} (yours: {yours}; paper: {paper.NAMES[dataset]}{theirs}, "
        f"{_counted(wanted.train, wanted.test)})"
    )


def _counted(train: float | None, test: float | None) -> str:
    return f"{train or 0:,.0f} training and {test or 0:,.0f} test images"


def _names(data: Any) -> list[str]:
    """Return the names of the classes, unless they are numbers, which say nothing."""
    names = dig(data, "classes") if isinstance(data, Mapping) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    return [] if all(name.isdigit() for name in names) else names


def _plain(names: Sequence[str]) -> set[str]:
    """Return names spelled alike whatever their case and the characters between words."""
    return {re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}
