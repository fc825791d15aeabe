"""burn_small and burn with other binary networks: BNext and the expert network.

Method, views, budget and optimizer are those of the recipe, and the networks take about as many
multiply-adds as its ReActNet-A (burn_small's 53 million), so that the networks alone differ.
"""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.entries import EXPERT
from burn.recipes.photos import burn
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


def bnext_photos() -> Recipe:
    """burn with a BNext-T of half width, of which an image takes 1.7 times as long.

    burn pretrain --recipe bnext_photos --data photos/ --teacher lite0 --out runs/student
    After 25,600 views of the clothes 6 to 10 points more accurate than burn (one seed). After
    1,012,608 views of 18,790 other photographs kNN 55.4 and linear 57.8 % on the clothes, packed,
    where burn has 53.4 and 57.5 (one seed). That took 9 minutes on an NVIDIA H100 beside other
    work; on one core a step takes about twice as long as burn's. The packed file has 2 MB.
    """
    recipe = burn()
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
