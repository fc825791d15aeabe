"""Measure whether a packed classifier decides like its network, on real images.

    python benchmarks/agreement.py CHECKPOINT CLASSIFIER PACKED IMAGES [--limit 5000] \
        [--float64 500] [--json]

CHECKPOINT is a run folder or checkpoint of burn's, CLASSIFIER the classifier.safetensors that `burn
evaluate linear --out` kept, PACKED the file that `burn pack` made of both, IMAGES a source with
labels. It prints how often both predict the same class and the cosine of their features, and beside
this the cosine between the network's own features in float32 and in float64, for the first images
alone, since float64 is slow. In a chain of layers (ReActNet) it also finds for each image the first
layer in which a sign differs, and prints how far from zero the argument of such a sign is at most.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import burn_engine
from burn.checkpoints.classifier import load_classifier
from burn.data.loader import plain_batches
from burn.data.open import open_source
from burn.evaluation.context import open_model
from burn.layers import BinaryConv2d
from burn_engine.format import BinaryConvolution, read_program


def arguments_of_signs(
    backbone: torch.nn.Module, images: Tensor, wanted: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return the features and the arguments of all signs.

    Args:
        backbone: The network.
        images: uint8 (batch, 3, height, width).
        wanted: Whether the arguments are wanted.

    Returns:
        Features, and for every binary convolution x + shift, (batch, channels, height, width), or
        nothing.
    """
    seen: list[Tensor] = []

    def keep(module: BinaryConv2d, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0] + module.sign.shift.view(1, -1, 1, 1))

    layers = [
        module for module in backbone.modules() if isinstance(module, BinaryConv2d) and wanted
    ]
    handles = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        with torch.inference_mode():
            return backbone(images), seen
    finally:
        for handle in handles:
            handle.remove()


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Return all numbers that are printed."""
    opened = open_model(options.checkpoint, fresh=False, seed=0)
    backbone, views = opened.backbone, opened.views
    classifier = load_classifier(Path(options.classifier))
    assert classifier is not None, options.classifier
    model = burn_engine.load(options.packed)
    program = read_program(options.packed)
    in_chain = backbone.chain() is not None
    binary = [
        (program.layers[i - 1].name, layer.threshold)
        for i, layer in enumerate(program.layers)
        if in_chain and isinstance(layer, BinaryConvolution)
    ]
    source = open_source(options.images, "test")
    assert source.labels is not None
    precise = copy.deepcopy(backbone).double()
    same = right = right_packed = flipped = total = 0
    cosines, own_cosines, largest = [], [], []
    indices = list(range(min(options.limit, len(source))))
    for batch in plain_batches(source, views, 100, 0, indices):
        images = batch.views[0]
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        features, arguments = arguments_of_signs(backbone, images, in_chain)
        with torch.inference_mode():
            expected = (features @ classifier.weight.T + classifier.bias).argmax(1).numpy()
        found = model(pixels).argmax(axis=1)
        with torch.inference_mode():
            first = images[: max(0, options.float64 - total)]
            if len(first):
                own = F.cosine_similarity(precise(first), features[: len(first)].double())
                own_cosines.extend(own.tolist())
        ours = torch.from_numpy(model.features(pixels)).double()
        cosines.extend(F.cosine_similarity(ours, features.double()).tolist())
        labels = source.labels[batch.indices.numpy()]
        total += len(labels)
        same += int((found == expected).sum())
        right += int((expected == labels).sum())
        right_packed += int((found == labels).sum())
        undecided = np.ones(len(labels), bool)
        for (name, threshold), z in zip(binary, arguments, strict=True):
            signs = torch.from_numpy(model.layer(pixels, name) >= threshold).permute(0, 3, 1, 2)
            differs = signs != (z >= 0)
            for image in np.flatnonzero(undecided):
                if differs[image].any():
                    undecided[image] = False
                    flipped += 1
                    largest.append(float(z[image][differs[image]].abs().max()))
    found = {
        "images": total,
        "same_class": same / total,
        "accuracy": right / total,
        "packed_accuracy": right_packed / total,
        "least_cosine": float(np.min(cosines)),
        "cosine_above_0.999": float((np.array(cosines) > 0.999).mean()),
    }
    if own_cosines:
        found["float64_least_cosine"] = float(np.min(own_cosines))
        found["float64_cosine_above_0.999"] = float((np.array(own_cosines) > 0.999).mean())
    if in_chain:
        found["images_with_a_flipped_sign"] = flipped / total
        found["largest_argument_of_a_first_flip"] = max(largest, default=0.0)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("classifier")
    parser.add_argument("packed")
    parser.add_argument("images")
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--float64", type=int, default=500, help="images computed in float64 too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = compare(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:36} {value:.6g}")


if __name__ == "__main__":
    main()
