"""On what a number was measured: processor, cores, memory, and which burn."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path


def processor() -> str:
    """Its processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = (line for line in lines if line.startswith("model name"))
        return next(named).split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Bytes of memory that this process may use: the machine's, or a lower limit set for it.

    None where the system does not tell (Windows).
    """
    limits: list[int] = []
    try:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        try:
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):
            continue
    try:
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    except ImportError:
        pass
    return min(limit for limit in limits if limit > 0)  # -1: no limit


def resident_bytes() -> int:
    """Memory of this process that is not swapped out: now on Linux, its peak so far elsewhere.

    0 where the system does not tell (Windows).
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def source_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The short hash of the commit that burn runs from, with "+" if src/ differs from it.

    None where the package does not lie in a git checkout of its own, as an installed wheel, which
    may lie in somebody else's; and where git does not answer.
    """
    root = package.parent.parent
    # What a hook or a shell says of another repository is not meant for this one.
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
    found = [line.split()[2] for line in lines if line.startswith("# branch.oid ")]
    if not found or found[0] == "(initial)":
        return None
    changed = any(not line.startswith("#") for line in lines)
    return found[0][:7] + ("+" if changed else "")
