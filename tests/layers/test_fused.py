"""Triton's kernels of a block: what they compute, and that they compile for GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from burn.core.errors import UserError
from burn.layers.fused.choice import require_triton

pytest.importorskip("triton")
HERE = Path(__file__).parent


def in_own_process(*words: str, **variables: str) -> str:
    """The output of a Python process that must succeed."""
    paths = [str(HERE), str(HERE.parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *words], env=environment | variables, cwd=HERE.parents[1],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.parametrize("cases", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_in_the_interpreter_they_compute_what_the_layers_compute(cases: str):
    words = ["-m", "pytest", str(HERE / "fused_cases.py"), "-p", "no:cacheprovider", "-m", cases]
    said = in_own_process(*words, "-o", "addopts=", TRITON_INTERPRET="1")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert "skipped" not in said


@pytest.mark.long
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(80, id="A100"), pytest.param(90, id="H100")],
)
def test_they_compile_for_gpus_without_spilling_registers(architecture: int, tmp_path: Path):
    """By ptxas, which needs no GPU. How fast they are is not known."""
    said = in_own_process(str(HERE / "fused_compiled.py"), str(tmp_path), str(architecture))
    found = [json.loads(line) for line in said.splitlines()]
    kernels = ("signs", "statistics", "merge", "activate", "activate_backward", "norm_backward",
               "input_backward")  # fmt: skip
    assert {(one["kernel"], one["architecture"]) for one in found} == {
        (kernel, architecture) for kernel in kernels
    }
    for one in found:
        assert (one["stack"], one["local"]) == (0, 0), one
        # Measured: up to 128. With 256 threads, 65,536 registers hold two programs.
        assert one["registers"] <= 128, one
        if one["kernel"] != "merge":
            # Maps in the widest loads and stores, 16 bytes; sums of a chunk, 4.
            assert {"ld 128", "st 128", "st 32"} >= set(one["memory"]), one


def test_without_triton_the_option_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("burn.layers.fused.choice.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--kernels triton: the package triton is not installed"):
        require_triton()
