"""Images with boxes, in the layout of Pascal VOC.

A folder holds Annotations/ID.xml, JPEGImages/ID.jpg (or another extension of images) and the lists
of ids ImageSets/Main/SPLIT.txt. An id may have subfolders, and in a list also the image's
extension. It is only looked up in the listings of the first two folders, so that it cannot name a
file outside of them.
"""

from __future__ import annotations

import math
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from burn.core.errors import UserError, listed
from burn.core.inputs import list_folder, open_regular, read_bytes
from burn.core.paths import expand
from burn.data.base import PixelSource, Split
from burn.data.builtin.scenes import digit_scenes
from burn.data.decode import UnreadableImage, decode_pixels, read_image
from burn.data.fingerprint import digest, file_contents
from burn.data.formats.folder import walk
from burn_engine.folders import SUFFIXES, suffix_of
from burn_engine.pixels import FORMATS, MOST_BYTES

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

_DEFAULT_SPLITS: dict[Split, tuple[str, str]] = {
    "train": ("trainval", "train"),
    "test": ("test", "val"),
}
_LARGEST_XML = 4 * 2**20  # bytes; an annotation of hundreds of objects has less than a tenth of it
_LARGEST_LIST = 64 * 2**20  # bytes; VOC's and COCO's lists together have a hundredth of it
_LARGEST_SIDE = 2**16


@dataclass(frozen=True)
class Annotation:
    """The objects of one image.

    Attributes:
        boxes: float32 (objects, 4): left, top, right, bottom in pixels, counted from 0, right and
            bottom exclusive, i.e. VOC's xmin - 1, ymin - 1, xmax, ymax. Boxes lie inside the image.
        labels: int64 (objects,), positions in the source's classes.
        difficult: bool (objects,); VOC's score ignores difficult objects.
    """

    boxes: np.ndarray
    labels: np.ndarray
    difficult: np.ndarray


@dataclass(frozen=True)
class _Object:
    name: str
    box: tuple[float, float, float, float]
    difficult: bool


@dataclass(frozen=True)
class _Item:
    """One image and its annotation as read, before class names become labels."""

    image: Path
    image_bytes: int
    size: tuple[int, int]  # width, height
    xml: Path
    objects: list[_Object]


class _Fault(Exception):
    """Raised for an image or a box that is left out; the message says why."""


class Voc(PixelSource):
    """A source of images with boxes; `labels` is None, as an image may show several classes.

    Attributes:
        presence: int8 (images, classes): 1 if the image shows an object of the class that is not
            difficult, 0 if it shows only difficult ones, -1 if it shows none.
        skipped: What was left out or fixed and why, one line each.
    """

    labels: np.ndarray | None = None

    def __init__(
        self, name: str, items: list[_Item], classes: tuple[str, ...], skipped: list[str]
    ) -> None:
        self.name, self.classes, self.skipped = name, classes, tuple(skipped)
        faults = f"{len(skipped):,} faults: {'; '.join(skipped[:5])}"
        self.notes = (faults,) if skipped else ()
        self._items = items
        position = {name: i for i, name in enumerate(classes)}
        annotations, described = [], [repr(classes)]
        self.presence = np.full((len(items), len(classes)), -1, dtype=np.int8)
        for presence, item in zip(self.presence, items, strict=True):
            objects = item.objects
            for thing in objects:
                if thing.name not in position:
                    raise UserError(
                        f"{item.xml}: label {_shown(thing.name)} is none of the classes of the "
                        f"training data ({listed(classes, 5, each=40)})"
                    )
            annotation = Annotation(
                np.array([thing.box for thing in objects], dtype=np.float32).reshape(-1, 4),
                np.array([position[thing.name] for thing in objects], dtype=np.int64),
                np.array([thing.difficult for thing in objects], dtype=bool),
            )
            presence[annotation.labels] = 0
            presence[annotation.labels[~annotation.difficult]] = 1
            annotations.append(annotation)
            described.append(f"{item.image.name} {item.size} {objects}")
        self.annotations = tuple(annotations)
        self.fingerprint = digest(
            *described, file_contents([(i.image, i.image_bytes) for i in items])
        )

    def __len__(self) -> int:
        return len(self._items)

    def pixels(self, index: int) -> np.ndarray:
        """Return an image, which is unreadable if its size is not the annotation's.

        The rotation that EXIF asks for is not applied, as boxes refer to the pixels as stored.
        """
        item = self._items[index]
        image = decode_pixels(read_image(item.image), str(item.image), upright=False)
        size = (image.shape[1], image.shape[0])
        if size != item.size:
            raise UnreadableImage(
                f"{item.image} has {size[0]}×{size[1]} pixels, "
                f"its annotation says {item.size[0]}×{item.size[1]}"
            )
        return image

    def describe(self, index: int) -> str:
        return str(self._items[index].image)


