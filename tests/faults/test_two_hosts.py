"""Two machines train one run: network namespaces with a cable between them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from safetensors.torch import load_file

_ADDRESSES = ("10.213.7.1", "10.213.7.2")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two namespaces that reach each other and nothing else."""
    names = [f"burn-{os.getpid()}-{i}" for i in range(2)]
    cables = [f"burn{os.getpid() % 10**6}{end}" for end in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        except (subprocess.CalledProcessError, FileNotFoundError):
            pytest.skip("no right to make network namespaces")
        for name, cable, address in zip(names, cables, _ADDRESSES, strict=True):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "link", "set", cable, "name", "cable")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def on_hosts(hosts: list[str], arguments: list[str]) -> list[subprocess.Popen[str]]:
    """The command on each, as a user types it there."""
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *commands.BURN, *arguments, "--num-nodes=2"],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": _ADDRESSES[0],
                "NODE_RANK": str(number),
                "GLOO_SOCKET_IFNAME": "cable",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for number, host in enumerate(hosts)
    ]


@pytest.mark.long
def test_two_hosts_train_what_two_processes_of_one_do(
    hosts: list[str], teacher: Path, tmp_path: Path
):
    options = ("--max-steps=3", "--stages=1")
    processes = on_hosts(hosts, commands.command(teacher, tmp_path / "hosts", *options))
    try:
        for process in processes:
            output, _ = process.communicate(timeout=200)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            commands.kill_all(process)
    status, output = commands.run(
        commands.command(teacher, tmp_path / "here", *options, "--devices=2")
    )
    assert status == 0, output
    ends = [load_file(tmp_path / name / "stage1.safetensors") for name in ("hosts", "here")]
    assert commands.same(*ends)


@pytest.mark.long
def test_a_host_that_goes_ends_the_other(hosts: list[str], teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    processes = on_hosts(hosts, commands.command(teacher, out, "--max-steps=400"))
    try:
        commands.wait_for_step(processes[0], out, 2)
        commands.kill_all(processes[1])
        asked = time.monotonic()
        output, _ = processes[0].communicate(timeout=100)
        assert time.monotonic() - asked < 60
        assert processes[0].returncode == 2, output
        assert "another of 2 processes has ended" in output
        assert "Traceback" not in output
    finally:
        for process in processes:
            commands.kill_all(process)


@pytest.mark.long
def test_sigterm_on_one_host_saves_on_both(hosts: list[str], teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    processes = on_hosts(hosts, commands.command(teacher, out, "--max-steps=400"))
    try:
        commands.wait_for_step(processes[0], out, 2)
        processes[1].send_signal(signal.SIGTERM)
        for process in processes:
            output, _ = process.communicate(timeout=30)
            assert process.returncode == 128 + signal.SIGTERM, output
    finally:
        for process in processes:
            commands.kill_all(process)
    assert (out / "stage1" / "resume.ckpt").is_file()
