"""What `burn evaluate linear --out DIR` keeps for `burn pack --head DIR`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from interpreter import read
from safetensors import safe_open
from safetensors.torch import save_file
from samples import save

from burn.checkpoints.classifier import Classifier, fingerprint, load_classifier, save_classifier
from burn.cli.main import main
from burn.core.errors import UserError
from burn.deploy.pack import pack
from networks import randomize, shallow_reactnet

DATA = ["--train", "digits", "--test", "digits", "--augment", "none", "--epochs", "1"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "n.safetensors", randomize(shallow_reactnet()).eval())


def evaluate(checkpoint: Path, out: Path | None, *more: str) -> None:
    options = ["--out", str(out)] if out else []
    assert main(["evaluate", "linear", str(checkpoint), *DATA, *options, *more]) == 0


def test_from_evaluation_to_a_packed_file(checkpoint: Path, tmp_path: Path):
    out = tmp_path / "linear"
    evaluate(checkpoint, out)
    kept = out / "classifier.safetensors"
    classifier = load_classifier(kept)
    assert classifier is not None
    assert classifier.classes == tuple("0123456789")
    assert classifier.weight.shape == (10, 256)
    with safe_open(kept, framework="pt") as opened:
        about = json.loads(opened.metadata()["classifier"])
    settings = about["settings"]
    assert (settings["epochs"], settings["probe"], settings["seed"]) == (1, "strict", 0)
    pack(checkpoint, tmp_path / "n.bnn", out)
    program, layers = read(tmp_path / "n.bnn")
    assert program["classes"] == list("0123456789")
    assert torch.equal(torch.from_numpy(vars(layers[-1])["weight"]), classifier.weight)


def test_what_is_kept_is_calibrated(checkpoint: Path, tmp_path: Path):
    """Its scores are those of a layer trained at the chosen rate, divided by the temperature."""
    evaluate(checkpoint, tmp_path / "auto")
    kept = tmp_path / "auto" / "classifier.safetensors"
    with safe_open(kept, framework="pt") as opened:
        settings = json.loads(opened.metadata()["classifier"])["settings"]
    evaluate(checkpoint, tmp_path / "fixed", "--lr", str(settings["chosen_lr"]))
    calibrated = load_classifier(kept)
    alone = load_classifier(tmp_path / "fixed" / "classifier.safetensors")
    assert calibrated is not None
    assert alone is not None
    temperature = settings["temperature"]
    assert temperature not in (0, 1)
    torch.testing.assert_close(temperature * calibrated.weight, alone.weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(temperature * calibrated.bias, alone.bias, rtol=1e-3, atol=1e-4)


def test_the_newest_is_kept_and_no_mlp(checkpoint: Path, tmp_path: Path):
    out = tmp_path / "linear"
    evaluate(checkpoint, out, "--probe", "mlp")
    assert not (out / "classifier.safetensors").exists()
    evaluate(checkpoint, out)
    first = load_classifier(out / "classifier.safetensors")
    evaluate(checkpoint, out, "--seed", "1")
    second = load_classifier(out / "classifier.safetensors")
    assert first is not None
    assert second is not None
    assert not torch.equal(first.weight, second.weight)
    evaluate(checkpoint, out, "--probe", "mlp")
    third = load_classifier(out / "classifier.safetensors")
    assert third is not None
    assert torch.equal(second.weight, third.weight)


def test_without_a_folder_nothing_is_kept(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    evaluate(checkpoint, None)
    assert sorted(tmp_path.iterdir()) == before


def test_a_fingerprint_is_of_weights_and_settings():
    one, same, other = (shallow_reactnet(seed=seed) for seed in (0, 0, 1))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    assert fingerprint(one) != fingerprint(shallow_reactnet(mean=(0.5, 0.5, 0.5)))


def test_files_that_are_no_classifier(tmp_path: Path):
    file = tmp_path / "c.safetensors"
    classifier = Classifier(torch.ones(2, 3), torch.ones(2), ("a", "b"), "x")
    save_classifier(file, classifier, {})
    loaded = load_classifier(file)
    assert loaded is not None
    assert loaded.classes == ("a", "b")

    def refused(words: str, tensors: dict[str, torch.Tensor] | None = None, text: str = "") -> None:
        good = {"format": 1, "classes": ["a", "b"], "backbone": "x"}
        tensors = tensors or {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
        save_file(tensors, file, {"classifier": text or json.dumps(good)})
        with pytest.raises(UserError, match=words) as caught:
            load_classifier(file)
        assert str(file) in str(caught.value)

    refused("its description is not valid JSON", text="[" * 9)
    refused("its description cannot be read", text="[]")
    refused("classifier format 2", text='{"format": 2, "classes": [], "backbone": ""}')
    refused("not a list of names", text='{"format": 1, "classes": [3, 4], "backbone": ""}')
    refused("not a list of names", text='{"format": 1, "classes": "abcd", "backbone": ""}')
    refused("3 classes", text='{"format": 1, "classes": ["a", "b", "c"], "backbone": ""}')
    refused("not finite", {"weight": torch.full((2, 3), torch.inf), "bias": torch.ones(2)})
    refused("not float32", {"weight": torch.ones(2, 3).double(), "bias": torch.ones(2)})
    refused(r"bias \(2, 1\)", {"weight": torch.ones(2, 3), "bias": torch.ones(2, 1)})
    refused("holds no bias", {"weight": torch.ones(2, 3)})
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a weights file"):
        load_classifier(file)
    save_file({"weight": torch.ones(2)}, file)
    assert load_classifier(file) is None
