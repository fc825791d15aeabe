"""Tests of the builds: CMake alone, for another processor, the sdist, and without a compiler."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import packed
from burn_engine import load

ENGINE = Path(__file__).parents[1]
TOOLCHAIN = ENGINE / "cmake" / "aarch64-linux-gnu.cmake"
EMULATOR = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
HEIGHT, WIDTH = 18, 16


def run(*command, **settings):
    """Run a command that must not fail, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **settings
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout + done.stderr


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"without {program}")


def make(folder, *options):
    """Configure and build with the tests, at -O1; return the folder."""
    optimise = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1")
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    run("cmake", "-S", ENGINE, "-B", folder, "-DBURN_ENGINE_TESTS=ON", *optimise, python, *options)
    printed = run("cmake", "--build", folder)
    assert "warning:" not in printed, printed
    return folder


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    need("cmake", "c++", "cc")
    return make(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    need("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64-static")
    return make(tmp_path_factory.mktemp("arm"), "--toolchain", TOOLCHAIN)


@pytest.fixture(params=["native", pytest.param("arm", marks=pytest.mark.long)])
def build(request):
    """The folder of a build, and the command that runs its programs."""
    return request.getfixturevalue(request.param), EMULATOR if request.param == "arm" else []


CTEST = ("ctest", "--output-on-failure", "--no-tests=error", "--test-dir")


def test_the_tests_in_c_pass(native):
    """Kernels on a tenth of the shapes."""
    printed = run(*CTEST, native, "--exclude-regex", "test_kernels")
    assert "100% tests passed, 0 tests failed out of 3" in printed
    run(native / "test_kernels", "--short")


@pytest.mark.long
def test_the_kernels_in_short_on_arm(arm):
    """What .ci/run has of 64-bit ARM: the wheel of test_wheels.py takes seven times as long."""
    assert run(*EMULATOR, arm / "test_kernels", "--short", "neon").startswith("neon: ")


@pytest.mark.long
def test_the_tests_in_c_pass_on_every_shape(build):
    """An emulator takes a tenth of them."""
    folder, _ = build
    assert "100% tests passed, 0 tests failed out of 4" in run(*CTEST, folder)


def test_only_the_interface_is_exported(native):
    need("nm")
    lines = run("nm", "-D", "--defined-only", native / "libburn_engine.so").splitlines()
    names = {line.split()[-1] for line in lines}
    header = (ENGINE / "include" / "burn_engine.h").read_text()
    assert names == set(re.findall(r"^BURN_API .*?(burn_\w+)\(", header, re.MULTILINE))
    assert len(names) >= 19


CONSUMER = """
cmake_minimum_required(VERSION 3.18)
project(consumer C)
find_package(burn_engine 0.4 REQUIRED)
add_executable(shared classify.c)
target_link_libraries(shared PRIVATE burn_engine::burn_engine)
add_executable(static classify.c)
target_link_libraries(static PRIVATE burn_engine::burn_engine_static)
"""


def test_find_package_finds_what_was_installed(native, tmp_path, photo):
    run("cmake", "--install", native, "--prefix", tmp_path / "installed")
    shutil.copy(ENGINE / "examples" / "classify.c", tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER)
    prefix = f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}"
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", prefix)
    run("cmake", "--build", tmp_path / "build")
    expected = run(native / "classify", *photo)
    for name in ("shared", "static"):
        assert run(tmp_path / "build" / name, *photo) == expected
    assert "libburn_engine.so.0" in run("ldd", tmp_path / "build" / "shared")


@pytest.fixture
def photo(write, tmp_path):
    """The arguments of classify: model, image, height and width."""
    image = tmp_path / "photo.rgb"
    image.write_bytes(packed.random_images(shape=(HEIGHT, WIDTH, 3)).tobytes())
    return [write(num_classes=7), image, HEIGHT, WIDTH]


def test_classify_prints_the_best_classes(build, photo):
    folder, runner = build
    model = load(photo[0], isa="reference")
    scores = model(packed.random_images(shape=(HEIGHT, WIDTH, 3)))
    lines = run(*runner, folder / "classify", *photo).splitlines()
    best = np.argsort(-scores)[:5]
    assert [line[11:] for line in lines] == [model.classes[i] for i in best]
    # Four digits are printed. A sign that rounding turned would change far more.
    np.testing.assert_allclose([float(line[:9]) for line in lines], scores[best], atol=1e-3)


