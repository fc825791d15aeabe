"""burn_small with other binary networks: BNext and the expert network.

Method, views, budget and optimizer are burn_small's, and the networks take about as many
multiply-adds of 32-pixel images as its ReActNet-A (53 million), so that the networks alone differ.
"""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.entries import EXPERT
from burn.recipes.schema import Recipe
from burn.recipes.small import burn_small


def bnext_small() -> Recipe:
    """burn_small with a narrow BNext-T.

    burn pretrain --recipe bnext_small --data cifar10/train.parquet --teacher lite0 \
        --teacher-size 96 --teacher-cache features --out runs/bnext
    kNN 73.4 % and linear 74.4 % (seed 0), where burn_small has 69.8 and 71.5. 79 images/s on one
    core of an AMD EPYC (Zen 3, float32) beside other work, 3.5 hours, when the teacher's features
    are cached. The width and strides are those of burn_small's ReActNet-A, which makes 53 million
    binary multiply-adds too. BNext is described in arXiv 2211.12933.
    """
    recipe = burn_small()
    return replace(recipe, backbone=replace(recipe.backbone, name="bnext_t"))


def expert_small() -> Recipe:
    """burn_small with a half-width expert network.

    burn pretrain --recipe expert_small --data cifar10/train.parquet --teacher lite0 \
        --teacher-size 96 --teacher-cache features --out runs/expert
    Not run to its end. After 200 steps (25,600 images, seed 0) kNN is 42.2 % and linear accuracy
    46.8 % on CIFAR-10's val; one core of an Intel Xeon (bfloat16) trains 38 images/s. Of the
    widths that its groups allow, this one comes nearest to burn_small's multiply-adds: it has 47
    million binary ones and 3 million in float.
    The expert network is described in arXiv 2010.03558. Its convolutions are not followed by BN, so
    their weights start at their usual size. Experts are chosen from the start, because there is one
    stage; with --stages 2 the first stage trains one expert, as in the paper.
    """
    recipe = burn_small()
    backbone = replace(recipe.backbone, name=EXPERT, width=0.5, weight_init="fan_in")
    return replace(recipe, backbone=backbone)
