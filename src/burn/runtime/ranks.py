"""Ranks of the processes of one job, read from the environment and checked without torch.

`burn.runtime.launch`, torchrun, or srun start several processes and tell each its place by RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from burn.core.errors import UserError

_MOST_PROCESSES = 100_000


@dataclass(frozen=True)
class Ranks:
    """Place of this process among those of its job."""

    count: int = 1  # of the processes of the job; 1 where nothing started more
    rank: int = 0  # in 0 … count - 1
    local_count: int = 1  # of the job's processes on this machine
    local_rank: int = 0  # in 0 … local_count - 1


def ranks() -> Ranks:
    """Return the place of this process, from the environment, whose values are checked."""
    _take_names_of_srun()
    count = _integer("WORLD_SIZE", 1, 1, _MOST_PROCESSES)
    if count > 1 and "RANK" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {count}, but RANK is not set: start with --devices, torchrun or srun, "
            "or unset WORLD_SIZE"
        )
    rank = _integer("RANK", 0, 0, count - 1, f" (WORLD_SIZE is {count})")
    local_count = _integer("LOCAL_WORLD_SIZE", count, 1, count, f" (WORLD_SIZE is {count})")
    local_rank = _integer("LOCAL_RANK", 0, 0, local_count - 1)
    if count > 1:
        _integer("MASTER_PORT", 29500, 1, 65535)
    return Ranks(count, rank, local_count, local_rank)


def require_alone(command: str) -> None:
    """Check that a command that is one process, or starts some itself, does not run in a group."""
    if ranks().count > 1:
        raise UserError(f"burn {command} cannot run under torchrun or srun: start it directly")


def _integer(name: str, default: int, low: int, high: int, why: str = "") -> int:
    """Return a variable of the environment as a number in `low` … `high`, the default if unset."""
    text = os.environ.get(name, str(default)).strip()
    plain = text.isascii() and text.isdecimal() and len(text) <= 18
    if not plain or not low <= int(text) <= high:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise UserError(
            f"the environment's {name} is {shown!r}, not a whole number in {low} … {high}"
            f"{why}: torchrun, srun and --devices set it; unset it to run one process"
        )
    return int(text)


def _take_names_of_srun() -> None:
    """Set the variables that torchrun would have set, in a task that srun started."""
    env = os.environ
    if "RANK" in env or "SLURM_PROCID" not in env:
        return
    tasks = _integer("SLURM_STEP_NUM_TASKS", 1, 1, _MOST_PROCESSES)
    if tasks == 1:
        return
    if "MASTER_ADDR" not in env:
        raise UserError(
            "srun started several tasks, but MASTER_ADDR is not set: before srun, export "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        )
    rank = _integer("SLURM_PROCID", 0, 0, tasks - 1)
    each, rest = divmod(tasks, _integer("SLURM_STEP_NUM_NODES", 1, 1, tasks))
    node = _integer("SLURM_NODEID", 0, 0, tasks - 1)
    local = _integer("SLURM_LOCALID", 0, 0, tasks - 1)
    if rest or rank != node * each + local:
        raise UserError(
            f"srun spread {tasks} tasks unevenly or cyclically over its nodes: give "
            "--ntasks-per-node, and no --distribution"
        )
    env.setdefault("MASTER_PORT", "29500")
    env.update(
        RANK=str(rank),
        WORLD_SIZE=str(tasks),
        NODE_RANK=str(node),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(each),
    )
