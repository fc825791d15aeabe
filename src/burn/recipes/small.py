"""Recipes for small images and a CPU: burn's method, the paper's and the baselines.

The baselines share burn_small's network, budget and optimizer, and the paper's strong augmentation,
so that `burn compare` compares methods alone. Each has the learning rate that gave the best kNN on
held-out training images of CIFAR-10, of 0.002, 0.004, 0.008 and, where that was best, 0.016
(docs/project/log.md). The sizes of queues, prototypes and heads, SimCLR's temperature and BYOL's
momentum are chosen for small data and short runs. MoCo's momentum must be large enough that keys
change little while they are in the queue, 32 steps here: at 0.98 the network tells its own key from
the queue's by age, and learns nothing else (docs/project/log.md).
"""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import EXPERT
from burn.data.view_config import ViewConfig
from burn.methods.burn.settings import BurnConfig
from burn.methods.byol.settings import ByolConfig
from burn.methods.infomin.settings import InfominConfig
from burn.methods.mocov2.settings import Mocov2Config
from burn.methods.simclr.settings import SimclrConfig
from burn.methods.swav.settings import SwavConfig
from burn.recipes.schema import OptimConfig, Recipe
from burn.recipes.teachers import CIFAR_MEAN, CIFAR_STD, demo_teacher


def burn_small() -> Recipe:
    """The default for 32-pixel images and a CPU: feature similarity to standardised targets.

    burn pretrain --recipe burn_small --data cifar10/train.parquet --teacher lite0 \
        --teacher-size 96 --teacher-cache features --out runs/student
    The settings were chosen by pilots of one seed (docs/project/log.md). After 105,000 images of
    CIFAR-10, on held-out training images, feature similarity alone with these targets and this
    projection gives kNN 48.8 % at width 0.25, and 47.5 % with the frozen classifier's KL; larger
    crops without colour jitter and grey give 51.4 %; this width at twice the learning rate gives
    52.7 %, and at four times the rate, this recipe's, at least 53.3 %. Full runs on 40,000 training
    images of CIFAR-10 with seeds 0, 1 and 2 give kNN 69.8, 69.6 and 69.5 % on 5,000 others, and
    linear 71.5, 72.0 and 71.9 % on features of plain views. One core of an Intel Xeon (AVX-512,
    bfloat16) trains 350 images/s with lite0's features cached, 48 minutes in all; the first 8
    epochs have to run lite0 and take longer.
    """
    return Recipe(
        epochs=25,
        batch_size=128,
        stages=1,
        view_epochs=8,
        # Narrow, and its last maps have 4×4 positions from 32 pixels. Among the shapes that were
        # compared at equal images (docs/project/log.md) it gave the best kNN: 49.7 %, against
        # 49.1 % at width 0.5 with the strides 2, 2, 2, 1, where most of the network works on maps
        # of 2×2 positions. Both take the same time.
        backbone=BackboneConfig(
            width=0.3125,
            stage_strides=(1, 2, 2, 1),
            activation_gradient="clip",
            weight_init="small",
            mean=CIFAR_MEAN,
            std=CIFAR_STD,
        ),
        settings=BurnConfig(classifier="none", standardize=True, projection="mlp"),
        views=ViewConfig(size=32, resize=32, crop_scale=(0.4, 1.0), jitter=0.0, grey=0.0, blur=0.0),
        optim=OptimConfig(name="adam", lr=8e-3, beta2=0.98, warmup_epochs=0.25),
    )


def _small(lr: float) -> Recipe:
    """Return burn_small with the release's augmentation, but larger crops and no blur."""
    recipe = burn_small()
    return replace(
        recipe,
        view_epochs=None,
        views=ViewConfig(size=32, resize=32, crop_scale=(0.25, 1.0), blur=0.0),
        optim=replace(recipe.optim, lr=lr),
    )


def paper_small() -> Recipe:
    """The paper's method at burn_small's size; its joint classifier collapses, as the run reports.

    burn pretrain --recipe paper_small --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/paper
    Loss, two stages, sign gradient and strong views are the paper's. Adam replaces LARS, so that
    this budget suffices; paper_small_lars follows the paper exactly. It takes longer than
    burn_small, because views never repeat and the teacher sees each of them.
    """
    recipe = _small(burn_small().optim.lr)
    return replace(
        recipe,
        epochs=12,
        stages=2,
        backbone=replace(recipe.backbone, activation_gradient="poly"),
        settings=BurnConfig(classifier="joint"),
    )


