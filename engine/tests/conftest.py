"""Fixtures shared by the tests."""

from __future__ import annotations

import pytest

import packed
import pages
from burn_engine import cli


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch):
    monkeypatch.delenv("BURN_ENGINE_ISA", raising=False)


@pytest.fixture(params=["reference", "native"])
def isa(request):
    """The `isa` argument of `load` for each backend that is available."""
    if request.param == "reference":
        return "reference"
    core = pytest.importorskip("burn_engine._core", exc_type=ImportError)
    return core.supported_isas()[0]


@pytest.fixture
def run_command(capsys):
    """A function that runs `burn-engine` and returns its status, output and errors."""

    def run(*arguments):
        status = cli.main([*map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def write(tmp_path):
    """A function that writes a packed file and returns its path."""

    def write(network="small", **settings):
        path = tmp_path / "model.bnn"
        content = network
        if isinstance(network, str):
            content = packed.random_network(**{**packed.NETWORKS[network], **settings})
        if isinstance(content, packed.Packed):
            content = content.to_bytes()
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if pages.CHROMIUM is None:
        pytest.skip("no Chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=pages.CHROMIUM, args=pages.FLAGS)
        yield started
        started.close()
