"""Hostile torch files that are refused before torch reads them; torch would crash or wait."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from burn.checkpoints.foreign import torch_file
from burn.checkpoints.foreign.torch_file import check_torch_file
from burn.core.errors import UserError

# A tuple in a tuple, 1,000 times: with millions torch overflows the stack.
DEEP = b"\x80\x02}" + b")" + b"\x85" * 1000 + b"K\x01s."
# Two gigabytes of zeros, which torch makes before it sees that the pickle has no end.
ENDLESS = b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<q", 2 * 10**9) + b"\x85R"
SLOW = b"\x80\x02c_codecs\nencode\nX\x02\x00\x00\x00abX\x08\x00\x00\x00punycode\x86R."


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(zipped(data_pkl=DEEP), "nest too deeply", id="deep"),
        pytest.param(with_wrong_checksums(zipped(data_pkl=DEEP)), "nest too deeply", id="checksum"),
        pytest.param(zipped(x_pkl=b"}.", data_PKL=DEEP), "nest too deeply", id="capitals"),
        pytest.param(old_format(pickle.dumps("x" * 3000, 2), DEEP), "too large", id="far behind"),
        pytest.param(ENDLESS, "damaged or truncated", id="without an end"),
        pytest.param(zipped(data_pkl=ENDLESS), "damaged or truncated", id="zip without an end"),
        pytest.param(SLOW, r"objects other than weights \(codecs.punycode\)", id="slow codec"),
        pytest.param(b"PK\x03\x04" + bytes(500), "damaged or truncated", id="half an archive"),
    ],
)
def test_what_torch_must_not_read(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch_file, "_PICKLE_LIMIT", 2000)
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError, match=words):
        check_torch_file(tmp_path / "w.pth", 10**9)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
def test_what_torch_and_numpy_write_is_accepted(new: bool, checksums: bool, tmp_path: Path):
    held = {"weight": torch.ones(3), "best": np.float64(0.5), "order": np.arange(4)}
    torch.serialization.set_crc32_options(checksums)
    try:
        torch.save(held, tmp_path / "w.pth", _use_new_zipfile_serialization=new)
    finally:
        torch.serialization.set_crc32_options(True)
    check_torch_file(tmp_path / "w.pth", 10**9)
