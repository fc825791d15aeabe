"""Calculate what BURN on ImageNet costs and needs, from one measured number: images/s of one GPU.

    python benchmarks/scaling.py --images-per-second 1000 --decode 500

    --images-per-second: of one GPU in training, as `burn pretrain --profile` prints it
    --decode: images that one core decodes and augments a second, as benchmarks/decode.py prints it

It prints a table for 1, 8 and 64 GPUs. The table is arithmetic and assumes that nothing waits: that
cores, storage and network deliver what its last columns say. Only the two given numbers are
measured.
"""

from __future__ import annotations

import argparse

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.types import Precision
from burn.methods.burn.method import Burn
from burn.recipes.registry import find_recipe

IMAGES, BYTES_EACH = 1_281_167, 110_000  # ImageNet's training set; average size of its JPEGs
RECIPE = "burn_imagenet"
GPUS = (1, 8, 64)


def exchanged_bytes() -> int:
    """Return the bytes of float32 gradients that every process exchanges in an optimizer step."""
    recipe = find_recipe(RECIPE)
    student = build_backbone(recipe.backbone, recipe.precisions()[0])
    teacher = build_backbone(BackboneConfig(name="resnet50"), Precision.FLOAT)
    method = Burn(student, Teacher(teacher, None, None, {}), recipe.settings)
    trained = [part for part in method.parts() if part.trained]
    return 4 * sum(p.numel() for part in trained for p in part.module.parameters())


def table(images_per_second: float, decode: float) -> list[str]:
    """Return the rows of a table in Markdown."""
    recipe = find_recipe(RECIPE)
    images = IMAGES * recipe.epochs * len(recipe.precisions())
    exchanged = exchanged_bytes()
    rows = [
        "| GPUs | images/s | hours | images a GPU and step | step, ms | cores that decode "
        "| storage, MB/s | network, Gbit/s a GPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gpus in GPUS:
        rate = images_per_second * gpus
        step = recipe.batch_size / rate
        # A ring all-reduce moves every byte twice, except for the share that stays in place.
        network = 8 * 2 * (gpus - 1) / gpus * exchanged / step / 1e9
        rows.append(
            f"| {gpus} | {rate:,.0f} | {images / rate / 3600:,.1f} | {recipe.batch_size // gpus} "
            f"| {1000 * step:,.0f} | {rate / decode:,.0f} | {rate * BYTES_EACH / 1e6:,.0f} "
            f"| {network:.1f} |"
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What BURN on ImageNet costs and needs.")
    parser.add_argument("--images-per-second", type=float, required=True)
    parser.add_argument("--decode", type=float, required=True)
    options = parser.parse_args()
    print("\n".join(table(options.images_per_second, options.decode)))


if __name__ == "__main__":
    main()
