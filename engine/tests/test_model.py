"""Tests of `Model`: its inputs, its outputs, and how threads share its plans."""

from __future__ import annotations

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import packed
from burn_engine import ModelError, isas, load, reference
from burn_engine import model as model_module
from burn_engine.format import parse_program
from burn_engine.images import read_input


def test_attributes(write, isa):
    model = load(write("odd"), isa=isa)
    assert model.classes == ("class 0", "class 1", "class 2")
    assert model.num_features == 9
    assert model.layers == (
        "stem",
        "block0",
        "block1",
        "block2",
        "block3",
        "pool",
        "linear0",
        "classifier",
    )
    assert model.image == (20, 16)
    assert model.image is not None
    assert model.image.resize == 20
    assert model.origin == {"recipe": "test"}
    assert (model.backend, model.isa) == (
        ("reference", "") if isa == "reference" else ("native", isa)
    )
    assert repr(model).startswith("<Model: 8 layers, 9 features, 3 classes, ")


def test_a_model_without_classes(write, isa):
    model = load(write("wide"), isa=isa)
    assert model.classes == ()
    assert model.image is None
    images = packed.random_images()
    assert model(images).shape == (2, 144)
    np.testing.assert_array_equal(model(images), model.features(images))


class Unspeakable:
    """A value of a stranger's class, whose every method fails."""

    def __repr__(self):
        raise RuntimeError("no words")

    def __array__(self, *_, **__):
        raise RuntimeError("no numbers")


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (3, TypeError, "3 is not a path: give a str or a Path"),
        (None, TypeError, "None is not a path"),
        (["a.bnn"], TypeError, "is not a path"),
        (b"a.bnn", TypeError, "is not a path"),
        (np.zeros((99, 99)), TypeError, " … "),
        (Unspeakable(), TypeError, "a value of type Unspeakable is not a path"),
        ("", ValueError, "the path is empty"),
        ("a\0b", ValueError, "'a\\x00b' cannot be the name of a file"),
        ("\ud800", ValueError, "cannot be the name of a file"),
        (".", ModelError, ".: not a regular file"),
        ("none.bnn", FileNotFoundError, "none.bnn"),
    ],
)
def test_what_is_no_file_is_said_in_one_line(value, error, words: str):
    with pytest.raises(error) as told:
        load(value)
    assert words in str(told.value)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    "threads",
    [
        0,
        257,
        True,
        1.0,
        "2",
        None,
        pytest.param(10**5000, id="5,000 digits"),
        [1],
        np.array([1, 2]),
        Unspeakable(),
    ],
)
def test_threads_are_a_whole_number(threads, write):
    with pytest.raises(ValueError, match=r"^threads .{1,80} is not an integer from 1 to 256$"):
        load(write(), threads=threads)


def test_threads_may_be_an_integer_of_numpy(write, isa):
    load(write(), threads=np.int64(2), isa=isa)(packed.random_images())  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [3, "sse9", "x" * 999, np.array(["a", "b"]), Unspeakable()])
def test_names_that_there_are_not(given, write):
    with pytest.raises(ValueError, match=r"^isa .{1,80} is not available; choose from "):
        load(write(), isa=given)
    with pytest.raises(ValueError, match=r"^there is no layer .{1,80}; choose from stem"):
        load(write(), isa="reference").layer(packed.random_images(), given)


def test_what_cannot_be_an_array_is_named(write):
    with pytest.raises(ValueError, match="type Unspeakable cannot be made into an array"):
        load(write(), isa="reference")(Unspeakable())


def test_outputs(write, isa):
    model = load(write("odd"), isa=isa)
    images = packed.random_images(shape=(3, 11, 14, 3))
    shapes = [model.layer(images, name).shape for name in model.layers]
    assert shapes == [
        (3, 6, 7, 5),
        (3, 6, 7, 13),
        (3, 6, 7, 13),
        (3, 6, 7, 39),
        (3, 3, 4, 7),
        (3, 7),
        (3, 9),
        (3, 3),
    ]
    scores = model(images)
    assert scores.shape == (3, 3)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, model.layer(images, "classifier"))
    np.testing.assert_array_equal(model.features(images), model.layer(images, "linear0"))


