"""Values of wrong types and sizes for every function of `import burn`: one line that says which."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

import burn
import tiny
from burn.cli.main import main
from burn.core.errors import UserError
from burn.evaluation.configs import KnnConfig, LinearConfig
from burn.evaluation.entries import PROTOCOLS


class Unspeakable:
    """A stranger's class, whose every method fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise BaseException("no items")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


VALUES: dict[str, Any] = {
    "None": None, "True": True, "0": 0, "-1": -1, "2⁶⁴": 2**64, "10⁴⁰⁰": 10**400,
    "5,001 digits": 10**5000, "0.5": 0.5, "-0.5": -0.5, "nan": float("nan"), "inf": float("inf"),
    "1j": 1j, "empty text": "", "text": "x", "a number as text": "3", "two lines": "a\nb",
    "a null byte": "a\0b", "a surrogate": "\ud800", "5,000 letters": "x" * 5000, "bytes": b"x",
    "a bytearray": bytearray(b"x"), "an empty list": [], "a list": [1], "words": ["x"],
    "an empty tuple": (), "a tuple": (1, 2), "a dict": {"a": 1}, "a set": {1}, "a range": range(3),
    "an iterator": iter([1]), "an object": object(), "a class": Path, "a function": len,
    "an exception": ValueError("x"), "...": ..., "an array": np.array([1, 2]),
    "an empty array": np.array([]), "a large array": np.zeros((2, 3, 8, 8), np.uint8),
    "a NaN of NumPy": np.float64("nan"), "a time": np.datetime64("2020-01-01"),
    "a word of NumPy": np.str_("x"), "a tensor": torch.tensor([1.0, 2.0]),
    "a number in a tensor": torch.tensor(3), "a module": torch.nn.Linear(2, 2),
    "a folder": Path(), "a device": Path("/dev/null"), "memory": Path("/proc/self/mem"),
    "a stranger": Unspeakable(),
}  # fmt: skip
TEXTS = {"empty text", "text", "a number as text", "two lines", "a null byte", "a surrogate",
         "5,000 letters", "a word of NumPy"}  # fmt: skip
