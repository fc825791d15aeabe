"""What a person may mistype, and what configurations and the environment may hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import pytest
from cases import TWO_LINES, Case, Outcome, Server, check

import burn.cli.main
from burn.campaigns.settings import Execution
from burn.cli.commands import info
from burn.core.errors import UserError
from burn.core.inputs import read_text
from burn.evaluation.configs import Request
from burn.evaluation.entries import PROTOCOLS
from burn.recipes.registry import RECIPES
from burn.training.plan import Machine
from reproduction.analyses.options import EmaToyOptions, GradientOptions

DIGITS = 5000  # of a number; Python converts no more than 4,300
BEGUN = "pretrain --recipe burn_small --data {photos} --teacher {teacher} --out run"
KNN = "evaluate knn {student} --train {parquet} --test {parquet}"


def config(text: str | bytes) -> Callable[[Path, Mapping[str, Path]], object]:
    """A preparation that writes c.yaml."""
    content = text.encode() if isinstance(text, str) else text
    return lambda folder, _samples: (folder / "c.yaml").write_bytes(content)


def nothing_begun(folder: Path, _outcome: Outcome) -> None:
    assert not (folder / "run").exists()


def finished_run(text: str) -> Callable[[Path, Mapping[str, Path]], object]:
    """A preparation that copies a finished run to `run`, and writes c.yaml."""

    def prepare(folder: Path, samples: Mapping[str, Path]) -> None:
        shutil.copytree(samples["teacher"], folder / "run")
        (folder / "c.yaml").write_text(text)

    return prepare


def run_is_kept(folder: Path, _outcome: Outcome) -> None:
    assert (folder / "run" / "stage1.safetensors").is_file()


def laughs() -> str:
    """Nine lines that mean 10⁹ values."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join(lines) + "\n"


def unreadable(name: str, text: str = "recipe: demo\n") -> Callable[[Path, Any], object]:
    def prepare(folder: Path, _samples: Mapping[str, Path]) -> None:
        (folder / name).write_text(text)
        (folder / name).chmod(0)

    return prepare


