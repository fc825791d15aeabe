"""What records a step on the pretended GPU, and replays it as a CUDA graph would.

A graph repeats the same kernels on the same memory with the same numbers of Python's. So does this:
it notes each operation with its arguments, runs it again on the same tensors, and copies the result
to where the first one was. Python does not run in between, so whatever a step takes from it stays
as it was when the step was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pretend import Gpu, OnGpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from burn.training.graphs import CudaRecorder


class NotRecorded(AssertionError):
    """A step that a CUDA graph cannot record: it waits, or copies between GPU and CPU."""


class Recording(TorchDispatchMode):
    """Notes what runs in this context.

    Attributes:
        operations: Function, arguments, and the tensors that it gave.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[OnGpu]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(found)
        if func._schema.name.startswith("c10d"):
            raise NotRecorded(f"{func} in a recorded step")
        on_cpu = [t for t in given if not isinstance(t, OnGpu) and t.ndim]
        if on_cpu and any(isinstance(t, OnGpu) for t in (*given, *made)):
            raise NotRecorded(f"{func} of a tensor on the CPU in a recorded step")
        if any(isinstance(tensor, OnGpu) for tensor in (*given, *made)):
            places = {_place(tensor) for tensor in given if isinstance(tensor, OnGpu)}
            own = [t for t in made if isinstance(t, OnGpu) and _place(t) not in places]
            self.operations.append((func, args, kwargs, own))
        return found

    def replay(self) -> None:
        for func, args, kwargs, own in self.operations:
            made = _tensors(func(*args, **kwargs))
            if own:  # an operation in place, or one that only describes an argument anew, has none
                new = [tensor for tensor in made if isinstance(tensor, OnGpu)]
                for kept, tensor in zip(own, new, strict=True):
                    kept.held.copy_(tensor.held)


def _place(tensor: OnGpu) -> int:
    return tensor.held.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class PretendedRecorder(CudaRecorder):
    """Records on the pretended GPU, where recording also executes.

    Attributes:
        warm: Number of steps that were run before.
        recorded: Number of steps that were recorded.
        replayed: Number of steps that were replayed.
    """

    def __init__(self) -> None:
        self.warm = self.recorded = self.replayed = 0

    def warm_up(self, run: Callable[[], None]) -> None:
        self.warm += 1
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        gpu = Gpu.current
        assert gpu is not None
        before = gpu.waits.copy()
        recording = Recording()
        with recording:
            run()
        if gpu.waits != before:
            raise NotRecorded(f"a recorded step waits: {gpu.waits - before}")
        self.recorded += 1
        done = [True]  # the first replay, by recording

        def replay() -> None:
            self.replayed += 1
            if done:
                done.clear()
                return
            # What was recorded is what autograd and autocast had made of the step.
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                recording.replay()

        return replay