FEW = {"None", "True", "-1", "10⁴⁰⁰", "nan", "text", "bytes", "a list", "words", "a dict",
       "an array", "a tensor", "a stranger"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where wrong values are put.

    Attributes:
        name: Name of the function and its parameter.
        call: Receives a value and the samples' paths, and calls the function.
        fine: Names of values that are right there.
        words: What every message has one of.
        only: Names of the values to try; None for all.
    """

    name: str
    call: Callable[[Any, Mapping[str, Path]], Any]
    fine: frozenset[str] = frozenset()
    words: tuple[str, ...] = ("",)
    only: frozenset[str] | None = None


def pretrain(samples: Mapping[str, Path], **given: Any) -> Any:
    usual = {"recipe": tiny.student_recipe(), "data": str(samples["parquet"]),
             "out": samples["photos"].parent / "new", "teacher": samples["teacher"],
             "max_steps": 1, "workers": 0, "progress": False}  # fmt: skip
    return burn.pretrain(**{**usual, **given})


def evaluate(samples: Mapping[str, Path], **given: Any) -> Any:
    data = str(samples["parquet"])
    usual = {"protocol": "knn", "model": samples["student"], "train": data, "test": data,
             "progress": False, "workers": 0}  # fmt: skip
    return burn.evaluate(**{**usual, **given})


def pack(samples: Mapping[str, Path], **given: Any) -> Any:
    usual = {"model": samples["student"], "out": samples["photos"].parent / "new.bnn"}
    return burn.pack(**{**usual, **given})


def accepted(hint: Any) -> frozenset[str]:
    """Names of values that fit a field, and may be right or refused by its range."""
    kinds = get_args(hint) if get_origin(hint) is not tuple else (hint,)
    fine: set[str] = set()
    for kind in kinds or (hint,):
        if kind is int:
            fine |= {"0", "-1", "10⁴⁰⁰", "2⁶⁴"}
        if kind is float:
            fine |= {"0", "-1", "0.5", "-0.5", "2⁶⁴"}
        if kind is bool:
            fine |= {"True"}
        if kind is type(None):
            fine |= {"None"}
        if kind is str:
            fine |= {"text", "a word of NumPy"}
        if get_origin(kind) is tuple:
            fine |= {"an empty list", "an empty tuple", "a list", "a tuple", "words"}
    return frozenset(fine)


def of_fields(kind: type, name: str, call: Callable[[str, Any, Any], Any]) -> list[Place]:
    """A place for each field of a dataclass."""
    hints = get_type_hints(kind)
    return [
        Place(
            f"{name}.{field.name}",
            lambda value, samples, field=field.name: call(field, value, samples),
            accepted(hints[field.name]),
            (field.name,),
            frozenset(FEW),
        )
        for field in fields(kind)
        if field.name != "settings"
    ]


def in_recipe(part: str) -> list[Place]:
    kind = type(getattr(tiny.student_recipe(), part)) if part else burn.Recipe

    def call(field: str, value: Any, samples: Any) -> Any:
        recipe = tiny.student_recipe()
        if not part:
            return pretrain(samples, recipe=replace(recipe, **{field: value}))
        changed = replace(getattr(recipe, part), **{field: value})
        return pretrain(samples, recipe=replace(recipe, **{part: changed}))

    return of_fields(kind, f"recipe.{part}" if part else "recipe", call)


def of_pretrain(name: str, fine: set[str], *words: str) -> Place:
    return Place(
        f"pretrain {name}",
        lambda value, samples: pretrain(samples, **{name: value}),
        frozenset(fine),
        words or (name,),
    )


def of_evaluate(name: str, fine: set[str], *words: str, **more: Any) -> Place:
    return Place(
        f"evaluate {name}",
        lambda value, samples: evaluate(samples, **more, **{name: value}),
        frozenset(fine),
        words or (name,),
    )


NO_FLAG = {"True"}
FOLDERS = {"text", "a number as text", "two lines", "a word of NumPy", "a folder"}
A_NAME = frozenset({"text", "a word of NumPy"})
PLACES = [
    Place("recipe", lambda value, _: burn.recipe(value), words=("recipe",)),
    Place("load", lambda value, _: burn.load(value)),
    Place("open_data", lambda value, _: burn.open_data(value)),
    Place("open_data split", lambda value, _: burn.open_data("digits", value), words=("split",)),
    of_pretrain("recipe", set()),
    of_pretrain("data", set(), ""),
    of_pretrain("out", FOLDERS, "out", "path", "name"),
    of_pretrain("teacher", set(), ""),
    of_pretrain("seed", {"0"}),
    of_pretrain("max_steps", {"None"}),
    of_pretrain("resume", NO_FLAG),
    of_pretrain("overwrite", NO_FLAG),
    of_pretrain("device", set()),
    of_pretrain("workers", {"None", "0"}),
    of_pretrain("monitor_every", {"None"}),
    of_pretrain("save_every", {"0", "0.5"}),
    of_pretrain("compile", NO_FLAG),
    of_pretrain("deterministic", NO_FLAG),
    of_pretrain("cuda_graphs", set()),
    of_pretrain("teacher_cache", {"None", "a folder", *TEXTS}),
    of_pretrain("progress", NO_FLAG),
    *(place for part in ("", "backbone", "settings", "views", "optim")
      for place in in_recipe(part)),
    Place("recipe.settings",
          lambda v, s: pretrain(s, recipe=replace(tiny.student_recipe(), settings=v)),
          frozenset({"None"}), ("burn", "setting")),
    of_evaluate("protocol", set()),
    of_evaluate("model", set(), ""),
    of_evaluate("train", set(), ""),
    of_evaluate("test", set(), ""),
    of_evaluate("out", {"None", "a folder", *TEXTS}, "out", "folder"),
    of_evaluate("seed", {"0"}),
    of_evaluate("device", set()),
    of_evaluate("workers", {"None", "0"}),
    of_evaluate("progress", NO_FLAG),
    *of_fields(KnnConfig, "knn", lambda f, v, samples: evaluate(samples, **{f: v})),
    *of_fields(
        LinearConfig, "linear", lambda f, v, s: evaluate(s, protocol="linear", **{f: v})
    ),
    Place("pack model", lambda value, samples: pack(samples, model=value)),
    Place("pack out", lambda value, samples: pack(samples, out=value), words=("",)),
    Place("pack head", lambda v, s: pack(s, head=v), frozenset({"None"})),
    Place("register_method", lambda v, _: burn.register_method(v), A_NAME, ("method",)),
    Place("register_method class", lambda v, _: burn.register_method("mine")(v), words=("mine",)),
    Place("register_method needs", lambda v, _: burn.register_method("mine", needs=v),
          frozenset({"an empty list", "an empty tuple"}), ("mine",)),
    Place("register_method config", lambda v, _: burn.register_method("mine", config=v),
          frozenset({"None"}), ("mine",)),
    Place("register_backbone", lambda v, _: burn.register_backbone(v), A_NAME,
          ("backbone",)),
    Place("register_backbone class", lambda v, _: burn.register_backbone("mine")(v),
          frozenset({"a class", "a function", "a module"}), ("mine",)),
    Place("register_backbone settings", lambda v, _: burn.register_backbone("mine", settings=v),
          frozenset({"an empty list", "an empty tuple"}), ("mine",)),
    Place("register_protocol", lambda v, _: burn.register_protocol(v, config=KnnConfig),
          A_NAME, ("protocol",)),
    Place("register_protocol config", lambda v, _: burn.register_protocol("mine", config=v),
          words=("mine",)),
    Place("register_protocol images",
          lambda v, _: burn.register_protocol("mine", config=KnnConfig, images=v), words=("mine",)),
    Place("register_protocol function",
          lambda v, _: burn.register_protocol("mine", config=KnnConfig)(v),
          frozenset({"a class", "a function", "a module"}), ("mine",)),
    Place("register_recipe", lambda v, _: burn.register_recipe(v),
          frozenset({"a class", "a function"}), ("register_recipe",)),
    Place("a network", lambda v, s: burn.load(s["student"])(v), words=("batch, 3, height, width",)),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])
def test_a_wrong_value_is_one_line(
    place: Place, samples: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    words = {*place.words, *(f"--{word.replace('_', '-')}" for word in place.words if word)}
    wrong: list[str] = []
    for name, value in VALUES.items():
        if name in place.fine or (place.only is not None and name not in place.only):
            continue
        try:
            place.call(value, samples)
        except UserError as error:
            said = str(error)
            if not said.isprintable() or len(said) > 600 or not said:
                wrong.append(f"{name}: {said[:600]!r}")
            elif not any(word in said for word in words):
                wrong.append(f"{name}: {said!r} has none of {place.words}")
        except BaseException as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]!r}")
        else:
            wrong.append(f"{name}: accepted")
    assert not wrong, "\n".join(wrong)


# Each command without anything to work on, so that a value that is accepted begins no work.
COMMANDS = {
    "pretrain": "--recipe demo --data nothing --teacher nothing --out run",
    **{f"evaluate {name}": "nothing --train nothing --test nothing" for name in PROTOCOLS},
    "compare": "--methods byol --data nothing --test nothing --budget 64 --out run",
    "ablate": "--groups sign --data nothing --test nothing --budget 64 --teacher nothing --out run",
    "analyze gradients": "--data nothing --teacher nothing --out run",
    "analyze cost": "--compared nothing --out run",
    "analyze negatives": "--data nothing --test nothing --budget 64 --out run",
    "import": "nothing --format reactnet --out run.safetensors",
    "export": "nothing run.onnx",
    "pack": "nothing run.bnn",
    "info": "nothing",
    "embed": "nothing --data nothing --out run",
    "report": "nothing --out run.html",
}
TYPED = ["x", "-1", "nan", "1e999", "[[1]]", "{}", "9" * 5000, "a:b", "\udcff", "null", "0.5", " "]


@pytest.fixture(scope="module")
def options() -> dict[str, list[tuple[int, str]]]:
    """The options of each command by their number in its help.

    Those that a command before it has too, of the same dataclass and so with the same lines of
    help, are left out.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    before: set[str] = set()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "100")
        for command in COMMANDS:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                assert main([*command.split(), "--help"]) == 0
            entries = re.findall(r"^  --[\w.-]+ \S.*\n(?:    .*\n)*", said.getvalue(), re.MULTILINE)
            assert entries
            names = [entry.split()[0].removeprefix("--") for entry in entries]
            given = enumerate(zip(entries, names, strict=True))
            found[command] = [(number, name) for number, (entry, name) in given
                              if entry not in before]  # fmt: skip
            before |= set(entries)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_value_of_every_option_is_one_line(
    command: str, options: Mapping[str, list[tuple[int, str]]], capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: Any,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    for number, option in options[command]:
        value = TYPED[number % len(TYPED)]
        words = COMMANDS[command].split()
        if f"--{option}" in words:
            place = words.index(f"--{option}")
            del words[place : place + 2]
        status = main([*command.split(), *words, f"--{option}={value}"])
        said = capsys.readouterr().err.removesuffix("\n")
        fine = said.isprintable() and said.startswith("burn: ") and len(said) <= 700
        if status != 2 or not fine:
            wrong.append(f"--{option} {value[:20]!r}: {status}, {said[-300:]!r}")
    assert not wrong, "\n".join(wrong)
