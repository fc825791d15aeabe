"""Groups of near-duplicates: images that are copies of the best image of their group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn_engine.appearance import (
    ALTERATIONS,
    CODE_BYTES,
    SIDE,
    UNALTERED,
    Appearance,
    agreements,
    altered_codes,
    appearance,
    are_copies,
    codes,
    most_bits,
)
from burn_engine.errors import shown
from burn_engine.format import Floats
from burn_engine.images import ImageLike, read_image
from burn_engine.search import nearest

_AT_ONCE = 32  # images that are compared with all others at once
_MOST_NEAR = 8  # nearest codes that are looked at first; more if all of them are of copies
_PAIRS_AT_ONCE = 1024  # pairs whose details are compared at once, in about 100 MB


class Copy(NamedTuple):
    """An image of a group.

    Attributes:
        position: its position among the images that were compared.
        agreement: how well its details agree with those of the group's best image, up to 1.
        alteration: how one of the two was altered, in words; "" if it only was resized,
            compressed, brightened or the like.
    """

    position: int
    agreement: float
    alteration: str


class Appearances:
    """What is kept of images while their duplicates are looked for: 4.2 kB each.

    Args:
        count: The largest number of images.
    """

    def __init__(self, count: int) -> None:
        self._count = 0
        self._squares = np.empty((count, SIDE, SIDE), np.uint8)
        self._codes = np.empty((count, CODE_BYTES), np.uint8)
        self._digests: list[bytes] = []
        self._ranks: list[tuple[int, int, int]] = []
        self.sizes: list[tuple[int, int]] = []  # (width, height) in pixels

    def __len__(self) -> int:
        return self._count

    def add(self, seen: Appearance, num_bytes: int) -> None:
        """Add an image.

        Args:
            seen: What it looks like.
            num_bytes: Length of its file.
        """
        self._squares[self._count] = seen.square
        self._codes[self._count] = codes(seen.square[None])[0]
        self._digests.append(seen.digest)
        self._ranks.append((seen.height * seen.width, seen.sharpness, num_bytes))
        self.sizes.append((seen.width, seen.height))
        self._count += 1

    def groups(
        self, threads: int = 1, progress: Callable[[int], None] = lambda _: None
    ) -> list[list[Copy]]:
        """Return groups of near-duplicates.

        The images are taken from the best to the worst: by number of pixels, then sharpness, then
        bytes, then order. An image that is a copy of the best one of a group joins the group that
        it agrees with best; any other begins a group. So each image of a group is a copy of its
        first one, and no chain of small differences joins images that are unlike.

        Args:
            threads: Number of threads that compare.
            progress: Called with the number of images that are done.

        Returns:
            The groups of two images or more, the best image of each first, the others by rank;
            groups by the position of their first image in the order in which images were added.
        """
        order = sorted(range(len(self)), key=lambda i: self._ranks[i], reverse=True)
        first: dict[bytes, int] = {}
        members: dict[int, list[Copy]] = {}
        unique = []
        twins: dict[int, list[int]] = {}
        for i in order:
            if first.setdefault(self._digests[i], i) == i:
                unique.append(i)
            else:
                twins.setdefault(first[self._digests[i]], []).append(i)
        for i, copy in self._stars(np.array(unique, np.int64), threads, progress):
            members.setdefault(i, []).append(copy)
            same = (Copy(twin, *copy[1:]) for twin in twins.get(copy.position, ()))
            members[i] += same
        rank = {i: place for place, i in enumerate(order)}
        return [
            sorted(members[i], key=lambda copy: rank[copy.position])
            for i in sorted(members)
            if len(members[i]) > 1
        ]

    def _stars(
        self, order: NDArray[np.int64], threads: int, progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Copy]]:
        """Yield each image with the best image of its group.

        Args:
            order: Positions of the images, from the best to the worst.
            threads: As in `groups`.
            progress: As in `groups`.
        """
        joined = np.zeros(len(order), bool)  # to the group of a better image; by rank
        begun = np.zeros(len(order), bool)
        open_ones = np.arange(len(order))  # by rank: those that are looked for
        table = self._codes[order]
        with ThreadPoolExecutor(threads) as pool:
            for begin in range(0, len(order), _AT_ONCE):
                end = min(begin + _AT_ONCE, len(order))
                ranks = [rank for rank in range(begin, end) if not joined[rank]]
                if joined[open_ones].mean() > 0.1:
                    open_ones = np.flatnonzero(~joined)
                    table = self._codes[order[open_ones]]
                near = self._near(order, ranks, table, open_ones, pool, threads, _MOST_NEAR)
                for r in ranks:
                    if joined[r]:
                        continue
                    nearest = near[r]
                    earlier = begun[nearest.ranks]
                    if earlier.any():
                        best = np.flatnonzero(earlier)[np.argmax(nearest.agreement[earlier])]
                        joined[r] = True
                        yield int(order[nearest.ranks[best]]), nearest.copy(int(order[r]), best)
                        continue
                    wanted = _MOST_NEAR
                    while nearest.may_be_more and wanted < len(table):
                        wanted *= 8
                        nearest = self._near(order, [r], table, open_ones, pool, threads, wanted)[r]
                    begun[r] = True
                    yield int(order[r]), Copy(int(order[r]), 1.0, "")
                    for at, other in enumerate(nearest.ranks.tolist()):
                        if not (joined[other] or begun[other]):
                            joined[other] = True
                            yield int(order[r]), nearest.copy(int(order[other]), at)
                progress(end)

    def _near(
        self,
        order: NDArray[np.int64],
        ranks: Sequence[int],
        table: NDArray[np.uint8],
        members: NDArray[np.int64],
        pool: ThreadPoolExecutor,
        threads: int,
        wanted: int,
    ) -> dict[int, _Copies]:
        """Return the copies of images by the image's rank.

        Of each alteration the nearest codes are looked at: where images have little in them, many
        that are no copies are as near as copies may be.

        Args:
            order: Positions of all images, by rank.
            ranks: The images whose copies are wanted.
            table: Codes among which they are looked for.
            members: Ranks of the images with these codes.
            pool: Threads that compare.
            threads: Their number.
            wanted: Number of nearest codes that are looked at for each alteration.
        """
        if not ranks:
            return {}
        wanted = min(wanted, len(table))
        queries = altered_codes(self._squares[order[ranks]]).reshape(-1, CODE_BYTES)
        parts = np.array_split(queries, threads)
        answers = list(pool.map(lambda part: nearest(table, part, wanted), parts))
        places = np.concatenate([answer[0] for answer in answers])
        bits = np.concatenate([answer[1] for answer in answers])
        row, column = np.nonzero(bits <= most_bits())
        others, near = members[places[row, column]], bits[row, column]
        whose, ways = np.divmod(row, len(ALTERATIONS))
        # Of each pair the details are compared unaltered, and by the alteration with fewest bits.
        by_bits = np.lexsort((ways, near, ways != UNALTERED, others, whose))
        pairs = (whose * len(order) + others) * 2 + (ways != UNALTERED)
        pairs, chosen = np.unique(pairs[by_bits], return_index=True)
        chosen = by_bits[chosen]
        chosen = chosen[others[chosen] != np.asarray(ranks)[whose[chosen]]]
        agreement = np.empty(len(chosen), np.float32)
        for begin in range(0, len(chosen), _PAIRS_AT_ONCE):
            part = chosen[begin : begin + _PAIRS_AT_ONCE]
            asked = order[np.asarray(ranks)[whose[part]]]
            both = np.stack([asked, order[others[part]]])
            images, at = np.unique(both, return_inverse=True)
            asked_at, other_at = at.reshape(2, -1)
            agreement[begin : begin + len(part)] = agreements(
                self._squares[images], asked_at, other_at, ways[part]
            )
        right = are_copies(agreement, ways[chosen])
        chosen, agreement = chosen[right], agreement[right]
        return {
            rank: self._copies_of(at, rank, whose, others, ways, row, chosen, agreement, wanted)
            for at, rank in enumerate(ranks)
        }

    @staticmethod
    def _copies_of(
        at: int,
        rank: int,
        whose: NDArray[np.int64],
        others: NDArray[np.int64],
        ways: NDArray[np.int64],
        row: NDArray[np.int64],
        chosen: NDArray[np.int64],
        agreement: Floats,
        wanted: int,
    ) -> _Copies:
        mine = whose[chosen] == at
        ranks = others[chosen[mine]]
        near = whose == at
        copies = np.isin(others[near], ranks) | (others[near] == rank)
        full = np.bincount(row[near][copies], minlength=1).max() >= wanted
        return _Copies(ranks, agreement[mine], ways[chosen[mine]], bool(full))


class _Copies(NamedTuple):
    """The copies of an image.

    Attributes:
        ranks: their ranks, int64 (n,); one twice if two alterations fit.
        agreement: float32 (n,).
        ways: positions of the alterations, int64 (n,).
        may_be_more: whether all codes near that of an alteration are those of copies.
    """

    ranks: NDArray[np.int64]
    agreement: Floats
    ways: NDArray[np.int64]
    may_be_more: bool

    def copy(self, position: int, at: int | np.intp) -> Copy:
        """Return the copy at an index, or its original if the image is the copy."""
        text = ALTERATIONS[int(self.ways[at])].text()
        return Copy(position, float(self.agreement[at]), text)


def duplicates(images: Iterable[ImageLike], threads: int = 1) -> list[list[Copy]]:
    """Find near-duplicates among images: resized, compressed, cropped, mirrored, turned.

    No network is needed. The guide, docs/guide/duplicates.md, says what is found and how well.

    Args:
        images: Paths of photographs, PIL images, or arrays (h, w, 3), uint8 or float from 0 to 1.
        threads: Number of threads that compare, 1 to 256.

    Returns:
        Groups of two images or more by `Copy.position`, the best image of each first: the one with
        most pixels, then the sharpest, then, of files, the one with most bytes.

    Raises:
        ValueError: An image cannot be read, or `threads` is out of range.
        OSError: A file cannot be read.

    Example:
        >>> import numpy as np
        >>> photo = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
        >>> [[copy.alteration for copy in group] for group in duplicates([photo, photo[:, ::-1]])]
        [['', 'mirrored']]
    """
    if isinstance(threads, bool) or not (isinstance(threads, int) and 1 <= threads <= 256):
        raise ValueError(f"threads {shown(threads)} is not an integer from 1 to 256")
    is_single = isinstance(images, str | bytes | np.ndarray)
    if is_single or not isinstance(images, Iterable):
        raise ValueError("images is no list of images: give a list, also of one")
    given = list(images)
    seen = Appearances(len(given))
    for at, image in enumerate(given):
        photo = read_image(image, None, f"images[{at}]: ")
        seen.add(appearance(photo), _bytes_of(image))
    return seen.groups(threads)


def _bytes_of(image: ImageLike) -> int:
    return os.stat(image).st_size if isinstance(image, str | os.PathLike) else 0  # noqa: PTH116
