"""The JavaScript of docs/guide/browser.md runs as it stands, in Node.js and in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import burn_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "tests"))
from packed import random_network
from pages import serving

ROOT = Path(__file__).parents[1]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-extensions"]
GUIDE = (ROOT / "docs/guide/browser.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```js\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder, with the package installed as npm does, and a packed file."""
    package = tmp_path / "node_modules" / "burn-engine"
    shutil.copytree(ROOT / "engine" / "js", package)
    network = random_network(4, num_classes=5, image=(40, 32))
    (tmp_path / "student.bnn").write_bytes(network.to_bytes())
    return tmp_path


def snippet(*words: str) -> str:
    """Return the one piece of code with these words."""
    (found,) = (text for text in SNIPPETS if all(word in text for word in words))
    return found


def node(folder: Path, text: str) -> str:
    if shutil.which("node") is None:
        pytest.skip("without node")
    (folder / "snippet.mjs").write_text(text)
    done = subprocess.run(
        ["node", "snippet.mjs"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_runs_in_node(folder: Path):
    said = node(folder, snippet("node:fs", "model.run(pixels)"))
    assert re.search(r"'class 0',.*\{ name: 'class \d', percent: [\d.]+ \}", said, re.DOTALL)


def test_classes_are_learned_in_node(folder: Path):
    said = node(folder, snippet("node:fs", "withClassifier"))
    assert "name: 'cat'" in said
    assert burn_engine.load(folder / "mine.bnn").classes == ("cat", "dog")


def test_copies_and_groups_are_found_in_node(folder: Path):
    said = node(folder, snippet("node:fs", "duplicates(images)")).splitlines()
    assert said[0] == "0 1 "  # the best copy, which is not altered
    assert re.fullmatch(r"1 0\.\d+ ", said[1])
    assert re.match(r"Int32Array\(3\) \[ [01], [01], [01] \] Float32Array\(3\) ", said[2])
    assert "{ position: 0, distance: 0 }" in said[3]


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield f"{address}page.html"


# What stands in the guide's own text.
MAP = re.search(r'<script type="importmap">.*?</script>', GUIDE, re.DOTALL)
FEATURES = """
const features = Array.from({ length: 20 }, (_, i) => [Math.random(), Math.random() + (i % 2)]);
const labels = features.map((_, i) => i % 2);
"""


def test_a_page_and_its_worker_run(folder: Path, server: str):
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(folder / "photo.png")
    run, learned = snippet("fetch(", "decode(photo)"), snippet("new Worker")
    (folder / "learner.js").write_text(snippet("onmessage = (", "postMessage({ share })"))
    imports, rest = re.findall(r"^import .*\n", run), re.sub(r"^import .*\n", "", run)
    script = f"{''.join(imports)}window.run = async () => {{{rest}}};{FEATURES}{learned}"
    (folder / "page.js").write_text(script)
    assert MAP is not None
    (folder / "page.html").write_text(
        f'<!doctype html><link rel="icon" href="data:,">{MAP[0]}<input type="file">'
        '<script type="module" src="page.js"></script>'
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        # The share that is done, from 0 to 1.
        with page.expect_console_message(lambda message: float(message.text) > 0.999):
            page.goto(server)
        page.set_input_files("input", folder / "photo.png")
        with page.expect_console_message(lambda message: message.text.startswith("class ")):
            page.evaluate("run()")
        assert said == []
        browser.close()
