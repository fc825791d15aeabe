"""Training steps that are recorded once as a CUDA graph and then replayed (`--cuda-graphs`).

A graph starts the hundreds of short kernels of a small network's step at once. It repeats what was
recorded: the same kernels with the same memory and the same Python numbers. What changes from step
to step therefore lies in tensors that stay where they are: the batch, and the numbers that follow
the progress, such as λ. While a step is recorded, the method's functions of the progress are
replaced by others, which give tensors (`_NUMBERS`).

A step's forward and backward pass are recorded, without `Backbone.at_progress` before it. What
follows is not, because it decides, waits or depends on the number of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from burn.core.errors import GradientFlowError, UserError
from burn.core.types import Batch
from burn.methods.base import Method, StepOutput

WARM_UP = 3  # steps in which libraries choose algorithms and allocate what they keep
# Of each method whose steps can be recorded: its functions from the progress to a number in the
# loss, which while a step is recorded return tensors.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "burn": ("lam",), "byol": (), "s2bnn": (), "simclr": (), "supervised": (),
    "supervised_kl": (), "swav": (),
}  # fmt: skip
_SHUFFLED = "each step permutes its images in an order that is drawn on the CPU"


def why_not_recorded(name: str, config: Any) -> str | None:
    """Return why no step of a method with these settings can be recorded, or None if some can."""
    if name in ("mocov2", "infomin") or (name == "s2bnn" and config.contrastive):
        return _SHUFFLED
    return None if name in _NUMBERS else "it is not known what a step of it depends on"


def _phase(method: Method, progress: float) -> Hashable | None:
    """Return a value that is the same for steps whose operations are the same.

    A recorded step can be replayed as long as it does not change. None stands for a step that
    cannot be recorded: one of SwAV while its queue fills, and while `after_step` must know the
    frozen prototypes.
    """
    from burn.methods.swav.method import Swav  # here, because lightly takes a second to import

    if not isinstance(method, Swav):
        return ()
    queues = method.config.queue > 0 and progress >= method.config.queue_from
    if progress < method.config.freeze_prototypes or (queues and not method.queue_is_full()):
        return None
    return queues


class CudaRecorder:
    """Records CUDA graphs. Tests on a CPU have a recorder of their own.

    A stream other than the default one is needed for recording. The steps before it run on another
    stream too, as torch asks for: what they allocate must not belong to the default one.
    """

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run a step as it will be recorded."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            run()
        current.wait_stream(stream)

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record the kernels of `run`, which are not executed; return what executes them."""
        graph = torch.cuda.CUDAGraph()
        # By default a call in any thread would fail, and the one that pins batches makes some.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph.replay


class StepGraph:
    """Forward and backward pass of a method, recorded when it has run a few times.

    The method is in training mode. `num_images` are those of a whole batch: steps with fewer, where
    some could not be read, are not recorded.
    """

    def __init__(self, method: Method, name: str, num_images: int, recorder: CudaRecorder) -> None:
        self._method, self._name, self._num_images = method, name, num_images
        self._recorder = recorder
        self._forget(None)

    def _forget(self, key: Hashable | None) -> None:
        self._key, self._warm = key, 0
        self._replay: Callable[[], None] | None = None
        self._batch: Batch | None = None
        self._numbers: dict[str, Tensor] = {}
        self._output: StepOutput | None = None
        self._gradients: list[tuple[Tensor, Tensor | None]] = []

    def step(self, batch: Batch, progress: float) -> StepOutput | None:
        """Compute the loss of a batch and all gradients, which `give_gradients` hands out.

        Returns the method's output, detached, whose tensors are the caller's; or None if the step
        is one that must run as without graphs, and nothing was computed. UserError says why a step
        cannot be recorded.
        """
        phase = _phase(self._method, progress)
        if phase is None or len(batch.indices) != self._num_images or batch.cached is not None:
            return None
        key = (phase, [tuple(tensor.shape) for tensor in _tensors(batch)])
        if key != self._key:
            self._forget(key)
        self._take(batch, progress)
        if self._replay is None:
            self._begin(progress)
        else:
            self._replay()
        assert self._output is not None
        return _mapped(self._output, torch.clone)

    def give_gradients(self) -> None:
        """Set the parameters' gradients to those of the last step."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def _take(self, batch: Batch, progress: float) -> None:
        """Copy to where the recorded kernels read."""
        if self._batch is None:
            self._batch = batch.mapped(torch.clone)
        else:
            for kept, new in zip(_tensors(self._batch), _tensors(batch), strict=True):
                kept.copy_(new)
        for name in _NUMBERS.get(self._name, ()):
            if name not in self._numbers:
                device = batch.views[0].device
                self._numbers[name] = torch.empty((), dtype=torch.float64, device=device)
            self._numbers[name].fill_(getattr(self._method, name)(progress))

    def _begin(self, progress: float) -> None:
        """Run a step that is not recorded yet, or record it and run it."""
        run = partial(self._run, progress)
        parameters = list(self._method.parameters())
        self._method.zero_grad()  # so that recorded gradients get memory of the graph's own
        self._output, self._gradients = None, []
        if self._warm < WARM_UP:
            self._warm += 1
            self._recorder.warm_up(run)
        else:
            try:
                self._replay = self._recorder.record(run)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                said = " ".join(str(error).split())[:200]
                raise UserError(
                    f"--cuda-graphs: a step of method {self._name} cannot be recorded ({said}); "
                    "leave the option out"
                ) from error
            self._replay()
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]

    def _run(self, progress: float) -> None:
        """Run the forward and the backward pass, each in the number format of an ordinary step."""
        assert self._batch is not None
        # Autocast keeps its casts of weights. None may be older than the recording, and none may be
        # used after it, because a replay casts the weights of its own step.
        torch.clear_autocast_cache()
        with _giving(self._method, self._numbers):
            output: StepOutput = self._method(self._batch, progress)
        torch.clear_autocast_cache()
        if not output.loss.requires_grad:
            raise GradientFlowError("the loss has no gradient: it is detached from all parameters")
        with torch.autocast(self._batch.views[0].device.type, enabled=False):
            output.loss.backward()
        self._output = _mapped(output, torch.detach)


@contextmanager
def _giving(method: Method, numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the method's functions of these names return these tensors."""
    for name, tensor in numbers.items():
        setattr(method, name, lambda progress, tensor=tensor: tensor)
    try:
        yield
    finally:
        for name in numbers:
            delattr(method, name)


def _tensors(batch: Batch) -> list[Tensor]:
    labels = () if batch.labels is None else (batch.labels,)
    return [*batch.views, *batch.teacher_views, *labels]


def _mapped(output: StepOutput, change: Callable[[Tensor], Tensor]) -> StepOutput:
    probabilities = output.target_probabilities
    return StepOutput(
        change(output.loss),
        {name: change(term) for name, term in output.terms.items()},
        change(output.features),
        None if probabilities is None else change(probabilities),
    )
