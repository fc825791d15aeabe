"""What a plugin may register, and what is said where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burn
import tiny
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.cli.main import main
from burn.core.plugins import load_installed, load_plugin
from burn.methods.entries import METHODS, find_method
from burn.methods.registry import build_method
from networks import shallow_reactnet
from plugin_texts import method_text, write


def method(folder: Path, name: str = "mine", **text: str) -> str:
    return write(folder, f"{name}_plugin.py", method_text(name, **text))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("plugin_a.py", "x = 1", "registers nothing: decorate a class"),
        ("plugin_b.py", "import burn\n\nx = y", "line 3: NameError: name 'y' is not defined"),
        ("plugin_c.py", "def f(:", "SyntaxError: invalid syntax"),
        ("plugin_d.py", "import no_such_module", "line 1: ModuleNotFoundError"),
        ("random.py", "x = 1", "random is also the name of another module, in .*rename the file"),
        ("my-method.py", "x = 1", "only letters, digits and _"),
        ("plugin.txt", "x = 1", "is not a Python file"),
        ("plugin_e.py", method_text("burn"), "burn is one of burn's own"),
        ("plugin_f.py", method_text("My Method"), "lower-case letters"),
    ],
)
def test_a_file_that_is_no_plugin(tmp_path: Path, name: str, text: str, said: str):
    with pytest.raises(burn.UserError, match=said) as caught:
        load_plugin(write(tmp_path, name, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/such.py", "there is no such file"),
        ("", "--import is empty"),
        ("json", "registers nothing"),
        ("no_such_module", "Python finds no module of that name"),
        ("x y", "give a Python file or a module's name"),
        (".", "give a Python file or a module's name"),
    ],
)
def test_a_name_that_is_no_plugin(name: str, said: str):
    with pytest.raises(burn.UserError, match=said):
        load_plugin(name)


def test_a_folder_is_no_plugin(tmp_path: Path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(burn.UserError, match="there is no such file"):
        load_plugin(str(tmp_path / "folder.py"))


def test_a_plugin_imports_what_stands_beside_it(tmp_path: Path):
    write(tmp_path, "beside_it.py", "NAME = 'neighbour'")
    text = method_text("mine").replace('"mine"', "beside_it.NAME")
    load_plugin(write(tmp_path, "with_neighbour.py", f"import beside_it\n{text}"))
    assert find_method("neighbour").plugin is not None


def test_a_plugin_is_loaded_once(tmp_path: Path):
    name = method(tmp_path)
    load_plugin(name)
    entry = find_method("mine")
    load_plugin(name)
    assert find_method("mine") is entry


@dataclass
class Thawed:
    x: int = 0


@dataclass(frozen=True)
class Bare:
    x: int


@dataclass(frozen=True)
class Whole:
    x: int = 0


class Plain(burn.Method):
    """Right, but for what a test changes."""

    num_views = 1

    def __init__(self, backbone: burn.Backbone, **_: Any) -> None:
        super().__init__()
        self.backbone = backbone

    def parts(self) -> list[burn.Part]:
        return [burn.Part("backbone", self.backbone, trained=True)]

    def forward(self, batch: burn.Batch, progress: float) -> burn.StepOutput:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config": Thawed}, "write @dataclass.frozen=True. above Thawed"),
        ({"config": Bare}, "field x of its config has no default"),
        ({"config": 3}, "config must be a dataclass, got 3"),
        (
            {"needs": ["labels", "photos"]},
            "needs must be a list of labels, teacher, head, classifier",
        ),
        ({"needs": "labels"}, "needs must be a list of"),
    ],
)
def test_what_cannot_be_declared(settings: dict[str, Any], said: str):
    with pytest.raises(burn.UserError, match=said):
        burn.register_method("mine", **settings)(Plain)


def test_what_is_no_method():
    with pytest.raises(burn.UserError, match=r"Linear is not a burn\.Method"):
        burn.register_method("mine")(nn.Linear)


def build(cls: type, **settings: Any) -> burn.Method:
    burn.register_method("mine", **settings)(cls)
    teacher = Teacher(shallow_reactnet(), None, None, {})
    return build_method("mine", None, shallow_reactnet(), teacher, 3)


def test_a_method_that_does_not_keep_the_contract():
    class Blind(Plain):
        num_views = 0

    class Empty(Plain):
        def parts(self) -> list[burn.Part]:
            return []

    class Seeing(Plain):
        num_taught = 2

    for cls, settings, said in (
        (Blind, {}, "set num_views"),
        (Empty, {}, "lacks the backbone"),
        (Seeing, {}, "num_taught must be in 0 … 1, its num_views"),
        (Plain, {"needs": ["teacher"]}, "hold the teacher as one burn.FrozenTarget"),
        (Plain, {"needs": ["head"]}, "needs a teacher with its projection head"),
        (Plain, {"needs": ["classifier"]}, "needs a teacher with its classifier"),
    ):
        with pytest.raises(burn.UserError, match=said):
            build(cls, **settings)


def test_a_method_may_be_registered_again_but_not_burns_own():
    for _ in range(2):
        burn.register_method("mine")(Plain)
    with pytest.raises(burn.UserError, match="one of burn's own"):
        burn.register_method("byol")
    with pytest.raises(burn.UserError, match="one of burn's own"):
        burn.register_backbone("reactnet_a")
    with pytest.raises(burn.UserError, match="one of burn's own"):
        burn.register_protocol("knn", config=Bare)


def test_backbones_and_protocols_that_cannot_be_registered():
    for settings in (["depth"], "width"):
        with pytest.raises(burn.UserError, match="settings must be a list of"):
            burn.register_backbone("mine", settings=settings)
    for config, said in (
        (int, "config must be a dataclass"),
        (Thawed, "write @dataclass"),
        (Bare, "field x of its config has no default"),
    ):
        with pytest.raises(burn.UserError, match=said):
            burn.register_protocol("mine", config=config)
    with pytest.raises(burn.UserError, match="images must be one of"):
        burn.register_protocol("mine", config=Whole, images="photos")  # type: ignore[arg-type]

    def burn_small() -> burn.Recipe:
        return burn.Recipe()

    with pytest.raises(burn.UserError, match="one of burn's own"):
        burn.register_recipe(burn_small)


def test_what_builds_no_backbone():
    burn.register_backbone("mine")(lambda config, precision: nn.Linear(1, 1))  # type: ignore[arg-type, return-value]
    with pytest.raises(burn.UserError, match=r"a Linear is not a burn\.Backbone"):
        build_backbone(burn.BackboneConfig("mine"), burn.Precision.BINARY)


def test_what_gives_no_recipe_and_settings_that_cannot_be_options():
    def mine() -> None: ...

    burn.register_recipe(mine)  # type: ignore[arg-type]
    with pytest.raises(burn.UserError, match="recipe mine returns a NoneType"):
        burn.recipe("mine")

    @dataclass(frozen=True)
    class Clashing:
        workers: int = 1

    @dataclass(frozen=True)
    class Unknown:
        count: NoSuchType = 1  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(burn.UserError, match="has an option --workers: rename it in Clashing"):
        burn.register_protocol("mine", config=Clashing)
    with pytest.raises(burn.UserError, match="types of Unknown: name 'NoSuchType'"):
        burn.register_method("mine", config=Unknown)


@pytest.mark.parametrize("name", ["views", "optim", "data", "burn_small", "teacher"])
def test_settings_under_a_name_that_burn_has(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """They would hide an option, or a recipe's own settings."""
    burn.register_method(name, config=Whole)(Plain)
    clashes = name != "burn_small"
    if name in ("views", "optim"):
        with pytest.raises(burn.UserError, match="recipes have a setting of that name"):
            burn.Recipe(method=name)
    words = ["pretrain", "--recipe", "demo", "--print-config"]
    assert main(words) == (2 if clashes else 0)
    assert (f"has an option --{name}: rename it" in capsys.readouterr().err) == clashes


