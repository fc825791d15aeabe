"""A GPU that is not there: tensors that say they are on `cuda` and hold their numbers on the CPU.

Code that runs on them takes the branches that it takes on a GPU, and meets the errors that it would
meet there: operations on tensors of two devices, and random numbers of the device's own generator,
which no resume file holds. `Gpu` counts kernels, and the times that Python waits for a result. What
it does not show: whether a GPU has the kernels, how they round, and how long they take.

(FakeTensorMode cannot do this with a PyTorch that is built for CUDA on a machine without it: its
backward pass asks the driver for a context. To C++ these tensors are on the CPU.)
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import torch
from torch import Tensor, distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

_clip_grad: Any = importlib.import_module("torch.nn.utils.clip_grad")
_optimizer: Any = importlib.import_module("torch.optim.optimizer")
M = TypeVar("M", bound=nn.Module)
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
_GROUPS = "_group_tensors_by_device_and_dtype"
_SOURCE = str(Path(__file__).parents[2] / "src")

# Operations that only describe memory anew, or reserve it: no kernel runs.
_NO_KERNEL = {
    "view", "_unsafe_view", "expand", "t", "transpose", "permute", "slice", "select", "split",
    "split_with_sizes", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "unbind", "empty",
    "empty_like", "new_empty", "empty_strided", "new_empty_strided", "unfold", "_reshape_alias",
    "lift_fresh", "_local_scalar_dense", "empty_permuted",
}  # fmt: skip
_RANDOM = {
    "rand", "randn", "randint", "randperm", "bernoulli", "bernoulli_", "normal_", "uniform_",
    "rand_like", "randn_like", "randint_like", "random_", "multinomial", "native_dropout",
    "exponential_", "normal",
}  # fmt: skip
# Python waits for these: for a number, or for the shape of the result.
_WAITING = {
    "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "nms", "_unique2",
    "unique_dim",
}  # fmt: skip
_NUMBERS = {"_local_scalar_dense", "equal", "is_nonzero"}  # what they give is no tensor


def _batch_norm_stats(y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    others = [dim for dim in range(y.ndim) if dim != 1]
    variance, mean = torch.var_mean(y.float(), dim=others, correction=0)
    return mean, (variance + eps).rsqrt()


# torch has no such kernels for the CPU.
_ONLY_CUDA: dict[str, Any] = {"batch_norm_stats": _batch_norm_stats}


class OtherDevice(AssertionError):
    """An operation got tensors of both devices, or random numbers of the GPU."""


class OnGpu(Tensor):
    """A tensor of the pretended GPU; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, layout=held.layout, device=CPU,
        )  # fmt: skip
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    is_cuda, is_cpu = True, False  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnGpu({tuple(self.shape)}, {self.dtype})"

    # To C++ the tensor is on the CPU, where these would do nothing.

    def cpu(self, memory_format: Any = torch.preserve_format) -> Tensor:
        return self.to(CPU)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], OnGpu):
            args = (CUDA, args[0].dtype, *args[1:])
        device, dtype, non_blocking, memory = cast(Any, torch._C)._nn._parse_to(*args, **kwargs)
        if device is None or device.type == "cuda":
            if dtype in (None, self.dtype) and memory is None:
                return self
            return Tensor.to(self, dtype=dtype or self.dtype, memory_format=memory)
        return _ToCpu.apply(self, dtype or self.dtype, non_blocking)  # type: ignore[no-any-return]

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, None)


class _ToCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: OnGpu, dtype: torch.dtype, non_blocking: bool) -> Tensor:
        if not non_blocking and (gpu := Gpu.current):
            gpu.wait("copy to the CPU")
        return x.held.detach().to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return OnGpu(grads[0]), None, None


class Gpu(TorchDispatchMode):
    """Counts what a GPU would do in this context, and raises OtherDevice.

    Attributes:
        kernels: Number of operations that compute on the GPU.
        names: The same for each operation.
        waits: The functions of burn's in which Python waited for the GPU, MODULE.FUNCTION, and
            how often.
        exchanges: What was exchanged with other processes, by the device of the tensors ("cuda" or
            "cpu").
    """

    current: Gpu | None = None

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.names: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.exchanges: Counter[str] = Counter()
        self.seeded = False  # whether the GPU's own generator is seeded before each step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In inference mode operations come here before they are taken apart into simpler ones.
        if func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs or {})
        return _run(func, args, kwargs or {}, self)

    def wait(self, operation: str) -> None:
        self.waits[_where()] += 1

    def see(self, name: str, args: Any, kwargs: Any, tensors: list[Tensor], target: Any) -> None:
        """Judge an operation that has to do with the GPU."""
        # A tensor of one number may be a kernel's argument.
        foreign = [t for t in tensors if not isinstance(t, OnGpu) and t.ndim]
        ours = len(foreign) < len(tensors)
        if name not in ("_to_copy", "copy_") and ours and foreign:
            if name not in ("index", "index_put_", "index_put"):
                raise OtherDevice(f"{name} of tensors on the CPU and on the GPU")
            if not isinstance(args[0], OnGpu):
                raise OtherDevice(f"{name} of a tensor on the CPU by indices on the GPU")
            self.wait(name)  # an index on the CPU is copied
        if name in _RANDOM and not self.seeded:
            raise OtherDevice(f"{name} draws from the GPU's own generator")
        indices = args[1] if name == "index" else ()
        masks = any(isinstance(i, OnGpu) and i.dtype == torch.bool for i in indices)
        if name in _WAITING or masks:
            self.wait(name)
        to_cpu = name == "copy_" and isinstance(args[1], OnGpu) and not isinstance(args[0], OnGpu)
        if to_cpu and not any(args[2:]) and not kwargs.get("non_blocking"):
            self.wait(name)
        # A copy to the GPU, too, waits for what that was given before, unless it need not be done
        # when the call returns.
        copied = {"_to_copy": args[:1], "copy_": args[1:2]}.get(name, ())
        to_gpu = bool(copied) and not isinstance(copied[0], OnGpu)
        if to_gpu and not any(args[2:]) and not kwargs.get("non_blocking"):
            self.wait(name)
        if name not in _NO_KERNEL:
            self.kernels += 1
            self.names[name] += 1


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """As torch's tree_map, which takes half of the time of a test."""
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, part) for part in value])
    if isinstance(value, dict):
        return {name: _mapped(change, part) for name, part in value.items()}
    return change(value)


