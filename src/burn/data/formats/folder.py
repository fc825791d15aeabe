"""A source that reads the image files of a folder; its subfolders may be classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from burn.core.errors import UserError, listed
from burn.core.inputs import reason
from burn.data.base import ImageFiles
from burn.data.fingerprint import digest, file_contents
from burn_engine.folders import SUFFIXES, Listing, Skipped
from burn_engine.folders import walk as engine_walk


def walk(root: Path) -> Iterator[Listing]:
    """Walk through a folder by the engine's rule, with errors for the user.

    What cannot be read is a UserError, and so are a link without a file extension that leads to
    nothing, and too many links to folders.
    """
    try:
        yield from engine_walk(root)
    except OSError as error:
        raise UserError(reason(Path(error.filename or root), error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error


class Folder(ImageFiles):
    """The images below a folder, at any depth.

    If every image lies directly in a subfolder, and there are at least two such subfolders, the
    subfolders are the classes; otherwise there are no labels. A few images beside the class folders
    are left out. Hidden files and folders, and those of other programs, are skipped.

    Attributes:
        skipped: Number of other files by lower-case extension ("" for none), without hidden files.
        unlabelled: Why there are no labels, if there are folders that might be classes.
    """

    def __init__(self, path: Path, note: str = "") -> None:
        self.root = path
        entries: list[tuple[str, int]] = []
        skipped = Skipped()
        for listing in walk(path):
            for file in skipped.add(listing):
                full = Path(listing.path, file)
                # A dangling link counts as an image that cannot be read.
                size = full.stat().st_size if full.exists() else 0
                if full.exists() and not full.is_file():
                    continue  # a pipe or a device would block
                entries.append((full.relative_to(path).as_posix(), size))
        self.skipped = skipped.files
        if not entries:
            unread = skipped.text(others=False)
            raise UserError(
                f"{path} holds no image ({', '.join(e[1:] for e in SUFFIXES)})"
                + (f", but {unread}" if unread else "")
            )
        stray = stray_images([name for name, _ in entries])
        if stray:
            entries = [entry for entry in entries if "/" in entry[0]]
        self.name = str(path)
        self._names = [name for name, _ in entries]
        content = file_contents([(path / name, size) for name, size in entries])
        self.fingerprint = digest(*self._names, content)
        self.labels: np.ndarray | None = None
        self.classes: tuple[str, ...] = ()
        folders = sorted({name.split("/")[0] for name in self._names if "/" in name})
        self.unlabelled = ""
        if len(folders) > 1 and (misplaced := [n for n in self._names if n.count("/") != 1]):
            count = f"{len(misplaced):,} image{'s' if len(misplaced) > 1 else ''}"
            where = "does" if len(misplaced) == 1 else "do"
            self.unlabelled = (
                f"{count} {where} not lie directly in a class folder ({listed(misplaced, 3)})"
            )
        elif len(folders) > 1:
            position = {name: i for i, name in enumerate(folders)}
            self.classes = tuple(folders)
            self.labels = np.array([position[n.split("/")[0]] for n in self._names], dtype=np.int64)
        texts = [skipped.text()]
        if stray:
            are = "images" if len(stray) > 1 else "image"
            texts.append(f"{len(stray):,} {are} beside the class folders ({listed(stray, 3)})")
        left_out = ", ".join(filter(None, texts))
        self.notes = tuple(filter(None, [note, f"skipped: {left_out}" if left_out else ""]))


def stray_images(names: list[str]) -> list[str]:
    """Return the few images that lie beside class folders, and are none of the data.

    `names` are the paths of all images below a folder, separated by /. There are none unless every
    other image lies directly in one of several subfolders.
    """
    loose = [name for name in names if "/" not in name]
    classes = {name.split("/")[0] for name in names if name.count("/") == 1}
    if any(name.count("/") > 1 for name in names) or len(classes) < 2:
        return []
    return loose if are_few(len(loose), len(names) - len(loose)) else []


def are_few(loose: int, images: int) -> bool:
    """Return whether so few images lie beside folders of images that they are there by accident."""
    return loose <= max(1, images // 100)
