import os
import time

import pytest
import torch

from burn.core.errors import UserError
from burn.runtime.distributed import Processes
from burn.runtime.launch import ranks

CPU = torch.device("cpu")


def test_one_process_has_everything_to_itself():
    alone = Processes.start(CPU)
    assert (alone.count, alone.rank, alone.is_main) == (1, 0, True)
    module = torch.nn.BatchNorm2d(3)
    assert alone.wrap(module) is module
    alone.stop()


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "abc"},
        {"RANK": "0", "WORLD_SIZE": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "9" * 5000},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "5", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "x"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"},
        {"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"},
        {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "x"},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "0",
         "MASTER_ADDR": "a"},
    ],
    ids=str,
)  # fmt: skip
def test_a_variable_that_is_no_number_in_its_range_is_named(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    srun_task(monkeypatch, **environment)
    with pytest.raises(UserError, match=r"the environment.s|RANK is not set") as error:
        ranks()
    assert len(str(error.value)) < 240


def test_a_group_without_an_address_is_said(monkeypatch: pytest.MonkeyPatch):
    srun_task(monkeypatch, RANK="0", WORLD_SIZE="2")
    with pytest.raises(UserError, match="the other processes cannot be joined"):
        Processes.start(CPU)


def test_waiting_for_processes_that_do_not_come_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def wait(*_args: object, **_options: object) -> None:
        time.sleep(0.5)
        raise RuntimeError("nobody came")

    srun_task(monkeypatch, RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
    monkeypatch.setattr("burn.runtime.distributed._SILENCE", 0.01)
    monkeypatch.setattr("torch.distributed.init_process_group", wait)
    with pytest.raises(UserError, match="nobody came"):
        Processes.start(CPU)
    assert "process 0 of 2 waits at localhost:1 for the others" in capfd.readouterr().err


def srun_task(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    names_of_ranks = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK")
    slurms = [name for name in os.environ if name.startswith("SLURM_")]
    for name in (*names_of_ranks, "LOCAL_WORLD_SIZE", *slurms):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    for name, value in names.items():
        monkeypatch.setenv(name, value)


def test_a_task_of_srun_takes_torchruns_names(monkeypatch: pytest.MonkeyPatch):
    srun_task(
        monkeypatch, SLURM_STEP_NUM_TASKS="16", SLURM_STEP_NUM_NODES="2", SLURM_PROCID="9",
        SLURM_LOCALID="1", SLURM_NODEID="1", MASTER_ADDR="node0",
    )  # fmt: skip
    assert ranks().count > 1
    assert {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} == {
        "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1",
    }  # fmt: skip
    assert (os.environ["LOCAL_WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("8", "29500")


def test_srun_without_an_address_says_the_line_that_lacks(monkeypatch: pytest.MonkeyPatch):
    srun_task(monkeypatch, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0")
    with pytest.raises(UserError, match=r"export MASTER_ADDR=\$\(scontrol show hostnames"):
        ranks()


def test_a_batch_script_and_a_single_task_are_alone(monkeypatch: pytest.MonkeyPatch):
    """SLURM names a batch script's process 0 too, whatever the job has asked for."""
    srun_task(monkeypatch, SLURM_PROCID="0", SLURM_NTASKS="8")
    assert ranks().count == 1
    srun_task(monkeypatch, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
    assert ranks().count == 1
