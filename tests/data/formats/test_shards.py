"""Shards are read where they lie: what is in them, what is wrong with them, and nothing written."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from burn.core.errors import UserError
from burn.data.checks import remarks
from burn.data.decode import UnreadableImage
from burn.data.formats.shards import ShardedImages, open_shards
from burn.embedding.parts import open_collection

Entry = tuple[str | tarfile.TarInfo, bytes]


def picture(number: int) -> bytes:
    """A PNG of one colour, which is its number."""
    colour = np.array([number % 256, number // 256, 7], dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.tile(colour, (4, 5, 1))).save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def write_tar(path: Path, entries: Sequence[Entry], kind: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in entries:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_tars(
    folder: Path, counts: Sequence[int], *, labels: bool = False, first: int = 0
) -> Path:
    """Shard s holds counts[s] images, numbered through, of class s."""
    folder.mkdir(exist_ok=True)
    for shard, count in enumerate(counts):
        entries: list[Entry] = []
        for number in range(first, first + count):
            entries.append((f"{number:05d}.png", picture(number)))
            if labels:
                entries.append((f"{number:05d}.cls", b"%d" % shard))
        write_tar(folder / f"shard-{shard:03d}.tar", entries)
        first += count
    return folder


def write_parquet(
    path: Path, images: Sequence[bytes | None], labels: Sequence[int | None] | None = None,
    *, group: int = 4, in_struct: bool = True,
) -> Path:  # fmt: skip
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = (
        pa.array([{"bytes": image, "path": "x" * 50} for image in images], kind)
        if in_struct
        else pa.array(images, pa.binary())
    )
    columns = {"image": column}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.int64())
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def write_parquets(
    folder: Path, counts: Sequence[int], *, labels: bool = False, group: int = 4
) -> Path:
    folder.mkdir(exist_ok=True)
    first = 0
    for shard, count in enumerate(counts):
        images = [picture(number) for number in range(first, first + count)]
        classes = [shard] * count if labels else None
        write_parquet(folder / f"shard-{shard:03d}.parquet", images, classes, group=group)
        first += count
    return folder


WRITERS = {"tar": write_tars, "parquet": write_parquets}


def number_of(images: ShardedImages, position: int) -> int:
    red, green, blue = images.read(position)[:, 0, 0].tolist()
    assert blue == 7
    return red + 256 * green


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    (line,) = str(error.value).splitlines()
    return line


# --- What is in them. ---


@pytest.mark.parametrize("kind", WRITERS)
def test_positions_count_through_the_shards(tmp_path: Path, kind: str):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", [3, 0, 5], labels=True)))
    assert len(images) == 8
    assert [number_of(images, position) for position in range(8)] == list(range(8))
    assert images.labels is not None
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == [0] * 3 + [2] * 5
    assert images.classes == ("0", "1", "2")
    ending = "member 00004.png" if kind == "tar" else "row 1"
    assert images.describe(4) == f"{tmp_path}/data/shard-002.{kind} {ending}"


@pytest.mark.parametrize("kind", WRITERS)
def test_any_ascending_positions(tmp_path: Path, kind: str):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", [5, 1, 9])))
    assert images.labels is None
    for chosen in ([], [0], [14], [1, 4, 5, 6, 13], list(range(15))):
        assert list(images.encoded(chosen)) == [picture(number) for number in chosen]


def test_a_file_and_a_pattern(tmp_path: Path):
    folder = write_tars(tmp_path / "data", [2, 3, 4])
    assert len(open_shards(str(folder / "shard-001.tar"))) == 3
    assert len(open_shards(str(folder / "shard-00[12].tar"))) == 7
    assert len(open_shards(str(tmp_path / "d*" / "*.tar"))) == 9


def test_the_parts_of_a_folder(tmp_path: Path):
    for name, count in (("train-0", 2), ("train-1", 2), ("val-0", 3)):
        write_tar(tmp_path / f"{name}.tar", [(f"{i}.png", picture(i)) for i in range(count)])
    assert len(open_shards(str(tmp_path))) == 4
    assert len(open_shards(str(tmp_path), "test")) == 3
    assert open_shards(str(tmp_path), "test").name == f"{tmp_path}:val"


def test_the_fingerprint_changes_with_the_shards(tmp_path: Path):
    first = open_shards(str(write_tars(tmp_path / "a", [2, 3])))
    same = open_shards(str(write_tars(tmp_path / "b", [2, 3])))
    other = open_shards(str(write_tars(tmp_path / "c", [3, 2])))
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_columns_of_bytes_and_class_names(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", [picture(0), picture(1)], [1, 0], in_struct=False)
    table = pq.read_table(path)
    told = b'{"info": {"features": {"label": {"names": ["cat", "dog"]}}}}'
    pq.write_table(table.replace_schema_metadata({b"huggingface": told}), path)
    images = open_shards(str(path))
    assert images.classes == ("cat", "dog")
    assert [number_of(images, position) for position in (0, 1)] == [0, 1]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_every_length_and_alphabet(tmp_path: Path, kind: int):
    folder = "deep/" * 22
    names = ["a.png", f"{folder}b.JPG", "ü/日本.webp"]
    if kind != tarfile.USTAR_FORMAT:
        names += ["c" * 300 + ".png", "new\nline.png"]
    path = write_tar(tmp_path / "a.tar", [(name, picture(i)) for i, name in enumerate(names)], kind)
    images = open_shards(str(path))
    shown = [name if name.isprintable() else ascii(name) for name in names]
    assert [images.describe(i) for i in range(len(names))] == [f"{path} member {s}" for s in shown]
    assert [number_of(images, i) for i in range(len(names))] == list(range(len(names)))


def test_what_in_a_tar_is_an_image(tmp_path: Path):
    names = ["a.json", "a.png", "._a.png", ".hidden.jpg", "b.txt", "c/d.PNG", "e.seg.png", "png"]
    images = open_shards(str(write_tar(tmp_path / "a.tar", [(n, picture(0)) for n in names])))
    found = [images.describe(i).rpartition(" ")[2] for i in range(len(images))]
    assert found == ["a.png", "c/d.PNG", "e.seg.png"]


def test_a_class_lies_before_or_behind_its_image(tmp_path: Path):
    entries = [("a.cls", b"3\n"), ("a.png", picture(0)), ("x/b.png", picture(1)), ("x/b.cls", b"1")]
    images = open_shards(str(write_tar(tmp_path / "a.tar", entries)))
    assert images.labels is not None
    assert images.labels.tolist() == [3, 1]


def test_the_same_key_twice_is_two_images(tmp_path: Path):
    entries = [("a.png", picture(0)), ("a.png", picture(1)), ("a.cls", b"2")]
    again = [("b.png", picture(2)), ("b.cls", b"1"), ("a.png", picture(3)), ("a.cls", b"0")]
    images = open_shards(str(write_tar(tmp_path / "a.tar", [*entries, *again])))
    assert [number_of(images, i) for i in range(4)] == [0, 1, 2, 3]
    assert images.labels is not None
    assert images.labels.tolist() == [2, 2, 1, 0]


# --- Blocks, and samples. ---


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("at_least", [1, 4, 100, 1000])
def test_blocks_cover_everything_and_stay_in_their_shards(tmp_path: Path, kind: str, at_least: int):
    counts = [40, 0, 3, 70]
    images = open_shards(str(WRITERS[kind](tmp_path / "data", counts)))
    cuts = images.blocks(at_least)
    assert cuts[0] == 0
    assert cuts[-1] == sum(counts)
    assert np.all(np.diff(cuts) > 0)
    assert set(np.cumsum(counts)) <= set(cuts.tolist())
    assert len(cuts) - 1 >= min(at_least, sum(counts))
    assert np.diff(cuts).max() <= (70 if kind == "tar" else 4)


def test_blocks_are_row_groups_or_parts_of_one(tmp_path: Path):
    images = open_shards(str(write_parquets(tmp_path / "data", [10, 4], group=4)))
    assert images.blocks(3).tolist() == [0, 4, 8, 10, 14]
    assert images.blocks(5).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    images.bytes_per_image = 1_500_000
    assert images.blocks(1).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("count", [1, 2, 5, 9, 12, 100])
def test_a_sample_is_spread_over_the_shards(tmp_path: Path, kind: str, count: int):
    images = open_shards(str(WRITERS[kind](tmp_path / "data", [1, 5, 0, 6], labels=True)))
    sample = images.sample(count)
    assert len(sample) == min(count, 12)
    positions = sample.indices.tolist()
    assert positions == sorted(set(positions))
    expected = {1: [0], 2: [0, 1], 5: [0, 1, 2, 6, 7], 9: [0, 1, 2, 3, 4, 6, 7, 8, 9]}
    assert positions == expected.get(count, list(range(12)))
    assert sample.labels is not None
    assert images.labels is not None
    for index, position in enumerate(positions):
        assert sample.read(index).equal(images.read(position))
        assert sample.labels[index] == images.labels[position]
        assert sample.describe(index) == images.describe(position)


@pytest.mark.parametrize("kind", WRITERS)
def test_shards_that_are_left_out_are_named(tmp_path: Path, kind: str):
    folder = WRITERS[kind](tmp_path / "data", [1, 2, 3, 0])
    suffix = next(folder.iterdir()).suffix
    names = [f"train-0{suffix}", f"val-0{suffix}", f"extra{suffix}", f"train-1{suffix}"]
    for file, name in zip(sorted(folder.iterdir()), names, strict=True):
        file.rename(folder / name)
    (folder / "README.md").touch()
    (folder / "empty").mkdir()
    assert remarks(open_shards(str(folder / f"[te]*{suffix}"))) == [f"no image in train-1{suffix}"]
    WRITERS[kind](folder / "more", [1])
    images = open_shards(str(folder), "train")
    assert (images.name, len(images)) == (f"{folder}:train", 1)
    others = f"extra{suffix}, val-0{suffix}, more/"
    note = f"{folder} also holds {others}, not read"
    assert remarks(images) == [f"{note}; no image in train-1{suffix}"]
    assert open_collection(f"stream:{folder}", 10).notes == (note,)
    assert open_collection(f"stream:{folder / names[0]}", 10).notes == ()
    assert open_shards(str(folder / "more")).notes == ()


# --- What is wrong with them. ---


def test_nothing_there(tmp_path: Path):
    with pytest.raises(UserError, match="no shards at"):
        open_shards(str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"no shards at .*x\*y"):
        open_shards(str(tmp_path / "x*y"))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"holds no \.tar and no \.parquet"):
        open_shards(str(tmp_path))


@pytest.mark.parametrize("kind", WRITERS)
def test_shards_without_images(tmp_path: Path, kind: str):
    with pytest.raises(UserError, match="holds no image"):
        open_shards(str(WRITERS[kind](tmp_path / "data", [0, 0])))


def test_two_kinds(tmp_path: Path):
    write_tars(tmp_path, [1])
    write_parquets(tmp_path, [1])
    with pytest.raises(UserError, match=r"\.tar and \.parquet files: give a pattern"):
        open_shards(str(tmp_path))
    assert len(open_shards(str(tmp_path / "*.tar"))) == 1


@pytest.mark.parametrize("name", ["shard-000.tar.gz", "shard-000.tgz", "inside.tar"])
def test_a_compressed_tar(tmp_path: Path, name: str):
    file = write_tars(tmp_path / "plain", [1]) / "shard-000.tar"
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_bytes(gzip.compress(file.read_bytes()))
    for spec in (folder, folder / name):
        with pytest.raises(UserError, match=f"{name} is compressed: unpack it") as error:
            open_shards(str(spec))
        one_line(error)


def test_a_tar_that_is_cut_off_anywhere(tmp_path: Path):
    whole = (write_tars(tmp_path / "data", [3], labels=True) / "shard-000.tar").read_bytes()
    cut = tmp_path / "cut.tar"
    end = 6 * 1024  # an image fits a block
    for length in [*range(0, end, 97), *range(0, end, 512), end - 1, end, end + 511]:
        cut.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.tar is cut off") as error:
            open_shards(str(cut))
        one_line(error)
    cut.write_bytes(whole[: end + 512])  # an end mark of one block
    assert len(open_shards(str(cut))) == 3


def test_a_tar_with_damaged_bytes_never_surprises(tmp_path: Path):
    folder = write_tars(tmp_path / "data", [2], labels=True)
    entries: list[Entry] = [("long" * 60 + ".png", picture(2)), ("long" * 60 + ".cls", b"1")]
    sources = [
        folder / "shard-000.tar",
        write_tar(tmp_path / "gnu.tar", entries, tarfile.GNU_FORMAT),
        write_tar(tmp_path / "pax.tar", entries, tarfile.PAX_FORMAT),
    ]
    random = np.random.default_rng(0)
    damaged = tmp_path / "damaged.tar"
    complaints: list[str] = []
    opened = 0
    for trial in range(300):
        content = bytearray(sources[trial % 3].read_bytes()[:4096])
        for _ in range(3):
            content[random.integers(4096)] = random.integers(256)
        damaged.write_bytes(content + bytes(1024))
        try:
            images = open_shards(str(damaged))
        except UserError as error:
            complaints.append(str(error))
            continue
        opened += 1
        for position in range(len(images)):
            try:
                assert images.read(position).shape[0] == 3
            except UnreadableImage as error:
                complaints.append(str(error))
    assert opened
    assert len(complaints) > 50
    assert all(len(complaint.splitlines()) == 1 for complaint in complaints)


def test_a_member_that_claims_more_than_there_is(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", [("a.png", picture(0))])
    for size in (b"77777777777\0", b"\x80" + b"\0" * 3 + b"\x7f" * 8):
        header = bytearray(path.read_bytes())
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header[:512])
        path.write_bytes(header)
        with pytest.raises(UserError, match="is cut off: an entry at byte 0 ends at") as error:
            open_shards(str(path))
        one_line(error)


def test_an_image_larger_than_any_is_not_read_into_memory(tmp_path: Path):
    """A gigabyte of holes: its size is true, and it takes no room."""
    path = tmp_path / "a.tar"
    member = tarfile.TarInfo("a.png")
    member.size = 1 << 30
    with open(path, "wb") as file:
        file.write(member.tobuf())
        file.truncate(512 + (1 << 30) + 1024)
    images = open_shards(str(path))
    assert list(images.encoded([0])) == [None]


def test_names_that_point_outside_write_nothing(tmp_path: Path):
    inside = tmp_path / "work" / "data"
    inside.mkdir(parents=True)
    members: list[Entry] = []
    for name in ("../../up.png", f"{tmp_path}/absolute.png"):
        members.append((tarfile.TarInfo(name), picture(5)))
    for number, kind in enumerate(
        [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
         tarfile.DIRTYPE]
    ):  # fmt: skip
        member = tarfile.TarInfo(f"special{number}.png")
        member.type, member.linkname = kind, "/etc/passwd"
        members.append((member, b""))
    write_tar(inside / "a.tar", members)
    before = sorted(tmp_path.rglob("*"))
    images = open_shards(str(inside))
    assert len(images) == 2
    assert [number_of(images, i) for i in range(2)] == [5, 5]
    assert images.describe(0).endswith("a.tar member ../../up.png")
    images.sample(2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pipe_is_no_shard(tmp_path: Path):
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"a\.tar is not a regular file"):
        open_shards(str(tmp_path))


def test_classes_that_do_not_fit(tmp_path: Path):
    entries: list[Entry] = [("a.cls", b"1"), ("a.png", b"x"), ("a.cls", b"2")]
    with pytest.raises(UserError, match="gives a two classes") as error:
        open_shards(str(write_tar(tmp_path / "a.tar", entries)))
    one_line(error)


@pytest.mark.parametrize("kind", WRITERS)
def test_labels_in_some_shards_only(tmp_path: Path, kind: str):
    write = WRITERS[kind]
    folder = write(tmp_path / "data", [2, 2], labels=True)
    bare = write(tmp_path / "bare", [1]) / f"shard-000.{kind}"
    bare.replace(folder / f"shard-002.{kind}")
    with pytest.raises(UserError, match="only some of its shards have labels"):
        open_shards(str(folder))


def test_parquet_that_does_not_fit(tmp_path: Path):
    path = tmp_path / "a.parquet"
    column = pa.array([b"x"], pa.binary())
    for table, message in [
        (pa.table({"jpg": column}), "has no column image; its columns: jpg"),
        (pa.table({"image": [1]}), "column image holds int64, not encoded bytes"),
        (pa.table({"image": [{"path": "x"}]}), "column image has no field bytes"),
        (pa.table([column, column], names=["image", "image"]), "has two columns image"),
    ]:
        pq.write_table(table, path)
        with pytest.raises(UserError, match=message) as error:
            open_shards(str(path))
        one_line(error)
    pq.write_table(pa.table({"image": column}), path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="not a readable parquet file") as error:
        open_shards(str(path))
    one_line(error)


# --- What becomes of them. ---


@pytest.mark.parametrize("kind", WRITERS)
def test_images_that_cannot_be_decoded(tmp_path: Path, kind: str):
    path = tmp_path / f"a.{kind}"
    contents = [picture(0), b"torn", picture(2)]
    if kind == "tar":
        write_tar(path, [(f"{i}.png", content) for i, content in enumerate(contents)])
    else:
        write_parquet(path, [*contents, None])
    images = open_shards(str(path))
    with pytest.raises(UnreadableImage, match=f"^{images.describe(1)}: not JPEG"):
        images.read(1)
    assert number_of(images, 2) == 2
    if kind == "parquet":
        with pytest.raises(UnreadableImage, match="row 3: no bytes"):
            images.read(3)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_shard_that_is_gone_or_shorter(tmp_path: Path, kind: str):
    folder = WRITERS[kind](tmp_path / "data", [2, 2, 9])
    images = open_shards(str(folder))
    (folder / f"shard-000.{kind}").unlink()
    shorter = WRITERS[kind](tmp_path / "other", [1], **({"first": 99} if kind == "tar" else {}))
    (shorter / f"shard-000.{kind}").replace(folder / f"shard-002.{kind}")
    found = list(images.encoded(range(13)))
    assert found[:4] == [None, None, picture(2), picture(3)]
    assert len(found) == 13
    assert found[6:] == [None] * 7 or kind == "tar"
    with pytest.raises(UnreadableImage, match=rf"shard-000\.{kind} (image|row) 1: no bytes"):
        images.read(1)
    for position in range(5, 13):
        with pytest.raises(UnreadableImage):
            images.read(position)
