"""`burn-engine learn`: a classifier from a folder of images for each class."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn_engine.classifier_file import check_classifier_output, none_of_these, with_classifier
from burn_engine.errors import ModelError, in_file, path_of, shown
from burn_engine.folders import Skipped, is_named_otherwise, walk
from burn_engine.format import Floats, parse_program
from burn_engine.images import PillowMissing, read_input
from burn_engine.learning import (
    KNOWN_REFUSED,
    Learned,
    Way,
    check_classes,
    check_number,
    learn,
)
from burn_engine.many import Progress, is_read, read_ahead
from burn_engine.maps import LEAST_IMAGES, averaged, equal_lengths, is_better, scaled, widened
from burn_engine.model import Model, load_bytes
from burn_engine.pretrained import read_model
from burn_engine.terminal import (
    add_base,
    add_readers,
    complain,
    counted,
    output,
    printable,
    warnings_as_lines,
)
from burn_engine.whole_file import whole_file

_MOST_NAMED = 5
_NONE = "none of these"
# Folders of parts of a data set, of which each holds the classes.
_TO_LEARN_FROM = {"train", "training"}
_PARTS = {*_TO_LEARN_FROM, "val", "valid", "validation", "test", "testing"}


def add_to(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "learn",
        help="learn a classifier from a few images of each class",
        description="Learn a classifier on a network's features, and write the network with it as "
        "a new packed file. Images that cannot be read are named and left out; the exit status is "
        "then 2.",
    )
    parser.add_argument(
        "labelled", metavar="FOLDER", help="folder that holds a folder of images for each class"
    )
    parser.add_argument("out", metavar="OUT", help="the packed file to write, such as mine.bnn")
    add_base(parser)
    parser.add_argument(
        "--layers",
        choices=("auto", "last", "several"),
        default="auto",
        help="learn from the means of the last map, or of the last four blocks' maps; auto takes "
        "several if they are more accurate and each class has 10 images or more (default: auto)",
    )
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="1 to 256 (default: 1)")
    add_readers(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_learn)


def refusal(model: Model, image: NDArray[Any]) -> dict[str, bool]:
    """Return whether an image is none of a model's classes, for a model that says when."""
    if "learned" not in (model.origin or {}):  # spares other models the time
        return {}
    refused = none_of_these(model, model.features(image)[None])
    return {} if refused is None else {"none_of_these": bool(refused[0])}


def lines_of(result: dict[str, Any]) -> list[str]:
    """Return what `burn-engine run` prints before an image's classes."""
    return [f"           {_NONE}; the nearest:"] if result.get("none_of_these") else []


def _learn(options: argparse.Namespace) -> None:
    out = path_of(options.out)
    if is_named_otherwise(out, ".bnn"):
        raise ValueError(f"{out}: name the packed file to write, such as mine.bnn")
    check_classifier_output(out, options.base, overwrite=options.overwrite)
    with in_file(options.base):
        base = read_model(options.base)
        wide = _wide(base, options.layers)
        with warnings_as_lines():
            model = load_bytes(wide or base, options.threads)
    classes, paths, labels = _images_in(options.labelled)
    if out.exists() and any(out.samefile(path) for path in paths if Path(path).exists()):
        raise ValueError(f"{out} is an image that is learned from: give another name")
    check_number(len(paths), len(classes))  # before hours of reading
    features, labels, left_out = _features_of(model, paths, labels, options.readers)
    _check_all_there(classes, labels, left_out)
    began = time.perf_counter()
    choice = _choice(base, wide, features, labels, classes, options.layers)
    milliseconds = 1000 * (time.perf_counter() - began)
    with in_file(options.base):
        data = with_classifier(choice.base, choice.learned)
    with whole_file(out, new=not options.overwrite) as file:
        file.write(data)
    facts = _facts(choice, left_out, milliseconds, str(out), len(data))
    with output():
        if options.json:
            print(json.dumps(facts, indent=2))
        else:
            for line in _lines(facts):
                indent = " " * (len(line) - len(line.lstrip()))  # which printable removes
                print(indent + printable(line))
    if left_out:
        raise ValueError(f"{left_out:,} of {counted(len(paths))} were left out; see above")


def _wide(base: bytes, layers: str) -> bytes | None:
    """Return the base with the means of more maps; None if only those of the last are wanted."""
    if layers == "last":
        return None
    try:
        return widened(base)
    except ModelError:
        raise
    except ValueError as error:
        if layers == "several":
            raise ModelError(f"means of several maps cannot be learned from: {error}") from None
        return None


class _Choice(NamedTuple):
    base: bytes  # of the file that is written, without its classifier
    learned: Learned
    layers: tuple[str, ...]  # whose maps' means the features are
    accuracies: dict[str, float | None]  # of what was compared, by the value of --layers


