"""The page of `burn-engine browse` in a browser where there is one."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

import burn_engine
from burn_engine.cli import main
from burn_engine.clustering import usual_number
from burn_engine.format import ImageSize
from burn_engine.images import prepare, read_photo
from packed import random_network
from pages import PACKAGE, digest, opened, script, serving, whole
from scenes import scene

Image = pytest.importorskip("PIL.Image")
SIZE = ImageSize(resize=40, size=32)
ODD = "<img src=x onerror=alert(1)>&\"'.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a network and the page that uses it."""
    made = tmp_path_factory.mktemp("browse")
    network = random_network(0, num_classes=7, image=(SIZE.resize, SIZE.size))
    (made / "base.bnn").write_bytes(network.to_bytes())
    assert main(["browse", str(made / "photos.html"), "--from", str(made / "base.bnn")]) == 0
    return made


@pytest.fixture
def page(browser, folder):
    """The page, from a file."""
    with whole(browser, (folder / "photos.html").as_uri()) as page:
        yield page


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Paths of photographs in the order in which they are given; two have copies."""
    made = tmp_path_factory.mktemp("photos")
    (made / "backup").mkdir()
    images = {f"{seed}.png": scene(seed, 80, 110) for seed in range(8)}
    images[ODD] = scene(0, 80, 110) // 2
    images["backup/small.png"] = scene(0, 40, 55)
    images["backup/mirrored.png"] = scene(1, 80, 110)[:, ::-1]
    for name, pixels in images.items():
        Image.fromarray(np.ascontiguousarray(pixels)).save(made / name)
    return [made / name for name in images]


def give(page, paths):
    """Give the page files, and wait until all is computed."""
    page.set_input_files("#chosen", [str(path) for path in paths])
    page.wait_for_selector("#tab-copies span:not(:empty)", state="attached")
    page.wait_for_selector("#tab-groups span:not(:empty)", state="attached")
    page.wait_for_selector("#doing", state="hidden")


def names(place):
    return place.locator(".photos .name").all_inner_texts()


def groups_of(page, tab):
    return [names(one) for one in page.locator(f"#{tab} .group").all()]


def features_of(folder, paths):
    network = burn_engine.load(folder / "base.bnn")
    return network.features([prepare(read_photo(path), SIZE) for path in paths])


def test_it_finds_what_python_finds(page, folder, photos):
    give(page, photos)
    assert page.inner_text("#count") == "11 photographs."
    expected = burn_engine.duplicates(photos)
    found = groups_of(page, "copies")
    assert found == [[photos[copy.position].name for copy in group] for group in expected]
    assert len(found) == 2
    assert ODD in found[0]
    assert page.inner_text("#copies .facts").startswith("2 groups with 5 of 11 photographs.")
    texts = page.locator("#copies .group .facts").all_inner_texts()
    assert texts[1].split(", ")[0].replace("\u00a0", " ") == "110 × 80"
    assert sum("mirrored" in text for text in texts) == 1
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "copies.txt"
    others = [photos[copy.position].name for group in expected for copy in group[1:]]
    assert download.value.path().read_text(encoding="utf-8").splitlines() == others

    page.click("#tab-groups")
    values = features_of(folder, photos)
    usual = usual_number(len(photos))
    for k in (usual, 5):
        if k != usual:
            change = """(k) => {
              const range = document.getElementById("panel").shadowRoot.getElementById("number");
              range.value = k;
              range.dispatchEvent(new Event("change"));
            }"""
            page.evaluate(change, k)
        # Shown together with the groups, which replace those that are there.
        page.wait_for_selector(f'#tab-groups span >> text="{k}"')
        clusters = burn_engine.cluster(values, k)
        wanted = []
        for label in range(k):
            members = np.flatnonzero(clusters.labels == label)
            order = members[np.argsort(-clusters.centrality[members], kind="stable")]
            wanted.append({photos[at].name for at in order})
        # Features of WebAssembly differ in the last bits, and so may the order in a group.
        assert [set(group) for group in groups_of(page, "groups")] == wanted

    page.click("#tab-similar")
    assert names(page.locator("#similar")) == [path.name for path in photos]
    page.locator("#similar .photos button").nth(3).click()
    page.wait_for_selector("#asked:not([hidden])")
    assert page.inner_text("#asked .name") == "3.png"
    units = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = units @ units[3]
    order = [at for at in np.argsort(-cosines, kind="stable") if at != 3]
    assert names(page.locator("#similar")) == [photos[at].name for at in order]
    shown = [float(text) for text in page.locator("#similar .photos .facts").all_inner_texts()]
    np.testing.assert_allclose(shown, cosines[order], atol=6e-4)


def test_groups_are_taken_off_the_list_and_a_photograph_leads_there_and_back(page, photos):
    give(page, photos)
    page.get_by_label("list the others").first.uncheck()
    other = page.locator("#copies .group").nth(1)
    best, copy = names(other)
    other.get_by_label("keep").nth(1).check()
    with page.expect_download() as download:
        page.click("#save")
    assert best != copy
    assert download.value.path().read_text().splitlines() == [best]
    page.click("#copy")
    page.wait_for_selector("#copied >> text=1 name copied.")
    page.locator("#copies .photos button").nth(1).click()
    page.wait_for_selector("#asked:not([hidden])")
    page.locator("#similar .photos button").first.click()
    page.click("#back")
    page.click("#back")
    page.wait_for_selector("#copies:visible")
    page.focus("#tab-copies")
    page.keyboard.press("ArrowLeft")
    page.fill("#filter", "ONERR")
    assert names(page.locator("#similar")) == [ODD]
    page.fill("#filter", "nothing like this")
    assert page.locator("#similar .photos li").count() == 0


def test_what_cannot_be_read_is_named_and_what_is_there_is_not_read_again(page, photos, tmp_path):
    (tmp_path / "<b>.jpg").write_text("hello")
    page.set_input_files("#chosen", tmp_path / "<b>.jpg")
    page.wait_for_selector("#count >> text=No photograph was read.")
    assert page.is_hidden("#results")
    sentence = "<b>.jpg is not an image that this browser can read"
    assert page.locator("#unread li").all_inner_texts() == [sentence]
    give(page, photos[:3])
    assert page.inner_text("#copies .facts") == "No copies among 3 photographs."
    assert page.inner_text("#count") == "3 photographs."
    page.set_input_files("#chosen", [str(path) for path in photos[1:9]])
    page.wait_for_selector("#count >> text=9 photographs; 2 were there already.")
    page.wait_for_selector("#copies .group")
    assert groups_of(page, "copies") == [["0.png", ODD]]


def test_a_folder_is_read_and_one_without_photographs_said_to_be(page, photos, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "notes.txt").write_text("hello")
    page.set_input_files("#folder", tmp_path / "none")
    page.wait_for_selector("#count >> text=There are no photographs in it.")
    (tmp_path / "none" / "a.HEIC").write_text("hello")
    page.set_input_files("#folder", tmp_path / "none")
    page.wait_for_selector("#unread:not([hidden])")
    assert page.locator("#unread li").all_inner_texts() == [
        "none/a.HEIC is not an image that this browser can read"
    ]
    page.set_input_files("#folder", photos[0].parent)
    page.wait_for_selector("#count >> text=11 photographs.")
    page.wait_for_selector("#copies .group")
    folders = set(page.locator("#copies .folder").all_inner_texts())
    root = photos[0].parent.name
    assert folders == {f"{root}/", f"{root}/backup/"}


def test_a_file_in_two_folders_is_a_copy_and_a_file_given_twice_is_none(page, photos, tmp_path):
    """`cp -p` keeps name, size and time."""
    for kind in ("first", "second"):
        (tmp_path / "all" / kind).mkdir(parents=True)
        shutil.copy2(photos[0], tmp_path / "all" / kind / "a.png")
    page.set_input_files("#folder", tmp_path / "all" / "first")
    page.wait_for_selector("#count >> text=1 photograph.")
    page.set_input_files("#chosen", tmp_path / "all" / "first" / "a.png")
    page.wait_for_selector("#count >> text=1 photograph; 1 was there already.")
    page.set_input_files("#folder", tmp_path / "all")
    page.wait_for_selector("#count >> text=2 photographs; 1 was there already.")
    page.wait_for_selector("#copies .group")
    assert sorted(page.locator("#copies .folder").all_inner_texts()) == ["all/second/", "first/"]


def test_files_chosen_alone_are_told_apart_by_their_bytes(page, tmp_path):
    """These have one name, size and time."""
    for kind in range(2):
        (tmp_path / str(kind)).mkdir()
        path = tmp_path / str(kind) / "a.bmp"
        Image.fromarray(scene(kind, 80, 110)).save(path)
        os.utime(path, (1e9, 1e9))
    paths = [tmp_path / str(kind) / "a.bmp" for kind in range(2)]
    assert paths[0].stat().st_size == paths[1].stat().st_size
    page.set_input_files("#chosen", paths[0])
    page.wait_for_selector("#count >> text=1 photograph.")
    page.set_input_files("#chosen", paths[1])
    page.wait_for_selector("#count >> text=2 photographs.")
    page.set_input_files("#chosen", paths[0])
    page.wait_for_selector("#count >> text=2 photographs; 1 was there already.")


def test_decisions_stay_when_photographs_are_added(page, photos):
    give(page, photos)
    first, second = page.locator("#copies .group").all()
    first.get_by_label("keep").nth(1).check()
    second.get_by_label("list the others").uncheck()
    kept = names(first)[1]
    Image.fromarray(scene(20, 80, 110)).save(photos[0].parent.parent / "more.png")
    page.set_input_files("#chosen", photos[0].parent.parent / "more.png")
    page.wait_for_selector("#count >> text=12 photographs.")
    page.wait_for_selector("#copies .facts >> text=of 12 photographs")
    first, second = page.locator("#copies .group").all()
    assert first.get_by_label("keep").nth(1).is_checked()
    assert not second.get_by_label("list the others").is_checked()
    with page.expect_download() as download:
        page.click("#save")
    listed = download.value.path().read_text(encoding="utf-8").splitlines()
    assert sorted(listed) == sorted(name for name in names(first) if name != kept)


def test_photographs_can_be_dropped(page, photos):
    drop = """(files) => {
      const panel = document.getElementById("panel").shadowRoot;
      const dataTransfer = new DataTransfer();
      for (const [name, bytes] of files) {
        dataTransfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
      }
      const options = { dataTransfer, bubbles: true, cancelable: true };
      for (const kind of ["dragenter", "dragover", "drop"]) {
        panel.getElementById("choice").dispatchEvent(new DragEvent(kind, options));
      }
    }"""
    page.evaluate(drop, [[path.name, list(path.read_bytes())] for path in photos[:4]])
    page.wait_for_selector("#count >> text=4 photographs.")


def test_reading_can_be_stopped_and_goes_on(page, tmp_path):
    paths = []
    for seed in range(70):
        pixels = np.random.default_rng(seed).integers(0, 255, (50, 60, 3), dtype=np.uint8)
        paths.append(tmp_path / f"{seed}.png")
        Image.fromarray(pixels).save(paths[-1])
    page.set_input_files("#chosen", [str(path) for path in paths])
    page.wait_for_selector("#doing:not([hidden]) >> text=Read ")
    page.click("#stop")
    page.wait_for_selector("#results:not([hidden])")
    count = int(page.inner_text("#count").split()[0])
    assert 0 < count < len(paths)
    page.set_input_files("#chosen", [str(path) for path in paths])
    page.wait_for_selector("#count >> text=70 photographs;", timeout=120_000)
    page.click("#tab-similar")
    assert page.locator("#similar .photos li").count() == 60
    page.click("#similar .content > button")
    assert page.locator("#similar .photos li").count() == 70


def test_a_page_that_may_have_no_workers_does_it_itself(browser, folder, photos, tmp_path):
    alone = tmp_path / "alone.html"
    text = (folder / "photos.html").read_text()
    assert f"'sha256-{digest(script(text))}'" in text
    alone.write_text(text.replace("worker-src blob:", "worker-src 'none'"))
    page, _, _ = opened(browser, alone.as_uri())
    give(page, photos)
    assert page.workers == []
    assert len(groups_of(page, "copies")) == 2
    page.context.close()


def test_it_runs_from_the_packages_folder_on_a_server(browser, folder, photos, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "js")
    shutil.copy(folder / "base.bnn", tmp_path / "js" / "photos.bnn")
    with serving(tmp_path / "js") as address:
        page, said, asked = opened(browser, address + "photos.html")
        give(page, photos)
        assert len(groups_of(page, "copies")) == 2
        assert {worker.url for worker in page.workers} == {address + "photos.js"}
        assert all(url.startswith((address, "data:", "blob:")) for url in asked)
        assert said == []
        page.context.close()


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_it_fits_a_narrow_screen(browser, folder, photos, scheme, tmp_path):
    address = (folder / "photos.html").as_uri()
    size = {"width": 390, "height": 844}
    page, _, _ = opened(browser, address, viewport=size, color_scheme=scheme)
    long = tmp_path / f"{'n' * 120}.png"
    shutil.copy(photos[0], long)
    (tmp_path / f"{'w' * 120}.jpg").write_text("hello")
    give(page, [*photos, long, tmp_path / f"{'w' * 120}.jpg"])
    for tab in ("copies", "groups", "similar"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#similar .photos button").last.click()
    page.wait_for_selector("#asked:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    dark = "rgb(21, 23, 26)"
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == dark) == (scheme == "dark")
    page.context.close()


def test_a_screen_reader_is_told_what_everything_is(page, photos):
    give(page, photos)
    told = page.locator("body").aria_snapshot()
    for part in (
        '- heading "Your photographs" [level=1]',
        '- button "Choose photographs…"',
        '- tab "Copies 2" [selected]',
        '- tab "Similar"',
        '- tabpanel "Copies 2":',
        '- heading "3 photographs" [level=2]',
        '- checkbox "list the others" [checked]',
        '- button "0.png"',
    ):
        assert part in told, told
