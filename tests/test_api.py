"""The public API: what `import burn` offers does what the commands do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import burn
import tiny
from burn.cli.main import main
from burn.core.results import read_results
from burn.core.settings import from_plain
from burn.data.dataset import DatasetSource
from burn.data.decode import UnreadableImage
from burn.evaluation.configs import KnnConfig


class Photos(torch.utils.data.Dataset):
    """Twenty images of two colours, as torchvision's data sets give them."""

    classes = ("dark", "light")

    def __init__(self, kind: str = "pil", count: int = 20) -> None:
        random = np.random.default_rng(0)
        self.targets = [index % 2 for index in range(count)]
        shades = [60 + 120 * label for label in self.targets]
        self._images = [
            (shade + random.integers(0, 40, (16, 16, 3))).astype(np.uint8) for shade in shades
        ]
        self._kind = kind

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        array = self._images[index]
        pixels = torch.from_numpy(array).permute(2, 0, 1)
        made = {"pil": lambda: Image.fromarray(array), "array": lambda: array,
                "uint8": lambda: pixels, "float": lambda: pixels.float() / 255}  # fmt: skip
        return made[self._kind](), self.targets[index]


class Colours(nn.Module):
    """A teacher that is no backbone of burn's: the mean colour of sixteen parts of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(48))

    def forward(self, images: Tensor) -> Tensor:
        assert images.is_floating_point()
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) * self.scale


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> burn.Run:
    out = tmp_path_factory.mktemp("api") / "run"
    recipe = tiny.student_recipe(classifier="none")
    return burn.pretrain(
        recipe, data="digits", teacher=Colours(), out=out, max_steps=2, workers=0, progress=False
    )


def test_a_run_is_trained_loaded_evaluated_and_packed(run: burn.Run, tmp_path: Path):
    backbone = run.backbone
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    features = backbone(images)
    assert features.shape == (2, backbone.num_features)
    assert torch.equal(backbone.pool(backbone.forward_features(images)), features)
    found = burn.evaluate(
        "linear", backbone, train="digits", test="digits", progress=False, augment="none",
        epochs=2, lr=0.1,
    )  # fmt: skip
    assert set(found.numbers) == {"top1", "top5"}
    assert found["top1"] == found.results[0].value
    assert found.classifier is not None
    done = burn.pack(backbone, tmp_path / "student.bnn", head=found.classifier)
    assert done.classes == 10
    assert (tmp_path / "student.bnn").stat().st_size == done.bytes
    for shown in (run, found):
        assert "<table>" in shown._repr_html_()
        assert len(repr(shown)) < 300


def test_numbers_are_the_commands(run: burn.Run, tmp_path: Path):
    """In memory, from the folder, and by the command line."""
    words = {"train": "digits", "test": "digits", "progress": False}
    here = burn.evaluate("knn", run.backbone, k=5, **words)
    there = burn.evaluate("knn", run.out, k=5, out=tmp_path / "evaluated", **words)
    assert here.numbers == there.numbers
    spoken = ["evaluate", "knn", str(run.out), "--k", "5", "--out", str(tmp_path / "spoken")]
    assert main([*spoken, "--train", "digits", "--test", "digits"]) == 0
    (by_command,) = read_results(tmp_path / "spoken" / "results.jsonl")
    assert by_command.value == here["top1"]
    (kept,) = read_results(tmp_path / "evaluated" / "results.jsonl")
    assert (kept.value, kept.right) == (by_command.value, by_command.right)


def test_a_row_names_the_checkpoint_until_the_network_is_changed(run: burn.Run, tmp_path: Path):
    backbone, words = run.backbone, {"train": "digits", "test": "digits", "progress": False}
    before = burn.evaluate("knn", backbone, out=tmp_path, **words).results[0]
    with torch.no_grad():
        next(backbone.parameters()).mul_(2)
    after = burn.evaluate("knn", backbone, out=tmp_path, **words).results[0]
    assert before.checkpoint == str(run.out), "as evaluating its name tells it"
    assert before.training is not None
    assert after.training is None
    assert after.model.startswith(f"{before.model}, changed (")
    assert len(list((tmp_path / "neighbours").glob("*.json"))) == 2


def test_a_changed_network_tells_of_the_labels_behind_it():
    backbone = burn.load("photos")
    with torch.no_grad():
        next(backbone.parameters()).mul_(2)
    found = burn.evaluate("knn", backbone, train="digits", test="digits", progress=False)
    (result,) = found.results
    assert result.training == {"teacher_labels": "ImageNet"}
    assert any("its teacher was trained with ImageNet labels" in note for note in found.notes)


def test_options_of_the_command_are_arguments(run: burn.Run):
    words = {"train": "digits", "test": "digits", "progress": False}
    random = burn.evaluate("knn", run.out, random_init=True, compute="float32", **words)
    assert random.results[0].training is None
    assert random.results[0].settings["compute"] == "float32"
    with pytest.raises(burn.UserError, match="random_init takes the name of a network"):
        burn.evaluate("knn", run.backbone, random_init=True, **words)


def test_layers_keep_their_modes(run: burn.Run):
    backbone = run.backbone.train()
    frozen = [layer.eval() for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    modes = [layer.training for layer in backbone.modules()]
    burn.evaluate("knn", backbone, train="digits", test="digits", progress=False)
    with pytest.raises(burn.UserError, match="int has no length"):
        burn.evaluate("knn", backbone, train=5, test="digits", progress=False)
    assert [layer.training for layer in backbone.modules()] == modes
    assert frozen


def test_the_weights_in_memory_are_what_is_packed(run: burn.Run, tmp_path: Path):
    import burn_engine

    backbone = run.backbone
    with torch.no_grad():
        next(backbone.parameters()).mul_(-1)
    burn.pack(backbone, tmp_path / "changed.bnn")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    found = burn_engine.load(tmp_path / "changed.bnn", threads=1).features(pixels)
    with torch.inference_mode():
        expected = backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
        before = run.backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
    near = np.abs(np.asarray(found) - expected).mean()
    assert near < np.abs(np.asarray(found) - before).mean() / 10


def test_a_module_teaches_and_stays_as_it_was(tmp_path: Path):
    teacher = Colours().train()
    recipe = tiny.student_recipe(classifier="none")
    settings = {"data": "digits", "max_steps": 1, "workers": 0, "progress": False}
    burn.pretrain(recipe, teacher=teacher, out=tmp_path / "run", **settings)
    assert teacher.training
    assert teacher.scale.requires_grad
    again = burn.pretrain(recipe, teacher=Colours(), out=tmp_path / "run", resume=True, **settings)
    assert again.stages[0].steps == 1
    other = Colours()
    with torch.no_grad():
        other.scale[0] = 2
    with pytest.raises(burn.UserError, match="teacher"):
        burn.pretrain(recipe, teacher=other, out=tmp_path / "run", resume=True, **settings)


def test_a_backbone_in_memory_teaches_and_stays_as_it_was(run: burn.Run, tmp_path: Path):
    teacher = run.backbone.train()
    burn.pretrain(
        tiny.student_recipe(classifier="none"), data="digits", teacher=teacher,
        out=tmp_path / "run", max_steps=1, workers=0, progress=False,
    )  # fmt: skip
    assert teacher.training
    assert all(parameter.requires_grad for parameter in teacher.parameters())


class Darker(nn.Module):
    """A step without weights before a teacher, of a setting that its repr shows."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, images: Tensor) -> Tensor:
        return images * self.by

    def extra_repr(self) -> str:
        return f"by={self.by}"