def _run(func: Any, args: Any, kwargs: dict[str, Any], gpu: Gpu | None) -> Any:
    name = func._schema.name.partition("::")[2]
    tensors = [value for value in _leaves((args, kwargs)) if isinstance(value, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    # What C++ makes like an OnGpu it asks for on the CPU, where it believes that to be.
    on_gpu = bool(ours) or (asked is not None and asked.type == "cuda")
    if gpu is not None and func.namespace == "c10d":
        gpu.exchanges["cuda" if on_gpu else "cpu"] += 1
    if on_gpu and gpu is not None:
        gpu.see(name, args, kwargs, tensors, asked)
    plain_args, plain = _mapped(
        lambda t: t.held if isinstance(t, OnGpu) else t, (tuple(args), dict(kwargs))
    )
    if asked is not None:
        plain["device"] = CPU
    plain.pop("pin_memory", None)
    found = _ONLY_CUDA.get(name, func)(*plain_args, **plain)
    if not on_gpu or name in _NUMBERS:
        return found
    inputs = {id(tensor.held): tensor for tensor in ours}
    inputs |= {id(tensor): tensor for tensor in tensors if not isinstance(tensor, OnGpu)}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return inputs[id(value)] if id(value) in inputs else OnGpu(value)

    return _mapped(wrapped, found)


class Event:
    """What a stream has done so far."""

    def record(self) -> None:
        self.kernels = Gpu.current.kernels if Gpu.current else 0

    def synchronize(self) -> None:
        """Wait; not for what the GPU was given since, of which a step has hundreds of kernels."""
        if (gpu := Gpu.current) and gpu.kernels - self.kernels < 100:
            gpu.wait("synchronize")


def _where() -> str:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_SOURCE):
            return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a library"


@contextmanager
def pretended() -> Iterator[Gpu]:
    """A GPU in this context, and autocast for it."""

    class Autocast(torch.autocast):
        def __init__(self, device_type: str, *args: Any, **named: Any) -> None:
            super().__init__("cpu", *args, **named)

    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def then_moved(make: Any) -> Any:
        # In C++ these ask for the device before anything is dispatched.
        def made(*args: Any, device: Any = None, **named: Any) -> Tensor:
            tensor = make(*args, **named)
            return tensor if device is None else tensor.to(device)

        return made

    group = _optimizer._group_tensors_by_device_and_dtype

    def grouped(lists: Any, *args: Any) -> Any:
        device = CUDA if isinstance(lists[0][0], OnGpu) else CPU
        return {(device, key[1]): found for key, found in group(lists, *args).items()}

    def is_enabled(*_: str) -> bool:
        return enabled("cpu")

    def dtype_of(_: str) -> torch.dtype:
        return dtype("cpu")

    def one_hot(x: Tensor, num_classes: int) -> Tensor:  # in C++ it counts on the CPU
        zeros = torch.zeros_like(x).unsqueeze(-1).repeat_interleave(num_classes, dim=-1)
        return zeros.scatter_(-1, x.unsqueeze(-1), 1)

    gpu = Gpu()
    with (
        mock.patch.object(torch.cuda, "_lazy_init"),
        mock.patch.object(torch.cuda, "Event", Event),
        # A module's `to` replaces parameters: C++ cannot put an OnGpu into one that is not.
        mock.patch.object(
            torch.__future__, "get_overwrite_module_params_on_conversion", return_value=True
        ),
        mock.patch.object(torch, "tensor", then_moved(torch.tensor)),
        mock.patch.object(torch, "as_tensor", then_moved(torch.as_tensor)),
        mock.patch.object(nn.functional, "one_hot", one_hot),
        # A view of a parameter would be an inference tensor, which C++ does not allow.
        mock.patch.object(torch, "inference_mode", torch.no_grad),
        mock.patch.object(_optimizer, _GROUPS, grouped),
        mock.patch.object(_clip_grad, _GROUPS, grouped),
        mock.patch.object(torch, "autocast", Autocast),
        mock.patch.object(torch, "is_autocast_enabled", is_enabled),
        mock.patch.object(torch, "get_autocast_dtype", dtype_of),
        mock.patch.object(Gpu, "current", gpu),
        gpu,
    ):
        yield gpu


@contextmanager
def group_of_two() -> Iterator[None]:
    """A group in which this process is the first of two, and the other one has just the same.

    But sums over the group are this process's alone.
    """
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def on_gpu(module: M) -> M:
    """The module, in place, on the pretended GPU."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter, OnGpu):
                if id(parameter) not in moved:
                    held = OnGpu(parameter.detach().clone())
                    moved[id(parameter)] = nn.Parameter(held, parameter.requires_grad)
                part._parameters[name] = moved[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, OnGpu):
                part._buffers[name] = OnGpu(buffer.clone())
    return module
