"""Recipes for ImageNet and ImageNet100: the paper's, burn's, the release's, and other methods'.

None of them was run here, so hardware and time are unknown. Expected numbers are the paper's
(Tables 2 and 8), top-1 of linear evaluation in %. The paper says that all methods train for 200
epochs, but gives an optimizer for its own method only (appendix A: LARS, batch 2048, learning rate
0.3). BYOL, SwAV and SimCLR have their authors' learning rates, in proportion to the batch. MoCo v2
and S2-BNN have S2-BNN's settings for binary networks, the supervised ones ReActNet's, InfoMin its
own. Augmentation, temperatures and heads are those of each method's own paper.
"""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.config import BackboneConfig
from burn.data.view_config import ViewConfig
from burn.methods.burn.settings import BurnConfig
from burn.methods.byol.settings import ByolConfig
from burn.methods.simclr.settings import SimclrConfig
from burn.recipes.schema import OptimConfig, Recipe
from burn.recipes.small import burn_small

# The colours of SimCLR, which SwAV and InfoMin have, too.
_STRONG = ViewConfig(jitter=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)


def paper_imagenet() -> Recipe:
    """The paper's settings (section 4 and appendix A): joint classifier, LARS, 200 epochs a stage.

    burn pretrain --recipe paper_imagenet --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/paper
    Hardware: the paper does not state it. Not run here. Expected by the paper: linear 62.29 %
    (Table 2). Expected from measurements at small scale: the joint classifier collapses within a
    hundred steps, and from then on only the feature similarity teaches; the monitor reports it. The
    paper gives no weight decay; LARS adapts only parameters that decay, so it is 1e-6, as in BYOL.
    The KL divergence has the teacher first, as in the paper's text; its Algorithm 1 has the student
    first: --burn.kl-direction student_first. Weights start at ±1/√fan-in; ReActNet's authors, on
    whose code the paper builds, start with 0.001·rand: --backbone.weight-init small.
    """
    return Recipe(
        epochs=200,
        batch_size=2048,
        accumulate=8,
        settings=BurnConfig(classifier="joint"),
        optim=OptimConfig(name="lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10),
    )


def paper_imagenet100() -> Recipe:
    """The paper's settings on ImageNet100; the teacher is a ResNet-50 trained there by BYOL.

    burn pretrain --recipe paper_imagenet100 --data imagenet100/train --teacher runs/teacher100 \
        --out runs/paper100
    The teacher trains for 600 epochs. Not run here. Expected by the paper: 77.02 (Table 8). The
    remarks of paper_imagenet on the joint classifier apply here too.
    """
    return paper_imagenet()


def burn_imagenet() -> Recipe:
    """The paper's network with burn_small's loss, in one stage of 200 epochs.

    burn pretrain --recipe burn_imagenet --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/burn
    Not run here. Loss, sign gradient, initial weights and the single stage are those of burn_small:
    they were measured on CIFAR-10 and carried over without a measurement on ImageNet. On
    photographs of clothes the paper's feature similarity alone was better (recipe burn). Network,
    views, optimizer and the epochs of a stage are those of paper_imagenet, which has two stages, so
    that this recipe sees half as many images.
    """
    small, recipe = burn_small(), paper_imagenet()
    backbone = replace(
        recipe.backbone,
        activation_gradient=small.backbone.activation_gradient,
        weight_init=small.backbone.weight_init,
    )
    return replace(recipe, stages=small.stages, backbone=backbone, settings=small.settings)


def burn_imagenet100() -> Recipe:
    """The settings of burn_imagenet on ImageNet100.

    burn pretrain --recipe burn_imagenet100 --data imagenet100/train --teacher runs/teacher100 \
        --out runs/burn100
    Not run here. The teacher is a run of teacher_byol_imagenet100.
    """
    return burn_imagenet()


def released() -> Recipe:
    """The settings of BURN's released code, changed so that they train.

    burn pretrain --recipe released --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/released
    Not run here; the release itself computes its loss without gradients and trains nothing. Two
    details are left out: sign(0) = 0, which no packed bit can represent, and the factor 2 that
    comes from summing two crossed views instead of averaging them, which has no effect with Adam.
    """
    return Recipe(
        epochs=200,
        batch_size=4096,
        accumulate=16,
        backbone=BackboneConfig(
            feature_layer=True, activation_gradient="clip", weight_gradient="identity"
        ),
        settings=BurnConfig(
            classifier="frozen",
            similarity="normalized_mse",
            similarity_of="logits",
            views="cross",
            teacher_batch_norm="batch",
        ),
        optim=OptimConfig(name="adam", lr=3e-4, warmup_epochs=10),
    )


def supervised_imagenet() -> Recipe:
    """Cross-entropy on labels, as ReActNet trains: Adam with a linearly decreasing learning rate.

    burn pretrain --recipe supervised_imagenet --data imagenet/train --out runs/supervised
    Expected: 64.1 (Table 2, "Supervised Pre."). ReActNet has no weight decay in its second stage;
    here both stages have it.
    """
    return Recipe(
        method="supervised",
        epochs=200,
        batch_size=256,
        views=ViewConfig(jitter=0.0, grey=0.0, blur=0.0),
        optim=OptimConfig(name="adam", lr=5e-4, weight_decay=1e-5, schedule="linear"),
    )


def supervised_kl_imagenet() -> Recipe:
    """KL to the softmax of a float network trained with labels: ReActNet's "supervised KL div.".

    burn pretrain --recipe supervised_kl_imagenet --data imagenet/train \
        --teacher resnet34:resnet34_torchvision.pth --out runs/supervised-kl
    Expected: not given by the paper; ReActNet reports 69.4 for its own classifier.
    """
    return replace(supervised_imagenet(), method="supervised_kl")


def byol_imagenet() -> Recipe:
    """BYOL with its authors' LARS: learning rate 4.8 for a batch of 4096, here 2.4 for 2048.

    burn pretrain --recipe byol_imagenet --data imagenet/train --out runs/byol
    Expected: 49.25 (Table 2). Augmentation is symmetric, whereas BYOL's two views differ in blur
    and solarisation.
    """
    views = ViewConfig(jitter=0.8, saturation=0.2, blur=0.5)
    config = ByolConfig(momentum=0.99)  # BYOL's for 300 epochs and less
    recipe = paper_imagenet()
    optim = replace(recipe.optim, lr=2.4)
    return replace(recipe, method="byol", settings=config, views=views, optim=optim)


def swav_imagenet() -> Recipe:
    """SwAV with two crops of 224 and six of 96 pixels, and its authors' LARS.

    The authors' learning rate is 0.6 for a batch of 256, which is 4.8 for 2048.

    burn pretrain --recipe swav_imagenet --data imagenet/train --out runs/swav
    Expected: 49.41 (Table 2).
    """
    views = replace(_STRONG, crop_scale=(0.14, 1.0))
    recipe = paper_imagenet()
    return replace(recipe, method="swav", views=views, optim=replace(recipe.optim, lr=4.8))


def mocov2_imagenet() -> Recipe:
    """S2-BNN's "enhanced", the paper's "tuned" MoCo v2: Adam, linear decay, light augmentation.

    burn pretrain --recipe mocov2_imagenet --data imagenet/train --out runs/mocov2
    Expected: 52.5 (Table 2).
    """
    return Recipe(
        method="mocov2",
        epochs=200,
        batch_size=256,
        views=ViewConfig(crop_scale=(0.2, 1.0)),
        optim=OptimConfig(name="adam", lr=3e-4, weight_decay=1e-4, schedule="linear"),
    )


def s2bnn_imagenet() -> Recipe:
    """S2-BNN with distillation alone, which is its best variant.

    burn pretrain --recipe s2bnn_imagenet --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/s2bnn
    Expected: 61.5 (Table 2).
    """
    recipe = mocov2_imagenet()
    return replace(recipe, method="s2bnn", optim=replace(recipe.optim, weight_decay=0.0))


def simclr_imagenet() -> Recipe:
    """SimCLR with version 2's head of three layers, and the paper's optimizer.

    burn pretrain --recipe simclr_imagenet --data imagenet/train --out runs/simclr
    Expected: not given by the paper, which has it on ImageNet100 alone. The batch cannot be cut
    into parts, because an image's negatives are the other images of its batch. Therefore it is 512,
    at the authors' learning rate of 0.3 for 256.
    """
    return replace(
        paper_imagenet(),
        method="simclr",
        batch_size=512,
        accumulate=1,
        settings=SimclrConfig(temperature=0.1),
        views=_STRONG,
        optim=OptimConfig(name="lars", lr=0.6, weight_decay=1e-6, warmup_epochs=10),
    )


def infomin_imagenet() -> Recipe:
    """InfoMin: momentum contrast on views that RandAugment changed strongly.

    burn pretrain --recipe infomin_imagenet --data imagenet/train --out runs/infomin
    Expected: not given by the paper, which has it on ImageNet100 alone. torchvision's RandAugment
    at its greatest strength replaces timm's `rand-n2-m10-mstd0.5`, whose magnitudes vary a little.
    """
    views = replace(_STRONG, crop_scale=(0.2, 1.0), rand_augment=2)
    return Recipe(
        method="infomin",
        epochs=200,
        batch_size=256,
        views=views,
        optim=OptimConfig(name="sgd", lr=0.03, weight_decay=1e-4),
    )


def supervised_imagenet100() -> Recipe:
    """The settings of supervised_imagenet on ImageNet100.

    burn pretrain --recipe supervised_imagenet100 --data imagenet100/train --out runs/supervised100
    Expected: 76.54 (Table 8).
    """
    return supervised_imagenet()


def supervised_kl_imagenet100() -> Recipe:
    """The settings of supervised_kl_imagenet on ImageNet100.

    burn pretrain --recipe supervised_kl_imagenet100 --data imagenet100/train \
        --teacher runs/teacher-supervised100 --out runs/supervised-kl100
    Expected: not given by the paper. The teacher is a run of supervised_imagenet100 with
    --backbone.name resnet34 --stages 1.
    """
    return supervised_kl_imagenet()


def byol_imagenet100() -> Recipe:
    """The settings of byol_imagenet on ImageNet100.

    burn pretrain --recipe byol_imagenet100 --data imagenet100/train --out runs/byol100
    Expected: not given by the paper.
    """
    return byol_imagenet()


def swav_imagenet100() -> Recipe:
    """The settings of swav_imagenet on ImageNet100.

    burn pretrain --recipe swav_imagenet100 --data imagenet100/train --out runs/swav100
    Expected: not given by the paper.
    """
    return swav_imagenet()


def mocov2_imagenet100() -> Recipe:
    """The settings of mocov2_imagenet on ImageNet100, with a smaller queue.

    burn pretrain --recipe mocov2_imagenet100 --data imagenet100/train --out runs/mocov2-100
    Expected: not given by the paper. The queue of 16,384 for 126,689 images is our choice.
    """
    return mocov2_imagenet().with_settings(queue=16384)


def s2bnn_imagenet100() -> Recipe:
    """The settings of s2bnn_imagenet on ImageNet100.

    burn pretrain --recipe s2bnn_imagenet100 --data imagenet100/train --teacher runs/teacher100 \
        --out runs/s2bnn100
    Expected: not given by the paper. The teacher is a run of teacher_byol_imagenet100.
    """
    return s2bnn_imagenet()


def simclr_imagenet100() -> Recipe:
    """The settings of simclr_imagenet on ImageNet100.

    burn pretrain --recipe simclr_imagenet100 --data imagenet100/train --out runs/simclr100
    Expected: 61.40 (Table 8, which does not say after how many epochs; figure 7 goes to 600).
    """
    return simclr_imagenet()


def infomin_imagenet100() -> Recipe:
    """The settings of infomin_imagenet on ImageNet100.

    burn pretrain --recipe infomin_imagenet100 --data imagenet100/train --out runs/infomin100
    Expected: 45.38 (Table 8, which does not say after how many epochs; figures 7 and 8 go to 600),
    and more with a sixteenth of the negatives (figure 8; --infomin.negatives 4096).
    """
    return infomin_imagenet()


def infomin_weak_imagenet100() -> Recipe:
    """infomin_imagenet100 with cropping, colour distortion and blur alone (figure 7).

    burn pretrain --recipe infomin_weak_imagenet100 --data imagenet100/train \
        --out runs/infomin-weak100
    Expected: below infomin_imagenet100 (figure 7 gives no numbers in its text).
    """
    recipe = infomin_imagenet100()
    return replace(recipe, views=replace(recipe.views, rand_augment=0))
