"""Tests of `burn-engine run` on many images: folders, lists, errors among them, and progress."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import burn_engine
import packed
from burn_engine import cli, load
from burn_engine.features_file import FeaturesFile
from burn_engine.images import read_input
from burn_engine.many import Progress, listed, paths_in, read_ahead
from burn_engine.whole_file import whole_file


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")


@pytest.fixture
def folder(tmp_path):
    """Five images, of which two are below subfolders, and files that are not images."""
    root = tmp_path / "photos"
    for i, name in enumerate(("b.ppm", "a/2.PPM", "a/1.npy", "c/d/e.pgm", "a/10.ppm")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = packed.random_images(shape=(16, 16, 3), seed=i)
        if path.suffix == ".npy":
            np.save(path, pixels)
        elif path.suffix == ".pgm":
            path.write_bytes(b"P5 16 16 255\n" + pixels[..., 0].tobytes())
        else:
            path.write_bytes(b"P6 16 16 255\n" + pixels.tobytes())
    (root / "notes.txt").write_text("not an image")
    (root / ".hidden.ppm").write_bytes(b"not an image")
    return root


EXPECTED = ["a/1.npy", "a/10.ppm", "a/2.PPM", "b.ppm", "c/d/e.pgm"]


def in_order(root: Path) -> list[str]:
    # A folder's own files come before those of its subfolders.
    return [str(root / name) for name in ["b.ppm", *EXPECTED[:3], EXPECTED[4]]]


def lines_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_is_read_in_alphabetical_order_at_any_depth(folder):
    assert list(paths_in([str(folder)])) == in_order(folder)
    both = list(paths_in([str(folder / "c"), str(folder / "notes.txt")]))
    assert both == [str(folder / "c/d/e.pgm"), str(folder / "notes.txt")]


def test_a_list_on_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b.jpg\r\n\nc.jpg\n d "))
    assert list(paths_in(["first.ppm", "-"])) == ["first.ppm", "a b.jpg", "c.jpg", " d "]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a" * 70_000, "too long to be a path"), ("a\0b\n", "no list of paths"), ("", "names no")],
)
def test_standard_input_that_is_no_list(monkeypatch, capsys, write, text, message):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert cli.main(["run", str(write()), "-"]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_images(capsys, write, tmp_path):
    (tmp_path / "empty").mkdir()
    assert cli.main(["run", str(write()), str(tmp_path / "empty")]) == 2
    error = capsys.readouterr().err
    assert "empty: no images in this folder" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("readers", [1, 3])
def test_each_image_gives_what_it_gives_alone(capsys, write, folder, tmp_path, readers):
    path = write(num_classes=4)
    out = tmp_path / "features.npy"
    arguments = ["run", path, folder, "--json", "--features", out, "--readers", readers]
    assert cli.main([str(one) for one in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = lines_of(captured.out)
    assert [one["image"] for one in found] == in_order(folder)
    assert [one["row"] for one in found] == list(range(5))
    features = np.load(out)
    model = load(path)
    for one, row in zip(found, features, strict=True):
        np.testing.assert_array_equal(row, model.features(one["image"]))
        scores = model(one["image"])
        assert one["classes"][0]["class"] == model.classes[int(scores.argmax())]


def test_images_that_cannot_be_read_are_named_and_the_others_are_done(
    capsys, write, folder, tmp_path
):
    (folder / "a/10.ppm").write_bytes(b"P6 16 16 255\nshort")
    out = tmp_path / "features.npy"
    arguments = ["run", write(num_classes=0), folder, tmp_path / "none.ppm", "--features", out]
    assert cli.main([*map(str, arguments), "--json"]) == 2
    captured = capsys.readouterr()
    found = lines_of(captured.out)
    assert [one.get("row") for one in found] == [0, 1, None, 2, 3, None]
    assert "truncated" in found[2]["error"]
    errors = captured.err.splitlines()
    assert len(errors) == 3
    assert "a/10.ppm: truncated: 5 bytes of pixels, expected 768" in errors[0]
    assert "none.ppm: No such file or directory" in errors[1]
    assert errors[2] == "burn-engine: 2 of 6 images were left out; see above"
    assert np.load(out).shape == (4, 16)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("listed", [False, True])
def test_features_replace_no_image_of_a_folder_or_list(
    capsys, write, folder, tmp_path, monkeypatch, name, listed
):
    before = (folder / name).read_bytes()
    (tmp_path / "link.npy").symlink_to(folder / name)
    paths = "".join(f"{path}\n" for path in in_order(folder))
    for out in (folder / name, tmp_path / "link.npy"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(paths))
        arguments = ["run", write(num_classes=0), "-" if listed else folder, "--features", out]
        assert cli.main([*map(str, arguments)]) == 2
        why = "is an input as well" if out.suffix == ".npy" else "does not end in .npy"
        assert f"--features {out} {why}" in capsys.readouterr().err
        assert (folder / name).read_bytes() == before


def test_an_error_is_said_once(capsys, write, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("missing.ppm\n"))
    assert cli.main(["run", str(write()), "-"]) == 2
    assert capsys.readouterr().err.count("missing.ppm") == 1


def test_features_of_no_image_are_not_written(capsys, write, tmp_path):
    out = tmp_path / "features.npy"
    out.write_bytes(b"old")
    (tmp_path / "bad.ppm").write_bytes(b"P6")
    arguments = ["run", write(num_classes=0), tmp_path / "bad.ppm", tmp_path / "no.ppm"]
    assert cli.main([*map(str, arguments), "--features", str(out)]) == 2
    assert "2 of 2 images were left out" in capsys.readouterr().err
    assert out.read_bytes() == b"old"


def test_missing_pillow_is_said_once(capsys, write, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(b"\x89PNG")
    np.save(tmp_path / "d.npy", packed.random_images(shape=(8, 8, 3)))
    assert cli.main(["run", str(write(num_classes=0)), str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.count("pip install pillow") == 1
    assert "3 of 4 images were left out" in message


def test_a_features_file_is_what_numpy_writes(tmp_path):
    rows = packed.random_images(shape=(1_000, 7)).astype(np.float32)
    with FeaturesFile(tmp_path / "rows.npy") as file:
        for row in rows:
            file.add(row)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


def test_an_error_leaves_no_features_file(tmp_path):
    def interrupted() -> None:
        with FeaturesFile(tmp_path / "rows.npy") as file:
            file.add(np.zeros(3, np.float32))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_two_features_files_of_one_name_do_not_share_rows(tmp_path):
    path = tmp_path / "rows.npy"
    own = tmp_path / ".writing.rows.npy"  # a user's file, which is not the place of the rows
    own.write_text("mine")
    with FeaturesFile(path) as first:
        first.add(np.full(3, 1, np.float32))
        with FeaturesFile(path) as second:
            for _ in range(2):
                second.add(np.full(3, 2, np.float32))
        assert np.load(path).tolist() == [[2.0] * 3] * 2
        first.add(np.full(3, 1, np.float32))
    assert np.load(path).tolist() == [[1.0] * 3] * 2
    assert own.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == [own.name, path.name]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("kind", ["whole file", "features"])
def test_a_file_behind_a_link_is_replaced_where_it_is_and_keeps_its_permissions(tmp_path, kind):
    file, link = tmp_path / "there" / "rows.npy", tmp_path / "link.npy"
    file.parent.mkdir()
    link.symlink_to(file)
    for mode in (None, 0o600):
        if mode is not None:
            file.chmod(mode)
        if kind == "features":
            with FeaturesFile(link) as writing:
                writing.add(np.zeros(3, np.float32))
        else:
            with whole_file(link) as writing:
                writing.write(b"new")
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def read(path):
    return read_input(path, None)


def test_only_a_few_images_are_read_ahead(tmp_path):
    named: list[int] = []

    def paths():
        for i in range(100):
            named.append(i)
            yield str(tmp_path / f"{i}.ppm")

    images = read_ahead(paths(), read, readers=2)
    next(images)
    time.sleep(0.2)
    assert len(named) < 20
    images.close()


def test_an_image_does_not_wait_for_the_next_path(tmp_path):
    path = tmp_path / "image.npy"
    np.save(path, packed.random_images(shape=(4, 4, 3)))
    more = threading.Event()

    def paths():
        yield str(path)
        assert more.wait(30)

    images = read_ahead(paths(), read, readers=1)
    assert next(images)[0] == str(path)
    more.set()
    assert list(images) == []


def test_an_error_of_the_list_arrives_after_the_images_before_it(tmp_path):
    path = tmp_path / "image.npy"
    np.save(path, packed.random_images(shape=(4, 4, 3)))

    def paths():
        yield str(path)
        raise ValueError("no list")

    images = read_ahead(paths(), read, readers=1)
    assert next(images)[0] == str(path)
    with pytest.raises(ValueError, match="no list"):
        next(images)


def test_a_signal_leaves_no_lock_that_the_threads_wait_for(tmp_path, monkeypatch):
    """It raises where Python may let it: when the main thread has just taken a lock."""
    path = tmp_path / "image.npy"
    np.save(path, packed.random_images(shape=(4, 4, 3)))
    more = threading.Event()

    def paths():
        yield str(path)
        more.wait(30)

    images = read_ahead(paths(), read, readers=1)
    assert next(images)[0] == str(path)
    main, taken = threading.current_thread(), []

    def enter(condition):
        condition._lock.__enter__()
        if threading.current_thread() is main:
            taken.append(condition)
        return condition

    with monkeypatch.context() as patched:
        patched.setattr(threading.Condition, "__enter__", enter)
        images.close()
    assert not taken  # as queue.Queue, threading.Event and futures would
    more.set()


def test_readers_have_ended_before_python_ends(tmp_path):
    """Or it would abort the process if one were in the compiled core."""
    code = """
