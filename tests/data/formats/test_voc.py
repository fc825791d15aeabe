"""Images with boxes: what is read, what is left out and reported, and what is refused."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from burn.core.errors import UserError
from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.formats.voc import VOC_CLASSES, Voc, open_voc

WIDTH, HEIGHT = 30, 20


def picture(seed: int = 0) -> np.ndarray:
    """Random colours, uint8 (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def encoded(array: np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form, **options)
    return buffer.getvalue()


def thing(name: str = "cat", box: Sequence = (3, 4, 10, 12), difficult: Any = 0) -> str:
    corners = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    inner = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners)
    return (
        f"<object><name>{name}</name><pose>Left</pose><difficult>{difficult}</difficult>"
        f"<bndbox>{inner}</bndbox></object>"
    )


SIZE = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"


def annotation(*objects: str, size: str = SIZE) -> str:
    return f"<annotation><filename>other.jpg</filename>{size}{''.join(objects)}</annotation>"


def write(
    folder: Path, items: Mapping[str, str | bytes | None], split: str = "trainval",
    lines: Sequence[str] | None = None,
) -> Path:  # fmt: skip
    """A folder in VOC's layout: id -> its XML, None for none; each image is a PNG of `picture`."""
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for seed, (name, xml) in enumerate(items.items()):
        (folder / "JPEGImages" / f"{name}.png").write_bytes(encoded(picture(seed)))
        if xml is not None:
            content = xml if isinstance(xml, bytes) else xml.encode()
            (folder / "Annotations" / f"{name}.xml").write_bytes(content)
    text = "".join(f"{line}\n" for line in (items if lines is None else lines))
    (folder / "ImageSets" / "Main" / f"{split}.txt").write_text(text)
    return folder


def refused(spec: Any, *words: str, split: Any = "train", classes: Any = None) -> None:
    """One line that says what was wrong."""
    with pytest.raises(UserError) as caught:
        open_voc(str(spec), split, classes)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def faults(tmp_path: Path, xml: str | bytes) -> tuple[Voc, str]:
    """What is left of one bad annotation beside a good one, and the only line about it."""
    voc = open_voc(str(write(tmp_path, {"bad": xml, "good": annotation(thing())})), "train")
    assert len(voc.skipped) == 1
    assert "\n" not in voc.skipped[0]
    return voc, voc.skipped[0]


# --- What is read. ---


def test_boxes_labels_and_presence(tmp_path: Path):
    items = {
        "a": annotation(thing("dog", (1, 1, WIDTH, HEIGHT)), thing("cat", (3, 4, 10, 12), 1)),
        "b": annotation(),
        "c": annotation(thing("dog", (2.5, 4.25, 10.5, 12), 1), thing("dog", (5, 5, 6, 7), 0)),
    }
    voc: Source = open_voc(str(write(tmp_path, items)), "train")
    assert isinstance(voc, Voc)
    assert len(voc) == len(voc.annotations) == 3
    assert voc.classes == VOC_CLASSES, "all names are VOC's"
    assert voc.labels is None
    assert voc.skipped == ()
    assert voc.name == f"{tmp_path}:trainval"
    cat, dog = VOC_CLASSES.index("cat"), VOC_CLASSES.index("dog")
    a, b, c = voc.annotations
    assert a.boxes.tolist() == [[0, 0, WIDTH, HEIGHT], [2, 3, 10, 12]]
    assert a.labels.tolist() == [dog, cat]
    assert a.difficult.tolist() == [False, True]
    assert c.boxes.tolist() == [[1.5, 3.25, 10.5, 12], [4, 4, 6, 7]]
    assert b.boxes.shape == (0, 4)
    for each in (a, b, c):
        assert each.boxes.dtype == np.float32
        assert each.labels.dtype == np.int64
        assert each.difficult.dtype == bool
    assert voc.presence.dtype == np.int8
    expected = np.full((3, 20), -1)
    expected[0, dog], expected[0, cat], expected[2, dog] = 1, 0, 1
    assert np.array_equal(voc.presence, expected)
    for i in range(3):
        assert voc.describe(i) == str(tmp_path / "JPEGImages" / f"{'abc'[i]}.png")
        image = voc.read(i)
        assert image.dtype == torch.uint8
        assert np.array_equal(image.permute(1, 2, 0).numpy(), picture(i))


