"""The JavaScript package in Node.js: outputs, prepared pixels, and bad input."""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import burn_engine
from burn_engine.format import ImageSize
from burn_engine.images import prepare
from burn_engine.pixels import decode, from_pillow, turned
from burn_engine.search import nearest
from burn_engine.vectors import signs
from nodejs import answers, needs_node
from packed import random_images, random_network

ENGINE = Path(__file__).parents[1]
PACKAGE = ENGINE / "js"
Image = pytest.importorskip("PIL.Image")
numbers = itertools.count()  # of files

pytestmark = needs_node


def ask(*requests, package=PACKAGE):
    """Return what the package answers to requests, as js/run.mjs takes them."""
    return answers("run.mjs", package / "index.js", requests)


def test_maps_larger_than_what_32_bits_count_are_refused(model, image):
    """A map of 64 channels and 2¹² × 2¹² pixels has 2³² bytes, and was once taken to have none."""
    blocks = ((64, 1, 1, False), (8, 1, 1, False))  # of which the first's map is kept for the mean
    contents = random_network(first=(64, 1, 1), blocks=blocks, image=None, also=(0,)).to_bytes()
    huge = np.zeros((4096, 4096, 3), np.uint8)
    (answer,) = ask({"model": model(contents), "images": [image(huge), image(huge[:8, :8])]})
    assert answer["outputs"][0] == {"error": "Error: out of memory"}
    assert len(answer["outputs"][1]["output"]) == 72


@pytest.mark.parametrize(
    "arguments",
    ["[1,2,3,4,5,6], [1,2,3], 2, 2", "[1,2], [1], 4, 1", "[1,2], [1], 1, 1.5", "[1,2], [1], 0, 1"],
)
def test_codes_that_are_not_whole_are_refused(arguments):
    code = f"""
        const {{ openSearch }} = await import("file://{PACKAGE}/index.js");
        const search = await openSearch();
        try {{ search.nearest({arguments.replace("[", "Uint8Array.of(").replace("]", ")")}); }}
        catch (error) {{ console.log(error.message); }}
    """
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "codes" in done.stdout


def test_a_dropped_folder_may_have_any_number_of_photographs():
    code = f"""
        const {{ filesIn }} = await import("file://{PACKAGE}/files.js");
        const photo = {{ type: "image/jpeg", name: "a.jpg" }};
        const entry = {{ file: (done) => done({{ ...photo }}), fullPath: "/a/a.jpg" }};
        const left = [Array(200_000).fill(entry), []];
        const folder = {{ isDirectory: true }};
        folder.createReader = () => ({{ readEntries: (done) => done(left.shift()) }});
        const items = [{{ webkitGetAsEntry: () => folder, getAsFile: () => null }}];
        console.log((await filesIn({{ items }})).length);
    """
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "200000\n"


@pytest.fixture
def image(tmp_path):
    """A function that writes an image's bytes and returns it as run.mjs takes it."""

    def write(pixels):
        file = tmp_path / f"{next(numbers)}.raw"
        file.write_bytes(np.ascontiguousarray(pixels).tobytes())
        return [file, pixels.shape[1], pixels.shape[0]]

    return write


@pytest.fixture
def model(tmp_path):
    """A function that writes a model's bytes and returns its path."""

    def write(contents):
        file = tmp_path / f"{next(numbers)}.bnn"
        file.write_bytes(contents)
        return file

    return write


