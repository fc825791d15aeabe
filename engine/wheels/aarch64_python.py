"""Prepare Debian's Python for 64-bit ARM, which qemu-aarch64 runs on any processor.

    python engine/wheels/aarch64_python.py build/aarch64

The packages are unpacked into FOLDER/root and nothing of this machine changes. FOLDER/packages gets
NumPy's wheel for that Python, and pip. Needs Debian or Ubuntu with apt-get, and a network.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
PYPI = ("numpy", "pip")


class Failed(Exception):
    """What went wrong, and what to do."""


def main() -> int:
    """Prepare the folder and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where it is put; what is there is replaced")
    folder = parser.parse_args().folder.resolve()
    try:
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise Failed(f"{program} is missing: this needs Debian or Ubuntu")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            _prepare(Path(name))
            for part in ("root", "packages"):
                shutil.rmtree(folder / part, ignore_errors=True)
                (Path(name) / part).rename(folder / part)
    except (Failed, OSError) as error:
        print(f"aarch64_python: {error}", file=sys.stderr)
        return 2
    return 0


def _prepare(folder: Path) -> None:
    _unpack_debian(folder)
    version = json.loads((folder / "version.json").read_text())
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary=:all:", "--dest", str(folder / "packages"),
        "--implementation", "cp", "--python-version", version,
    ]  # fmt: skip
    for glibc in ("2_28", "2_27", "2_17"):
        command += ["--platform", f"manylinux_{glibc}_aarch64"]
    _run(*command, *PYPI)


def _unpack_debian(folder: Path) -> None:
    """Let apt find and fetch the packages for a machine of its own, which has none installed."""
    state, cache, root = (folder / name for name in ("state", "cache", "root"))
    for part in (state / "lists" / "partial", cache / "archives" / "partial", root):
        part.mkdir(parents=True)
    status = state / "status"
    status.touch()
    settings = (
        f"Dir::State={state}", f"Dir::State::status={status}", f"Dir::Cache={cache}",
        "APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User=root",
        "Debug::NoLocking=1",
    )  # fmt: skip
    apt = ["apt-get", "--quiet", *(f"--option={setting}" for setting in settings)]
    _run(*apt, "update")
    install = ("install", "--yes", "--no-install-recommends", "--download-only")
    _run(*apt, *install, *DEBIAN)
    for package in (cache / "archives").glob("*.deb"):
        _run("dpkg-deb", "--extract", str(package), str(root))
    python = (root / "usr" / "bin" / "python3").readlink()  # python3.11, for instance
    (folder / "version.json").write_text(json.dumps(python.name.removeprefix("python")))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise Failed(f"{' '.join(command[:3])} …: {lines[-1]}")


if __name__ == "__main__":
    sys.exit(main())
