"""The commands `burn-engine index` and `burn-engine search`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from burn_engine.collection import Photo, covers, is_gone, photos_in, roots_of
from burn_engine.errors import path_of
from burn_engine.finding import (
    file_of,
    files_of,
    open_index,
    remove,
    require_network,
    results,
    sole_writer,
    update,
)
from burn_engine.folders import is_named_otherwise
from burn_engine.images import PillowMissing
from burn_engine.index import Index
from burn_engine.many import NoImages, Progress, listed
from burn_engine.model import load
from burn_engine.sheet import Shown, check_page, write_sheet
from burn_engine.terminal import (
    add_readers,
    at_least_1,
    complain,
    counted,
    output,
    printable,
    reason,
    warnings_as_lines,
)

_MODEL = "packed file, *.bnn, or a pretrained network's name (default: photos)"


def add_to(commands: Any) -> None:
    """Add the commands to those of `burn-engine`."""
    index = commands.add_parser(
        "index",
        help="make or update an index of photographs, to search in it",
        description="Make an index of photographs, or bring one up to date: new and changed images "
        "are read, and those that have vanished from the given folders are removed. Images that "
        "cannot be read are named and left out; the exit status is then 2. Ctrl-C keeps what is "
        "finished, and the same command goes on.",
    )
    index.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="folder of images at any depth, image file, tar file, or - for a list on standard "
        "input with one path a line",
    )
    index.add_argument("index", metavar="INDEX", help="the index, a file that is made or updated")
    index.add_argument("--model", metavar="MODEL", default="photos", help=_MODEL)
    index.add_argument(
        "--vectors",
        choices=("float16", "float32", "none"),
        help="what is kept beside a bit for each feature; none makes the file 7 to 9 times smaller "
        "and its results less exact (default: float16, or what the index has)",
    )
    index.add_argument(
        "--remove",
        action="store_true",
        help="remove these images, and all in these folders and tar files, from the index; they "
        "need not exist any more, and nothing is read",
    )
    add_readers(index, min(os.cpu_count() or 1, 256))
    index.set_defaults(run=_index)
    search = commands.add_parser(
        "search",
        help="find the photographs of an index that are most like an image",
        description="Print the images of an index that are most like each query, the most similar "
        "first: the cosine of their features, and the number of bits that differ.",
    )
    search.add_argument("index", metavar="INDEX", help="an index that `burn-engine index` made")
    search.add_argument("queries", metavar="IMAGE", nargs="+", help="image file")
    search.add_argument("--model", metavar="MODEL", default="photos", help=_MODEL)
    search.add_argument(
        "--k", metavar="N", type=at_least_1, default=10, help="images to find (default: 10)"
    )
    search.add_argument("--html", metavar="PATH", help="write the images to this page, too")
    search.add_argument("--json", action="store_true", help="print a line of JSON for each query")
    search.set_defaults(run=_search)


def _index(options: argparse.Namespace) -> None:
    path = file_of(options.index)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the file of the index after the images")
    if not path.exists() and is_named_otherwise(path, ".index"):
        raise ValueError(f"{path}: give the index after the images, such as photos.index")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if options.remove:
        _remove(options, path)
        return
    with warnings_as_lines():
        model = load(options.model)
    with sole_writer(path):
        index = open_index(path, model, options.vectors)
        photos = _photos(options, path, index)
        progress = Progress(sys.stderr, len(photos))
        no_pillow = False

        def left_out(_: object, error: Exception) -> None:
            nonlocal no_pillow
            progress.clear()
            if not (no_pillow and isinstance(error, PillowMissing)):
                complain(reason(error))
            no_pillow |= isinstance(error, PillowMissing)

        try:
            changes = update(
                index,
                model,
                photos,
                roots_of(options.images, path.parent),
                readers=options.readers,
                say=left_out,
                save=lambda: index.save(path),
                progress=progress,
            )
            progress.clear()
            if len(index) or path.exists():
                index.save(path)
        except KeyboardInterrupt:
            progress.clear()
            if len(index) or path.exists():
                index.save(path)
                complain(f"stopped: {path} has {counted(len(index))}; the same command goes on")
            raise
    if not path.exists():
        why = "none of the images can be read; see above" if photos else "no images were given"
        raise ValueError(f"{path}: not made, since {why}")
    _say(path, index, changes.text())
    if changes.failed:
        raise ValueError(f"{changes.failed:,} of {counted(len(photos))} were left out; see above")


def _photos(options: argparse.Namespace, path: Path, index: Index) -> list[Photo]:
    """Return the images that there are.

    A folder without any is an error, as is one that is gone: it may be that of a disk which is not
    there at the moment.
    """
    hint = "to take out what the index has of it, add --remove"
    for argument in options.images:
        if argument != "-" and is_gone(argument, path.parent, index.names):
            raise ValueError(f"{argument}: no such file or folder; {hint}")
    try:
        return list(photos_in(options.images, path.parent, complain))
    except NoImages as error:
        roots = roots_of(options.images, path.parent)
        if any(covers(root, name) for name in index.names for root in roots):
            raise ValueError(f"{error}; {hint}") from None
        raise


def _remove(options: argparse.Namespace, path: Path) -> None:
    """Take images out of an index."""
    paths: list[str] = []
    for argument in options.images:
        paths += listed(sys.stdin) if argument == "-" else [argument]
    with sole_writer(path):
        index = Index.load(path)
        count = remove(index, path.parent, paths)
        index.save(path)
    _say(path, index, f"{count:,} removed")


def _say(path: Path, index: Index, changes: str) -> None:
    with output():
        text = f"{path}: {counted(len(index))} ({changes}), {path.stat().st_size:,} bytes"
        print(printable(text))


def _search(options: argparse.Namespace) -> None:
    path = file_of(options.index)
    index = Index.load(path)
    page = None if options.html is None else path_of(options.html)
    if page is not None:
        check_page(page, [path, *files_of(index, path), *options.queries, options.model])
    with warnings_as_lines():
        model = load(options.model)
    require_network(index, path, model)
    if not len(index):
        raise ValueError(f"{path}: it has no images")
    sections: list[tuple[str, list[Shown]]] = []
    failed = 0
    for query in options.queries:
        try:
            vector = model.embed(query)
        except (OSError, ValueError) as error:
            if len(options.queries) == 1:
                raise
            complain(reason(error))
            failed += 1
            continue
        matches = results(index.search(vector, options.k), path.parent)
        asked = Shown(query, query, "what was searched for")
        images = [asked, *(_shown(each) for each in matches)]
        sections.append((query if len(options.queries) > 1 else "", images))
        with output(last=page is None):
            _print(query, matches, options)
    if page is not None:
        title = f"Like {options.queries[0]}" if len(sections) == 1 else "Similar images"
        text = (
            f"The first image of each row was searched for in {path}, of {counted(len(index))}. "
            "The numbers are the cosine of the features, 1 for the same image, and how many of "
            f"the {index.num_features:,} bits differ."
        )
        write_sheet(page, title, text, sections)
    if failed:
        raise ValueError(f"{failed:,} of {counted(len(options.queries))} were left out; see above")


def _print(query: str, matches: list[dict[str, object]], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"query": query, "results": matches}), flush=True)
        return
    if len(options.queries) > 1:
        print(f"{printable(query)}:")
    for each in matches:
        print(f"{_closeness(each)}  {printable(str(each['image']))}")


def _closeness(result: dict[str, object]) -> str:
    bits = f"{result['distance']:4} bits"
    return f"{result['similarity']:.3f} {bits}" if "similarity" in result else bits


def _shown(result: dict[str, object]) -> Shown:
    image = str(result["image"])
    return Shown(image if Path(image).is_file() else None, image, _closeness(result).strip())
