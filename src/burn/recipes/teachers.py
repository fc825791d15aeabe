"""Float teachers, trained without labels from the same images."""

from __future__ import annotations

from dataclasses import replace

from burn.backbones import BackboneConfig
from burn.data.views import ViewConfig
from burn.optim import OptimConfig
from burn.training.recipe import Recipe

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def teacher_small() -> Recipe:
    """A half-width ResNet-18 by SimCLR, for 32-pixel images and a CPU.

    burn pretrain --recipe teacher_small --data cifar10/train.parquet --out runs/teacher
    CIFAR-10, 40,000 images: 45 core-minutes on 2 CPU cores; kNN 48.2 % (docs/results.md).
    """
    return Recipe(
        method="simclr",
        stages=1,
        epochs=11,
        batch_size=256,
        backbone=BackboneConfig(
            name="resnet18", width=0.5, stem_stride=2, mean=CIFAR_MEAN, std=CIFAR_STD
        ),
        views=ViewConfig(size=32, resize=32, crop_scale=(0.2, 1.0), jitter=0.8, blur=0.0),
        optim=OptimConfig(name="adam", lr=1e-3, weight_decay=1e-6, warmup_epochs=1),
    )


def demo_teacher() -> Recipe:
    """The demo's teacher: a quarter-width ResNet-18 on the built-in digits.

    burn pretrain --recipe demo_teacher --data digits --out runs/demo/teacher
    About 1.5 minutes on 2 CPU cores; kNN 91 % on held-out digits.
    """
    return replace(
        teacher_small(),
        epochs=30,
        batch_size=128,
        backbone=BackboneConfig(
            name="resnet18", width=0.25, stem_stride=2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        views=_digit_views(),
    )


def _digit_views() -> ViewConfig:
    """No flip, which would turn a digit into another sign, and no colours, which digits lack."""
    return ViewConfig(
        size=32, resize=32, crop_scale=(0.4, 1.0), flip=0.0, jitter=0.8, grey=0.0, blur=0.0
    )