def open_voc(spec: str, split: Split, classes: tuple[str, ...] | None = None) -> Voc:
    """Open the images with boxes that a specification names.

    Images and boxes with smaller faults are left out, and listed in the source's `skipped`.

    Args:
        spec: FOLDER or FOLDER:SPLIT, or several of them joined by commas. FOLDER may also be the
            folder that contains it, as in VOC's devkit, or `digit-scenes`.
        split: The part to read if there is no SPLIT: "train" reads trainval, or train if that does
            not exist; "test" reads test, or else val.
        classes: The classes of the training data. None takes VOC's 20 if no other name occurs, and
            otherwise the names that occur, sorted.
    """
    items: list[_Item] = []
    skipped: list[str] = []
    names: list[str] = []
    seen: set[Path] = set()
    parts = [spec] if _exists(spec) else spec.split(",")
    for part in parts:
        folder, name = _folder_and_split(part.strip(), split)
        names.append(f"{part.strip().removesuffix(f':{name}')}:{name}")
        for item in _read_split(folder, name, skipped):
            if item.image in seen:
                skipped.append(f"{item.image.stem} is listed twice: it is used once")
            else:
                items.append(item)
                seen.add(item.image)
    full_name = ",".join(names)
    class_names = sorted({thing.name for item in items for thing in item.objects})
    if not class_names:
        reason = f": {skipped[0]}" if skipped else ""
        what = "no box" if items else "no image"
        raise UserError(f"{full_name} holds {what} that can be used{reason}")
    if classes is None:
        classes = VOC_CLASSES if set(class_names) <= set(VOC_CLASSES) else tuple(class_names)
    return Voc(full_name, items, classes, skipped)


def is_voc(spec: str) -> bool:
    """Return whether a specification is meant for `open_voc`: its first folder has annotations.

    `digit-scenes`, whose folder is written on first use, counts as well.
    """
    part = spec if _exists(spec) else spec.split(",")[0]
    folder = part if _exists(part) else part.rpartition(":")[0]
    if "digit-scenes" in (part, folder):
        return True
    patterns = ("Annotations", "*/Annotations", "VOCdevkit/*/Annotations")
    return _exists(folder) and any(next(expand(folder).glob(p), None) for p in patterns)


def _exists(path: str) -> bool:
    try:
        return bool(path) and bool(expand(path).stat())
    except PermissionError as error:
        raise UserError(f"{path}: no permission to look it up") from error
    except (OSError, ValueError):  # for example, it is too long for a file name
        return False


def _folder_and_split(part: str, split: Split) -> tuple[Path, str]:
    folder, chosen = part, None
    if ":" in part and not _exists(part):
        folder, _, chosen = part.rpartition(":")
    if not folder:
        raise UserError(
            "the data contain an empty name: give FOLDER or FOLDER:SPLIT, several joined by commas"
        )
    path = digit_scenes() if folder == "digit-scenes" else _with_annotations(folder)
    lists = path / "ImageSets" / "Main"
    there = list_folder(lists) if lists.is_dir() else []
    splits = sorted(Path(entry.name).stem for entry in there if entry.name.endswith(".txt"))
    wanted = _DEFAULT_SPLITS[split] if chosen is None else (chosen,)
    for name in wanted:
        if name in splits:
            return path, name
    # VOC also has a file for each class and split, e.g. dog_train.txt.
    splits = [name for name in splits if name.rpartition("_")[2] not in splits or "_" not in name]
    choices = f"there are {listed(splits, 20)}" if splits else "there is none"
    if chosen == "":
        raise UserError(f"{part} ends in a colon but names no split: in {lists} {choices}")
    raise UserError(f"no split {' or '.join(wanted)} in {lists}: {choices}")