NETWORKS = {
    "small": random_network(0),
    "odd": random_network(1, first=(9, 3, 1), blocks=((33, 3, 1, False), (66, 1, 1, True))),
    "gated": random_network(3, blocks=({"out": 16}, (16, 1, 1, True))),
    "several": random_network(
        4,
        blocks=((16, 3, 1, True), (33, 1, 1, False), {"out": 33}, (66, 3, 2, True)),
        also=(0, 1, 2),
    ),
    "wide": random_network(
        2, first=(64, 3, 1), blocks=((64, 3, 1, True), (128, 1, 1, True), (256, 3, 2, True))
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_those_of_the_engine(name, model, image):
    file = model(NETWORKS[name].to_bytes())
    images = random_images(shape=(3, 13, 31, 3))
    network = burn_engine.load(file)
    expected = [network(prepare(one, ImageSize(resize=20, size=16))) for one in images]
    (found,) = ask({"model": file, "images": [image(one) for one in images]})
    assert found["isa"] == "wasm-simd128"
    assert found["imageSize"] == {"resize": 20, "size": 16}
    # The same sums of floats in another order; a sign that turns would change far more.
    for one, wanted in zip(found["outputs"], expected, strict=True):
        np.testing.assert_allclose(one["output"], wanted.ravel(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "shape",
    [
        (40, 60),
        (61, 37),
        (17, 200),
        (300, 20),
        (8, 8),
        (24, 24),
        (1, 1),
        (2, 500),
        (203, 111),
        (130, 60),
        (400, 101),
        (101, 400),
        (91, 40),
        (5, 9),
        (900, 230),
        (38, 39),
    ],
)
def test_prepared_pixels_are_those_of_burn_engine_run(shape, image):
    pixels = np.random.default_rng(3).integers(0, 256, (*shape, 3), dtype=np.uint8)
    alpha = np.random.default_rng(4).integers(0, 256, (*shape, 1), dtype=np.uint8)
    both = np.concatenate([pixels, alpha], 2)
    for size in (ImageSize(resize=24, size=20), ImageSize(resize=37, size=37)):
        (found,) = ask(
            {
                "images": [image(pixels), image(both)],
                "size": {"resize": size.resize, "size": size.size},
            }
        )
        for one, photo in zip(found, (pixels, from_pillow(Image.fromarray(both))), strict=True):
            expected = prepare(photo, size)
            data = np.frombuffer(base64.b64decode(one["data"]), np.uint8)
            np.testing.assert_array_equal(data.reshape(one["height"], one["width"], 3), expected)


def test_images_are_turned_as_in_python(image):
    pixels = random_images(5, (6, 9, 3))
    found = ask(*({"images": [image(pixels)], "size": None, "orientation": i} for i in range(1, 9)))
    for orientation, (one,) in enumerate(found, 1):
        data = np.frombuffer(base64.b64decode(one["data"]), np.uint8)
        expected = turned(pixels, orientation)
        np.testing.assert_array_equal(data.reshape(one["height"], one["width"], 3), expected)


def test_metadata_are_taken_out_and_the_orientation_is_pythons(tmp_path):
    """So that no browser turns an image, and all take the frame that Python takes."""
    photo = Image.fromarray(random_images(6, (6, 9, 3)))
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="8"/></x:xmpmeta>'
    entry = {"<": b"II*\0", ">": b"MM\0*"}
    datas = [
        entry[order] + struct.pack(f"{order}IHHHIHH", 8, 1, 0x0112, kind, number, value, 0)
        for order, kind, number, value in (
            *(("<>"[i % 2], 3, 1, i) for i in range(10)),
            ("<", 4, 1, 6), ("<", 3, 2, 6), (">", 2, 1, 6),
        )
    ]  # fmt: skip
    datas += [datas[6][:-3], b"II*\0\xff\xff\xff\xff", b"Exif\0\0" + datas[6], b"II", b""]
    films = {"save_all": True, "append_images": [photo.rotate(180)]}
    files = []
    for i, data in enumerate(datas):
        for form in ("JPEG", "PNG", "WEBP"):
            exif = {"exif": b"Exif\0\0" + data if form == "JPEG" else data} if data else {}
            if form != "PNG":
                exif["xmp"] = xmp
            file = tmp_path / f"{i}.{form}"
            film = films | {"default_image": True} if form == "PNG" and i % 2 else {}
            photo.save(file, form, **exif, **film, icc_profile=b"profile", lossless=True)
            files.append(file)
    for name, content in {
        "none": b"",
        "jpeg": b"\xff\xd8\xff",
        "png": files[1].read_bytes()[:40],
    }.items():
        (tmp_path / name).write_bytes(content)
    *found, _, _, _ = ask(
        {"files": [*files, tmp_path / "none", tmp_path / "jpeg", tmp_path / "png"]}
    )[0]
    for file, one in zip(files, found, strict=True):
        whole, plain = file.read_bytes(), base64.b64decode(one["bytes"])
        expected = decode(whole, upright=False)
        np.testing.assert_array_equal(decode(plain), expected)
        np.testing.assert_array_equal(decode(whole), turned(expected, one["orientation"]))
        for trace in (b"Orientation", b"II*\0", b"MM\0*", b"acTL", b"fdAT", b"profile", b"ICC"):
            assert trace not in plain, (file, trace)


def test_classes_are_named_and_ranked(model, image):
    file = model(random_network(4, num_classes=5).to_bytes())
    pixels = random_images(4, (1, 16, 20, 3))[0]
    scores = burn_engine.load(file)(prepare(pixels, ImageSize(resize=20, size=16)))
    (found,) = ask({"model": file, "images": [image(pixels)]})
    assert found["classNames"] == [f"class {i}" for i in range(5)]
    ranked = found["outputs"][0]["classes"]
    assert [one["name"] for one in ranked] == [f"class {i}" for i in np.argsort(-scores)]
    powers = np.exp(scores.astype(float) - scores.max())
    expected = 100 * np.sort(powers / powers.sum())[::-1]
    np.testing.assert_allclose([one["percent"] for one in ranked], expected, rtol=1e-4)


def test_a_name_may_begin_with_a_mark_of_the_byte_order(model):
    network = random_network(4, num_classes=2)
    network.program["classes"] = ["cat", "\ufeffcat"]
    (found,) = ask({"model": model(network.to_bytes()), "images": []})
    assert found["classNames"] == ["cat", "\ufeffcat"]


def test_damaged_models_are_refused_with_the_engines_sentence(model):
    whole = NETWORKS["small"].to_bytes()
    files = [model(contents) for contents in (b"", b"hello", whole[:-9], whole[:100])]
    found = [one["error"] for one in ask(*({"model": file, "images": []} for file in files))]
    assert found[0] == "Error: file: 0 bytes long, too short for a header"
    for sentence in found:
        assert sentence.startswith("Error: ")
        assert "\n" not in sentence


def test_images_that_do_not_fit_are_refused(model, image):
    file = model(NETWORKS["small"].to_bytes())
    fine = image(np.zeros((9, 9, 3), np.uint8))
    too_wide, too_long = [fine[0], 9, 8], [fine[0], 20_000, 5_001]
    (found,) = ask({"model": file, "images": [too_wide, too_long, fine]})
    short, long, last = found["outputs"]
    assert short["error"] == (
        "Error: an image of 9 × 8 pixels needs 216 or 288 bytes (RGB or RGBA), not 243"
    )
    assert long["error"].startswith("Error: an image of 20000 × 5001 pixels; expected 1 or more")
    assert last["output"]  # the model can still be used


def test_the_module_is_small():
    assert (PACKAGE / "burn_engine.wasm").stat().st_size <= 200_000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The package with a module built from these sources, and the folder of the build."""
    if not shutil.which("emcmake") or not shutil.which("cmake"):
        pytest.skip("without emscripten and cmake")
    folder = tmp_path_factory.mktemp("wasm")
    done = subprocess.run(
        ["sh", PACKAGE / "build.sh", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    shutil.copy(PACKAGE / "index.js", folder)
    return folder


def test_the_module_in_the_repository_is_that_of_the_sources(built):
    assert (built / "burn_engine.wasm").stat().st_size <= 200_000
    found = (PACKAGE / "burn_engine.wasm").read_bytes()
    assert (built / "burn_engine.wasm").read_bytes() == found, "run engine/js/build.sh"


@pytest.mark.long
def test_kernels_in_webassembly(built):
    paths = {**os.environ, "NODE_PATH": os.environ.get("NODE_PATH", "/usr/share/nodejs")}
    command = ["cmake", "--build", built / "build", "--target", "test_kernels"]
    subprocess.run(command, check=True, capture_output=True, env=paths)
    done = subprocess.run(
        ["node", built / "build" / "test_kernels.js", "--short"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "wasm-simd128: 1577277 values" in done.stdout


def test_codes_are_found_as_in_python(model):
    random = np.random.default_rng(4)
    features = random.normal(size=(50, 30)).astype(np.float32)
    codes = signs(features)
    codes[20:30] = codes[3]
    file = model(random_network().to_bytes())
    request = {"codes": codes.ravel().tolist(), "features": features[3].tolist()}
    found, every, none, wrong = ask(
        {"model": file, "nearest": {**request, "k": 5}},
        {"model": file, "nearest": {**request, "k": 99}},
        {"model": file, "nearest": {**request, "codes": [], "k": 5}},
        {"model": file, "nearest": {**request, "codes": [1, 2, 3], "k": 5}},
    )
    positions, distances = nearest(codes, signs(features[3:4]), 5)
    assert [each["position"] for each in found] == positions[0].tolist()
    assert [each["distance"] for each in found] == distances[0].tolist()
    assert len(every) == 50
    assert none == []
    assert wrong == {"error": "Error: codes of 3 bytes are not whole codes of 4"}
