"""examples/notebook.ipynb runs from top to bottom, and its outputs are there to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


@pytest.mark.long
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from burn.methods.entries import METHODS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "similar_images", None)  # what a cell registers is gone afterwards
    del METHODS["similar_images"]
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code, start=1):
        assert cell["execution_count"] == number
        source = "".join(cell["source"]).replace(
            "max_steps=60", "max_steps=6"
        )  # in a tenth of the time
        exec(compile(source, f"cell {number}", "exec"), names)
    assert (tmp_path / "runs" / "notebook" / "student.bnn").stat().st_size == names["packed"].bytes
    assert sum(bool(cell["outputs"]) for cell in code) >= 4
