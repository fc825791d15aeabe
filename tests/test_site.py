"""The documentation's site: built without a warning, complete, and usable without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import burn
from burn.cli.main import _COMMANDS
from burn.evaluation.entries import PROTOCOLS
from burn.recipes.registry import RECIPES
from reproduction.analyses.run import ANALYSES

ROOT = Path(__file__).parents[1]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_command_protocol_and_analysis_has_its_help(site: Path):
    for command in _COMMANDS:
        assert f"usage: burn {command}" in read(site / f"reference/commands/{command}.html")
    for protocol in PROTOCOLS:
        assert f">burn evaluate {protocol}<" in read(site / "reference/commands/evaluate.html")
    for analysis in ANALYSES:
        assert f">burn analyze {analysis}<" in read(site / "reference/commands/analyze.html")


def test_every_public_name_setting_and_recipe_is_documented(site: Path):
    pages = read(site / "reference/python.html") + read(site / "reference/settings.html")
    documented = {name.rpartition(".")[2] for name in re.findall(r'id="(burn\.[\w.]+)"', pages)}
    assert set(burn.__all__) <= documented
    recipes = read(site / "reference/recipes.html")
    assert all(f'id="{name}"' in recipes for name in RECIPES)


def test_nothing_is_loaded_from_a_network(site: Path):
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]* src="(?:https?:)?//|<link[^>]* href="http'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not [page.name for page in pages if loaded.search(read(page))]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_search_finds_a_page_that_was_opened_as_a_file(site: Path):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        page = browser.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if "http" in asked.url else None)
        page.goto((site / "guide/quickstart.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("Raspberry Pi")
        page.wait_for_selector("a.md-search-result__link[href*='deploy']", state="attached")
        browser.close()
    assert said == []
