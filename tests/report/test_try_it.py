"""The panel of a report that runs a packed model, in a browser where there is one."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from PIL import Image

import burn_engine
from burn.cli.main import main
from burn.core.errors import UserError
from burn.report.sections import try_it as panel
from burn.report.write import write_report
from burn_engine.format import ImageSize
from burn_engine.images import prepare, read_photo
from burn_engine.page_code import page_file

sys.path.insert(0, str(Path(__file__).parents[2] / "engine" / "tests"))
from packed import random_network

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-extensions"]
SIZE = ImageSize(resize=40, size=32)


# Two blocks, the second of which keeps little of a weak hue.
BLOCKS = ((16, 3, 1, True), (32, 1, 1, True), (2, 3, 2, False))


def network(seed: int = 0, num_classes: int = 7) -> bytes:
    size = (SIZE.resize, SIZE.size)
    return random_network(seed, blocks=BLOCKS, num_classes=num_classes, image=size).to_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a page that runs it."""
    made = tmp_path_factory.mktemp("try")
    (made / "student.bnn").write_bytes(network())
    write_report(samples.everything(made / "runs"), made / "page.html", made / "student.bnn")
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    """The page; it must not ask for anything beyond itself, nor complain."""
    said, asked, address = [], [], (folder / "page.html").as_uri()
    context = browser.new_context()
    visit = context.new_page()
    visit.on("console", lambda message: said.append(message.text))
    visit.on("pageerror", lambda error: said.append(str(error)))
    visit.on("request", lambda request: asked.append(request.url))
    visit.goto(address)
    visit.wait_for_selector("#try .drop:not([hidden])")
    yield visit
    context.close()
    beyond = [url for url in asked if url != address and not url.startswith(("data:", "blob:"))]
    assert beyond == []
    # Hints that reading pixels is slow, which the page does once for a photograph.
    assert [text for text in said if not re.search("GPU stall|Canvas2D", text)] == []


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="6"/></x:xmpmeta>'


def photographs(folder: Path) -> dict[str, Path]:
    """Write a smooth photograph in every mode and format that a browser reads."""
    random = np.random.default_rng(5)
    coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    photo = coarse.resize((93, 71), Image.Resampling.BICUBIC)
    alpha = Image.fromarray(random.integers(0, 256, (71, 93), dtype=np.uint8))
    transparent = photo.copy()
    transparent.putalpha(alpha)
    sixteen = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)
    turned = Image.Exif()
    turned[0x0112] = 6  # upright after a quarter turn
    film = {"save_all": True, "append_images": [photo.rotate(90)]}
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "rgb.png": (photo, {}),
        "alpha.png": (transparent, {}),
        "grey.png": (photo.convert("L"), {}),
        "palette.png": (photo.convert("P"), {}),
        "sixteen.png": (sixteen, {}),
        "turned.jpg": (photo, {"exif": turned, "quality": 95, "subsampling": 0}),
        "lossless.webp": (photo, {"lossless": True}),
        "turned.png": (photo, {"exif": turned}),
        "turned.webp": (photo, {"lossless": True, "exif": turned}),
        "xmp.webp": (photo, {"lossless": True, "xmp": XMP}),
        "film.png": (photo, {**film, "default_image": True}),
        "film.gif": (photo.quantize(16), film),
        "transparent.gif": (photo.quantize(16), {"transparency": 3}),
        "tall.png": (photo.resize((90, 330)), {}),
        "long.png": (photo.resize((300, 20)), {}),
        "dot.png": (photo.resize((1, 1)), {}),
    }
    for name, (image, options) in kinds.items():
        image.save(folder / name, **options)
    return {name: folder / name for name in kinds}


PIXELS = """() => {
  const canvas = document.querySelector("#try .panel canvas");
  const { width, height } = canvas;
  return [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
}"""


def give(page: Any, photo: Path) -> str:
    """Give a photograph to the page; return what it says once it has finished."""
    page.set_input_files("#try .drop input", str(photo))
    page.wait_for_selector("#try > .panel[aria-busy=false]")
    return page.inner_text("#try > .panel [role=status]")


def test_pixels_and_classes_are_those_of_burn_engine_run(page: Any, folder: Path, tmp_path):
    model = burn_engine.load(folder / "student.bnn")
    for name, photo in photographs(tmp_path).items():
        said = give(page, photo)
        assert said.startswith(f"{name}: "), said
        assert "ms for the network" in said
        pixels = np.array(page.evaluate(PIXELS)).reshape(SIZE.size, SIZE.size, 4)[..., :3]
        expected = prepare(read_photo(photo), SIZE)
        assert np.abs(pixels - expected.astype(int)).max() <= 1, name
        scores = model(pixels.astype(np.uint8)).astype(float)
        best = np.argsort(-scores)[:5]
        percent = 100 * np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert page.locator("#try > .panel li span").all_inner_texts() == [
            f"class {i}" for i in best
        ]
        shown = [
            float(text.removesuffix(" %"))
            for text in page.locator("#try > .panel li b").all_inner_texts()
        ]
        np.testing.assert_allclose(shown, percent[best], atol=0.06)  # shown with one digit


def test_a_file_that_is_no_image_is_one_sentence(page: Any, tmp_path: Path):
    (tmp_path / "notes.png").write_text("not an image")
    assert give(page, tmp_path / "notes.png") == (
        "notes.png is not an image that this browser can read"
    )
    assert page.locator("#try > .panel canvas").is_hidden()


