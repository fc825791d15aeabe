"""examples/camera.py on a video that the test makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import burn_engine

EXAMPLE = Path(__file__).parents[1] / "examples" / "camera.py"
SIDE, RATE, EACH = 96, 10, 5  # pixels, pictures a second, pictures of each kind


def pictures(kind: int, count: int = EACH, seed: int = 0) -> np.ndarray:
    """Coarse stripes, across or upright, with noise; (count, SIDE, SIDE, 3)."""
    random = np.random.default_rng((seed, kind))
    stripes = np.where(np.arange(SIDE) // 12 % 2, 200, 40)
    plain = np.broadcast_to(stripes[:, None] if kind else stripes[None], (SIDE, SIDE))
    noisy = plain[None, ..., None] + random.integers(-30, 30, (count, SIDE, SIDE, 3))
    return noisy.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a video of both kinds, a classifier of them and an index."""
    made = tmp_path_factory.mktemp("camera")
    code = cv2.VideoWriter.fourcc(*"MJPG")
    video = cv2.VideoWriter(str(made / "film.avi"), code, RATE, (SIDE, SIDE))
    assert video.isOpened()
    for picture in np.concatenate([pictures(0), pictures(1)]):
        video.write(picture)
    video.release()
    model = burn_engine.load("photos")
    known = [Image.fromarray(p) for kind in (0, 1) for p in pictures(kind, 6, seed=1)]
    learned = burn_engine.learn(model.features(known), [0] * 6 + [1] * 6, ["upright", "across"])
    burn_engine.write_classifier("photos", learned, made / "mine.bnn")
    index = burn_engine.Index(model.num_features, network=model.fingerprint)
    index.add(["some/upright.jpg", "some/across.jpg"], model.embed([known[0], known[-1]]))
    index.save(made / "known.index")
    return made


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("answers", "names"),
    [
        (("--model", "mine.bnn"), ("upright", "across")),
        (("--index", "known.index"), ("upright.jpg", "across.jpg")),
    ],
)
def test_it_says_what_each_picture_is(
    folder: Path, answers: tuple[str, str], names: tuple[str, str]
):
    out = folder / f"{answers[1]}.mp4"
    done = run(folder, "film.avi", *answers, "--out", out)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"0.00 s: {names[0]} ")
    assert second.startswith(f"{EACH / RATE:.2f} s: {names[1]} ")
    video = cv2.VideoCapture(str(out))
    assert video.get(cv2.CAP_PROP_FPS) == RATE
    seen = []
    while True:
        there, picture = video.read()
        if not there:
            break
        seen.append(picture)
    assert len(seen) == 2 * EACH
    assert seen[0][-4:].mean() < 60  # the line of text has a dark ground


def test_what_cannot_be_used_is_said_in_one_line(folder: Path):
    (folder / "notes.avi").write_text("hello")
    (folder / "there.mp4").write_text("mine")
    cv2.VideoWriter(
        str(folder / "empty.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 5, (64, 64)
    ).release()
    cases = {
        ("film.avi", "--model", "photos"): "photos has no classes: learn some with",
        ("film.avi", "--index", "known.index", "--network", "small"): "with another network than",
        ("no.avi", "--model", "mine.bnn"): "no.avi: there is no such file",
        ("notes.avi", "--model", "mine.bnn"): "notes.avi is no video that OpenCV reads",
        ("999", "--model", "mine.bnn"): "there is no camera 999",
        ("9" * 20, "--model", "mine.bnn"): f"there is no camera {'9' * 20}",
        ("empty.avi", "--model", "mine.bnn"): "empty.avi has no pictures",
        ("film.avi", "--model", "mine.bnn", "--out", "a.txt"): "--out a.txt does not end in .mp4",
        ("film.avi", "--model", "mine.bnn", "--out", "no/a.mp4"): "there is no folder no",
        ("film.avi", "--model", "mine.bnn", "--out", "there.mp4"): "there.mp4 exists already",
    }
    for arguments, sentence in cases.items():
        done = run(folder, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("camera.py: ")
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert (folder / "there.mp4").read_text() == "mine"
