"""Every file is read through burn.core.inputs, so that a pipe or a device is an error at once."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn
import reproduction.analyses
from burn.campaigns.workers import _last_words
from burn.core.errors import UserError
from burn.core.inputs import open_regular, read_bytes, read_end, read_text, sha256_of
from burn.core.results import read_results
from burn.data.feature_cache import CacheFolder, FeatureCache
from burn.report.load.files import read_result_lines
from burn.training.records.metrics import read_metrics

SRC = Path(burn.__file__).parent
ANALYSES = Path(reproduction.analyses.__file__).parent
METHODS = {"open", "read_text", "read_bytes"}
BY_NAME = {"np.load", "torch.load", "load_file", "safe_open", "pq.ParquetFile"}
OWN = "a method of burn's own"
PACKAGE = "a file of this package or of one that it needs"
SYSTEM = "the system's, which are no regular files"
FIRST = "a function of burn.core.inputs looks at the file first"
STREAM = "bytes, or a file that is already open"
WRITTEN = "for writing"
ALLOWED = {
    ("campaigns/workers.py", "log.open"): WRITTEN,
    ("checkpoints/foreign/weights.py", "load_file"): FIRST,
    ("checkpoints/foreign/weights.py", "torch.load"): FIRST,
    ("checkpoints/native.py", "safe_open"): FIRST,
    ("core/files.py", "os.open"): "a folder",
    ("core/files.py", "path.open"): WRITTEN,
    ("core/files.py", "temporary.open"): WRITTEN,
    ("data/feature_cache.py", "os.open"): WRITTEN,
    ("data/formats/parquet.py", "pq.ParquetFile"): FIRST,
    ("data/formats/voc.py", "Image.open"): STREAM,
    ("deploy/c/text.py", "(files('burn.deploy.c') / resource).read_text"): PACKAGE,
    ("deploy/environment.py", "np.load"): "a program of burn's own wrote it a moment ago",
    ("deploy/on_device.py", "np.load"): "this program needs numpy and burn-engine alone",
    ("embedding/files.py", "pq.ParquetFile"): STREAM,
    ("embedding/embedder.py", "part.open"): OWN,
    ("embedding/run.py", "part.open"): OWN,
    ("evaluation/artifacts/neighbours.py",
     "(Path(get_data_path()) / 'fonts/ttf/DejaVuSans.ttf').read_bytes"): PACKAGE,
    ("evaluation/cache.py", "safe_open"): FIRST,
    ("evaluation/detection/protocol.py", "load_file"): FIRST,
    ("evaluation/detection/protocol.py", "safe_open"): FIRST,
    ("learning/resume_files.py", "torch.load"): FIRST,
    ("paper/numbers.py", "files('burn.paper').joinpath('paper.csv').read_text"): PACKAGE,
    ("report/load/images.py", "Image.open"): STREAM,
    ("runtime/hardware.py", "(root / 'pyproject.toml').read_text"): PACKAGE,
    ("runtime/hardware.py", "Path('/proc/cpuinfo').read_text"): SYSTEM,
    ("runtime/hardware.py", "Path('/proc/self/statm').read_text"): SYSTEM,
    ("runtime/hardware.py", "Path('/sys/fs/cgroup', name).read_text"): SYSTEM,
    ("runtime/streams.py", "open"): WRITTEN,
    ("runtime/streams.py", "os.open"): WRITTEN,
    ("training/records/metrics.py", "self._path.open"): WRITTEN,
    ("training/records/writer.py", "Image.open"): STREAM,
    ("training/stage.py", "run.cache.open"): OWN,
    ("training/start_summary.py", "cache.open"): OWN,
    ("training/teacher_cache.py", "self.open"): OWN,
}  # fmt: skip


def opening_calls() -> Iterator[tuple[str, str]]:
    """(file, function) of each call that may open a file by its name."""
    for file in sorted([*SRC.rglob("*.py"), *ANALYSES.rglob("*.py")]):
        name = file.relative_to(SRC if SRC in file.parents else ANALYSES).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if name == "core/inputs.py" or not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            if method or function == "open" or function in BY_NAME:
                yield name, function


def test_nothing_else_opens_files():
    """A new place goes through burn.core.inputs, or gets a reason above."""
    assert set(opening_calls()) == set(ALLOWED)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/full")  # endless zeros


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("make", [pipe, device])
@pytest.mark.parametrize(
    "read",
    [
        open_regular,
        read_text,
        read_results,
        read_result_lines,
        read_metrics,
        sha256_of,
        lambda path: read_bytes(path, 100),
        lambda path: read_end(path, 100),
    ],
)
def test_pipes_and_devices_are_refused(
    read: Callable[[Path], Any], make: Callable[[Path], None], tmp_path: Path
):
    make(tmp_path / "file")
    if read is read_metrics:  # which are none where there is no regular file
        assert read(tmp_path / "file") == []
        return
    with pytest.raises(UserError, match=r"is not a regular file|is a link"):
        read(tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("make", [pipe, device])
def test_cached_features_that_are_a_pipe_or_a_device(make: Callable[[Path], None], tmp_path: Path):
    """They are computed again; what cannot be written is an error for the one who writes."""
    cache = FeatureCache(CacheFolder.make(tmp_path, {}, 4, 10), 0, 1)
    cache.file(0, 0).parent.mkdir()
    make(cache.file(0, 0))
    assert cache.read(0, 0) is None
    with pytest.raises(OSError, match=r"Illegal seek|not seekable|No space left"):
        cache.write(0, 0, [3], np.zeros((1, 4), np.float16))


def test_the_end_of_a_large_file(tmp_path: Path):
    file = tmp_path / "log.txt"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
        opened.seek(0, os.SEEK_END)
        opened.write("\nlast words: ä\n".encode())
    assert read_end(file, 15) == "last words: ä\n"
    assert _last_words(file, 1) == "last words: ä"
    assert read_end(file, 2) == "\ufffd\n"