def paper_small_lars() -> Recipe:
    """paper_small with the paper's exact optimizer, LARS, and the KL divergence of its Algorithm 1.

    burn pretrain --recipe paper_small_lars --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/paper-lars
    paper_small differs from the paper in order to train in a short time: it uses Adam, and it has
    the teacher's distribution first, as in the paper's text. Here LARS has appendix A's learning
    rate, 0.3 for a batch of 2048, in proportion to the batch. Weights start as in the code of
    ReActNet's authors, on which the paper builds. Time as paper_small. Not run here at that budget.
    """
    recipe = paper_small().with_settings(kl_direction="student_first")
    return replace(
        recipe,
        backbone=replace(recipe.backbone, weight_init="small"),
        optim=OptimConfig(
            name="lars", lr=0.3 * recipe.batch_size / 2048, weight_decay=1e-6, warmup_epochs=0.25
        ),
    )


def feature_only_small() -> Recipe:
    """paper_small with the feature similarity alone, at a learning rate of its own.

    burn pretrain --recipe feature_only_small --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/feature-only
    Longer than burn_small, because views never repeat and the teacher sees each of them. After
    1,000,000 images of CIFAR-10, taught by lite0 at 96 pixels, kNN is 69.5 and linear accuracy 71.9
    % (seed 0), as burn_small's are.
    """
    recipe = paper_small()
    optim = replace(recipe.optim, lr=1.6e-2)
    return replace(recipe, settings=BurnConfig(classifier="none"), optim=optim)


def supervised_small() -> Recipe:
    """Cross-entropy on labels at burn_small's budget.

    burn pretrain --recipe supervised_small --data cifar10/train.parquet --out runs/supervised
    """
    return replace(_small(8e-3), method="supervised")


def supervised_kl_small() -> Recipe:
    """KL to a float network trained with labels, at burn_small's budget.

    burn pretrain --recipe supervised_kl_small --data cifar10/train.parquet \
        --teacher runs/teacher-supervised --out runs/supervised-kl
    """
    return replace(_small(8e-3), method="supervised_kl")


def byol_small() -> Recipe:
    """BYOL at burn_small's budget.

    burn pretrain --recipe byol_small --data cifar10/train.parquet --out runs/byol
    """
    config = ByolConfig(momentum=0.98, hidden=1024, dimension=128)
    return replace(_small(2e-3), method="byol", settings=config)


def swav_small() -> Recipe:
    """SwAV at burn_small's budget, with four small crops of 16 pixels, the work of one large crop.

    burn pretrain --recipe swav_small --data cifar10/train.parquet --out runs/swav
    """
    config = SwavConfig(
        small_crops=4,
        small_size=16,
        small_scale=(0.08, 0.25),
        prototypes=256,
        queue=1024,
        hidden=512,
    )
    return replace(_small(2e-3), method="swav", settings=config)


def mocov2_small() -> Recipe:
    """MoCo v2 at burn_small's budget.

    burn pretrain --recipe mocov2_small --data cifar10/train.parquet --out runs/mocov2
    """
    config = Mocov2Config(queue=4096, momentum=0.996, shuffle_groups=4)
    return replace(_small(4e-3), method="mocov2", settings=config)


def s2bnn_small() -> Recipe:
    """S2-BNN with distillation alone, at burn_small's budget.

    burn pretrain --recipe s2bnn_small --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/s2bnn
    """
    return replace(_small(2e-3), method="s2bnn")


def simclr_small() -> Recipe:
    """SimCLR with version 2's head, at burn_small's budget.

    burn pretrain --recipe simclr_small --data cifar10/train.parquet --out runs/simclr
    """
    return replace(_small(2e-3), method="simclr", settings=SimclrConfig(temperature=0.2))


def infomin_small() -> Recipe:
    """InfoMin at burn_small's budget, with its own strong augmentation.

    burn pretrain --recipe infomin_small --data cifar10/train.parquet --out runs/infomin
    """
    recipe = _small(2e-3)
    return replace(
        recipe,
        method="infomin",
        settings=InfominConfig(negatives=4096, momentum=0.996, shuffle_groups=4),
        views=replace(recipe.views, jitter=0.8, rand_augment=2),
    )


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


def demo() -> Recipe:
    """The demo's student: a quarter-width ReActNet-A on the built-in digits.

    burn pretrain --recipe demo --data digits --teacher runs/demo/teacher --out runs/demo/student
    About two minutes on 2 CPU cores; kNN 94 % on held-out digits.
    """
    teacher = demo_teacher()
    recipe = burn_small()
    return replace(
        recipe,
        epochs=50,
        batch_size=64,
        view_epochs=None,
        backbone=replace(
            recipe.backbone,
            width=0.25,
            stage_strides=(2, 2, 2, 1),
            mean=teacher.backbone.mean,
            std=teacher.backbone.std,
        ),
        views=replace(teacher.views, jitter=0.0),
        optim=replace(recipe.optim, warmup_epochs=1),
    )