def test_a_plugin_by_two_names_or_imported_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = method(tmp_path)
    monkeypatch.chdir(tmp_path)
    load_plugin(name)
    load_plugin(f"./{Path(name).name}")
    assert find_method("mine").plugin is not None


def test_installed_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """One that works, and one that does not, which stops nothing."""
    write(tmp_path, "installed_good.py", method_text("installed"))
    monkeypatch.syspath_prepend(tmp_path)
    from importlib.metadata import EntryPoint

    points = [
        EntryPoint("good", "installed_good", "burn.plugins"),
        EntryPoint("bad", "no_such_module", "burn.plugins"),
    ]
    monkeypatch.setattr("burn.core.plugins.entry_points", lambda group: points)
    told: list[str] = []
    load_installed(told.append)
    plugin = find_method("installed").plugin
    assert plugin is not None
    assert plugin.name == "installed_good"
    assert len(told) == 1
    assert told[0].startswith("plugin bad of package no_such_module is left out: ")


def test_a_fault_in_a_plugin_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("BURN_DEBUG", raising=False)
    name = method(tmp_path, loss="features.no_such()")
    command = ["pretrain", "--import", name, "--recipe", "demo", "--method", "mine"]
    out = tmp_path / "run"
    assert main([*command, "--data", "digits", "--out", str(out), "--max-steps", "1"]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    line = (
        method_text(loss="features.no_such()")
        .splitlines()
        .index("        loss = features.no_such()")
    )
    assert f"{name} line {line + 1}: AttributeError" in said
    assert "report it" not in said


def test_options_of_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name = method(tmp_path)
    for words, said in (
        (["pretrain", "--import"], "--import is empty"),
        (["pretrain", "--import", "--recipe", "demo"], "--import lacks its value"),
        (["evaluate", f"--import={tmp_path / 'none.py'}", "knn"], "there is no such file"),
        (["pretrain", "--recipe", "demo", "--method", "mine"], "unknown method mine"),
    ):
        more = ["--data", "digits", "--out", "x"] if "--method" in words else []
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err
    config = write(tmp_path, "options.yaml", f"import: {name}\n")
    assert main(["pretrain", "--config", config]) == 2
    assert "not part of a configuration" in capsys.readouterr().err
    assert "mine" not in METHODS
    words = ["pretrain", "--import", name, "--recipe", "demo", "--method", "mine"]
    assert main([*words, "--print-config"]) == 0
    assert "import" not in capsys.readouterr().out


def test_a_checkpoint_of_a_strangers_plugin_says_so_in_one_line(tmp_path: Path):
    """Its words are untrusted: they are shortened, and nothing is imported."""
    from burn.core.plugins import require_plugins

    evil = [{"kind": "backbone", "name": "a\nb" * 99, "import": "/tmp/\x1b[2Jevil.py" * 99}, 3]
    with pytest.raises(burn.UserError) as caught:
        require_plugins(evil, "backbone", {}, "file")
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 400
    require_plugins("none", "backbone", {}, "file")
    require_plugins(evil, "method", {}, "file")


def test_a_notebooks_own_method(tmp_path: Path):
    """Registered in memory, with settings of its own in the recipe."""

    @dataclass(frozen=True)
    class Config:
        weight: float = 1.0

    @burn.register_method("in_memory", config=Config)
    class InMemory(Plain):
        def __init__(self, backbone: burn.Backbone, config: Config) -> None:
            super().__init__(backbone)
            self.weight = config.weight

        def forward(self, batch: burn.Batch, progress: float) -> burn.StepOutput:
            features = self.backbone(batch.views[0])
            loss = self.weight * (1 - features.square().mean()).square()
            return burn.StepOutput(loss, {"loss": loss.detach()}, features.detach())

    recipe = replace(tiny.student_recipe(), method="in_memory", stages=1)
    assert recipe.settings == Config()
    assert recipe.with_settings(weight=2).settings == Config(2.0)
    with pytest.raises(burn.UserError, match=r"unknown setting in_memory\.wight"):
        recipe.with_settings(wight=2)
    recipe = replace(recipe, settings=Config(weight=2.0))
    settings = {"data": "digits", "max_steps": 1, "workers": 0, "progress": False}
    run = burn.pretrain(recipe, out=tmp_path / "run", **settings)
    again = burn.pretrain(recipe, out=tmp_path / "run", resume=True, **settings)
    assert run.stages[0].steps == again.stages[0].steps == 1
    other = replace(recipe, settings=None)
    with pytest.raises(burn.UserError, match=r"in_memory.weight"):
        burn.pretrain(other, out=tmp_path / "run", resume=True, **settings)
    assert isinstance(burn.load(run.out)(torch.zeros(1, 3, 32, 32)), torch.Tensor)
