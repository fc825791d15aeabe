"""A report in a real browser, where there is one."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import report_samples as samples

from burn.report.write import write_report

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"]

# Ratio of a text's colour to its background's, both as the page draws them (WCAG 2).
CONTRASTS = """() => {
  const rgb = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("script, style, .skip, .hide")) continue;
    const style = getComputedStyle(node);
    const own = light(rgb(node.closest("svg") ? style.fill : style.color));
    const under = light(ground(node));
    const ratio = (Math.max(own, under) + 0.05) / (Math.min(own, under) + 0.05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return [...new Set(bad)];
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    write_report(samples.everything(folder / "runs"), folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Visit:
    """A page, what it said, and what it asked for beyond itself."""

    def __init__(self, browser: Any, address: str, **about) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.context = browser.new_context(**about)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

        def route(request: Any) -> None:
            if request.request.url == address:
                request.continue_()
            else:
                self.asked.append(request.request.url)
                request.abort()

        self.page.route("**/*", route)
        self.page.goto(address)

    def close(self) -> None:
        self.context.close()
        assert self.said == []
        assert self.asked == []

    def overflow(self) -> int:
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(360, "dark", marks=pytest.mark.long),
        pytest.param(1280, "light", marks=pytest.mark.long),
    ],
)
def test_page_fits_and_can_be_read(browser, address: str, width: int, scheme):
    visit = Visit(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    visit.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert visit.overflow() <= 0
    assert visit.page.evaluate(CONTRASTS) == []
    sizes = visit.page.evaluate(
        "[...document.querySelectorAll('.chart svg text')].map((t) => "
        "parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a)"
    )
    assert min(sizes) > 10.5  # pixels
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(21, 23, 27)") == (scheme == "dark")
    visit.close()


# Boxes of the tiles, and of the text in them, pairwise.
OVERLAPS = """() => {
  const tiles = [...document.querySelectorAll(".tiles div")].map((tile) => {
    const range = document.createRange(); range.selectNodeContents(tile);
    return range.getBoundingClientRect();
  });
  return tiles.some((a, i) => a.right > innerWidth || tiles.some((b, j) => i < j &&
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
}"""


def test_tiles_never_overlap_and_pictures_are_of_a_size(browser, address: str):
    visit = Visit(browser, address)
    for width in (360, 768, 1024, 1280, 1920):
        visit.page.set_viewport_size({"width": width, "height": 800})
        assert not visit.page.evaluate(OVERLAPS)
        assert visit.overflow() <= 0
        picture = visit.page.evaluate(
            "(() => { const box = document.querySelector('.analysis .picture');"
            " return [box.offsetWidth, box.closest('section').offsetWidth]; })()"
        )
        assert picture[0] == min(760, picture[1])
    assert visit.page.locator(".tiles dd", has_text="0.069").inner_text() == "0.069ms"
    visit.close()


# What a reader of a phone does not see: cells beyond an edge, and words that are broken.
LOST = """() => [...document.querySelectorAll("table.cards th, table.cards td, .near b")]
  .filter((cell) => cell.checkVisibility()).flatMap((cell) => {
    const range = document.createRange();
    const broken = [...cell.childNodes].filter((n) => n.nodeType === 3).flatMap((n) =>
      [...n.data.matchAll(/[\\w-]{2,22}/g)].filter((word) => {
        range.setStart(n, word.index); range.setEnd(n, word.index + word[0].length);
        return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1;
      }).map((word) => word[0]));
    const box = cell.getBoundingClientRect();
    return box.right > innerWidth || box.left < 0 ? [cell.innerText, ...broken] : broken;
  })"""


def test_no_column_and_no_name_is_lost_on_a_phone(browser, address: str):
    visit = Visit(browser, address, viewport={"width": 390, "height": 800})
    visit.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert visit.page.locator("table.cards").count() > 5
    assert visit.page.evaluate(LOST) == []
    visit.close()


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_a_stage_and_its_number_stay_together(browser, address: str, width: int):
    visit = Visit(browser, address, viewport={"width": width, "height": 800})
    visit.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    broken = """() => {
      const found = [...document.querySelectorAll(".ladder .name, tbody th")].flatMap((cell) => {
        const node = [...cell.childNodes].find((n) => n.nodeType === 3);
        const at = node ? node.data.search(/stage\\s\\d/) : -1;
        if (at < 0) return [];
        const range = document.createRange();
        range.setStart(node, at); range.setEnd(node, at + 7);
        return [new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size];
      });
      return [found.length, Math.max(...found)];
    }"""
    count, lines = visit.page.evaluate(broken)
    assert count > 2
    assert lines == 1
    visit.close()


def test_ten_classes_fit_on_a_phone(browser, address: str):
    visit = Visit(browser, address, viewport={"width": 390, "height": 800})
    hidden = "(node) => node.parentElement.scrollWidth - node.parentElement.clientWidth"
    assert visit.page.locator("table.confusion").evaluate(hidden) <= 0
    visit.close()


def test_links_lead_to_their_sections(browser, address: str):
    visit = Visit(browser, address, viewport={"width": 1280, "height": 800})
    links = visit.page.locator("nav[aria-label=Sections] a")
    assert links.count() >= 10
    for place in range(links.count()):
        links.nth(place).click()
        target = links.nth(place).get_attribute("href")
        assert target is not None
        visit.page.wait_for_function(
            "(id) => { const y = document.querySelector(id).getBoundingClientRect().top;"
            " return Math.abs(y) < 90 ||"
            " scrollY + innerHeight >= document.body.scrollHeight - 2; }",
            arg=target,
        )
    visit.close()


def test_skip_link_is_first_and_skips(browser, address: str):
    visit = Visit(browser, address)
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "main"
    visit.close()


def first_column(table: Any) -> list[str]:
    return table.locator("tbody th").evaluate_all("(all) => all.map((c) => c.innerText)")


def test_tables_sort_by_mouse_and_by_keyboard(browser, address: str):
    visit = Visit(browser, address)
    table = visit.page.get_by_role("table", name="Every network")
    before = first_column(table)
    assert before[0] == "teacher"
    seeds = table.locator("th", has_text="kNN top-1")
    seeds.get_by_role("button").click()
    assert seeds.get_attribute("aria-sort") == "descending"
    seeds.get_by_role("button").click()
    assert seeds.get_attribute("aria-sort") == "ascending"
    assert first_column(table) == before[::-1]
    name = table.locator("th", has_text="network")
    name.get_by_role("button").focus()
    visit.page.keyboard.press("Enter")
    assert name.get_attribute("aria-sort") == "ascending"
    assert seeds.get_attribute("aria-sort") is None
    assert first_column(table) == ["BURN", "BYOL", "random weights", "S2-BNN", "teacher"]
    visit.page.keyboard.press("Space")
    assert first_column(table) == ["BURN", "BYOL", "random weights", "S2-BNN", "teacher"][::-1]
    empty = table.locator("th", has_text="seeds")  # those without stay at the end
    empty.get_by_role("button").click()
    assert set(first_column(table)[-2:]) == {"teacher", "random weights"}
    visit.close()


def test_details_and_theme_by_keyboard(browser, address: str):
    visit = Visit(browser, address, color_scheme="light")
    details = visit.page.locator("details", has_text="Every setting of student")
    assert details.get_attribute("open") is None
    details.locator("summary").focus()
    visit.page.keyboard.press("Enter")
    assert details.get_attribute("open") is not None
    assert details.get_by_text("backbone.width").is_visible()
    toggle = visit.page.locator("button.theme")
    toggle.focus()
    visit.page.keyboard.press("Enter")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert visit.page.evaluate(ground) == "rgb(21, 23, 27)"
    toggle.click()
    assert visit.page.evaluate(ground) == "rgb(250, 248, 244)"
    visit.close()


def test_paper_is_white_and_shows_what_is_folded(browser, address: str):
    visit = Visit(browser, address, color_scheme="dark", viewport={"width": 1280, "height": 800})
    visit.page.locator("button.theme").click()
    visit.page.locator("button.theme").click()
    visit.page.emulate_media(media="print", color_scheme="dark")
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert not visit.page.locator("nav").is_visible()
    assert len(visit.page.pdf()) > 50_000
    visit.close()


def test_page_is_whole_without_scripts(browser, address: str):
    visit = Visit(browser, address, java_script_enabled=False)
    assert visit.page.get_by_role("heading", name="It learned.").is_visible()
    assert visit.page.locator("button:visible").count() == 0
    assert visit.page.get_by_role("table", name="Every network").is_visible()
    visit.close()
