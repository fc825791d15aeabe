"""Campaigns on a Ray cluster: a lost node, Ctrl-C, and clusters that cannot be used."""

from __future__ import annotations

import io
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import burn
import burn.campaigns.compare
import threads
import tiny
from burn.campaigns.cluster import Task, watch_over
from burn.campaigns.compare import Comparison, compare
from burn.campaigns.settings import Execution
from burn.core.errors import Interrupted, UserError
from burn.core.results import Result
from burn.evaluation.configs import LinearConfig
from burn.recipes.schema import Recipe
from burn.runtime.cluster import Origin, Share, connected, share_of
from burn.training.plan import Machine
from ray_nodes import add, ray_cluster

DIGITS = Comparison(
    data="digits", test="digits", budget=256, linear=LinearConfig(augment="none", epochs=2)
)


@pytest.fixture(autouse=True)
def _tiny_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Recipe:
        return replace(tiny.baseline_recipe(name.removesuffix("_small")), epochs=50, batch_size=64)

    monkeypatch.setattr(burn.campaigns.compare, "find_recipe", find)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster on this machine whose head has no core, so that all runs are on other nodes."""
    with ray_cluster() as cluster:
        yield cluster


def run(
    out: Path, cluster: str | None, seeds: range, budget: int = 256, console: Console | None = None
) -> list[Result]:
    machine = Machine(device="cpu", workers=0, monitor_every=2)
    cores = None if cluster is None else threads.THREADS
    execution = Execution(out, list(seeds), machine, cluster=cluster, cores=cores)
    shared = replace(DIGITS, budget=budget)
    return compare(shared, ["simclr"], execution, console or quiet())


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


def numbers(results: list[Result]) -> list[tuple[str, str, str, float]]:
    return sorted((r.checkpoint.rpartition("/")[2], r.protocol, r.metric, r.value) for r in results)


def when(condition: Callable[[], Any], action: Callable[[], Any]) -> threading.Thread:
    """Do something in a thread as soon as the condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.long  # tests/embedding/test_embed_cluster.py loses a node in `make test`
@pytest.mark.parametrize(("runs", "budget"), [(2, 256), (8, 4096)])
def test_a_lost_node_loses_nothing(runs: int, budget: int, nodes: Any, tmp_path: Path):
    whole = run(tmp_path / "whole", None, range(runs), budget)
    out, console = tmp_path / "shared", quiet()
    first, second = add(nodes), add(nodes)

    def trains_on_second() -> bool:
        return any(
            second.node_id in file.read_text() and (out / file.name[1:-5] / "run.json").exists()
            for file in (out / "logs").glob(".*.node")
        )

    killer = when(trains_on_second, lambda: nodes.remove_node(second, allow_graceful=False))
    try:
        found = run(out, nodes.address, range(runs), budget, console)
    finally:
        killer.join(1)
        nodes.remove_node(first)
    assert not killer.is_alive()
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert f"{runs} runs on a cluster of 3 nodes, each with a core" in said
    assert "resumes after the loss of its node" in said
    assert numbers(found) == numbers(whole)
    for seed in range(runs):
        one, other = (
            load_file(tmp_path / name / f"simclr-seed{seed}" / "stage1.safetensors")
            for name in ("whole", "shared")
        )
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
def test_ctrl_c_saves_and_the_same_command_goes_on(nodes: Any, tmp_path: Path):
    node = add(nodes)
    try:
        begun = tmp_path / "logs" / ".simclr-seed0.node"
        presser = when(begun.exists, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match="the same command resumes them"):
            run(tmp_path, nodes.address, range(2), 1024)
        presser.join(1)
        assert not (tmp_path / "simclr-seed1").exists()
        # Nothing holds the folder any more, so that this process may go on with it.
        assert len(run(tmp_path, None, range(1), 1024)) > 0
    finally:
        nodes.remove_node(node)


