"""Float networks that teach binary ones, for ImageNet, for small images and for the demo.

All train without labels except teacher_supervised_small. Their checkpoints keep the projection
head, from which S2-BNN learns, or, after training with labels, the classifier, from which
supervised_kl learns.
"""

from __future__ import annotations

from dataclasses import replace

from burn.backbones.config import BackboneConfig
from burn.data.view_config import ViewConfig
from burn.methods.byol.settings import ByolConfig
from burn.methods.mocov2.settings import Mocov2Config
from burn.methods.simclr.settings import SimclrConfig
from burn.recipes.schema import OptimConfig, Recipe

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def teacher_mocov2_imagenet() -> Recipe:
    """ResNet-50 trained by MoCo v2 for 800 epochs: the paper's teacher on ImageNet (appendix A).

    burn pretrain --recipe teacher_mocov2_imagenet --data imagenet/train --out runs/teacher
    Not run here. Expected: linear 71.1 % (MoCo v2's own paper), after days even on 8 GPUs
    (--devices 8); the published file can be used instead (--teacher resnet50:FILE).
    """
    return Recipe(
        method="mocov2",
        stages=1,
        epochs=800,
        batch_size=256,
        backbone=BackboneConfig(name="resnet50"),
        views=ViewConfig(crop_scale=(0.2, 1.0), jitter=0.8, blur=0.5),
        optim=OptimConfig(name="sgd", lr=0.03, weight_decay=1e-4),
    )


def teacher_byol_imagenet100() -> Recipe:
    """ResNet-50 trained by BYOL for 600 epochs: the paper's teacher on ImageNet100 (supplement).

    burn pretrain --recipe teacher_byol_imagenet100 --data imagenet100/train --out runs/teacher100
    Not run here. The paper gives neither a number nor settings for it: these are BYOL's for 300
    epochs, with the learning rate in proportion to the batch and symmetric augmentation.
    """
    return Recipe(
        method="byol",
        stages=1,
        epochs=600,
        batch_size=512,
        backbone=BackboneConfig(name="resnet50"),
        settings=ByolConfig(momentum=0.99),
        views=ViewConfig(jitter=0.8, saturation=0.2, blur=0.5),
        optim=OptimConfig(name="lars", lr=0.6, weight_decay=1e-6, warmup_epochs=10),
    )


def teacher_simclr_imagenet() -> Recipe:
    """ResNet-50 trained by SimCLR with version 2's head, a teacher that needs no momentum encoder.

    burn pretrain --recipe teacher_simclr_imagenet --data imagenet/train --out runs/teacher
    Not run here. The learning rate is SimCLR's for a batch of 512, because one device cannot hold a
    batch of 4096.
    """
    return Recipe(
        method="simclr",
        stages=1,
        epochs=800,
        batch_size=512,
        backbone=BackboneConfig(name="resnet50"),
        settings=SimclrConfig(temperature=0.1),
        views=ViewConfig(
            jitter=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5
        ),
        optim=OptimConfig(name="lars", lr=0.6, weight_decay=1e-6, warmup_epochs=10),
    )


def teacher_small() -> Recipe:
    """A half-width ResNet-18 trained by SimCLR, for 32-pixel images and a CPU.

    burn pretrain --recipe teacher_small --data cifar10/train.parquet --out runs/teacher
    CIFAR-10, 40,000 images, with --compile: kNN 73.2 % on 5,000 others, after 4.4 hours at 190
    images/s on one core of an Intel Xeon (AVX-512, bfloat16); docs/project/results/ has the
    curve. Strides of 1, 1, 2, 2 keep maps of 4×4 positions; a stem of stride 1 takes twice as long
    and was worse after equal time. The learning rate is between the best two of ten-minute runs
    (docs/project/log.md).
    """
    return Recipe(
        method="simclr",
        settings=SimclrConfig(layers=2),
        stages=1,
        epochs=75,
        batch_size=256,
        backbone=BackboneConfig(
            name="resnet18",
            width=0.5,
            stem_stride=2,
            resnet_strides=(1, 1, 2, 2),
            mean=CIFAR_MEAN,
            std=CIFAR_STD,
        ),
        views=ViewConfig(size=32, resize=32, crop_scale=(0.2, 1.0), jitter=0.8, blur=0.0),
        optim=OptimConfig(name="adam", lr=3e-3, weight_decay=1e-6, warmup_epochs=1),
    )


def teacher_mocov2_small() -> Recipe:
    """teacher_small's network trained by MoCo v2.

    burn pretrain --recipe teacher_mocov2_small --data cifar10/train.parquet --out runs/teacher
    Not run here to its end. A step costs two thirds of one of teacher_small, counted in passes
    through the network. After a pilot of equal cost, about 150,000 images, kNN is 45.4 % on
    held-out training images of CIFAR-10, where teacher_small has 46.0 after 100,000
    (docs/project/log.md).
    """
    config = Mocov2Config(queue=4096, momentum=0.996, shuffle_groups=4)
    return replace(teacher_small(), method="mocov2", settings=config)


def teacher_byol_small() -> Recipe:
    """teacher_small's network trained by BYOL.

    burn pretrain --recipe teacher_byol_small --data cifar10/train.parquet --out runs/teacher
    Not run here to its end. A step costs four thirds of one of teacher_small, counted in passes
    through the network. After a pilot of equal cost, about 75,000 images with a momentum of 0.98,
    kNN is 38.1 %, where teacher_small has 46.0 after 100,000 (docs/project/log.md).
    """
    config = ByolConfig(momentum=0.99, hidden=1024, dimension=128)
    return replace(teacher_small(), method="byol", settings=config)


def teacher_supervised_small() -> Recipe:
    """teacher_small's network trained with labels, for supervised_kl to learn from.

    burn pretrain --recipe teacher_supervised_small --data cifar10/train.parquet \
        --out runs/teacher-supervised
    Not run here with this network. With an earlier one, whose maps are smaller, it trained for 22
    minutes, and its student had kNN 49.6 % and linear accuracy 49.3 %, where a teacher without
    labels gave 43.5 and 45.0 (docs/project/results/search.md, the first ablation).
    """
    recipe = teacher_small()
    return replace(
        recipe,
        method="supervised",
        epochs=11,
        views=replace(recipe.views, crop_scale=(0.25, 1.0), jitter=0.6),
        optim=replace(recipe.optim, lr=1e-3),
    )


def demo_teacher() -> Recipe:
    """The demo's teacher: a quarter-width ResNet-18 on the built-in digits.

    burn pretrain --recipe demo_teacher --data digits --out runs/demo/teacher
    About 1.5 minutes on 2 CPU cores; kNN 91 % on held-out digits.
    """
    recipe = teacher_small()
    return replace(
        recipe,
        epochs=30,
        batch_size=128,
        optim=replace(recipe.optim, lr=1e-3),
        backbone=BackboneConfig(
            name="resnet18", width=0.25, stem_stride=2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        views=ViewConfig(  # flips change a digit's meaning
            size=32, resize=32, crop_scale=(0.4, 1.0), flip=0.0, jitter=0.8, grey=0.0, blur=0.0
        ),
    )
