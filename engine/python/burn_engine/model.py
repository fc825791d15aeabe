"""Loads a packed file and runs it, with the compiled core or the NumPy reference."""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burn_engine import reference
from burn_engine.errors import ModelError, in_file
from burn_engine.format import (
    Floats,
    GlobalMean,
    ImageSize,
    Linear,
    Program,
    parse_program,
    read_bytes,
)
from burn_engine.images import ImagesLike, read_images

if TYPE_CHECKING:
    from burn_engine import _core

MAX_THREADS = 256

_KEPT_PLANS = 8
_KEPT_THREADS = 64
_KEPT_BYTES = 2**29


def load(path: str | os.PathLike[str], threads: int = 1, isa: str | None = None) -> Model:
    """Load a packed file, written by `burn pack`.

    Args:
        path: the file.
        threads: threads of one call, 1 to 256, at most as many as there are processors. The
            reference leaves them to NumPy.
        isa: instruction set, one of `isas()`; "reference" is the NumPy reference. Default: the
            environment variable BURN_ENGINE_ISA, else the best that this processor has.

    Raises ModelError for a file that breaks any rule of its format, OSError for one that cannot be
    read, ValueError for other arguments. Warns (RuntimeWarning) where the compiled core is missing
    and the reference runs in its place.
    """
    with in_file(path):
        return load_bytes(read_bytes(path), threads, isa)


def load_bytes(data: bytes, threads: int = 1, isa: str | None = None) -> Model:
    """The same from the bytes of a packed file."""
    if not (type(threads) is int and 1 <= threads <= MAX_THREADS):
        raise ValueError(f"threads {threads!r} is not an integer from 1 to {MAX_THREADS}")
    core, name = _choose(isa)
    program = parse_program(data)
    if core is None:
        return Model(program, _Reference(program))
    try:
        native = core.Model(data, name)
    except ValueError as error:
        raise ModelError(str(error)) from None
    return Model(program, _Native(native, program, threads))


def isas() -> list[str]:
    """What `load` takes as isa on this machine, best first."""
    core, _ = _find_core()
    return [*(core.supported_isas() if core is not None else ()), "reference"]


class Model:
    """A packed network. Made by `load`; several threads may use it at the same time.

    Attributes:
        classes: names of the outputs; empty where the network has no classifier.
        num_features: number of features.
        layers: names of the layers, in the order they run.
        image: (resize, size) in pixels, how a photograph becomes an input: its short side is
            resized, then the centre square cut out. None where the file does not say.
        origin: what was packed, for people. None where the file does not say.
        backend: "native" or "reference".
        isa: the instruction set that runs; "" for the reference.
    """

    def __init__(self, program: Program, backend: _Backend) -> None:
        self.classes: tuple[str, ...] = program.classes
        self.num_features: int = program.layers[program.features].channels
        self.layers: tuple[str, ...] = tuple(layer.name for layer in program.layers)
        self.image: ImageSize | None = program.image
        self.origin: dict[str, Any] | None = program.origin
        self.backend: str = backend.name
        self.isa: str = backend.isa
        self._features = program.features
        self._backend = backend

    def __repr__(self) -> str:
        outputs = f"{len(self.classes)} classes" if self.classes else "no classes"
        return (
            f"<Model: {len(self.layers)} layers, {self.num_features} features, {outputs}, "
            f"{self.isa or self.backend}>"
        )

    def __call__(self, images: ImagesLike) -> Floats:
        """Class scores of images, or their features where the network has no classes.

        Args:
            images: one of

                - an array (n, h, w, 3), red, green, blue, as uint8 or as float32 or float64 on the
                  scale 0 to 1, in any order in memory; h and w in 1 … 16,384, h · w ≤ 2²⁶. Arrays
                  are inputs already and are neither resized nor cropped;
                - the path (str or Path) of a photograph, or a PIL image, which are turned upright,
                  resized and cropped as `image` says. A .npy file holds one array (h, w, 3). PPM
                  and PGM of the right size need NumPy alone, everything else Pillow;
                - one array (h, w, 3);
                - a list or tuple of the last two, whose inputs must come out at one size.

                A single image gives a result without a batch axis, a list always one with it.

        Returns:
            float32 (n, classes) or (n, num_features).

        Raises:
            ValueError: for other images, for a file that is no image, and where Pillow is missing.
            OSError: for a file that cannot be read.
        """
        return self._run(images, len(self.layers) - 1)

    def features(self, images: ImagesLike) -> Floats:
        """Features of images (as `__call__` takes them): float32 (n, num_features)."""
        return self._run(images, self._features)

    def layer(self, images: ImagesLike, name: str) -> Floats:
        """Output of the layer `name`, one of `layers`, for images (as `__call__` takes them).

        Returns float32 (n, h', w', channels) for convolutions, else (n, channels). Raises
        ValueError for an unknown name.
        """
        if name not in self.layers:
            raise ValueError(f"there is no layer {name!r}, there are {', '.join(self.layers)}")
        return self._run(images, self.layers.index(name))

    def _run(self, images: ImagesLike, layer: int) -> Floats:
        batch, single = read_images(images, self.image)
        outputs = self._backend.run(batch, layer)
        return outputs[0] if single else outputs