def test_the_twenty_classes_are_vocs_in_their_order():
    assert len(set(VOC_CLASSES)) == 20
    assert list(VOC_CLASSES) == sorted(VOC_CLASSES)


def test_other_names_are_the_classes_sorted(tmp_path: Path):
    items = {"a": annotation(thing("wbc"), thing("cat")), "b": annotation(thing("RBC"))}
    assert open_voc(str(write(tmp_path, items)), "train").classes == ("RBC", "cat", "wbc")


def test_classes_of_the_training_data(tmp_path: Path):
    folder = write(tmp_path, {"a": annotation(thing("dog")), "b": annotation(thing("eel"))})
    voc = open_voc(str(folder), "train", ("eel", "cow", "dog"))
    assert voc.classes == ("eel", "cow", "dog")
    assert [each.labels.tolist() for each in voc.annotations] == [[2], [0]]
    refused(folder, "b.xml", "label eel", "cow, dog", classes=("cow", "dog"))


def test_parts_of_objects_are_not_objects(tmp_path: Path):
    """VOC2007 has heads and hands inside a person."""
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    person = thing("person").replace("</object>", f"{part}</object>")
    voc = open_voc(str(write(tmp_path, {"a": annotation(person)})), "train")
    assert voc.annotations[0].labels.tolist() == [VOC_CLASSES.index("person")]
    assert voc.skipped == ()


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".png", ".JPG"])
def test_extensions(suffix: str, tmp_path: Path):
    folder = write(tmp_path, {"a.b": annotation(thing())})
    file = folder / "JPEGImages" / f"a.b{suffix}"
    (folder / "JPEGImages" / "a.b.png").rename(file)
    assert open_voc(str(folder), "train").describe(0) == str(file)


def test_fingerprint(tmp_path: Path):
    items = {"a": annotation(thing()), "b": annotation(thing("dog"))}

    def fingerprint(name: str = "data", **changed: str) -> str:
        return open_voc(str(write(tmp_path / name, items | changed)), "train").fingerprint

    same = fingerprint()
    assert fingerprint("moved") == same, "not its place"
    changed = [
        fingerprint(b=annotation(thing("dog", (3, 4, 10, 13)))),
        fingerprint(b=annotation(thing("cow"))),
        fingerprint(b=annotation(thing("dog", difficult=1))),
        fingerprint(c=annotation()),
    ]
    (tmp_path / "moved" / "JPEGImages" / "a.png").write_bytes(encoded(picture()[:9]))
    changed.append(open_voc(str(tmp_path / "moved"), "train").fingerprint)
    assert len({same, *changed}) == 6


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_refer_to_pixels_before_exifs_rotation(suffix: str, orientation: int, tmp_path: Path):
    folder = write(tmp_path, {"a": annotation(thing())})
    exif = Image.Exif()
    exif[0x0112] = orientation
    (folder / "JPEGImages" / "a.png").unlink()
    form = {".png": "PNG", ".jpg": "JPEG"}[suffix]
    for name, options in (("a", {"exif": exif.tobytes()}), ("plain", {})):
        content = encoded(picture(), form, **options)
        (folder / "JPEGImages" / f"{name}{suffix}").write_bytes(content)
    stored = np.array(Image.open(folder / "JPEGImages" / f"plain{suffix}"))
    found = open_voc(str(folder), "train").read(0)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), stored)


def test_16_000_annotations_take_seconds(tmp_path: Path):
    """A fortieth of them, which takes about 0.05 s, with room for a busy machine."""
    objects = [thing(box=(i, 1, i + 3, 9)) for i in range(1, 4)]
    folder = write(tmp_path, {f"{i:06d}": annotation(*objects) for i in range(400)})
    start = time.process_time()
    assert len(open_voc(str(folder), "train")) == 400
    assert time.process_time() - start < 2


