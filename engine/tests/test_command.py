"""Tests of the command: its output and its errors."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import burn_engine
import packed
from burn_engine import cli, load


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    """Run the reference without its warning."""
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.ppm"
    pixels = packed.random_images(shape=(20, 24, 3))
    path.write_bytes(b"P6 24 20 255\n" + pixels.tobytes())
    return path


@pytest.fixture
def run(capsys):
    """A function that runs a command line, which must not fail or warn, and returns its output."""

    def run(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert captured.err == ""
        assert status == 0
        return captured.out

    return run


def test_ctrl_c_while_numpy_is_imported_is_one_line(tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    code = "import sys; from burn_engine_start import main; sys.exit(main())"
    paths = [str(tmp_path), str(Path(burn_engine.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "burn-engine: interrupted\n")


def test_learn_has_one_thread_for_matrices_unless_told_otherwise(tmp_path):
    (tmp_path / "numpy.py").write_text(
        "import os; print(os.environ.get('OPENBLAS_NUM_THREADS')); raise KeyboardInterrupt"
    )
    code = "import sys; from burn_engine_start import main; sys.exit(main())"
    paths = [str(tmp_path), str(Path(burn_engine.__file__).parents[1])]
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    for command, more, expected in (
        ("learn", {}, "1"), ("run", {}, "None"), ("learn", {"OPENBLAS_NUM_THREADS": "2"}, "2"),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, command],
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == f"{expected}\n"


@pytest.fixture
def fails(capsys):
    """A function that runs a command line that fails, and returns its one line of error."""

    def fails(*arguments):
        assert cli.main([str(argument) for argument in arguments]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("burn-engine: ")
        assert captured.err.count("\n") == 1
        assert captured.err[:-1].isprintable()
        return captured.err

    return fails


def test_run_prints_the_best_classes(run, write, photo):
    model = write(num_classes=6)
    lines = run("run", model, photo, "--top", 3).splitlines()
    pixels = packed.random_images(shape=(20, 24, 3))[2:18, 4:20]
    scores = load(model)(pixels).astype(float)
    probabilities = np.exp(scores) / np.exp(scores).sum()
    order = np.argsort(-probabilities)[:3]
    assert lines[0] == f"{photo}:"
    assert lines[1:] == [f"  {probabilities[i]:7.2%}  class {i}" for i in order]
    assert len(run("run", model, photo, photo).splitlines()) == 12
    assert len(run("run", model, photo, "--top", 100).splitlines()) == 7


def test_run_prints_json(run, write, photo):
    lines = run("run", write(num_classes=6), photo, photo, "--json", "--top", 6).splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["image"] for one in found] == [str(photo)] * 2
    probabilities = [one["probability"] for one in found[0]["classes"]]
    assert sum(probabilities) == pytest.approx(1)
    assert probabilities == sorted(probabilities, reverse=True)


def test_run_writes_features(run, write, photo, tmp_path):
    model = write(num_classes=0)
    assert f"{photo}: 16 features, norm " in run("run", model, photo)
    assert "--features FILE.npy writes them" in run("run", model, photo)
    out = tmp_path / "out.npy"
    assert "--features" not in run("run", model, photo, photo, "--features", out)
    features = np.load(out)
    assert features.shape == (2, 16)
    pixels = packed.random_images(shape=(20, 24, 3))[2:18, 4:20]
    np.testing.assert_array_equal(features[0], load(model)(pixels))
    found = json.loads(run("run", model, photo, "--json"))
    assert found["features"] == 16
    assert found["norm"] == pytest.approx(np.linalg.norm(features[0]), rel=1e-5)
    both = run("run", write(num_classes=3), photo, "--features", out)
    assert "class 0" in both
    assert np.load(out).shape == (1, 16)


def test_run_takes_finished_arrays(run, write, tmp_path):
    pixels = packed.random_images(shape=(9, 7, 3))
    np.save(tmp_path / "a.npy", pixels)
    model = write(num_classes=0)
    run("run", model, tmp_path / "a.npy", "--features", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy")[0], load(model)(pixels))


def test_info(run, write):
    path = write("odd")
    text = run("info", path)
    lines = text.splitlines()
    assert lines[0].split() == ["layer", "kind", "channels", "bytes"]
    assert lines[1].split() == ["stem", "convolution", "5", "2,972"]
    assert lines[2].split() == ["block0", "binary_convolution", "13", "293"]
    assert "classes   3: class 0, class 1, class 2" in text
    assert "short side resized to 20 pixels, centre 16 × 16 cut out" in text
    assert 'origin    {"recipe": "test"}' in text
    assert "runs on   the NumPy reference (there are " in text
    facts = json.loads(run("info", path, "--json"))
    assert facts["file_bytes"] == path.stat().st_size
    assert facts["bits"] == 13 * 9 * 5 + 13 * 9 * 13 + 39 * 13 + 7 * 9 * 39
    built = packed.random_network(**packed.NETWORKS["odd"])
    floats = sum(a.size for a in built.tensors.values() if a.dtype == np.float32)
    assert facts["floats"] == floats
    assert [layer["name"] for layer in facts["layers"]][:2] == ["stem", "block0"]
    assert (facts["backend"], facts["isa"]) == ("reference", "")
    assert facts["isas"][-1] == "reference"
    wide = run("info", write("wide"))
    assert "classes   none" in wide
    origin = {
        "sha256": "0" * 64,
        "learned": {"towards": "x" * 81, "images": [1] * 21, "n": 2, "k" * 81: 3},
    }
    network = packed.random_network()
    network.program["origin"] = origin
    path = write(network)
    shortened = {"towards": "x" * 16 + "…", "images": [1] * 20 + ["…"], "n": 2, "k" * 16 + "…": 3}
    text = run("info", path).split("origin    ")[1].splitlines()[0]
    assert json.loads(text) == origin | {"learned": shortened}
    assert json.loads(run("info", path, "--json"))["origin"] == origin
    assert "image     any size" in wide


def test_bench(run, write):
    path = write()
    assert "16 × 16 pixels" in run("bench", path, "--seconds", 0)  # the size that the model expects
    text = run("bench", path, "--size", 8, "--seconds", 0)
    assert "ms per image (median of 3 runs; p10 " in text
    assert "8 × 8 pixels, batch 1, threads 1, NumPy reference" in text
    facts = json.loads(
        run(
            "bench",
            path,
            "--size",
            8,
            "--batch",
            2,
            "--seconds",
            0.01,
            "--json",
            "--isa",
            "reference",
        )
    )
    assert facts["p10_ms"] <= facts["median_ms"] <= facts["p90_ms"]
    assert (facts["size"], facts["batch"], facts["threads"]) == (8, 2, 1)


def test_bench_report(run, write):
    path = write()
    lines = run("bench", path, "--size", 8, "--seconds", 0, "--report").splitlines()
    assert f"burn-engine {burn_engine.__version__}, Python " in lines[0]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert lines[2] == f"model.bnn: {path.stat().st_size:,} bytes, SHA-256 {digest[:12]}…"
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    cores = str(len(os.sched_getaffinity(0)))
    assert [row[1:4] for row in rows] == [
        ["8", threads, batch] for threads in dict.fromkeys(("1", cores)) for batch in ("1", "8")
    ]
    assert all(float(row[5]) <= float(row[4]) <= float(row[6]) for row in rows)


def test_help_and_version(run):
    assert run("--version") == f"burn-engine {burn_engine.__version__}\n"
    assert "burn-engine run model.bnn photo.jpg" in run("--help")
    for command in ("run", "info", "bench"):
        assert "MODEL" in run(command, "--help")


def test_the_reference_without_being_asked_says_so(monkeypatch, capsys, write):
    monkeypatch.delenv("BURN_ENGINE_ISA")
    monkeypatch.setitem(sys.modules, "burn_engine._core", None)
    assert cli.main(["info", str(write())]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "burn-engine: burn-engine runs its NumPy reference, which is slow"
    )
    assert captured.err.count("\n") == 1
    assert "runs on   the NumPy reference (there are reference)" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a command: run, info, bench, index, search, cluster, duplicates, "),
        (["--fly"], "unknown option --fly (see burn-engine --help)"),
        (["fly"], "unknown command 'fly' (see burn-engine --help)"),
        (["train", "a"], "unknown command 'train': did you mean burn train?"),
        (["runn"], "unknown command 'runn': did you mean run? (see burn-engine --help)"),
        (
            ["run", "photos/"],
            "give IMAGE, as in: burn-engine run MODEL IMAGE (see burn-engine run --help)",
        ),
        (
            ["learn"],
            "give FOLDER, OUT, as in: burn-engine learn FOLDER OUT (see burn-engine learn --help)",
        ),
        (
            ["run", "model.bnn", "a", "--top", "0"],
            "argument --top: '0' is not a whole number from 1",
        ),
        (
            ["run", "model.bnn", "a", "--top", "x"],
            "argument --top: 'x' is not a whole number from 1",
        ),
        (["bench", "model.bnn", "--seconds", "nan"], "'nan' is not a number from 0 to 86400"),
        (["bench", "model.bnn", "--report", "--size", "20000"], "images of 20000 × 20000 pixels"),
        (["bench", "model.bnn", "--report", "--json"], "--report does not go with --batch, "),
        (["bench", "model.bnn", "--report", "--batch", "2"], "--report does not go with --batch, "),
        (["bench", "model.bnn", "--more"], "unknown option --more (see burn-engine bench --help)"),
        (["info", "model.bnn", "--jsn=1"], "--jsn: did you mean --json? (see burn-engine info"),
        (
            ["info", "model.bnn", "--html", "a"],
            "unknown option --html (see burn-engine info",
        ),
        (["info", "model.bnn", "b.bnn"], "unexpected argument 'b.bnn' (see burn-engine info"),
        (["info", "none.bnn"], "none.bnn: No such file or directory"),
        (["info", "."], ".: not a regular file but a folder"),
        (["run", "photos/", "photo.ppm"], "but a folder; did you mean the network photos?"),
        (
            ["run", "model.bnn", "photo.ppm", "a.npy"],
            "a.npy: no such file; --features a.npy ",
        ),
        (
            ["search", "a.index", "photo.ppm", "a.html"],
            "a.html: no such file; --html a.html ",
        ),
        (["run", "photo.ppm", "model.bnn"], "photo.ppm: not a packed network but a PPM image"),
        (["bench", "model.bnn", "--isa", "sse9"], "isa 'sse9' is not available; choose from "),
        (["bench", "model.bnn", "--threads", "0"], "threads 0 is not an integer from 1 to 256"),
        (["bench", "model.bnn", "--size", "20000"], "images of 20000 × 20000 pixels; expected"),
        (["run", "model.bnn", "none.png"], "none.png: No such file or directory"),
        (["run", "model.bnn", "model.bnn"], "or TIFF but a packed network"),
        (["run", "model.bnn", "photo.ppm", "photso"], "photso: No such file or directory"),
        (["run", "model.bnn", "photo.ppm", "--features", "no/out.npy"], "there is no such folder"),
        (["run", "model.bnn", "photo.ppm", "--features", "."], "'.' is not a file name"),
        (["run", "model.bnn", "photo.ppm", "--features", ""], "'' is not a file name"),
        (["run", "model.bnn", "photo.ppm", "--features", "pipe"], "pipe is not a regular file"),
        (["run", "model.bnn", "photo.ppm", "--features", "photo.ppm"], "does not end in .npy"),
        (["run", "model.bnn", "photo.ppm", "--features", "./model.bnn"], "does not end in .npy"),
        (["run", "model.bnn", "large.npy"], "large.npy: not an array of numbers as numpy.save "),
        (["run", "model.bnn", "larger.npy"], "larger.npy: not an array of numbers as numpy.save "),
        (["run", "model.bnn", "truth.npy"], "truth.npy: not an array of numbers as numpy.save "),
        (["run", "broken.bnn", "photo.ppm"], "broken.bnn: 3 bytes long: too short"),
        (["info", "bro\x1b[31m\nken"], "bro\\x1b[31m ken: No such file"),
        (["info", "not\udcff\x9butf8"], "not\\udcff\\x9butf8: No such file"),
        (["run", "model.bnn", "two  spaces"], "two  spaces: No such file"),
        (["run", "model.bnn", " "], "' ': No such file"),
        (["run", "model.bnn", "a", "--readers", "0"], "'0' is not a whole number from 1 to 256"),
        (["run", "model.bnn", "a", "--top", "\u0663"], "is not a whole number from 1"),
    ],
)
def test_errors_are_one_line(fails, write, photo, monkeypatch, arguments, message):
    monkeypatch.chdir(write().parent)
    (photo.parent / "broken.bnn").write_bytes(b"abc")
    os.mkfifo(photo.parent / "pipe")
    (photo.parent / "photos").mkdir()
    largest = 2**63 - 1
    shapes = {"large": (largest, largest, 3), "larger": (10**30, 4, 3), "truth": (True, 8, 3)}
    for name, shape in shapes.items():
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        (photo.parent / f"{name}.npy").write_bytes(start + header + bytes(192))
    before = photo.read_bytes()
    assert message in fails(*arguments)
    assert photo.read_bytes() == before


def test_features_are_written_whole_or_not_at_all(fails, write, photo, monkeypatch):
    old = photo.parent / "features.npy"
    old.write_bytes(b"old")

    def full(file, header):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    words = fails("run", write(), photo, "--features", old)
    assert "features.npy cannot be written: No space left on device" in words
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in photo.parent.iterdir() if "writing" in p.name) == []


def test_names_cannot_command_the_terminal(run, write, photo):
    network = packed.random_network(num_classes=2)
    network.program["classes"] = ["\x9d0;owned\x9ccat\u202e", "a\u2028b"]
    network.program["origin"] = {"\x1b[2J": "\x9b2J"}
    path = write(network)
    for text in (run("run", path, photo), run("info", path)):
        assert all(line.isprintable() for line in text.splitlines())
        assert r"\x9d0;owned\x9ccat\u202e" in text
        assert r"a\u2028b" in text


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_infinite_scores(fails, write, photo, isa, monkeypatch, value):
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    network = packed.random_network(num_classes=2)
    network.tensors["classifier.weight"][1] = value
    path = write(network)
    for options in ([], ["--json"], ["--features", photo.with_name("out.npy")]):
        assert "the model's output is not finite" in fails("run", path, photo, *options)
    assert not photo.with_name("out.npy").exists()


def command(*arguments):
    # SIGINT is ignored in the background of a script, SIGHUP under nohup; processes inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    heed += "; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    code = f"{heed}; import sys; from burn_engine.cli import main; sys.exit(main())"
    return [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(burn_engine.__file__).parents[1])}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_errors_that_cannot_be_printed_stop_nothing(write, photo):
    """The status is that of the error, and the images that can be read are finished."""
    out = photo.with_name("out.npy")
    for arguments, lines in (
        (["info", "none.bnn"], 0),
        (["run", write(), "none.png", photo, "--features", out], 1),
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command(*arguments),
                check=False,
                stdout=subprocess.PIPE,
                stderr=full,
                env=environment(),
            )
        assert done.returncode == 2
        assert done.stdout.count(b"\n") >= lines
    assert np.load(out).shape[0] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written(write):
    model, unbuffered = write(), {"PYTHONUNBUFFERED": "1"}
    for more in ({}, unbuffered):
        for arguments in (["--help"], ["--version"], ["info", model]):
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    command(*arguments),
                    check=False,
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment() | more,
                )
            assert done.returncode == 2
            assert done.stderr == "burn-engine: standard output: No space left on device\n"


def test_standard_input_that_cannot_be_read(write, tmp_path):
    with open(tmp_path / "written", "w") as file:  # not open for reading
        done = subprocess.run(
            command("run", write(), "-"),
            check=False,
            stdin=file,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr == "burn-engine: -: standard input cannot be read: Bad file descriptor\n"


def reader_leaves(*arguments):
    """Run a command whose reader has closed its output: no error, nothing printed."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_features_are_written_though_the_reader_leaves(write, photo):
    out = photo.with_name("out.npy")
    reader_leaves("run", write(), *[photo] * 4, "--json", "--features", out)
    assert np.load(out).shape[0] == 4


