"""A source that reads the image files of a folder; its subfolders may be classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from burn.core.errors import UserError
from burn.data.base import EXTENSIONS, UNREAD_EXTENSIONS, ImageFiles
from burn.data.fingerprint import digest, file_contents
from burn.data.formats.walk import walk


class Folder(ImageFiles):
    """The images below a folder, at any depth.

    If every image lies directly in a subfolder, and there are at least two such subfolders, the
    subfolders are the classes; otherwise there are no labels.

    Args:
        path: The folder.

    Attributes:
        root: The folder.
        skipped: Number of other files by lower-case extension ("" for none), without hidden files.

    Raises:
        UserError: The folder holds no image, or a subfolder cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.root = path
        found: list[tuple[str, int]] = []
        self.skipped: Counter[str] = Counter()
        for folder, _, files in walk(path):
            for file in files:
                if file.startswith("."):
                    continue
                if not file.lower().endswith(EXTENSIONS):
                    self.skipped[Path(file).suffix.lower()] += 1
                else:
                    full = Path(folder, file)
                    # A dangling link counts as an image that cannot be read.
                    size = full.stat().st_size if full.exists() else 0
                    if full.exists() and not full.is_file():
                        continue  # a pipe or a device would block
                    found.append((full.relative_to(path).as_posix(), size))
        if not found:
            unread = skipped_files(self.skipped, others=False)
            raise UserError(
                f"{path} holds no image ({', '.join(e[1:] for e in EXTENSIONS)})"
                + (f", but {unread}" if unread else "")
            )
        self.name = str(path)
        self._path = path
        self._names = [name for name, _ in found]
        content = file_contents([(path / name, size) for name, size in found])
        self.fingerprint = digest(*self._names, content)
        parents = [name.split("/") for name in self._names]
        folders = sorted({parts[0] for parts in parents})
        self.classes: tuple[str, ...] = ()
        self.labels: np.ndarray | None = None
        if all(len(parts) == 2 for parts in parents) and len(folders) > 1:
            position = {name: i for i, name in enumerate(folders)}
            self.classes = tuple(folders)
            self.labels = np.array([position[parts[0]] for parts in parents], dtype=np.int64)


def skipped_files(counts: Mapping[str, int], *, others: bool = True) -> str:
    """Describe the files of a folder that are not read, in words.

    Args:
        counts: Number of files by extension.
        others: Also count files that are not images.

    Returns:
        The description; "" if there is nothing to tell.
    """
    unread = sorted((e for e in counts if e in UNREAD_EXTENSIONS), key=lambda e: (-counts[e], e))
    parts = []
    if unread:
        named = ", ".join(f"{counts[e]:,} {e[1:].upper()}" for e in unread[:4])
        more = sum(counts[e] for e in unread[4:])
        named += f", {more:,} in other formats" if more else ""
        parts.append(f"{named} (not read: convert them to JPEG or PNG)")
    rest = sum(counts.values()) - sum(counts[e] for e in unread)
    if rest and others:
        parts.append(f"{rest:,} other file{'s' if rest > 1 else ''}")
    return ", ".join(parts)
