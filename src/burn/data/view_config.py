"""Settings of the augmentation, in a module of their own that does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from burn.core.errors import UserError


@dataclass(frozen=True)
class ViewConfig:
    """Augmentation. Defaults are BURN's for ImageNet (released code; the paper is silent).

    Attributes:
        size: side of a view in pixels.
        crop_scale: least and greatest share of the image's area in a random resized crop.
        crop_ratio: least and greatest width / height of the crop.
        flip: probability of a horizontal flip.
        jitter: probability of colour jitter.
        brightness: strength of the brightness jitter; the factor is drawn from 1 ± this.
        contrast: strength of the contrast jitter, likewise.
        saturation: strength of the saturation jitter, likewise.
        hue: greatest rotation of the hue, as a share of the colour circle.
        rand_augment: number of RandAugment's operations on a view, each with probability one half,
            as in InfoMin's augmentation.
        rand_strength: strength of these operations, as a share of the greatest, which rotates by 30
            degrees.
        grey: probability of a conversion to greyscale.
        blur: probability of Gaussian blur.
        blur_sigma: least and greatest standard deviation of the blur in pixels.
        resize: short side to which evaluation resizes before the centre crop; default: size · 8/7.
    """

    size: int = 224
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.6
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    rand_augment: int = 0
    rand_strength: float = 1.0
    grey: float = 0.2
    blur: float = 0.2
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    resize: int | None = None

    @property
    def short_side(self) -> int:
        """Short side in pixels to which evaluation resizes: `resize`, or by default size · 8/7."""
        return round(self.size * 8 / 7) if self.resize is None else self.resize

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        if not 8 <= self.size <= 4096:
            raise UserError(f"views.size {self.size} is not in 8 … 4096 pixels")
        for name in ("flip", "jitter", "grey", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"views.{name} {getattr(self, name)} is not a probability")
        for name in ("brightness", "contrast", "saturation", "rand_strength"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"views.{name} {getattr(self, name)} is not in [0, 1]")
        if not 0 <= self.rand_augment <= 16:
            raise UserError(f"views.rand_augment {self.rand_augment} is not in 0 … 16")
        if not 0 <= self.hue <= 0.5:
            raise UserError(f"views.hue {self.hue} is not in [0, 0.5]")
        for name, most in (("crop_scale", 1.0), ("crop_ratio", 10.0), ("blur_sigma", 100.0)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                raise UserError(f"views.{name} [{low}, {high}] is not an interval in (0, {most:g}]")
        if self.resize is not None and self.resize < self.size:
            raise UserError(
                f"views.resize {self.resize} is below views.size {self.size}: give "
                f"--views.resize {self.size} or more"
            )
        if self.resize is not None and self.resize > 8192:
            raise UserError(f"views.resize {self.resize} is above 8192")
