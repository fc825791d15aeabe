"""Near-duplicates: what is found, what is refused, and how the command ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from burn_engine import copies, duplicates
from burn_engine.appearance import (
    ALTERATIONS,
    SIDE,
    UNALTERED,
    agreements,
    altered_codes,
    appearance,
    codes,
    most_bits,
)
from burn_engine.copies import Appearances
from scenes import scene

SEEDS = range(6)


def ppm(pixels):
    height, width, _ = pixels.shape
    return f"P6 {width} {height} 255\n".encode() + pixels.tobytes()


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of six scenes; two of them have copies, one of them in a subfolder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for seed in SEEDS:
        (folder / f"{seed}.ppm").write_bytes(ppm(scene(seed)))
    (folder / "0 dark.ppm").write_bytes(ppm(scene(0) // 2))
    (folder / "more" / "1 mirrored.ppm").write_bytes(ppm(scene(1)[:, ::-1]))
    return folder


@pytest.fixture
def command(run_command):
    return partial(run_command, "duplicates")


def groups_of(out):
    return [
        [Path(each["image"]).name for each in json.loads(line)["images"]]
        for line in out.splitlines()
    ]


def test_groups_are_printed_with_the_best_copy_first(photos, command):
    status, out, err = command("photos")
    assert (status, err) == (0, "")
    assert out == (
        "2 images:\n"
        "  64 × 64 pixels, 12,301 bytes  photos/0.ppm\n"
        "  64 × 64 pixels, 12,301 bytes  photos/0 dark.ppm\n\n"
        "2 images:\n"
        "  64 × 64 pixels, 12,301 bytes  photos/1.ppm\n"
        "  64 × 64 pixels, 12,301 bytes, mirrored  photos/more/1 mirrored.ppm\n\n"
        "2 groups with 4 of 8 images; without the first of each group they have 24,602 bytes\n"
    )
    lines = [json.loads(line) for line in command("photos", "--json")[1].splitlines()]
    assert lines[1]["images"][1] | {"agreement": 1} == {
        "image": "photos/more/1 mirrored.ppm", "width": 64, "height": 64, "bytes": 12_301,
        "agreement": 1, "alteration": "mirrored",
    }  # fmt: skip
    before = {path: path.read_bytes() for path in photos.rglob("*.ppm")}
    command("photos", "--html", "page.html")
    assert {path: path.read_bytes() for path in photos.rglob("*.ppm")} == before


def test_every_alteration_is_found_in_either_direction():
    pytest.importorskip("PIL")
    from PIL import Image

    photo = Image.fromarray(scene(3, 200, 260))
    width, height = photo.size
    altered = {
        "cropped": photo.crop((26, 20, 234, 180)),
        "cropped at a corner": photo.crop((52, 40, width, height)),
        "mirrored": photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "turned by 10": photo.rotate(10, Image.Resampling.BICUBIC),
        "turned by 25": photo.rotate(-25, Image.Resampling.BICUBIC),
        "a quarter turn": photo.transpose(Image.Transpose.ROTATE_90),
        "transposed": photo.transpose(Image.Transpose.TRANSPOSE),
        "small": photo.resize((65, 50)),
        "grey": photo.convert("L").convert("RGB"),
        "dark": Image.fromarray(np.asarray(photo) // 2),
    }
    for name, copy in altered.items():
        for pair in ([photo, copy], [copy, photo], [scene(4, 200, 260), copy, photo]):
            assert len(duplicates(pair)) == 1, name
    others = [scene(seed, 200, 260) for seed in range(30)]
    assert duplicates(others) == []


def test_the_best_copy_has_most_pixels_then_is_the_sharpest_then_has_most_bytes():
    small, large, blurred = scene(0), scene(0, 128, 128), scene(0, 128, 128).copy()
    blurred[1:-1, 1:-1] = (
        blurred[:-2, 1:-1].astype(int) + blurred[2:, 1:-1] + blurred[1:-1, :-2] + blurred[1:-1, 2:]
    ) // 4
    noisy = np.clip(large + np.random.default_rng(0).integers(-40, 41, large.shape), 0, 255)
    given = [small, large, noisy.astype(np.uint8)]
    pytest.importorskip("PIL")
    assert [copy.position for copy in duplicates(given)[0]] == [2, 1, 0]
    seen = Appearances(2)
    for num_bytes in (10, 20):
        seen.add(appearance(small), num_bytes)
    assert [copy.position for copy in seen.groups()[0]] == [1, 0]


def test_codes_are_those_of_the_formula():
    """A slow twin: sums by loops, samples one by one."""
    square = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)

    def blurred(side):
        half, padded = side // 2, np.pad(square.astype(float), side // 2, mode="edge")
        rows = range(SIDE)
        return (
            np.array([[padded[y : y + side, x : x + side].mean() for x in rows] for y in rows])
            + 0 * half
        )

    details = blurred(5) - blurred(15)
    places = (np.arange(25) + 0.5) / 25 * 2 - 1
    found = codes(square[None])
    altered = altered_codes(square[None])[0]
    assert (altered[UNALTERED] == found[0]).all()
    for way in (UNALTERED, 4, 10, 20, 25, len(ALTERATIONS) - 1):
        turn = np.deg2rad(ALTERATIONS[way].turn)
        bits = np.unpackbits(altered[way], bitorder="little")
        assert not bits[489:].any()
        at = 0
        for down in places:
            for right in places:
                if right**2 + down**2 > 1:
                    continue
                x = -right if ALTERATIONS[way].mirrored else right
                across = (x * np.cos(turn) - down * np.sin(turn)) * ALTERATIONS[way].zoom
                along = (x * np.sin(turn) + down * np.cos(turn)) * ALTERATIONS[way].zoom
                u = np.clip((across + ALTERATIONS[way].right + 1) / 2 * SIDE - 0.5, 0, SIDE - 1)
                v = np.clip((along + ALTERATIONS[way].down + 1) / 2 * SIDE - 0.5, 0, SIDE - 1)
                i, j = min(int(v), SIDE - 2), min(int(u), SIDE - 2)
                a, b = v - i, u - j
                value = (
                    details[i, j] * (1 - a) * (1 - b)
                    + details[i, j + 1] * (1 - a) * b
                    + details[i + 1, j] * a * (1 - b)
                    + details[i + 1, j + 1] * a * b
                )
                # Details of this noise are about 20; float32 rounds those of bytes by 1e-4.
                assert abs(value) < 1e-3 or bits[at] == (value >= 0)
                at += 1


def test_images_without_details_are_copies_only_if_they_are_the_same():
    grey = [np.full((SIDE, SIDE, 3), value, np.uint8) for value in (0, 0, 200, 255)]
    assert [[copy.position for copy in group] for group in duplicates(grey)] == [[0, 1]]
    squares = np.stack([appearance(image).square for image in grey])
    one = np.zeros(1, np.int64)
    assert agreements(squares, one, one + 2, one)[0] == 0


def test_a_group_is_a_star_and_no_chain():
    """Each step of a slow change is a copy of the one before; the ends are not alike."""
    pixels = [scene(0).astype(float), scene(1).astype(float)]
    steps = [
        np.clip(pixels[0] * (1 - share) + pixels[1] * share, 0, 255).astype(np.uint8)
        for share in np.linspace(0, 1, 12)
    ]
    assert duplicates([steps[0], steps[-1]]) == []
    found = duplicates(steps)
    assert len(found) >= 1
    for group in found:
        for copy in group[1:]:
            assert duplicates([steps[group[0].position], steps[copy.position]])


def test_many_copies_of_one_image_are_one_group():
    """More than the nearest codes that are asked for first, each a little different."""
    random = np.random.default_rng(0)
    images = [
        np.clip(scene(2) + random.integers(-3, 4, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        for _ in range(150)
    ]
    images += [scene(seed) for seed in range(10, 20)]
    for threads in (1, 3):
        found = duplicates(images, threads)
        assert [sorted(copy.position for copy in group) for group in found] == [list(range(150))]


def test_the_order_and_threads_do_not_matter():
    images = [scene(seed) for seed in range(40)] + [scene(seed)[:, ::-1] for seed in range(5)]
    expected = [sorted((i, 40 + i)) for i in range(5)]
    order = np.random.default_rng(0).permutation(45)
    for threads in (1, 2):
        found = duplicates([images[i] for i in order], threads)
        groups = sorted(sorted(int(order[copy.position]) for copy in group) for group in found)
        assert groups == expected


@pytest.mark.parametrize("isa", ["reference", "portable"])
def test_instruction_sets_agree(photos, command, monkeypatch, isa):
    expected = command("photos")
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    assert command("photos") == expected


def test_lists_tar_files_and_odd_names(photos, command, monkeypatch):
    odd = os.fsdecode(b"photos/\xff\n<b>.ppm")
    Path(odd).write_bytes((photos / "2.ppm").read_bytes())
    with tarfile.open("all.tar", "w") as tar:
        tar.add("photos/3.ppm")
    monkeypatch.setattr(sys, "stdin", io.StringIO("photos/0.ppm\nphotos/0 dark.ppm\n"))
    assert groups_of(command("-", "--json")[1]) == [["0.ppm", "0 dark.ppm"]]
    status, out, err = command("photos/3.ppm", "all.tar", "photos/2.ppm", odd, "--html", "a.html")
    assert (status, err.count("\n")) == (0, 1)
    assert "a.html" in err
    assert "  all.tar:photos/3.ppm\n" in out
    assert "\\udcff" in out
    page = Path("a.html").read_text()
    assert "<b>" not in page
    assert "%FF%0A%3Cb%3E.ppm" in page


def test_a_list_of_nothing_says_so(command, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert command("-") == (2, "", "burn-engine: no images were given\n")


def test_names_of_one_file_are_no_copies(photos, command):
    (photos / "link.ppm").symlink_to("5.ppm")
    (photos / "hard.ppm").hardlink_to(photos / "5.ppm")
    (photos / "circle").symlink_to(".")
    with tarfile.open("good.tar", "w") as tar:
        tar.add("photos/3.ppm", "x.ppm")
    Path("again.tar").symlink_to("good.tar")
    assert command("good.tar", "again.tar")[1] == "no copies among 1 image\n"
    status, out, err = command("photos", "photos/", "photos/0.ppm", "--json")
    assert status == 0
    assert len(groups_of(out)) == 2
    assert err == "burn-engine: left out 2 names of files that are given under another name\n"


def test_images_that_cannot_be_read_are_named_once_and_left_out(photos, command):
    (photos / "bad.ppm").write_bytes(b"no image")
    (photos / "empty.ppm").touch()
    (photos / "gone.ppm").symlink_to("nothing")
    (photos / "bomb.ppm").write_bytes(b"P6 99999 99999 255\n")
    os.mkfifo(photos / "pipe.ppm")
    status, out, err = command("photos", "--json")
    assert status == 2
    assert len(groups_of(out)) == 2
    lines = err.splitlines()
    assert len(lines) == 6
    for name in ("bad", "empty", "gone", "bomb", "pipe"):
        assert sum(f"photos/{name}.ppm" in line for line in lines) == 1
    assert lines[-1] == "burn-engine: 5 of 13 images were left out; see above"


def test_one_image_or_none(photos, command):
    assert command("photos/0.ppm") == (0, "no copies among 1 image\n", "")
    status, out, err = command("nothere.ppm", "--html", "page.html")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "burn-engine: nothere.ppm: No such file or directory",
        "burn-engine: none of the images can be read; see above",
    ]
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothere/"], "nothere/: No such file"),
        (["empty"], "empty: no images in this folder"),
        (["bad.tar"], "bad.tar is compressed: unpack it to a plain .tar"),
        (["photos", "--readers", "0"], "--readers"),
        (["photos", "--html", "no/a.html"], "--html no/a.html: there is no folder no"),
        (["photos", "--html", "photos"], "--html photos is a folder"),
        (["photos", "--html", "photos/0.ppm"], "photos/0.ppm is not the name of a page"),
        (["photos", "good.tar", "--html", "good.tar"], "good.tar is not the name of a page"),
    ],
)
def test_what_is_refused(photos, command, arguments, message):
    Path("empty").mkdir()
    Path("bad.tar").write_bytes(b"\x1f\x8b" + b"x" * 2000)
    with tarfile.open("good.tar", "w") as tar:
        tar.add("photos/3.ppm")
    before = {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}
    status, _, err = command(*arguments)
    assert status == 2
    assert message in err
    assert {path: path.read_bytes() for path in before} == before


def test_a_page_on_a_full_disk_is_not_half_written(photos, command, monkeypatch):
    Path("page.html").write_text("before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = command("photos", "--html", "page.html")
    assert status == 2
    assert "page.html cannot be written: No space left on device" in err
    assert Path("page.html").read_text() == "before"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_page_shows_the_groups(photos, command):
    pytest.importorskip("PIL")
    command("photos", "--html", "page.html")
    page = Path("page.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 4
    assert page.count("<section>") == 2
    assert page.count("best copy") == 2  # each group's first
    assert 'href="photos/more/1%20mirrored.ppm"' in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["copies_command._look", "copies.Appearances._near"])
def test_an_interrupted_command_says_what_was_done(photos, number, where):
    code = (
        "import sys, time; from burn_engine import cli, copies, copies_command\n"
        "def slow(*a): print('now', flush=True); time.sleep(60)\n"
        f"{where} = slow\n"
        "sys.exit(cli.main(['duplicates', 'photos', '--readers', '1']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "now\n"
        running.send_signal(number)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    read = 0 if "_look" in where else 8
    assert f"stopped: {read} of 8 images were read, and " in err


def test_arguments_of_the_function():
    with pytest.raises(ValueError, match="threads 0"):
        duplicates([], threads=0)
    with pytest.raises(ValueError, match="give a list"):
        duplicates("photos")
    with pytest.raises(ValueError, match=r"images\[1\]"):
        duplicates([scene(0), np.zeros((2, 2))])
    assert duplicates([]) == []
    floats = [scene(0) / 255.0, scene(0)]
    assert len(duplicates(floats)) == 1


def test_few_bits_of_unrelated_images_differ_seldom():
    """The largest share of bits that may differ lies far below that of unrelated images."""
    found = codes(np.stack([appearance(scene(seed)).square for seed in range(40)]))
    differ = np.unpackbits(found[:, None] ^ found[None], axis=2).sum(axis=2)
    assert differ[np.triu_indices(40, 1)].min() > most_bits()
    assert copies._MOST_NEAR >= 2