def _choice(
    base: bytes,
    wide: bytes | None,
    features: Floats,
    labels: list[int],
    classes: tuple[str, ...],
    layers: str,
) -> _Choice:
    """Learn from the features of the base, and of more maps where there are some and they help."""
    accuracies: dict[str, float | None] = {}
    last = None
    if wide is None or layers == "auto":
        width = _num_features(base)
        last = learn(features[:, :width], labels, classes)
        accuracies["last"] = last.accuracy
        if wide is not None:
            accuracies["several"] = None
    if wide is not None and (last is None or last.counts.min() >= LEAST_IMAGES):
        program = parse_program(wide)
        widths = [program.layers[at].channels for at in averaged(program)]
        factors = equal_lengths(features, widths)
        several = learn(features * factors, labels, classes)
        accuracies["several"] = several.accuracy
        if last is None or is_better(several, last):
            made = scaled(wide, factors)
            return _Choice(made, several, _layers_of(made), accuracies)
    assert last is not None
    return _Choice(base, last, _layers_of(base), accuracies)


def _num_features(base: bytes) -> int:
    program = parse_program(base)
    return program.layers[program.features].channels


def _layers_of(base: bytes) -> tuple[str, ...]:
    program = parse_program(base)
    return tuple(program.layers[at].name for at in averaged(program))


def _images_in(folder: str) -> tuple[tuple[str, ...], list[str], list[int]]:
    """Return the classes of a folder, and the paths of their images with their labels."""
    root = path_of(folder)
    if not root.exists():
        raise ValueError(f"{folder}: there is no such folder")
    if not root.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder with a folder for each class")
    classes: list[str] = []
    labelled: list[tuple[str, int]] = []
    skipped, outside = Skipped(), 0
    dangling: list[str] = []  # links to nothing, which whoever reads them names
    for listing in walk(root, dangling):
        names = skipped.add(listing, is_read)
        if Path(listing.path) == root:
            classes = listing.folders
            outside = len(names)
            dangling += (
                str(root / name)
                for name in listing.files
                if not is_read(name) and not (root / name).exists()
            )
            if dangling:  # perhaps a class
                raise ValueError(f"{dangling[0]} is a link to nothing: fix it, or remove it")
            continue
        label = classes.index(Path(listing.path).relative_to(root).parts[0])
        labelled += [(path, label) for path in dangling]
        dangling.clear()
        labelled += [(str(Path(listing.path, name)), label) for name in names]
    if classes and {name.lower() for name in classes} <= _PARTS:
        part = next((name for name in classes if name.lower() in _TO_LEARN_FROM), classes[0])
        raise ValueError(
            f"{folder} holds parts, not classes ({_listed(classes)}): give the images to learn "
            f"from, such as {Path(folder, part)}"
        )
    if len(classes) < 2:
        there = f"only the folder {shown(classes[0])}" if classes else "no folder"
        raise ValueError(
            f"{folder} holds {there}; expected a folder of images for each of two or more classes"
        )
    try:
        names = check_classes(classes)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}: rename the folder") from None
    counts = np.bincount([label for _, label in labelled], minlength=len(names))
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise ValueError(f"{folder}: no images in the folder of class {_listed(empty)}")
    if text := skipped.text(others=False):
        complain(f"{folder}: skipped: {text}")
    if outside:
        complain(f"{folder}: left out {counted(outside)} in no class's folder")
    return names, [path for path, _ in labelled], [label for _, label in labelled]


def _features_of(
    model: Model, paths: list[str], labels: list[int], readers: int
) -> tuple[Floats, list[int], int]:
    """Return the features and labels of the images that can be read, and how many cannot."""
    rows: list[Floats] = []
    kept: list[int] = []
    no_pillow = False
    progress = Progress(sys.stderr, len(paths))
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        images = stack.enter_context(
            contextlib.closing(read_ahead(paths, partial(read_input, size=model.image), readers))
        )
        for done, (label, (path, image)) in enumerate(zip(labels, images, strict=True), 1):
            error: Exception | None = None
            try:
                if isinstance(image, Exception):
                    raise image
                row = model.features(image)
                if not np.isfinite(row).all():
                    raise ValueError(f"{path}: the model's output is not finite")
                rows.append(row)
                kept.append(label)
            except PillowMissing as missing:
                error = None if no_pillow else missing
                no_pillow = True
            except OSError as unread:
                error = ValueError(f"{path}: {unread.strerror or unread}")
            except MemoryError:
                error = ValueError(f"{path}: not enough memory")
            except ValueError as refused:
                error = refused
            if error is not None:
                progress.clear()
                complain(f"{error}; left out")
            progress.show(done)
    features = np.stack(rows) if rows else np.empty((0, model.num_features), np.float32)
    return features, kept, len(paths) - len(kept)