def test_classify_prints_no_name_that_commands_the_terminal(native, photo):
    hidden = "\x80\x85\x9b\x9d\u00ad\u061c\u200b\u200e\u202e\u2029\u2066\u2069\ufeff\U000e0041"
    names = [f"a{c}b" for c in hidden] + ["é ß 猫 🐈 \u0301"]
    network = packed.random_network(num_classes=len(names))
    network.program["classes"] = names
    photo[0].write_bytes(network.to_bytes())
    printed = set()
    for top in range(len(names)):  # only five are printed, so each is the best once
        network.tensors["classifier.bias"][:] = -1e6
        network.tensors["classifier.bias"][top] = 1e6
        photo[0].write_bytes(network.to_bytes())
        printed.add(run(native / "classify", *photo).splitlines()[0].partition("  ")[2].strip())
    assert printed == {"a?b", names[-1]}


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_classify_refuses_scores_that_overflow(native, photo, value):
    network = packed.random_network(num_classes=3)
    network.tensors["classifier.weight"][1] = value
    photo[0].write_bytes(network.to_bytes())
    command = [str(part) for part in (native / "classify", *photo)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"classify: {photo[1]}: the model's output is not finite\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: "none.bnn"}, "none.bnn: No such file or directory"),
        ({0: "."}, ".: Is a directory"),
        ({0: "photo.rgb"}, "header: length is "),
        ({0: "empty"}, "empty: an empty file"),
        ({0: "features.bnn"}, "the model has no classes"),
        ({1: "none.rgb"}, "none.rgb: No such file or directory"),
        ({1: "."}, ".: only 0 bytes, needs height × width × 3 = 864"),
        ({1: "empty"}, "empty: only 0 bytes"),
        ({2: HEIGHT + 1}, "photo.rgb: only 864 bytes, needs height × width × 3 = 912"),
        ({3: WIDTH - 1}, "photo.rgb: more than 810 bytes"),
        ({2: 0}, "HEIGHT and WIDTH are numbers"),
        ({2: -1}, "HEIGHT and WIDTH are numbers"),
        ({3: "16x"}, "HEIGHT and WIDTH are numbers"),
        ({3: ""}, "HEIGHT and WIDTH are numbers"),
        ({3: 10**30}, "HEIGHT and WIDTH are numbers"),
        ({2: 16384, 3: 16384}, "an image of 16384 × 16384 pixels"),
        (None, "give MODEL.bnn IMAGE.rgb [HEIGHT WIDTH]"),
    ],
)
def test_classify_refuses_in_one_line(native, photo, tmp_path, changes, message):
    (tmp_path / "empty").touch()
    (tmp_path / "features.bnn").write_bytes(packed.random_network().to_bytes())
    for index, value in (changes or {}).items():
        photo[index] = value
    arguments = [] if changes is None else [str(value) for value in photo]
    done = subprocess.run(
        [str(native / "classify"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("classify: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def need_backend():
    # Not by find_spec: where it looks for pip, setuptools can no longer be imported, which
    # torch.compile needs in other tests of this process.
    for package in ("nanobind", "scikit-build-core", "pip"):
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"without {package}: a build of the Python package would need the network")


@pytest.fixture
def source(tmp_path):
    """A copy of the engine without its build products."""
    ignore = shutil.ignore_patterns("build", "__pycache__", ".*_cache")
    return shutil.copytree(ENGINE, tmp_path / "source", ignore=ignore)


def test_without_a_compiler_the_reference_is_installed_and_says_so(source, tmp_path, write):
    need_backend()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install"]
    where = ["--no-build-isolation", "--no-deps", "--no-index", "--target", tmp_path / "installed"]
    no_compiler = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    run(*pip, *where, source, env=no_compiler)
    assert not list((tmp_path / "installed" / "burn_engine").glob("_core*.so"))

    code = (
        "import sys, burn_engine, numpy; from burn_engine import cli;"
        "model = burn_engine.load(sys.argv[1]);"
        "assert model(numpy.zeros((9, 9, 3), numpy.uint8)).shape == (4,);"
        "sys.exit(cli.main(['info', sys.argv[1]]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    printed = run(sys.executable, "-W", "always", "-c", code, write(), env=environment)
    message = "burn-engine runs its NumPy reference, which is slow, because the compiled core"
    assert f"RuntimeWarning: {message}" in printed
    assert f"\nburn-engine: {message}" in printed
    assert "runs on   the NumPy reference" in printed


def test_the_sdist_has_all_that_a_build_needs(source, tmp_path):
    need_backend()
    (source / "build").mkdir()
    (source / "build" / "left.o").touch()
    code = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    with tarfile.open(next(tmp_path.glob("burn_engine-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        str(path.relative_to(ENGINE))
        for folder in ("src", "include", "cmake", "examples", "python/burn_engine")
        for path in (ENGINE / folder).iterdir()
        if path.is_file() and path.suffix not in (".so", ".pyc")
    }
    assert expected | {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith("build/") or name.endswith(".o")]
