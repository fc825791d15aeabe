"""Fingerprints of images: hashes of what they hold, whatever their place and their times.

A fingerprint covers names below the folder, sizes, and content. The content is read whole up to
256 MiB in 65,536 files. Of more, 256 MiB are read: blocks spread evenly over each of at most 16,384
files, which are spread evenly over all. What lies between the blocks, or in another file, may
change unnoticed as long as all sizes stay the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import open_regular

_BYTES = 2**28  # of content
_WHOLE_FILES = 2**16  # most files of content that is read whole
_FILES = 2**14  # most files of other content: opening one takes up to milliseconds over a network
_BLOCK = 2**14  # bytes
_MARK = "content:"  # earlier versions had the hash of names and sizes alone, and no mark
_EARLIER = re.compile("[0-9a-f]{16}")


def digest(*parts: str | bytes) -> str:
    """Return a fingerprint that depends on every part and their order."""
    hasher = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        hasher.update(b"%d " % len(content))
        hasher.update(content)
    return _MARK + hasher.hexdigest()[:16]


def is_earlier(old: object, new: object) -> bool:
    """Return whether a fingerprint is of a version of burn that did not read the content."""
    return _EARLIER.fullmatch(str(old)) is not None and str(new).startswith(_MARK)


def spread(count: int, most: int) -> range | list[int]:
    """Return positions below `count`, all of them or `most` that are spread evenly."""
    return range(count) if count <= most else [i * count // most for i in range(most)]


def file_contents(files: Sequence[tuple[Path, int]], budget: int = _BYTES) -> str:
    """Hash what files, given with their sizes in bytes, hold, reading at most `budget` bytes."""
    whole = sum(size for _, size in files) <= budget
    chosen = [files[i] for i in spread(len(files), _WHOLE_FILES if whole else _FILES)]
    most = _most_of_a_file([size for _, size in chosen], budget)
    hasher = hashlib.sha256()
    for path, size in chosen:
        hasher.update(b"%d " % size)
        try:
            with open_regular(path) as file:
                if size <= most:
                    hasher.update(file.read(size))
                    continue
                count = max(1, most // _BLOCK)
                for number in range(count):
                    # A single block lies in the middle: files begin with headers that are alike.
                    file.seek((2 * number + 1) * (size - _BLOCK) // (2 * count))
                    hasher.update(file.read(_BLOCK))
        except (UserError, OSError):  # a loader leaves it out and counts it
            hasher.update(b"unreadable")
    return hasher.hexdigest()


def _most_of_a_file(sizes: Sequence[int], budget: int) -> int:
    """Return how many bytes to read of each file at most, to read `budget` bytes in all."""
    share = budget
    for done, size in enumerate(sorted(sizes)):
        share = budget // (len(sizes) - done)
        if size > share:
            return share
        budget -= size
    return max(sizes, default=0)
