"""The labelled files of Tiny-ImageNet, of a clone with four images."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reproduction.tiny import write


def test_images_keep_their_bytes_and_have_their_folders_number(tmp_path: Path):
    clone = tmp_path / "clone"
    names = {"train/n2/images/b.JPEG": 1, "train/n1/images/a.JPEG": 0, "train/n1/images/c.JPEG": 0}
    for name in [*names, "val/images/val_0.JPEG"]:
        file = clone / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff\xd8" + name.encode())
    (clone / "val/val_annotations.txt").write_text("val_0.JPEG\tn2\t0\t32\t44\t62\n")
    assert write(clone, tmp_path / "out") == (3, 1)
    rows = pq.read_table(tmp_path / "out/train.parquet").to_pylist()
    assert {row["image"]["bytes"][2:].decode(): row["label"] for row in rows} == names
    (row,) = pq.read_table(tmp_path / "out/val.parquet").to_pylist()
    encoded = b"\xff\xd8val/images/val_0.JPEG"
    assert row == {"image": {"bytes": encoded, "path": "val_0.JPEG"}, "label": 1}
    for line in ("../../etc/passwd\tn1", "val_0.JPEG\tn3", "", "gone.JPEG\tn1"):
        (clone / "val/val_annotations.txt").write_text(f"{line}\n")
        with pytest.raises((OSError, ValueError)):
            write(clone, tmp_path / "no")
    assert not (tmp_path / "no").exists()