def test_a_reader_that_leaves_is_no_error(write):
    reader_leaves("info", write("odd"))


def test_ctrl_c(write):
    process = subprocess.Popen(
        command("bench", write(), "--size", 8, "--seconds", 60),
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == "burn-engine: interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGTERM, 143, "burn-engine: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "burn-engine: ended by SIGHUP\n"),
        (signal.SIGINT, 130, "burn-engine: interrupted\n"),
    ],
)
def test_a_signal_leaves_no_unfinished_file(number: int, status: int, words: str, write, photo):
    out = photo.with_name("out.npy")
    process = subprocess.Popen(
        command("run", write(), "-", "--features", out),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(f"{photo}\n" * 3)
    process.stdin.flush()  # and more may come: the command waits
    deadline = time.monotonic() + 60
    while not list(photo.parent.glob(".writing.*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    try:
        assert process.wait(timeout=60) == status
        assert process.stderr is not None
        assert process.stderr.read() == words
    finally:
        process.kill()
        process.communicate()
    assert sorted(path.name for path in photo.parent.iterdir()) == ["model.bnn", "photo.ppm"]


def test_signals_that_the_caller_handles_are_left_alone(run, write, monkeypatch):
    handler, seen = lambda *_: None, []
    before = signal.signal(signal.SIGTERM, handler)
    monkeypatch.setattr(cli, "_print_json", lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    try:
        run("info", write(), "--json")
        assert seen == [handler]
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_neither_torch_nor_burn_is_imported(write):
    code = (
        "import sys, burn_engine.cli; burn_engine.cli.main(['info', sys.argv[1]]);"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "sys.exit(bool(loaded & {'torch', 'burn', 'safetensors', 'PIL', 'cv2'}))"
    )
    run = [sys.executable, "-c", code, str(write())]
    subprocess.run(run, env=environment(), stdout=subprocess.DEVNULL, check=True)
