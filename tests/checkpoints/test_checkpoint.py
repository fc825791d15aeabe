"""Checkpoints: whole or not there, ours or refused."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from burn.checkpoints.native import (
    FORMAT,
    find_checkpoint,
    images_seen,
    load_checkpoint,
    save_checkpoint,
    take,
)
from burn.core.errors import UserError

META = {"recipe": {"name": "demo"}, "stage": 1, "λ": [0.9, 0.7], "teacher": None}


def weights() -> dict[str, torch.Tensor]:
    """Each dtype that occurs, an empty shape, and a tensor that is not contiguous."""
    return {
        "backbone.a": torch.randn(3, 4),
        "backbone.b": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "backbone.count": torch.tensor(7),
        "head.c": torch.randn(5).to(torch.bfloat16),
        "head.d": torch.nn.Parameter(torch.randn(4, 3).T),
    }


def fails_with(file: Path, words: str) -> None:
    """Loading is refused in one line that names the file."""
    with pytest.raises(UserError, match=words) as caught:
        load_checkpoint(file)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message


def test_round_trip(tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    given = weights()
    save_checkpoint(file, given, META)
    loaded = load_checkpoint(file)
    assert set(loaded.weights) == set(given)
    for name, tensor in given.items():
        assert loaded.weights[name].dtype == tensor.dtype
        assert torch.equal(loaded.weights[name], tensor)
    expected = {"format": FORMAT, "burn": version("burn-ssl"), "torch": torch.__version__, **META}
    assert loaded.meta == expected


def test_the_json_beside_is_the_same_description(tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    save_checkpoint(file, weights(), META)
    beside = json.loads((tmp_path / "stage1.json").read_text(encoding="utf-8"))
    assert beside == load_checkpoint(file).meta
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stage1.json", "stage1.safetensors"]


def test_saving_again_replaces(tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    save_checkpoint(file, {"backbone.a": torch.zeros(2)}, {"stage": 1})
    save_checkpoint(file, {"backbone.b": torch.ones(3)}, {"stage": 2})
    loaded = load_checkpoint(file)
    assert list(loaded.weights) == ["backbone.b"]
    assert loaded.meta["stage"] == 2


def test_a_failed_save_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        save_checkpoint(tmp_path / "stage1.safetensors", weights(), META)
    assert not (tmp_path / "stage1.safetensors").exists()
    assert not (tmp_path / "stage1.json").exists()
    with pytest.raises(UserError, match="no finished stage"):
        find_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == [], "the temporary file stays behind"


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "stage1.safetensors"
    save_checkpoint(file, {"backbone.a": torch.zeros(2)}, {"stage": 1})

    def write_half(_tensors: object, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no room")

    monkeypatch.setattr("safetensors.torch.save_file", write_half)
    with pytest.raises(OSError, match="no room"):
        save_checkpoint(file, {"backbone.a": torch.ones(2)}, {"stage": 2})
    assert load_checkpoint(file).meta["stage"] == 1
    assert torch.equal(load_checkpoint(file).weights["backbone.a"], torch.zeros(2))


def test_another_versions_format_is_refused_and_names_who_wrote_it(tmp_path: Path):
    file = tmp_path / "new.safetensors"
    text = json.dumps({"format": FORMAT + 1, "burn": "9.8.7"})
    save_file({"backbone.a": torch.zeros(1)}, file, metadata={"burn": text})
    fails_with(file, rf"format {FORMAT + 1}.*9\.8\.7")


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, bytes(range(256)) * 8, b"\xff" * 64])
def test_bytes_that_are_no_safetensors_are_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "noise.safetensors"
    file.write_bytes(content)
    fails_with(file, "not a readable safetensors file|damaged or truncated")


def test_a_truncated_checkpoint_is_refused(tmp_path: Path):
    file = tmp_path / "stage1.safetensors"
    save_checkpoint(file, weights(), META)
    whole = file.read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        fails_with(file, "not a readable safetensors file|damaged or truncated")


def test_safetensors_of_others_are_refused(tmp_path: Path):
    file = tmp_path / "others.safetensors"
    save_file({"conv1.weight": torch.zeros(1)}, file)
    fails_with(file, "not a checkpoint of burn's")
    save_file({"conv1.weight": torch.zeros(1)}, file, metadata={"format": "pt"})
    fails_with(file, "not a checkpoint of burn's")


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", "null", '"format"'])
def test_a_description_that_is_none_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "odd.safetensors"
    save_file({"backbone.a": torch.zeros(1)}, file, metadata={"burn": text})
    fails_with(file, "its description (is not valid JSON|cannot be read)")


@pytest.mark.parametrize(
    ("meta", "images"),
    [
        ({"images_seen": 70, "images_per_step": 32, "steps": 3}, 70),
        ({"images_per_step": 32, "steps": 3}, 96),  # of burn 0.2.0
        ({"recipe": {"batch_size": 64}, "data": {"images": 24}, "steps": 3}, 72),  # of 0.1.0
    ],
)
def test_images_that_were_seen(meta: dict[str, Any], images: int):
    assert images_seen(meta) == images


def test_metadata_can_be_read_without_us(tmp_path: Path):
    """The layout is safetensors' own: any reader of it finds the weights and the description."""
    file = tmp_path / "stage1.safetensors"
    save_checkpoint(file, weights(), META)
    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["burn"])["λ"] == [0.9, 0.7]


def test_find_checkpoint_takes_the_last_stage(tmp_path: Path):
    for name in ("stage1", "stage2", "stage10", "stage9", "stage11x", "best"):
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "stage99.json").touch()
    assert find_checkpoint(tmp_path) == tmp_path / "stage10.safetensors"


def test_find_checkpoint_takes_a_file_as_it_is(tmp_path: Path):
    file = tmp_path / "best.safetensors"
    file.touch()
    assert find_checkpoint(file) == file


def test_find_checkpoint_names_what_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match="no finished stage"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        find_checkpoint(tmp_path / "nowhere")


def test_take_cuts_the_prefix_at_the_start_alone():
    found = take({"a.b": torch.tensor(1), "c.a.b": torch.tensor(2), "a.a.b": torch.tensor(3)}, "a.")
    assert {name: int(tensor) for name, tensor in found.items()} == {"b": 1, "a.b": 3}
