"""Loads a packed file and runs it with the compiled core or the NumPy reference."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from burn_engine import reference
from burn_engine.errors import ModelError, in_file, shown
from burn_engine.format import (
    Floats,
    GlobalMean,
    ImageSize,
    Linear,
    Program,
    parse_program,
)
from burn_engine.images import ImagesLike, read_images
from burn_engine.native import chosen_core
from burn_engine.pretrained import read_model
from burn_engine.vectors import normalized, signs

if TYPE_CHECKING:
    from burn_engine import _core

MAX_THREADS = 256

_AT_ONCE = 64  # images of a list that `embed` reads into memory

_KEPT_PLANS = 8
_KEPT_THREADS = 64
_KEPT_BYTES = 2**29


def load(path: str | os.PathLike[str], threads: int = 1, isa: str | None = None) -> Model:
    """Load a packed file, written by `burn pack`, or a pretrained network by its name.

    It warns (RuntimeWarning) if the compiled core is missing and the slow reference runs instead.

    Args:
        path: The file, or the name of a network that comes with the package, such as "photos",
            where no file has that name.
        threads: Number of threads of one call, 1 to 256; no more are used than there are
            processors. The reference leaves its threads to NumPy.
        isa: Instruction set, one of `isas()`; "reference" is the NumPy reference. None for the
            environment variable BURN_ENGINE_ISA or, if it is unset or empty, the best that this
            processor supports.

    Raises:
        ModelError: The file breaks a rule of its format, or the pretrained network's is damaged.
        OSError: The file cannot be read.
        TypeError: `path` is not a path.
        ValueError: `threads` is out of range, or the instruction set is not available.
    """
    with in_file(path):
        return load_bytes(read_model(path), threads, isa)


def load_bytes(data: bytes, threads: int = 1, isa: str | None = None) -> Model:
    """Load a packed network from the bytes of its file; see `load`."""
    whole = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if not (whole and 1 <= threads <= MAX_THREADS):
        raise ValueError(f"threads {shown(threads)} is not an integer from 1 to {MAX_THREADS}")
    core, name = chosen_core(isa)
    program = parse_program(data)
    if core is None:
        return Model(program, _Reference(program))
    try:
        native = core.Model(data, name)
    except ValueError as error:
        raise ModelError(str(error)) from None
    return Model(program, _Native(native, program, int(threads)))


class Model:
    """A packed network, created by `load`. Several threads may use it at the same time.

    Attributes:
        classes: names of the outputs; empty if the network has no classifier.
        num_features: number of features.
        layers: names of the layers, in the order in which they run.
        image: (resize, size) in pixels: the short side of a photograph is resized to the first,
            and a square of the second cut out of its centre. None if the file does not say.
        origin: description, for people, of what was packed. None if the file does not say.
        backend: "native" or "reference".
        isa: name of the instruction set that runs; "" for the reference.
        fingerprint: SHA-256 of all that features depend on, hexadecimal. Networks that differ in
            their classifier alone have the same.
    """

    def __init__(self, program: Program, backend: _Backend) -> None:
        self.classes: tuple[str, ...] = program.classes
        self.num_features: int = program.layers[program.features].channels
        self.layers: tuple[str, ...] = tuple(layer.name for layer in program.layers)
        self.image: ImageSize | None = program.image
        self.origin: dict[str, Any] | None = program.origin
        self.backend: str = backend.name
        self.isa: str = backend.isa
        self.fingerprint: str = program.fingerprint()
        self._features = program.features
        self._backend = backend

    def __repr__(self) -> str:
        outputs = f"{len(self.classes)} classes" if self.classes else "no classes"
        return (
            f"<Model: {len(self.layers)} layers, {self.num_features} features, {outputs}, "
            f"{self.isa or self.backend}>"
        )

    def __call__(self, images: ImagesLike) -> Floats:
        """Compute the class scores of images, or their features if the network has no classes.

        Args:
            images: One of

                - an array (n, h, w, 3), red, green, blue, as uint8, or as float32 or float64 from
                  0 to 1, in any order in memory; h and w in 1 … 16,384, h · w ≤ 2²⁶. Arrays are
                  used unchanged: they are neither resized nor cropped;
                - the path (str or Path) of a photograph, or a PIL image, which is turned upright,
                  resized and cropped as `image` says. A .npy file holds one array (h, w, 3). PPM
                  and PGM files need only NumPy, all others Pillow;
                - one array (h, w, 3);
                - a list or tuple of the last two, which must give inputs of one size.

        Returns:
            float32 (n, classes) or (n, num_features), without the batch axis for a single image. A
            list always gives a batch.

        Raises:
            ValueError: The images are of another kind, a file is not an image, or Pillow is needed
                and missing.
            OSError: A file cannot be read.
        """
        return self._run(images, len(self.layers) - 1)

    def features(self, images: ImagesLike) -> Floats:
        """Compute the features of images.

        Args:
            images: As in `__call__`, with the same errors.

        Returns:
            float32 (n, num_features), without the batch axis for a single image.
        """
        return self._run(images, self._features)

    def embed(self, images: ImagesLike) -> Floats:
        """Compute features of length 1, whose products are cosines.

        Args:
            images: As in `__call__`, with the same errors; a list is read 64 images at a time.

        Returns:
            float32 (n, num_features), without the batch axis for a single image.

        Raises:
            ValueError: The features of an image are not finite, or all 0.
        """
        if isinstance(images, list | tuple) and len(images) > _AT_ONCE:
            parts = [images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE)]
            features = np.concatenate([self.features(cast("ImagesLike", part)) for part in parts])
        else:
            features = self.features(images)
        vectors = normalized(np.atleast_2d(features))
        return vectors if features.ndim == 2 else vectors[0]

    def codes(self, images: ImagesLike) -> NDArray[np.uint8]:
        """Compute the signs of features, one bit each, which `burn_engine.Index` searches.

        Args:
            images: As in `embed`, with the same errors.

        Returns:
            uint8 (n, ⌈num_features / 8⌉), without the batch axis for a single image. Feature i is
            bit i mod 8, from the least significant, of byte i // 8: 1 where it is at least 0.
        """
        vectors = self.embed(images)
        codes = signs(np.atleast_2d(vectors))
        return codes if vectors.ndim == 2 else codes[0]

    def layer(self, images: ImagesLike, name: str) -> Floats:
        """Compute the output of a layer.

        Args:
            images: As in `__call__`, with the same errors.
            name: One of `layers`.

        Returns:
            float32 (n, h', w', channels) for a convolution, otherwise (n, channels); without the
            batch axis for a single image.

        Raises:
            ValueError: The network has no layer of this name.
        """
        if not isinstance(name, str) or name not in self.layers:
            raise ValueError(
                f"there is no layer {shown(name)}; choose from {', '.join(self.layers)}"
            )
        return self._run(images, self.layers.index(name))

    def _run(self, images: ImagesLike, layer: int) -> Floats:
        batch, single = read_images(images, self.image)
        outputs = self._backend.run(batch, layer)
        return outputs[0] if single else outputs


class _Backend(Protocol):
    name: str
    isa: str

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        """Compute the output of a layer.

        Args:
            images: C-contiguous (n, h, w, 3), uint8 or float32.
            layer: Index of the layer.

        Returns:
            float32 (n, h', w', channels) or (n, channels).
        """
        ...


class _Reference:
    name = "reference"
    isa = ""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        return reference.run(self._program, images, layer)


class _Native:
    """The compiled core. A plan serves one call at a time, so each call borrows a plan."""

    name = "native"

    def __init__(self, model: _core.Model, program: Program, threads: int) -> None:
        self.isa = model.isa
        self._model = model
        self._gives_vectors = [isinstance(layer, GlobalMean | Linear) for layer in program.layers]
        self._threads = threads
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._free: list[tuple[tuple[int, int, int], _core.Plan]] = []  # most recently used first

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        count, height, width, _ = images.shape
        key = (height, width, layer)
        if os.getpid() != self._process:  # forked: only the parent has the plans' threads
            self._forget_plans()
        plan = self._take(key)
        if plan is None:
            plan = self._model.plan(height, width, self._threads, layer)
        outputs = plan.run(images) if count else np.empty((0, *plan.shape), np.float32)
        self._give_back(key, plan)
        return outputs[:, 0, 0] if self._gives_vectors[layer] else outputs

    def _take(self, key: tuple[int, int, int]) -> _core.Plan | None:
        with self._lock:
            for index, (plan_key, plan) in enumerate(self._free):
                if plan_key == key:
                    del self._free[index]
                    return plan
        return None

    def _give_back(self, key: tuple[int, int, int], plan: _core.Plan) -> None:
        with self._lock:
            self._free.insert(0, (key, plan))
            del self._free[max(1, min(_KEPT_PLANS, _KEPT_THREADS // self._threads)) :]
            while len(self._free) > 1 and sum(p.num_bytes for _, p in self._free) > _KEPT_BYTES:
                self._free.pop()
