import os

import pytest
import torch

from burn.errors import UserError
from burn.processes import Processes, in_group

CPU = torch.device("cpu")


def test_one_process_has_everything_to_itself():
    alone = Processes.start(CPU)
    assert (alone.count, alone.rank, alone.first) == (1, 0, True)
    module = torch.nn.BatchNorm2d(3)
    assert alone.wrap(module) is module
    assert alone.synchronize_norms(module) is module
    assert alone.share([1, 2, 3]) == [1, 2, 3]
    alone.stop()


def test_shares_part_a_batch():
    shares = [Processes(CPU, 3, rank).share(list(range(6))) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(6))
    assert {len(share) for share in shares} == {2}


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "abc"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    ],
)
def test_an_environment_that_is_not_torchruns_is_said(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="the other processes cannot be joined"):
        Processes.start(CPU)


def srun_task(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    for name, value in names.items():
        monkeypatch.setenv(name, value)


def test_a_task_of_srun_takes_torchruns_names(monkeypatch: pytest.MonkeyPatch):
    srun_task(
        monkeypatch, SLURM_STEP_NUM_TASKS="16", SLURM_STEP_NUM_NODES="2", SLURM_PROCID="9",
        SLURM_LOCALID="1", SLURM_NODEID="1", MASTER_ADDR="node0",
    )  # fmt: skip
    assert in_group()
    assert {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} == {
        "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1",
    }  # fmt: skip
    assert (os.environ["LOCAL_WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("8", "29500")


def test_srun_without_an_address_says_the_line_that_lacks(monkeypatch: pytest.MonkeyPatch):
    srun_task(monkeypatch, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0")
    with pytest.raises(UserError, match=r"export MASTER_ADDR=\$\(scontrol show hostnames"):
        in_group()


def test_a_batch_script_and_a_single_task_are_alone(monkeypatch: pytest.MonkeyPatch):
    """SLURM names a batch script's process 0 too, whatever the job has asked for."""
    srun_task(monkeypatch, SLURM_PROCID="0", SLURM_NTASKS="8")
    assert not in_group()
    srun_task(monkeypatch, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
    assert not in_group()
