"""The engine's times: order, what is said of each machine, and what was not timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.documents.engine_figure import engine, engine_figure


def row(network: str, runtime: str, milliseconds: float, isa: str = "", **more: Any):
    about = {"network": network, "runtime": runtime, "isa": isa, "size": 224, "batch": 1}
    return {**about, "threads": 1, "milliseconds": milliseconds, **more}


FAST = {
    "name": "Fast", "source": "timed", "ratios": {"ort_fp32_same_network": 21.2},
    "rows": [
        row("ReActNet-A", "ONNX Runtime", 106.0), row("MobileNetV2", "ONNX Runtime", 7.5),
        row("ReActNet-A", "burn-engine", 10.1, "avx2"),
        row("ReActNet-A", "burn-engine", 5.0, "avx512-vpopcnt"),
        row("ReActNet-A", "burn-engine", 2.7, "avx512-vpopcnt", threads=2),
        row("half-width ReActNet-A", "burn-engine", 0.4, "avx2", size=96),
        row("half-width ReActNet-A", "burn-engine", 0.3, "avx512-vpopcnt", size=96),
        row("half-width ReActNet-A", "burn-engine", 0.5, "avx512-vpopcnt", size=128),
    ],
}  # fmt: skip
SLOW = {
    "name": "Slow", "source": "reported", "ratios": {"ort_fp32_mobilenetv2": 0.5},
    "rows": [
        row("ReActNet-A", "burn-engine", 13.1, "avx2"),
        row("MobileNetV2", "ONNX Runtime", 6.55, from_ratio=True),
    ],
}  # fmt: skip


def test_who_is_faster_is_said_of_each_machine():
    found = engine([FAST, SLOW])
    assert found.text == (
        "On Fast, with AVX-512 VPOPCNTDQ, burn-engine is 1.5 times as fast as MobileNetV2 in float "
        "and 21.2 times as fast as ONNX Runtime with the same network in float (timed). On Slow, "
        "with AVX2, MobileNetV2 in float is 2 times as fast as burn-engine (reported)."
    )
    assert "Slow: ReActNet-A in burn-engine (AVX2) 13.1, MobileNetV2 in ONNX Runtime ≈ 7" in (
        found.title
    )


def test_tables_are_sorted_and_tell_what_was_not_timed():
    fast, small, slow = engine([FAST, SLOW]).table.split("\n\n")
    assert fast.splitlines() == [
        "| Fast, milliseconds an image | 1 thread | 2 threads |",
        "| --- | ---: | ---: |",
        "| **ReActNet-A, 1 bit: burn-engine, AVX-512 VPOPCNTDQ** | **5.00** | **2.70** |",
        "| MobileNetV2, float: ONNX Runtime | 7.50 |  |",
        "| ReActNet-A, 1 bit: burn-engine, AVX2 | 10.1 |  |",
        "| ReActNet-A, float: ONNX Runtime | 106 |  |",
    ]
    assert small.splitlines()[2:] == [
        "| half-width ReActNet-A, 1 bit: burn-engine, AVX-512 VPOPCNTDQ | 0.30 | 0.50 |",
        "| half-width ReActNet-A, 1 bit: burn-engine, AVX2 | 0.40 |  |",
    ]
    assert slow.splitlines()[2] == "| MobileNetV2, float: ONNX Runtime | ≈ 7 |"


def test_the_picture_has_every_machine_sorted_on_one_scale(tmp_path: Path):
    figure = engine_figure([FAST, SLOW])
    assert len(figure.axes) == 2
    assert len({panel.get_xlim() for panel in figure.axes}) == 1
    for panel, machine in zip(figure.axes, (FAST, SLOW), strict=True):
        lengths = [bar.get_width() for bar in panel.patches]  # type: ignore[attr-defined]
        assert lengths == sorted(lengths)
        (title,) = (t.get_text() for t in panel.texts if t.get_text().startswith(machine["name"]))
        assert "AVX" in title
    for name in ("short", "a very long name of a machine with a processor of two names"):
        named = engine_figure([{**FAST, "name": name}])
        (title,) = (t for t in named.axes[0].texts if t.get_text().startswith(name))
        assert title.get_window_extent().x1 <= named.get_window_extent().x1
    hatched = [bar.get_hatch() for bar in figure.axes[1].patches]
    assert hatched == ["////", None]
    engine([FAST, SLOW]).draw(tmp_path / "engine.svg")
    first = (tmp_path / "engine.svg").read_bytes()
    engine([FAST, SLOW]).draw(tmp_path / "engine.svg")
    assert (tmp_path / "engine.svg").read_bytes() == first