def _with_annotations(folder: str) -> Path:
    path = expand(folder)
    if not _exists(folder) or not path.is_dir():
        raise UserError(f"no data at {folder}: give a folder in VOC's layout, or digit-scenes")
    list_folder(path)  # raises if it cannot be read; globbing would find it empty
    if (path / "Annotations").is_dir():
        return path
    folders = sorted(
        inner.parent
        for pattern in ("*/Annotations", "VOCdevkit/*/Annotations")
        for inner in path.glob(pattern)
        if inner.is_dir()
    )
    if not folders:
        raise UserError(f"{folder} holds no folder Annotations, as Pascal VOC's layout has it")
    if len(folders) > 1:
        raise UserError(
            f"{folder} holds several such folders: choose among {', '.join(map(str, folders))}"
        )
    return folders[0]


def _read_split(folder: Path, name: str, skipped: list[str]) -> Iterator[_Item]:
    file = folder / "ImageSets" / "Main" / f"{name}.txt"
    lines = read_bytes(file, _LARGEST_LIST).decode("utf-8-sig", "replace").splitlines()
    annotations = _listed(folder / "Annotations", (".xml",))
    images = _listed(folder / "JPEGImages", SUFFIXES)
    for line in lines:
        if not (columns := line.split()):
            continue
        # An id may contain spaces, and in the file of one class a second column follows it.
        ids = (*_ids(line.strip()), *_ids(line.rsplit(None, 1)[0].strip()))
        key = next((id_ for id_ in ids if id_ in annotations or id_ in images), columns[0])
        xml, image = annotations.get(key), images.get(key)
        if xml is None or image is None:
            missing = "annotation" if xml is None else "image"
            skipped.append(f"{key[:100]!r}: no {missing} of this name in {folder}")
            continue
        try:
            size, objects, faults = _parse(xml, image)
            yield _Item(image, image.stat().st_size, size, xml, objects)
        except _Fault as fault:
            skipped.append(f"{xml.name}: {fault}")
        except OSError as error:
            skipped.append(f"{xml.name}: {error.strerror}")
        except UserError as error:
            skipped.append(str(error))
        else:
            skipped += [f"{xml.name}: {fault}" for fault in faults]


def _ids(text: str) -> Iterator[str]:
    """Yield what an entry of a list may mean as an id, e.g. VOC/JPEGImages/a/b.jpg: a/b."""
    path = text.replace("\\", "/").removeprefix("./")
    stem = path[: -len(suffix)] if (suffix := suffix_of(path)) in SUFFIXES else path
    yield from (path, stem)
    while "/" in stem:
        stem = stem.partition("/")[2]
        yield stem


def _listed(folder: Path, extensions: tuple[str, ...]) -> dict[str, Path]:
    """Return the files below a folder by their paths in it without the extension."""
    files: dict[str, Path] = {}
    for listing in walk(folder):
        below = "" if Path(listing.path) == folder else f"{Path(listing.path).relative_to(folder)}/"
        for name in listing.files:
            key = Path(below + name)
            if key.suffix.lower() in extensions and str(key).isprintable():
                file = Path(listing.path, name)
                if file.is_file():
                    files.setdefault(key.with_suffix("").as_posix(), file)
    return files