import time
from threading import enumerate as threads
from burn_engine.many import read_ahead
import atexit
def read(path):
    time.sleep(0.2)
    return path
atexit.register(lambda: print([t.name for t in threads() if "work_off" in t.name]))
images = read_ahead(map(str, range(100)), read, 3)
print(next(images)[0])
held = [images]
raise SystemExit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(burn_engine.__file__).parents[1])},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "0\n[]\n", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_a_line_every_minute_elsewhere(monkeypatch):
    now = iter([0.0, 0.1, 2.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    terminal = Terminal()
    progress = Progress(terminal, 40)
    progress.show(1)  # too soon
    progress.show(10)
    assert terminal.getvalue() == "10 of 40 images · 5.0 images/s · 6 s left"
    progress.clear()
    assert terminal.getvalue().endswith("\r" + " " * 41 + "\r")
    now = iter([0.0, 59.0, 61.0, 62.0, 125.0])
    file = io.StringIO()
    progress = Progress(file, 40)
    for done in (10, 20, 21, 30):
        progress.show(done)
    progress.clear()
    assert file.getvalue() == (
        "20 of 40 images · 0.3 images/s · 61 s left\n30 of 40 images · 0.2 images/s · 42 s left\n"
    )


def test_a_progress_line_that_cannot_be_written_stops_nothing(monkeypatch):
    now = iter([0.0, 61.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    full = open("/dev/full", "w")  # noqa: SIM115 - closing it fails as well
    Progress(full, 40).show(10)
    with pytest.raises(OSError, match="No space"):
        full.close()


def test_ctrl_c_stops_at_once_and_leaves_no_half_file(write, folder, tmp_path):
    # Standard input stays open, so the command waits for more paths.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; import sys; from burn_engine.cli import main; sys.exit(main())"
    out = tmp_path / "features.npy"
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", write(), "-", "--json", "--features", out],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(burn_engine.__file__).parents[1])},
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{folder / 'b.ppm'}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["row"] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "burn-engine: interrupted\n"
    assert [path.name for path in tmp_path.iterdir() if "features" in path.name] == []


def test_as_many_threads_read_as_the_system_allows(monkeypatch):
    """And none is one line."""
    start, allowed = Thread.start, [3]

    def limited(thread):
        if not allowed[0]:
            raise RuntimeError("can't start new thread")
        allowed[0] -= 1
        start(thread)

    monkeypatch.setattr(Thread, "start", limited)
    assert [found for _, found in read_ahead(range(9), lambda x: x * x, 8)] == [
        x * x for x in range(9)
    ]
    for left in (0, 1):
        allowed[0] = left
        with pytest.raises(ValueError, match="for another thread"):
            list(read_ahead(range(9), lambda x: x, 8))


@pytest.mark.skipif(os.name == "nt", reason="no such names")
def test_a_listed_name_may_end_in_what_windows_ends_lines_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\r").touch()
    assert list(listed(io.StringIO("a\r\nb\r\n\r\nc\n", newline=""))) == ["a\r", "b", "c"]
