"""results.md and README's table are what their numbers make of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_generated_documents_are_those_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate

    written = generate.documents()
    assert set(written) == {"results.md", "../README.md"}
    for name, text in written.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"{name}: make docs"
    generate.draw(tmp_path)
    for picture in tmp_path.glob("*.svg"):
        assert (ROOT / "docs" / picture.name).is_file(), f"{picture.name}: make docs"
    sys.modules.pop("generate")