def test_one_image_and_none(write, isa):
    model = load(write(), isa=isa)
    images = packed.random_images(shape=(1, 9, 8, 3))
    np.testing.assert_array_equal(model(images[0]), model(images)[0])
    assert model.layer(images[0], "block1").shape == (3, 2, 16)
    assert model.layer(images[0], "pool").shape == (16,)
    assert model(images[:0]).shape == (0, 4)
    assert model.layer(images[:0], "pool").shape == (0, 16)
    assert model.layer(images[:0], "block1").shape == (0, 3, 2, 16)
    assert model(images[:0]).dtype == np.float32
    assert model(images[:0].astype(np.float32)).shape == (0, 4)


def test_any_memory_order_and_dtype(write, isa):
    model = load(write(), isa=isa)
    images = packed.random_images(shape=(2, 10, 10, 3))
    expected = model(images)
    np.testing.assert_array_equal(model(np.asfortranarray(images)), expected)
    np.testing.assert_array_equal(model(images[:, ::-1])[:, :], model(images[:, ::-1].copy()))
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(model(planes.transpose(0, 2, 3, 1)), expected)
    images.flags.writeable = False
    np.testing.assert_array_equal(model(images), expected)
    floats = images.astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(model(floats.astype(np.float64)), model(floats))
    np.testing.assert_array_equal(model(floats.astype(">f4")), model(floats))
    # Maps, because a byte may be divided with another rounding, which may turn a later sign.
    np.testing.assert_allclose(
        model.layer(floats, "stem"), model.layer(images, "stem"), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 4)), "images have shape (4, 4); expected (n, height, width, 3)"),
        (np.zeros((1, 1, 4, 4, 3)), "images have shape (1, 1, 4, 4, 3)"),
        (np.zeros((3, 8, 8)), "images have shape (3, 8, 8)"),
        (np.zeros((8, 8, 4)), "images have shape (8, 8, 4)"),
        (np.zeros((8, 8, 3), int), "images have dtype int64; expected uint8"),
        (np.zeros((8, 8, 3), bool), "images have dtype bool"),
        (np.zeros((8, 8, 3), np.float16), "images have dtype float16"),
        (np.zeros((8, 8, 3), complex), "images have dtype complex128"),
        (np.zeros((8, 8, 3), object), "images have dtype object"),
        (np.zeros((8, 8, 3), np.int8), "images have dtype int8"),
        (b"photo.jpg", "images have dtype |S9; expected uint8 (0 to 255), float32 or float64"),
        (None, "images have dtype object"),
        ([[1, 2], [3]], "images cannot be made into one array"),
        (
            [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)],
            "images[1] has size 4 × 5, images[0] 4 × 4: give images of one size",
        ),
        (
            [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 3))],
            "images[1] has dtype float32, images[0] uint8",
        ),
        (
            [np.zeros((4, 4, 3), np.uint8), np.zeros((1, 4, 4, 3), np.uint8)],
            "images[1]: shape (1, 4, 4, 3); expected one image, (height, width, 3)",
        ),
        ([np.zeros((4, 4, 3), np.uint8), None], "images[1]: images have dtype object"),
        (np.zeros((0, 8, 3), np.uint8), "images of 0 × 8 pixels"),
        (np.zeros((2, 8, 0, 3)), "images of 8 × 0 pixels"),
        (np.zeros((0, 0, 0, 3)), "images of 0 × 0 pixels"),
        (np.zeros((1, 16_385, 3), np.uint8), "images of 1 × 16385 pixels"),
        (
            np.broadcast_to(np.zeros(3, np.uint8), (8193, 8192, 3)),
            "images of 8193 × 8192 pixels; expected 1 to 16384 in height and width, and at most 67",
        ),
        (
            np.full((8, 8, 3), 255.0),
            "float images are on the scale 0 to 1, found 255.0 to 255.0: pass bytes as uint8",
        ),
        (np.full((8, 8, 3), -0.5), "found -0.5 to -0.5"),
        (np.full((8, 8, 3), np.nan, np.float32), "found nan to nan"),
        (np.full((8, 8, 3), np.inf), "found inf to inf"),
        (np.full((8, 8, 3), 1e300), "found 1e+300"),
        (np.full((8, 8, 3), np.nextafter(1, 2)), "on the scale 0 to 1"),
    ],
)
def test_refuses_images(write, isa, images, message):
    model = load(write(), isa=isa)
    for call in (model, model.features, lambda one: model.layer(one, "stem")):
        with pytest.raises(ValueError) as caught:
            call(images)
        assert message in str(caught.value)


