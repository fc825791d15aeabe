"""Hostile torch files that are refused before torch reads them; torch would crash or wait."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from burn.checkpoints.foreign import pickled, torch_file
from burn.checkpoints.foreign.torch_file import check_torch_file
from burn.core.errors import UserError

# A tuple in a tuple, 1,000 times: with millions torch overflows the stack.
DEEP = b"\x80\x02}" + b")" + b"\x85" * 1000 + b"K\x01s."
# Two gigabytes of zeros, which torch makes before it sees that the pickle has no end.
ENDLESS = b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<q", 2 * 10**9) + b"\x85R"


def text(words: str) -> bytes:
    return b"X" + struct.pack("<I", len(words)) + words.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


ENCODE, FROM_TYPE = b"c_codecs\nencode\n", b"ctorch._tensor\n_rebuild_from_type_v2\n"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
NO_HOOKS = b"ccollections\nOrderedDict\n)R"


def tensor(size: bytes = number(1) + b"\x85", storage: bytes = number(1), key: str = "0") -> bytes:
    """A tensor of one number, or what claims to be more of them."""
    return (
        TENSOR + b"((" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu")
        + storage + b"tQ" + number(0) + size + number(0) + b"\x85\x89" + NO_HOOKS + b"tR"
    )  # fmt: skip


SPARSE = b"ctorch._utils\n_rebuild_sparse_tensor\n" + NO_HOOKS
# Calls of what weights may name, with what weights have no need of.
CALLS = {
    "a slow codec": (ENCODE + text("ab") + text("punycode") + b"\x86R", "encode"),
    "a slow codec, and an argument": (
        ENCODE + text("ab") + text("punycode") + text("latin1") + b"\x87R", "encode"
    ),
    "a slow codec by way of a tensor": (
        FROM_TYPE + b"(" + ENCODE + b"ctorch\nTensor\n" + text("ab") + text("punycode")
        + b"\x86}tR", "_rebuild_from_type_v2",
    ),
    "a set of a tensor": (b"cbuiltins\nset\n" + tensor() + b"\x85R", "set"),
    "a counter of a tensor": (b"ccollections\nCounter\n" + tensor() + b"\x85R", "Counter"),
    "pairs in a tensor": (
        b"ccollections\nOrderedDict\n]" + tensor() + b"a\x85R", "OrderedDict",
    ),
    "a size of a tensor": (b"ctorch\nSize\n" + tensor() + b"\x85R", "Size"),
    "arguments in a tensor": (TENSOR + tensor() + b"R", "_rebuild_tensor_v2"),
    "arguments in a remembered tensor": (
        tensor() + b"q\x000" + TENSOR + b"h\x00R", "_rebuild_tensor_v2"
    ),
    "arguments of a tensor's class in a tensor": (
        FROM_TYPE + b"(" + TENSOR + b"ctorch\nTensor\n" + tensor() + b"}tR", "_rebuild_tensor_v2"
    ),
    "a state in a tensor": (NO_HOOKS + tensor() + b"b", "state that is no dictionary"),
    "a state of pairs in a tensor": (
        NO_HOOKS + b"]" + tensor() + b"ab", "state that is no dictionary"
    ),
    "parts in a tensor": (SPARSE + tensor() + b"\x86R", "_rebuild_sparse_tensor"),
    "a size in a tensor": (tensor(tensor()), "_rebuild_tensor_v2"),
    "a length in a tensor": (tensor(storage=tensor()), "storage of another kind"),
    "a record of two names": (
        b"(" + tensor(key="ab") + tensor(key="aB") + b"t", "storage of two names"
    ),
    "keys of one hash": (
        b"}(" + b"".join(b"\x8a\x09" + (k * (2**61 - 1)).to_bytes(9, "little") + b"N"
        for k in range(1, 1003)) + b"u", "keys that are no texts",
    ),
    "a set of one hash": (
        b"cbuiltins\nset\n](" + b"".join(b"\x8a\x09" + (k * (2**61 - 1)).to_bytes(9, "little")
        for k in range(1, 1003)) + b"e\x85R", "keys that are no texts",
    ),
    "a tensor of any size": (b"ctorch\nFloatTensor\n" + number(2 * 10**9) + b"\x85R", "FloatT"),
    # The time to multiply these, or to go through one list again and again, is no file's to choose.
    "many sizes": (tensor(b"(" + number(1) * 65 + b"t"), "_rebuild_tensor_v2"),
    "a size of many digits": (
        tensor(b"\x8a\x09" + (2**64).to_bytes(9, "little") + b"\x85"), "_rebuild_tensor_v2"
    ),
    "sets of one list": (
        b"](" + number(1) * 600 + b"eq\x00" + b"cbuiltins\nset\nh\x00\x85R0" * 2,
        "collections of collections",
    ),
    "a function that was computed": (NO_HOOKS + b")R", "an object"),
}  # fmt: skip


def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"a/{name.replace('_', '.')}", content)
    return file.getvalue()


def with_wrong_checksums(content: bytes) -> bytes:
    """A zip archive as torch writes it after `set_crc32_options(False)`."""
    changed = bytearray(content)
    for start, offset in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        place = content.index(start) + offset
        changed[place : place + 4] = b"\0\0\0\0"
    return bytes(changed)


def old_format(*pickles: bytes) -> bytes:
    return pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + b"".join(pickles)


ENDS = (", which weights have no need of", "; they could run code and were not run")


def two_directories(torchs: bytes, pythons: bytes) -> bytes:
    """A zip archive with a directory where its end says, and another directly before that end."""

    def parts(pickled: bytes) -> tuple[bytes, bytes, bytes]:
        content = zipped(data_pkl=pickled)
        place = content.rindex(b"PK\5\6")
        length, start = struct.unpack("<2L", content[place + 12 : place + 20])
        return content[:start], content[start : start + length], content[place:]

    entry, directory, end = parts(torchs)
    other, theirs, _ = parts(pythons)
    assert len(theirs) == len(directory)
    shift = len(directory)  # less what Python adds: the length of all between
    theirs = theirs[:42] + struct.pack("<L", shift + len(entry) - shift - len(other)) + theirs[46:]
    return entry + directory + other + theirs + end


def old_tar(size: int) -> bytes:
    """A tar archive without `ustar`, whose first entry is a table of settings."""
    header = bytearray(512)
    header[:4], header[100:107], header[156:157] = b"\xffabc", b"0000644", b"x"
    header[124:135], header[136:147], header[148:156] = b"%011o" % size, b"0" * 11, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + b"1" * size


OLD_TAR = old_tar(1024)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(zipped(data_pkl=DEEP), "nest too deeply", id="deep"),
        pytest.param(with_wrong_checksums(zipped(data_pkl=DEEP)), "nest too deeply", id="checksum"),
        pytest.param(zipped(x_pkl=b"}.", data_PKL=DEEP), "nest too deeply", id="capitals"),
        pytest.param(old_format(pickle.dumps("x" * 30_000, 2), DEEP), "too large", id="far behind"),
        pytest.param(ENDLESS, "damaged or truncated", id="without an end"),
        pytest.param(zipped(data_pkl=ENDLESS), "damaged or truncated", id="zip without an end"),
        *(
            pytest.param(
                zipped(data_pkl=b"\x80\x02" + calls + b"."),
                rf"holds .*{words}.*({'|'.join(ENDS)}): save its state_dict alone",
                id=name,
            )
            for name, (calls, words) in CALLS.items()
        ),
        pytest.param(
            zipped(data_pkl=b"\x80\x02" + tensor(number(2 * 10**9) + b"\x85") + b"."),
            "claims more numbers than there are",
            id="a large tensor",
        ),
        pytest.param(
            zipped(
                data_pkl=b"\x80\x02" + b"N0" * 50 + b"N.", x_pkl=b"\x80\x02" + b"N0" * 50 + b"N."
            ),
            "its pickle is too large",
            id="many instructions in two pickles",
        ),
        pytest.param(two_directories(DEEP, b"}."), "programs read differently", id="directories"),
        pytest.param(
            zipped(data_pkl=b"}.")[:-2] + b"\x01\x00x", "programs read differently", id="comment"
        ),
        pytest.param(OLD_TAR, "a tar archive: unpack it", id="tar without its magic number"),
        pytest.param(b"PK\x03\x04" + bytes(500), "damaged or truncated", id="half an archive"),
    ],
)
def test_what_torch_must_not_read(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch_file, "_PICKLE_LIMIT", 20_000)
    monkeypatch.setattr(pickled, "_MOST_VISITED", 1100)
    monkeypatch.setattr(torch_file, "_MOST_INSTRUCTIONS", 150 if "N0N0" in str(content) else 10**6)
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError, match=words):
        check_torch_file(tmp_path / "w.pth", 10**9)


def with_attribute() -> torch.Tensor:
    """A tensor that is saved as its class and a call."""
    tensor = torch.ones(2)
    tensor.unit = "metre"  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
def test_what_torch_and_numpy_write_is_accepted(new: bool, checksums: bool, tmp_path: Path):
    held = {
        "weight": torch.ones(3), "best": np.float64(0.5), "order": np.arange(4),
        "parameter": nn.Parameter(torch.ones(2)), "with an attribute": with_attribute(),
        "sparse": torch.eye(3).to_sparse(), "size": torch.Size((2, 3)), "half": torch.float16,
        "device": torch.device("cpu"), "set": {1, 2}, "counts": Counter("aab"),
        "options": Namespace(lr=0.1), "ordered": OrderedDict(a=torch.ones(1)), "complex": 1 + 2j,
        "empty": (), "kinds": set(np.unique([1.5, 2.5])), "tensors": {torch.ones(1)},
        "network": nn.BatchNorm2d(3).state_dict(),
    }  # fmt: skip
    torch.serialization.set_crc32_options(checksums)
    try:
        torch.save(held, tmp_path / "w.pth", _use_new_zipfile_serialization=new)
    finally:
        torch.serialization.set_crc32_options(True)
    check_torch_file(tmp_path / "w.pth", 10**9)