def _check_all_there(classes: tuple[str, ...], labels: list[int], left_out: int) -> None:
    counts = np.bincount(np.array(labels, np.intp), minlength=len(classes))
    if lost := [name for name, count in zip(classes, counts, strict=True) if not count]:
        raise ValueError(
            f"none of the images of class {_listed(lost)} can be read ({counted(left_out)} left "
            "out; see above)"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(shown, names[:_MOST_NAMED])) + more


def _facts(
    choice: _Choice, left_out: int, milliseconds: float, out: str, size: int
) -> dict[str, Any]:
    learned = choice.learned
    way, names = learned.way, learned.classes
    off = learned.confusion - np.diag(np.diag(learned.confusion))
    order = np.argsort(-off, axis=None, kind="stable")[:_MOST_NAMED]
    pairs = [(int(at) // len(names), int(at) % len(names)) for at in order]
    return {
        "file": out,
        "file_bytes": size,
        "images": dict(zip(names, map(int, learned.counts), strict=True)),
        "left_out": left_out,
        "checked": int(learned.confusion.sum()),
        "accuracy": learned.accuracy,
        "error": learned.error,
        "largest_class": learned.largest,
        "confusions": [
            {
                "class": names[true],
                "taken_for": names[said],
                "times": int(off[true, said]),
                "of": int(learned.confusion[true].sum()),
            }
            for true, said in pairs
            if off[true, said]
        ],
        "none_below": learned.threshold,
        "layers": choice.layers,
        "accuracies": choice.accuracies,
        **way._asdict(),
        "temperature": learned.temperature,
        "milliseconds": round(milliseconds, 3),
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    images: dict[str, int] = facts["images"]
    total = sum(images.values())
    lines = [f"{total:,} images of {len(images):,} classes:"]
    width = max(len(f"{count:,}") for count in images.values())
    lines += [f"  {count:{width},}  {name}" for name, count in images.items()]
    lines.append("")
    alone = [name for name, count in images.items() if count == 1]
    if alone:
        fixed = f"{len(alone):,} class{'es have' if len(alone) > 1 else ' has'} a single image"
        lines.append(
            f"{fixed}, of which nothing can be measured: learned from the classes' means "
            "alone, and how certain the probabilities are is a guess"
        )
    if facts["accuracy"] is None or len(images) - len(alone) < 2:
        lines.append("accuracy: unknown; two images of two classes are the least to measure it")
    else:
        lines.append(
            f"accuracy: {facts['accuracy']:.1%} ± {facts['error']:.1%} of {facts['checked']:,} "
            f"images, each classified by what the others teach; always the largest class: "
            f"{facts['largest_class']:.1%}"
        )
        for pair in facts["confusions"]:
            lines.append(
                f"  {pair['times']:,} of {pair['of']:,} images of {pair['class']} were taken for "
                f"{pair['taken_for']}"
            )
    if facts["none_below"] is not None:
        lines.append(
            f'"{_NONE}": images whose features have a cosine below {facts["none_below"]:.3f} with '
            f"the mean of these; {KNOWN_REFUSED:.0%} of these have"
        )
    lines += _maps(facts)
    if not alone:
        lines.append(_way(Way(facts["kind"], facts["equal_length"], facts["share"])))
    lines.append(f"learned in {facts['milliseconds']:,.0f} ms")
    lines.append(f"{facts['file']}: {facts['file_bytes']:,} bytes")
    return lines


def _maps(facts: dict[str, Any]) -> list[str]:
    """Return what was learned from, where there was a choice."""
    measured = {
        name: accuracy for name, accuracy in facts["accuracies"].items() if accuracy is not None
    }
    count = len(facts["layers"])
    if len(measured) < 2 and count > 1:
        return [f"features: means of {count} maps"]
    if len(measured) < 2:
        if "several" not in facts["accuracies"]:
            return []
        return [
            "features: means of the last map alone; those of several are tried where each class "
            f"has {LEAST_IMAGES} images"
        ]
    if count > 1:
        return [
            f"features: means of the last {count} blocks' maps; of the last one's alone the "
            f"accuracy is {measured['last']:.1%}"
        ]
    return [
        "features: means of the last map alone; with those of more blocks the accuracy is "
        f"{measured['several']:.1%}"
    ]


def _way(way: Way) -> str:
    kind = "class means and a shared covariance" if way.kind == "lda" else "ridge regression"
    length = ", features of one length" if way.equal_length else ""
    return f"method: {kind}, shrinkage {way.share:.2g}{length}"
