"""Pages of the package in a browser."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import re
import shutil
import threading
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "js"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-extensions",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
]  # fmt: skip


def opened(browser, address, **settings):
    """Return a page that is ready, what it said, and what it asked for.

    Hints are left out that reading pixels is slow, which a page does once for a photograph.
    """
    context = browser.new_context(permissions=["camera", "clipboard-write"], **settings)
    page = context.new_page()
    said, asked = [], []

    def hear(text):
        if not re.search("GPU stall|Canvas2D", text):
            said.append(text)

    page.on("console", lambda message: hear(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(address)
    page.wait_for_selector("body[data-ready=yes]")
    return page, said, asked


@contextlib.contextmanager
def whole(browser, address):
    """Open a page that is one file: it must not ask for anything beyond itself, nor complain."""
    page, said, asked = opened(browser, address)
    yield page
    page.context.close()
    assert beyond(address, asked) == []
    assert said == []


def beyond(address, asked):
    """Return what a page that is one file asked for beside itself."""
    return [url for url in asked if url != address and not url.startswith(("data:", "blob:"))]


@contextlib.contextmanager
def serving(folder):
    """Have a server give the files of a folder, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            del format, args

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def script(page):
    return re.findall(r'id="code">(.*?)</script>', page, re.DOTALL)[0]


def digest(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
