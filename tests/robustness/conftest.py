"""The server of forked commands, and samples of everything a command takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import Server
from PIL import Image

import tiny


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Mapping[str, Path]:
    """Names that commands and preparations use: copy what a case is to change.

    teacher: run of a float teacher. student: run of a binary student, two stages. photos: folder of
    40 images in two classes. parquet: the same images with their labels.
    """
    folder = tmp_path_factory.mktemp("samples")
    student = folder / "student"
    tiny.train(tiny.student_recipe(), student, teacher, max_steps=2)
    random = np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    for label, name in enumerate(("cats", "dogs")):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(20):
            file = folder / "photos" / name / f"{number}.png"
            pixels = random.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file)
            rows.append({"image": {"bytes": file.read_bytes(), "path": None}, "label": label})
    pq.write_table(pa.Table.from_pylist(rows), folder / "photos.parquet")
    return {
        "teacher": teacher,
        "student": student,
        "photos": folder / "photos",
        "parquet": folder / "photos.parquet",
    }
