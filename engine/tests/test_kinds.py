"""What files of another kind than was expected are called."""

import io
import stat

import numpy as np
import pytest
from PIL import Image

import packed
from burn_engine.errors import ModelError
from burn_engine.index import Index
from burn_engine.kinds import kind_of, not_regular
from burn_engine.model import load_bytes
from burn_engine.pixels import decode


def image(name):
    file = io.BytesIO()
    Image.new("RGB", (9, 9)).save(file, name)
    return file.getvalue()


def array():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "PPM"])
def test_images(name):
    assert kind_of(image(name)) == f"a {name} image"


def test_other_files(tmp_path):
    Index(4, network="a").save(tmp_path / "a.index")
    index = (tmp_path / "a.index").read_bytes()
    network = packed.random_network().to_bytes()
    for data, kind in (
        (index, "an index of burn-engine"), (network, "a packed network"),
        (array(), "a NumPy array"),
        (b"PK\x03\x04rest", "a zip archive or a PyTorch checkpoint"),
        (b"", None), (b"text", None), (b"12345678" + b'{"w": {}}', None),
    ):  # fmt: skip
        assert kind_of(data) == kind
        if kind != "a packed network":
            with pytest.raises(
                ModelError, match=f"not a packed network but {kind}" if kind else "."
            ):
                load_bytes(data)
        if data and kind:
            with pytest.raises(ValueError, match=f"or TIFF but {kind}"):
                decode(data)


@pytest.mark.parametrize("beginning", [b"P5", b"P6", b"PK"])
def test_a_network_whose_header_has_a_length_like_another_kind(beginning):
    """The first bytes of a packed file are a number, which may be any."""
    data = packed.random_network().to_bytes()
    length = int.from_bytes(data[:8], "little")
    longer = int.from_bytes(beginning, "little")
    while longer < length:
        longer += 2**16
    header = data[8 : 8 + length] + b" " * (longer - length)
    data = longer.to_bytes(8, "little") + header + data[8 + length :]
    assert data.startswith(beginning)
    assert kind_of(data) == "a packed network"
    assert load_bytes(data).num_features


@pytest.mark.parametrize(("name", "length"), [("JPEG", 3), ("PNG", 13), ("GIF", 7), ("WEBP", 12)])
def test_the_beginning_of_an_image(name, length):
    with pytest.raises(ValueError, match=f"^a {name} image, but it is damaged or cut off$"):
        decode(image(name)[:length])


def test_what_is_no_file(tmp_path):
    assert not_regular(tmp_path.stat().st_mode) == "not a regular file but a folder"
    assert not_regular(stat.S_IFIFO) == "not a regular file"
