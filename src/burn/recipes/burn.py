"""BURN's recipes: the paper's, the release's, and what measured best here."""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.config import BackboneConfig
from burn.data.view_config import ViewConfig
from burn.methods.configs import BurnConfig
from burn.recipes.optim import OptimConfig
from burn.recipes.schema import Recipe
from burn.recipes.teachers import CIFAR_MEAN, CIFAR_STD, demo_teacher


def paper_imagenet() -> Recipe:
    """The paper (section 4 and appendix A): joint classifier, LARS, 200 epochs a stage.

    burn pretrain --recipe paper_imagenet --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/paper
    Hardware: the paper's is not stated. Not run here. Expected by the paper: linear 62.29 % (Table
    2). Expected by what was measured at small scale: the joint classifier collapses within a
    hundred steps, and the feature similarity alone teaches from then on; the monitor will say so.
    The paper gives no weight decay; LARS adapts only what decays, so it is 1e-6, as in BYOL. The
    KL divergence has the teacher first, as in the paper's text; its Algorithm 1 has the student
    first: --burn.kl-direction student_first. Weights start at ±1/√fan-in; ReActNet's authors, on
    whose code the paper builds, begin with 0.001·rand: --backbone.weight-init small.
    """
    return Recipe(
        epochs=200,
        batch_size=2048,
        accumulate=8,
        burn=BurnConfig(classifier="joint"),
        optim=OptimConfig(name="lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10),
    )


def paper_imagenet100() -> Recipe:
    """The paper on ImageNet100, with a ResNet-50 trained there by BYOL for 600 epochs.

    burn pretrain --recipe paper_imagenet100 --data imagenet100/train --teacher runs/teacher100 \
        --out runs/paper100
    Not run here. Expected by the paper: 77.02 (Table 8). What paper_imagenet says
    of the joint classifier holds here too.
    """
    return paper_imagenet()


def burn_imagenet() -> Recipe:
    """What measured best on small images, on ImageNet: not measured there.

    burn pretrain --recipe burn_imagenet --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/burn
    Not run here. Loss, sign gradient, weights and the single stage are burn_small's, where they
    were measured; network, views, optimizer and epochs are paper_imagenet's.
    """
    small, recipe = burn_small(), paper_imagenet()
    backbone = replace(
        recipe.backbone,
        activation_gradient=small.backbone.activation_gradient,
        weight_init=small.backbone.weight_init,
    )
    return replace(recipe, stages=small.stages, backbone=backbone, burn=small.burn)


def burn_imagenet100() -> Recipe:
    """burn_imagenet on ImageNet100.

    burn pretrain --recipe burn_imagenet100 --data imagenet100/train --teacher runs/teacher100 \
        --out runs/burn100
    Not run here. The teacher is a run of teacher_byol_imagenet100.
    """
    return burn_imagenet()


def released() -> Recipe:
    """The settings of BURN's released code, made trainable.

    burn pretrain --recipe released --data imagenet/train --teacher resnet50:moco_v2.pth \
        --out runs/released
    Not run here; the release itself computes its loss without gradients and trains nothing. Kept
    out: sign(0) = 0, which no packed bit can hold, and the factor 2 of summing two crossed views
    instead of averaging them, which Adam ignores.
    """
    return Recipe(
        epochs=200,
        batch_size=4096,
        accumulate=16,
        backbone=BackboneConfig(
            feature_layer=True, activation_gradient="clip", weight_gradient="identity"
        ),
        burn=BurnConfig(
            classifier="frozen",
            similarity="normalized_mse",
            similarity_of="logits",
            views="cross",
            teacher_batch_norm="batch",
        ),
        optim=OptimConfig(name="adam", lr=3e-4, warmup_epochs=10),
    )


def burn_small() -> Recipe:
    """The default: feature similarity to standardised targets, for 32-pixel images and a CPU.

    burn pretrain --recipe burn_small --data cifar10/train.parquet --teacher lite0 \
        --teacher-size 96 --teacher-cache features --compile --out runs/student
    Chosen by pilots of one seed (docs/log.md): after 105,000 images of CIFAR-10, on training images
    held out, feature similarity alone with these targets and projection gives kNN 48.8 %, with the
    frozen classifier's KL 47.5; crops without colour jitter 51.4; this width, and then a higher
    learning rate, 52.7 and 53.6. Run to its end on 40,000 training images of CIFAR-10, seed 0: kNN
    69.8 % and linear 69.9 % on 5,000 others. A core of an Intel Xeon (AVX-512, bfloat16) trains 350
    images/s where lite0's features are known, 48 minutes in all; the first 8 epochs ask lite0 and
    take longer.
    """
    return Recipe(
        epochs=25,
        batch_size=128,
        stages=1,
        view_epochs=8,
        backbone=small_network(),
        burn=BurnConfig(classifier="none", standardize=True, projection="mlp"),
        views=ViewConfig(size=32, resize=32, crop_scale=(0.4, 1.0), jitter=0.0, grey=0.0, blur=0.0),
        optim=OptimConfig(name="adam", lr=8e-3, beta2=0.98, warmup_epochs=0.25),
    )


def small_network() -> BackboneConfig:
    """A narrow ReActNet-A whose last maps have 4×4 positions from 32 pixels.

    Of the shapes that were compared at equal images (docs/log.md) it gave the best kNN, 49.7 % for
    49.1 at width 0.5 with the strides 2, 2, 2, 1, where most of the network works on maps of 2×2
    positions; both take the same time.
    """
    return BackboneConfig(
        width=0.3125, stage_strides=(1, 2, 2, 1), activation_gradient="clip", weight_init="small",
        mean=CIFAR_MEAN, std=CIFAR_STD,
    )  # fmt: skip


def strong_small_views() -> ViewConfig:
    """For 32-pixel images what the release has for ImageNet, with larger crops and no blur."""
    return ViewConfig(size=32, resize=32, crop_scale=(0.25, 1.0), blur=0.0)


def paper_small() -> Recipe:
    """The paper's method at burn_small's size: the joint classifier collapses, and is told so.

    burn pretrain --recipe paper_small --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/paper
    Its loss, two stages, the sign gradient and the strong views; Adam instead of LARS, so that it
    is trained in minutes: paper_small_lars has the letter. Time as burn_small.
    """
    recipe = burn_small()
    return replace(
        recipe,
        epochs=12,
        stages=2,
        view_epochs=None,
        backbone=replace(recipe.backbone, activation_gradient="poly"),
        burn=BurnConfig(classifier="joint"),
        views=strong_small_views(),
        optim=replace(recipe.optim, lr=2e-3),
    )


def paper_small_lars() -> Recipe:
    """paper_small by the paper's letter: LARS, and the KL divergence of its Algorithm 1.

    burn pretrain --recipe paper_small_lars --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/paper-lars
    Where paper_small departs from the letter to be trained in minutes: it uses Adam, and takes the
    teacher's distribution first, as the paper's text does. LARS has appendix A's rate, 0.3 for a
    batch of 2048, in proportion. Weights start as in the code of ReActNet's authors, on which the
    paper builds. Time as burn_small. Not run here at that budget.
    """
    recipe = paper_small()
    return replace(
        recipe,
        backbone=replace(recipe.backbone, weight_init="small"),
        burn=replace(recipe.burn, kl_direction="student_first"),
        optim=OptimConfig(
            name="lars", lr=0.3 * recipe.batch_size / 2048, weight_decay=1e-6, warmup_epochs=0.25
        ),
    )


def feature_only_small() -> Recipe:
    """paper_small with the feature similarity alone: no classifiers, no KL.

    burn pretrain --recipe feature_only_small --data cifar10/train.parquet --teacher runs/teacher \
        --out runs/feature-only
    Time as burn_small. Not run here at that budget.
    """
    return replace(paper_small(), burn=BurnConfig(classifier="none"))


def burn_device() -> Recipe:
    """Half-width ReActNet-A for 96-pixel images: a packed file of 1 MB for a small device.

    burn pretrain --recipe burn_device --data photos/ --teacher lite0 --teacher-size 192 \
        --teacher-cache features --compile --out runs/device
    Some thousands of photos take a CPU hours, more of them want a GPU. Accuracy: not measured. In
    burn-engine 0.33 ms an image with AVX-512 VPOPCNTDQ and 0.76 ms with AVX2, on one core of an
    Intel Xeon. Source: burn_small, whose views are enlarged. The strides are ReActNet's own, so the
    last map is 3×3. 20 epochs are meant for some 100,000 photos: take more of them for fewer, and
    batches of 64.
    """
    recipe = burn_small()
    return replace(
        recipe,
        epochs=20,
        backbone=BackboneConfig(width=0.5, activation_gradient="clip", weight_init="small"),
        views=replace(recipe.views, size=96, resize=None),
        optim=replace(recipe.optim, warmup_epochs=1),
    )


def burn_device_128() -> Recipe:
    """burn_device for 128-pixel images: the same file, 1.8 times the operations, a 4×4 map.

    burn pretrain --recipe burn_device_128 --data photos/ --teacher resnet50:moco_v2_800ep.pth \
        --out runs/device
    Hardware, time and source as burn_device.
    """
    recipe = burn_device()
    return replace(recipe, views=replace(recipe.views, size=128))


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
            recipe.backbone, width=0.25, stage_strides=(2, 2, 2, 1), mean=teacher.backbone.mean,
            std=teacher.backbone.std,
        ),
        views=replace(teacher.views, jitter=0.0),
        optim=replace(recipe.optim, warmup_epochs=1),
    )  # fmt: skip
