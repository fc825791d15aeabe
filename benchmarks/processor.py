"""What the benchmarks say of the machine."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Its processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = (line for line in lines if line.startswith("model name"))
        return next(named).split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
