"""Classes that an exported network learns on the device, compiled here and for two processors."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from exported import (
    CODE,
    SANITIZERS,
    SCORES,
    SHAPES,
    STRICT,
    call,
    digits,
    digits_file,
    need,
    noise,
    random_file,
)
from test_microcontroller import BOARDS, compiled, emulated, own_undefined, stack

import burn_engine
from burn.cli.main import main
from burn.deploy.c.export import (
    CODE_BYTES,
    LEARNING_CODE_BYTES,
    LEARNING_STACK_BYTES,
    ExportedC,
    export_c,
)
from burn.deploy.layout import Array

EPILOGUES = ("float", "int32", "int16")


CLASSES = 7  # an odd number of counts of two bytes


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The function that returns the program of a shape and an epilogue, compiled once."""

    @cache
    def program(shape: str, epilogue: str) -> Path:
        need("gcc")
        folder = tmp_path_factory.mktemp("learner")
        packed = random_file(folder / "n.bnn", SHAPES[shape])
        done = export_c(packed, folder / "code", name="net", epilogue=epilogue,
                        classes_on_device=CLASSES)  # fmt: skip
        call(
            "gcc", *STRICT, "-O1", *SANITIZERS, f"-I{folder / 'code'}", done.source,
            CODE / "learn.c", "-o", folder / "learn",
        )  # fmt: skip
        return folder / "learn"

    return program


def learned_on_host(
    program: Path, folder: Path, epilogue: str, images: Array, steps: list[tuple[str, int, int]]
) -> tuple[Array, Array]:
    """What each step returned, with the similarity, and the features of the images."""
    (folder / "images").write_bytes(images.tobytes())
    (folder / "steps").write_bytes(bytes(x for what, c, i in steps for x in (ord(what), c, i)))
    call(program, folder / "images", folder / "steps", folder / "results")
    data = (folder / "results").read_bytes()
    results = np.frombuffer(data, np.int32, 2 * len(steps)).reshape(-1, 2)
    features = np.frombuffer(data, SCORES[epilogue], offset=8 * len(steps))
    return results, features.reshape(len(images), -1)


class Twin:
    """Class means of features of length 1, in float64."""

    def __init__(self, features: Array) -> None:
        values = features.astype(np.float64)
        self.rows = values / np.linalg.norm(values, axis=1, keepdims=True)
        self.known: dict[int, list[int]] = {}

    def cosines(self, image: int) -> dict[int, float]:
        """The cosine with every class that has images."""
        found = {}
        for number, images in sorted(self.known.items()):
            mean = self.rows[images].mean(axis=0)
            found[number] = float(mean @ self.rows[image] / np.linalg.norm(mean))
        return found


@pytest.mark.parametrize(
    ("shape", "epilogue"),
    [
        ("whole words", "int16"),
        ("no shortcuts, large maps", "float"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("whole words", "float"), ("whole words", "int32"),
                ("no shortcuts, large maps", "int32"), ("no shortcuts, large maps", "int16"),
            )
        ),
    ],
)  # fmt: skip
def test_the_nearest_class_mean_is_found(
    shape: str, epilogue: str, learner: Callable[[str, str], Path], tmp_path: Path
):
    program = learner(shape, epilogue)
    images = noise(SHAPES[shape][-1], 10)
    random = np.random.default_rng(2)
    steps: list[tuple[str, int, int]] = [("c", 0, 0), ("r", 0, 0)]
    for _ in range(60):
        what = str(
            random.choice(["l", "l", "c", "c", "c", "f"], p=[0.25, 0.15, 0.2, 0.2, 0.15, 0.05])
        )
        steps.append((what, int(random.integers(3)), int(random.integers(len(images)))))
    results, features = learned_on_host(program, tmp_path, epilogue, images, steps)
    twin = Twin(features)
    compared = 0
    for (what, number, image), (returned, similarity) in zip(steps, results, strict=True):
        if what == "r":
            assert returned == 1
        elif what == "l":
            twin.known.setdefault(number, []).append(image)
            assert returned == len(twin.known[number])
        elif what == "f":
            twin.known.pop(number, None)
            assert returned == 0
        elif not twin.known:
            assert returned == -1
        else:
            cosines = twin.cosines(image)
            # Features are rounded to a 16,384th of their length, and cut to 20 bits before.
            assert similarity / 2**20 == pytest.approx(cosines[int(returned)], abs=1e-3)
            assert cosines[int(returned)] >= max(cosines.values()) - 1e-3
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_classes_of_one_image_each_find_that_image_again(
    epilogue: str, learner: Callable[[str, str], Path], tmp_path: Path
):
    """As many classes as there is room for."""
    program = learner("whole words", epilogue)
    images = noise(SHAPES["whole words"][-1], CLASSES)
    steps = [("l", i, i) for i in range(CLASSES)] + [("c", 0, i) for i in range(CLASSES + 2)]
    results, features = learned_on_host(program, tmp_path, epilogue, images, steps)
    rows = Twin(features).rows
    found, similarity = results[CLASSES:].T
    assert found[:CLASSES].tolist() == list(range(CLASSES))
    assert similarity[:CLASSES] / 2**20 == pytest.approx(1, abs=1e-3)
    nearest = (rows[CLASSES:] @ rows[:CLASSES].T).argmax(axis=1)
    assert found[CLASSES:].tolist() == nearest.tolist()


