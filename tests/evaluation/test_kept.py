import os
from pathlib import Path

import pytest

from burn.core.errors import UserError
from burn.evaluation.artifacts.kept import KeptParts

FIELDS = {"what": str, "value": float}


def test_parts_survive_their_file_and_other_keys_are_left_alone(tmp_path: Path):
    path = tmp_path / "parts.jsonl"
    KeptParts(path, "a", FIELDS).add({"what": "x", "value": 1.0})
    KeptParts(path, "b", FIELDS).add({"what": "x", "value": 2.0})
    again = KeptParts(path, "a", FIELDS)
    assert again.find(what="x") == {"what": "x", "value": 1.0}
    assert again.find(what="y") is None
    assert len(path.read_text().splitlines()) == 2


def test_a_line_cut_short_is_dropped(tmp_path: Path):
    path = tmp_path / "parts.jsonl"
    KeptParts(path, "a", FIELDS).add({"what": "x", "value": 1.0})
    path.write_text(path.read_text() + '{"key": "a", "wh')
    kept = KeptParts(path, "a", FIELDS)
    kept.add({"what": "y", "value": 2.0})
    assert [part["what"] for part in KeptParts(path, "a", FIELDS).parts] == ["x", "y"]


@pytest.mark.parametrize(
    "line",
    [
        "[1]", "3", "nonsense", "[" * 100_000, '{"what": "x"}', '{"key": "a", "what": "x"}',
        '{"key": "a", "what": "x", "value": "1"}', '{"key": "a", "what": 1, "value": 1.0}',
    ],
)  # fmt: skip
def test_damaged_lines_are_one_line_errors(line: str, tmp_path: Path):
    (tmp_path / "parts.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"parts\.jsonl is damaged: remove it"):
        KeptParts(tmp_path / "parts.jsonl", "a", FIELDS)


@pytest.mark.parametrize(("old", "new"), [("1.5", "NaN"), ("1.5", "1.6"), ('"x"', '"y"')])
def test_a_part_that_was_changed_is_an_error(old: str, new: str, tmp_path: Path):
    path = tmp_path / "parts.jsonl"
    KeptParts(path, "a", FIELDS).add({"what": "x", "value": 1.5})
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"parts\.jsonl is damaged: remove it"):
        KeptParts(path, "a", FIELDS)


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "parts.jsonl")
    with pytest.raises(UserError, match="not a regular file"):
        KeptParts(tmp_path / "parts.jsonl", "a", FIELDS)


def test_without_a_path_parts_are_remembered_only():
    kept = KeptParts(None, "a", FIELDS)
    kept.add({"what": "x", "value": 1.0})
    assert kept.find(what="x", value=1.0)
