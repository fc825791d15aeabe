"""From what a user types to a source of images."""

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
    """The images that `spec` names.

    spec: `digits`; `digit-scenes`, without labels; `stream:PATH`, as `open_shards` takes PATH, for
    shards that are read where they lie; a parquet file or a folder of them (column
    `image` or `img`: bytes or {bytes, path}; optional integer column `label` or `fine_label`);
    CIFAR's python batches, CUB-200-2011 or Birdsnap, or the folder they were unpacked in; a list,
    .txt, .csv or .lst, of lines `path label`; a folder of images.

    `split` chooses between train and test where the source itself has both: digits, CIFAR, CUB,
    Birdsnap, and what names its parts. These are a folder that holds no image and no subfolders but
    `train` and one or more of `test`, `val`, `valid`, `validation` (the first of them is the test),
    and a folder of shards `train-….parquet` and `test-….parquet` (or another of these words). A
    suffix `:train` or `:test` does the same by hand. Raises UserError where nothing is usable.
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
        list_folder(path)  # an error where it cannot be read, which globbing would take for empty
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
    """train/, or test/ and the like, where nothing else lies beside them."""
    _, subfolders, files = next(os.walk(path), ("", [], []))
    subfolders = [name for name in subfolders if not name.startswith(".")]
    loose = any(name.lower().endswith((*EXTENSIONS, ".parquet")) for name in files)
    if loose or not {"train", *HELD_OUT}.issuperset(subfolders):
        return None
    word = named_part(subfolders, split)
    return path / word if word else None
