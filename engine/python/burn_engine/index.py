"""An index of images: exact search among the signs of their features, in one safe file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.errors import ModelError, in_file, path_of, reading, shown
from burn_engine.kinds import INDEX
from burn_engine.safetensors import read_tensors, write_tensors
from burn_engine.search import nearest
from burn_engine.vectors import normalized, signs

FORMAT = 1
MAX_FEATURES = 2**20
# Codes that are compared again by their vectors, for each result that is wanted, and at least.
_CANDIDATES, _LEAST_CANDIDATES = 50, 500
_ABOUT = {"format", "num_features", "vectors", "network"}
_KEPT = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4"), "none": None}


class Match(NamedTuple):
    """An image that a search found.

    Attributes:
        name: its name in the index.
        distance: number of bits in which its code differs from the query's.
        similarity: cosine between both vectors, or None if the index keeps none.
    """

    name: str
    distance: int
    similarity: float | None


class Index:
    """Images by the signs of their features, and optionally their vectors, searched exactly.

    A search compares the query's code with every code (`burn_engine.search.nearest`), in 2
    to 3 ms for a million of 512 bits on one core of an AMD EPYC (Zen 4). If vectors are kept, the
    nearest codes are then ordered by the cosine of their vectors.

    Args:
        num_features: Number of features d, 1 to 2²⁰.
        vectors: What is kept of the vectors: "float16", "float32", or "none" for the codes alone.
        network: `Model.fingerprint` of the network that computes the features, or "". It is kept
            in the file, so that an index is not searched with another network's features.

    Attributes:
        names: names of the images, in the order in which they were added; read-only.

    Example:
        >>> import numpy as np
        >>> index = Index(4, vectors="none")
        >>> index.add(["a", "b"], np.array([[1, 1, -1, -1], [1, 1, 1, -1]], np.float32))
        >>> index.search(np.array([1, 1, 1, 1], np.float32), k=1)
        [Match(name='b', distance=1, similarity=None)]
    """

    def __init__(self, num_features: int, *, vectors: str = "float16", network: str = "") -> None:
        if not (isinstance(num_features, int | np.integer) and 1 <= num_features <= MAX_FEATURES):
            raise ValueError(f"num_features {shown(num_features)} is not 1 to {MAX_FEATURES}")
        if vectors not in _KEPT:
            raise ValueError(f"vectors {shown(vectors)} is not one of {', '.join(_KEPT)}")
        if not (isinstance(network, str) and len(network) <= 64 and network.isascii()):
            raise ValueError(f"network {shown(network)} is not a fingerprint")
        self.num_features = int(num_features)
        self.network = network
        self.vectors = vectors
        kept = _KEPT[vectors]
        self._names: tuple[str, ...] | None = None  # made when they are asked for
        self._rows = _Rows(
            {},
            np.empty((0, self._code_bytes), np.uint8),
            np.empty((0, 2), np.int64),
            None if kept is None else np.empty((0, self.num_features), kept),
        )

    @property
    def _code_bytes(self) -> int:
        return (self.num_features + 7) // 8

    def __len__(self) -> int:
        return len(self._rows.positions)

    def __contains__(self, name: object) -> bool:
        return name in self._rows.positions

    def __repr__(self) -> str:
        return f"<Index: {len(self):,} images, {self.num_features} features, {self.vectors}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the images, by their position."""
        if self._names is None:
            self._names = tuple(self._rows.positions)
        return self._names

    @property
    def codes(self) -> NDArray[np.uint8]:
        """Codes by position, uint8 (n, ⌈d / 8⌉), as `Model.codes` gives them; read-only."""
        view = self._rows.codes[: len(self)]
        view.flags.writeable = False
        return view

    def vectors_of(self, positions: ArrayLike) -> NDArray[np.float32]:
        """Return vectors of length 1, float32 (m, d).

        Args:
            positions: Positions of the images, (m,).

        Raises:
            ValueError: The index keeps no vectors.
        """
        if self._rows.vectors is None:
            raise ValueError('this index keeps no vectors: make it with vectors="float16"')
        return normalized(self._rows.vectors[: len(self)][np.asarray(positions, np.int64)])

    def add(
        self, names: Sequence[str], features: ArrayLike, stamps: ArrayLike | None = None
    ) -> None:
        """Add images, or replace those that the index has under the same names.

        Args:
            names: Their names, which differ.
            features: Their features or embeddings, floats (n, d). If the index keeps no vectors,
                codes, uint8 (n, ⌈d / 8⌉), are taken, too.
            stamps: Two integers for each image, (n, 2), by which the caller knows whether an image
                has changed, such as time and size of its file. Default: zeros.

        Raises:
            ValueError: A shape, a dtype or a number is wrong, or a name is given twice.
        """
        if isinstance(names, str):
            raise ValueError("names is one string: give a list of names")  # noqa: TRY004
        count = len(names)
        if len(set(names)) != count:
            raise ValueError("a name is given twice")
        for name in names:
            _check_name(name)
        given = np.asarray(features)
        marks = np.zeros((count, 2), np.int64) if stamps is None else np.asarray(stamps, np.int64)
        if marks.shape != (count, 2):
            raise ValueError(f"stamps have shape {marks.shape}; expected ({count}, 2)")
        codes, vectors = self._read(given, count)
        self._remove([name for name in names if name in self])
        # A signal may end this at any line. Until the last one, which is a single step of
        # Python's, the new rows lie behind those that the index has.
        self._names = None
        begin = len(self)
        rows = self._rows
        self._rows = _Rows(
            rows.positions,
            _extended(rows.codes, begin, codes),
            _extended(rows.stamps, begin, marks),
            None if rows.vectors is None else _extended(rows.vectors, begin, vectors),
        )
        rows.positions.update({name: begin + at for at, name in enumerate(names)})

    def _read(
        self, given: NDArray[Any], count: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return codes and vectors of what `add` and `search` take; no vectors for codes."""
        if given.dtype == np.uint8:
            if self._rows.vectors is not None:
                raise ValueError(
                    "this index keeps vectors: give features, or make it with vectors='none'"
                )
            codes = np.ascontiguousarray(given)
            if codes.shape != (count, self._code_bytes):
                raise ValueError(
                    f"codes have shape {codes.shape}; expected ({count}, {self._code_bytes})"
                )
            spare = 8 * self._code_bytes - self.num_features
            if spare and (codes[:, -1] >> (8 - spare)).any():
                raise ValueError("codes have bits after the last feature")
            return codes, np.empty((0, self.num_features), np.float32)
        if given.dtype.kind != "f" or given.shape != (count, self.num_features):
            raise ValueError(
                f"features have shape {given.shape} and dtype {given.dtype}; expected floats "
                f"({count}, {self.num_features})"
            )
        vectors = normalized(given)
        return signs(vectors), vectors

    def remove(self, names: Iterable[str]) -> None:
        """Remove images.

        Raises:
            KeyError: The index has no image of a name; nothing is removed then.
        """
        wanted = dict.fromkeys([names] if isinstance(names, str) else names)
        for name in wanted:
            if name not in self:
                raise KeyError(f"the index has no image {shown(name)}")
        self._remove(list(wanted))

    def _remove(self, names: Sequence[str]) -> None:
        if not names:
            return
        rows, count = self._rows, len(self)
        keep = np.ones(count, bool)
        keep[[rows.positions[name] for name in names]] = False
        self._names = None
        left = (name for name, kept in zip(rows.positions, keep, strict=True) if kept)
        self._rows = _Rows(
            {name: position for position, name in enumerate(left)},
            rows.codes[:count][keep],
            rows.stamps[:count][keep],
            None if rows.vectors is None else rows.vectors[:count][keep],
        )

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return the stamps of `add` by name."""
        pairs = self._rows.stamps[: len(self)].tolist()
        return {name: (a, b) for name, (a, b) in zip(self._rows.positions, pairs, strict=True)}

    def search(self, query: ArrayLike, k: int = 10) -> list[Match]:
        """Find the images that are most like one image.

        Args:
            query: Its features or embedding, floats (d,), or its code, uint8 (⌈d / 8⌉,).
            k: Number of images to find; an index of fewer gives all of them.

        Returns:
            The images, the most similar first: by cosine, or by distance if the index keeps no
            vectors or the query is a code.

        Raises:
            ValueError: The shape, the dtype or a number is wrong.
        """
        given = np.asarray(query)
        if given.ndim != 1:
            raise ValueError(f"the query has shape {given.shape}; expected one image: (d,)")
        positions, distances, similarities = self.nearest(given[None], k)
        names = self.names
        return [
            Match(
                names[position],
                int(distances[0, i]),
                None if similarities is None else float(similarities[0, i]),
            )
            for i, position in enumerate(positions[0].tolist())
        ]

    def nearest(
        self, queries: ArrayLike, k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32] | None]:
        """Find the images that are most like several images; see `search`.

        Args:
            queries: Floats (m, d), or codes, uint8 (m, ⌈d / 8⌉).
            k: Number of images to find for each.

        Returns:
            Positions (m, k'), numbers of bits (m, k') and cosines (m, k'), or None for the last,
            with k' = min(k, len(index)).
        """
        if not (isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 1):
            raise ValueError(f"k {shown(k)} is not an integer from 1 on")
        given = np.asarray(queries)
        if given.ndim != 2:
            raise ValueError(f"the queries have shape {given.shape}; expected (m, d)")
        is_code = given.dtype == np.uint8
        reader = Index(self.num_features, vectors="none") if is_code else self
        codes, vectors = reader._read(given, len(given))
        count = min(int(k), len(self))
        if self._rows.vectors is None or is_code:
            positions, distances = nearest(self.codes, codes, count)
            return positions, distances, None
        wanted = min(len(self), max(_CANDIDATES * count, _LEAST_CANDIDATES))
        positions, distances = nearest(self.codes, codes, wanted)
        similarities = np.empty(positions.shape, np.float32)
        for row, candidates in enumerate(positions):
            similarities[row] = self.vectors_of(candidates) @ vectors[row]
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
        return (
            np.take_along_axis(positions, order, axis=1),
            np.take_along_axis(distances, order, axis=1),
            np.take_along_axis(similarities, order, axis=1),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index into one safetensors file, complete or not at all.

        Raises:
            ValueError: The file cannot be written.
        """
        rows, count = self._rows, len(self)
        names = [os.fsencode(name) for name in rows.positions]
        ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        tensors = {
            "codes": rows.codes[:count],
            "names": np.frombuffer(b"".join(names), np.uint8),
            "ends": np.asarray(ends, "<i8"),
            "stamps": np.asarray(rows.stamps[:count], "<i8"),
        }
        if rows.vectors is not None:
            tensors["vectors"] = rows.vectors[:count]
        about = {
            "format": FORMAT,
            "num_features": self.num_features,
            "vectors": self.vectors,
            "network": self.network,
        }
        write_tensors(path_of(path), tensors, {"burn_index": json.dumps(about)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Index:
        """Read an index. The file may come from a stranger: everything in it is checked.

        Raises:
            ModelError: The file is not an index, or is damaged.
            OSError: The file cannot be read.
        """
        there = path_of(path)
        with in_file(there), reading(there):
            if there.is_dir():
                raise ModelError(f"a folder: `burn-engine index {there} FILE` makes an index of it")
            tensors, metadata = read_tensors(there, "burn_index", INDEX)
            return cls._of(metadata, tensors)

    @classmethod
    def _of(cls, about: Any, tensors: dict[str, NDArray[Any]]) -> Index:
        if not isinstance(about, dict) or set(about) != _ABOUT:
            raise ModelError("its description is damaged")
        if type(about["format"]) is not int or about["format"] != FORMAT:
            raise ModelError(
                f"not an index of format {FORMAT}: a newer burn-engine may have made it"
            )
        if type(about["num_features"]) is not int:
            raise ModelError("its description is damaged")
        try:
            index = cls(about["num_features"], vectors=about["vectors"], network=about["network"])
        except (ValueError, TypeError) as error:
            raise ModelError(f"its description is damaged: {error}") from None
        names = _names(tensors.get("names"), tensors.get("ends"))
        expected = {
            "codes": (np.dtype("u1"), (len(names), index._code_bytes)),
            "names": (np.dtype("u1"), None),
            "ends": (np.dtype("<i8"), (len(names),)),
            "stamps": (np.dtype("<i8"), (len(names), 2)),
        }
        if index._rows.vectors is not None:
            expected["vectors"] = (index._rows.vectors.dtype, (len(names), index.num_features))
        if set(tensors) != set(expected):
            raise ModelError(f"its tensors are not {', '.join(sorted(expected))}")
        for name, (dtype, shape) in expected.items():
            if tensors[name].dtype != dtype or shape not in (None, tensors[name].shape):
                raise ModelError(f"tensor {name} has another dtype or shape than its index")
        spare = 8 * index._code_bytes - index.num_features
        if spare and len(names) and (tensors["codes"][:, -1] >> (8 - spare)).any():
            raise ModelError("codes have bits after the last feature")
        for part in np.array_split(
            tensors.get("vectors", np.ones((1, 1))), 1 + len(names) // 65_536
        ):
            if not (np.isfinite(part).all() and part.any(axis=1).all()):
                raise ModelError("a vector is not finite, or has length 0")
        index._rows = _Rows(
            {name: position for position, name in enumerate(names)},
            tensors["codes"],
            tensors["stamps"].astype(np.int64),
            tensors.get("vectors"),
        )
        return index


class _Rows(NamedTuple):
    """What an index holds; the arrays may have more rows, which are not of it.

    Attributes:
        positions: position of each name, in order.
        codes: uint8 (n, bytes).
        stamps: int64 (n, 2).
        vectors: float16 or float32 (n, features), or None.
    """

    positions: dict[str, int]
    codes: NDArray[np.uint8]
    stamps: NDArray[np.int64]
    vectors: NDArray[Any] | None


def _extended(array: NDArray[Any], count: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Return an array with rows behind its first `count`; it has room for as many again."""
    end = count + len(rows)
    if end > len(array):
        grown = np.empty((max(end, 2 * count), array.shape[1]), array.dtype)
        grown[:count] = array[:count]
        array = grown
    array[count:end] = rows
    return array


def _check_name(name: object) -> None:
    """Raise ValueError for what no file of an index could hold as a name."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{shown(name)} is not a name")
    try:
        same = os.fsdecode(os.fsencode(name)) == name
    except UnicodeEncodeError:
        same = False
    if not same:
        raise ValueError(f"{shown(name)} cannot be the name of a file")


def _names(stored: NDArray[Any] | None, ends: NDArray[Any] | None) -> list[str]:
    """Return the names that are stored as bytes, one after the other, with each one's end."""
    if stored is None or ends is None or stored.ndim != 1 or ends.ndim != 1:
        raise ModelError("it has no names")
    if ends.dtype.kind != "i" or stored.dtype != np.uint8:
        raise ModelError("its names have another dtype than those of an index")
    begins = np.concatenate([[0], ends])[:-1]
    if len(ends) and ((ends <= begins).any() or ends[0] < 1 or ends[-1] != len(stored)):
        raise ModelError("the ends of its names are not in order")
    data = stored.tobytes()
    names = [os.fsdecode(data[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    if len(set(names)) != len(names):
        raise ModelError("a name is in it twice")
    return names
