"""The command `burn-engine cluster`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from burn_engine.clustering import MOST_ROUNDS, Clusters, cluster, usual_number
from burn_engine.errors import path_of
from burn_engine.finding import file_of, files_of, location
from burn_engine.format import Floats
from burn_engine.index import Index
from burn_engine.many import Progress
from burn_engine.sheet import MOST_THUMBNAILS, Shown, check_page, write_sheet
from burn_engine.terminal import at_least_1, counted, output, printable

_MOST_PRINTED = 5  # images of each group


def add_to(commands: Any) -> None:
    """Add the command to those of `burn-engine`."""
    parser = commands.add_parser(
        "cluster",
        help="divide the photographs of an index into groups of similar ones",
        description="Divide the images of an index into groups of similar ones by k-means on their "
        "features, and print the most central images of each group, the largest group first.",
    )
    parser.add_argument("index", metavar="INDEX", help="an index that `burn-engine index` made")
    parser.add_argument(
        "--k",
        metavar="K",
        type=at_least_1,
        help="number of groups (default: √(n / 2) for n images, at most 100)",
    )
    parser.add_argument("--html", metavar="PATH", help="write the groups to this page, too")
    parser.add_argument(
        "--json", action="store_true", help="print a line of JSON with all images for each group"
    )
    parser.set_defaults(run=_cluster)


def _cluster(options: argparse.Namespace) -> None:
    path = file_of(options.index)
    index = Index.load(path)
    page = None if options.html is None else path_of(options.html)
    if page is not None:
        check_page(page, [path, *files_of(index, path)])
    if not len(index):
        raise ValueError(f"{path}: it has no images")
    if options.k is not None and options.k > len(index):
        raise ValueError(f"--k {options.k:,}: {path} has only {counted(len(index))}")
    progress = Progress(sys.stderr, MOST_ROUNDS, "comparing: ", "rounds")
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        k = options.k or usual_number(len(index))
        clusters = cluster(_features(index), k, progress=progress.show)
    names = index.names
    groups = []
    for label in range(int(clusters.labels.max()) + 1):
        members = _by_centrality(clusters, label)
        images = [location(names[at], path.parent) for at in members.tolist()]
        groups.append((images, clusters.centrality[members].tolist()))
    with output(last=page is None):
        for images, cosines in groups:
            _print(images, cosines, as_json=options.json)
    if page is not None:
        _write(page, path, groups, len(index))


def _features(index: Index) -> Floats:
    """Return the vectors of an index, or the signs of one that keeps no vectors."""
    if index.vectors != "none":
        return index.vectors_of(np.arange(len(index)))
    bits = np.unpackbits(index.codes, axis=1, count=index.num_features, bitorder="little")
    return 2 * bits.astype(np.float32) - 1


def _by_centrality(clusters: Clusters, label: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    members = np.flatnonzero(clusters.labels == label)
    return members[np.argsort(-clusters.centrality[members], kind="stable")]


def _print(images: list[tuple[str, bool]], cosines: list[float], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"image": image, "centrality": round(cosine, 4)}
            for (image, _), cosine in zip(images, cosines, strict=True)
        ]
        print(json.dumps({"images": rows}), flush=True)
        return
    print(f"{counted(len(images))}:")
    for (image, _), cosine in zip(images[:_MOST_PRINTED], cosines, strict=False):
        print(f"  {cosine:.3f}  {printable(image)}")


def _write(
    page: Path, index: Path, groups: list[tuple[list[tuple[str, bool]], list[float]]], count: int
) -> None:
    """Write the page: of each group the most central images, as many as thumbnails are left for."""
    most = max(1, MOST_THUMBNAILS // len(groups))
    sections = []
    for images, cosines in groups:
        figures = [
            Shown(image if is_file else None, image, f"{cosine:.3f}")
            for (image, is_file), cosine in zip(images[:most], cosines, strict=False)
        ]
        heading = counted(len(images))
        if len(images) > most:
            heading += f", the {most:,} most central"
        sections.append((heading, figures))
    text = (
        f"{count:,} images of {index} in {len(groups):,} groups. The most central images of each "
        "group are first; the number is the cosine with the group's centre."
    )
    write_sheet(page, "Similar images", text, sections)
