import errno
import os
import signal
import time
from pathlib import Path

import pytest

from burn.core.errors import UserError
from burn.core.files import (
    append_lines,
    cannot_be_written,
    locked,
    remove_unfinished,
    write_beside,
    write_failures_named,
)
from burn.core.paths import expand, same_path


def test_a_locked_folder_is_anothers(tmp_path: Path):
    with (
        locked(tmp_path),
        pytest.raises(UserError, match="another burn process is using"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path):
    """As the processes that load images, which outlive a killed parent by seconds."""
    with locked(tmp_path):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    time.sleep(0.5)  # until the child has begun
    try:
        with locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_old_file_may_be_kept(tmp_path: Path):
    file, old = tmp_path / "a", tmp_path / "b"
    for text in ("1", "2", "3"):
        write_beside(file, lambda to, text=text: to.write_text(text), keep=old)
    assert (file.read_text(), old.read_text()) == ("3", "2")

    def fail(_: Path) -> None:
        raise OSError

    with pytest.raises(OSError):
        write_beside(file, fail, keep=old)
    assert (file.read_text(), old.read_text()) == ("3", "2")


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path):
    (tmp_path / ".writing.a").touch()
    (tmp_path / ".written").touch()
    remove_unfinished(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".written"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no locks")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path):
    """But nothing of a writer that is still at work."""
    child = os.fork()
    if not child:
        write_beside(tmp_path / "slow", lambda to: (to.write_text("half"), time.sleep(600)))
        os._exit(0)
    while not list(tmp_path.glob(".writing.*/slow")):
        time.sleep(0.01)
    try:
        write_beside(tmp_path / "a", lambda to: to.write_text("1"))
        remove_unfinished(tmp_path)
        assert list(tmp_path.glob(".writing.*/slow")), "of a process that lives"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    write_beside(tmp_path / "b", lambda to: to.write_text("2"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_a_new_file_replaces_none(tmp_path: Path):
    """Not even one that appears while it is written."""

    def write(to: Path) -> None:
        (tmp_path / "a").write_text("theirs")
        to.write_text("mine")

    with pytest.raises(UserError, match="already exists"):
        write_beside(tmp_path / "a", write, new=True)
    assert (tmp_path / "a").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "lines"
    append_lines(file, "one\n")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        append_lines(file, "two\n")
    assert raised.value.filename == str(file)
    assert file.read_text() == "one\n"


FULL = OSError(errno.ENOSPC, "No space left on device", "other/name")


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        (Path("a/b"), FULL, "a/b cannot be written: No space left on device"),
        ("--out a", FULL, "--out a cannot be written: No space left on device"),
        ("--out a", OSError("a reason alone"), "--out a cannot be written: a reason alone"),
    ],
)
def test_what_cannot_be_written_is_named_with_the_reason(what: object, error: OSError, text: str):
    assert cannot_be_written(what, error) == text
    with pytest.raises(UserError) as raised, write_failures_named(what):
        raise error
    assert str(raised.value) == text
    assert raised.value.__cause__ is error


def test_other_errors_than_of_the_system_keep_their_text():
    for error in (UserError("a is a file"), RuntimeError("out of memory")):
        with pytest.raises(type(error)) as raised, write_failures_named("a"):
            raise error
        assert raised.value is error


def test_two_names_of_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert all(same_path("a", other) for other in ("./a/", str(tmp_path / "a"), "link", "a"))
    assert same_path("stream:a", "stream:link")
    assert not any(same_path("a", other) for other in ("b", "stream:a", "", "."))


def test_an_empty_path_is_no_folder():
    with pytest.raises(UserError, match="a path is empty"):
        expand("")


def test_an_error_names_the_file_that_was_meant(tmp_path: Path):
    def full(to: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))

    with pytest.raises(OSError) as raised:
        write_beside(tmp_path / "results.jsonl", full)
    assert raised.value.filename == str(tmp_path / "results.jsonl")
