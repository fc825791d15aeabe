"""The wheels of `make wheels`, installed into environments that have nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import burn_engine
import packed
from burn_engine import load
from scenes import scene

ENGINE = Path(__file__).parents[1]
TOOLS = ENGINE.parent / "build" / "wheels"
ARM = ENGINE.parent / "build" / "aarch64"
EMULATOR = ("qemu-aarch64-static", "-L", ARM / "root", ARM / "root" / "usr" / "bin" / "python3")

# What is run where a wheel is installed: each network by each instruction set.
RUN = """
import sys, burn_engine, numpy
found = {}
images = numpy.load(sys.argv[1])
for path in sys.argv[3:]:
    for isa in burn_engine.isas():
        found[f"{isa} {path}"] = burn_engine.load(path, isa=isa)(images)
numpy.savez(sys.argv[2], **found)
"""


def run(*command, **settings):
    """Run a command that must not fail, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **settings
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def build(arch, out):
    if not (TOOLS / "ready").exists():
        pytest.skip("without compilers: make build/wheels/ready")
    script = ENGINE / "wheels" / "build.py"
    path = run(TOOLS / "bin" / "python", script, "--arch", arch, "--out", out)
    return Path(path.strip())


@pytest.fixture
def networks(tmp_path):
    """Files of all kinds of layers, and images for them."""
    paths = []
    for name, settings in packed.NETWORKS.items():
        path = tmp_path / f"{name}.bnn"
        path.write_bytes(packed.random_network(**settings).to_bytes())
        paths.append(path)
    images = packed.random_images(shape=(2, 18, 16, 3))
    np.save(tmp_path / "images.npy", images)
    return paths, images


def check(python, networks, tmp_path, isas, **settings):
    """Compare every instruction set of an installed wheel with the reference of this Python."""
    paths, images = networks
    out = tmp_path / "out.npz"
    run(*python, "-W", "error", "-c", RUN, tmp_path / "images.npy", out, *paths, **settings)
    found = np.load(out)
    assert {name.split()[0] for name in found} == isas
    for path in paths:
        expected = load(path, isa="reference")(images)
        for isa in isas:
            np.testing.assert_allclose(found[f"{isa} {path}"], expected, rtol=1e-4, atol=1e-4)
    command = "import sys; from burn_engine.cli import main; sys.exit(main())"
    printed = run(*python, "-c", command, "info", paths[0], **settings)
    assert "runs on" in printed
    check_tasks(python, tmp_path, **settings)


def check_tasks(python, folder, **settings):
    """Index, search, find copies, group and teach by the commands, with NumPy alone."""
    code = "import sys; from burn_engine_start import main; sys.exit(main())"

    def command(*arguments):
        return run(*python, "-c", code, *arguments, cwd=folder, **settings)

    for seed in range(12):
        write_ppm(folder / "labelled" / "ab"[seed % 2] / f"{seed}.ppm", scene(seed))
    write_ppm(folder / "labelled" / "a" / "copy.ppm", scene(0, 40, 40))
    assert command("index", "labelled", "p.index").startswith("p.index: 13 images (13 new), ")
    found = command("search", "p.index", "labelled/a/0.ppm", "--k", 2).splitlines()
    assert [line.split()[-1] for line in found] == ["labelled/a/0.ppm", "labelled/a/copy.ppm"]
    copies = command("duplicates", "labelled").splitlines()
    assert [line.split()[-1] for line in copies[1:3]] == ["labelled/a/0.ppm", "labelled/a/copy.ppm"]
    assert command("cluster", "p.index", "--k", 2).count(" images:\n") == 2
    assert command("learn", "labelled", "mine.bnn").startswith("13 images of 2 classes:\n")
    assert command("run", "mine.bnn", "labelled/a/0.ppm").startswith("labelled/a/0.ppm:\n")


def write_ppm(path, pixels):
    height, width, _ = pixels.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"P6 {width} {height} 255\n".encode() + pixels.tobytes())


@pytest.mark.long  # two minutes of a processor
def test_on_64_bit_arm(networks, tmp_path):
    """In an emulator, by an ARM Python's own pip."""
    if not (ARM / "ready").exists():
        pytest.skip("without a Python for ARM: make build/aarch64/ready")
    version = json.loads(run(*EMULATOR, "-c", "import sys; print([*sys.version_info[:2]])"))
    if min(version, [3, 12]) != min([*sys.version_info[:2]], [3, 12]):
        pytest.skip(f"the Python for ARM is {version}, which this one builds no wheel for")
    wheel = build("aarch64", tmp_path)
    assert wheel.name.endswith("_aarch64.whl")
    [pip] = (ARM / "packages").glob("pip-*.whl")
    target = tmp_path / "installed"
    install = ("install", "--no-index", "--no-compile", "--target", target)
    run(*EMULATOR, pip / "pip", *install, "--find-links", ARM / "packages", wheel)
    names = {path.name.partition("-")[0].partition(".")[0] for path in target.iterdir()}
    assert names == {"bin", "burn_engine", "burn_engine_start", "numpy"}
    settings = {"env": {**os.environ, "PYTHONPATH": str(target)}}
    check(EMULATOR, networks, tmp_path, {"neon", "portable", "reference"}, **settings)


@pytest.mark.long
def test_on_x86_64(networks, tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("not on x86-64")
    wheel = build("x86_64", tmp_path)
    assert wheel.name.endswith("_x86_64.whl")
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--no-index")
    run(*pip, "--find-links", TOOLS / "packages", wheel)
    code = "import json, burn_engine; print(json.dumps(burn_engine.isas()))"
    isas = {*json.loads(run(python, "-c", code))}
    assert isas == {*burn_engine.isas()}  # as where it was compiled for this Python alone
    check([python], networks, tmp_path, isas)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--python", "no-such-python"), "--python no-such-python: no such program"),
        (("--python", "true"), "--python true: it is not a Python that runs"),
        (("--out", "/dev/null"), "--out /dev/null: it is not a folder"),
        (("--out", "/dev/null/x"), "Not a directory"),
    ],
)
def test_what_cannot_be_built_is_one_line(arguments, message):
    if not (TOOLS / "ready").exists():
        pytest.skip("without compilers: make build/wheels/ready")
    command = [str(TOOLS / "bin" / "python"), str(ENGINE / "wheels" / "build.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("wheels: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_tools_it_says_what_to_do():
    """With this Python alone, which has no Zig."""
    script = ENGINE / "wheels" / "build.py"
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("use `make wheels`\n")