@pytest.fixture
def photos(tmp_path):
    """Two photographs of different sizes as PNG, in a folder whose name has a dot."""
    image_module = pytest.importorskip("PIL.Image")
    paths = [tmp_path / "v1.0" / f"{i}.png" for i in range(2)]
    paths[0].parent.mkdir()
    for seed, path in enumerate(paths):
        pixels = packed.random_images(seed, shape=(30 + 7 * seed, 41, 3))
        image_module.fromarray(pixels).save(path)
    return paths


def test_photographs_are_prepared_as_the_model_says(write, isa, photos):
    image_module = pytest.importorskip("PIL.Image")
    model = load(write(), isa=isa)
    inputs = [read_input(path, model.image) for path in photos]
    assert [one.shape for one in inputs] == [(16, 16, 3)] * 2
    expected = model(np.stack(inputs))
    opened = [image_module.open(path) for path in photos]
    for one in (photos[0], str(photos[0]), opened[0]):
        np.testing.assert_array_equal(model(one), model(inputs[0]))
        np.testing.assert_array_equal(model.features(one), model.features(inputs[0]))
        np.testing.assert_array_equal(model.layer(one, "stem"), model.layer(inputs[0], "stem"))
    for several in (
        photos,
        tuple(photos),
        opened,
        [photos[0], opened[1]],
        [inputs[0], photos[1]],
        inputs,
    ):
        np.testing.assert_array_equal(model(several), expected)
    assert model([photos[0]]).shape == (1, 4)
    np.testing.assert_array_equal(
        model(opened[0].convert("L").convert("RGB")), model(opened[0].convert("L"))
    )


def test_a_photograph_is_turned_upright(write, photos):
    image_module = pytest.importorskip("PIL.Image")
    model = load(write(), isa="reference")
    image = image_module.open(photos[0])
    exif = image_module.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image.save(photos[0], exif=exif)
    turned = np.rot90(np.asarray(image), -1)
    expected = model(image_module.fromarray(np.ascontiguousarray(turned)))
    np.testing.assert_array_equal(model(photos[0]), expected)
    np.testing.assert_array_equal(model(image_module.open(photos[0])), expected)


def test_a_model_of_any_size_takes_photographs_of_one_size(write, photos):
    model = load(write("wide"), isa="reference")
    assert model(photos[:1]).shape == (1, 144)
    with pytest.raises(ValueError, match=r"images\[1\] has size 37 × 41, images\[0\] 30 × 41"):
        model(photos)


def test_photographs_that_cannot_be_read_are_named(write, photos, tmp_path):
    model = load(write(), isa="reference")
    with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
        model([photos[0], tmp_path / "none.jpg"])
    with pytest.raises(ValueError, match="not a regular file"):
        model(tmp_path)
    photos[1].write_bytes(photos[1].read_bytes()[:60])
    for images in (photos, photos[1]):
        with pytest.raises(ValueError, match=r"1\.png: ."):
            model(images)
    image_module = pytest.importorskip("PIL.Image")
    with pytest.raises(ValueError, match=r"images\[0\]: its pixels are floats"):
        model([image_module.new("F", (20, 30))])


