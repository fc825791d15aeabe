"""Open the source of images that a user names."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from burn.core.errors import UserError, listed
from burn.core.inputs import list_folder, status_of
from burn.core.paths import expand, is_there
from burn.data.base import PixelSource, Source, Split, is_part, named_part, part_word
from burn.data.builtin.digits import Digits
from burn.data.checks import missing_labels
from burn.data.formats.cifar import Cifar
from burn.data.formats.folder import Folder, are_few, walk
from burn.data.formats.labeled import LISTS, is_birdsnap, is_cub, read_birdsnap, read_cub, read_list
from burn.data.formats.parquet import Parquet
from burn.data.formats.shards import open_shards
from burn.data.formats.voc import open_voc
from burn.data.splits import Subset, hold_out
from burn_engine.folders import is_image, suffix_of

_SUFFIXES = ("train", "test", "tenth", "rest")
_DEEPEST = 3  # folders that an archive may have put around the parts of its data


def split_suffix(spec: str) -> tuple[str, str]:
    """Split a specification from its :train, :test, :tenth or :rest, which is "" without one."""
    whole, _, suffix = spec.rpartition(":")
    if suffix not in _SUFFIXES or is_there(expand(spec)):
        return spec, ""
    return whole, suffix


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

    A suffix `:train` or `:test` of the specification takes precedence over `split`. The suffixes
    `:tenth` and `:rest` split labelled images that have no test images: the first is a tenth of
    each class, always the same, the second the others.

    Args:
        spec: The specification.
        split: The part to open if the source has both: digits, CIFAR, CUB, Birdsnap, a folder
            whose subfolders with images are `train` and one or more of `test`, `val`, `valid`,
            `validation` and the like (the first of these is the test split; case does not matter),
            and a folder of shards `train-….parquet` and `test-….parquet` (or another of these
            words). Other sources ignore it.

    Raises:
        UserError: There is nothing at the path, it cannot be read, or it holds no usable images.
    """
    whole, suffix = split_suffix(spec)
    if suffix in ("tenth", "rest"):
        train, test = open_source(whole), open_source(whole, "test")
        if train.fingerprint != test.fingerprint:
            raise UserError(
                f"{spec}: {whole} has test images of its own: give {whole} itself, both for "
                "training and for the test"
            )
        return _part_of(train, suffix)
    if suffix in ("train", "test"):
        spec, split = whole, suffix
    if spec.startswith("stream:"):
        return open_shards(spec.removeprefix("stream:"), split)
    if spec == "digits":
        return Digits(split)
    if spec == "digit-scenes":
        return open_voc(spec, split)
    path = expand(spec)
    status = status_of(path)
    if status is None:
        raise UserError(f"no data at {spec}: give a folder of images, a parquet file, or digits")
    if stat.S_ISDIR(status.st_mode):
        list_folder(path)  # raises if it cannot be read; globbing would find it empty
    elif not stat.S_ISREG(status.st_mode):
        raise UserError(f"{spec} is neither a folder nor a regular file (a pipe or a device)")
    if path.is_file():
        if path.suffix in LISTS:
            return read_list(path)
        if path.suffix == ".tar":
            raise UserError(f"{spec} is a tar of images: give stream:{spec}")
        if path.suffix != ".parquet":
            raise UserError(f"{spec} is neither a folder, a .parquet file nor a list of images")
        return Parquet([path], spec)
    cifar = [
        folder
        for folder in (path, path / "cifar-10-batches-py", path / "cifar-100-python")
        if (folder / "batches.meta").is_file() or (folder / "meta").is_file()
    ]
    if len(cifar) > 1:
        names = " and ".join(folder.name for folder in cifar)
        raise UserError(f"{spec} holds both {names}: give one of them")
    if cifar:
        return Cifar(cifar[0], split)
    for folder in (path, path / "CUB_200_2011"):
        if is_cub(folder):
            return read_cub(folder, split)
    for folder in (path, path / "birdsnap"):
        if is_birdsnap(folder):
            return read_birdsnap(folder, split)
    part, note = _part(path, split)
    if part != path:
        path, spec = part, str(part)
    if shards := sorted(path.glob("*.parquet")):
        words = named_part([part_word(shard) for shard in shards], split)
        if not words:
            return Parquet(shards, spec, note)
        chosen = [shard for shard in shards if part_word(shard) in words]
        others = [shard.name for shard in shards if shard not in chosen]
        note = f"{spec} also holds {listed(others)}, which are not read"
        return Parquet(chosen, f"{spec}:{words[0]}", note)
    if any(path.glob("*.tar")):
        raise UserError(f"{spec} holds tars of images: give stream:{spec}")
    return Folder(path, note)


def _part(root: Path, split: Split) -> tuple[Path, str]:
    """Find the subfolder of a split, in a folder or in the only subfolder that has images.

    Folders without images do not count, and neither do a few images beside the folders. Returns
    `root` if it does not consist of parts, and a line on what is read if there are parts.
    """
    path = root
    for _ in range(_DEEPEST):
        top = next(walk(path))
        loose = [name for name in top.files if _is_data(name)]
        subfolders = [name for name in top.folders if any(_data_in(path / name))]
        names = named_part(subfolders, split)
        if len(names) > 1:
            raise UserError(f"{path} holds {' and '.join(names)}: give one of them")
        if names:
            images = (file for name in subfolders for file in _data_in(path / name))
            enough = sum(1 for _ in islice(images, 100 * len(loose)))
            others = [name for name in subfolders if name not in names]
            if all(map(is_part, subfolders)) and are_few(len(loose), enough):
                return path / names[0], _not_read(path, others, loose)
            train = named_part(subfolders, "train")[0]
            return root, (
                f"all of {path} is read, with {listed(others)}: give {path / train} for {train} "
                "alone"
            )
        if loose or len(subfolders) != 1:
            break
        path /= subfolders[0]
    return root, ""


def _not_read(path: Path, others: list[str], loose: list[str]) -> str:
    images = f"{len(loose):,} image{'s' if len(loose) > 1 else ''} beside them" if loose else ""
    return f"{path} also holds {' and '.join(filter(None, [listed(others), images]))}, not read"


def _data_in(folder: Path) -> Iterator[str]:
    """Yield the names of the images and parquet files below a folder, at any depth."""
    return (name for listing in walk(folder) for name in listing.files if _is_data(name))


def _is_data(name: str) -> bool:
    return is_image(name) or suffix_of(name) == ".parquet"


class _Part(Subset):
    """Some images of one of burn's own formats, all of which have pixels."""

    def pixels(self, index: int) -> np.ndarray:
        assert isinstance(self.whole, PixelSource)
        return self.whole.pixels(int(self.indices[index]))


def _part_of(source: Source, part: str) -> Subset:
    """Return a tenth of each class's images, or the rest, where there are no test images yet.

    Both are the same whenever the source's images and labels are. The tenth has at least one image
    of each class that has three; in the rest, learning rates can then be chosen on an image of each
    class.
    """
    if why := missing_labels(source):
        raise UserError(f"{source.name}:{part} is a part of labelled images, but {why}")
    assert source.labels is not None
    counts = np.bincount(source.labels, minlength=len(source.classes))
    some = np.flatnonzero(counts[source.labels] > 2)
    if not len(some):
        raise UserError(f"{source.name}:{part} needs a class of at least 3 images")
    _, tenth = hold_out(Subset(source, some), 0.1, seed=0)
    tenth = some[tenth.indices]
    rest = np.setdiff1d(np.arange(len(source)), tenth)
    chosen = _Part(source, tenth if part == "tenth" else rest)
    chosen.name = f"{source.name}:{part}"
    return chosen
