"""The augmented views of a run on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_samples as samples
from PIL import Image

from burn.core.errors import UserError
from burn.report.load.gather import gather
from burn.report.page import build_page

TITLE = "Augmented views that"


def test_the_page_shows_the_views_of_a_run(tmp_path: Path):
    folder = samples.run(tmp_path / "student")
    assert TITLE not in build_page(gather([folder]))
    Image.new("RGB", (396, 950), "red").save(folder / "views.jpg")
    page = build_page(gather([folder]))
    assert page.count(TITLE) == 1
    assert 'width="396" height="950" alt="Training images' in page
    assert "student/views.jpg" in page  # among the files that it was made of


def test_a_damaged_picture_of_views_is_named(tmp_path: Path):
    folder = samples.run(tmp_path / "student")
    (folder / "views.jpg").write_bytes(b"<svg onload=alert(1)>")
    with pytest.raises(UserError, match=r"views\.jpg is not a complete PNG or JPEG"):
        build_page(gather([folder]))
