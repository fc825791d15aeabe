"""Pages of the documentation's site that are made of something else, as hooks of mkdocs.

    make site

The home page is README.md, the reference of commands their own `--help`, that of recipes and of the
Python interface their docstrings. A line `<!-- source: FILE -->` in a page is replaced by the file.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import burn
from burn.cli.main import main
from burn.evaluation.entries import PROTOCOLS
from burn.recipes.registry import RECIPES
from reproduction.analyses.run import ANALYSES

ROOT = Path(__file__).parents[1]
COMMANDS = {  # a command to what follows it in each of its help texts
    "demo": [""],
    "train": [""],
    "pretrain": ["", "--help-fields"],
    "finetune": [""],
    "evaluate": list(PROTOCOLS),
    "compare": [""],
    "ablate": [""],
    "analyze": list(ANALYSES),
    "import": [""],
    "export": [""],
    "pack": [""],
    "info": [""],
    "embed": [""],
    "report": [""],
}
RESULT = "burn.core.results.Result"  # what a protocol returns a list of
SETTINGS = {"BackboneConfig", "Recipe", "ViewConfig"}  # public too, on the page of settings
SOURCE = re.compile(r"^<!-- source: (\S+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".h": "c", ".c": "c", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of something else to those in docs/."""
    for name, text in pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the files in that a page names, and lead links to the README home."""
    markdown = re.sub(r"\]\((?:\.\./)+README\.md", "](../index.md", markdown)
    return SOURCE.sub(lambda found: _source(ROOT / found[1]), markdown)


def pages() -> Iterator[tuple[str, str]]:
    """Path below docs/ and Markdown of every page that is made."""
    yield "index.md", _moved("README.md", "")
    yield "project/changes.md", _moved("CHANGELOG.md", "../")
    yield "project/contributing.md", _moved("CONTRIBUTING.md", "../")
    yield "reference/python.md", _python()
    yield "reference/recipes.md", _recipes()
    for command, variants in COMMANDS.items():
        yield f"reference/commands/{command}.md", _command(command, variants)


def _moved(name: str, up: str) -> str:
    """A document of the root; links into docs/ are written from there, `up` leads to docs/."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", f"]({up}")
    for document, page in (("CONTRIBUTING", "contributing"), ("CHANGELOG", "changes")):
        text = text.replace(f"]({document}.md)", f"]({up}project/{page}.md)")
    return text.replace("](README.md", f"]({up}index.md")


def _source(file: Path) -> str:
    return f"```{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8').rstrip()}\n```"


def _python() -> str:
    """Each public name of `import burn`, functions first, and the type of a result."""
    names = sorted(set(burn.__all__) - SETTINGS, key=lambda name: (name[0].isupper(), name))
    places = [f"{getattr(burn, name).__module__}.{name}" for name in names]
    shown = "\n\n".join(f"::: {place}" for place in [*places, RESULT])
    return f"# Python\n\nAll that `import burn` offers, and `{RESULT}`. {_WAYS}\n\n{shown}\n"


_WAYS = (
    "[From Python](../guide/python.md) shows it in use; whatever is not on this page or on "
    "those of [layers](layers.md), [tests](testing.md) and [settings](settings.md) may change "
    "from one version to the next."
)


def _recipes() -> str:
    parts = [
        "# All recipes\n\nEvery recipe, with its command, and what was measured or is expected. "
        "[The guide](../guide/recipes.md) says which to choose."
    ]
    for name, recipe in RECIPES.items():
        parts.append(f"## `{name}`\n\n{_fenced(inspect.getdoc(recipe) or '')}")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    """The docstring with its command as a block of code, in as many lines as it has in the source.

    There a backslash joins its lines, whose indentation is left.
    """
    text = re.sub(r"^burn .*", r"\n```\n\g<0>\n```\n", text, flags=re.MULTILINE)
    return re.sub(r" {5,}(?=--)", r" \\\n    ", text)


def _command(command: str, variants: list[str]) -> str:
    parts = [f"---\nhide: [toc]\n---\n\n# burn {command}"]  # wide, as the texts are
    for variant in variants:
        words = [command, *([variant] if variant else [])]
        if len(variants) > 1:
            parts.append(f"## burn {' '.join(words)}")
        asked = words if variant.startswith("--") else [*words, "--help"]
        parts.append(f"```text\n{_said(asked).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _said(arguments: list[str]) -> str:
    out = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="96"), contextlib.redirect_stdout(out):
        status = main(arguments)
    assert status == 0, f"burn {' '.join(arguments)} gave {status}"
    return out.getvalue()
