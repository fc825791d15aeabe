"""Near-duplicates in the JavaScript package: the bits and the groups of burn_engine's own."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from burn_engine import duplicates
from burn_engine.appearance import altered_codes, appearance, codes
from burn_engine.copies import Appearances
from nodejs import answers, needs_node
from scenes import scene

ENGINE = Path(__file__).parents[1]
Image = pytest.importorskip("PIL.Image")
Draw = pytest.importorskip("PIL.ImageDraw")

pytestmark = needs_node


@pytest.fixture
def ask(tmp_path):
    """A function that returns what the package answers to requests, as js/copies.mjs prints it."""

    def asked(*requests):
        for at, request in enumerate(requests):
            files = []
            for i, pixels in enumerate(request["images"]):
                file = tmp_path / f"{at} {i}.raw"
                file.write_bytes(np.ascontiguousarray(pixels).tobytes())
                files.append([str(file), pixels.shape[1], pixels.shape[0]])
            request["images"] = files
        return answers("copies.mjs", ENGINE / "js", requests)

    return asked


def test_a_worker_that_ends_costs_one_photograph_and_bytes_tell_files_apart():
    assert answers("library.mjs", ENGINE / "js") == {
        "equal": 2,  # of six files
        "workers": 6,  # four, and one in place of each that ended
        "read": 99 + 4,
        "unread": ["7.jpg: out of memory"],
        "known": 0,
        "left": 0,
        "again": 99,
    }


def photo(seed, height=150, width=210):
    """A soft scene with noise, which gives its fine details."""
    noise = np.random.default_rng(seed).integers(-12, 13, (height, width, 3))
    return np.clip(scene(seed, height, width) + noise, 0, 255).astype(np.uint8)


def with_text(image):
    written = image.copy()
    Draw.Draw(written).text((20, 60), "HOLIDAY 2024", fill=(255, 255, 255), font_size=20)
    return written


ALTERED = {
    "cropped": lambda one: one.crop((21, 15, 189, 135)),
    "cropped at a corner": lambda one: one.crop((42, 30, 210, 150)),
    "mirrored": lambda one: one.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned by 10": lambda one: one.rotate(10, Image.Resampling.BICUBIC),
    "turned by 25": lambda one: one.rotate(-25, Image.Resampling.BICUBIC),
    "a quarter turn": lambda one: one.transpose(Image.Transpose.ROTATE_90),
    "transposed": lambda one: one.transpose(Image.Transpose.TRANSPOSE),
    "grey": lambda one: one.convert("L").convert("RGB"),
    "with text": with_text,
    "dark": lambda one: Image.fromarray(np.asarray(one) // 2),
    "half": lambda one: one.resize((105, 75)),
    "bytes alone": lambda one: one,
}
SHAPES = {
    "one pixel": (1, 1),
    "a line": (1, 300),
    "a column": (300, 1),
    "of 64": (64, 64),
    "odd": (67, 64),
    "larger than what sharpness is measured in": (530, 701),
    "very long": (20, 333),
}
KINDS = (
    "altered", "single", "of two sizes", "blank pages", "a slow change", "many copies", "none",
    "one",
)  # fmt: skip


@functools.cache
def collections():
    """Images by their kind."""
    noise = np.random.default_rng(7)
    single = {
        **{name: noise.integers(0, 256, (*shape, 3), np.uint8) for name, shape in SHAPES.items()},
        "even": np.full((70, 80, 3), 90, np.uint8),
        # The grey of these ends in one half.
        "halves": np.array([[0, 0, 250], [0, 4, 168], [0, 8, 86]], np.uint8)[
            noise.integers(0, 3, (64, 64))
        ],
        "nearly even": np.full((64, 64, 3), 128, np.uint8)
        + (noise.random((64, 64, 1)) < 0.01).astype(np.uint8),
    }
    return {
        "altered": [
            np.asarray(one)
            for seed, change in enumerate(ALTERED.values())
            for one in (Image.fromarray(photo(seed)), change(Image.fromarray(photo(seed))))
        ],
        "single": list(single.values()),
        "of two sizes": [scene(0), scene(0, 128, 128), scene(0, 65, 64), scene(1)],
        "blank pages": [np.full((64, 64, 3), value, np.uint8) for value in (0, 0, 200, 255, 255)],
        "a slow change": [
            np.rint(scene(0) * (1 - share) + scene(1) * share).astype(np.uint8)
            for share in np.linspace(0, 1, 12)
        ],
        # More than the nearest codes that are asked for first, and than are compared at once.
        "many copies": [
            np.clip(scene(2) + noise.integers(-3, 4, (64, 64, 3)), 0, 255).astype(np.uint8)
            for _ in range(100)
        ]
        + [scene(seed) for seed in range(10, 30)],
        "none": [],
        "one": [scene(0)],
    }


@pytest.mark.parametrize("name", KINDS)
def test_codes_and_groups_are_pythons(ask, name):
    images = collections()[name]
    num_bytes = [(7 * i) % 5 for i in range(len(images))]
    (found,) = ask({"images": list(images), "bytes": num_bytes})
    expected = Appearances(len(images))
    for image, size, look in zip(images, num_bytes, found["looks"], strict=True):
        seen = appearance(image)
        expected.add(seen, size)
        np.testing.assert_array_equal(look["square"], seen.square.ravel())
        np.testing.assert_array_equal(look["code"], codes(seen.square[None])[0])
        np.testing.assert_array_equal(look["altered"], altered_codes(seen.square[None]).ravel())
        sizes = (look["height"], look["width"], look["sharpness"])
        assert sizes == (seen.height, seen.width, seen.sharpness)
    digests = [
        [one["digest"] for one in found["looks"]],
        [appearance(image).digest for image in images],
    ]
    same = [[a == b for a in row for b in row] for row in digests]
    if len({image.shape for image in images}) == 1:  # Python's digest is also of the size
        assert same[0] == same[1]
    groups = [
        [[each["position"], each["agreement"], each["alteration"]] for each in group]
        for group in found["groups"]
    ]
    assert groups == [[list(copy) for copy in group] for group in expected.groups()]
    progress = found["progress"]
    assert progress == sorted(progress)
    assert progress[-1:] == ([1] if images else [])


def test_the_table_has_groups_of_all_kinds():
    assert set(collections()) == set(KINDS)
    altered = duplicates(collections()["altered"])
    assert len(altered) >= 11
    words = " ".join(copy.alteration for one in altered for copy in one)
    assert all(word in words for word in ("mirrored", "turned by", "cropped"))
    assert len(duplicates(collections()["many copies"])[0]) == 100


def test_pixels_with_alpha_lie_over_white(ask):
    opaque = [photo(0), photo(0)[:, ::-1]]
    alpha = np.full((*opaque[0].shape[:2], 1), 255, np.uint8)
    clear = np.where(np.arange(210)[:, None] < 105, alpha, 0).astype(np.uint8)
    images = [np.concatenate([one, a], 2) for one, a in zip(opaque, (alpha, clear), strict=True)]
    (found, plain) = ask({"images": images}, {"images": opaque, "plain": True})
    white = np.where(clear == 0, 255, opaque[1]).astype(np.uint8)
    for one, look in zip((opaque[0], white), found["looks"], strict=True):
        np.testing.assert_array_equal(look["square"], appearance(one).square.ravel())
    assert [[each["position"] for each in group] for group in plain] == [[0, 1]]
    assert plain[0][1]["alteration"] == "mirrored"


def test_what_is_no_image_is_refused(ask):
    cut = photo(0)
    (found,) = ask({"images": [cut.reshape(-1)[:-1].reshape(1, -1)]})
    assert found["refused"].startswith("Error: an image of ")