def test_a_full_class_learns_no_more(learner: Callable[[str, str], Path], tmp_path: Path):
    program = learner("whole words", "float")
    steps = [("l", 1, 0), ("m", 1, 0), ("l", 1, 0), ("c", 0, 0), ("f", 1, 0), ("l", 1, 0)]
    images = noise(SHAPES["whole words"][-1])
    results, _ = learned_on_host(program, tmp_path, "float", images, steps)
    assert results[:, 0].tolist() == [1, 0, -1, 1, 0, 1]


@pytest.mark.parametrize("value", [0.0, np.nan, 3e38])
def test_features_of_any_size_are_no_undefined_behaviour(value: float, tmp_path: Path):
    """Infinities and what is no number come from large constants, which a file may have."""
    need("gcc")
    done = export_c(random_file(tmp_path / "n.bnn", SHAPES["smallest"]), tmp_path / "code",
                    name="net", classes_on_device=2)  # fmt: skip
    text = done.source.read_text()
    text = re.sub(r"int net_run\(", "int unused_run(", text, count=1)
    given = {np.inf: "1.0f / zero", 0.0: "zero"}.get(value, f"{value}f")
    given = "zero / zero" if np.isnan(value) else given
    text = text.replace(
        "int unused_run(",
        "int net_run(const uint8_t *image, void *arena, net_score *scores) {\n"
        f"    const volatile float zero = 0;\n    scores[0] = {given};\n"
        "    return image && arena ? 0 : -1;\n}\n\n"
        "int unused_run(const uint8_t *image, void *arena, net_score *scores);\nint unused_run(",
        1,
    )
    done.source.write_text(text)
    (tmp_path / "main.c").write_text(
        '#include "net.h"\nint main(void) { static net_classes classes; static uint8_t image[9];\n'
        "static uint32_t arena[9]; net_score scores[NET_NUM_SCORES]; int32_t similarity = -9;\n"
        "return net_learn(&classes, 1, image, arena, scores) != 1 ||\n"
        "net_classify(&classes, image, arena, scores, &similarity) != 1 ||\n"
        "similarity < 0 || similarity > NET_SIMILARITY_ONE; }"
    )
    call(
        "gcc", "-std=c99", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all",
        f"-I{tmp_path / 'code'}", done.source, tmp_path / "main.c", "-o", tmp_path / "main",
    )  # fmt: skip
    call(tmp_path / "main")


def test_without_the_option_nothing_is_added(tmp_path: Path):
    """What is exported with it is what is exported without, and more."""
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])  # without a classifier
    without = export_c(packed, tmp_path / "without")
    learns = export_c(packed, tmp_path / "with", classes_on_device=4)
    assert without.source.read_text() not in learns.source.read_text()  # the first line differs
    old, new = without.source.read_text(), learns.source.read_text()
    assert new.replace(" --classes-on-device 4", "", 1).startswith(old)
    lines = learns.header.read_text().replace(" --classes-on-device 4", "", 1).splitlines()
    rest = iter(lines)
    assert all(line in rest for line in without.header.read_text().splitlines())
    assert "learn" not in old + without.header.read_text()
    assert (without.classes, without.code, without.left_out) == (0, CODE_BYTES, 0)
    assert learns.ram == without.ram + learns.classes + LEARNING_STACK_BYTES
    assert learns.flash == without.flash + LEARNING_CODE_BYTES


