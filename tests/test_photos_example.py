"""examples/photos.py, with which the README's first commands can be tried."""

import runpy
import sys
from pathlib import Path

import pytest

from burn.data.open import open_source

EXAMPLE = Path(__file__).parents[1] / "examples" / "photos.py"


def test_digits_of_two_splits_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    runpy.run_path(str(EXAMPLE))
    for split, count in (("train", 1437), ("val", 360)):
        source = open_source(str(tmp_path / split))
        assert len(source) == count
        assert list(source.classes) == [str(digit) for digit in range(10)]
        assert source.read(0).shape == (3, 32, 32)
