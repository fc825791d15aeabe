"""The commands `index` and `search`: what changes, what is refused, and what an end leaves."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

import packed
from burn_engine import Index, Model, cli, load
from burn_engine.collection import located
from burn_engine.features_file import FeaturesFile
from burn_engine.finding import sole_writer
from burn_engine.images import read_input
from burn_engine.sheet import MOST_THUMBNAILS, Shown, write_sheet
from burn_engine.terminal import counted
from burn_engine.vectors import signs
from burn_engine.whole_file import whole_file


def ppm(seed):
    pixels = packed.random_images(seed, shape=(16, 16, 3))
    return b"P6 16 16 255\n" + pixels.tobytes()


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of six images, two of them in a subfolder, beside which the index lies."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for seed in range(6):
        where = folder / "more" if seed > 3 else folder
        (where / f"{seed}.ppm").write_bytes(ppm(seed))
    return folder


@pytest.fixture
def command(write, run_command):
    """A function that runs a command with a small network; it returns status, output and errors."""
    model = str(write(num_classes=6))

    def command(*arguments):
        return run_command(*arguments, "--model", model)

    command.model = model
    return command


def test_an_index_follows_its_folder(photos, command):
    status, out, err = command("index", "photos", "a.index")
    assert (status, err) == (0, "")
    assert out.startswith("a.index: 6 images (6 new), ")
    assert command("index", "photos", "a.index")[1].startswith("a.index: 6 images (0 new, 6 unch")
    (photos / "0.ppm").unlink()
    (photos / "1.ppm").write_bytes(ppm(20))
    (photos / "new.ppm").write_bytes(ppm(21))
    os.utime(photos / "2.ppm", (1, 1))
    out = command("index", "photos", "a.index")[1]
    assert "6 images (1 new, 2 changed, 1 vanished, 3 unchanged)" in out
    index = Index.load("a.index")
    assert set(index.names) == {
        f"photos/{name}.ppm" for name in ("1", "2", "3", "new", "more/4", "more/5")
    }
    vector = load(command.model).embed(photos / "1.ppm")
    assert index.search(vector, k=1)[0].name == "photos/1.ppm"


def test_what_lies_elsewhere_stays(photos, command):
    command("index", "photos", "a.index")
    (photos / "0.ppm").unlink()
    assert "6 images (0 new, 2 unchanged)" in command("index", "photos/more", "a.index")[1]
    assert "5 images (0 new, 1 vanished" in command("index", ".", "a.index")[1]


def test_images_folders_and_tar_files_are_removed_when_they_exist_no_more(
    photos, command, monkeypatch
):
    with tarfile.open("all.tar", "w") as tar:
        tar.add("photos/0.ppm")
    command("index", "photos", "all.tar", "a.index")
    shutil.rmtree(photos / "more")
    (photos / "more").mkdir()
    status, _, err = command("index", "photos/more", "a.index")
    assert status == 2
    assert "no images in this folder" in err
    assert "to take out what the index has of it, add --remove" in err
    (photos / "more").rmdir()
    for gone in ("photos/more", "photos/more/"):
        status, _, err = command("index", "photos", gone, "a.index")
        assert status == 2
        assert f"{gone}: no such file or folder; to take out what the index has of it" in err
    status, out, err = command("index", "photos/more", "a.index", "--remove")
    assert (status, err) == (0, "")
    assert out.startswith("a.index: 5 images (2 removed), ")
    for unknown in ("photos/more", "mor", "photos/0"):
        status, _, err = command("index", "photos/1.ppm", unknown, "a.index", "--remove")
        assert status == 2
        assert f"{unknown}: the index has no image of this name, and none in it" in err
    monkeypatch.setattr(sys, "stdin", io.StringIO("photos/0.ppm\nphotos/1.ppm\n"))
    assert "2 images (3 removed)" in command("index", "-", "all.tar", "a.index", "--remove")[1]
    assert Index.load("a.index").names == ("photos/2.ppm", "photos/3.ppm")
    assert command("index", "", "a.index", "--remove")[0] == 2
    assert "0 images (2 removed)" in command("index", ".", "a.index", "--remove")[1]
    assert command("index", ".", "no.index", "--remove")[0] == 2
    assert not Path("no.index").exists()


def test_what_is_removed_lies_in_what_is_given(photos, command, monkeypatch):
    """Also where that is above the index, has another name, or a folder that of a tar file."""
    (photos / "w.tar:x").mkdir()
    (photos / "w.tar:x" / "7.ppm").write_bytes(ppm(7))
    with tarfile.open("ALL.TAR", "w") as tar:
        tar.add("photos/0.ppm")
    Path("beside").mkdir()
    Path("link").symlink_to("photos")
    monkeypatch.chdir(photos)
    arguments = ["../ALL.TAR", "more", "w.tar:x", "0.ppm", "more/a.index"]
    for given, left in (
        ([".."], 0), (["/"], 0), (["."], 1), (["../photos"], 1), (["more"], 3), (["w.tar:x"], 4),
        (["../ALL.TAR"], 4), (["../link/0.ppm"], 4), (["more/4.ppm", "w.tar:x/7.ppm"], 3),
    ):  # fmt: skip
        assert "5 images" in command("index", *arguments)[1]
        status, out, _ = command("index", *given, "more/a.index", "--remove")
        assert (status, out.split(" (")[0]) == (0, f"more/a.index: {counted(left)}"), given
    assert command("index", "../beside", "more/a.index", "--remove")[0] == 2


def test_search_prints_the_nearest_first(photos, command):
    command("index", "photos", "a.index")
    status, out, err = command("search", "a.index", "photos/3.ppm", "--k", 2)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "1.000    0 bits  photos/3.ppm"
    assert len(lines) == 2
    out = command("search", "a.index", "photos/3.ppm", "photos/more/4.ppm", "--json")[1]
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["query"] for answer in answers] == ["photos/3.ppm", "photos/more/4.ppm"]
    assert answers[1]["results"][0] == {
        "image": "photos/more/4.ppm", "distance": 0, "similarity": 1.0,
    }  # fmt: skip
    assert len(answers[0]["results"]) == 6


def test_an_index_is_searched_from_elsewhere(photos, command, monkeypatch):
    command("index", "photos", "a.index")
    monkeypatch.chdir(photos / "more")
    out = command("search", "../../a.index", "4.ppm", "--k", 6)[1].splitlines()
    assert out[0].endswith(" 4.ppm")
    assert any(line.endswith(f" {photos / '0.ppm'}") for line in out)


def test_lists_and_tar_files(photos, command, monkeypatch):
    with tarfile.open("all.tar", "w") as tar:
        tar.add("photos")
    listed = io.StringIO("photos/0.ppm\nphotos/1.ppm\nphotos/0.ppm\n")
    monkeypatch.setattr(sys, "stdin", listed)
    assert "2 images (2 new)" in command("index", "-", "list.index")[1]
    assert "6 images (6 new)" in command("index", "all.tar", "tar.index")[1]
    folder, tar = (Index.load(name) for name in ("list.index", "tar.index"))
    assert "all.tar:photos/more/5.ppm" in tar
    out = command("search", "tar.index", "photos/2.ppm", "--k", 1)[1]
    assert out == "1.000    0 bits  all.tar:photos/2.ppm\n"
    assert (folder.codes[0] == tar.codes[tar.names.index("all.tar:photos/0.ppm")]).all()
    with tarfile.open("all.tar", "w") as fewer:
        fewer.add("photos/more")
    assert "2 images (0 new, 2 changed, 4 vanished)" in command("index", "all.tar", "tar.index")[1]


def test_a_tar_file_stays_in_the_index_whatever_the_case_of_its_suffix(photos, command):
    with tarfile.open(photos / "UP.TAR", "w") as tar:
        tar.add("photos/0.ppm", "a.ppm")
    command("index", "photos", "photos/UP.TAR", "a.index")
    assert "7 images (0 new, 6 unchanged)" in command("index", "photos", "a.index")[1]
    assert located("photos/UP.TAR:a.ppm", Path()) == ("photos/UP.TAR", "a.ppm")


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """The block of a tar file that stands before a member."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[257:265] = b"ustar  \0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


