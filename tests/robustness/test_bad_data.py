"""Data that lies, hides or cannot be read: each is one line, soon, in little memory."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import Case, Server, check
from PIL import Image

Samples = Mapping[str, Path]
Prepare = Callable[[Path, Samples], object]

KNN = "evaluate knn {teacher} --device cpu --train"
PRETRAIN = "pretrain --recipe demo_teacher --device cpu --workers 0 --max-steps 2 --out run --data"


def photos(folder: Path, samples: Samples) -> Path:
    return Path(shutil.copytree(samples["photos"], folder / "photos"))


def closed(below: str, mode: int) -> Prepare:
    """A copy of the photos of which a part has other permissions."""
    return lambda folder, samples: (photos(folder, samples) / below).chmod(mode)


def files_closed(folder: Path, samples: Samples) -> None:
    for file in (photos(folder, samples) / "cats").iterdir():
        file.chmod(0)


def link(below: str, to: str) -> Prepare:
    return lambda folder, samples: (photos(folder, samples) / below).symlink_to(to)


def pipe(name: str) -> Prepare:
    return lambda folder, _: os.mkfifo(folder / name)


def leads_to(name: str, target: str) -> Prepare:
    return lambda folder, _: (folder / name).symlink_to(target)


def sparse(name: str, text: bytes = b"") -> Prepare:
    """A file of 100 GB that takes no place on the disk."""

    def prepare(folder: Path, _: Samples) -> None:
        (folder / name).write_bytes(text)
        os.truncate(folder / name, 100 * 2**30)

    return prepare


# --- CIFAR. ---


def cifar(replace: Callable[[Path], object]) -> Prepare:
    """A folder that looks like CIFAR-10's, whose first batch is something else."""

    def prepare(folder: Path, _: Samples) -> None:
        (folder / "cifar").mkdir()
        names = {b"label_names": [b"a", b"b"]}
        (folder / "cifar" / "batches.meta").write_bytes(pickle.dumps(names))
        replace(folder / "cifar" / "data_batch_1")

    return prepare


def pickled(content: bytes) -> Prepare:
    return cifar(lambda file: file.write_bytes(content))


# A memo's number 2³¹ - 1, for which the unpickler would make room: 32 GB.
MEMO = b"\x80\x04N" + b"r" + struct.pack("<I", 2**31 - 1) + b"."
BYTEARRAY = b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."
DEEP_KEY = b"\x80\x04}" + b")" + b"\x85" * 1_000_000 + b"Ns."

# --- Parquet. ---


def parquet(build: Callable[[], pa.Table], name: str = "a.parquet", **options: object) -> Prepare:
    return lambda folder, _: pq.write_table(build(), folder / name, **options)  # type: ignore[arg-type]


def repeated(value: bytes) -> pa.Table:
    """2,000 times one value of a megabyte, which a dictionary holds once."""
    ones = pa.DictionaryArray.from_arrays(
        pa.array([0] * 2000, pa.int32()), pa.array([value], pa.binary())
    )
    return pa.table({"image": ones, "label": pa.array([0, 1] * 1000)})


def as_binary(folder: Path, name: str, table: pa.Table) -> None:
    """Written so that readers take the dictionary's values for plain ones."""
    pq.write_table(
        table, folder / name, compression="zstd", dictionary_pagesize_limit=1 << 30,
        store_schema=False,
    )  # fmt: skip


def dictionary_bomb(folder: Path, _: Samples) -> None:
    value = np.random.default_rng(0).bytes(50_000) + bytes(950_000)
    as_binary(folder, "a.parquet", repeated(value))
    assert (folder / "a.parquet").stat().st_size < 200_000


