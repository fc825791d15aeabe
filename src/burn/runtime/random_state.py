"""Torch's random state, which all threads of a process share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from burn.core.errors import UserError

_training = threading.RLock()
_drawing = threading.RLock()


@contextlib.contextmanager
def sole_use(what: str) -> Iterator[None]:
    """Refuse by UserError to begin work that trains while another thread of this process does."""
    if not _training.acquire(blocking=False):
        raise UserError(
            f"{what} cannot begin while another thread of this process trains, because threads "
            "share their random numbers and settings: run them one after the other, or in "
            "processes"
        )
    try:
        yield
    finally:
        _training.release()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random state; other threads that do so wait until this context ends."""
    with _drawing:
        torch.manual_seed(seed)
        yield
