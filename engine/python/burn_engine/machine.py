"""What a measurement depends on: board, processor, clock, memory, system and versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

import burn_engine

ROOT = Path("/")


class Machine(NamedTuple):
    """A machine, as far as its system tells.

    Attributes:
        board: The board's name ("Raspberry Pi 5 Model B Rev 1.0"), or None.
        processor: The processor's name.
        cores: Number of cores that this process may use.
        megahertz: The highest clock rate, or None.
        system: Name of the operating system, and the architecture of this process.
        versions: burn-engine's version, Python's and NumPy's.
    """

    board: str | None
    processor: str
    cores: int
    megahertz: int | None
    system: str
    versions: str


def describe(root: Path = ROOT) -> Machine:
    """Describe this machine.

    Args:
        root: Folder with the system's files, other than / in tests.
    """
    clock = _text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    release = dict(
        line.split("=", 1) for line in _text(root / "etc/os-release").splitlines() if "=" in line
    )
    system = release.get("PRETTY_NAME", platform.system()).strip("\"'")
    return Machine(
        board=_text(root / "proc/device-tree/model") or None,
        processor=_processor(),
        cores=_cores(),
        megahertz=int(clock) // 1000 if clock.isdecimal() else None,
        system=f"{system}, {platform.machine()}",
        versions=f"burn-engine {burn_engine.__version__}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}",
    )


def celsius(root: Path = ROOT) -> float | None:
    """Return the highest temperature that the machine reports, in °C, or None."""
    zones = (root / "sys/class/thermal").glob("thermal_zone*/temp")
    temperatures = [
        int(text) / 1000 for zone in zones if (text := _text(zone)).lstrip("-").isdecimal()
    ]
    return max(temperatures, default=None)


def slowed(root: Path = ROOT) -> bool | None:
    """Return whether a Raspberry Pi lowered its clock since it started, or None elsewhere.

    It does so when it is hot or its power supply is too weak.
    """
    text = _text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    try:
        return int(text, 16) != 0
    except ValueError:
        return None


def _processor() -> str:
    # Linux on ARM has no name in /proc/cpuinfo: lscpu knows the numbers that stand there.
    try:
        done = subprocess.run(["lscpu", "-J"], capture_output=True, timeout=10, check=True)
        fields = {line["field"]: line["data"] for line in json.loads(done.stdout)["lscpu"]}
        return str(fields["Model name:"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip(" \n\0")
    except OSError:
        return ""
