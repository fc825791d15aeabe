"""Checkpoints and files of weights from strangers: answered in one line, at once."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, Outcome, Server, check
from safetensors import safe_open
from safetensors.torch import save_file

from published import of_reactnets_trainer, twin

Samples = Mapping[str, Path]
IMPORT = "import w.pth --format reactnet --out ours.safetensors"
TEACHER = "evaluate knn resnet18:w.pth --train digits --test digits"
GB = 2**30
HUGE = {"name": "vit_giant_patch14_dinov2"}  # 4.5 GB


class Payload:
    """Unpickled, it would create a file in the working directory."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def nothing_ran(folder: Path, _outcome: Outcome) -> None:
    assert not (folder / "executed").exists()
    assert not list(folder.glob("*.safetensors"))


def saved(held: Any, **options: Any) -> Callable[[Path, Samples], None]:
    return lambda folder, _: torch.save(held, folder / "w.pth", **options)


def written(data: bytes) -> Callable[[Path, Samples], object]:
    return lambda folder, _: (folder / "w.pth").write_bytes(data)


def sparse(name: str, size: int, head: bytes = b"") -> Callable[[Path, Samples], None]:
    """A file that claims `size` bytes and has only its head on the disk."""

    def make(folder: Path, _: Samples) -> None:
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(size)

    return make


def header(tensors: Mapping[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def sparse_network(name: str, size: int) -> Callable[[Path, Samples], None]:
    """A safetensors file whose header declares all of it, and which has none of it."""
    numbers = (size - 4096) // 4
    one = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    text = json.dumps({"__metadata__": {"burn": "{}"}, "backbone.stem.weight": one}).encode()
    head = struct.pack("<Q", 4088) + text.ljust(4088)
    return sparse(name, 4096 + 4 * numbers, head)


def small_pickle(instructions: bytes) -> Callable[[Path, Samples], None]:
    """A torch file whose pickle consists of these instructions."""

    def make(folder: Path, _: Samples) -> None:
        buffer = io.BytesIO()
        torch.save({"a": torch.zeros(1)}, buffer)
        with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "w.pth", "w") as new:
            for name in old.namelist():
                own = name.endswith("data.pkl")
                new.writestr(name, b"\x80\x02" + instructions if own else old.read(name))

    return make


def nested(layout: torch.layout) -> Callable[[Path, Samples], None]:
    def make(folder: Path, _: Samples) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are in prototype stage
            parts = [torch.zeros(2), torch.zeros(3)]
            held = torch.nested.nested_tensor(parts, layout=layout)
            torch.save({"a": held}, folder / "w.pth")

    return make


def deflated(folder: Path, _: Samples) -> None:
    """64 kB that claim 64 MB; of 48 MB one would get 48 GB."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(16 * 2**20)}, buffer)
    with (
        zipfile.ZipFile(buffer) as old,
        zipfile.ZipFile(folder / "w.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))


def overlapping(folder: Path, _: Samples) -> None:
    """One stored megabyte that the directory of the archive lists a thousand times."""
    with zipfile.ZipFile(folder / "w.pth", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(2**20))
        archive.filelist += [archive.filelist[-1]] * 1000


def shared(folder: Path, _: Samples) -> None:
    """A hundred tensors that are all the same megabytes."""
    numbers = torch.zeros(10**6)
    state = {f"feature.{number}.bn1.weight": numbers[:] for number in range(100)}
    torch.save({"state_dict": state}, folder / "w.pth")


def described(**changes: Any) -> Callable[[Path, Samples], None]:
    """A checkpoint of ours, c.safetensors, with these parts of its description changed."""

    def make(folder: Path, samples: Samples) -> None:
        file = samples["student"] / "stage2.safetensors"
        with safe_open(file, "pt") as opened:
            meta = json.loads(opened.metadata()["burn"])
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        for name, value in changes.items():
            part, _, key = name.partition("__")
            if key:
                meta[part][key] = value
            else:
                meta[part] = value
        text = json.dumps(meta)
        text = text.replace('"DIGITS"', "9" * 5000).replace('"DEEP"', "[" * 10**5 + "]" * 10**5)
        save_file(weights, folder / "c.safetensors", metadata={"burn": text})

    return make


def run_with(**changes: Any) -> Callable[[Path, Samples], None]:
    """A run of ours, run/, without finished stages, with its plan's backbone changed."""

    def make(folder: Path, samples: Samples) -> None:
        shutil.copytree(samples["student"], folder / "run")
        for file in (folder / "run").glob("stage*.*"):
            file.unlink()
        stored = json.loads((folder / "run" / "run.json").read_text())
        stored["plan"]["recipe"]["backbone"] |= changes
        text = json.dumps(stored).replace('"DIGITS"', "9" * 5000)
        (folder / "run" / "run.json").write_text(text)

    return make


def pipe(name: str) -> Callable[[Path, Samples], None]:
    def make(folder: Path, _: Samples) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)

    return make


