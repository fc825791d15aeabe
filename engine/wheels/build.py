"""Build burn-engine's wheels for Linux on x86-64 and 64-bit ARM, on either.

    make wheels PYTHONS="python3.11 python3.12"
    build/wheels/bin/python engine/wheels/build.py --arch aarch64 --out dist

Zig's Clang compiles for both processors and for an old glibc, and links its own C++ library, so
that neither an emulator nor a container is needed. auditwheel finds the oldest Linux that has all
that a wheel asks for and names the wheel after it. A wheel of Python 3.12 is for the stable ABI:
for every later Python too. Python 3.11 needs its own.

The environment of this script has what requirements.txt beside it names, and is where its own
Python's wheel is built, without a network. For another Python, pip fetches the build requirements.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.28"  # NumPy's own wheels need it

# Python's headers describe the Python that runs this script. Those of the two processors differ in
# nothing that a module sees: sizes and byte order are the same on 64-bit Linux.
ASK = """
import json, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:2],
    "platform": sysconfig.get_platform(),
    "include": sysconfig.get_path("include"),
    "multiarch": sysconfig.get_config_var("MULTIARCH"),
    "prefix": sys.prefix,
}))
"""


class Failed(Exception):
    """What went wrong, and what to do."""


def main() -> int:
    """Build the wheels, print their paths, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--python", action="append", metavar="PYTHON",
        help="a Python to build for (default: this one); may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES,
        help="a processor to build for (default: both); may be given several times",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheels")
    args = parser.parse_args()
    try:
        _check_tools()
        pythons = [_described(name) for name in args.python or [sys.executable]]
        if args.out.exists() and not args.out.is_dir():
            raise Failed(f"--out {args.out}: it is not a folder")
        args.out.mkdir(parents=True, exist_ok=True)
        for executable, about in pythons:
            for arch in args.arch or ARCHITECTURES:
                print(_wheel(executable, about, arch, args.out), flush=True)
    except (Failed, OSError) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _check_tools() -> None:
    if sys.platform != "linux":
        raise Failed(f"wheels for Linux are built on Linux, not on {sys.platform}")
    modules = ("auditwheel", "nanobind", "scikit_build_core", "ziglang")
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Failed(f"{', '.join(missing)} missing in {sys.prefix}: use `make wheels`")


def _described(name: str) -> tuple[str, Mapping[str, object]]:
    """Return the path of a Python and what `ASK` asks it."""
    executable = shutil.which(name)
    if executable is None:
        raise Failed(f"--python {name}: no such program")
    done = subprocess.run([executable, "-c", ASK], capture_output=True, text=True, check=False)
    try:
        about = json.loads(done.stdout)
    except ValueError:
        raise Failed(f"--python {name}: it is not a Python that runs") from None
    if about["version"] < [3, 11]:
        raise Failed(f"--python {name}: burn-engine needs Python 3.11 or newer")
    if about["platform"] not in [f"linux-{arch}" for arch in ARCHITECTURES]:
        raise Failed(f"--python {name}: it is for {about['platform']}, not for 64-bit Linux")
    if not (Path(about["include"]) / "Python.h").exists():
        raise Failed(f"--python {name}: without its headers (Debian: apt-get install python3-dev)")
    return executable, about


def _wheel(executable: str, about: Mapping[str, object], arch: str, out: Path) -> Path:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "engine"
        ignored = shutil.ignore_patterns("build", "__pycache__", ".*_cache")
        shutil.copytree(ENGINE, source, ignore=ignored)
        environment = {
            **os.environ,
            "CMAKE_TOOLCHAIN_FILE": str(_toolchain(folder, about, arch)),
            "_PYTHON_HOST_PLATFORM": f"linux-{arch}",  # the platform of the wheel
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        print(f"{Path(executable).name} for {arch}", file=sys.stderr, flush=True)
        # This environment has the build requirements; without isolation pip needs no network.
        own = about["prefix"] == sys.prefix
        command = [
            executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose",
            "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder / "raw"),
            "--config-settings", f"cmake.define.NB_SUFFIX={_suffix(about, arch)}",
            *(["--no-build-isolation"] if own else []),
            str(source),
        ]  # fmt: skip
        printed = _run(command, environment)
        [raw] = (folder / "raw").glob("*.whl")
        if raw.name.endswith("-any.whl"):  # what pyproject.toml makes where compilation fails
            raise Failed(f"the engine was not compiled for {arch}:\n{_end(printed)}")
        command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto"]
        _run([*command, "--wheel-dir", str(folder / "named"), str(raw)], environment)
        [wheel] = (folder / "named").glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def _suffix(about: Mapping[str, object], arch: str) -> str:
    """Return the end of the module's file name, by which Python knows what it is for."""
    if about["version"] == [3, 11]:
        return f".cpython-311-{arch}-linux-gnu.so"
    return ".abi3.so"


def _toolchain(folder: Path, about: Mapping[str, object], arch: str) -> Path:
    """Write programs that compile for a processor, and CMake's file that names them."""
    target = f"{arch}-linux-gnu.{GLIBC}"
    programs = {"cc": f"cc -target {target}", "cxx": f"c++ -target {target}"}
    for name, arguments in {**programs, "ar": "ar", "ranlib": "ranlib"}.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {arguments} "$@"\n')
        program.chmod(0o755)
    # nanobind's headers use stderr and do not include what declares it: GNU's C++ library does.
    flags = ["-include", "stdio.h"]
    if about["multiarch"] and (own := _multiarch(about)).exists():
        # Debian's pyconfig.h includes one of a folder that is named after the processor.
        headers = folder / "headers"
        link = headers / f"{arch}-linux-gnu" / own.parent.name / own.name
        link.parent.mkdir(parents=True)
        link.symlink_to(own)
        flags += ["-isystem", str(headers)]
    file = folder / "toolchain.cmake"
    file.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {arch})\n"
        f'set(CMAKE_C_COMPILER "{folder}/cc")\n'
        f'set(CMAKE_CXX_COMPILER "{folder}/cxx")\n'
        f'set(CMAKE_AR "{folder}/ar" CACHE FILEPATH "")\n'
        f'set(CMAKE_RANLIB "{folder}/ranlib" CACHE FILEPATH "")\n'
        f'set(CMAKE_CXX_FLAGS_INIT "{" ".join(flags)}")\n'
    )
    return file


def _multiarch(about: Mapping[str, object]) -> Path:
    include = Path(str(about["include"]))
    return include.parent / str(about["multiarch"]) / include.name / "pyconfig.h"


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"{' '.join(command)}:\n{_end(done.stdout)}")
    return done.stdout


def _end(printed: str) -> str:
    """Return the lines from the compiler's first error on, or the last ones."""
    lines = printed.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), len(lines) - 20)
    return "\n".join(lines[max(first, 0) :][:20])


if __name__ == "__main__":
    sys.exit(main())