def test_teachers_that_differ_in_a_setting_are_not_taken_for_each_other(tmp_path: Path):
    recipe = tiny.student_recipe(classifier="none")
    settings = {"data": "digits", "max_steps": 1, "workers": 0, "progress": False}
    cache = tmp_path / "cache"
    for by in (1.0, 0.5, 1.0):
        teacher = nn.Sequential(Darker(by), Colours())
        out = tmp_path / f"run{by}"
        burn.pretrain(
            recipe, teacher=teacher, out=out, teacher_cache=cache, overwrite=True, **settings
        )
    assert len([folder for folder in cache.iterdir() if folder.is_dir()]) == 2


@pytest.mark.parametrize("kind", ["pil", "array", "uint8", "float"])
def test_data_sets_give_the_same_images(kind: str):
    plain, other = DatasetSource(Photos()), DatasetSource(Photos(kind))
    assert [torch.equal(plain.read(i), other.read(i)) for i in range(20)] == [True] * 20
    assert plain.fingerprint == other.fingerprint
    assert plain.labels is not None
    assert plain.labels.tolist() == [0, 1] * 10
    assert plain.classes == ("dark", "light")


def test_a_data_set_is_trained_and_evaluated_on(tmp_path: Path):
    recipe = replace(tiny.student_recipe(classifier="none"), batch_size=4)
    run = burn.pretrain(
        recipe, data=Photos(), teacher=Colours(), out=tmp_path / "run", max_steps=1, workers=0,
        progress=False,
    )  # fmt: skip
    found = burn.evaluate("knn", run.out, train=Photos(), test=Photos("float"), progress=False)
    assert found.results[0].train == "Photos"
    assert found["top1"] > 50


