"""`burn report`: read folders and write the page about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from burn.core.errors import UserError
from burn.core.files import write_failures_named, write_text
from burn.core.inputs import open_regular
from burn.report.load.gather import gather
from burn.report.sections.try_it import try_it


def write_report(
    folders: Sequence[Path],
    out: Path,
    model: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the page, which runs `model` on its reader's photographs; return its size in bytes.

    Raises:
        UserError: A folder contains nothing known or a damaged file, `out` cannot be written, the
            page would be larger than 5 MB without the model, or the model cannot be used.
    """
    _check_out(out)
    panel = try_it(model) if model else None
    gathered = gather(folders, tell)
    from burn.report.page import build_page  # matplotlib, which draws, takes a second to import

    tell(f"making the page of {len(gathered.results):,} results")
    page = build_page(gathered, panel)
    with write_failures_named(f"--out {out}"):
        write_text(out, page)
    return len(page.encode(errors="surrogateescape"))


def _check_out(out: Path) -> None:
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give a file, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    # Only an earlier page is replaced, not a file of results or a device.
    if out.is_symlink() or (out.exists() and not _is_page(out)):
        raise UserError(f"--out {out} exists and is not a page: give another name")


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(15).lower() == b"<!doctype html>"