def forbidden(name: str) -> Callable[[Path, Samples], None]:
    def make(folder: Path, samples: Samples) -> None:
        shutil.copy(samples["student"] / "stage2.safetensors", folder / name)
        (folder / name).chmod(0)

    return make


BOTH = (IMPORT, TEACHER)
CODE = [
    Case(f"code in {name}, {command.split()[0]}", command, ["posix.system", "were not run"],
         prepare=prepare, check=nothing_ran)
    for name, commands, prepare in (
        ("a raw pickle", BOTH, written(pickle.dumps({"state_dict": Payload()}, 2))),
        ("a raw pickle of protocol 0", [IMPORT], written(pickle.dumps([Payload()], 0))),
        ("a raw pickle of protocol 5", [IMPORT], written(pickle.dumps({"a": Payload()}, 5))),
        ("a torch file", BOTH, saved({"state_dict": {}, "extra": Payload()})),
        ("a torch file of the older format", [IMPORT],
         saved({"extra": Payload()}, _use_new_zipfile_serialization=False)),
        ("options", [IMPORT], saved({"args": argparse.Namespace(a=Payload())})),
    )
    for command in commands
]  # fmt: skip

CLAIMS = [
    Case(f"{name}, {command.split()[0]}", command, ["w.pth", *words], prepare=prepare,
         check=nothing_ran)
    for name, commands, words, prepare in (
        ("a nested tensor", [IMPORT], ["nested tensor"], nested(torch.strided)),
        ("a jagged tensor", [IMPORT], ["nested tensor"], nested(torch.jagged)),
        ("compressed entries", BOTH, ["compressed entries"], deflated),
        ("overlapping entries", [IMPORT], ["more bytes than it has"], overlapping),
        ("tensors that repeat one number", [IMPORT], ["claims more numbers"],
         saved({"feature.0.conv1.weight": torch.zeros(1).expand(10**10)})),
        ("tensors that share their numbers", [IMPORT], ["claims more numbers"], shared),
        ("a buffer of 100 GB", [IMPORT], ["bytearray"],
         small_pickle(b"c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x19\x85R.")),
        ("a tensor of 100 GB", [IMPORT], [],
         small_pickle(b"}X\x01\x00\x00\x00actorch\nFloatTensor\n"
                      b"\x8a\x05\x00\x00\x00\x00\x19\x85Rs.")),
        ("tuples in each other", [IMPORT], ["nest too deeply"],
         small_pickle(b")" + b"\x85" * 10**6 + b"q\x00}h\x00Ns.")),
        ("two million values", [IMPORT], ["too large"],
         small_pickle(b"](" + b"N" * 2_000_000 + b"e.")),
        ("a sparse file", BOTH, ["bytes"], sparse("w.pth", 200 * GB)),
        ("a sparse archive", [IMPORT], ["bytes"], sparse("w.pth", 100 * GB, b"PK\x03\x04")),
        ("a pipe", BOTH, ["not a regular file"], pipe("w.pth")),
        ("no file", BOTH, [], None),
        ("a folder", BOTH, [], lambda folder, _: (folder / "w.pth").mkdir()),
    )
    for command in commands
]  # fmt: skip