# --- Folders and splits. ---


def test_splits_by_default_and_by_name(tmp_path: Path):
    for split in ("train", "val", "trainval", "test"):
        write(tmp_path, {split: annotation(thing())}, split)

    def only(spec: str, split: Any) -> str:
        voc = open_voc(spec, split)
        assert len(voc) == 1
        return Path(voc.describe(0)).stem

    spec, lists = str(tmp_path), tmp_path / "ImageSets" / "Main"
    assert only(spec, "train") == "trainval"
    assert only(spec, "test") == "test"
    assert only(f"{spec}:val", "train") == "val"
    assert open_voc(f"{spec}:val", "train").name == f"{spec}:val"
    (lists / "trainval.txt").unlink()
    (lists / "test.txt").unlink()
    assert only(spec, "train") == "train"
    assert only(spec, "test") == "val"
    (lists / "cat_train.txt").write_text("train 1\n")
    assert only(f"{spec}:cat_train", "train") == "train"
    refused(f"{spec}:nope", "no split nope", str(lists), "there are train, val")
    refused(f"{spec}:", f"{spec}: ends in a colon", str(lists), "there are train, val")
    refused(f"{spec}:val,{spec}: ", "names no split")
    (lists / "train.txt").unlink()
    refused(spec, "no split trainval or train", split="train")
    for file in lists.iterdir():
        file.unlink()
    refused(spec, "there is none")


def test_lists_of_a_class_have_a_second_column(tmp_path: Path):
    lines = ["a  1", "", "b -1", "  c 0  "]
    folder = write(tmp_path, dict.fromkeys("abc", annotation(thing())), lines=lines)
    assert len(open_voc(str(folder), "train")) == 3


def test_ids_may_hold_spaces(tmp_path: Path):
    names = ["my i0", "my  i1", "i2", "my"]
    lines = ["my i0", " my  i1  1 ", "i2 -1", "my 1", "no such", "your i0 1"]
    folder = write(tmp_path, dict.fromkeys(names, annotation(thing())), lines=lines)
    voc = open_voc(str(folder), "train")
    assert [Path(voc.describe(i)).stem for i in range(len(voc))] == names
    assert [line.partition(":")[0] for line in voc.skipped] == ["'no'", "'your'"]
    (folder / "Annotations" / "my i0.xml").unlink()
    assert open_voc(str(folder), "train").skipped[0].startswith("'my i0': no annotation")


@pytest.mark.parametrize(
    "line", ["a/i0", "a/i0.png", "./a/i0.PNG", "JPEGImages/a/i0.png", "VOC/JPEGImages/a/i0.png 1",
             "a\\i0.png", "/data/VOC/JPEGImages/a/i0.png"],
)  # fmt: skip
def test_ids_may_have_folders_and_extensions(line: str, tmp_path: Path):
    folder = write(tmp_path, {"i0": annotation(thing("dog"))}, lines=[line, "../../i0"])
    for part, name in (("JPEGImages", "i0.png"), ("Annotations", "i0.xml")):
        (folder / part / "a").mkdir()
        (folder / part / name).rename(folder / part / "a" / name)
    voc = open_voc(str(folder), "train")
    assert [voc.describe(i) for i in range(len(voc))] == [str(folder / "JPEGImages/a/i0.png")]
    assert voc.skipped == (f"'../../i0': no annotation of this name in {folder}",)


def test_coordinates_that_are_fractions_are_refused(tmp_path: Path):
    xml = annotation(thing("cat", (0.25, 0.5, 0.75, 1)), thing("dog", (0, 0, 1, 1)))
    folder = write(tmp_path, {"a": xml, "b": xml})
    refused(folder, "no box that can be used", "coordinates in 0 … 1, which are fractions")


