"""The tests' own files: pytest finds each of them, and the long ones begin first."""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("engine/tests/**/*.py")]


def test_no_two_files_have_one_name():
    """pytest imports each by its name alone, and cannot collect a second one of the same name."""
    times = Counter(file.name for file in FILES if file.name != "conftest.py")
    assert [name for name, count in times.items() if count > 1] == []


def test_files_that_begin_first_are_there(pytestconfig: pytest.Config):
    tests = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert tests is not None
    paths = [file.as_posix() for file in FILES]
    gone = [n for n in tests.LONG_FILES if not any(p.endswith(f"/{n}") for p in paths)]
    assert gone == []