def _parse(xml: Path, image: Path) -> tuple[tuple[int, int], list[_Object], list[str]]:
    """Parse an annotation: width and height, the objects, and a line on each fault of a box."""
    with open_regular(xml) as file:
        content = file.read(_LARGEST_XML + 1)
    if len(content) > _LARGEST_XML:
        raise _Fault(f"larger than {_LARGEST_XML >> 20} MiB")
    # Entities can expand without bound or name other files. Text without zero bytes is not UTF-16,
    # and in all other encodings that expat knows a declaration consists of these bytes.
    if b"\0" in content or b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise _Fault("declares a document type or is UTF-16, which is not read")
    try:
        root = ET.fromstring(content)
    except (ET.ParseError, ValueError, LookupError) as error:
        raise _Fault(f"not XML: {_shown(str(error))}") from error
    if root.tag != "annotation":
        raise _Fault("no element annotation")
    width, height = size = _size(root, image)
    objects, faults = [], []
    for number, element in enumerate(root.findall("object"), 1):
        label = " ".join(element.findtext("name", "").split())
        what = f"box {number} ({_shown(label)})" if label else f"box {number}"
        try:
            (left, top, right, bottom), exchanged = _box(element, label)
            if exchanged:
                faults.append(f"{what} has exchanged corners, which were put right")
            inside = (max(left, 0), max(top, 0), min(right, width), min(bottom, height))
            if inside[0] >= inside[2] or inside[1] >= inside[3]:
                raise _Fault("lies outside its image")
            rounded = np.array(inside, dtype=np.float32)  # the precision of an Annotation
            if (rounded[:2] >= rounded[2:]).any():
                raise _Fault("has no area")
            if inside != (left, top, right, bottom):
                faults.append(f"{what} reaches outside its image and was clipped")
        except _Fault as fault:
            faults.append(f"{what} {fault}")
        else:
            difficult = element.findtext("difficult", "").strip() == "1"
            objects.append(_Object(label, inside, difficult))
    return size, objects, faults


def _size(root: ET.Element, image: Path) -> tuple[int, int]:
    """Return width and height from the annotation, or from the image if it does not say."""
    texts = [root.findtext(f"size/{side}", "").strip() for side in ("width", "height")]
    if all(text.isascii() and text.isdigit() and len(text) < 6 for text in texts):
        width, height = map(int, texts)
        if 0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE:
            return width, height
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd but readable files
            # Some of Pillow's readers read the whole file to find the image's size.
            with (
                open_regular(image, MOST_BYTES) as file,
                Image.open(file, formats=FORMATS) as opened,
            ):
                return opened.size
    except Exception as error:  # a damaged image may raise any exception
        raise _Fault(f"has no size, and {image.name} cannot be read") from error


def _box(element: ET.Element, label: str) -> tuple[tuple[float, float, float, float], bool]:
    """Return left, top, right, bottom of an object, and whether its corners were exchanged.

    They are 0-based and half-open, and not yet clipped.
    """
    if not label or len(label) > 100 or not label.isprintable():
        raise _Fault("has no name")
    texts = [element.findtext(f"bndbox/{key}", "") for key in ("xmin", "ymin", "xmax", "ymax")]
    try:
        numbers = tuple(map(float, texts))
    except ValueError as error:
        raise _Fault("lacks coordinates") from error
    if not all(map(math.isfinite, numbers)):
        raise _Fault("lacks coordinates")
    (xmin, xmax), (ymin, ymax) = sorted(numbers[::2]), sorted(numbers[1::2])
    # VOC's coordinates are inclusive, so xmin = xmax is one pixel, which is usually a stray click.
    if xmin == xmax or ymin == ymax:
        raise _Fault("has no area")
    if min(xmin, ymin) > -1 and max(xmax, ymax) < 2:  # fractions may reach beyond 0 … 1
        raise _Fault("has coordinates in 0 … 1, which are fractions: give pixels")
    return (xmin - 1, ymin - 1, xmax, ymax), (xmin, ymin, xmax, ymax) != numbers


def _shown(text: str) -> str:
    cut = text if len(text) <= 80 else text[:79] + "…"
    return "".join(letter if letter.isprintable() else "�" for letter in cut)