def test_several_folders_are_joined_in_order(tmp_path: Path):
    one = write(tmp_path / "one", {"a": annotation(thing("dog"))})
    two = write(tmp_path / "two", {"b": annotation(thing("eel"))})
    write(two, {"c": annotation(thing("cat"))}, "val")
    voc = open_voc(f"{one}, {two}:val,{two}", "train")
    assert [Path(voc.describe(i)).stem for i in range(3)] == ["a", "c", "b"]
    assert voc.classes == ("cat", "dog", "eel")
    assert voc.name == f"{one}:trainval,{two}:val,{two}:trainval"
    refused(f"{one},,{two}", "empty name")
    refused("", "empty name")
    refused(f"{one},{tmp_path / 'three'}", "three")
    twice = open_voc(f"{one},{one}:trainval", "train")
    assert len(twice) == 1
    assert twice.skipped == ("a is listed twice: it is used once",)


def test_a_comma_or_a_colon_in_a_folders_name(tmp_path: Path):
    folder = write(tmp_path / "a,b:c", {"a": annotation(thing())})
    assert len(open_voc(str(folder), "train")) == 1


@pytest.mark.parametrize("devkit", ["VOC2007", "VOCdevkit/VOC2007"])
def test_the_folder_above(devkit: str, tmp_path: Path):
    write(tmp_path / devkit, {"a": annotation(thing())})
    (tmp_path / "other").mkdir()
    assert len(open_voc(f"{tmp_path}:trainval", "test")) == 1
    second = write(tmp_path / "VOC2012", {"a": annotation(thing())})
    refused(tmp_path, "several", str(second), str(tmp_path / devkit))


def test_what_is_no_folder_of_this_layout_is_refused(tmp_path: Path):
    refused(tmp_path / "nowhere", "no data at", "nowhere")
    refused(tmp_path, "no folder Annotations")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "no data at")
    refused("x" * 5000, "no data at")
    refused("\0", "no data at")
    write(tmp_path, {"a": annotation(thing())})
    for file in (tmp_path / "JPEGImages").iterdir():
        file.unlink()
    (tmp_path / "JPEGImages").rmdir()
    refused(tmp_path, "JPEGImages", "no such file")


# --- Faults that are reported. ---


def test_boxes_that_are_left_out_or_clipped(tmp_path: Path):
    boxes = {
        "no area": [(5, 5, 5, 9), (5, 5, 9, 5)],
        "exchanged corners": [(9, 5, 3, 8), (5, 9, 8, 2), (9, 9, 2, 2)],
        "coordinates in 0 … 1": [(0.1, 0.2, 0.9, 0.8), (0, 0, 1, 1), (-0.01, 0, 1.02, 0.5)],
        "outside": [(WIDTH + 1, 1, WIDTH + 9, 9), (-9, 1, 0, 9), (1, HEIGHT + 1, 9, HEIGHT + 5)],
        "clipped": [(0, 1, 9, 9), (9, 9, WIDTH + 1, 12), (-5, -5, 99, 99)],
        "lacks coordinates": [
            ("nan", 1, 5, 5), (1, "inf", 5, 5), (1, 1, "1e999", 5), ("", 1, 2, 3),
        ],
    }  # fmt: skip
    objects = [thing("cat", box) for group in boxes.values() for box in group]
    folder = write(tmp_path, {"a": annotation(*objects)})
    voc = open_voc(str(folder), "train")
    words = [word for word, group in boxes.items() for _ in group]
    assert len(voc.skipped) == len(words)
    for number, (word, line) in enumerate(zip(words, voc.skipped, strict=True), 1):
        assert line.startswith(f"a.xml: box {number} (cat) ")
        assert word in line
    kept = [[2, 4, 9, 8], [4, 1, 8, 9], [1, 1, 9, 9]]
    kept += [[0, 0, 9, 9], [8, 8, WIDTH, 12], [0, 0, WIDTH, HEIGHT]]
    assert voc.annotations[0].boxes.tolist() == kept


