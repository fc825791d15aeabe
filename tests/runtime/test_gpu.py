"""How a GPU would compute: the settings themselves, which torch keeps where there is no GPU too."""

import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tiny
from burn.core.errors import UserError
from burn.runtime.distributed import Processes
from burn.runtime.gpu import describe_arithmetic, gpu_arithmetic, gpu_failures_named
from burn.training import run as training
from burn.training.plan import Machine
from burn.training.prepared import smaller_batch
from burn.training.run_dir import describe_machine

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def settings() -> tuple[object, ...]:
    cudnn, memory = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    return (
        cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark,
        cudnn.deterministic, cudnn.enabled, torch.are_deterministic_algorithms_enabled(),
        memory.fill_uninitialized_memory,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )  # fmt: skip


def test_float32_is_not_tf32_and_fixed_shapes_are_timed():
    """cuDNN's own default computes convolutions of float32 in TF32."""
    before = settings()
    assert before[0] is True
    with gpu_arithmetic(GPU, fixed_shapes=True):
        assert settings()[:6] == (False, False, True, False, True, False)
        with gpu_arithmetic(GPU, fixed_shapes=False):
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark
    assert settings() == before


def test_the_same_bits_are_an_option():
    before = settings()
    with gpu_arithmetic(GPU, fixed_shapes=True, deterministic=True):
        assert settings()[:6] == (False, False, False, True, True, True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert settings() == before


def test_a_cpu_computes_as_it_did():
    before = settings()
    with gpu_arithmetic(CPU, fixed_shapes=True, deterministic=True):
        assert settings() == before
    assert describe_arithmetic(CPU) == {}


def test_the_checkpoint_says_how_a_gpu_computed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    with gpu_arithmetic(GPU, fixed_shapes=True, deterministic=True):
        described = describe_machine(GPU, 1)
    assert described["device"] == "H200"
    told = {name: described[name] for name in ("tf32", "cudnn_benchmark", "deterministic")}
    assert told == {"tf32": False, "cudnn_benchmark": False, "deterministic": True}
    assert describe_machine(GPU, 1)["tf32"], "torch's default, as a counterexample"
    assert "tf32" not in describe_machine(CPU, 1)


def test_a_run_computes_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def arithmetic(device: torch.device, **settings: bool) -> object:
        asked.append((device.type, settings))
        return gpu_arithmetic(device, **settings)

    monkeypatch.setattr(training, "gpu_arithmetic", arithmetic)
    machine = Machine(device="cpu", workers=0, deterministic=True)
    tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=1, machine=machine)
    assert asked == [("cpu", {"fixed_shapes": True, "deterministic": True})]


def test_memory_that_runs_out_in_a_run_is_one_line_that_says_how_to_need_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def forward(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 …")

    monkeypatch.setattr("burn.methods.burn.method.Burn.forward", forward)
    teacher = tmp_path / "teacher"
    tiny.train(tiny.teacher_recipe(), teacher, max_steps=1)
    with pytest.raises(UserError) as error:
        tiny.train(tiny.student_recipe(), tmp_path / "run", teacher, max_steps=1)
    assert str(error.value) == (
        "the GPU runs out of memory: a batch per device of 32 images does not fit; begin again "
        "with --accumulate 2 (it is 1)"
    )


def test_what_a_device_takes_at_once_is_of_the_recipe_and_the_processes():
    recipe = tiny.student_recipe()
    assert "of 8 images does not fit; begin again with --accumulate 2" in smaller_batch(
        recipe, Processes(GPU, 4)
    )
    assert "of 2 images does not fit; give a smaller --batch-size, or smaller views" in (
        smaller_batch(recipe, Processes(GPU, 16))
    )
    contrasted = tiny.baseline_recipe("simclr")
    assert "give more --devices, or a smaller --batch-size" in smaller_batch(
        contrasted, Processes(GPU)
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "runs out of memory: smaller"),
        (RuntimeError("CUDA error: out of memory"), "runs out of memory: smaller"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), "runs out of memory"),
        (
            RuntimeError("max_pool2d_backward does not have a deterministic implementation, but"),
            "--deterministic: max_pool2d_backward has no deterministic form",
        ),
    ],
)
def test_failures_of_a_gpu_are_one_line(error: RuntimeError, told: str):
    with pytest.raises(UserError, match=told), gpu_failures_named("smaller"):
        raise error


def test_other_failures_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes") as raised, gpu_failures_named("smaller"):
        raise RuntimeError("shapes do not match")
    assert not isinstance(raised.value, UserError)
