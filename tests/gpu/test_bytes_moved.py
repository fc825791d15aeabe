"""The memory that a step of ReActNet-A's blocks moves: benchmarks/bytes_moved.py, and a bound."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "bytes_moved.py"


@pytest.fixture(scope="module")
def bytes_moved() -> Any:
    found = importlib.util.spec_from_file_location("bytes_moved", FILE)
    assert found is not None
    assert found.loader is not None
    module = sys.modules["bytes_moved"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_operations_count_what_they_read_and_write_once(bytes_moved: Any):
    x = torch.empty(3, 4, device="meta")  # 48 bytes
    with bytes_moved.BytesMoved() as moved:
        y = x + x[:1].expand(3, 4)  # reads 48 and 16, writes 48
        y.view(12).mul_(2)  # reads and writes 48
        torch.abs(y, out=torch.empty(3, 4, device="meta"))  # reads and writes 48
        y.zero_()  # writes 48
    assert moved.by_operation == {"add": 112, "mul_": 96, "abs": 96, "zero_": 48}
    assert moved.total == 352
    assert moved.kernels == 4


@pytest.mark.long
def test_kernels_move_less_than_half_of_what_operations_move(bytes_moved: Any):
    """Bounds on what is counted now: 659 and 241 MB an image, 1,886 and 1,209 kernels a step."""
    found = bytes_moved.measure(torch.bfloat16)
    assert found["triton"]["mb"] < 0.38 * found["torch"]["mb"]
    assert found["torch"]["mb"] <= 660
    assert found["triton"]["mb"] <= 242
    assert found["torch"]["kernels"] <= 1886
    assert found["triton"]["kernels"] <= 1209
    used = {name for name in found["triton"]["operations"] if name.startswith("triton")}
    assert len(used) == 7