def test_a_box_that_vanishes_in_float32_has_no_area(tmp_path: Path):
    """Left of it or above, clipped at 0, and at the right edge, where float32 is coarser."""
    boxes = [
        (WIDTH + 1 - 1e-8, 1, WIDTH + 9, 9), (1, HEIGHT + 1 - 1e-8, 9, HEIGHT + 9),
        (-9, 1, 1e-60, 9), (1, -9, 9, 1e-60), (WIDTH + 1 - 1e-5, 1, WIDTH + 9, 9),
    ]  # fmt: skip
    xml = annotation(*(thing("cat", tuple(map(repr, box))) for box in boxes))
    voc = open_voc(str(write(tmp_path, {"a": xml})), "train")
    (box,) = voc.annotations[0].boxes
    assert box[0] < box[2] == WIDTH
    assert (voc.presence[0] == 1).sum() == 1
    kept = "a.xml: box 5 (cat) reaches outside its image and was clipped"
    assert voc.skipped == (*(f"a.xml: box {i} (cat) has no area" for i in range(1, 5)), kept)


def test_long_texts_are_cut_where_they_are_shown(tmp_path: Path):
    name = "x" * 3_000_000
    for xml in (annotation(thing(name)), f'<?xml version="1.0" encoding="{name}"?><annotation/>'):
        _, line = faults(tmp_path, xml)
        assert "x" * 60 in line
        assert len(line) < 200
    long = thing("y" * 100, (1, 1, 1, 1))
    _, line = faults(tmp_path, annotation(long))
    assert line == f"bad.xml: box 1 ({'y' * 79}…) has no area"
    folder = write(tmp_path / "b", {"a": annotation(thing("y" * 100))})
    classes = tuple(f"{i:z>100}" for i in range(5000))
    said = r"label y{79}… is none .*\(z+ … z+0, .* 4995 more"
    with pytest.raises(UserError, match=said) as caught:
        open_voc(str(folder), "train", classes)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("<name>cat</name>", "", "box 1 has no name"),
        ("<name>cat</name>", "<name> </name>", "box 1 has no name"),
        ("<name>cat</name>", f"<name>{'x' * 101}</name>", "has no name"),
        ("<name>cat</name>", "<name>c&#x9b;t</name>", "has no name"),
        ("<xmin>3</xmin>", "", "box 1 (cat) lacks coordinates"),
        ("<xmin>3</xmin>", "<xmin>three</xmin>", "box 1 (cat) lacks coordinates"),
        ("bndbox", "box", "box 1 (cat) lacks coordinates"),
    ],
)
def test_objects_that_lack_something(old: str, new: str, line: str, tmp_path: Path):
    voc, found = faults(tmp_path, annotation(thing().replace(old, new)))
    assert line in found
    assert found.isprintable()
    assert [len(each.boxes) for each in voc.annotations] == [0, 1]
    assert (voc.presence[0] == -1).all()


def test_difficult_may_be_missing(tmp_path: Path):
    bare = thing().replace("<difficult>0</difficult>", "")
    voc = open_voc(str(write(tmp_path, {"a": annotation(bare, thing(difficult=" 1 "))})), "train")
    assert voc.annotations[0].difficult.tolist() == [False, True]


BOMB = (
    '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]>'
    + annotation(thing()).replace("cat", "&y;")
)  # fmt: skip


@pytest.mark.parametrize(
    ("xml", "word"),
    [
        ("", "not XML"),
        ("<html>404", "not XML"),
        ("no tags", "not XML"),
        (annotation(thing())[:-9], "not XML"),
        (annotation(thing("a & b")), "not XML"),
        (annotation(thing("&lol;")), "not XML"),
        (b'<?xml version="1.0" encoding="no-such"?>' + annotation().encode(), "not XML"),
        (b'<?xml version="1.0" encoding="utf-7"?>' + annotation().encode(), "not XML"),
        (annotation(thing("caf\xe9")).encode("latin1"), "not XML"),
        ("<boxes/>", "no element annotation"),
        (BOMB, "document type"),
        (BOMB.encode("utf-16"), "document type"),
        (BOMB.replace("[", 'SYSTEM "file:///etc/passwd" ['), "document type"),
        (annotation(thing()) + " " * (4 * 2**20), "larger than 4 MiB"),
    ],
)
def test_annotations_that_are_left_out(xml: str | bytes, word: str, tmp_path: Path):
    voc, line = faults(tmp_path, xml)
    assert line.startswith("bad.xml: ")
    assert word in line
    assert len(voc) == 1


