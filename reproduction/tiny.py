"""Make the labelled files of Tiny-ImageNet at 32 pixels, out of a clone of a public repository.

    python -m reproduction.tiny CLONE --out FOLDER

The clone is that of DhanashriPalodkar/imageet32x32. FOLDER gets train.parquet, with the 100,000
training images in a fixed random order, and val.parquet, with the 10,000 validation images. Files
keep their bytes; a class's number is its place among the sorted names of the folders in train/.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_JPEG = b"\xff\xd8"  # how its files begin
_ANNOTATIONS = "val_annotations.txt"  # a line a file: its name, its class, the corners of a box


def write(clone: Path, folder: Path) -> tuple[int, int]:
    """Write train.parquet and val.parquet with columns `image` of {bytes, path} and `label`.

    Args:
        clone: The clone, with train/CLASS/**/*.JPEG, val/images/ and val/val_annotations.txt.
        folder: Where the two files go; it is made if it is not there.

    Returns:
        The numbers of training and of validation images.

    Raises:
        ValueError: The clone is damaged; nothing is written.
        OSError: A file cannot be read or written.
    """
    classes = sorted(path.name for path in (clone / "train").iterdir() if path.is_dir())
    train = [
        (path, number)
        for number, name in enumerate(classes)
        for path in sorted((clone / "train" / name).rglob("*.JPEG"))
    ]
    random.Random(0).shuffle(train)
    annotations = clone / "val" / _ANNOTATIONS
    val = []
    for number, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), 1):
        name, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if label not in classes or name != Path(name).name:
            raise ValueError(f"{annotations}: line {number} is no image with a class")
        val.append((clone / "val" / "images" / name, classes.index(label)))
    tables = _table(train), _table(val)
    folder.mkdir(parents=True, exist_ok=True)
    for table, name in zip(tables, ("train.parquet", "val.parquet"), strict=True):
        pq.write_table(table, folder / name)
    return len(train), len(val)


def _table(rows: Sequence[tuple[Path, int]]) -> pa.Table:
    images = []
    for path, _ in rows:
        encoded = path.read_bytes()
        if not encoded.startswith(_JPEG):
            raise ValueError(f"{path} is no JPEG file")
        images.append({"bytes": encoded, "path": path.name})
    labels = pa.array([label for _, label in rows], pa.int64())
    return pa.table({"image": images, "label": labels})


def main() -> None:
    """Write the files and print how many images they have."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone", type=Path, metavar="CLONE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    if not (arguments.clone / "val" / _ANNOTATIONS).is_file():
        parser.error(f"{arguments.clone} has no val/{_ANNOTATIONS}: give a clone of the repository")
    try:
        train, val = write(arguments.clone, arguments.out)
    except (OSError, ValueError) as error:
        parser.error(f"{error}: give a whole clone, and a folder for the files")
    print(f"{arguments.out}: {train:,} training and {val:,} validation images")


if __name__ == "__main__":
    main()