def test_arrays_and_paths_need_no_pillow(write, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    model = load(write(), isa="reference")
    pixels = packed.random_images(shape=(20, 24, 3))
    (tmp_path / "a.ppm").write_bytes(b"P6 24 20 255\n" + pixels.tobytes())
    np.testing.assert_array_equal(model(tmp_path / "a.ppm"), model(pixels[2:18, 4:20]))
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"a\.png: .* need Pillow: pip install"):
        model(tmp_path / "a.png")


def test_one_bad_number_among_good_ones_is_found(write):
    images = np.full((2, 8, 8, 3), 0.5, np.float32)
    images[1, 3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="found nan to nan"):
        load(write(), isa="reference")(images)


def test_unknown_layer(write, isa):
    model = load(write(), isa=isa)
    with pytest.raises(
        ValueError, match="no layer 'image'; choose from stem, block0, block1, pool"
    ):
        model.layer(packed.random_images(), "image")


@pytest.mark.parametrize("threads", [0, 257, -1, 1.0, True, None, "2"])
def test_refuses_threads(write, threads):
    with pytest.raises(ValueError, match=r"threads .* is not an integer from 1 to 256"):
        load(write(), threads=threads, isa="reference")


def test_number_of_threads_changes_nothing(write, isa):
    images = packed.random_images(shape=(3, 24, 24, 3))
    one, three = (load(write("strides"), threads=n, isa=isa) for n in (1, 3))
    np.testing.assert_array_equal(one(images), three(images))


def test_bad_files(write, tmp_path, isa):
    with pytest.raises(ModelError, match=r"model\.bnn: .* bytes of data"):
        load(write(packed.random_network().to_bytes() + b"\0"), isa=isa)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.bnn", isa=isa)


def test_unknown_isas_are_named(write, monkeypatch):
    path = write()
    with pytest.raises(
        ValueError, match=r"isa 'sse9' is not available; choose from .*reference"
    ) as e:
        load(path, isa="sse9")
    assert not isinstance(e.value, ModelError)
    with pytest.raises(ValueError, match="isa '' is not available"):
        load(path, isa="")
    monkeypatch.setenv("BURN_ENGINE_ISA", "mmx")
    with pytest.raises(ValueError, match="BURN_ENGINE_ISA 'mmx' is not available"):
        load(path)
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    assert load(path).backend == "reference"


@pytest.fixture
def no_core(monkeypatch):
    monkeypatch.setitem(sys.modules, "burn_engine._core", None)


@pytest.mark.usefixtures("no_core")
def test_without_a_core_the_reference_runs_and_says_so(write, monkeypatch):
    path = write()
    with pytest.warns(
        RuntimeWarning, match="slow.*C\\+\\+ compiler.*--force-reinstall --no-cache-dir"
    ) as warned:
        assert load(path).backend == "reference"
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert warned[0].filename == __file__
    assert isas() == ["reference"]
    with pytest.raises(ValueError, match="isa 'avx2' is not available; choose from reference"):
        load(path, isa="avx2")
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    load(path)


