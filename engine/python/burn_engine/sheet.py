"""Contact sheets: one HTML file of thumbnails that needs neither a network nor other files."""

from __future__ import annotations

import base64
import html
import io
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from burn_engine.collection import identity_of
from burn_engine.many import Progress
from burn_engine.terminal import complain
from burn_engine.whole_file import whole_file

MOST_THUMBNAILS = 2_000  # of about 4 kB each; images after these are shown by their names alone
_SIDE = 160

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --quiet: #6b6b6b; }}
@media (prefers-color-scheme: dark) {{ :root {{ --quiet: #a5a5a5; }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 75rem; }}
h1 {{ font-size: 1.3rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }}
p {{ margin: 0 0 1rem; color: var(--quiet); }}
section {{ content-visibility: auto; contain-intrinsic-size: auto 16rem; }}
.images {{ display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }}
figure {{ margin: 0; min-width: 0; }}
figure a {{ display: grid; place-items: center; height: 8.5rem; border: 1px solid var(--line);
  border-radius: .4rem; overflow: hidden; }}
img {{ max-width: 100%; max-height: 100%; }}
figcaption {{ font-size: .8rem; overflow-wrap: anywhere; }}
figcaption span {{ color: var(--quiet); }}
</style>
<h1>{title}</h1>
<p>{about}</p>
{sections}
</html>
"""


@dataclass(frozen=True)
class Shown:
    """An image on a sheet.

    Attributes:
        path: its file; None if it lies in another file, such as a tar file.
        name: what it is called.
        about: what is said of it, in a few words.
    """

    path: str | None
    name: str
    about: str


def check_page_name(page: Path) -> None:
    """Raise ValueError if a page would have the name of something else, such as a photograph.

    A link is as good as what it leads to, which would be replaced.
    """
    for name in (str(page), os.path.realpath(page)):
        if not name.lower().endswith((".html", ".htm")):
            raise ValueError(f"{name} is not the name of a page: end it in .html")


def check_page(page: Path, inputs: Iterable[str | Path]) -> None:
    """Raise ValueError if a page cannot be written, or would replace what is read.

    Args:
        page: The file to write.
        inputs: All files that the command reads, or that its index names.
    """
    if not page.parent.is_dir():
        raise ValueError(f"--html {page}: there is no folder {page.parent}")
    if page.is_dir():
        raise ValueError(f"--html {page} is a folder: give the name of a file")
    check_page_name(page)
    identity = identity_of(page)
    if identity is None:
        return
    if not page.is_file():
        raise ValueError(f"--html {page} is not a regular file: give another name")
    if any(identity_of(path) == identity for path in set(inputs)):
        raise ValueError(f"--html {page} is an input as well: give another name")


def write_sheet(
    to: Path,
    title: str,
    about: str,
    sections: Sequence[tuple[str, Sequence[Shown]]],
) -> None:
    """Write a contact sheet, complete or not at all, while a line on the terminal shows progress.

    Standard error says where it is, and after an interrupt that it was not written.

    Args:
        to: The HTML file, which is replaced if it exists.
        title: Title of the page.
        about: A sentence below it.
        sections: Headings, "" for none, and the images under them.

    Raises:
        ValueError: The file cannot be written.
    """
    progress = Progress(sys.stderr, sum(len(images) for _, images in sections), "page: ")
    try:
        _write(to, title, about, sections, progress)
    except KeyboardInterrupt:
        progress.clear()
        unchanged = ", and is as it was" if to.exists() else ""
        complain(f"stopped: {to} was not written{unchanged}; all results were printed")
        raise
    finally:
        progress.clear()
    complain(f"{to}: {to.stat().st_size:,} bytes; open it in a browser")


def _write(
    to: Path,
    title: str,
    about: str,
    sections: Sequence[tuple[str, Sequence[Shown]]],
    progress: Progress,
) -> None:
    done = 0
    parts = []
    for heading, images in sections:
        figures = []
        for image in images:
            figures.append(_figure(image, to.parent, thumbnail=done < MOST_THUMBNAILS))
            done += 1
            progress.show(done)
        head = f"<h2>{html.escape(_text(heading))}</h2>" if heading else ""
        parts.append(f'<section>{head}<div class="images">{"".join(figures)}</div></section>')
    page = _PAGE.format(
        title=html.escape(_text(title)), about=html.escape(_text(about)), sections="\n".join(parts)
    )
    with whole_file(to) as file:
        file.write(page.encode())


def _figure(image: Shown, folder: Path, *, thumbnail: bool) -> str:
    source = _thumbnail(image.path) if thumbnail and image.path else None
    name = html.escape(_text(image.name))
    inside = f'<img loading="lazy" alt="{name}" src="{source}">' if source else name
    link = ""
    if image.path:
        target = os.path.relpath(image.path, folder).replace(os.sep, "/")
        link = f' href="{html.escape(quote(os.fsencode(target)))}"'
    about = html.escape(_text(image.about))
    return (
        f"<figure><a{link}>{inside}</a>"
        f"<figcaption>{name} <span>{about}</span></figcaption></figure>"
    )


def _thumbnail(path: str) -> str | None:
    """Return a small copy of an image as a data URI, or None if it cannot be read."""
    try:
        from PIL import Image

        from burn_engine.images import read_photo, require_regular

        require_regular(path)
        image = Image.fromarray(read_photo(Path(path)))
        image.thumbnail((_SIDE, _SIDE))
    except (ImportError, OSError, ValueError, MemoryError):
        return None
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _text(text: str) -> str:
    """Return text that UTF-8 can hold, whatever bytes a file's name has."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
