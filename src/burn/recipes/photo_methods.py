"""The other methods on photographs at 96 pixels, for `burn compare --family photos`.

Each is its `_small` recipe with the network, the budget and the sizes of `burn`, so that methods
alone differ. Learning rates are those of the `_small` recipes, burn's too: none was tuned on
photographs.
"""

from __future__ import annotations

from dataclasses import replace

from burn.data.view_config import ViewConfig
from burn.methods.registry import find_method
from burn.recipes.photos import burn
from burn.recipes.schema import Recipe
from burn.recipes.small import (
    byol_small,
    feature_only_small,
    infomin_small,
    mocov2_small,
    paper_small,
    s2bnn_small,
    simclr_small,
    supervised_kl_small,
    supervised_small,
    swav_small,
)


def _photos(recipe: Recipe) -> Recipe:
    """Return a `_small` recipe with burn's network, budget and sizes, and the release's blur."""
    like = burn()
    return replace(
        recipe,
        epochs=like.epochs // recipe.stages,
        batch_size=like.batch_size,
        teacher_size=like.teacher_size if find_method(recipe.method).needs_teacher else None,
        backbone=replace(
            like.backbone,
            activation_gradient=recipe.backbone.activation_gradient,
            weight_init=recipe.backbone.weight_init,
        ),
        views=replace(recipe.views, size=like.views.size, resize=None, blur=ViewConfig().blur),
        optim=replace(recipe.optim, warmup_epochs=like.optim.warmup_epochs),
    )


def paper_photos() -> Recipe:
    """The paper's method at burn's budget; its joint classifier collapses, as the run reports.

    burn pretrain --recipe paper_photos --data photos/ --teacher lite0 --out runs/paper
    """
    return _photos(paper_small())


def feature_only_photos() -> Recipe:
    """The paper's feature similarity alone, at burn's budget.

    burn pretrain --recipe feature_only_photos --data photos/ --teacher lite0 \
        --out runs/feature-only
    """
    return _photos(feature_only_small())


def supervised_photos() -> Recipe:
    """Cross-entropy on labels at burn's budget.

    burn pretrain --recipe supervised_photos --data photos/ --out runs/supervised
    """
    return _photos(supervised_small())


def supervised_kl_photos() -> Recipe:
    """KL to a float network trained with labels, at burn's budget.

    burn pretrain --recipe supervised_kl_photos --data photos/ --teacher lite0 \
        --out runs/supervised-kl
    """
    return _photos(supervised_kl_small())


def byol_photos() -> Recipe:
    """BYOL at burn's budget.

    burn pretrain --recipe byol_photos --data photos/ --out runs/byol
    """
    return _photos(byol_small())


def swav_photos() -> Recipe:
    """SwAV at burn's budget, with four small crops of 48 pixels, the work of one large crop.

    burn pretrain --recipe swav_photos --data photos/ --out runs/swav
    """
    recipe = _photos(swav_small())
    return replace(recipe, swav=replace(recipe.swav, small_size=recipe.views.size // 2))


def mocov2_photos() -> Recipe:
    """MoCo v2 at burn's budget.

    burn pretrain --recipe mocov2_photos --data photos/ --out runs/mocov2
    """
    return _photos(mocov2_small())


def s2bnn_photos() -> Recipe:
    """S2-BNN with distillation alone, at burn's budget.

    burn pretrain --recipe s2bnn_photos --data photos/ --teacher lite0 --out runs/s2bnn
    """
    return _photos(s2bnn_small())


def simclr_photos() -> Recipe:
    """SimCLR with version 2's head, at burn's budget.

    burn pretrain --recipe simclr_photos --data photos/ --out runs/simclr
    """
    return _photos(simclr_small())


def infomin_photos() -> Recipe:
    """InfoMin at burn's budget, with its own strong augmentation.

    burn pretrain --recipe infomin_photos --data photos/ --out runs/infomin
    """
    return _photos(infomin_small())
