"""How many threads PyTorch computes with in the tests and in the processes that they start."""

from __future__ import annotations

import os

import torch

# One by default: pytest runs several processes. BURN_TEST_THREADS=2 adds up sums in another order.
THREADS = int(os.environ.get("BURN_TEST_THREADS", "1"))


def limit() -> None:
    """Have PyTorch use `THREADS` threads in this process."""
    torch.set_num_threads(THREADS)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # which keeps burn from choosing another number
