"""The page's templates, and the functions that they call."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from burn.core.errors import printable
from burn.report.load.values import dig, number, short_path, words
from burn.report.render.cells import duration, filled, joined, percent


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates; compiling them takes a third of a small page's time."""
    made = Environment(
        loader=PackageLoader("burn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    made.filters |= {"short": short_path, "unbroken": unbroken, "percent": percent}
    made.filters["drawn"] = Markup  # only for our own charts, which escape their texts
    called = (dig, duration, joined, number, filled, words)
    made.globals |= {function.__name__: function for function in called}
    return made


def source(name: str) -> str:
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0].strip()


def sentence(name: str, *facts: Any) -> Markup:
    """Return what a macro of sentences.html says of some facts."""
    return getattr(environment().get_template("sentences.html").module, name)(*facts)


def unbroken(text: str) -> Markup:
    """Keep "stage" and its number, and each option, on one line, wherever the text is broken."""
    text = re.sub(r"\bstage (?=\d)", "stage&nbsp;", str(escape(_clean(text))))
    return Markup(re.sub(r"(?<!\S)--[a-z][a-z-]*", r'<span class="option">\g<0></span>', text))


def _clean(value: Any) -> Any:
    # Names may come from anyone; nothing in them may reverse the text's direction or break UTF-8.
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
