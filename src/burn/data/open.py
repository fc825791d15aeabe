"""Open the source of images that a user names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import list_folder, status_of
from burn.core.paths import expand
from burn.data.base import EXTENSIONS, HELD_OUT, Source, Split, named_part
from burn.data.builtin.digits import Digits
from burn.data.formats.cifar import Cifar
from burn.data.formats.folder import Folder
from burn.data.formats.labeled import (
    LISTS,
    LabeledFiles,
    is_birdsnap,
    is_cub,
    read_birdsnap,
    read_cub,
    read_list,
)
from burn.data.formats.parquet import Parquet
from burn.data.formats.shards import open_shards
from burn.data.formats.voc import open_voc

_CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")


def open_source(spec: str, split: Split = "train") -> Source:
    """Open the source of images that a specification names.

    A specification is one of:

    - `digits`, or `digit-scenes` (without labels);
    - `stream:PATH` for shards that are read in place; `open_shards` describes PATH;
    - a parquet file or a folder of them (column `image` or `img`: bytes or {bytes, path}; optional
      integer column `label` or `fine_label`);
    - the folder of CIFAR's Python batches, CUB-200-2011 or Birdsnap, or the folder it was unpacked
      in;
    - a list, .txt, .csv or .lst, with lines `path label`;
    - a folder of images.

    A suffix `:train` or `:test` of the specification takes precedence over `split`.

    Args:
        spec: The specification.
        split: The part to open if the source has both: digits, CIFAR, CUB, Birdsnap, a folder
            without images whose subfolders are `train` and one or more of `test`, `val`, `valid`,
            `validation` (the first of these is the test split), and a folder of shards
            `train-….parquet` and `test-….parquet` (or another of these words). Other sources
            ignore it.

    Raises:
        UserError: There is nothing at the path, it cannot be read, or it holds no usable images.
    """
    for suffix in ("train", "test"):
        if spec.endswith(f":{suffix}") and not Path(spec).exists():
            spec, split = spec.removesuffix(f":{suffix}"), suffix
    if spec.startswith("stream:"):
        return open_shards(spec.removeprefix("stream:"), split)
    if spec == "digits":
        return Digits(split)
    if spec == "digit-scenes":
        return open_voc(spec, split)
    path = expand(spec)
    found = status_of(path)
    if found is None:
        raise UserError(f"no data at {spec}: give a folder of images, a parquet file, or digits")
    if stat.S_ISDIR(found.st_mode):
        list_folder(path)  # raises if it cannot be read; globbing would find it empty
    elif not stat.S_ISREG(found.st_mode):
        raise UserError(f"{spec} is neither a folder nor a regular file (a pipe or a device)")
    if path.is_file():
        if path.suffix in LISTS:
            return LabeledFiles(read_list(path))
        if path.suffix == ".tar":
            raise UserError(f"{spec} is a tar of images: give stream:{spec}")
        if path.suffix != ".parquet":
            raise UserError(f"{spec} is neither a folder, a .parquet file nor a list of images")
        return Parquet([path], spec)
    cifar = [
        folder
        for folder in (path, *(path / name for name in _CIFAR_FOLDERS))
        if (folder / "batches.meta").is_file() or (folder / "meta").is_file()
    ]
    if len(cifar) > 1:
        names = " and ".join(folder.name for folder in cifar)
        raise UserError(f"{spec} holds both {names}: give one of them")
    if cifar:
        return Cifar(cifar[0], split)
    for folder in (path, path / "CUB_200_2011"):
        if is_cub(folder):
            return LabeledFiles(read_cub(folder, split))
    for folder in (path, path / "birdsnap"):
        if is_birdsnap(folder):
            return LabeledFiles(read_birdsnap(folder, split))
    if part := _part_folder(path, split):
        path, spec = part, str(part)
    if shards := sorted(path.glob("*.parquet")):
        words = {shard: shard.stem.partition("-")[0] for shard in shards}
        if word := named_part(words.values(), split):
            return Parquet([s for s in shards if words[s] == word], f"{spec}:{word}")
        return Parquet(shards, spec)
    if any(path.glob("*.tar")):
        raise UserError(f"{spec} holds tars of images: give stream:{spec}")
    return Folder(path)


def _part_folder(path: Path, split: Split) -> Path | None:
    """Return the subfolder of a split, or None unless a folder holds only subfolders of splits."""
    _, subfolders, files = next(os.walk(path), ("", [], []))
    subfolders = [name for name in subfolders if not name.startswith(".")]
    loose = any(name.lower().endswith((*EXTENSIONS, ".parquet")) for name in files)
    if loose or not {"train", *HELD_OUT}.issuperset(subfolders):
        return None
    word = named_part(subfolders, split)
    return path / word if word else None
