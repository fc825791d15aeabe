"""Measure `burn embed` of a packed file: images/s of one core, against the engine and the decoder.

    python benchmarks/embedding.py [--json] [--rounds 5] [--images 400] [--width 1.0] [--size 224]

JPEGs of 500×375 pixels in tar shards are embedded by a packed ReActNet with random weights, on one
thread. The same time is predicted from its parts: the engine's time for an image that lies in
memory, and the time in which the same shards are read, decoded and prepared by the functions that
`burn embed` calls, without a network. All three take turns in one process; a number is the median
over the rounds of wall time, and `share` is the median of the rounds' ratios of the predicted time
to that of `burn embed`, 1 if it wastes nothing. Nothing else should run.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from decode import jpegs
from rich.console import Console

import burn_engine
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.checks import image_readers
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from burn.embedding.parts import open_collection
from burn.embedding.run import embed
from burn.embedding.settings import EmbedConfig
from burn.runtime.hardware import processor, source_commit
from burn_engine.images import prepare

_SHARDS = 2


def write_shards(folder: Path, count: int) -> None:
    """Write `count` JPEGs as tar shards."""
    encoded = jpegs()
    folder.mkdir()
    for shard in range(_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, count, _SHARDS):
                content = encoded[number % len(encoded)]
                member = tarfile.TarInfo(f"{number:06}.jpg")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def packed_network(folder: Path, width: float, size: int) -> Path:
    """Return a packed ReActNet with random weights."""
    config = BackboneConfig(width=width)
    backbone = build_backbone(config, Precision.BINARY)
    meta = {
        "backbone": asdict(config), "precision": "binary", "stage": 2, "steps": 1,
        "recipe": {"name": "burn_small"}, "views": asdict(ViewConfig(size=size)),
    }  # fmt: skip
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(folder / "network.safetensors", weights, meta)
    pack(folder / "network.safetensors", folder / "network.bnn")
    return folder / "network.bnn"


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(rounds: int, count: int, width: float, size: int) -> dict[str, float | int | str]:
    """Return the numbers of one network and image size, in milliseconds an image."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder / "shards", count)
        file = packed_network(folder, width, size)
        data, out = f"stream:{folder / 'shards'}", folder / "features"
        model = burn_engine.load(file)
        quiet = Console(quiet=True)

        def whole() -> None:
            embed(EmbedConfig(str(file), data, str(out), threads=1), quiet)

        def decoding() -> None:
            for part in open_collection(data, 1).parts:
                images = part.open()
                assert images.source is not None
                for read in image_readers(images.source, images.positions, tensors=False):
                    prepare(read(), model.image)

        part = open_collection(data, 1).parts[0].open()
        assert part.source is not None
        first = next(iter(image_readers(part.source, part.positions, tensors=False)))
        image = prepare(first(), model.image)

        def network() -> None:
            for _ in range(count):
                model.features(image)

        turns = []
        for turn in range(rounds + 1):
            times = [seconds(work) for work in (whole, decoding, network)]
            shutil.rmtree(out)
            if turn:  # the first is not counted
                turns.append([1000 * value / count for value in times])
    embedded, decoded, computed = (statistics.median(column) for column in zip(*turns, strict=True))
    share = statistics.median((turn[1] + turn[2]) / turn[0] for turn in turns)
    return {
        "processor": processor(), "isa": model.isa, "commit": source_commit() or "",
        "width": width, "size": size, "images": count,
        "embed_ms": round(embedded, 3), "decoding_ms": round(decoded, 3),
        "network_ms": round(computed, 3), "images_per_second": round(1000 / embedded, 1),
        "share": round(share, 3),
    }  # fmt: skip


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    options = parser.parse_args()
    found = measure(options.rounds, options.images, options.width, options.size)
    if options.json:
        print(json.dumps(found))
        return
    print(
        "{processor}, {isa}: ReActNet of width {width} at {size} pixels: {embed_ms} ms an image, "
        "{images_per_second} images/s; decoding {decoding_ms} ms, network {network_ms} ms, share "
        "{share}".format(**found)
    )


if __name__ == "__main__":
    main()
