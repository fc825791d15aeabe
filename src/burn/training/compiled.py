"""Training passes of a network through torch.compile: one graph, or none.

torch.compile may break a function into graphs, and compile what it calls piece by piece. burn's
autograd functions for uncompiled passes rely on what PyTorch's own operators return, and compiled
ones return something else. Therefore a pass is compiled whole, or not at all.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from burn.backbones.base import Backbone
from burn.core.errors import shortened

_LOGGERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.utils.cpp_extension")
# The first PyTorch that was seen to compile burn's layers. 2.11 and 2.12 refuse operations that
# overwrite channels-last maps, and without those end in a segmentation fault in bfloat16.
_LEAST = (2, 14)


def compiles_layers() -> bool:
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _LEAST


def compile_training(backbone: Backbone, report: Callable[[str], None]) -> None:
    """Run a backbone's training passes through torch.compile, from now on.

    Evaluation is not compiled, which would take as long again. Neither is a batch of another length
    than the first of its size in pixels: the incomplete last batch of an epoch. Frozen networks run
    as a folded copy, whose exact bits a cache stores. Where the network cannot be compiled, for
    want of a C++ compiler or of a newer PyTorch for instance, it trains uncompiled, and `report`
    receives one line.
    """
    if not compiles_layers():
        report(
            f"--compile: torch {torch.__version__} does not compile this network safely, which "
            f"trains without: use torch {'.'.join(map(str, _LEAST))} or later"
        )
        return
    plain = backbone.forward

    def whole(images: Tensor) -> Tensor:
        with WideBatchNorm():
            return plain(images)

    compiled: Callable[[Tensor], Tensor] | None = torch.compile(
        whole, fullgraph=True, dynamic=False
    )
    lengths: dict[tuple[Any, ...], int] = {}  # of the first batch of each size and type of images

    def forward(images: Tensor) -> Tensor:
        nonlocal compiled
        if compiled is None or not backbone.training:
            return plain(images)
        kind = (images.shape[1:], images.dtype)
        has_lengths = kind in lengths
        if lengths.setdefault(kind, len(images)) != len(images):
            return plain(images)
        if has_lengths:
            return compiled(images)
        # Compiling happens before anything is computed, so a pass that fails has changed nothing.
        try:
            with _quiet():
                return compiled(images)
        except _compile_errors() as error:
            compiled = None
            cause = getattr(error, "inner_exception", error)
            what, _, _ = str(cause).strip().partition("\n")
            reason = shortened(f"{type(cause).__name__}: {what}", 200)
            report(f"--compile: the network cannot be compiled and trains without: {reason}")
            return plain(images)

    backbone.forward = forward


class WideBatchNorm(TorchFunctionMode):
    """Within it, BN takes maps of less than four bytes a number as float32, and rounds the result.

    So does PyTorch's uncompiled BN on a CPU, whose statistics are float32. The compiled one hands
    them to its backward pass in the map's type: a mean of 32 standard deviations is then wrong by
    up to an eighth of one, and the gradient of BN's weight by a third. The conversions become part
    of the compiled BN.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and args and args[0].itemsize < 4:
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        return func(*args, **kwargs)


def _compile_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return TorchDynamoException, CppCompileError, InvalidCxxCompiler


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch.compile logs and warns of from the user, unless TORCH_LOGS asks for it."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
