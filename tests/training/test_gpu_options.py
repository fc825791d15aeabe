"""`--cuda-graphs`: what it refuses, and a run with a recorder on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.errors import UserError
from burn.core.types import ActivationGradient, Precision
from burn.methods.base import Method
from burn.methods.supervised.method import Supervised
from burn.recipes.schema import Recipe
from burn.runtime.distributed import Processes
from burn.training import run, stage
from burn.training.graphs import WARM_UP, CudaRecorder, StepGraph
from burn.training.plan import Machine, RunPlan
from burn.training.prepared import check_gpu_options
from method_checks import views
from networks import shallow_reactnet

GPU = Processes(torch.device("cuda"))
BATCH = views(32, count=4, labels=torch.arange(4) % 3)


def check(machine: Machine, recipe: Recipe | None = None, processes: Processes = GPU) -> None:
    plan = RunPlan("test", recipe or tiny.student_recipe(), "digits", None)
    check_gpu_options(plan, machine, processes)


def refused(machine: Machine, recipe: Recipe | None = None, processes: Processes = GPU) -> str:
    """The message, of one line."""
    with pytest.raises(UserError) as error:
        check(machine, recipe, processes)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compile": True}, "--compile exclude each other"),
        ({"profile": True}, "--profile exclude each other"),
        ({"teacher_cache": "cache"}, "--teacher-cache exclude each other"),
    ],
)
def test_options_that_graphs_exclude(settings: dict[str, Any], said: str):
    assert said in refused(replace(Machine(cuda_graphs=True), **settings))


def test_what_graphs_cannot_do_is_one_line():
    chosen, recipe = Machine(cuda_graphs=True), tiny.student_recipe()
    check(chosen)
    assert "needs a GPU" in refused(chosen, processes=Processes(torch.device("cpu")))
    two = Processes(torch.device("cuda"), count=2, rank=0, local_count=2)
    assert "is for one process, and this run has 2" in refused(chosen, processes=two)
    assert "needs --accumulate 1 (it is 2)" in refused(chosen, replace(recipe, accumulate=2))
    for method in ("mocov2", "infomin"):
        said = refused(chosen, tiny.baseline_recipe(method))
        assert f"cannot record method {method}: each step permutes its images" in said
    for method in ("byol", "simclr", "swav", "s2bnn"):
        check(chosen, tiny.baseline_recipe(method))


def test_a_command_on_a_cpu_ends_before_it_begins(tmp_path: Path):
    machine = Machine(device="cpu", workers=0, cuda_graphs=True)
    with pytest.raises(UserError, match="needs a GPU, and this run is on a CPU"):
        tiny.train(tiny.teacher_recipe(), tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()


class OnCpu(CudaRecorder):
    """Replays by running the function, with gradients at the same place as a graph's.

    Attributes:
        parameters: The parameters of the method.
    """

    counts = {"warm": 0, "recorded": 0, "replayed": 0}  # noqa: RUF012
    parameters: list[Tensor]

    def warm_up(self, run: Callable[[], None]) -> None:
        self.counts["warm"] += 1
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        self.counts["recorded"] += 1
        run()
        kept = [parameter.grad for parameter in self.parameters]
        done = [True]

        def replay() -> None:
            self.counts["replayed"] += 1
            if done:
                done.clear()
                return
            for parameter in self.parameters:
                parameter.grad = None
            run()
            for parameter, gradient in zip(self.parameters, kept, strict=True):
                if gradient is not None:
                    assert parameter.grad is not None
                    gradient.copy_(parameter.grad)

        return replay


class Graph(StepGraph):
    def __init__(self, method: Method, name: str, num_images: int, recorder: OnCpu) -> None:
        recorder.parameters = list(method.parameters())
        super().__init__(method, name, num_images, recorder)


def test_a_run_with_graphs_is_the_run_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The loop clears gradients between the forward and the backward pass."""
    teacher = tmp_path / "teacher"
    tiny.train(tiny.teacher_recipe(), teacher, max_steps=1)
    recipe = replace(tiny.student_recipe(), stages=1)
    tiny.train(recipe, tmp_path / "usual", teacher, max_steps=8)
    monkeypatch.setattr(run, "check_gpu_options", lambda *_: None)
    monkeypatch.setattr(stage, "CudaRecorder", OnCpu)
    monkeypatch.setattr(stage, "StepGraph", Graph)
    machine = Machine(device="cpu", workers=0, monitor_every=2, cuda_graphs=True)
    tiny.train(recipe, tmp_path / "graphs", teacher, max_steps=8, machine=machine)
    assert OnCpu.counts == {"warm": WARM_UP, "recorded": 1, "replayed": 8 - WARM_UP}
    one, other = (load_file(tmp_path / name / "stage1.safetensors") for name in ("usual", "graphs"))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    usual, graphs = (
        (tmp_path / name / "stage1" / "gradients.csv").read_text() for name in ("usual", "graphs")
    )
    assert usual == graphs


class Constants(TorchDispatchMode):
    """Records the operations that copy a number of Python's into a tensor on the CPU.

    On a GPU each such tensor is copied over, for which a recording cannot wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.count += operation is torch.ops.aten.lift_fresh.default
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("gradient", ["poly", "clip"])
@pytest.mark.parametrize("name", ["reactnet_a", "bnext_t", "expert_bnn"])
def test_no_network_copies_a_number_to_the_gpu_in_a_step(
    name: str, gradient: ActivationGradient, precision: Precision
):
    config = BackboneConfig(name=name, width=0.25, activation_gradient=gradient)
    network = build_backbone(config, precision).train()
    with Constants() as constants:
        network(torch.randn(2, 3, 64, 64)).sum().backward()
    assert not constants.count


def failing(error: Exception) -> StepGraph:
    """A graph after its warm-up, whose recording fails."""

    class Failing(OnCpu):
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            raise error

    graph = Graph(Supervised(shallow_reactnet(), 3), "supervised", 4, Failing())
    for _ in range(WARM_UP):
        assert graph.step(BATCH, 0.0) is not None
    return graph


def test_a_step_that_cannot_be_recorded_is_one_line():
    graph = failing(RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing"))
    with pytest.raises(UserError) as error:
        graph.step(BATCH, 0.0)
    assert str(error.value) == (
        "--cuda-graphs: a step of method supervised cannot be recorded (CUDA error: operation not "
        "permitted when stream is capturing); leave the option out"
    )


def test_memory_that_runs_out_keeps_its_own_message():
    graph = failing(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        graph.step(BATCH, 0.0)


def test_what_records_on_a_gpu_asks_torch_for(monkeypatch: pytest.MonkeyPatch):
    """The calls and their order; torch itself cannot make them without a GPU."""
    done: list[Any] = []

    class Stream:
        def __init__(self, name: str = "other") -> None:
            self.name = name

        def wait_stream(self, stream: Stream) -> None:
            done.append(f"{self.name} waits for {stream.name}")

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    @contextmanager
    def noted(what: object, **settings: Any) -> Iterator[None]:
        done.append(("begin", type(what).__name__, settings))
        yield
        done.append("end")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, noted)
    recorder = CudaRecorder()
    recorder.warm_up(lambda: done.append("run"))
    assert done == [
        "other waits for current", ("begin", "Stream", {}), "run", "end", "current waits for other"
    ]  # fmt: skip
    done.clear()
    recorder.record(lambda: done.append("run"))()
    threads = {"capture_error_mode": "thread_local"}
    assert done == [("begin", "Graph", threads), "run", "end", "replay"]
