import errno
import os
import signal
import time
from pathlib import Path

import pytest

from burn.errors import UserError
from burn.files import expand, locked, remove_unfinished, write_beside


def test_a_locked_folder_is_anothers(tmp_path: Path):
    with (
        locked(tmp_path),
        pytest.raises(UserError, match="another burn is at work"),
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


def test_an_empty_path_is_no_folder():
    with pytest.raises(UserError, match="a path is empty"):
        expand("")


def test_an_error_names_the_file_that_was_meant(tmp_path: Path):
    def full(to: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))

    with pytest.raises(OSError) as raised:
        write_beside(tmp_path / "results.jsonl", full)
    assert raised.value.filename == str(tmp_path / "results.jsonl")
