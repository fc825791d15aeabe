import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from burn.campaigns import workers
from burn.core.errors import UserError
from burn.core.results import Result
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.evaluation import registry
from burn.evaluation.configs import KnnConfig, Request
from burn.evaluation.context import EvaluationContext, Model
from burn.evaluation.entries import PROTOCOLS
from burn.runtime import compute
from burn.runtime.compute import default_workers, uses_bfloat16
from networks import shallow_reactnet


@pytest.mark.parametrize(
    ("intel", "capability", "instructions", "expected"),
    [
        (False, "AVX512", {"avx512_bf16": True}, True),
        (True, "AVX512", {"avx512_bf16": True}, False),  # no faster than float32
        (True, "AVX512", {"avx512_bf16": True, "amx_bf16": True}, True),
        (False, "AVX512", {"avx512_bf16": False, "amx_bf16": False}, False),
        (False, "AVX2", {"avx512_bf16": True}, False),  # ATEN_CPU_CAPABILITY=avx2
        (False, "AVX2", {}, False),
        (False, "DEFAULT", {}, False),
    ],
)
def test_auto_is_bfloat16_where_it_is_faster(
    intel: bool,
    capability: str,
    instructions: dict[str, bool],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("BURN_COMPUTE", raising=False)
    monkeypatch.setattr(compute, "is_intel", lambda: intel)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    assert uses_bfloat16("auto", "cpu") == expected
    assert uses_bfloat16("bfloat16", "cpu")
    assert not uses_bfloat16("float32", "cpu")


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
def test_the_environment_says_what_auto_means(capability: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setenv("BURN_COMPUTE", "bfloat16")
    assert uses_bfloat16("auto", "cpu")
    assert not uses_bfloat16("float32", "cpu")
    monkeypatch.setenv("BURN_COMPUTE", "float32")
    assert not uses_bfloat16("auto", "cpu")
    monkeypatch.setenv("BURN_COMPUTE", "fp16")
    with pytest.raises(UserError, match="BURN_COMPUTE=fp16"):
        uses_bfloat16("auto", "cpu")


def machine(monkeypatch: pytest.MonkeyPatch, cores: int, device: str) -> None:
    monkeypatch.setattr(compute, "cores", lambda: cores)
    monkeypatch.setattr(compute, "torch_device", lambda _: torch.device(device))


@pytest.mark.parametrize(
    ("device", "cores", "processes", "expected"),
    [
        ("cuda", 128, 1, 16), ("cuda", 128, 8, 16), ("cuda", 64, 8, 8), ("cuda", 4, 8, 1),
        ("cpu", 128, 1, 64), ("cpu", 128, 8, 8), ("cpu", 2, 1, 1), ("cpu", 1, 4, 1),
    ],
)  # fmt: skip
def test_workers_are_a_share_of_the_cores(
    device: str, cores: int, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    machine(monkeypatch, cores, device)
    assert default_workers("auto", processes) == expected


@dataclass(frozen=True)
class FakeJob:
    """A campaign's job that writes its number of workers."""

    evaluation: "FakeEvaluation"
    out: Path

    def run(self, _: Console) -> None:
        self.out.write_text(str(self.evaluation.machine.workers))


@dataclass(frozen=True)
class FakeMachine:
    workers: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class FakeEvaluation:
    machine: FakeMachine = FakeMachine()


def test_a_campaign_on_eight_gpus_gives_each_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of 128 cores; they were two each, an eighth of one process's limit."""
    machine(monkeypatch, 128, "cuda")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = pickle.dumps(FakeJob(FakeEvaluation(), tmp_path / "workers"))
    workers.execute([], job, tmp_path / "log", threads=16, processes=8)
    assert (tmp_path / "workers").read_text() == "16"


@pytest.mark.parametrize(("given", "expected"), [(None, 16), (0, 0), (3, 3)])
def test_an_evaluation_has_a_trainings_workers(
    given: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
):
    machine(monkeypatch, 128, "cuda")
    asked = []

    def protocol(context: EvaluationContext, *_: object) -> list[Result]:
        asked.append(context.workers)
        return []

    entry = SimpleNamespace(
        load=lambda: protocol, images="labels", plugin=None, shares=False, frozen=False
    )
    monkeypatch.setitem(PROTOCOLS, "knn", entry)
    model = Model("tiny", shallow_reactnet(), ViewConfig())
    source = open_source("digits", "test")
    request = Request("tiny", "digits", "digits", workers=given, device="cpu")
    registry.evaluate_checkpoint(
        "knn", request, KnnConfig(), Console(file=io.StringIO()),
        model=model, train=source, test=source,
    )  # fmt: skip
    assert asked == [expected]
