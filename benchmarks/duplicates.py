"""Find altered copies of photographs: `burn-engine duplicates` beside hashes and features.

    python benchmarks/duplicates.py PHOTOS --count 1000

Each of the photographs of PHOTOS, a set as burn reads it, is altered in nine ways. For each way
every altered copy is compared with every original. A pair of a copy and its own original is right,
any other pair is wrong. Recall is the largest share of the right pairs that a method finds while
at least 99 % of the pairs that it finds are right, so that each method has its best threshold in
each way. "One threshold" is the same over the pairs of all ways together. "As it is" are recall and
precision of `burn-engine duplicates` with the limits that it has, over all ways together.

Methods: burn-engine's duplicates; the features of its network `photos` by their cosine, of one view
and as the largest over the whole image, its middle 80 % and their mirror images; imagehash's dHash,
pHash and wHash of 64 bits; and EfficientNet-lite0, the float teacher, in ONNX Runtime at 224 pixels
by the cosine of its features. lite0 learned with ImageNet's labels. Milliseconds are those of an
image on one thread from its decoded pixels to all that is needed to compare it, and bytes are what
is kept of it.

It needs `burn-ssl[onnx]` and imagehash, which burn does not install.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

import burn_engine
from burn.data.open import open_source
from burn.evaluation.context import open_model
from burn.runtime.hardware import processor
from burn_engine.appearance import (
    ALTERATIONS,
    CODE_BYTES,
    LEAST_AGREEMENT,
    LEAST_OF_ALTERED,
    SIDE,
    UNALTERED,
    agreements,
    altered_codes,
    appearance,
    codes,
    most_bits,
)
from burn_engine.search import nearest
from burn_engine.vectors import normalized
from engine import export_peer, imported

# Not by an import statement: burn's environment, in which types are checked, does not have it.
imagehash = imported("imagehash", "imagehash")

Photo = Image.Image
PRECISION = 0.99
_NEAR = 64  # codes that are compared further, at most, for one alteration of one image


def cropped(photo: Photo) -> Photo:
    """Return the middle of a photograph, 80 % of each side."""
    width, height = photo.size
    return photo.crop((width // 10, height // 10, width - width // 10, height - height // 10))


def turned(degrees: float) -> Callable[[Photo], Photo]:
    """Return a function that turns a photograph, and fills its corners with grey."""
    return lambda photo: photo.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=(128, 128, 128))


def compressed(photo: Photo) -> Photo:
    """Return a photograph after JPEG of quality 30."""
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=30)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def written(photo: Photo) -> Photo:
    """Return a photograph with two lines of text over it."""
    copy = photo.copy()
    draw = ImageDraw.Draw(copy)
    size = max(10, photo.height // 8)
    for row, text in enumerate(("SALE 50 %", "www.example.org")):
        at = photo.width // 12, photo.height // 3 + row * size * 3 // 2
        draw.text(at, text, fill=(255, 255, 255), stroke_width=2, stroke_fill=(0, 0, 0),
                  font_size=size)  # fmt: skip
    return copy


WAYS: dict[str, Callable[[Photo], Photo]] = {
    "cropped to 80 %": cropped,
    "flipped": ImageOps.mirror,
    "turned 10°": turned(10),
    "turned 25°": turned(25),
    "halved": lambda photo: photo.resize((photo.width // 2, photo.height // 2)),
    "JPEG 30": compressed,
    "darkened": lambda photo: ImageEnhance.Brightness(photo).enhance(0.5),
    "text": written,
    "grey": lambda photo: ImageOps.grayscale(photo).convert("RGB"),
}


class Method(NamedTuple):
    """A way to compare images.

    Attributes:
        describe: returns what is kept of photographs, an array (n, …).
        closeness: returns how alike two such arrays are, float (n, m), larger for more alike.
        size: bytes that are kept of an image.
    """

    describe: Callable[[Sequence[Photo]], NDArray[Any]]
    closeness: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    size: int


def squares(photos: Sequence[Photo]) -> NDArray[np.uint8]:
    """Return what burn-engine keeps of photographs; their codes are made once more for the time."""
    found = np.stack([appearance(np.asarray(photo)).square for photo in photos])
    for make in (altered_codes, codes):
        make(found)
    return found


def burn_closeness(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return agreements by the rule of `burn-engine duplicates`, less where more is asked.

    Pairs whose codes differ in too many bits have -1.
    """
    found = np.full((len(a), len(b)), -1.0, np.float32)
    for left, right, turn in ((a, b, False), (b, a, True)):
        queries = altered_codes(left).reshape(-1, CODE_BYTES)
        places, bits = nearest(codes(right), queries, min(_NEAR, len(right)))
        row, column = np.nonzero(bits <= most_bits())
        whose, ways = row // len(ALTERATIONS), row % len(ALTERATIONS)
        others, near = places[row, column], bits[row, column]
        order = np.lexsort((ways, near, ways != UNALTERED, others, whose))
        whose, ways, others = whose[order], ways[order], others[order]
        key = (whose * len(right) + others) * 2 + (ways != UNALTERED)
        new = np.concatenate([[True], key[1:] != key[:-1]])[: len(key)]
        for part in np.array_split(np.flatnonzero(new), 1 + int(new.sum()) // 1024):
            if not len(part):
                continue  # no two are alike
            both = np.concatenate([left, right])
            value = agreements(both, whose[part], others[part] + len(left), ways[part])
            value -= np.where(ways[part] == UNALTERED, 0, LEAST_OF_ALTERED - LEAST_AGREEMENT)
            at = (others[part], whose[part]) if turn else (whose[part], others[part])
            np.maximum.at(found, at, value)
    return found


def cosines(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the largest cosine over the views of both, (n, views, d)."""
    return np.max([x @ y.T for x in a.swapaxes(0, 1) for y in b.swapaxes(0, 1)], axis=0)


def agreeing_bits(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return minus the numbers of bits, 0 or 1, in which rows differ, halved and shifted."""
    return (2 * a - 1) @ (2 * b - 1).T


def hashed(function: Callable[[Photo], Any]) -> Method:
    """Return a perceptual hash of 64 bits as a method."""

    def describe(photos: Sequence[Photo]) -> NDArray[Any]:
        return np.stack([function(photo).hash.ravel() for photo in photos]).astype(np.float32)

    return Method(describe, agreeing_bits, 8)


def methods(folder: Path) -> dict[str, Method]:
    """Return all methods by name; files are written into a folder."""
    network = burn_engine.load("photos")
    teacher = open_model("lite0", fresh=False, seed=0)
    file = folder / "lite0.onnx"
    export_peer(teacher.backbone.to(memory_format=torch.channels_last), file, 224)  # type: ignore[call-overload]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def lite0(photos: Sequence[Photo]) -> NDArray[Any]:
        found = []
        for photo in photos:
            view = ImageOps.fit(photo, (256, 256), Image.Resampling.BICUBIC).crop(
                (16, 16, 240, 240)
            )
            pixels = np.asarray(view, np.float32).transpose(2, 0, 1)[None] / 255
            found.append(np.asarray(session.run(None, {"images": pixels})[0])[0])
        return normalized(np.stack(found))[:, None]

    def one_view(photos: Sequence[Photo]) -> NDArray[Any]:
        return np.stack([network.embed(photo) for photo in photos])[:, None]

    def four_views(photos: Sequence[Photo]) -> NDArray[Any]:
        found = []
        for photo in photos:
            both = photo, cropped(photo)
            found.append(network.embed([*both, *map(ImageOps.mirror, both)]))
        return np.stack(found)

    kept = SIDE * SIDE + CODE_BYTES
    return {
        "burn-engine duplicates": Method(squares, burn_closeness, kept),
        "photos, one view": Method(one_view, cosines, 2 * network.num_features),
        "photos, four views": Method(four_views, cosines, 8 * network.num_features),
        "dHash": hashed(imagehash.dhash),
        "pHash": hashed(imagehash.phash),
        "wHash": hashed(imagehash.whash),
        "lite0": Method(lite0, cosines, 2 * 1280),
    }


def recall(between: NDArray[Any]) -> float:
    """Return the recall in percent at PRECISION, over all thresholds.

    Args:
        between: How alike copies and originals are, (ways, n, n).
    """
    own = np.eye(between.shape[1], dtype=bool)
    right, wrong = np.sort(between[:, own], axis=None), between[:, ~own]
    wrong = np.sort(wrong[wrong >= right[0]])
    levels = np.unique(right[right > -1])
    found = len(right) - np.searchsorted(right, levels)
    mistakes = len(wrong) - np.searchsorted(wrong, levels)
    fit = found >= PRECISION * (found + mistakes)
    return 100 * float(found[fit].max(initial=0)) / len(right)


def photographs(data: str, count: int) -> list[Photo]:
    """Return evenly spaced photographs of a set."""
    source = open_source(data)
    indices = np.linspace(0, len(source) - 1, min(count, len(source)), dtype=int)
    pixels = (np.asarray(source.read(int(i))).transpose(1, 2, 0) for i in indices)
    return [Image.fromarray(np.ascontiguousarray(each)) for each in pixels]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", metavar="PHOTOS")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", help="names of methods, separated by semicolons")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    options = parser.parse_args()
    photos = photographs(options.photos, options.count)
    rows = {}
    print(f"{processor()}: {len(photos):,} photographs of {options.photos}")
    with tempfile.TemporaryDirectory() as folder:
        for name, method in methods(Path(folder)).items():
            if options.only and name not in options.only.split(";"):
                continue
            method.describe(photos[:8])
            began = time.perf_counter()
            originals = method.describe(photos)
            milliseconds = 1e3 * (time.perf_counter() - began) / len(photos)
            between = np.stack(
                [
                    method.closeness(method.describe([alter(photo) for photo in photos]), originals)
                    for alter in WAYS.values()
                ]
            )
            found = {way: recall(part[None]) for way, part in zip(WAYS, between, strict=True)}
            row: dict[str, Any] = {
                "recall": found,
                "mean": float(np.mean(list(found.values()))),
                "one_threshold": recall(between),
                "milliseconds": milliseconds,
                "bytes": method.size,
            }
            print(f"{name}: " + ", ".join(f"{way} {value:.1f}" for way, value in found.items()))
            print(
                f"   mean {row['mean']:.1f}, one threshold {row['one_threshold']:.1f}, "
                f"{milliseconds:.2f} ms, {method.size} bytes",
                flush=True,
            )
            if name == "burn-engine duplicates":
                said = between >= LEAST_AGREEMENT
                right = said[:, np.eye(len(photos), dtype=bool)]
                row["as_it_is"] = {
                    "recall": 100 * float(right.mean()),
                    "precision": 100 * float(right.sum() / said.sum()),
                    "by_way": dict(zip(WAYS, (100 * right.mean(axis=1)).tolist(), strict=True)),
                }
                print(f"   as it is: {row['as_it_is']}, {said.sum() - right.sum()} wrong pairs")
            rows[name] = row
    if options.out:
        numbers = {"processor": processor(), "photographs": len(photos), "rows": rows}
        options.out.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
