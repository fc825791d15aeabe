"""Several processes on one job, as torchrun starts them; one process where it does not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from burn.errors import UserError

_PATIENCE = timedelta(minutes=10)  # with a process that does not come


@dataclass(frozen=True)
class Processes:
    """How many processes share the job, and which one this is."""

    device: torch.device
    count: int = 1
    rank: int = 0

    @classmethod
    def start(cls, device: torch.device) -> Processes:
        """Join the group that torchrun's environment announces, if it does."""
        if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
            return cls(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            distributed.init_process_group(backend, timeout=_PATIENCE)
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"RANK, WORLD_SIZE and the like are not torchrun's: {reason}"
            ) from error
        return cls(device, distributed.get_world_size(), distributed.get_rank())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def share(self, batch: Sequence[Any]) -> Sequence[Any]:
        """This process's part of a batch."""
        return batch[self.rank :: self.count]

    def synchronize_norms(self, module: nn.Module) -> Any:
        """BN over the batch of all processes; torch has that on CUDA alone."""
        if self.count == 1 or self.device.type != "cuda":
            return module
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)

    def wrap(self, module: nn.Module) -> Any:
        """The module with its gradients averaged over the processes."""
        return module if self.count == 1 else DistributedDataParallel(module)

    def stop(self) -> None:
        """Leave the group, once the first process has done what it alone does."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()