ONE = ppm(0)
WHOLE = header("0.ppm", b"%011o" % len(ONE)) + ONE.ljust(-(-len(ONE) // 512) * 512, b"\0")
NAMED = header("././@LongLink", b"%011o" % 6, b"L") + b"a.ppm".ljust(512, b"\0")
END = bytes(1024)
DAMAGED = {
    "a negative size": (
        WHOLE + header("x.txt", b"\xff" + (256**11 - 512).to_bytes(11, "big")) + END,
        f"holds an entry of an unreadable size at byte {len(WHOLE)}",
    ),
    "a size beyond 64 bits": (
        WHOLE + header("x.txt", b"\x80" + (2**70).to_bytes(11, "big")) + END,
        f"is cut off: an entry at byte {len(WHOLE)} ends at {2**70 + 512 + len(WHOLE)}",
    ),
    "a size beyond the file": (
        header("0.ppm", b"\x80" + (2**50).to_bytes(11, "big")) + END,
        f"is cut off: an entry at byte 0 ends at {2**50 + 512}",
    ),
    "a name of megabytes": (
        header("././@LongLink", b"%011o" % (2 << 20), b"L") + bytes(2 << 20) + WHOLE + END,
        "has a name of 2097152 bytes at byte 0",
    ),
    "a changed header": (
        WHOLE + WHOLE.replace(b"0.ppm", b"1.ppm") + WHOLE + END,
        f"is damaged at byte {len(WHOLE)}, or is not a tar",
    ),
    "no end mark": (WHOLE, f"is cut off at byte {len(WHOLE)}, before its end mark"),
    "half a header": (
        WHOLE + WHOLE[:300], f"is cut off at byte {len(WHOLE) + 300}, before its end mark"
    ),
    "nothing": (b"", "is cut off at byte 0, before its end mark"),
    "no tar": (b"text" * 1000, "is damaged at byte 0, or is not a tar"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_tar_file_is_one_line_and_changes_no_index(photos, command, run_command, damage):
    Path("bad.tar").write_bytes(WHOLE + END)
    command("index", "bad.tar", "b.index")
    before = Path("b.index").read_bytes()
    content, message = DAMAGED[damage]
    Path("bad.tar").write_bytes(content)
    for status, _, err in (
        command("index", "bad.tar", "b.index"),
        run_command("duplicates", "bad.tar"),
    ):
        assert status == 2
        assert err == f"burn-engine: bad.tar {message}\n"
    assert Path("b.index").read_bytes() == before


def test_the_last_of_many_long_names_is_a_members(photos, command):
    Path("a.tar").write_bytes(NAMED * 1200 + WHOLE + END)
    assert command("index", "a.tar", "a.index")[0] == 0
    assert Index.load("a.index").names == ("a.tar:a.ppm",)


def test_links_in_a_tar_file_are_further_names_as_in_a_folder(photos, command, run_command):
    folder = photos / "linked"
    folder.mkdir()
    (folder / "a.ppm").write_bytes(ppm(0))
    (folder / "b.ppm").hardlink_to(folder / "a.ppm")
    (folder / "c.ppm").symlink_to("a.ppm")
    (folder / "d.ppm").symlink_to("nothing.ppm")
    with tarfile.open("l.tar", "w") as tar:
        tar.add(folder, "linked")
    assert command("index", "l.tar", "l.index")[0] == 0
    assert Index.load("l.index").names == tuple(f"l.tar:linked/{name}.ppm" for name in "abc")
    _, out, err = run_command("duplicates", "l.tar")
    assert "left out 2 names of files that are given under another name" in err
    assert "no copies among 1 image" in out


def test_members_with_holes_are_left_out(photos, command):
    rest = ONE.ljust(-(-len(ONE) // 512) * 512, b"\0")
    sparse = bytearray(header("holes.ppm", b"%011o" % len(ONE), b"S"))
    sparse[386:410] = b"%011o\0%011o\0" % (0, len(ONE))  # one piece
    sparse[483:495] = b"%011o\0" % (2 * len(ONE))
    sparse[148:156] = b" " * 8
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    Path("a.tar").write_bytes(bytes(sparse) + rest + WHOLE + bytes(1024))
    status, out, err = command("index", "a.tar", "a.index")
    assert status == 0
    assert out.startswith("a.index: 1 image (1 new)")
    assert "a.tar: holes.ppm: stored with holes: left out, unpack it" in err


def test_images_that_cannot_be_read_are_named_once_and_left_out(photos, command):
    (photos / "bad.ppm").write_bytes(b"no image")
    (photos / "empty.ppm").touch()
    (photos / "gone.ppm").symlink_to("nothing")
    os.mkfifo(photos / "pipe.ppm")
    for _ in range(2):
        status, out, err = command("index", "photos", "a.index")
        assert status == 2
        assert out.startswith("a.index: 6 images (")
        assert "4 left out" in out
        lines = err.splitlines()
        assert len(lines) == 5
        for name in ("bad", "empty", "gone", "pipe"):
            assert sum(f"photos/{name}.ppm" in line for line in lines) == 1
        assert lines[-1] == "burn-engine: 4 of 10 images were left out; see above"
    (photos / "0.ppm").write_bytes(b"P6 damaged")  # it was in the index
    assert "5 images (0 new, 5 left out, 5 unchanged)" in command("index", "photos", "a.index")[1]
    assert "photos/0.ppm" not in Index.load("a.index")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "photos", "photos"], "photos is a folder: give the file of the index"),
        (["index", "photos", "nothere/a.index"], "there is no folder nothere"),
        (["index", "nothere", "b.index"], "nothere: No such file or directory"),
        (["index", "empty", "b.index"], "empty: no images in this folder"),
        (["index", "nothere", "a.index", "--remove"], "nothere: the index has no image"),
        (["index", "photos", "nothere.index", "--remove"], "nothere.index: No such file"),
        (["index", "-", "a.index", "--remove"], "standard input"),
        (["index", "photos", "photos/0.ppm"],
         "photos/0.ppm: this is not an index of burn-engine but a PPM image"),
        (["index", "photos", "photos/9.JPG"], "photos/9.JPG: give the index after the images"),
        (["index", "photos", "photso", "b.index"], "photso: No such file or directory"),
        (["index", "photos", "a.txt"], "a.txt: this is not an index of burn-engine"),
        (["search", "photos/0.ppm", "a.index"], "not an index of burn-engine but a PPM image"),
        (["search", "a.index", "photos"], "photos: not a regular file but a folder"),
        (["index", "bad.tar", "b.index"], "bad.tar is compressed: unpack it to a plain .tar"),
        (["index", "bad.tar.gz", "b.index"], "bad.tar.gz is compressed: unpack it"),
        (["index", "photos", "a.index", "--vectors", "none"], "made with --vectors float16"),
        (["index", "photos", "other.index"], "made with another network"),
        (["search", "small.index", "photos/0.ppm"], "made with the network small: give --model"),
        (["search", "photos", "photos/0.ppm"], "`burn-engine index photos FILE` makes an index"),
        (["search", "other.index", "photos/0.ppm"], "made with another network"),
        (["search", "nothere.index", "photos/0.ppm"], "nothere.index: No such file"),
        (["search", "a.index", "nothere.ppm"], "nothere.ppm: No such file"),
        (["search", "a.index", "a.index"], "or TIFF but an index of burn-engine"),
        (["search", "cut.index", "photos/0.ppm"],
         "cut.index: an index of burn-engine, but it is damaged or cut off"),
        (["search", "a.index", "photos/0.ppm", "--k", "0"], "--k"),
        (["search", "a.index", "photos/0.ppm", "--html", "no/a.html"], "there is no folder no"),
    ],
)  # fmt: skip
def test_what_is_refused(photos, command, arguments, message):
    command("index", "photos", "a.index")
    Index(4, network="another").save("other.index")
    Index(4, network=load("small").fingerprint).save("small.index")
    Path("empty").mkdir()
    Path("a.txt").write_text("text")
    Path("cut.index").write_bytes(Path("a.index").read_bytes()[:200])
    for name in ("bad.tar", "bad.tar.gz"):
        Path(name).write_bytes(b"\x1f\x8b" + b"x" * 2000)
    before = {path: path.read_bytes() for path in Path().glob("*.index")}
    names = sorted(path.name for path in Path().iterdir())
    status, _, err = command(*arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    assert [
        name for name in sorted(path.name for path in Path().iterdir()) if name != "b.index"
    ] == names


def test_two_writers(photos, command):
    command("index", "photos", "a.index")
    before = Path("a.index").read_bytes()
    (photos / "new.ppm").write_bytes(ppm(9))
    with open(".a.index.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, err = command("index", "photos", "a.index")
    assert status == 2
    assert "another process is writing it" in err
    assert Path("a.index").read_bytes() == before
    assert "7 images (1 new" in command("index", "photos", "a.index")[1]
    assert not Path(".a.index.lock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_keeps_what_is_finished(photos, command, number):
    """It reads a list that does not end, so that the signal comes while it waits for more."""
    command("index", "photos/more", "a.index")
    code = (
        "import sys, os, time; from burn_engine import cli, finding\n"
        "embed = finding._embeddings\n"
        "def slow(*a):\n"
        "    for i, one in enumerate(embed(*a)):\n"
        "        yield one\n"
        "        if i == 2: print('three', flush=True); time.sleep(60)\n"
        "finding._embeddings = slow\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    arguments = ["index", "photos", "a.index", "--model", command.model]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(number)
        _, err = running.communicate(timeout=30)
    assert first == "three\n", err
    assert running.returncode == 128 + number
    assert "stopped: a.index has 5 images; the same command goes on" in err
    assert len(Index.load("a.index")) == 5
    assert "6 images (1 new, 5 unchanged)" in command("index", "photos", "a.index")[1]
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_an_interrupt_before_the_first_image_leaves_no_index(photos, command, monkeypatch):
    from burn_engine import finding

    def interrupted(*_):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(finding, "_embeddings", interrupted)
    status, out, err = command("index", "photos", "a.index")
    assert (status, out, err) == (130, "", "burn-engine: interrupted\n")
    assert not Path("a.index").exists()


def test_a_list_has_names_of_any_bytes_whatever_the_locale(photos, command):
    name = b"photos/\xff\xfe.ppm"
    Path(os.fsdecode(name)).write_bytes(ppm(9))
    code = "import sys; from burn_engine_start import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "index", "-", "a.index", "--model", command.model],
        input=name + b"\nphotos/0.ppm\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},  # as en_US.UTF-8 has it
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"a.index: 2 images (2 new), ")
    assert os.fsdecode(name) in Index.load("a.index")


def test_a_long_work_is_saved_every_minute(photos, command, monkeypatch):
    from burn_engine import finding

    saves = []
    now = iter(range(0, 10_000, 40))  # seconds: of the clock at each image
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(finding, "read_ahead", lambda items, read, _: _one_by_one(items, read))
    monkeypatch.setattr(Index, "save", lambda index, path: saves.append(len(index)))
    arguments = ["index", "photos", "a.index", "--model", command.model]
    assert cli.main(arguments) == 2  # there is no file whose size could be printed
    assert saves == [2, 4, 6, 6]


def _one_by_one(items, read):
    yield from ((item, read(item)) for item in items)


def test_an_index_is_copied_seldom_when_all_of_it_has_changed(photos, command, monkeypatch):
    from burn_engine import finding

    command("index", "photos", "a.index")
    for seed, photo in enumerate(sorted(photos.rglob("*.ppm"))):
        photo.write_bytes(ppm(seed + 10) + b" " if seed > 1 else b"no image")
    monkeypatch.setattr(finding, "_AT_ONCE", 1)
    monkeypatch.setattr(finding, "_COPIES", 2)
    copies = []
    remove = Index._remove

    def counted(self, names):
        copies.append(len(names))
        remove(self, names)

    monkeypatch.setattr(Index, "_remove", counted)
    out = command("index", "photos", "a.index")[1]
    assert "4 images (0 new, 4 changed, 2 left out)" in out
    assert len([count for count in copies if count]) == 3  # twice the images, once the damaged
    assert "photos/0.ppm" not in Index.load(Path("a.index"))


def test_images_have_one_name_by_whichever_links_they_are_reached(photos, command, monkeypatch):
    Path("link").symlink_to("photos")
    monkeypatch.chdir("link")  # where Python knows only the folder's own name
    there = photos.parent / "link"
    command("index", ".", "a.index")
    for folder in (".", there, photos, there / "more", there / "0.ppm"):
        for index in ("a.index", there / "a.index"):
            assert "6 images (0 new," in command("index", folder, index)[1], (folder, index)
    (photos / "0.ppm").unlink()
    assert "5 images (0 new, 1 vanished" in command("index", there, "a.index")[1]
    assert Index.load(Path("a.index")).names[0] == "1.ppm"


def test_names_that_an_earlier_version_gave_through_links_vanish(photos, command, monkeypatch):
    Path("link").symlink_to("photos")
    there = photos.parent / "link"
    monkeypatch.chdir("link")
    command("index", ".", "a.index")
    index = Index.load(Path("a.index"))
    name = "../link/0.ppm"
    index.add([name], index.vectors_of([0]))
    index.save(Path("a.index"))
    assert "6 images (0 new, 1 vanished" in command("index", there, "a.index")[1]


def test_a_folder_of_links_is_named_from_where_it_is(photos, command, tmp_path):
    """Its own links are not followed for their names, so that what is gone vanishes."""
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "x.ppm").write_bytes(ppm(9))
    (photos / "sub").symlink_to(other)
    out = tmp_path.parent / f"{tmp_path.name}-out"
    out.symlink_to(photos)
    for folder in ("photos", out, "photos"):
        command("index", folder, "a.index")
        assert [n for n in Index.load(Path("a.index")).names if "x.ppm" in n] == [
            "photos/sub/x.ppm"
        ]
    (other / "x.ppm").unlink()
    assert "1 vanished" in command("index", out, "a.index")[1]


def test_folders_of_other_programs_are_skipped_in_tar_files_too(photos, command):
    for name in ("@eaDir/0", ".thumbnails", "__MACOSX"):
        (photos / name).mkdir(parents=True)
        (photos / name / "0.ppm").write_bytes(ppm(7))
    (photos / "0.heic").write_bytes(b"")
    for arguments in (["photos"], [".", "-C", "photos"]):
        subprocess.run(["tar", "-cf", "a.tar", *arguments[1:], arguments[0]], check=True)
        status, out, err = command("index", "a.tar", f"{len(arguments)}.index")
        assert (status, out.split(": ")[1][:16]) == (0, "6 images (6 new)")
    assert "3 folders of other programs (.thumbnails, @eaDir, __MACOSX)" in err
    photos.rename(".private")
    subprocess.run(["tar", "-cf", "p.tar", ".private"], check=True)
    assert "6 images (6 new)" in command("index", "p.tar", "p.index")[1]  # as the folder itself
    Path(".private").rename("photos")
    assert command("index", "photos", "b.index")[2] == err.replace("a.tar", "photos")


def test_a_page_shows_the_results(photos, command):
    pytest.importorskip("PIL")
    (photos / "<b>&'\".ppm").write_bytes(ppm(8))
    command("index", "photos", "a.index")
    command("search", "a.index", "photos/3.ppm", "--k", "3", "--html", "page.html")
    page = Path("page.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 4  # the query and three
    assert 'href="photos/3.ppm"' in page
    command("search", "a.index", "photos/<b>&'\".ppm", "photos/3.ppm", "--html", "page.html")
    page = Path("page.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert 'href="photos/%3Cb%3E%26%27%22.ppm"' in page
    assert not re.search(r'(src|href)="https?:', page)


def test_a_page_has_a_bounded_number_of_thumbnails(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "a.ppm").write_bytes(ppm(0))
    images = [Shown(str(tmp_path / "a.ppm"), f"{i}", "") for i in range(MOST_THUMBNAILS + 50)]
    images[3] = Shown(str(tmp_path / "nothere.ppm"), "\udce9", "odd bytes")
    write_sheet(tmp_path / "page.html", "t", "a", [("", images)])
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg;base64,") == MOST_THUMBNAILS - 1
    assert page.count("<figure>") == MOST_THUMBNAILS + 50


def test_an_index_has_what_each_image_gives_alone(photos, command, isa, monkeypatch):
    """Also of other shapes, and beside one whose features have no direction."""
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    for seed in range(40):
        (photos / f"more{seed:02}.ppm").write_bytes(ppm(seed))
    for side in (16, 20):
        np.save(photos / f"{side}.npy", packed.random_images(shape=(side, side, 3)))
    embed = Model.embed

    def refuses(model, images):
        """Refuse one image, and every batch that it is in, as features of length 0 are."""
        if (np.atleast_2d(images)[..., 0, 0, :] == refused).all(axis=-1).any():
            raise ValueError("all features of an image are 0")
        return embed(model, images)

    model = load(command.model)
    refused = read_input(photos / "more07.ppm", model.image)[0, 0]
    with monkeypatch.context() as patched:
        patched.setattr(Model, "embed", refuses)
        status, out, err = command("index", "photos", "a.index", "--vectors", "float32")
    assert status == 2
    assert "47 images (47 new, 1 left out)" in out
    assert err.startswith("burn-engine: photos/more07.ppm: all features of an image are 0\n")
    index = Index.load("a.index")
    assert len(index) == 47
    for position, name in enumerate(index.names):
        vector = load(command.model, isa=isa).embed(name)
        np.testing.assert_array_equal(index.codes[position], signs(vector[None])[0])
        # Lengths are computed again when an index is made and when it is asked: three roundings.
        np.testing.assert_allclose(index.vectors_of([position])[0], vector, rtol=3e-7)


def test_embeddings_and_codes_of_lists(photos, command):
    model = load(command.model)
    paths = [photos / f"{i}.ppm" for i in range(4)] * 20
    vectors = model.embed(paths)
    assert vectors.shape == (80, model.num_features)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.allclose(vectors[70], model.embed(paths[70]), atol=1e-6)
    features = model.features(paths[:4])
    assert (model.codes(paths[:4]) == np.packbits(features >= 0, axis=1, bitorder="little")).all()
    assert model.codes(paths[1]).shape == ((model.num_features + 7) // 8,)


def test_a_fingerprint_is_that_of_the_features(write):
    whole = load(write(num_classes=6))
    assert whole.fingerprint == load(write(num_classes=3)).fingerprint
    assert whole.fingerprint != load(write(num_classes=6, seed=1)).fingerprint
    assert len(whole.fingerprint) == 64


def test_a_member_of_a_tar_file_is_never_taken_for_another_file(photos, command):
    """Its name may be a path that leads out of the archive, where another image lies."""
    with tarfile.open("odd.tar", "w") as tar:
        tar.add("photos/0.ppm", "../photos/1.ppm", filter=None)
        tar.add("photos/2.ppm", str(photos / "3.ppm").lstrip("/"))
    assert "2 images (2 new)" in command("index", "odd.tar", "a.index")[1]
    out = command("search", "a.index", "photos/0.ppm", "--html", "a.html")[1]
    assert out.splitlines()[0] == "1.000    0 bits  odd.tar:../photos/1.ppm"
    assert Path("a.html").read_text().count("data:image/jpeg;base64,") == 1  # the query alone


@pytest.mark.parametrize("isa", ["reference", "portable"])
def test_the_environment_chooses_the_instruction_set(photos, command, monkeypatch, isa):
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    command("index", "photos", "a.index")
    status, out, err = command("search", "a.index", "photos/3.ppm", "--k", "1")
    assert (status, err) == (0, "")
    assert out == "1.000    0 bits  photos/3.ppm\n"


def test_a_folder_does_not_stand_for_what_lies_outside_of_it(photos, command, monkeypatch):
    (photos / "here").mkdir()
    (photos / "here" / "a.ppm").write_bytes(ppm(30))
    with tarfile.open(photos / "here" / "t.tar", "w") as tar:
        tar.add("photos/0.ppm")
    monkeypatch.chdir(photos / "here")
    assert "3 images (3 new)" in command("index", "../more", ".", "x.index")[1]
    assert "4 images (1 new" in command("index", "t.tar", "x.index")[1]
    assert "4 images (0 new, 1 unchanged)" in command("index", ".", "x.index")[1]


def test_a_page_replaces_no_input(photos, command):
    command("index", "photos", "a.index")
    before = Path("a.index").read_bytes()
    Path("copy.html").hardlink_to("photos/3.ppm")
    Path("link.html").symlink_to("photos/2.ppm")
    Path("model.html").hardlink_to(command.model)
    for page, why in (
        ("a.index", "a.index is not the name of a page: end it in .html"),
        ("photos/2.ppm", "photos/2.ppm is not the name of a page"),  # a forgotten name
        ("link.html", "photos/2.ppm is not the name of a page"),
        ("copy.html", "copy.html is an input as well"),
        ("model.html", "model.html is an input as well"),
    ):
        status, _, err = command("search", "a.index", "photos/3.ppm", "--html", page)
        assert status == 2
        assert why in err
    assert Path("a.index").read_bytes() == before
    assert Path("copy.html").read_bytes() == ppm(3)


def test_a_moment_in_which_an_image_cannot_be_read_takes_nothing_away(photos, command, monkeypatch):
    from burn_engine.collection import Photo

    command("index", "photos", "a.index")
    os.utime(photos / "2.ppm", (1, 1))
    for error in (PermissionError(13, "Permission denied", "photos/2.ppm"), MemoryError()):
        with monkeypatch.context() as patched:

            def fail(photo, size, error=error):
                raise error

            patched.setattr(Photo, "read", fail)
            status, out, _ = command("index", "photos", "a.index")
        assert status == 2
        assert "6 images (0 new, 1 left out, 5 unchanged)" in out
    assert "6 images (0 new, 1 changed, 5 unchanged)" in command("index", "photos", "a.index")[1]


def test_an_index_behind_a_link_is_updated_where_it_is(photos, command):
    Path("real").mkdir()
    command("index", "photos", "real/a.index")
    Path("link.index").symlink_to("real/a.index")
    (photos / "new.ppm").write_bytes(ppm(9))
    assert "7 images (1 new, 6 unchanged)" in command("index", "photos", "link.index")[1]
    assert Path("link.index").is_symlink()
    out = command("search", "link.index", "photos/new.ppm", "--k", "1")[1]
    assert out == "1.000    0 bits  photos/new.ppm\n"


def test_a_lock_that_was_removed_while_it_was_waited_for_is_none(tmp_path, monkeypatch):
    """Two commands that opened the file before the first removed it would both hold a lock."""
    path, lock = tmp_path / "a.index", tmp_path / ".a.index.lock"
    flock, taken = fcntl.flock, []

    def late(held, how):
        if not taken:
            lock.unlink()  # as the one that held it does at its end
        taken.append(os.fstat(held).st_ino)
        flock(held, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with sole_writer(path):
        assert taken[-1] == lock.stat().st_ino
    assert len(taken) == 2
    assert not lock.exists()


@pytest.mark.parametrize("kind", ["file", "pipe", "link"])
def test_what_is_no_lock_stays(photos, command, kind):
    lock, other = Path(".a.index.lock"), Path("other")
    if kind == "file":
        lock.write_text("precious")
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(other)
    status, _, err = command("index", "photos", "a.index")
    assert (status, err) == (
        2,
        "burn-engine: .a.index.lock is no lock of burn-engine: remove it, or give the index "
        "another name\n",
    )
    assert lock.is_symlink() if kind == "link" else lock.exists()
    assert not other.exists()
    assert not Path("a.index").exists()


def test_other_queries_are_answered(photos, command):
    command("index", "photos", "a.index")
    arguments = ("photos/0.ppm", "nothere.ppm", "photos/1.ppm", "--k", "1", "--html", "a.html")
    status, out, err = command("search", "a.index", *arguments)
    assert status == 2
    assert out.count("1.000    0 bits") == 2
    assert err.splitlines() == [
        "burn-engine: nothere.ppm: No such file or directory",
        f"burn-engine: a.html: {Path('a.html').stat().st_size:,} bytes; open it in a browser",
        "burn-engine: 1 of 3 images were left out; see above",
    ]
    assert Path("a.html").read_text().count("<section>") == 2


def test_an_index_of_nothing_is_not_made(photos, command):
    status, _, err = command("index", "nothere.ppm", "b.index")
    assert status == 2
    assert "b.index: not made, since none of the images can be read" in err
    assert not Path("b.index").exists()


def test_the_last_of_two_members_of_a_name_counts(photos, command):
    with tarfile.open("two.tar", "w") as tar:
        tar.add("photos/0.ppm", "x.ppm")
        tar.add("photos/1.ppm", "x.ppm")
    assert "1 image (1 new)" in command("index", "two.tar", "a.index")[1]
    assert command("search", "a.index", "photos/1.ppm")[1] == "1.000    0 bits  two.tar:x.ppm\n"


def test_a_time_that_no_64_bits_hold(photos, command, monkeypatch):
    from burn_engine import collection

    in_64_bits = collection._in_64_bits
    monkeypatch.setattr(collection, "_in_64_bits", lambda time: in_64_bits(2**70 + time))
    assert "6 images (6 new)" in command("index", "photos", "a.index")[1]
    assert "6 images (0 new, 6 unchanged)" in command("index", "photos", "a.index")[1]


@pytest.mark.parametrize("name", ["run", "index", "learn"])
def test_a_process_ends_without_a_word(photos, command, name):
    """What a thread still holds at the end, nanobind would report."""
    arguments = {
        "run": ["run", command.model, "photos"],
        "index": ["index", "photos", "a.index", "--model", command.model],
        "learn": ["learn", "labelled", "mine.bnn", "--from", command.model],
    }[name]
    for label in "ab":
        (Path("labelled") / label).mkdir(parents=True)
        for seed in range(3):
            (Path("labelled") / label / f"{seed}.ppm").write_bytes(ppm(seed + ord(label)))
    code = "import sys; from burn_engine import cli; sys.exit(cli.main(sys.argv[1:]))"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )
        Path("mine.bnn").unlink(missing_ok=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["run", "index", "duplicates"])
@pytest.mark.parametrize(
    ("to", "why"),
    [("/nothing/here", "No such file or directory"), ("trips", os.strerror(errno.ELOOP))],
)
def test_a_link_to_nothing_that_looks_like_a_folder_is_named(
    photos, command, run_command, name, to, why
):
    (photos / "trips").symlink_to(to)
    if name == "duplicates":
        status, _, err = run_command(name, "photos")
    elif name == "run":
        status, _, err = run_command(name, command.model, "photos")
    else:
        status, out, err = command(name, "photos", "a.index")
        assert "6 images (6 new, 1 left out)" in out
    assert status == 2
    assert err.splitlines() == [
        f"burn-engine: photos/trips: {why}",
        "burn-engine: 1 of 7 images were left out; see above",
    ]


def test_what_lies_behind_a_link_stays_while_it_leads_to_nothing(photos, command, tmp_path):
    """It may be a disk that is not there today."""
    (photos / "more").rename(tmp_path / "disk")
    (photos / "more").symlink_to(tmp_path / "disk")
    command("index", "photos", "a.index")
    (tmp_path / "disk").rename(tmp_path / "away")
    assert "6 images (0 new, 1 left out, 4 unchanged)" in command("index", "photos", "a.index")[1]
    (photos / "more").unlink()
    assert "4 images (0 new, 2 vanished, 4" in command("index", "photos", "a.index")[1]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", ["search", "cluster", "duplicates"])
def test_an_interrupted_page_is_not_written_and_says_so(photos, command, name, there):
    pytest.importorskip("PIL")
    (photos / "copy.ppm").write_bytes((photos / "0.ppm").read_bytes())
    command("index", "photos", "a.index")
    if there:
        Path("page.html").write_text("before")
    arguments = {
        "search": ["search", "a.index", "photos/0.ppm", "--model", command.model],
        "cluster": ["cluster", "a.index"],
        "duplicates": ["duplicates", "photos"],
    }[name]
    code = (
        "import sys, time; from burn_engine import cli, sheet\n"
        "def slow(*a): print('now', file=sys.stderr, flush=True); time.sleep(60)\n"
        "sheet._thumbnail = slow\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--html", "page.html"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert running.stderr.readline() == "now\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert err.splitlines() == [
        "burn-engine: stopped: page.html was not written"
        + (", and is as it was" if there else "")
        + "; all results were printed",
        "burn-engine: interrupted",
    ]
    assert "photos/" in out
    assert [path.read_text() for path in Path().glob("*.html")] == ["before"] * there
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("name", ["search", "cluster", "duplicates"])
def test_a_page_is_written_though_nobody_reads_the_output(photos, command, name):
    """As with `| head -1`, which closes its end after the first line."""
    (photos / "copy.ppm").write_bytes((photos / "0.ppm").read_bytes())
    command("index", "photos", "a.index")
    arguments = {
        "search": ["search", "a.index", "photos/0.ppm", "--model", command.model],
        "cluster": ["cluster", "a.index"],
        "duplicates": ["duplicates", "photos"],
    }[name]
    code = "import sys; from burn_engine import cli; sys.exit(cli.main(sys.argv[1:]))"
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json", "--html", "page.html"],
        stdout=written, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(written)
    size = Path("page.html").stat().st_size
    said = f"burn-engine: page.html: {size:,} bytes; open it in a browser\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert Path("page.html").read_text().rstrip().endswith("</html>")


def test_what_a_killed_process_left_is_removed(tmp_path):
    """But not another file's, nor one that is held, nor one that has just been made."""
    path, other = tmp_path / "a.index", tmp_path / "b.index"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from burn_engine.whole_file import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); print('now', flush=True); time.sleep(60)"
    )
    for each in (path, other):
        with subprocess.Popen(
            [sys.executable, "-c", code, each], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "now\n"
            running.kill()
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2

    def write():
        with whole_file(path) as file:
            file.write(b"whole")

    write()
    assert sorted(tmp_path.iterdir()) == [*left, path]  # they are not old enough
    for each in left:
        os.utime(each, (1, 1))
    for each in left:
        with each.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            write()
            assert each.exists()
    write()
    kept = [each for each in left if each.exists()]
    assert len(kept) == 1
    with FeaturesFile(other) as features:
        features.add(np.zeros(3, np.float32))
    assert sorted(tmp_path.iterdir()) == [path, other]