class Broken(Photos):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == 3:
            raise OSError("no such photo")
        return super().__getitem__(index)


def test_an_item_that_fails_is_an_unreadable_image():
    source = DatasetSource(Broken())
    with pytest.raises(UnreadableImage, match="Broken item 3: OSError: no such photo"):
        source.read(3)


class Words(Photos):
    def __getitem__(self, index: int) -> Any:
        return "a photo"


class Grey(Photos):
    def __getitem__(self, index: int) -> Any:
        array, label = super().__getitem__(index)
        grey = {"array": lambda: array[..., 0], "uint8": lambda: array[:1],
                "pil": lambda: array.getchannel(0)}  # fmt: skip
        return grey[self._kind](), label


@pytest.mark.parametrize("kind", ["pil", "array", "uint8"])
def test_grey_images_have_three_equal_channels(kind: str):
    image = DatasetSource(Grey(kind)).read(1)
    assert image.shape == (3, 16, 16)
    assert torch.equal(image, DatasetSource(Photos()).read(1)[:1].expand(3, -1, -1))


class OneWord(Photos):
    """Its middle item is no image."""

    def __getitem__(self, index: int) -> Any:
        return "a photo" if index == 10 else super().__getitem__(index)


def test_an_item_that_is_no_image_is_counted_in_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Data-loader workers meet it in the middle of a run."""
    recipe = replace(tiny.student_recipe(classifier="none"), batch_size=4)
    run = burn.pretrain(
        recipe, data=OneWord(), teacher=Colours(), out=tmp_path / "run", max_steps=5, workers=1
    )
    assert run.stages[0].steps == 5
    said = " ".join(capfd.readouterr().err.split())
    assert "left out: 1: OneWord item 10" in said


class Flipped(Photos):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        self._images = [1 + array for array in self._images]
        return image, label


def labelled(labels: Any) -> Photos:
    photos = Photos()
    photos.targets = labels
    return photos


class Texts(Photos):
    def __init__(self) -> None:
        super().__init__()
        self.labels = ["cat"] * len(self)

    def __getattribute__(self, name: str) -> Any:
        if name == "targets" and "labels" in super().__getattribute__("__dict__"):
            raise AttributeError
        return super().__getattribute__(name)

    def __len__(self) -> int:
        return 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: burn.open_data(iter([])), "has no length"),
        (lambda: burn.open_data(Photos(count=0)), "holds no image"),
        (lambda: burn.open_data(Words()), "Words item 0 is a str: give PIL"),
        (lambda: burn.open_data(Flipped()), "item 0 is a different image when it is read again"),
        (lambda: burn.open_data(Texts()), "not one class number"),
        (lambda: burn.open_data("digits", "validation"), "give train or test"),
        (lambda: burn.open_data("/none"), "no data at /none"),
        (lambda: burn.recipe("burn_smal"), "did you mean burn_small"),
        (lambda: burn.load("/none/run"), "/none/run"),
        (lambda: burn.pack(nn.Linear(2, 2), "x.bnn"), "burn.load returned"),  # type: ignore[arg-type]
        (lambda: burn.evaluate("nearest", "x", train="digits", test="digits"), "unknown protocol"),
        (
            lambda: burn.evaluate("knn", nn.Linear(2, 2), train="digits", test="digits"),  # type: ignore[arg-type]
            "model is a Linear",
        ),
        (
            lambda: burn.evaluate("knn", nn.Flatten(), train="digits", test="digits"),  # type: ignore[arg-type]
            "model is a Flatten",
        ),
        (lambda: burn.evaluate("knn", "x", train="digits", test="digits", n=3), "setting n"),
        (
            lambda: burn.pretrain(
                "burn_small", data="digits", out="x", resume=True, overwrite=True
            ),
            "contradict",
        ),
        (lambda: burn.pretrain(3, data="digits", out="x"), "recipe is a int"),  # type: ignore[arg-type]
        (lambda: burn.pretrain("demo", data="digits", out=None), "out is a NoneType"),  # type: ignore[arg-type]
        (lambda: burn.pretrain("demo", data="digits", out="x", seed=0.5), "seed: expected int"),  # type: ignore[arg-type]
        (lambda: burn.pretrain("demo", data="digits", out="x", device="tpu"), "device: expected"),  # type: ignore[arg-type]
        (lambda: burn.pretrain("demo", data="digits", out="x", workers="a"), "workers: expected"),  # type: ignore[arg-type]
        (
            lambda: burn.pretrain("demo", data="digits", out="x", overwrite="no"),  # type: ignore[arg-type]
            "overwrite is a str",
        ),
        (lambda: burn.pretrain("demo", data="digits", out="a\0b"), "out contains a null byte"),
        (
            lambda: burn.pretrain(replace(burn.recipe("demo"), epochs=1.5), data="digits", out="x"),  # type: ignore[arg-type]
            "recipe.epochs: expected int, got 1.5",
        ),
        (
            lambda: burn.pretrain(replace(burn.recipe("demo"), views=None), data="digits", out="x"),  # type: ignore[arg-type]
            "recipe.views: expected named values",
        ),
        (lambda: burn.evaluate([1], "x", train="digits", test="digits"), "unknown protocol"),  # type: ignore[arg-type]
        (lambda: burn.load(3), "checkpoint is a int"),  # type: ignore[arg-type]
        (lambda: burn.evaluate("knn", None, train="digits", test="digits"), "model is a NoneType"),  # type: ignore[arg-type]
        (lambda: burn.evaluate("knn", "x", train="digits", test="digits", seed="1"), "seed: exp"),  # type: ignore[arg-type]
        (
            lambda: burn.pretrain("burn_small", data="digits", out="x", teacher=nn.Flatten(0)),
            "teacher Flatten gives",
        ),
        (
            lambda: burn.pretrain("burn_small", data="digits", out="x", teacher=nn.Linear(2, 2)),
            "teacher Linear cannot take float images",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(given: Any, said: str):
    with pytest.raises(burn.UserError, match=said) as raised:
        given()
    assert "\n" not in str(raised.value)


def test_numbers_of_numpy_are_numbers():
    recipe = burn.recipe("demo")
    odd = replace(
        recipe,
        epochs=np.int64(3),  # type: ignore[arg-type]
        optim=replace(recipe.optim, lr=np.float32(0.5)),  # type: ignore[arg-type]
        backbone=replace(recipe.backbone, width=np.float64(0.25)),
    )
    found = from_plain(burn.Recipe, odd)
    plain = replace(
        recipe,
        epochs=3,
        optim=replace(recipe.optim, lr=0.5),
        backbone=replace(recipe.backbone, width=0.25),
    )
    assert found == plain
    assert type(found.epochs) is int
    assert from_plain(KnnConfig, {"temperature": np.float32(0.5)}) == KnnConfig(temperature=0.5)


def test_importing_burn_imports_nothing_heavy():
    code = "import sys, burn; print([n for n in ('torch', 'numpy', 'rich') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_takes_long_to_import_waits_for_its_use():
    slow = "('torchvision', 'torch._dynamo', 'lightly', 'scipy', 'timm')"
    found = f"print([n for n in {slow} if n in sys.modules])"
    code = f"import sys, burn; burn.load('photos'); {found}; import burn.training.run; {found}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_all_names_are_there():
    for name in burn.__all__:
        assert getattr(burn, name).__doc__
    assert set(burn.__all__) <= set(dir(burn))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        burn.nothing  # noqa: B018
