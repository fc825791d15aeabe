"""`burn-engine teach`: a page that learns classes in a browser, with all that it needs inside."""

from __future__ import annotations

import argparse
import base64
import json
import re
from importlib.resources import files
from typing import Any

from burn_engine.classifier_file import check_output
from burn_engine.errors import ModelError, in_file, path_of
from burn_engine.format import parse_program
from burn_engine.pretrained import find, read_model
from burn_engine.terminal import add_base, output, printable
from burn_engine.whole_file import whole_file

_MODULES = ("index", "learn", "classifier_file", "symmetric", "teach")
_ENTRIES = {"index": "burn-engine", "learn": "burn-engine/learn", "teach": "teach"}


def add_to(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "teach",
        help="write a page that learns classes in a browser",
        description="Write a page that learns a classifier from a few photographs of each class, "
        "given as files or taken with the camera, and recognizes others at once. It is one HTML "
        "file with network and engine inside, which needs no server and sends nothing anywhere.",
    )
    parser.add_argument("out", metavar="OUT", help="the page to write, such as teach.html")
    add_base(parser)
    parser.set_defaults(run=_teach)


def teaching_page(network: bytes, name: str) -> bytes:
    """Return the page, in UTF-8, with a network and the engine inside.

    Args:
        network: The packed file.
        name: What the page calls it.

    Raises:
        ValueError: The package was installed without its module for pages.
    """
    web = files("burn_engine") / "web"
    try:
        page = (web / "teach.html").read_text(encoding="utf-8")
        engine = (web / "burn_engine.wasm").read_bytes()
        texts = {one: (web / f"{one}.js").read_text(encoding="utf-8") for one in _MODULES}
    except OSError:
        raise ValueError(
            "this burn-engine was installed without its module for pages, as where there was no "
            "C++ compiler; install it again with one"
        ) from None
    # A module that is an address itself has no folder, so it imports the others by name.
    imports = {
        _ENTRIES.get(one, f"burn-engine/{one}"): _data(
            "text/javascript",
            re.sub(r'from "\./(\w+)\.js"', r'from "burn-engine/\1"', text).encode(),
        )
        for one, text in texts.items()
    }
    octets = "application/octet-stream"
    inside = {"name": name, "network": _data(octets, network), "engine": _data(octets, engine)}
    page = _with(page, '<script type="application/json" id="files">', inside)
    return _with(page, '<script type="importmap">', {"imports": imports}).encode()


def _data(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _with(page: str, opening: str, value: object) -> str:
    """Return the page with other JSON in the one element that begins so."""
    before, _, rest = page.partition(opening)
    _, closing, after = rest.partition("</script>")
    assert closing, opening
    return before + opening + json.dumps(value).replace("<", "\\u003c") + closing + after


def _teach(options: argparse.Namespace) -> None:
    out, base = path_of(options.out), options.base
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out} is not the name of a page: end it in .html")
    check_output(out, base, overwrite=options.overwrite)
    with in_file(base):
        network = read_model(base)
        if parse_program(network).image is None:
            raise ModelError("it does not say how photographs become its images, so no page can")
    page = teaching_page(network, _name(base))
    with whole_file(out) as file:
        file.write(page)
    with output():
        print(f"{printable(str(out))}: {len(page):,} bytes; open it in a browser")


def _name(base: str) -> str:
    own = find(base)
    return own.path.name if own else path_of(base).name
