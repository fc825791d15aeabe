"""A page that a command writes replaces nothing that the command reads or its index names."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from burn_engine import Index, load
from packed import random_images


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two photographs, one in a tar file, and an index of all."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        pixels = random_images(number, (20, 24, 3))
        Path(f"{number}.ppm").write_bytes(b"P6 24 20 255\n" + pixels.tobytes())
    with tarfile.open("all.tar", "w") as tar:
        tar.add("2.ppm")
    os.link("1.ppm", "linked.html")
    network = load("photos")
    index = Index(network.num_features, network=network.fingerprint)
    vectors = np.random.default_rng(0).normal(size=(3, network.num_features))
    index.add(["0.ppm", "1.ppm", "all.tar:2.ppm"], vectors.astype(np.float32))
    index.save("a.index")
    return tmp_path


COMMANDS = {
    "search": ["search", "a.index", "0.ppm"],
    "cluster": ["cluster", "a.index"],
    "duplicates": ["duplicates", "0.ppm", "1.ppm", "all.tar"],
}


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("1.ppm", "1.ppm is not the name of a page: end it in .html"),
        ("linked.html", "--html linked.html is an input as well: give another name"),
        ("all.tar", "all.tar is not the name of a page: end it in .html"),
        ("no/a.html", "--html no/a.html: there is no folder no"),
        (".", "--html . is a folder: give the name of a file"),
        ("/dev/full", "/dev/full is not the name of a page: end it in .html"),
        ("", "the path is empty: give a file"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_that_cannot_be_written_is_refused_first(place, command, page, message, run_command):
    pytest.importorskip("PIL")  # which resizes 24 × 20 pixels
    before = {path: path.read_bytes() for path in place.iterdir()}
    found = run_command(*COMMANDS[command], "--html", page)
    assert found == (2, "", f"burn-engine: {message}\n")
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    os.mkfifo("pipe.html")
    message = "--html pipe.html is not a regular file: give another name"
    found = run_command(*COMMANDS[command], "--html", "pipe.html")
    assert found == (2, "", f"burn-engine: {message}\n")