MISTYPED = [
    Case("a command is mistyped", "pretrian --data x", ["pretrain"]),
    Case("an option is mistyped", "pretrain --dat digits", ["--dat", "--data"]),
    Case("an option without a value", "pretrain --recipe", ["--recipe lacks its value"]),
    Case("an argument too many", "pretrain digits", ["unexpected argument digits"]),
    Case("a group of options", "pretrain --burn /dev/zero", ["unknown option --burn"]),
    Case("a long option", f"pretrain --{'x' * 9000} 1", ["unknown option", "see burn pretrain"]),
    Case("a long command", "x" * 9000, ["unknown command", "burn --help"]),
    Case("a long value", f"pretrain --epochs {'x' * 9000}", ["--epochs", "expected int"]),
    Case("a run's name is mistyped", "info runs/studnet", ["runs/student"],
         prepare=lambda folder, _: (folder / "runs" / "student").mkdir(parents=True)),
    Case("a run's name without a folder", "info studnet", ["studnet", "student"],
         prepare=lambda folder, _: (folder / "student").mkdir()),
    Case("evaluate a run that is mistyped", "evaluate knn runs/studnet --train a --test b",
         ["no checkpoint at runs/studnet", "runs/student"],
         prepare=lambda folder, _: (folder / "runs" / "student").mkdir(parents=True)),
    Case("no run near", "info runs/none", ["no run, checkpoint or packed file at runs/none"]),
    Case("a backbone is mistyped", "info resnet5O", ["unknown backbone"]),
]  # fmt: skip
SWITCHES = [
    Case(f"{name}: {text} in a configuration", f"{BEGUN} --config c.yaml",
         [name, "not part of a configuration"], prepare=finished_run(f"{name}: {text}\n"),
         check=run_is_kept)
    for name in ("overwrite", "resume", "json", "profile", "compile", "print_config")
    for text in ("n", "true")
] + [
    Case(f"overwrite: {text!r}", f"{BEGUN} --config c.yaml", ["not part of a configuration"],
         prepare=finished_run(f"overwrite: {text}\n"), check=run_is_kept)
    for text in ('"false"', "'0'", "false", "0", "null", "[]", "yes")
] + [
    Case("another configuration in one", "pretrain --config c.yaml", ["config: it is not part"],
         prepare=config("config: d.yaml\n")),
    Case("a boolean in quotes", "pretrain --config c.yaml", ["feature_layer", "true or false"],
         prepare=config('recipe: demo\nbackbone:\n  feature_layer: "false"\n')),
    Case("a boolean as n", "pretrain --config c.yaml", ["feature_layer", "true or false"],
         prepare=config("recipe: demo\nbackbone: {feature_layer: n}\n")),
    Case("a boolean as 0", "pretrain --config c.yaml", ["feature_layer", "true or false"],
         prepare=config("recipe: demo\nbackbone: {feature_layer: 0}\n")),
    Case("a number that is true", "pretrain --config c.yaml", ["--epochs", "expected int"],
         prepare=config("recipe: demo\nepochs: true\n")),
    Case("a boolean option as 0", "evaluate svm x --full 0", ["--full", "expected bool"]),
    Case("a switch with a value", "pretrain --overwrite=n", ["--overwrite"]),
]  # fmt: skip
YAML = [
    Case(name, "pretrain --config c.yaml", words, prepare=config(content), memory=300)
    for name, content, words in (
        ("an anchor that contains itself", "a: &a [*a]\n", ["line 1", "aliases"]),
        ("a mapping that contains itself", "burn: &a\n  lam: *a\n", ["line 2", "aliases"]),
        ("minutes and seconds", "max_steps: 12:30\n", ["max_steps 12:30", "without colons"]),
        ("a tag", "epochs: !!int ''\n", ["line 1", "tags"]),
        ("a tag of Python", "a: !!python/object/apply:os.system [ls]\n", ["line 1", "tags"]),
        ("a switch that shows help", "help_fields: true\n", ["not part of a configuration"]),
        ("anchors that nest", laughs(), ["line 2", "aliases"]),
        ("a merge key", "x: &x {lam: cosine}\nburn:\n  <<: *x\n", ["aliases"]),
        ("deep brackets", "epochs: " + "[" * 100_000, ["nests too deeply"]),
        ("deep dashes", "- " * 100_000, ["nests too deeply"]),
        ("deep names", "\n".join(" " * n + "a:" for n in range(400)), ["nests too deeply"]),
        ("many values", "seed: [" + "1," * 50_000 + "]", ["too many values"]),
        ("a large file", "#" * 2**19, ["bytes"]),
        ("an integer of 5,000 digits", f"recipe: demo\nepochs: {'9' * DIGITS}\n", ["line 2"]),
        ("a float of 5,000 digits", f"optim: {{lr: {'9' * DIGITS}.5}}\n", ["line 1"]),
        ("a list of such numbers", f"swav: {{small_scale: [{'9' * DIGITS}, 1]}}\n", ["line 1"]),
        ("a null byte", 'data: "a\\0b"\nrecipe: demo\nout: x\n', ["--data", "null byte"]),
        ("a null byte in a name", '"a\\0b": 1\n', ["unknown option"]),
        ("a null byte as it is", b"data: a\0b\n", ["not usable YAML"]),
        ("an empty file", "", ["c.yaml is empty"]),
        ("a comment alone", "# nothing\n", ["c.yaml is empty"]),
        ("a list", "- epochs: 3\n", ["holds no options"]),
        ("a word", "epochs\n", ["holds no options"]),
        ("not UTF-8", b"data: \xff\xfe\n", ["c.yaml is not text in UTF-8"]),
        ("two documents", "epochs: 3\n---\nepochs: 4\n", ["not usable YAML"]),
        ("a tag that runs code", "epochs: !!python/object/apply:os.system [ls]\n", ["tag"]),
        ("a tag of one's own", "epochs: !x 3\n", ["tag"]),
        ("no closing bracket", "epochs: [3\n", ["not usable YAML"]),
        ("a tabulator", "epochs:\t3\n\tseed: 1\n", ["not usable YAML"]),
        ("an unknown option", "epoch: 3\n", ["c.yaml", "unknown option epoch", "--epochs"]),
        ("an unknown nested option", "burn: {lamb: 1}\n", ["unknown option burn.lamb"]),
        ("an option twice", "epochs: 3\nepochs: 4\n", ["epochs twice"]),
        ("an option in two spellings", "max_steps: 3\nmax-steps: 4\n", ["twice"]),
        ("a list as a name", "[1, 2]: 3\n", ["name of an option"]),
        ("names in a list", "seed: [{a: 1}]\n", ["names in a list"]),
        ("a name where a group is meant", "burn: cosine\n", ["unknown option burn"]),
        ("escape sequences", 'epochs: "\\e[31mred"\n', ["--epochs"]),
        ("not a number", "recipe: demo\noptim: {lr: .nan}\n", ["--optim.lr", "finite"]),
        ("infinite", "recipe: demo\noptim: {lr: .inf}\n", ["--optim.lr", "finite"]),
        ("2²⁰⁰", f"recipe: demo\nseed: {2**200}\n", ["--seed", "too large"]),
    )
]  # fmt: skip
FILES = [
    Case("no name", "pretrain --config ''", ["--config names no file"]),
    Case("no file", "pretrain --config c.yaml", ["c.yaml: no such file"]),
    Case("a folder", "pretrain --config .", ["is a folder"]),
    Case("a device", "pretrain --config /dev/zero", ["is not a regular file"]),
    Case("a named pipe", "pretrain --config c.yaml", ["is not a regular file"], seconds=30,
         prepare=lambda folder, _: os.mkfifo(folder / "c.yaml")),
    Case("no permission", "pretrain --config c.yaml", ["c.yaml", "permission"],
         prepare=unreadable("c.yaml"), unprivileged=True),
    Case("a long name", f"pretrain --config {'c' * 5000}", ["too long"]),
]  # fmt: skip
VALUES = [
    Case("an integer of 5,000 digits", f"pretrain --epochs {'9' * DIGITS}", ["--epochs"]),
    Case("a list of 5,000 digits", f"evaluate svm x --shots [{'9' * DIGITS}]", ["--shots"]),
    Case("a float of 5,000 digits", f"pretrain --optim.lr {'9' * DIGITS}", ["--optim.lr"]),
    Case("seeds of 5,000 digits", f"compare --data a --test b --budget 9 --out c --methods byol "
         f"--seeds {'9' * DIGITS}", ["--seeds", "commas"]),
    Case("steps of 5,000 digits", f"{BEGUN} --on-nonfinite skip:{'9' * DIGITS}",
         ["--on-nonfinite", "skip:10"]),
    Case("minutes and seconds typed", "pretrain --max-steps 12:30", ["--max-steps", "colons"]),
    Case("--out in the images", "pretrain --recipe demo_teacher --data d --out d/run",
         ["d/run lies in the folder of images d", "give another --out"],
         prepare=lambda folder, samples: shutil.copytree(samples["photos"], folder / "d"),
         check=lambda folder, _: (folder / "d" / "run").exists() and 1 / 0),
    Case("--out of an evaluation in the images",
         "evaluate knn {student} --train d --test d --out d/x",
         ["d/x lies in the folder of images d"],
         prepare=lambda folder, samples: shutil.copytree(samples["photos"], folder / "d")),
    Case("only a comma", "finetune photos --lrs ,", ["--lrs ,", "before or after a comma"]),
    Case("two commas", "finetune photos --lrs 0.1,,0.2", ["before or after a comma"]),
    Case("a value with a tag", ["pretrain", "--epochs", "!!bool x"], ["--epochs", "tags"]),
    Case("an option for a value", "demo --out --overwrite", ["--out lacks its value"]),
    Case("two folders", "pretrain --resume --out run --out other", ["two values of --out"]),
    Case("a value that contains itself", ["pretrain", "--epochs", "&a [*a]"], ["aliases"]),
    Case("a value that nests", ["pretrain", "--backbone.stage-strides", "[" * 50_000],
         ["--backbone.stage-strides"]),
    Case("100,000 workers", f"{BEGUN} --workers 100000", ["--workers 100000", "cores"],
         check=nothing_begun),
    Case("-1 workers", f"{BEGUN} --workers -1", ["--workers -1"], check=nothing_begun),
    Case("100,000 workers that evaluate", f"{KNN} --workers 100000", ["--workers 100000", "cores"]),
    Case("1,000 devices", f"{BEGUN} --devices 1000", ["--devices 1000", "cores"],
         check=nothing_begun),
    Case("a million machines", f"{BEGUN} --num-nodes 1000000", ["--num-nodes"]),
    Case("100,000 runs at once", "compare --data {parquet} --test {parquet} --budget 64 --methods "
         "byol --out run --processes 100000", ["--processes 100000", "cores"]),
    Case("999,999,999 samples", "evaluate svm {student} --train {parquet} --test {parquet} "
         "--samples 999999999", ["--samples 999999999"]),
    Case("10¹² steps", f"{BEGUN} --max-steps 1000000000000000000000", ["--max-steps"]),
    Case("a negative seed", f"{BEGUN} --seed -1", ["seed -1"], check=nothing_begun),
    Case("regions of 100,000 cells", "evaluate detection {student} --train a --test b --out o "
         "--detector.roi-size 100000", ["--detector.roi-size 100000"]),
]  # fmt: skip
ENVIRONMENT = [
    Case(" ".join(f"{k}={v[:9]}" for k, v in names.items()), BEGUN, words, environment=names,
         seconds=60, check=nothing_begun)
    for names, words in (
        ({"RANK": "0", "WORLD_SIZE": "abc"}, ["WORLD_SIZE", "'abc'"]),
        ({"WORLD_SIZE": "abc"}, ["WORLD_SIZE", "'abc'"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["WORLD_SIZE", "'0'"]),
        ({"RANK": "0", "WORLD_SIZE": "9" * DIGITS}, ["WORLD_SIZE"]),
        ({"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
         ["RANK", "'5'", "WORLD_SIZE is 2"]),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ["RANK"]),
        ({"RANK": "\x1b[31m", "WORLD_SIZE": "2"}, ["RANK"]),
        ({"WORLD_SIZE": "2"}, ["RANK is not set"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "7"}, ["LOCAL_RANK"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, ["LOCAL_WORLD_SIZE"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, ["MASTER_PORT"]),
        ({"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"}, ["SLURM_PROCID"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "two"}, ["SLURM_STEP_NUM_TASKS"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a",
          "SLURM_STEP_NUM_NODES": "0"}, ["SLURM_STEP_NUM_NODES"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a",
          "SLURM_LOCALID": ""}, ["SLURM_LOCALID"]),
    )
] + [
    Case("NODE_RANK is no number", f"{BEGUN} --num-nodes 2", ["NODE_RANK"],
         environment={"NODE_RANK": "²", "MASTER_ADDR": "localhost"}),
    Case("MASTER_PORT is no number", f"{BEGUN} --num-nodes 2", ["MASTER_PORT"],
         environment={"NODE_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}),
]  # fmt: skip
CASES = [
    *(("mistyped", case) for case in MISTYPED),
    *(("switch", case) for case in SWITCHES),
    *(("yaml", case) for case in YAML),
    *(("file", case) for case in FILES),
    *(("value", case) for case in VALUES),
    *(("environment", case) for case in ENVIRONMENT),
]


@pytest.mark.parametrize("case", [c for _, c in CASES], ids=[f"{area}: {c}" for area, c in CASES])
def test_answer(case: Case, server: Server, samples: Mapping[str, Path], tmp_path: Path):
    check(case, server, tmp_path, samples)


LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_configuration_is_utf_8_in_every_locale(mark: str, tmp_path: Path):
    (tmp_path / "c.yaml").write_text(f"{mark}recipe: demo  # größer\ndata: Käfer\n", "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in LOCALE}
    environment |= {name: value for name, value in LOCALE.items() if value}
    done = subprocess.run(
        [sys.executable, "-m", "burn", "pretrain", "--config", "c.yaml", "--print-config"],
        cwd=tmp_path, env=environment, capture_output=True, check=True,
    )  # fmt: skip
    assert b"data: K" in done.stdout


def test_print_config_leaves_switches_out(capsys: pytest.CaptureFixture[str]):
    words = "pretrain --recipe demo --overwrite --resume --out /none --json --profile --compile"
    assert burn.cli.main.main(["pretrain", "--recipe", "demo", "--overwrite", "--json", "--profile",
                          "--compile", "--seed", "3", "--print-config"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "seed: 3" in printed
    for name in (word[2:] for word in words.split() if word.startswith("--")):
        assert name in ("recipe", "out") or f"{name}:" not in printed
    assert "print_config" not in printed
    assert "config:" not in printed


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyError("backbone.stem"), 1, ["internal error in burn info", "KeyError", "BURN_DEBUG=1"]),
        (RuntimeError("x" * 9000), 1, ["internal error in burn info", "BURN_DEBUG=1"]),
        (RecursionError("too deep"), 1, ["RecursionError", "BURN_DEBUG=1"]),
        (MemoryError(), 2, ["burn info: not enough memory"]),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"), 2,
         ["not enough memory"]),
        (UnicodeEncodeError("ascii", "Käfer", 1, 2, "ordinal not in range"), 2, ["LC_ALL"]),
        (PermissionError(13, "Permission denied", "a/b"), 2, ["Permission denied: a/b"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unexpected_error_is_one_line(
    error: Exception, status: int, words: list[str], debug: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(info, "run", fail)
    monkeypatch.setattr(burn.cli.main, "last_opened", lambda: None)  # of another test
    monkeypatch.setenv("BURN_DEBUG", debug)
    assert burn.cli.main.main(["info", "x"]) == status
    said = capsys.readouterr().err
    assert ("Traceback" in said) == bool(debug)
    last = said.splitlines()[-1]
    assert len(last) <= TWO_LINES
    assert last.isprintable()
    assert all(word in last for word in words)


def test_the_last_file_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("x")

    def fail(*_: object) -> None:
        read_text(tmp_path / "file")
        raise IndexError

    monkeypatch.setattr(info, "run", fail)
    assert burn.cli.main.main(["info", "x"]) == 1
    assert f"{tmp_path}/file" in capsys.readouterr().err


def test_a_long_message_keeps_both_ends(capsys: pytest.CaptureFixture[str]):
    assert (
        burn.cli.main.main(["pretrain", "--recipe", "demo", "--burn.lam", "x" * 900, "--data", "d"])
        == 2
    )
    said = capsys.readouterr().err
    assert "--burn.lam" in said
    assert len(said) <= TWO_LINES + 1


def integers(settings: Any, prefix: str = "") -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every integer field, of nested settings too, with what makes a copy with an absurd value."""

    def with_field(name: str, value: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: replace(settings, **{name: value()})

    for name, hint in get_type_hints(type(settings)).items():
        if not hasattr(settings, name):
            continue
        value = getattr(settings, name)
        if is_dataclass(value):
            for path, changed in integers(value, f"{prefix}{name}."):
                yield path, with_field(name, changed)
        elif hint in (int, int | None) or (get_origin(hint) is Literal and type(value) is int):
            yield prefix + name, with_field(name, lambda: 10**12)
            yield prefix + name, with_field(name, lambda: -(10**12))
        elif "tuple[int" in str(hint):
            yield prefix + name, with_field(name, lambda: (10**12,))


@pytest.mark.parametrize(
    "settings",
    [
        *(entry.config() for entry in PROTOCOLS.values()),
        *(recipe() for name, recipe in RECIPES.items() if name.endswith("_small")),
        Request("x", "train", "test"),
        Machine(),
        GradientOptions("data", "teacher"),
        EmaToyOptions(),
        Execution(Path("out"), [0], Machine()),
    ],
    ids=lambda settings: getattr(settings, "method", type(settings).__name__),
)
def test_every_integer_setting_has_a_range(settings: Any):
    """An absurd size is an error that names its option, before any file is looked for."""
    settings.check()
    accepted: list[str] = []
    for path, changed in integers(settings):
        if path.startswith("backbone.") or path in ("stages", "seeds"):
            continue  # build_backbone and the parser check these
        try:
            changed().check()
            accepted.append(path)
        except UserError as error:
            leaf = path.rpartition(".")[2].removeprefix("skip_")
            if leaf not in str(error) and leaf.replace("_", "-") not in str(error):
                accepted.append(f"{path}: {error}")
    assert not accepted