def test_a_damaged_model_is_one_sentence(browser: Any, folder: Path, tmp_path: Path):
    text = (folder / "page.html").read_text()
    begin = text.index('id="try-model">') + len('id="try-model">')
    damaged = tmp_path / "damaged.html"
    damaged.write_text(text[:begin] + "AAAA" + text[text.index("</script>", begin) :])
    visit = browser.new_page()
    visit.goto(damaged.as_uri())
    visit.wait_for_selector("#try .fault")
    assert visit.inner_text("#try > .panel [role=status]") == (
        "The model of this page cannot run here: file: 3 bytes long, too short for a header"
    )
    visit.close()


def test_a_model_without_classes_says_how_many_features_it_gave(browser: Any, folder, tmp_path):
    (tmp_path / "plain.bnn").write_bytes(network(1, num_classes=0))
    out = tmp_path / "plain.html"
    write_report([samples.run(tmp_path / "run")], out, tmp_path / "plain.bnn")
    visit = browser.new_page()
    visit.goto(out.as_uri())
    visit.wait_for_selector("#try .drop:not([hidden])")
    said = give(visit, photographs(tmp_path)["rgb.png"])
    assert said.endswith("It has no classifier: it gave 2 features.")
    visit.close()


def test_it_learns_classes_in_the_page_and_saves_them(page: Any, folder: Path, tmp_path: Path):
    """The panel of `burn-engine teach`, whose own tests are in engine/tests/test_teach_page.py."""
    kinds: dict[str, list[Path]] = {"red": [], "green": []}
    random = np.random.default_rng(7)
    for place, (kind, paths) in enumerate(kinds.items()):
        for number in range(12):
            pixels = random.integers(0, 120, (50, 60, 3), dtype=np.uint8)
            pixels[..., place] += 8
            paths.append(tmp_path / f"{kind}{number}.png")
            Image.fromarray(pixels).save(paths[-1])
        card = page.locator(f"#teach .class:nth-child({place + 1})")
        card.locator("header input").fill(kind)
        card.locator("input[type=file]").set_input_files(paths)
    page.wait_for_selector("#facts >> text=24 photographs")
    page.wait_for_selector("#facts >> text=Learned from several maps")
    assert {worker.url.partition(":")[0] for worker in page.workers} == {"blob"}
    page.set_input_files("#tried", kinds["green"][0])
    page.wait_for_selector("#found ol")
    best = page.locator("#found li span").first.inner_text()
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "mine.bnn")
    mine = burn_engine.load(tmp_path / "mine.bnn")
    assert mine.classes == ("red", "green")
    assert mine.num_features == 2 + 32
    scores = mine(prepare(read_photo(kinds["green"][0]), SIZE))
    assert best == mine.classes[int(scores.argmax())]
    assert page.locator("#teach h2").first.get_attribute("aria-level") == "4"  # below the page's


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_what_learns_fits_and_has_the_pages_colours(browser: Any, folder: Path, scheme, width):
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    visit = context.new_page()
    visit.goto((folder / "page.html").as_uri())
    visit.locator("#add").wait_for()
    assert visit.evaluate("document.documentElement.scrollWidth") == width
    styles = [page_file(name).decode() for name in ("panel_markup.js", "controls.js")]
    roles = set(re.findall(r"var\((--[\w-]+)\)", "".join(styles)))
    roles.remove("--share")  # of an answer
    unset = visit.evaluate(
        "(names) => { const style = getComputedStyle(document.querySelector('.teach'));"
        " return names.filter((name) => !style.getPropertyValue(name).trim()); }",
        sorted(roles),
    )
    assert unset == []
    context.close()


def test_a_model_that_does_not_say_how_photographs_become_images_learns_nothing(folder, tmp_path):
    model = tmp_path / "any.bnn"
    model.write_bytes(random_network(2, num_classes=3, image=None).to_bytes())
    write_report([samples.run(tmp_path / "run")], tmp_path / "page.html", model)
    assert 'class="teach"' not in (tmp_path / "page.html").read_text()


def test_bad_models_are_refused_before_anything_is_written(folder: Path, tmp_path, monkeypatch):
    runs, out = [samples.run(tmp_path / "run")], tmp_path / "page.html"
    (tmp_path / "broken.bnn").write_bytes(network()[:-5])
    with pytest.raises(UserError, match=r"--with-model .*broken\.bnn: the tensors end at"):
        write_report(runs, out, tmp_path / "broken.bnn")
    with pytest.raises(UserError, match=r"nowhere\.bnn: there is no such file"):
        write_report(runs, out, tmp_path / "nowhere.bnn")
    with pytest.raises(UserError, match="not a regular file; give one of burn pack"):
        write_report(runs, out, tmp_path)
    monkeypatch.setattr(panel, "MOST_MODEL_BYTES", 100)
    with pytest.raises(UserError, match="more than the 0 that a page may hold"):
        write_report(runs, out, folder / "student.bnn")
    monkeypatch.undo()
    monkeypatch.setattr("burn_engine.page_code.files", lambda _: tmp_path)
    with pytest.raises(UserError, match="installed without its module for pages"):
        write_report(runs, out, folder / "student.bnn")
    assert not out.exists()


def test_the_command_embeds_a_model(folder: Path, tmp_path: Path, capsys):
    runs = [samples.run(tmp_path / "run")]
    out = tmp_path / "page.html"
    status = main(
        ["report", *map(str, runs), "--with-model", str(folder / "student.bnn"), "--out", str(out)]
    )
    assert status in (0, None), capsys.readouterr().err
    text = out.read_text()
    assert "'wasm-unsafe-eval'; worker-src blob:" in text
    assert 'id="try-model"' in text


def test_a_page_without_a_model_has_no_engine(tmp_path: Path):
    out = tmp_path / "page.html"
    write_report([samples.run(tmp_path / "run")], out)
    text = out.read_text()
    assert "wasm-unsafe-eval" not in text
    assert "try-engine" not in text
    assert "worker-src" not in text