class _Backend(Protocol):
    name: str
    isa: str

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        """C-contiguous uint8 or float32 (n, h, w, 3) -> the output of a layer, by index."""
        ...


class _Reference:
    name = "reference"
    isa = ""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        return reference.run(self._program, images, layer)


class _Native:
    """The compiled core. A plan serves one call at a time, so each call borrows one."""

    name = "native"

    def __init__(self, model: _core.Model, program: Program, threads: int) -> None:
        self.isa = model.isa
        self._model = model
        self._gives_vectors = [isinstance(one, GlobalMean | Linear) for one in program.layers]
        self._threads = threads
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._free: list[tuple[tuple[int, int, int], _core.Plan]] = []  # last used first

    def run(self, images: NDArray[Any], layer: int) -> Floats:
        count, height, width, _ = images.shape
        key = (height, width, layer)
        if os.getpid() != self._process:  # forked: the plans' threads stayed behind
            self._forget_plans()
        plan = self._take(key)
        if plan is None:
            plan = self._model.plan(height, width, self._threads, layer)
        outputs = plan.run(images) if count else np.empty((0, *plan.shape), np.float32)
        self._give_back(key, plan)
        return outputs[:, 0, 0] if self._gives_vectors[layer] else outputs

    def _take(self, key: tuple[int, int, int]) -> _core.Plan | None:
        with self._lock:
            for index, (found, plan) in enumerate(self._free):
                if found == key:
                    del self._free[index]
                    return plan
        return None

    def _give_back(self, key: tuple[int, int, int], plan: _core.Plan) -> None:
        with self._lock:
            self._free.insert(0, (key, plan))
            del self._free[max(1, min(_KEPT_PLANS, _KEPT_THREADS // self._threads)) :]
            while len(self._free) > 1 and sum(p.num_bytes for _, p in self._free) > _KEPT_BYTES:
                self._free.pop()


def _find_core() -> tuple[ModuleType | None, str]:
    """The compiled core, or None and why it is not there."""
    try:
        return importlib.import_module("burn_engine._core"), ""
    except ImportError as error:
        return None, str(error)


def _choose(isa: str | None) -> tuple[Any, str]:
    """The compiled core and its instruction set, or (None, "reference")."""
    source = "isa"
    if isa is None:
        isa = os.environ.get("BURN_ENGINE_ISA") or None
        source = "BURN_ENGINE_ISA"
    core, reason = _find_core()
    if isa is None and core is None:
        warnings.warn(
            "burn-engine runs its NumPy reference, which is slow, because the compiled core is "
            f"missing ({reason}). Install a C++ compiler and install burn-engine anew, with "
            "pip's --force-reinstall --no-cache-dir --no-binary burn-engine",
            RuntimeWarning,
            stacklevel=4,
        )
        return None, "reference"
    there_are = isas()
    if isa is not None and isa not in there_are:
        raise ValueError(f"{source} {isa!r} is not there; there are {', '.join(there_are)}")
    if isa == "reference":
        return None, "reference"
    return core, isa or there_are[0]