INFO = "info c.safetensors"
ALL = (INFO, "pack c.safetensors s.bnn", "evaluate knn c.safetensors --train digits --test digits")
OTHERS = [
    Case("safetensors of 100 GB", IMPORT.replace("w.pth", "w.safetensors"), ["bytes"],
         prepare=sparse_network("w.safetensors", 100 * GB)),
    Case("safetensors with a header of 100 MB", IMPORT.replace("w.pth", "w.safetensors"),
         ["w.safetensors", "not a weights file"],
         prepare=sparse("w.safetensors", 200_000_000, struct.pack("<Q", 100_000_000))),
    *(Case(f"a checkpoint of ours of 200 GB, {command.split()[0]}", command,
           ["c.safetensors", "200.0 GB"], prepare=sparse_network("c.safetensors", 200 * 10**9))
      for command in ALL),
    Case("a checkpoint of ours that is a pipe", "info c.safetensors",
         ["c.safetensors is not a regular file"], prepare=pipe("c.safetensors")),
    Case("a stage that is a pipe", "info run", ["stage1.safetensors is not a regular file"],
         prepare=pipe("run/stage1.safetensors")),
    Case("a head that is a pipe", "pack {student} s.bnn --head c.safetensors",
         ["c.safetensors is not a regular file"], prepare=pipe("c.safetensors")),
    Case("a run's plan that is a pipe", "pretrain --resume --out run",
         ["run.json is not a regular file"], prepare=pipe("run/run.json")),
    Case("a stage without permission", "info c.safetensors",
         ["c.safetensors: no permission to read it"], prepare=forbidden("c.safetensors"),
         unprivileged=True),
    Case("a checkpoint that is a device", "info /dev/zero", ["/dev/zero is not a regular file"]),
    *(
        Case(f"{what}, {command.split()[0]}", command, ["c.safetensors", *words], prepare=prepare)
        for what, commands, words, prepare in (
            ("width 16", ALL, ["does not fit", "instead of"], described(backbone__width=16)),
            ("width 99", ALL, ["width 99"], described(backbone__width=99)),
            ("another network's name", [INFO], ["does not fit"],
             described(backbone=HUGE, precision="float")),
            ("a number of 5,000 digits", ALL, ["5000 digits"], described(backbone__width="DIGITS")),
            ("deep JSON", [INFO], ["nests too deeply"], described(recipe="DEEP")),
            ("a precision of its own", [INFO], ["'ternary'"], described(precision="ternary")),
            ("a format of its own", [INFO], ["format"], described(format="\x1b[2J" + "9" * 5000)),
        )
        for command in commands
    ),
    Case("steps of a stranger", "info c.safetensors", ["c.safetensors", "steps"],
         prepare=described(steps="\x1b[2J")),
    Case("views of a stranger", "info c.safetensors", ["c.safetensors", "views"],
         prepare=described(views__size=10**9)),
    Case("a plan of width 16", "pretrain --resume --out run", ["width 16", "GB"],
         prepare=run_with(width=16)),
    Case("a plan with a number of 5,000 digits", "pretrain --resume --out run",
         ["run.json", "5000 digits"], prepare=run_with(width="DIGITS")),
    Case("a network too wide for the machine", "info reactnet_a --width 16", status=0),
    Case("a width that does not suit groups", "info resnet50_gn --width 0.25",
         ["resnet50_gn cannot be built", "divisible"]),
    Case("a network with weights of five dimensions", "info lambda_resnet26t", status=0),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CODE, *CLAIMS, *OTHERS], ids=str)
def test_answer(case: Case, server: Server, samples: Samples, tmp_path: Path):
    check(case, server, tmp_path, samples)


def test_a_strangers_description_commands_no_terminal(
    server: Server, samples: Samples, tmp_path: Path
):
    name = "a\x1b[2J\x1b]0;title\x07\x9b5m" + "b" * 1000
    case = Case("info", "info c.safetensors", status=0, prepare=described(recipe__name=name))
    out = check(case, server, tmp_path, samples).out
    assert "recipe a?[2J" in " ".join(out.split())
    assert all(line.isprintable() for line in out.splitlines())
    assert len(out) < 2000


def test_an_honest_file_passes(server: Server, samples: Samples, tmp_path: Path):
    """With the optimizer's state, the trainer's numbers, and older formats."""
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        folder = tmp_path / str(len(options))
        folder.mkdir()
        held = of_reactnets_trainer(twin("reactnet", 2))
        check(Case("", IMPORT, status=0, prepare=saved(held, **options)), server, folder, samples)