@pytest.mark.long
def test_a_run_that_fails_is_named(nodes: Any, tmp_path: Path):
    node = add(nodes)
    out = tmp_path / "compared"
    (out / "simclr-seed0").mkdir(parents=True)
    (out / "simclr-seed0" / "mine.txt").write_text("not a run")
    try:
        with pytest.raises(UserError, match=r"simclr-seed0: .*holds no run"):
            run(out, nodes.address, range(2))
    finally:
        nodes.remove_node(node)
    assert (out / "simclr-seed1" / "compared.jsonl").is_file()


def task(tmp_path: Path) -> Task:
    logs = tmp_path / "out" / "logs"
    logs.mkdir(parents=True)
    (logs / ".cluster").write_text("token")
    return Task(
        (),
        pickle.dumps("no job"),
        logs / "it.txt",
        logs / ".it.node",
        Origin(tmp_path, logs, "token", burn.__version__),
        1,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, "the command is of 0.0.1"),
        ({"folder": Path("/not/there")}, "has no folder /not/there"),
        ({"token": "another"}, "--out needs a folder that all nodes share"),
    ],
)
def test_a_node_that_cannot_run_it_says_why(change: dict[str, Any], words: str, tmp_path: Path):
    pytest.importorskip("ray")
    whole = task(tmp_path)
    ended = watch_over(replace(whole, origin=replace(whole.origin, **change)))
    assert isinstance(ended, str)
    assert words in ended
    assert ended.startswith(f"node {socket.gethostname()}: ")
    assert not (tmp_path / "out" / "logs" / ".it.node").exists()


@pytest.mark.parametrize(
    ("device", "runs", "cores", "expected"),
    [
        ("cpu", 3, None, Share(8, 0)),  # 24 cores for 3 runs, but a node has 8
        ("cpu", 6, None, Share(4, 0)),
        ("cpu", 99, None, Share(1, 0)),
        ("cpu", 1, 16, Share(16, 0)),
        ("auto", 1, None, Share(8, 1)),  # 16 cores, 2 GPUs
        ("cuda", 9, 3, Share(3, 1)),
    ],
)
def test_a_run_is_given_its_share(device: Any, runs: int, cores: int | None, expected: Share):
    nodes = [{"CPU": 8.0, "memory": 1e9}, {"CPU": 16.0, "GPU": 2.0}, {"memory": 1e9}]
    assert share_of(nodes, runs, device, cores) == expected


@pytest.mark.parametrize(
    ("nodes", "device", "cores", "words"),
    [
        ([{"CPU": 8.0}], "cuda", None, "--device cuda: no node of the cluster has a GPU"),
        ([{"memory": 1.0}], "cpu", None, "no node of the cluster has a core"),
        ([{"CPU": 8.0}, {"CPU": 4.0}], "cpu", 9, "--cores 9: no node .* more than 8"),
        ([{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}], "auto", 5, "--cores 5: .* more than 4"),
    ],
)
def test_what_no_node_has_is_said(nodes: Any, device: Any, cores: int | None, words: str):
    with pytest.raises(UserError, match=words):
        share_of(nodes, 1, device, cores)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": " "}, "--cluster : give auto, or HOST:PORT"),
        ({"cluster": "auto", "processes": 2}, "--processes: on a cluster Ray decides"),
        ({"cores": 2}, "--cores needs --cluster"),
        ({"cluster": "auto", "cores": 0}, "--cores 0 is not in 1"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(UserError, match=words):
        Execution(tmp_path, [0], Machine("cpu"), **settings).check()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://there:10001", "give the command on a node of the cluster"),
        ("127.0.0.1:1", r"--cluster 127.0.0.1:1: no Ray cluster could be joined \(.*ray start"),
        ("127.0.0.1:99999", "--cluster 127.0.0.1:99999: no Ray cluster could be joined"),
        ("nonsense", "--cluster nonsense: give auto, or HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there(address: str, words: str, tmp_path: Path):
    if not address.startswith("ray:"):
        pytest.importorskip("ray")
    with pytest.raises(UserError, match=words):
        run(tmp_path / "out", address, range(1))
    assert not (tmp_path / "out").exists()


def test_without_ray_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'burn-ssl\[ray\]'"), connected("auto"):
        pass
