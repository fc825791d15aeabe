"""Make the files that the pretrained networks learn from, out of clones of public repositories.

    python models/data.py photos CLONE... --out photos.parquet
    python models/data.py more CLONE... --out more.parquet
    python models/data.py tiny CLONE --out tiny.parquet --side 0

`photos` takes the clones of thunderInfy/imagenette, thunderInfy/imagewoof and
EliSchwartz/imagenet-sample-images; `more` these and that of Deo0330/split_minidataset, which is
mini-ImageNet at 84 pixels; `tiny` that of DhanashriPalodkar/imageet32x32, Tiny-ImageNet at 32
pixels. Each file holds the training images alone, without labels, in the order of the clones and
of their paths: nothing of a folder `val` or `test`, and no file named ILSVRC2012_val_…, since those
are the images that others are measured on. Images whose shorter side is longer than --side are
shrunk to it and stored as JPEG; the others keep their files, and 0 keeps every file.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

_HELD_OUT = "ILSVRC2012_val_"  # what ImageNet's validation images are called
_HELD_OUT_FOLDERS = {"val", "test"}
_SUFFIXES = {".JPEG", ".jpg"}
_QUALITY = 87  # of JPEG
_COUNTS = {"photos": 18_790, "more": 68_790, "tiny": 100_000}  # of images


def training_images(clone: Path) -> Iterator[Path]:
    """Yield the training images of a clone, sorted by path.

    Args:
        clone: A folder with JPEG files at any depth.
    """
    for path in sorted(path for path in clone.rglob("*") if path.suffix in _SUFFIXES):
        folders = path.relative_to(clone).parts[:-1]
        if not path.name.startswith(_HELD_OUT) and not _HELD_OUT_FOLDERS & set(folders):
            yield path


def encoded(path: Path, side: int) -> bytes:
    """Return an image as the bytes of a JPEG file.

    Args:
        path: The file of the image.
        side: Length in pixels that the shorter side is shrunk to if it is longer; 0 returns the
            file's own bytes.
    """
    if not side:
        return path.read_bytes()
    with Image.open(path) as opened:
        if min(opened.size) <= side:
            return path.read_bytes()
        image = opened.convert("RGB")
    scale = side / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Write one parquet file with a column `image` of {bytes, path}."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=tuple(_COUNTS))
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--side", type=int, default=192, metavar="PIXELS")
    arguments = parser.parse_args()
    paths = [path for clone in arguments.clones for path in training_images(clone)]
    if len(paths) != _COUNTS[arguments.set]:
        print(
            f"models/data.py: {len(paths)} training images in {len(arguments.clones)} clones, "
            f"expected {_COUNTS[arguments.set]}: give the whole clones, see models/data.py",
            file=sys.stderr,
        )
        raise SystemExit(2)
    with ProcessPoolExecutor() as pool:
        contents = list(pool.map(partial(encoded, side=arguments.side), paths, chunksize=64))
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    image = pa.array(
        [{"bytes": each, "path": name} for each, name in zip(contents, names, strict=True)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    # The tables of JPEG headers repeat: compression halves files of 32 pixels.
    pq.write_table(
        pa.table({"image": image}),
        arguments.out,
        compression="zstd",
        compression_level=19,
        row_group_size=4096,
    )
    size = arguments.out.stat().st_size
    print(f"{arguments.out}: {len(paths):,} images, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
