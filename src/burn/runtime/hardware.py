"""Facts about the machine and burn behind a measurement: processor, cores, memory, commit."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path


def _told(name: str) -> str:
    """Return what Linux tells of the processor by this name, or ""."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except (OSError, ValueError):
        return ""
    found = re.search(rf"^{name}[ \t]*:[ \t]*(.*)", text, re.MULTILINE)
    return found[1].strip() if found else ""


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    return _told("model name") or platform.processor() or platform.machine()


def is_intel() -> bool:
    """Return whether the processor is one of Intel's, as far as the system tells it."""
    vendor = _told("vendor_id")
    return vendor == "GenuineIntel" if vendor else "Intel" in processor()


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Return the bytes of memory that this process may use: the machine's, or a lower limit.

    It is None where the system does not tell it (Windows).
    """
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        return None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # a container's limit
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    with contextlib.suppress(ImportError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    return min(limit for limit in limits if limit > 0)  # -1: no limit


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory: now on Linux, the peak elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError, IndexError):
        return peak_bytes()


def peak_bytes() -> int:
    """Return the most bytes of this process that were in memory; 0 if not told (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def source_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """Return the short hash of the commit that burn runs from, with "+" if src/ differs from it.

    It is None where git does not answer, or the package's folder is not in a git checkout of its
    own: an installed wheel may lie in that of another project.
    """
    root = package.parent.parent
    # GIT_ variables that a hook or a shell set for another repository do not apply to this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root)]
    command += ["status", "--porcelain=v2", "--branch", "--", "src"]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        named = project["project"]["name"] == "burn-ssl" and package == root / "src" / "burn"
        if not named or not (root / ".git").exists():
            return None
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=0.9, check=True
        )
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.splitlines()
    commits = [line.split()[2] for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits[0] == "(initial)":
        return None
    changed = any(not line.startswith("#") for line in lines)
    return commits[0][:7] + ("+" if changed else "")
