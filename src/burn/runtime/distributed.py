"""Several processes that share one job, on one machine or many, or a single process.

The environment says which process is which: see `burn.runtime.launch`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from burn.core.errors import ReportedByMain, UserError
from burn.runtime.launch import ranks

T = TypeVar("T")

# Time to wait for a process that does not join, or that lists millions of files meanwhile. Where
# gloo waits, it notices the end of a process at once.
_PATIENCE = timedelta(minutes=30)
_SILENCE = 20.0  # seconds of waiting for other processes until this one prints that it waits
# Words of gloo's and NCCL's errors when another process has ended.
_LOST = re.compile("gloo|NCCL|[Cc]onnection|[Ss]ocket")
_PLACE = re.compile(r"^\[[^\]]*\] ?")  # gloo's file and line


def _say_waiting(count: int) -> None:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    minutes = _PATIENCE.total_seconds() / 60
    print(
        f"burn: process {os.environ.get('RANK')} of {count} waits at {address} for the others, up "
        f"to {minutes:.0f} minutes",
        file=sys.stderr,
    )


@dataclass(frozen=True)
class Processes:
    """The group of processes that share the job, and the place of this process in it."""

    device: torch.device  # of this process
    count: int = 1
    rank: int = 0  # of this process, from 0
    local_count: int = 1  # number of the processes that run on this machine

    @classmethod
    def start(cls, device: torch.device) -> Processes:
        """Join the group that the environment announces, if any; UserError says why that fails."""
        place = ranks()
        if place.count == 1:
            return cls(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if address := os.environ.get("MASTER_ADDR"):
            try:
                socket.getaddrinfo(address, None)
            except OSError as error:
                raise UserError(f"MASTER_ADDR {address} is unknown: {error.strerror}") from error
        waiting = threading.Timer(_SILENCE, _say_waiting, (place.count,))
        waiting.daemon = True
        waiting.start()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            distributed.init_process_group(backend, timeout=_PATIENCE)
            count, rank = distributed.get_world_size(), distributed.get_rank()
            return cls(device, count, rank, place.local_count)
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"the other processes cannot be joined: {reason}; check RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT, which torchrun, srun or --devices set"
            ) from error
        finally:
            waiting.cancel()

    @property
    def is_main(self) -> bool:
        """True in the process that writes and prints, which is the first."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> Any:
        """Return the module with its gradients averaged over the processes."""
        return module if self.count == 1 else DistributedDataParallel(module)

    def without_exchange(self, wrapped: Any) -> AbstractContextManager[None]:
        """Return a context in which a network that `wrap` returned only adds up its gradients."""
        return contextlib.nullcontext() if self.count == 1 else wrapped.no_sync()

    def all_reduce_max(self, value: float) -> float:
        """Return the largest `value` of all processes, which wait for each other here."""
        if self.count == 1:
            return value
        # On the CPU (gloo), the end of another process raises an error at once.
        tensor = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)

    def gather(self, value: T) -> list[T]:
        """Return every process's `value` in the order of their ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def run_on_main(self, work: Callable[[], T]) -> T | None:
        """Return what `work` returns on the first process, and None on the others, which wait.

        A UserError or OSError of it is raised as UserError, and on the others as ReportedByMain.
        """
        result, error = None, None
        if self.is_main:
            try:
                result = work()
            except UserError as raised:
                error = raised
            except OSError as raised:  # a full disk or a lack of permission
                error = UserError(f"{raised.filename}: {raised.strerror or raised}")
        failed = self.gather(None if error is None else str(error))[0]
        if error is not None:
            raise error
        if failed is not None:
            raise ReportedByMain(failed)
        return result

    def run_on_main_then_all(self, work: Callable[[], T]) -> T:
        """Run `work` on the first process and then on the others, so that it complains once."""
        results: list[T] = []
        self.run_on_main(lambda: results.append(work()))
        return results[0] if self.is_main else work()

    def fail(self, message: str) -> NoReturn:
        """Raise UserError in the first process, which reports it, ReportedByMain in others."""
        raise UserError(message) if self.is_main else ReportedByMain(message)

    @contextlib.contextmanager
    def report_lost_processes(self) -> Iterator[None]:
        """Turn the error of communication with a process that has ended into UserError."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            if self.count == 1 or not _LOST.search(reason):
                raise
            reason = _PLACE.sub("", reason)
            raise UserError(
                f"another of {self.count} processes has ended, and its own message says why, or "
                f"the network failed ({reason})"
            ) from error

    def leave(self) -> None:
        """Leave the group, without waiting for the others."""
        if self.count > 1:
            distributed.destroy_process_group()

    def stop(self) -> None:
        """Leave the group, once the first process has done what it alone does."""
        self.all_reduce_max(0)
        self.leave()
