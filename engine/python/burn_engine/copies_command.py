"""The command `burn-engine duplicates`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burn_engine.appearance import Appearance, appearance
from burn_engine.collection import Photo, identity_of, name_of, photos_in
from burn_engine.copies import Appearances, Copy
from burn_engine.errors import path_of
from burn_engine.images import PillowMissing
from burn_engine.many import Progress, read_ahead
from burn_engine.sheet import MOST_THUMBNAILS, Shown, check_page, write_sheet
from burn_engine.terminal import add_readers, complain, counted, output, printable, reason


def add_to(commands: Any) -> None:
    """Add the command to those of `burn-engine`."""
    parser = commands.add_parser(
        "duplicates",
        help="find copies of the same photograph: resized, compressed, cropped, mirrored, turned",
        description="Print groups of images that are copies of one photograph, the best copy "
        "first: the one with most pixels, then the sharpest, then the one with most bytes. Nothing "
        "is deleted or changed. Images that cannot be read are named and left out; the exit status "
        "is then 2.",
    )
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="folder of images at any depth, image file, tar file, or - for a list on standard "
        "input with one path a line",
    )
    add_readers(parser, min(os.cpu_count() or 1, 256), "read images, and then compare them")
    parser.add_argument("--html", metavar="PATH", help="write the groups to this page, too")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each group")
    parser.set_defaults(run=_duplicates)


def _duplicates(options: argparse.Namespace) -> None:
    photos = _once(list(photos_in(options.images, Path(), complain)))
    page = None if options.html is None else path_of(options.html)
    if page is not None:
        check_page(page, (photo.path for photo in photos))
    seen = Appearances(len(photos))
    kept: list[Photo] = []
    at_work = "no image was compared"
    with contextlib.ExitStack() as stack:
        try:
            if not photos:
                raise ValueError("no images were given")
            failed = _read(photos, seen, kept, options.readers)
            if not kept:
                raise ValueError("none of the images can be read; see above")
            at_work = "not all of them were compared"
            progress = Progress(sys.stderr, len(kept), "comparing: ")
            stack.callback(progress.clear)
            try:
                groups = seen.groups(options.readers, progress.show)
            except RuntimeError as error:  # no thread can be started
                raise ValueError(f"{error}: give fewer --readers") from error
            progress.clear()
        except KeyboardInterrupt:
            complain(
                f"stopped: {len(kept):,} of {counted(len(photos))} were read, and {at_work}; "
                "nothing is written"
            )
            raise
    results = [[_result(kept[copy.position], copy, seen) for copy in group] for group in groups]
    with output(last=page is None):
        for group in results:
            _print(group, as_json=options.json)
    if page is not None:
        _write(page, groups, results, kept)
    with output():
        if not options.json:
            print(_summary(results, len(kept)), flush=True)
    if failed:
        raise ValueError(f"{failed:,} of {counted(len(photos))} were left out; see above")


def _once(photos: Sequence[Photo]) -> list[Photo]:
    """Leave out further names of one file, such as links: it is no copy of itself."""
    seen: set[tuple[int, int, int]] = set()
    kept = []
    for photo in photos:
        identity = identity_of(photo.path)
        place = None if identity is None else (*identity, photo.offset)
        if place is None or place not in seen:
            kept.append(photo)
        if place is not None:
            seen.add(place)
    if links := len(photos) - len(kept):
        names = "name" if links == 1 else "names"
        complain(f"left out {links:,} {names} of files that are given under another name")
    return kept


def _read(photos: Sequence[Photo], seen: Appearances, kept: list[Photo], readers: int) -> int:
    """Look at images; return how many are left out."""
    progress = Progress(sys.stderr, len(photos), "reading: ")
    no_pillow, failed = False, 0
    reading = read_ahead(photos, _look, readers)
    with contextlib.closing(reading) as images, contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        for done, (photo, outcome) in enumerate(images, 1):
            if isinstance(outcome, Exception):
                failed += 1
                progress.clear()
                if not (no_pillow and isinstance(outcome, PillowMissing)):
                    complain(reason(outcome))
                no_pillow |= isinstance(outcome, PillowMissing)
            else:
                seen.add(outcome, photo.stamp[1])
                kept.append(photo)
            progress.show(done)
    return failed


def _look(photo: Photo) -> Appearance:
    pixels = photo.read(None)
    try:
        return appearance(pixels)
    except PillowMissing as error:
        raise PillowMissing(f"{photo.name}: {error}") from None


def _result(photo: Photo, copy: Copy, seen: Appearances) -> dict[str, Any]:
    """Return what is printed of an image."""
    width, height = seen.sizes[copy.position]
    member = photo.name[len(name_of(photo.path, Path())) :] if photo.in_tar else ""
    return {
        "image": photo.path + member,
        "width": width,
        "height": height,
        "bytes": photo.stamp[1],
        "agreement": round(copy.agreement, 3),
        "alteration": copy.alteration,
    }


def _print(group: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"images": list(group)}), flush=True)
        return
    print(f"{len(group):,} images:")
    for each in group:
        print(f"  {_about(each)}  {printable(each['image'])}")
    print(flush=True)


def _about(result: dict[str, Any]) -> str:
    size = f"{result['width']:,} × {result['height']:,} pixels, {result['bytes']:,} bytes"
    return f"{size}, {result['alteration']}" if result["alteration"] else size


def _summary(results: Sequence[Sequence[dict[str, Any]]], count: int) -> str:
    if not results:
        return f"no copies among {counted(count)}"
    inside = sum(map(len, results))
    num_bytes = sum(each["bytes"] for group in results for each in group[1:])
    return (
        f"{len(results):,} group{'s' if len(results) > 1 else ''} with {inside:,} of {count:,} "
        f"images; without the first of each group they have {num_bytes:,} bytes"
    )


def _write(
    page: Path,
    groups: Sequence[Sequence[Copy]],
    results: Sequence[Sequence[dict[str, Any]]],
    kept: Sequence[Photo],
) -> None:
    sections = []
    for group, rows in zip(groups, results, strict=True):
        images = []
        for place, (copy, result) in enumerate(zip(group, rows, strict=True)):
            photo = kept[copy.position]
            about = ("best copy: " if not place else "") + _about(result)
            images.append(Shown(None if photo.in_tar else photo.path, result["image"], about))
        sections.append((f"{len(group):,} images", images))
    text = (
        _summary(results, len(kept)).capitalize()
        + ". The first of each group has most pixels, or of as many is the sharpest; that may be "
        "an altered copy, without colour, say, or turned: look before you delete the others."
    )
    inside = sum(map(len, groups))
    if inside > MOST_THUMBNAILS:
        text += f" Images after the first {MOST_THUMBNAILS:,} are shown by their names alone."
    write_sheet(page, "Copies", text, sections)
