"""The binary networks side by side, as `burn info --family` shows them."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.console import Console

import burn_engine
from burn.backbones.config import BackboneConfig
from burn.cli.main import main
from burn.costs import family
from burn.costs.compute import count_reactnet
from burn.costs.family import Member, measure_family, on_front

MEMBERS = ("reactnet_s", "reactnet_xs")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command measure two small networks in two rounds."""
    monkeypatch.setattr(family, "measure_family", partial(measure_family, names=MEMBERS, rounds=2))


def test_counts_and_times_of_each_network():
    found = measure_family(32, Console(file=io.StringIO()), MEMBERS, rounds=2)
    assert (found.image_size, found.threads, found.rounds) == (32, 1, 2)
    assert found.isa in burn_engine.isas()
    assert found.not_measured is None
    for member, name in zip(found.members, MEMBERS, strict=True):
        cost = count_reactnet(BackboneConfig(name), 32, 0)
        assert member == Member(
            name,
            cost.binary_parameters + cost.float_parameters,
            cost.binary_macs,
            cost.packed_bytes or 0,
            member.milliseconds,
            member.on_front,
        )
        assert member.milliseconds is not None
        assert 0 < member.milliseconds < 1000


def test_rounds_interleave_the_networks(monkeypatch: pytest.MonkeyPatch):
    """A time is the median of three calls after one that is not counted."""
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    calls: list[str] = []
    models: dict[str, Any] = {
        name: lambda image, name=name: calls.append(f"{name} {image.shape}") for name in "ab"
    }
    times = list(family.interleaved(models, 20, 2))
    assert times == [("a", 1e3), ("b", 1e3)] * 2
    assert calls == [f"{name} (20, 20, 3)" for name in "aaaabbbb" * 2]


@pytest.mark.parametrize(
    ("changes", "first", "second"),
    [
        ({}, True, True),  # equals are both on it
        ({"milliseconds": 2.0}, True, False),
        ({"milliseconds": 0.5}, False, True),
        ({"packed_bytes": 9}, False, True),
        ({"binary_macs": 2000}, False, True),
        ({"milliseconds": 2.0, "binary_macs": 2000}, True, True),
        ({"milliseconds": 2.0, "packed_bytes": 9}, True, True),
        ({"milliseconds": None, "binary_macs": 2000}, True, False),
    ],
)
def test_the_front_of_time_size_and_multiply_adds(
    changes: dict[str, Any], first: bool, second: bool
):
    one = Member("one", 100, 1000, 10, 1.0, on_front=False)
    other = replace(one, name="other", **changes)
    assert [on_front(member, [one, other]) for member in (one, other)] == [first, second]


@pytest.mark.usefixtures("few")
def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "--family", "--image-size", "32"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "", "progress is for a terminal"
    assert "reactnet_s *" in printed.out
    assert "969,152" in printed.out
    assert "32 × 32 pixels, random weights, burn-engine (" in printed.out
    assert main(["info", "--family", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["image_size"] == 96
    assert [member["name"] for member in found["members"]] == list(MEMBERS)
    assert all(member["milliseconds"] > 0 for member in found["members"])


@pytest.mark.usefixtures("few")
def test_without_a_compiled_core_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    monkeypatch.setattr(
        burn_engine.Model, "__call__", lambda *_: pytest.fail("the reference was run")
    )
    assert main(["info", "--family"]) == 0
    printed = capsys.readouterr().out
    assert "times are not measured: burn-engine has no compiled core here" in printed
    assert "0.15 MB" in printed
    assert "*" not in printed
    assert main(["info", "--family", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["isa"], found["rounds"]) == (None, 0)
    assert [member["milliseconds"] for member in found["members"]] == [None, None]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_one_line(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*_: Any) -> Iterator[tuple[str, float]]:
        yield MEMBERS[0], 1.0
        signal.raise_signal(number)

    monkeypatch.setattr(family, "interleaved", interrupted)
    assert main(["info", "--family"]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "burn: interrupted; nothing was measured\n")
