"""Files from a user: regular, bounded, and an error that names them."""

import os
from pathlib import Path

import pytest

from burn.core.errors import UserError
from burn.core.inputs import (
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    require_regular,
    require_safetensors,
)


def test_a_regular_file_is_read_whole(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert read_json(file) == {"a": 1}
    assert require_regular(file) == 8
    assert read_bytes(file, 8) == b'{"a": 1}'
    with open_regular(file) as opened:
        assert opened.read(1) == b"{"


def test_what_is_no_regular_file_is_an_error_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "is a folder"),
        (tmp_path / "missing", "no such file"),
        (tmp_path / "a\0b", "null byte"),
        (tmp_path / ("a" * 300), "name too long"),
    ):
        with pytest.raises(UserError, match=words):
            read_bytes(path, 100)


def test_size_is_bounded_before_reading(tmp_path: Path):
    file = tmp_path / "sparse"
    with file.open("wb") as opened:
        opened.truncate(200 * 2**30)
    with pytest.raises(UserError, match="at most 1,000"):
        read_bytes(file, 1000)


def test_a_file_that_claims_no_size_is_bounded_too():
    with pytest.raises(UserError, match=r"more than 10 bytes|not a regular"):
        read_bytes(Path("/proc/self/environ"), 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nests too deeply"),
        ("9" * 5000, "not valid JSON: an integer of 5000 digits"),
        ("-" + "9" * 100, "not valid JSON: an integer of 101 digits"),
    ],
)
def test_json_that_cannot_be_used_names_its_origin(text: str, words: str):
    with pytest.raises(UserError, match=words) as caught:
        parse_json(text, "there.json")
    assert "there.json" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_text_must_be_utf8(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_text(tmp_path / "a")


def test_safetensors_are_bounded_before_their_reader(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    for length in (2**20, 2**25, 2**63):  # of a header that is not there, and one that is too long
        with file.open("wb") as opened:
            opened.write(length.to_bytes(8, "little"))
            opened.truncate(2**26 if length == 2**25 else 2**10)
        with pytest.raises(UserError, match="not a weights file"):
            require_safetensors(file)
    file.write_bytes(b"\xff\xd8\xff\xe0" + bytes(2**10))
    with pytest.raises(UserError, match="not a weights file, but a JPEG image"):
        require_safetensors(file)
    file.write_bytes((8).to_bytes(8, "little") + b"{}      ")
    assert require_safetensors(file) == 16
    with pytest.raises(UserError, match=r"16 bytes; .* at most 15"):
        require_safetensors(file, 15)
