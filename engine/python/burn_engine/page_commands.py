"""`burn-engine teach` and `browse`: pages for a browser, with all that they need inside."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
from typing import Any

from burn_engine.classifier_file import check_output
from burn_engine.errors import ModelError, in_file, path_of
from burn_engine.format import parse_program
from burn_engine.page_code import page_code, page_file
from burn_engine.pretrained import find, read_model
from burn_engine.sheet import check_page_name
from burn_engine.terminal import add_base, output, printable
from burn_engine.whole_file import whole_file

# Of the package's pages, which lie beside their files.
_POLICY = "script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; worker-src 'self' blob:"
_OPENING = '<script type="application/json" id="files">'
_STYLE = '<link rel="stylesheet" href="page.css">'
_ONE_FILE = (
    "It is one HTML file with network and engine inside, which needs no server and sends nothing "
    "anywhere."
)


def add_to(commands: Any) -> None:
    """Add the commands to the parser's commands."""
    teach = commands.add_parser(
        "teach",
        help="write a page that learns classes in a browser",
        description="Write a page that learns a classifier from a few photographs of each class, "
        f"given as files or taken with the camera, and recognizes others at once. {_ONE_FILE}",
    )
    teach.add_argument("out", metavar="OUT", help="the page to write, such as teach.html")
    add_base(teach)
    teach.set_defaults(run=_write, page="teach")
    browse = commands.add_parser(
        "browse",
        help="write a page that finds copies and similar photographs in a browser",
        description="Write a page that looks at photographs of a folder, and shows which are "
        "copies of one another, groups of similar ones, and those that are most similar to one. "
        f"{_ONE_FILE}",
    )
    browse.add_argument("out", metavar="OUT", help="the page to write, such as photos.html")
    add_base(browse)
    browse.set_defaults(run=_write, page="photos")


def whole_page(page: str, network: bytes, name: str) -> bytes:
    """Return a page, in UTF-8, with a network and the engine inside.

    Args:
        page: Name of the package's page and of its script, such as "teach".
        network: The packed file.
        name: What the page calls it.

    Raises:
        ValueError: The package was installed without its module for pages.
    """
    text = _text(f"{page}.html")
    code = page_code(_text(f"{page}.js"))
    octets = "application/octet-stream"
    engine = _data(octets, page_file("burn_engine.wasm"))
    inside = {"name": name, "network": _data(octets, network), "engine": engine}
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"script-src 'sha256-{digest}' 'wasm-unsafe-eval'; worker-src blob:"
    for old, new in ((_POLICY, policy), (_STYLE, f"<style>\n{_text('page.css')}</style>")):
        assert old in text, old
        text = text.replace(old, new)
    text = _with(text, _OPENING, _OPENING, json.dumps(inside).replace("<", "\\u003c"))
    begin = f'<script type="module" id="code" src="{page}.js"'
    return _with(text, begin, '<script type="module" id="code">', code).encode()


def _text(name: str) -> str:
    return page_file(name).decode().replace("\r\n", "\n")


def _data(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _with(page: str, begin: str, opening: str, content: str) -> str:
    """Return the page with another opening and content of the one script that begins so."""
    before, _, rest = page.partition(begin)
    _, closing, after = rest.partition("</script>")
    assert closing, begin
    return before + opening + content + closing + after


def _write(options: argparse.Namespace) -> None:
    out, base = path_of(options.out), options.base
    check_page_name(out)
    check_output(out, base, overwrite=options.overwrite)
    with in_file(base):
        network = read_model(base)
        if parse_program(network).image is None:
            raise ModelError("it does not say how photographs become its images, so no page can")
    page = whole_page(options.page, network, _name(base))
    with whole_file(out, new=not options.overwrite) as file:
        file.write(page)
    with output():
        print(f"{printable(str(out))}: {len(page):,} bytes; open it in a browser")


def _name(base: str) -> str:
    pretrained = find(base)
    return pretrained.path.name if pretrained else path_of(base).name
