"""The reader of tar files, beside Python's own."""

from __future__ import annotations

import io
import os
import posixpath
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from burn_engine.tar import DamagedTar, Member, members_of

FILES = [tarfile.REGTYPE] * 6 + [tarfile.DIRTYPE, tarfile.FIFOTYPE]
LINKS = [tarfile.LNKTYPE, tarfile.SYMTYPE]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def read(file: Path) -> list[Member]:
    with file.open("rb") as opened:
        return list(members_of(opened, file.stat().st_size))


def by_python(file: Path) -> list[Member]:
    """What Python's reader finds, with links as they are described."""
    places: dict[str, Member] = {}
    found = []
    with tarfile.open(file) as tar:
        for each in tar:
            member: Member | None = None
            name = os.fsencode(each.name)
            if each.isreg():
                member = Member(name, each.offset_data, each.size, each.issparse())
            elif each.islnk() or each.issym():
                folder = posixpath.dirname(each.name) if each.issym() else ""
                target = places.get(posixpath.normpath(posixpath.join(folder, each.linkname)))
                member = target and target._replace(name=name)
            if member is not None:
                places[posixpath.normpath(each.name)] = member
                found.append(member)
    return found


def random_tar(random: np.random.Generator, kind: str, types: Sequence[bytes]) -> bytes:
    out = io.BytesIO()
    names: list[str] = []
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for number in range(int(random.integers(1, 12))):
            folders = [f"folder{i}" * int(random.integers(1, 4)) for i in range(3)]
            name = "/".join([*folders[: random.integers(4)], f"{number:03}.png"])
            if kind != "ustar":
                name = "é" * int(random.integers(3)) + name + "x" * int(random.integers(200))
            info = tarfile.TarInfo(name)
            content = random.bytes(int(random.integers(1300)))
            info.type = types[int(random.integers(len(types)))]
            if info.type in (tarfile.LNKTYPE, tarfile.SYMTYPE):
                to = random.choice(names) if names else "nothing.png"
                if info.type == tarfile.SYMTYPE:
                    to = posixpath.relpath(to, posixpath.dirname(name))
                info.linkname = to
                if kind == "ustar" and len(info.linkname) > 100:
                    info.linkname = "nothing.png"
            if info.type == tarfile.REGTYPE:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            names.append(name)
    return out.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_members_are_those_of_pythons_reader(tmp_path: Path, kind: str):
    random = np.random.default_rng(0)
    file = tmp_path / "a.tar"
    count = 0
    for _ in range(60):
        file.write_bytes(random_tar(random, kind, FILES + LINKS))
        found = read(file)
        assert found == by_python(file)
        count += len(found)
    assert count > 100


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_damaged_is_refused_or_read_as_it_is(tmp_path: Path, kind: str):
    """Never another error, and never fewer files without one.

    A link is left out where the name is damaged that it leads to: long ones have no sums.
    """
    random = np.random.default_rng(1)
    file = tmp_path / "a.tar"
    refused = 0
    for _ in range(300):
        content = bytearray(random_tar(random, kind, FILES))
        file.write_bytes(content)
        whole = read(file)
        for _ in range(int(random.integers(1, 4))):
            at = int(random.integers(len(content)))
            content[at] = int(random.integers(256))
        file.write_bytes(content[: len(content) - int(random.integers(2)) * 512 * 20])
        try:
            assert len(read(file)) == len(whole)
        except DamagedTar:
            refused += 1
    assert refused > 30


@pytest.mark.skipif(shutil.which("tar") is None, reason="without tar")
@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax", "--sparse-version=1.0"],
                                     ["--format=pax", "--sparse-version=0.1"]])  # fmt: skip
def test_files_with_holes_keep_their_names(tmp_path: Path, options: list[str]):
    with (tmp_path / "holes.png").open("wb") as file:
        for piece in range(40):  # more than the blocks of one header list
            file.seek(piece * 100_000)
            file.write(b"data")
    (tmp_path / "b.png").write_bytes(b"whole")
    command = ["tar", *options, "--sparse", "-cf", "a.tar", "holes.png", "b.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this tar stores no holes")
    members = read(tmp_path / "a.tar")
    assert [(member.name, member.is_sparse) for member in members] == [
        (b"holes.png", True), (b"b.png", False)
    ]  # fmt: skip
    whole = members[1]
    content = (tmp_path / "a.tar").read_bytes()
    assert content[whole.offset : whole.offset + whole.size] == b"whole"
