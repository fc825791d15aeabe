"""NumPy's values beside weights: they are read or left out, and nothing of NumPy's is called."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from burn.checkpoints.foreign.pickled import STAND_INS, Array, Dtype, scalar
from burn.checkpoints.foreign.weights import read_weights
from burn.core.errors import UserError


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (np.float64(76.5), 76.5),
        (np.float32(0.5), 0.5),
        (np.float16(1), 1.0),
        (np.int64(-3), -3),
        (np.uint8(255), 255),
        (np.bool_(True), True),
        (np.complex64(1j), 1j),
        (np.str_("größer"), "größer"),
        (np.bytes_(b"ab"), b"ab"),
        (np.array(258, ">i2")[()], 258),
        (np.datetime64("2020-01-01"), None),
    ],
)
def test_a_number_beside_the_weights(value: Any, read: Any, older: bool, tmp_path: Path):
    file = tmp_path / "a.pth"
    content = {"best": value, "state_dict": {"w": torch.ones(2)}}
    torch.save(content, file, _use_new_zipfile_serialization=not older)
    found = read_weights(file)
    assert found["best"] == read
    assert type(found["best"]) is type(read)
    assert torch.equal(found["state_dict"]["w"], torch.ones(2))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3),
        np.zeros((2, 3), order="F"),
        np.array([{}, 3], dtype=object),
        np.zeros(2, [("a", "i4")]),
        cast(Any, np.random.RandomState(0).get_state())[1],
    ],
    ids=["numbers", "two axes", "objects", "fields", "a random state"],
)
def test_an_array_beside_the_weights_is_left_out(value: Any, tmp_path: Path):
    torch.save({"state": ("MT19937", value), "w": torch.ones(2)}, tmp_path / "a.pth")
    found = read_weights(tmp_path / "a.pth")
    assert isinstance(found["state"][1], Array)
    assert torch.equal(found["w"], torch.ones(2))


class Call:
    """A pickle of it calls a function, of any name, when it is loaded."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class Pickler(cast(Any, pickle)._Pickler):
    """Writes names without looking at what they stand for."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if not isinstance(obj, Call):
            super().save(obj, save_persistent_id)
            return
        module, _, name = obj.name.rpartition(".")
        self.write(b"c" + f"{module}\n{name}\n".encode())
        self.save(obj.arguments)
        self.write(pickle.REDUCE)


def pickled(content: Any, file: Path) -> Path:
    """A file in torch's older format, whose weights end with a list of no tensors."""
    out = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, content, []):
        Pickler(out, 2).dump(part)
    file.write_bytes(out.getvalue())
    return file


@pytest.mark.parametrize("numpy", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_no_function_of_numpy_is_called(
    numpy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a pickle says of a type is not given to NumPy: an object's bytes would be an address."""
    for name in ("scalar", "_reconstruct"):
        monkeypatch.setattr(f"numpy._core.multiarray.{name}", lambda *_: 1 / 0)
    kind = Call("numpy.dtype", "O8", False, True)
    objects = Call(f"{numpy}.scalar", kind, "\x01" * 8)
    large = Call(f"{numpy}._reconstruct", Call("numpy.dtype", "f8"), (2**60,), "b")
    short = Call(f"{numpy}.scalar", Call("numpy.dtype", "f8"), "12")
    found = read_weights(pickled({"a": objects, "b": large, "c": short}, tmp_path / "a.pth"))
    assert found["a"] is None
    assert isinstance(found["b"], Array)
    assert found["c"] is None


@pytest.mark.parametrize(
    "name",
    ["numpy.load", "numpy.frombuffer", "numpy.core.multiarray.fromfile", "numpy.testing.runstring",
     "numpy.f2py.compile", "numpy._core.multiarray.scalar.__call__"],
)  # fmt: skip
def test_other_names_of_numpy_are_refused(name: str, tmp_path: Path):
    with pytest.raises(UserError, match="could run code and were not run"):
        read_weights(pickled({"a": Call(name, "x")}, tmp_path / "a.pth"))


def test_what_stands_in_believes_nothing():
    assert set(STAND_INS) >= {"numpy.dtype", "numpy.core.multiarray.scalar"}
    kind = Dtype("f8")
    kind.__setstate__((3, ">", None, None, None, 2**40, -1, 0))
    assert scalar(kind, np.array(1.5, ">f8").tobytes()) == 1.5
    kind.__setstate__("nothing")
    assert scalar(Dtype("S9999"), b"x") is None
    assert scalar(Dtype("U1"), b"\xff" * 4) is None
    assert scalar(Dtype("f8, (10000,)f8"), bytes(8)) is None
    assert scalar(Dtype([("a", "f8")]), bytes(8)) is None
    assert scalar("f8", bytes(8)) is None
    assert scalar(Dtype("f8"), "12345678") is None