def image_bomb(folder: Path, _: Samples) -> None:
    """The same, of an image that can be read."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(buffer, "png")
    as_binary(folder, "a.parquet", repeated(buffer.getvalue() + bytes(1_000_000)))


def lying_page(folder: Path, _: Samples) -> None:
    """The description of the file says little, the page's own header two gigabytes."""
    image = np.random.default_rng(0).bytes(1000)
    file = folder / "a.parquet"
    pq.write_table(
        pa.table({"image": pa.array([image] * 3, pa.binary())}), file, use_dictionary=False,
        compression="zstd", write_statistics=False,
    )  # fmt: skip
    content = file.read_bytes()
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    at = chunk.data_page_offset
    # type 0 (field 1), then field 2: zigzag varint of the decompressed bytes
    assert content[at : at + 3] == b"\x15\x00\x15"
    end = at + 3
    while content[end] & 128:
        end += 1
    huge, value = b"", (2**31 - 1) << 1
    while value > 127:
        huge, value = huge + bytes([value & 127 | 128]), value >> 7
    huge += bytes([value])
    # Grown by as many bytes as the number did, which come out of the page.
    grown = len(huge) - (end + 1 - at - 3)
    stop = at + chunk.total_compressed_size
    page = content[at : at + 3] + huge + content[end + 1 : stop]
    file.write_bytes(content[:at] + page[: len(page) - grown] + content[stop:])


def nulls(count: int) -> Callable[[], pa.Table]:
    return lambda: pa.table({"image": pa.nulls(count, pa.binary())})


def zeros() -> pa.Table:
    return pa.table({"image": pa.array([bytes(300_000_000)] * 2, pa.binary())})


def renamed(folder: Path, samples: Samples) -> None:
    """Column names that are not UTF-8: the same bytes all over, so that offsets stay."""
    table = pq.read_table(samples["parquet"]).append_column("xqzqx", pa.array(["a"] * 40))
    pq.write_table(table, folder / "a.parquet", store_schema=False)
    content = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(content.replace(b"xqzqx", b"x\xff\xfe\xffx"))


def many_columns() -> pa.Table:
    return pa.table({f"a column with a long name, number {i}": [0] for i in range(2000)})


# --- Tars. ---


def tar(*entries: tuple[tarfile.TarInfo | bytes, bytes], kind: Any = tarfile.GNU_FORMAT) -> Prepare:
    def prepare(folder: Path, _: Samples) -> None:
        with (folder / "a.tar").open("wb") as file:
            for header, content in entries:
                head = header if isinstance(header, bytes) else header.tobuf(kind)
                file.write(head + content + bytes(-len(content) % 512))
            file.write(bytes(1024))

    return prepare


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.type = size, kind
    return found


RECORDS = b"5 a=\n" * 200_000  # a header of a megabyte, once read in quadratic time

# --- Images with boxes. ---


def voc(change: Callable[[Path], object]) -> Prepare:
    def prepare(folder: Path, _: Samples) -> None:
        root = folder / "voc"
        for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (root / name).mkdir(parents=True)
        for split in ("trainval", "test"):
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("a\n")
        Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(root / "JPEGImages" / "a.png")
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        (root / "Annotations" / "a.xml").write_text(
            f"<annotation><object><name>dog</name>{box}</object></annotation>"
        )
        change(root)

    return prepare


def replaced(name: str, make: Callable[[Path], object]) -> Prepare:
    def change(root: Path) -> None:
        (root / name).unlink()
        make(root / name)

    return voc(change)


LAUGHS = "<!DOCTYPE a [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {name} '{f'&{before};' * 10}'>"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
LAUGHS += "]><annotation><object><name>&j;</name></object></annotation>"
SVM = "evaluate svm {teacher} --device cpu --train voc --test voc"

