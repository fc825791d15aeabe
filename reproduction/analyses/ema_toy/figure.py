"""Picture and paragraph of `burn analyze ema-toy` (Figure 5)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from reproduction.analyses.figure import (
    BLUE,
    ORANGE,
    SOFT,
    WIDTH,
    Report,
    Row,
    label_ends,
    listed,
    save,
)


def ema_toy(rows: Sequence[Row]) -> Report:
    """Return the report on the distances of backbone and target.

    Args:
        rows: Rows of `reproduction.analyses.ema_toy.compute`.
    """
    readings: dict[str, list[Row]] = {}
    for row in rows:
        readings.setdefault(str(row["reading"]), []).append(row)
    evaluated = [_Probed(name, course) for name, course in readings.items()]
    return Report(
        title="A target that follows by EMA, float and binarised",
        text=_ema_text(evaluated),
        table=_ema_table(evaluated),
        draw=lambda file: save(_ema_figure, file, evaluated),
    )


class _Probed:
    """One reading of the toy, and which of the paper's three statements hold in it.

    The many runs decide: with ten, the mean of signs that rarely flip depends on chance.

    Args:
        name: Name of the reading.
        course: Its rows, by step.
    """

    def __init__(self, name: str, course: Sequence[Row]) -> None:
        self.name, self.title = name, str(course[0]["title"])
        self.course = course

    def numbers(self, name: str) -> list[float]:
        return [float(row[name]) for row in self.course]

    def ends(self, name: str) -> tuple[float, float]:
        """Return the first and the last step's value."""
        values = self.numbers(name if name == "differing" else f"{name}_many")
        return values[0], values[-1]

    @property
    def larger(self) -> float:
        """The share of the steps at which the binary distance is larger than the float one."""
        return self._share("_many")

    @property
    def wider(self) -> float:
        """The share of the steps at which the binary distance has the larger standard deviation."""
        return self._share("_std_many")

    def _share(self, suffix: str) -> float:
        pairs = zip(self.numbers(f"binary{suffix}"), self.numbers(f"float{suffix}"), strict=True)
        return statistics.mean(binary > real for binary, real in pairs)

    def course_of(self, name: str) -> float:
        """Return the mean over the last quarter of the steps, divided by that over the first."""
        values = self.numbers(f"{name}_many")
        quarter = max(1, len(values) // 4)
        return statistics.mean(values[-quarter:]) / statistics.mean(values[:quarter])

    @property
    def verdicts(self) -> tuple[bool, bool, bool]:
        """Whether the binary distance is larger, has more variance, and does not decrease.

        These are the paper's statements on the binary case.
        """
        return self.larger > 0.9, self.wider > 0.9, self.course_of("binary") >= 1

    @property
    def factor(self) -> float:
        """The binary distance divided by the float distance, each averaged over the steps."""
        binary, real = self.numbers("binary_many"), self.numbers("float_many")
        return statistics.mean(binary) / statistics.mean(real)


_STATEMENTS = ("larger", "of higher variance", "not decreasing")


def _ema_text(evaluated: Sequence[_Probed]) -> str:
    literal = evaluated[0]
    real, binary = literal.ends("float"), literal.ends("binary")
    flipped = literal.ends("differing")
    told = [
        f"Over {literal.course[0]['many']:,} runs: literally, the float distance goes from "
        f"{real[0]:.3g} to {real[1]:.3g} and the binary one from {binary[0]:.3g} to "
        f"{binary[1]:.3g}, as the share of signs that differ goes from {100 * flipped[0]:.0f} to "
        f"{100 * flipped[1]:.0f} %. The paper says that the binary distance is larger, of higher "
        f"variance, and does not decrease: of this {_holding(literal.verdicts)} here."
    ]
    if literal.factor < 1:
        told.append(
            "The two have different units. Between vectors of ±1 the distance is 2·√(signs that "
            "differ), 20 at most; between float vectors it grows with η. So their comparison says "
            "more about η than about binarisation."
        )
    whole = [f"“{reading.title}”" for reading in evaluated if all(reading.verdicts)]
    told.append(
        f"All three hold in {len(whole)} of {len(evaluated)} readings"
        + (f": {listed(whole)}." if whole else ".")
    )
    return " ".join(told)


def _holding(verdicts: Sequence[bool]) -> str:
    """Say in a clause which of the statements hold."""
    yes = [name for name, holds in zip(_STATEMENTS, verdicts, strict=True) if holds]
    if not yes:
        return "nothing holds"
    if len(yes) == len(verdicts):
        return "all three hold"
    return f"“{'” and “'.join(yes)}” hold{'s' if len(yes) == 1 else ''}"


def _ema_table(evaluated: Sequence[_Probed]) -> str:
    steps = f"step 1 → {evaluated[0].course[-1]['step']}"
    lines = [
        f"| reading | float, {steps} | binary, {steps} | binary larger, of the steps | its std "
        "larger | binary, last ÷ first quarter | float, last ÷ first quarter |",
        "|---|" + "---:|" * 6,
    ]
    for reading in evaluated:
        cells = [
            *(
                f"{first:.3g} → {last:.3g}"
                for first, last in map(reading.ends, ("float", "binary"))
            ),
            *(f"{100 * share:.0f} %" for share in (reading.larger, reading.wider)),
            *(f"{reading.course_of(name):.2f}" for name in ("binary", "float")),
        ]
        lines.append(f"| {reading.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ema_figure(evaluated: Sequence[_Probed]) -> Figure:
    columns = 3
    figure, axes = plt.subplots(
        -(-len(evaluated) // columns), columns, figsize=(WIDTH, 4.9), sharex=True
    )
    for panel, reading in zip(axes.flat, evaluated, strict=False):
        steps = [int(row["step"]) for row in reading.course]
        for name, colour in (("float", BLUE), ("binary", ORANGE)):
            mean, std = reading.numbers(name), reading.numbers(f"{name}_std")
            low = [m - s for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
            panel.plot(steps, mean, color=colour, lw=1.6, label=name)
            panel.plot(steps, reading.numbers(f"{name}_many"), "--", color=colour, lw=0.8)
        panel.set_title(reading.title[:1].upper() + reading.title[1:], fontsize=8)
        panel.set_ylim(bottom=0)
        panel.set_xlim(1, steps[-1])
    for panel in axes[-1]:
        panel.set_xlabel("step")
    for panel in axes[:, 0]:
        panel.set_ylabel("L2 distance to the target")
    figure.suptitle(
        "How far a target that follows by EMA (τ = 0.99) is behind its backbone:\n"
        "of float vectors, and of their signs (binary)",
        x=0.01,
        ha="left",
        fontsize=10,
        weight="bold",
    )
    figure.tight_layout(rect=(0, 0.04, 0.95, 1), w_pad=3.8, h_pad=1.5)
    many = evaluated[0].course[0]["many"]
    note = f"line and band: mean ± standard deviation of 10 runs; dashes: mean of {many:,}"
    figure.text(0.01, 0.012, note, fontsize=7.5, color=SOFT)
    for panel in axes.flat:
        label_ends(panel)
    return figure
