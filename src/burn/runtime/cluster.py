"""Access to an existing Ray cluster, and what each task is given of its nodes."""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from burn.core.errors import UserError, shortened
from burn.core.files import write_text
from burn.core.inputs import read_text
from burn.runtime.compute import Device


@dataclass(frozen=True)
class Share:
    """What a task is given of a node: a number of cores, and 0 or 1 GPUs."""

    cores: int
    gpus: int


_MARK = ".cluster"  # file by which a node sees that the folder is the command's


@dataclass(frozen=True)
class Origin:
    """Where a command was given that nodes of a cluster carry out."""

    folder: Path  # its working directory
    out: Path  # the folder that it writes, which all nodes must see
    token: str  # content of a file in `out` that marks it
    version: str  # of its burn

    @classmethod
    @contextlib.contextmanager
    def marked(cls, out: Path) -> Iterator[Origin]:
        """Return the origin of this process's command; `out` is marked in this context."""
        out, token = out.resolve(), secrets.token_hex(8)
        write_text(out / _MARK, token)
        try:
            yield cls(Path.cwd(), out, token, version("burn-ssl"))
        finally:
            with contextlib.suppress(OSError):
                (out / _MARK).unlink()

    def check(self) -> None:
        """Raise UserError if this node has another version of burn, or lacks a folder."""
        if self.version != version("burn-ssl"):
            raise UserError(f"it has burn {version('burn-ssl')}, the command is of {self.version}")
        if not self.folder.is_dir():
            raise UserError(f"it has no folder {self.folder}, where the command was given")
        try:
            mark = read_text(self.out / _MARK)
        except UserError:
            mark = ""
        if mark != self.token:
            raise UserError(
                f"it does not see {self.out}: --out needs a folder that all nodes share"
            )


def require_address(address: str) -> None:
    """Raise UserError unless an address is auto or HOST:PORT."""
    if address.startswith("ray://"):
        raise UserError(
            f"--cluster {address}: Ray's client is not supported; give the command on a node of "
            "the cluster, with --cluster auto"
        )
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isascii() and port.isdecimal()):
        raise UserError(f"--cluster {shortened(address)}: give auto, or HOST:PORT of its head")


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster in this context, unless this process already is; None does nothing.

    The address is "auto" for the cluster of this machine or of RAY_ADDRESS, or HOST:PORT of its
    head.
    """
    if address is None:
        yield
        return
    require_address(address)
    try:
        import ray
    except ImportError:
        raise UserError("--cluster needs Ray: pip install 'burn-ssl[ray]'") from None
    if ray.is_initialized():
        yield
        return
    if address != "auto":
        _require_open(address)
    handler = signal.getsignal(signal.SIGTERM)  # Ray installs one of its own
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise _not_joined(address, why.rstrip(".")) from None
    finally:
        _restore(handler)
    try:
        yield
    finally:
        ray.shutdown()
        _restore(handler)


def _not_joined(address: str, why: str) -> UserError:
    """Return the error for an address at which no Ray cluster answers as it should."""
    return UserError(
        f"--cluster {address}: no Ray cluster could be joined ({why}); `ray start --head` starts "
        "one"
    )


def _require_open(address: str) -> None:
    """Raise UserError if nothing listens at HOST:PORT, for which Ray would wait minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _not_joined(address, str(error)) from None


def _restore(handler: Any) -> None:
    with contextlib.suppress(ValueError):  # not the main thread, in which Ray installs none
        signal.signal(signal.SIGTERM, handler)


def share_of(
    nodes: Sequence[Mapping[str, float]],
    tasks: int,
    device: Device,
    cores: int | None,
    option: str = "--cores",
) -> Share:
    """Return what each task is given of a node; `nodes` are their resources, as Ray names them.

    A task has a GPU where there are any and the device is not cpu. By default it has as many cores
    as there are for each GPU of a node, or, on the CPU, as many as let all tasks begin at once.
    `option` is what sets `cores`, for the message.
    """
    with_cores = [node for node in nodes if node.get("CPU", 0) >= 1]
    with_gpu = [node for node in with_cores if node.get("GPU", 0) >= 1]
    gpus = int(device != "cpu" and bool(with_gpu))
    if device == "cuda" and not gpus:
        raise UserError("--device cuda: no node of the cluster has a GPU")
    usable = with_gpu if gpus else with_cores
    if not usable:
        raise UserError("--cluster: no node of the cluster has a core")
    if cores is None:
        if gpus:
            cores = max(1, min(int(node["CPU"] // node["GPU"]) for node in usable))
        else:
            least = min(int(node["CPU"]) for node in usable)
            cores = max(1, min(least, int(sum(node["CPU"] for node in usable)) // max(1, tasks)))
    most = max(int(node["CPU"]) for node in usable)
    if cores > most:
        raise UserError(f"{option} {cores}: no node that can be used has more than {most}")
    return Share(cores, gpus)
