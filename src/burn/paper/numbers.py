"""The paper's numbers: `paper.csv` has each of them with the number of its table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

IMAGES = {"imagenet": 1_281_167, "imagenet100": 126_689}
EPOCHS = 200  # of each stage, "for all methods" (appendix A)
NAMES = {
    "imagenet": "ImageNet", "imagenet100": "ImageNet100", "voc07": "VOC07", "voc07+12": "VOC07+12",
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cub200": "CUB-200-2011",
    "birdsnap": "Birdsnap", "places205": "Places205",
}  # fmt: skip
METHODS = {
    "supervised": "supervised", "swav": "SwAV", "byol": "BYOL", "mocov2_tuned": "tuned MoCo v2",
    "s2bnn": "S2-BNN", "burn": "BURN", "infomin": "InfoMin", "simclrv2": "SimCLR v2",
}  # fmt: skip
# The paper's name of a recipe's method; supervised_kl has no row in the paper.
OF_RECIPE = {
    "burn": "burn", "supervised": "supervised", "swav": "swav", "byol": "byol",
    "mocov2": "mocov2_tuned", "s2bnn": "s2bnn", "infomin": "infomin", "simclr": "simclrv2",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One number of the paper, a line of `paper.csv`."""

    number: int  # of its table
    table: str  # name of its table, such as detection or feature_similarity
    pretrained_on: str  # imagenet or imagenet100
    task: str  # protocol of the evaluation
    dataset: str  # images of the evaluation
    setting: str  # full, a share of the labels (1%), shots (k=16), a variant (components 1+2)
    metric: str  # top1, mAP and so on
    method: str
    value: float  # in percent
    std: float | None  # over samples, if the paper gives one


@cache
def figures() -> tuple[Figure, ...]:
    """Return all numbers, in the order of the paper's tables."""
    text = files("burn.paper").joinpath("paper.csv").read_text(encoding="utf-8")
    return tuple(map(_figure, csv.DictReader(text.splitlines())))


def _figure(row: Mapping[str, Any]) -> Figure:
    std = float(row["std"]) if row["std"] else None
    return Figure(**{**row, "number": int(row["number"]), "value": float(row["value"]), "std": std})


_MAIN = (1, 2, 3, 4, 8, 9)  # the tables of results; the others are ablations


def paper_figure(
    protocol: str, metric: str, settings: Mapping[str, Any], method: str, pretrained_on: str
) -> Figure | None:
    """Return the paper's number for the measurement of a `Result`, or None if it has none."""
    wanted = _address(protocol, metric, settings)
    if wanted is None:
        return None
    *measured, dataset = wanted
    found = (
        figure
        for figure in figures()
        if figure.number in _MAIN
        and (figure.method, figure.pretrained_on) == (method, pretrained_on)
        and [figure.task, figure.setting, figure.metric] == measured
        and dataset in (None, figure.dataset)
    )
    return next(found, None)


def ablation_figure(table: str, setting: str) -> Figure | None:
    """Return a number of the ablations, top-1 of linear evaluation on ImageNet, or None."""
    return next((f for f in figures() if (f.table, f.setting) == (table, setting)), None)


def _address(
    protocol: str, metric: str, settings: Mapping[str, Any]
) -> tuple[str, str, str, str | None] | None:
    """Return task, setting, metric and, where it matters, data set, as `paper.csv` names them."""
    first, _, rest = metric.partition(" ")
    if protocol == "linear" and metric == "top1":
        return "linear", "full", "top1", None
    if protocol == "semi" and first in ("1%", "10%"):
        return "semi", first, rest, None
    # Costs are chosen by cross-validation for the full set and, as is customary, by the test images
    # for few shots.
    if protocol == "svm" and rest == ("mAP cv" if first == "full" else "mAP oracle"):
        return "svm", first, "mAP", None
    if protocol == "transfer" and metric == "top1":
        return "transfer", "full", "top1", str(settings.get("settings"))
    if protocol == "detection" and metric in ("AP", "AP50", "AP75"):
        return "detection", "full", "mAP" if metric == "AP" else metric, None
    return None