def test_the_command_says_what_it_takes_and_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])  # five classes, 64 features
    export = ["export", str(packed), str(tmp_path / "out"), "--format", "c"]
    assert main([*export, "--classes-on-device", "3"]) == 0
    printed = capsys.readouterr().out
    assert "left out: the classifier of 5 classes; it learns others on the device" in printed
    # 64 features of 4 bytes and a count of 2 bytes for each class, in whole words.
    assert f"classes {3 * 64 * 4 + 8}, stack" in printed
    header = (tmp_path / "out" / "n.h").read_text()
    assert "#define N_MAX_CLASSES 3\n" in header
    assert "#define N_NUM_CLASSES 0\n" in header
    assert "int n_forget(" in header
    for number in ("0", "-1", "1001"):
        assert (
            main([*export[:2], str(tmp_path / "x"), *export[3:], "--classes-on-device", number])
            == 2
        )
        error = capsys.readouterr().err
        assert f"--classes-on-device {number} is not in 1 … 1,000" in error
        assert error.count("\n") == 1
    assert main(["export", str(packed), str(tmp_path / "x.onnx"), "--classes-on-device", "3"]) == 2
    assert "--classes-on-device belongs to format c" in capsys.readouterr().err
    small = [*export[:2], str(tmp_path / "x"), *export[3:], "--ram", "64K"]
    assert main([*small, "--classes-on-device", "1000"]) == 2
    assert "fewer --classes-on-device, a smaller" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("optimise", ["-Os", pytest.param("-O2", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "epilogue", [pytest.param(e, marks=() if e == "int32" else pytest.mark.long) for e in EPILOGUES]
)
def test_flash_and_stack_are_what_the_export_says(epilogue: str, optimise: str, tmp_path: Path):
    for name in ("all kinds of layers", "whole words", "smallest"):
        packed = random_file(tmp_path / "n.bnn", SHAPES[name])
        done = export_c(packed, tmp_path / name, epilogue=epilogue, classes_on_device=8)
        built = compiled(done.source, "Cortex-M4", optimise)
        text, data, bss = map(int, call("arm-none-eabi-size", built).splitlines()[1].split()[:3])
        assert (data, bss) == (0, 0)
        assert text <= done.flash
        assert stack(built) <= done.stack
        assert own_undefined("Cortex-M4", built) == set()
        defined = call("arm-none-eabi-nm", "-g", "--defined-only", built).split()[2::3]
        assert set(defined) == {"n_run", "n_run_rows", "n_learn", "n_forget", "n_classify"}
        assert done.classes == size_of_classes(done, tmp_path)


def size_of_classes(done: ExportedC, folder: Path) -> int:
    """The size that the compiler for Cortex-M gives the classes."""
    (folder / "size.c").write_text('#include "n.h"\nn_classes classes;\n')
    call(*BOARDS["Cortex-M4"].compile(folder / "size.c", f"-I{done.header.parent}"))
    return int(call("arm-none-eabi-size", folder / "size.o").splitlines()[1].split()[2])


@pytest.mark.parametrize(
    ("board", "epilogue"),
    [
        ("Cortex-M4", "float"),
        pytest.param("Cortex-M3", "int32", marks=pytest.mark.long),
        pytest.param("RISC-V with Zbb", "int32", marks=pytest.mark.long),
    ],
)
def test_digits_are_learned_on_a_microcontroller(board: str, epilogue: str, tmp_path: Path):
    """Of digits 0 to 4, of each ten, and the same answers as in float64."""
    packed = digits_file(tmp_path)
    given, labels = digits("train", 300)
    chosen = np.concatenate([np.flatnonzero(labels == c)[:20] for c in range(5)])
    images = given[chosen]
    known = np.tile(np.arange(20) < 10, 5)
    order = np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)])
    done = export_c(packed, tmp_path / "code", name="student", epilogue=epilogue,
                    classes_on_device=5)  # fmt: skip
    answers = np.where(known, labels[chosen], 255)[order].astype(np.uint8)
    folder = done.source.parent
    files = {"images.rgb": images[order], "labels": answers}
    lines = emulated(folder, board, "learning.c", files)
    assert lines.shape == (100, 3)
    np.testing.assert_array_equal(lines[:50, 1], np.tile(np.arange(1, 11), 5))
    network = burn_engine.load(packed)
    rows = np.asarray(network.features(images[order]), np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    means = np.stack([rows[:50].reshape(5, 10, -1)[c].mean(axis=0) for c in range(5)])
    cosines = rows[50:] @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    # A sign within rounding of its threshold may turn, and others after it.
    assert (lines[50:, 0] == cosines.argmax(axis=1)).sum() >= 48
    assert np.median(abs(lines[50:, 1] / 1000 - cosines.max(axis=1))) < 0.002
    # What the classes themselves take, beside the network.
    assert lines[50:, 2].mean() < 1.1 * lines[:50, 2].mean()