def test_an_entity_is_never_expanded_whatever_the_encoding(tmp_path: Path):
    """expat asks Python for encodings it does not know; none may hide the declaration."""
    for encoding in ("cp037", "utf-16-le", "utf-32", "utf-8-sig", "latin1", "cp1252", "utf-7"):
        text = f'<?xml version="1.0" encoding="{encoding}"?>{BOMB}'
        for content in (text.encode(encoding), text.encode()):
            voc, _ = faults(tmp_path, content)
            assert len(voc) == 1


def test_other_encodings_of_names(tmp_path: Path):
    text = '<?xml version="1.0" encoding="latin1"?>' + annotation(thing("caf\xe9"))
    voc = open_voc(str(write(tmp_path, {"a": text.encode("latin1")})), "train")
    assert voc.classes == ("caf\xe9",)


def test_deep_nesting_does_not_overflow(tmp_path: Path):
    depth = 200_000
    deep = annotation(thing(), "<a>" * depth + "</a>" * depth)
    assert len(open_voc(str(write(tmp_path, {"a": deep})), "train")) == 1


def test_missing_files_are_left_out(tmp_path: Path):
    folder = write(tmp_path, {"a": None, "b": annotation(thing()), "c": annotation(thing())})
    (folder / "JPEGImages" / "b.png").unlink()
    voc = open_voc(str(folder), "train")
    assert voc.skipped == (
        f"'a': no annotation of this name in {folder}",
        f"'b': no image of this name in {folder}",
    )
    assert len(voc) == 1


def test_links_to_nowhere_and_pipes_are_missing(tmp_path: Path):
    folder = write(tmp_path, dict.fromkeys("abc", annotation(thing())))
    (folder / "JPEGImages" / "a.png").unlink()
    (folder / "JPEGImages" / "a.png").symlink_to(tmp_path / "gone")
    (folder / "Annotations" / "b.xml").unlink()
    os.mkfifo(folder / "Annotations" / "b.xml")
    voc = open_voc(str(folder), "train")
    assert [line[:9] for line in voc.skipped] == ["'a': no i", "'b': no a"]


@pytest.mark.parametrize(
    "name",
    ["../secret", "../../outside/secret", "..", ".", "/etc/passwd", "a/../../x", "..\\secret",
     "\x1b[2J", "x" * 5000, "\0", "\ufffd"],
)  # fmt: skip
def test_ids_never_lead_outside(name: str, tmp_path: Path):
    folder = write(tmp_path / "data", {"a": annotation(thing())}, lines=[name, "a"])
    for beside in (folder, tmp_path / "outside"):
        beside.mkdir(exist_ok=True)
        (beside / "secret.xml").write_text(annotation(thing()))
        (beside / "secret.png").write_bytes(encoded(picture()))
    voc = open_voc(str(folder), "train")
    assert [voc.describe(i) for i in range(len(voc))] == [str(folder / "JPEGImages" / "a.png")]
    assert len(voc.skipped) == 1
    assert voc.skipped[0].isprintable()
    assert "no annotation of this name" in voc.skipped[0]


def test_filename_is_not_followed(tmp_path: Path):
    xml = annotation(thing()).replace("other.jpg", "../../secret.png")
    voc = open_voc(str(write(tmp_path, {"a": xml})), "train")
    assert voc.describe(0) == str(tmp_path / "JPEGImages" / "a.png")


