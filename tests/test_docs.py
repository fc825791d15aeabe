"""The results' pages and README's table are what their numbers make of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from reproduction.documents import generate

ROOT = Path(__file__).parents[1]


def test_generated_documents_are_those_in_the_repository(tmp_path: Path):
    written = generate.documents()
    pages = {f"project/results/{path.name}" for path in (ROOT / "docs/project/results").iterdir()}
    assert set(written) == {
        "project/results.md", *pages, "../README.md", "guide/choosing.md", "guide/quickstart.md"
    }  # fmt: skip
    for name, text in written.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"{name}: make docs"
    generate.draw(tmp_path)
    for picture in tmp_path.glob("*.svg"):
        assert (ROOT / "docs/pictures" / picture.name).is_file(), f"{picture.name}: make docs"


PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_pictures_can_be_read_on_light_and_dark_pages(picture: Path):
    """They bring their own white ground, on which every text has a contrast of 4.5 (WCAG)."""
    text = picture.read_text(encoding="utf-8")
    ground = re.search(r'<g id="patch_1">\s*<path [^>]*style="fill: (#\w{6})', text)
    assert ground is not None
    assert ground[1] == "#ffffff", "a page's own ground would show through"
    groups = re.findall(r'<g id="text_\d+">\s*<!-- (.*?) -->\s*<g ([^>]*)>', text, re.DOTALL)
    assert groups
    for words, about in groups:
        fill = re.search(r"fill: (#\w{6})", about)
        colour = fill[1] if fill else "#000000"
        ratio = 1.05 / (luminance(colour) + 0.05)
        assert ratio >= 4.49, f"{words!r} in {colour}: {ratio:.1f}"


DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "engine/*.md") for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, heading = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{document.name}: {link}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert heading in slugs, f"{document.name}: {link}"


def test_the_readme_fits_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readme_names_both_versions():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, folder in (("burn-ssl", "."), ("burn-engine", "engine")):
        about = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        version = about["project"]["version"]
        assert re.search(rf"`{name}`\s+{re.escape(version)}\b", text), f"{name} {version}"


def test_pictures_are_drawn_on_white_for_dark_pages():
    """The first shape of each is a rectangle of the whole picture."""
    pictures = sorted((ROOT / "docs/pictures").glob("*.svg"))
    assert pictures
    for picture in pictures:
        ground = picture.read_text(encoding="utf-8").partition("</g>")[0]
        assert 'id="figure_1"' in ground, picture.name
        assert "fill: #ffffff" in ground, picture.name


def test_docstrings_stand_without_the_name_above_them():
    """Their first line is a sentence or a noun, not the rest of one that the name began."""
    begun = re.compile(r'^\s*"""Of ', re.MULTILINE)
    folders = ("src", "engine/python", "reproduction")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = [str(file) for file in files if begun.search(file.read_text(encoding="utf-8"))]
    assert files
    assert not found


def test_the_guide_to_the_code_names_what_is_there():
    """Each row's names, `Class.method` too, stand in one of the row's files."""
    text = (ROOT / "docs/guide/read-the-code.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.count("`") > 3]
    assert len(rows) > 15
    for _, files, *names in (row for row in rows if len(row) == 3):
        paths = [ROOT / "src/burn" / name for name in re.findall(r"`([\w/]+\.py)`", files)]
        code = "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in re.findall(r"`([\w.]+)`", names[0]):
            for part in name.split("."):
                assert re.search(rf"(def|class) {part}\b", code), (name, files)