def test_python_threads_share_a_model(write, isa):
    model = load(write("odd"), isa=isa)
    batches = [
        packed.random_images(seed, (1 + seed % 3, 9 + seed % 4, 12, 3)) for seed in range(12)
    ]
    alone = [(model(batch), model.layer(batch, "block1")) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            together = pool.map(lambda b: (model(b), model.layer(b, "block1")), batches * 2)
            for found, expected in zip(together, alone * 2, strict=True):
                np.testing.assert_array_equal(found[0], expected[0])
                np.testing.assert_array_equal(found[1], expected[1])


class FakePlan:
    """A plan of the compiled core, run by the reference; it fails if two calls use it at once."""

    made = 0

    def __init__(self, program, height, width, layer):
        FakePlan.made += 1
        self._program, self._layer, self._size = program, layer, (height, width)
        self._busy = threading.Lock()
        self.num_bytes = height * width
        probe = reference.run(program, np.zeros((1, height, width, 3), np.uint8), layer)
        self.shape = probe.shape[1:] if probe.ndim == 4 else (1, 1, probe.shape[1])

    def run(self, images):
        assert images.flags.c_contiguous
        assert images.shape[1:] == (*self._size, 3)
        assert self._busy.acquire(blocking=False)
        try:
            outputs = reference.run(self._program, images, self._layer)
            return outputs.reshape(len(images), *self.shape)
        finally:
            self._busy.release()


class FakeModel:
    def __init__(self, data, isa):
        if b"native refuses" in data:
            raise ValueError("stem: refused")
        self.isa = isa
        self._program = parse_program(data)

    def plan(self, height, width, threads, layer):
        assert threads == 2
        return FakePlan(self._program, height, width, layer)


@pytest.fixture
def fake_core(monkeypatch):
    core = types.ModuleType("burn_engine._core")
    vars(core).update(Model=FakeModel, supported_isas=lambda: ["best", "portable"])
    monkeypatch.setitem(sys.modules, "burn_engine._core", core)
    FakePlan.made = 0


@pytest.mark.usefixtures("fake_core")
def test_the_core_is_chosen_by_argument_then_environment_then_best(write, monkeypatch):
    path = write()
    assert load(path).isa == "best"
    assert load(path, isa="portable").isa == "portable"
    assert load(path, isa="reference").backend == "reference"
    monkeypatch.setenv("BURN_ENGINE_ISA", "portable")
    assert load(path).isa == "portable"
    assert load(path, isa="best").isa == "best"
    monkeypatch.setenv("BURN_ENGINE_ISA", "")
    assert load(path).isa == "best"
    with pytest.raises(ValueError, match="choose from best, portable, reference"):
        load(path, isa="sse9")
    network = packed.random_network()
    network.program["origin"] = {"a": "native refuses"}
    with pytest.raises(ModelError, match=r"model\.bnn: stem: refused"):
        load(write(network))


@pytest.mark.usefixtures("fake_core")
def test_plans_are_used_again_and_few_are_kept(write, monkeypatch):
    model = load(write("odd"), threads=2)
    images = packed.random_images()
    expected = load(write("odd"), isa="reference")
    for name in model.layers:
        np.testing.assert_array_equal(model.layer(images, name), expected.layer(images, name))
        assert model.layer(images[:0], name).shape == expected.layer(images[:0], name).shape
    assert FakePlan.made == len(model.layers)
    for height in range(1, 30):
        model(packed.random_images(shape=(1, height, 5, 3)))
    assert isinstance(model._backend, model_module._Native)
    kept = model._backend._free
    assert len(kept) == model_module._KEPT_PLANS
    assert kept[0][0] == (29, 5, 7)
    monkeypatch.setattr(model_module, "_KEPT_BYTES", 5 * 29 + 5 * 28)
    model(packed.random_images(shape=(1, 29, 5, 3)))
    assert [key for key, _ in kept] == [(29, 5, 7), (28, 5, 7)]
    monkeypatch.setattr(model_module, "_KEPT_BYTES", 1)
    model(packed.random_images(shape=(1, 40, 5, 3)))
    assert [key for key, _ in kept] == [(40, 5, 7)]


@pytest.mark.usefixtures("fake_core")
def test_no_plan_serves_two_calls_at_once(write):
    model = load(write(), threads=2)
    images = packed.random_images()
    expected = model(images)
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(model, [images] * 60):
            np.testing.assert_array_equal(found, expected)
    assert 1 <= FakePlan.made <= 7