@pytest.mark.parametrize(
    "size",
    ["", "<size/>", "<size><width>0</width><height>0</height></size>", SIZE.replace("20", "-20"),
     SIZE.replace("30", "wide"), SIZE.replace("30", "1" * 5000), SIZE.replace("30", "99999"),
     SIZE.replace("30", "٣٠")],
)  # fmt: skip
def test_a_size_that_is_missing_is_the_images(size: str, tmp_path: Path):
    xml = annotation(thing(box=(1, 1, 99, 99)), size=size)
    voc, line = faults(tmp_path, xml)
    assert "clipped" in line
    assert voc.annotations[0].boxes.tolist() == [[0, 0, WIDTH, HEIGHT]]
    voc.read(0)


def test_without_a_size_the_image_must_be_readable(tmp_path: Path):
    folder = write(tmp_path, {"a": annotation(thing(), size=""), "b": annotation(thing())})
    (folder / "JPEGImages" / "a.png").write_bytes(b"<html>404</html>")
    voc = open_voc(str(folder), "train")
    assert voc.skipped == ("a.xml: has no size, and a.png cannot be read",)
    assert len(voc) == 1


def test_a_size_is_read_from_the_formats_that_are_decoded(tmp_path: Path):
    items = {"a": annotation(thing(), size=""), "b": annotation(thing())}
    folder = write(tmp_path, items)
    (folder / "JPEGImages" / "a.png").write_bytes(encoded(picture(), "EPS"))
    voc = open_voc(str(folder), "train")
    assert voc.skipped == ("a.xml: has no size, and a.png cannot be read",)


def test_images_that_cannot_be_read(tmp_path: Path):
    folder = write(tmp_path, dict.fromkeys("abc", annotation(thing())))
    images = folder / "JPEGImages"
    voc = open_voc(str(folder), "train")
    (images / "a.png").write_bytes(encoded(picture())[:100])
    (images / "b.png").unlink()
    (images / "c.png").write_bytes(encoded(picture().transpose(1, 0, 2)))
    for index, words in enumerate(["a.png", "b.png: no such file", "20×30 pixels.*says 30×20"]):
        with pytest.raises(UnreadableImage, match=words) as caught:
            voc.read(index)
        assert "\n" not in str(caught.value)


def test_nothing_left_is_refused(tmp_path: Path):
    refused(write(tmp_path / "a", {"x": "<broken"}), "a:trainval holds no image", "x.xml: not XML")
    refused(write(tmp_path / "b", {"x": annotation()}), "b:trainval holds no box")
    refused(write(tmp_path / "c", {}), "c:trainval holds no image that can be used")
    refused(write(tmp_path / "d", {"x": annotation(thing(box=(1, 1, 1, 1)))}), "has no area")


def test_whatever_the_damage_it_opens_or_is_refused(tmp_path: Path):
    random = np.random.default_rng(0)
    whole = annotation(thing(), thing("dog", (1, 2, 30, 20), 1)).encode()
    folder = write(tmp_path, {"a": whole, "b": annotation(thing())})
    file = folder / "Annotations" / "a.xml"
    lists = folder / "ImageSets" / "Main" / "trainval.txt"
    kept = set()
    for _ in range(150):
        broken = bytearray(whole)
        for place in random.integers(0, len(broken), random.integers(1, 4)):
            broken[place] = random.integers(0, 256)
        file.write_bytes(broken[: random.integers(0, 2 * len(whole))])
        voc = open_voc(str(folder), "train")
        kept.add(len(voc))
        for each in voc.annotations:
            assert np.isfinite(each.boxes).all()
            assert (each.boxes[:, :2] < each.boxes[:, 2:]).all()
            assert (each.boxes >= 0).all()
            assert (each.boxes <= (WIDTH, HEIGHT) * 2).all()
        assert all("\n" not in line for line in voc.skipped)
    assert kept == {1, 2}
    for _ in range(50):
        lists.write_bytes(random.bytes(200) + b"\nb\n")
        assert len(open_voc(str(folder), "train")) == 1
