"""`burn-engine teach`: a page that learns classes in a browser, with all that it needs inside."""

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
from burn_engine.terminal import add_base, output, printable
from burn_engine.whole_file import whole_file

# Of the package's page, which lies beside its files.
_POLICY = "script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; worker-src 'self' blob:"
_OPENING = '<script type="application/json" id="files">'
_CODE = '<script type="module" id="code" src="teach.js"'


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
    page = page_file("teach.html").decode().replace("\r\n", "\n")
    code = page_code(page_file("teach.js").decode())
    octets = "application/octet-stream"
    engine = _data(octets, page_file("burn_engine.wasm"))
    inside = {"name": name, "network": _data(octets, network), "engine": engine}
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"script-src 'sha256-{digest}' 'wasm-unsafe-eval'; worker-src blob:"
    assert _POLICY in page
    page = page.replace(_POLICY, policy)
    page = _with(page, _OPENING, _OPENING, json.dumps(inside).replace("<", "\\u003c"))
    return _with(page, _CODE, '<script type="module" id="code">', code).encode()


def _data(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _with(page: str, begin: str, opening: str, content: str) -> str:
    """Return the page with another opening and content of the one script that begins so."""
    before, _, rest = page.partition(begin)
    _, closing, after = rest.partition("</script>")
    assert closing, begin
    return before + opening + content + closing + after


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