CASES = [
    # Folders (L5).
    Case("a class folder without permission", f"{KNN} photos --test photos",
         ["photos/cats: no permission"], prepare=closed("cats", 0), unprivileged=True),
    Case("a class folder that may be listed and not entered", f"{KNN} photos --test photos",
         ["photos/cats: no permission"], prepare=closed("cats", 0o444), unprivileged=True),
    Case("a class folder that may be entered and not listed", f"{KNN} photos --test photos",
         ["photos/cats: no permission"], prepare=closed("cats", 0o111), unprivileged=True),
    Case("images of a class without permission", f"{KNN} photos --test photos",
         ["none of the 20 images of class cats can be read", "no permission"],
         prepare=files_closed, unprivileged=True),
    Case("a root without permission", f"{KNN} photos --test photos", ["photos: no permission"],
         prepare=closed("", 0), unprivileged=True),
    Case("a root that may be listed and not entered", f"{PRETRAIN} photos",
         ["photos", "permission"], prepare=closed("", 0o444), unprivileged=True),
    Case("below a root without permission", f"{KNN} photos/cats --test photos",
         ["photos/cats: no permission"], prepare=closed("", 0), unprivileged=True),
    Case("a class folder that is a link to nothing", f"{KNN} photos --test photos",
         ["photos/birds is a link to nothing"], prepare=link("birds", "nowhere")),
    Case("a class folder that is a link to itself", f"{KNN} photos --test photos",
         ["photos/birds is a link to itself: fix"], prepare=link("birds", "birds")),
    Case("a link back to the folder itself", f"{KNN} photos --test photos", status=0,
         prepare=link("cats/back", "..")),
    Case("a pipe as the data", f"{PRETRAIN} pipe", ["neither a folder nor a regular file"],
         prepare=pipe("pipe")),
    Case("a device as the data", f"{PRETRAIN} /dev/zero", ["neither a folder nor a regular file"]),
    Case("a device as an image list", f"{PRETRAIN} a.txt", ["neither a folder nor a regular"],
         prepare=leads_to("a.txt", "/dev/zero")),
    # Lists of images.
    Case("a list of 100 GB", f"{PRETRAIN} a.txt", ["a.txt has", "at most"],
         prepare=sparse("a.txt")),
    Case("a list with a line without an end", f"{PRETRAIN} a.txt", ["a.txt line 1: longer than"],
         prepare=lambda folder, _: (folder / "a.txt").write_bytes(b"a" * 10_000_000)),
    # CIFAR (H2, H3).
    Case("a pipe as a CIFAR batch", f"{PRETRAIN} cifar", ["data_batch_1 is not a regular file"],
         prepare=cifar(os.mkfifo)),
    Case("a device as a CIFAR batch", f"{PRETRAIN} cifar", ["data_batch_1 is not a regular file"],
         prepare=cifar(lambda file: file.symlink_to("/dev/zero"))),
    Case("a CIFAR batch of 100 GB", f"{PRETRAIN} cifar", ["data_batch_1 has", "at most"],
         prepare=cifar(lambda file: (file.touch(), os.truncate(file, 100 * 2**30)))),
    Case("a CIFAR batch with a memo of 32 GB", f"{PRETRAIN} cifar", ["data_batch_1", "memo"],
         prepare=pickled(MEMO)),
    Case("a CIFAR batch with a terabyte to come", f"{PRETRAIN} cifar", ["data_batch_1"],
         prepare=pickled(BYTEARRAY)),
    Case("a CIFAR batch whose key is a million tuples", f"{PRETRAIN} cifar",
         ["data_batch_1", "tuples"], prepare=pickled(DEEP_KEY)),
    # Parquet (D6, H4, H5).
    Case("a parquet column whose name is not UTF-8", f"{PRETRAIN} a.parquet",
         ["a.parquet", "not UTF-8"], prepare=renamed),
    Case("the same, streamed", f"{PRETRAIN} stream:a.parquet", ["a.parquet", "not UTF-8"],
         prepare=renamed),
    Case("a dictionary that repeats a megabyte", f"{PRETRAIN} a.parquet",
         ["a.parquet", "images expand to more than"], prepare=dictionary_bomb),
    Case("the same, streamed", f"{PRETRAIN} stream:a.parquet", ["images expand to more than"],
         prepare=dictionary_bomb),
    Case("a dictionary that repeats an image, streamed", f"{PRETRAIN} stream:a.parquet",
         ["images expand to more than"], prepare=image_bomb),
    Case("a page that would decompress to two gigabytes", f"{PRETRAIN} a.parquet",
         ["a.parquet", "expand to 2,147,483,647"], prepare=lying_page),
    Case("columns that decompress to 600 MB", f"{PRETRAIN} a.parquet",
         ["a.parquet", "expand to 600,0"],
         prepare=parquet(zeros, use_dictionary=False, compression="zstd")),
    Case("30 million missing images", f"{PRETRAIN} a.parquet", ["30,000,000 rows"],
         prepare=parquet(nulls(30_000_000))),
    Case("the same, streamed", f"{PRETRAIN} stream:a.parquet", ["30,000,000 rows"],
         prepare=parquet(nulls(30_000_000))),
    Case("a million missing images", f"{PRETRAIN} a.parquet",
         ["holds no image: all 1,000,000 values are missing"],
         prepare=parquet(nulls(1_000_000))),
    Case("the same, streamed", f"{PRETRAIN} stream:a.parquet",
         ["none of the 1,000 tried of 1,000,000 images"], prepare=parquet(nulls(1_000_000))),
    Case("thousands of columns", f"{PRETRAIN} a.parquet",
         ["no column image", "and 1995 more"], prepare=parquet(many_columns)),
    Case("a pipe as a parquet file", f"{PRETRAIN} .", ["a.parquet is not a regular file"],
         prepare=pipe("a.parquet")),
    Case("a device as a parquet file", f"{PRETRAIN} stream:.", ["a.parquet is not a regular file"],
         prepare=leads_to("a.parquet", "/dev/zero")),
    Case("a parquet file of 100 GB without an end", f"{PRETRAIN} a.parquet",
         ["a.parquet is not a readable parquet file"], prepare=sparse("a.parquet", b"PAR1")),
    Case("a shard that is a link to nothing", f"{PRETRAIN} stream:.", ["b.tar: no such file"],
         prepare=lambda folder, samples: (
             tar((member("a.png", 0), b""))(folder, samples),
             (folder / "b.tar").symlink_to("nowhere"))),
    # Tars.
    Case("a tar whose member is a terabyte", f"{PRETRAIN} stream:a.tar", ["a.tar is cut off"],
         prepare=tar((member("a.png", 2**40), b"x"))),
    Case("a tar with a sparse member", f"{PRETRAIN} stream:a.tar", ["a.tar holds a.png with holes"],
         prepare=tar((member("x", 25, tarfile.XHDTYPE), b"25 GNU.sparse.realsize=9\n"),
                     (member("a.png", 1), b"x"))),
    Case("a tar with a sparse member of GNU's", f"{PRETRAIN} stream:a.tar",
         ["a.tar holds a.png with holes"], prepare=tar((member("a.png", 1, b"S"), b"x"))),
    Case("a tar with a header of 200,000 records", f"{PRETRAIN} stream:a.tar", ["a.tar"],
         prepare=tar((member("x", len(RECORDS), tarfile.XHDTYPE), RECORDS),
                     (member("a.png", 1), b"x")), seconds=60),
    Case("a tar of 100 GB of zeros", f"{PRETRAIN} stream:a.tar", ["a.tar holds no image"],
         prepare=sparse("a.tar")),
    # Images with boxes.
    Case("a pipe as an annotation", SVM, ["no image"],
         prepare=replaced("Annotations/a.xml", os.mkfifo)),
    Case("an annotation of entities", SVM, ["declares a document type"],
         prepare=replaced("Annotations/a.xml", lambda file: file.write_text(LAUGHS))),
    Case("an annotation of 100 GB", SVM, ["larger than 4 MiB"],
         prepare=replaced("Annotations/a.xml",
                          lambda file: (file.touch(), os.truncate(file, 100 * 2**30)))),
    Case("a pipe as a list of ids", SVM, ["trainval.txt is not a regular file"],
         prepare=replaced("ImageSets/Main/trainval.txt", os.mkfifo)),
    Case("a device as a list of ids", SVM, ["trainval.txt is not a regular file"],
         prepare=replaced("ImageSets/Main/trainval.txt", lambda f: f.symlink_to("/dev/zero"))),
    Case("annotations without permission", SVM, ["Annotations: no permission"],
         prepare=voc(lambda root: (root / "Annotations").chmod(0)), unprivileged=True),
    Case("boxes without permission", SVM, ["voc", "permission"],
         prepare=voc(lambda root: root.chmod(0)), unprivileged=True),
    # Workers without files (D13).
    Case("20 open files and workers", f"{KNN} {{photos}} --test {{photos}} --workers 2",
         ["2 data-loader workers need", "ulimit -n"], descriptors=20),
    Case("60 open files and workers in training",
         "pretrain --recipe demo_teacher --data digits --device cpu --workers 2 --max-steps 2 "
         "--out run", ["2 data-loader workers need", "ulimit -n"], descriptors=60),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answer(case: Case, server: Server, samples: Samples, tmp_path: Path):
    check(case, server, tmp_path, samples)
