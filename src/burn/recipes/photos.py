"""Recipes for photographs: burn's default, and networks of half width for small devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from burn.backbones.config import BackboneConfig
from burn.data.view_config import ViewConfig
from burn.methods.entries import find_method
from burn.methods.swav.settings import SwavConfig
from burn.recipes.schema import Recipe
from burn.recipes.small import burn_small, feature_only_small


def burn() -> Recipe:
    """The default: the paper's feature similarity alone, for a few thousand photographs.

    burn pretrain --recipe burn --data photos/ --teacher lite0 --out runs/student
    On 3,068 photographs of clothes in 10 classes, evaluated on 341 others (standard error 2.3
    points) on which these settings were chosen: kNN 73.9 to 78.0 and linear 78.0 to 80.6 % on
    features of plain views, in four runs of three seeds on different processors; lite0 itself has
    82.7 and 86.5 %. On photographs that nobody had looked at, kNN 70.7 and linear 78.8 %; lite0
    84.1 and 89.5 (one run; docs/project/results/). With burn_small's loss, sign gradient and
    single stage, without changes of colour, on views that repeat after 8 epochs, it was kNN 62.5
    and linear 74.5 % after as many images; with labels in the same way, 72.7 and 74.2. An hour on
    one core of an Intel Xeon (AVX-512, bfloat16), of which lite0 takes a third, because the
    views never repeat. Of 100,000 and more photographs, burn_device's 20 epochs may suffice. The
    packed file has 1 MB.
    """
    recipe, method = burn_device(), feature_only_small()
    return replace(
        recipe,
        epochs=30,
        batch_size=64,
        stages=method.stages,
        view_epochs=method.view_epochs,
        teacher_size=192,
        backbone=replace(recipe.backbone, activation_gradient=method.backbone.activation_gradient),
        settings=method.settings,
        views=replace(method.views, size=recipe.views.size, resize=None, blur=ViewConfig().blur),
        optim=replace(method.optim, warmup_epochs=recipe.optim.warmup_epochs),
    )


def burn_device() -> Recipe:
    """Half-width ReActNet-A for 96-pixel images: a packed file of 1 MB for a small device.

    burn pretrain --recipe burn_device --data photos/ --teacher lite0 --teacher-size 192 \
        --teacher-cache features --out runs/device
    Some thousands of photos take a CPU hours; more of them need a GPU. Accuracy: not measured;
    its loss, single stage and repeating views are burn_small's, see recipe burn for what they cost.
    In burn-engine an image takes 0.28 ms with AVX-512 VPOPCNTDQ and 0.53 ms with AVX2, on one core
    of an Intel Xeon. Source: burn_small, with larger views. The strides are ReActNet's own, so the
    last map is 3×3. 20 epochs are meant for some 100,000 photos: with fewer photos take more
    epochs, and batches of 64.
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
    """burn_device for 128-pixel images: the same file size, 1.8 times the operations, a 4×4 map.

    burn pretrain --recipe burn_device_128 --data photos/ --teacher resnet50:moco_v2_800ep.pth \
        --out runs/device
    Hardware, time and source as burn_device.
    """
    recipe = burn_device()
    return replace(recipe, views=replace(recipe.views, size=128))


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


def on_photos(recipe: Recipe) -> Recipe:
    """Return another method's recipe for 32-pixel images with the network and the sizes of burn.

    Loss, optimizer and learning rate stay, so that none is tuned on photographs, burn's neither.
    Views keep the recipe's crops and colours and are blurred as often as in BURN's release; SwAV's
    small crops have half of a view's side, as at 32 pixels. A batch has half as many images as at
    32 pixels; queues hold half as many features, and momentum encoders change half as much in a
    step, so that both are as old in images.
    """
    like = burn()
    size, share = like.views.size, min(1.0, like.batch_size / recipe.batch_size)
    settings = recipe.settings
    changes: dict[str, Any] = {
        name: int(share * getattr(settings, name))
        for name in ("queue", "negatives")
        if hasattr(settings, name)
    }
    if hasattr(settings, "momentum"):
        changes["momentum"] = 1 - share * (1 - settings.momentum)
    if isinstance(settings, SwavConfig):
        changes["small_size"] = size // 2
    return replace(
        recipe.with_settings(**changes),
        epochs=like.stages * like.epochs // recipe.stages,
        batch_size=like.batch_size,
        teacher_size=like.teacher_size if find_method(recipe.method).needs_teacher else None,
        backbone=replace(
            like.backbone,
            activation_gradient=recipe.backbone.activation_gradient,
            weight_init=recipe.backbone.weight_init,
        ),
        views=replace(recipe.views, size=size, resize=None, blur=ViewConfig().blur),
        optim=replace(recipe.optim, warmup_epochs=like.optim.warmup_epochs),
    )
