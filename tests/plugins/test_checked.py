"""Faults of plugins that would lose a network or a number are found, and said in one line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import burn
from burn.cli.main import main
from burn.core.plugins import load_plugin
from burn.data.decode import UnreadableImage
from burn.training.records.metrics import read_metrics
from plugin_texts import PROTOCOL, method_text, write


def pretrain(folder: Path, name: str, options: Sequence[str] = (), **text: str) -> tuple[int, Path]:
    plugin = write(folder, f"{name}.py", method_text(**text))
    out = folder / "run"
    words = ["--recipe", "demo", "--data", "digits", "--max-steps", "2", "--batch-size", "16"]
    words += ["--workers", "0", "--monitor-every", "1"]
    small = ["--backbone.width", "0.125", "--backbone.depths", "[1,1,1,1,1]"]
    return main(
        [
            "pretrain",
            "--import",
            plugin,
            "--method",
            "mine",
            *words,
            *small,
            *options,
            "--out",
            str(out),
        ]
    ), out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"parts": '[burn.Part("backbone", self.backbone, True)]'}, "head.weight is in no part"),
        (
            {"parts": '[burn.Part("a", self.backbone, False), burn.Part("b", self.head, False)]'},
            "parts() trains nothing",
        ),
        ({"parts": "None"}, "parts() must return a list of burn.Part"),
        ({"more": "def weights(self): return {}"}, "weights() lacks backbone."),
        ({"output": "None"}, "forward must return a burn.StepOutput, got a NoneType"),
        ({"output": "burn.StepOutput(loss, None, features.detach())"}, "terms of the StepOutput"),
        ({"terms": '{"aux": 1.0}'}, "aux must be a scalar tensor, got 1.0"),
        ({"terms": '{"aux": features.detach()}'}, "aux must be a scalar tensor, got shape (16, "),
        ({"loss": "(1j * features).sum()"}, "loss must be a real number, got torch.complex64"),
        ({"loss": "features.square()"}, "loss must be a scalar tensor, got shape (16, "),
        ({"output": "burn.StepOutput(loss, {}, loss.detach())"}, "features must be the backbone's"),
        ({"output": "burn.StepOutput(loss, {}, None)"}, "got NoneType"),
        ({"output": "burn.StepOutput(loss, {}, features)"}, "features must be detached"),
        ({"more": "num_views = 10**6"}, "its number of views of an image, 1 to 64"),
    ],
    ids=[
        "forgotten", "frozen", "no_parts", "weights", "none", "terms", "number", "vector",
        "complex", "loss", "features", "nothing", "attached", "views",
    ],
)  # fmt: skip
def test_a_method_that_breaks_its_contract_is_refused_in_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: dict[str, str], said: str,
    request: pytest.FixtureRequest,
):  # fmt: skip
    status, out = pretrain(tmp_path, f"bad_{request.node.callspec.id}", **text)
    assert status == 2
    assert said in capsys.readouterr().err
    assert not list(out.glob("**/*.safetensors"))


@pytest.mark.parametrize("error", ["StopIteration", "SystemExit(0)", "GeneratorExit"])
def test_an_exception_that_would_end_a_loop_is_a_fault_of_the_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str
):
    more = f"def after_step(self, progress): raise {error}"
    status, out = pretrain(tmp_path, f"ends_{error[:4]}", more=more)
    assert status == 1
    line = method_text(more=more).splitlines().index(f"    {more}") + 1
    assert f"ends_{error[:4]}.py line {line}: {error[:4]}" in capsys.readouterr().err
    assert not list(out.glob("*.safetensors"))


def test_features_that_are_not_finite_end_no_run(tmp_path: Path):
    output = 'burn.StepOutput(loss, {}, features.detach() * float("nan"))'
    assert pretrain(tmp_path, "nan_features", output=output)[0] == 0


def test_a_run_whose_every_step_is_skipped_learns_nothing_and_saves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    loss = 'self.head(features).mean() * float("nan")'
    options = ["--on-nonfinite", "skip:10"]
    status, out = pretrain(tmp_path, "never_finite", options, loss=loss)
    assert status == 2
    assert "nothing was learned or saved" in capsys.readouterr().err
    assert not list(out.glob("*.safetensors"))


def test_a_plugin_that_changes_before_a_run_is_resumed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forget: Callable[[], None]
):
    changes = "mine_changes.py has changed since the run began"
    assert pretrain(tmp_path, "mine_changes")[0] == 0
    for more, told in (("", False), ("# a remark", True)):
        forget()
        (tmp_path / "run" / "stage1.safetensors").unlink()
        assert pretrain(tmp_path, "mine_changes", ["--resume"], more=more)[0] == 0
        assert (changes in capsys.readouterr().err) == told


def test_two_plugins_that_register_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = [write(tmp_path, f"{name}_of_two.py", method_text()) for name in ("one", "other")]
    assert main(["info", "reactnet_a", *(f"--import={file}" for file in files)]) == 2
    assert f"method mine is already registered by {files[0]}" in capsys.readouterr().err


def test_two_plugins_that_register_one_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "import burn\n\n@burn.register_recipe\ndef shared():\n    return burn.recipe('demo')\n"
    files = [write(tmp_path, f"recipe_{name}.py", text) for name in ("one", "other")]
    assert main(["info", "reactnet_a", *(f"--import={file}" for file in files)]) == 2
    assert f"recipe shared is already registered by {files[0]}" in capsys.readouterr().err


def test_terms_of_a_method_of_its_own_are_kept(tmp_path: Path):
    """Under a name that metrics.csv has for something else, too."""
    terms = '{"loss": loss.detach(), "aux": 2 * loss.detach(), "step": 3 * loss.detach()}'
    status, out = pretrain(tmp_path, "own_terms", terms=terms)
    assert status == 0
    rows = list(csv.DictReader((out / "stage1" / "terms.csv").read_text().splitlines()))
    assert [(row["step"], row["term"]) for row in rows] == [
        ("1", "aux"), ("1", "step"), ("2", "aux"), ("2", "step")
    ]  # fmt: skip
    losses = [row["loss"] for row in read_metrics(out / "stage1" / "metrics.csv") if "loss" in row]
    assert float(rows[0]["value"]) == pytest.approx(2 * losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "must return a list of results, got a NoneType"),
        ("return []", "must return a list of results, got none"),
        ("yield 1", "must return a list of results, got a generator"),
        ("return [50.0]", "returned a float among its results"),
        ("return context.results('mine', {'top1': float('nan')}, {}, 0.0)", "its top1 is nan"),
    ],
    ids=["none", "empty", "generator", "float", "nan"],
)
def test_a_protocol_without_a_number_leaves_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, said: str,
    request: pytest.FixtureRequest, teacher: Path,
):  # fmt: skip
    plugin = write(tmp_path, f"protocol_{request.node.callspec.id}.py", PROTOCOL.format(body=body))
    words = ["evaluate", "mine", str(teacher), "--train", "digits", "--test", "digits"]
    assert main([*words, "--import", plugin, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize(
    "error", ["SystemExit(0)", "SystemExit", "BaseException('now')", "GeneratorExit",
              "StopIteration", "type('Stop', (KeyboardInterrupt,), {})('now')"],
)  # fmt: skip
@pytest.mark.parametrize("python", [False, True])
def test_a_protocol_that_raises_what_ends_a_program_is_a_fault_of_the_plugin(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str], error: str, python: bool
):
    body = f"raise {error}"
    name = f"ends_{python}_{sum(error.encode())}"
    plugin = write(tmp_path, f"{name}.py", PROTOCOL.format(body=body))
    if python:
        load_plugin(plugin)
        with pytest.raises(RuntimeError, match=r"^\w+: "):
            burn.evaluate("mine", teacher, train="digits", test="digits", progress=False)
        return
    words = ["evaluate", "mine", str(teacher), "--train", "digits", "--test", "digits"]
    assert main([*words, "--import", plugin]) == 1
    line = PROTOCOL.format(body=body).splitlines().index(f"    {body}") + 1
    assert f"{name}.py line {line}: " in capsys.readouterr().err


def test_a_backbone_that_exits_ends_no_command_with_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = (
        "import sys\n\nimport burn\n\n\n@burn.register_backbone('leaves')\n"
        "def leaves(config, precision):\n    sys.exit(0)\n"
    )
    plugin = write(tmp_path, "leaving_backbone.py", text)
    assert main(["info", "leaves", "--import", plugin]) == 1
    assert "leaving_backbone.py line 8: SystemExit: 0" in capsys.readouterr().err


class Leaves:
    """A data set whose every other item ends the program."""

    targets = [0, 1] * 16

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> np.ndarray:
        if index % 2:
            raise [SystemExit(0), BaseException("now")][index // 2 % 2]
        return np.full((8, 8, 3), index, np.uint8)


def test_a_data_set_that_exits_has_unreadable_images():
    source = burn.open_data(Leaves())
    for index, why in ((1, "SystemExit: 0"), (3, "BaseException: now")):
        with pytest.raises(UnreadableImage, match=why):
            source.read(index)
    assert source.read(2).unique().tolist() == [2]


@pytest.mark.parametrize("code", ["0", "'bye'", ""])
def test_a_plugin_that_exits_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
):
    plugin = write(tmp_path, f"exits_{len(code)}.py", f"import sys\n\nsys.exit({code})\n")
    assert main(["info", "reactnet_a", "--import", plugin]) == 2
    assert "line 3: SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("base", ["BaseException", "KeyboardInterrupt", "GeneratorExit"])
def test_a_plugin_that_raises_what_is_no_exception_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str
):
    text = f"class Stop({base}): pass\n\nraise Stop('now')\n"
    plugin = write(tmp_path, f"raises_{base.lower()}.py", text)
    assert main(["info", "reactnet_a", "--import", plugin]) == 2
    assert "line 3: Stop: now" in capsys.readouterr().err


@pytest.mark.parametrize("misused", ["'mine'", "lambda: None", "name='mine'"])
def test_a_misused_decorator_of_recipes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], misused: str
):
    text = f"import burn\n\nburn.register_recipe({misused})(lambda: None)\n"
    plugin = write(tmp_path, f"misused_{len(misused)}.py", text)
    assert main(["info", "reactnet_a", "--import", plugin]) == 2
    assert "register_recipe" in capsys.readouterr().err


def test_a_method_may_not_have_the_name_of_a_compared_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plugin = write(tmp_path, "paper_plugin.py", method_text("paper"))
    assert main(["info", "reactnet_a", "--import", plugin]) == 2
    assert "method paper is a model of burn compare" in capsys.readouterr().err


def test_the_command_that_resumes_has_what_a_configuration_said(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
):
    from burn.training import run as training

    said: list[str] = []
    monkeypatch.setattr(
        training, "train_plan", lambda *_, resume_command, **__: said.append(resume_command) or []
    )
    config = write(tmp_path, "run.yaml", "on_nonfinite: skip:3\nmax_bad: 1%\n")
    words = ["pretrain", "--recipe", "demo", "--data", "digits", "--teacher", str(teacher)]
    assert main([*words, "--config", config, "--compile", "--out", str(tmp_path / "a b")]) == 0
    options = "--on-nonfinite skip:3 --max-bad 1% --compile"
    assert said == [f"burn pretrain --resume --out '{tmp_path}/a b' {options}"]


@pytest.mark.long
def test_a_campaign_goes_on_after_a_fault_of_a_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plugin = write(tmp_path, "faulty_plugin.py", method_text(loss="features.no_such()"))
    command = [
        "compare", "--import", plugin, "--methods", "mine,simclr", "--data", "digits", "--test",
        "digits", "--budget", "128", "--out", str(tmp_path / "out"),
        "--linear.epochs", "1", "--linear.lr", "0.1",
    ]  # fmt: skip
    assert main(command) == 2
    assert "mine-seed0: " in (said := capsys.readouterr().err)
    assert "AttributeError" in said
    assert list((tmp_path / "out" / "simclr-seed0").glob("*.jsonl"))
