"""Outputs are exclusive, ordered by worth, and no failure of a lesser one costs a greater one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cases import Case, Outcome, Server, check

import tiny
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.results import read_results
from burn.learning.resume_files import ResumeFiles

BURN = (sys.executable, "-m", "burn")
DIGITS = "--train digits --test digits --device cpu --workers 0"
PHOTOS = "--k 5 --train {photos} --test {photos} --device cpu --workers 0"
LINEAR = f"{DIGITS} --augment none --epochs 1 --lr 0.003"


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# --- The number comes first. ---


def a_file_named(name: str) -> Callable[[Path, Mapping[str, Path]], None]:
    """A file where the command wants to make a folder of that name."""

    def prepare(folder: Path, _: Mapping[str, Path]) -> None:
        (folder / "out").mkdir()
        (folder / "out" / name).touch()

    return prepare


def a_folder_named(name: str) -> Callable[[Path, Mapping[str, Path]], None]:
    """A folder, not an empty one, where the command wants to write a file of that name."""

    def prepare(folder: Path, _: Mapping[str, Path]) -> None:
        (folder / "out" / name / "something").mkdir(parents=True)

    return prepare


def a_pipe_for_results(folder: Path, _: Mapping[str, Path]) -> None:
    (folder / "out").mkdir()
    os.mkfifo(folder / "out" / "results.jsonl")


def number_is_out(_: Path, outcome: Outcome) -> None:
    """Printed, as JSON."""
    assert json.loads(outcome.out.splitlines()[0])["value"] >= 0


def number_is_kept(folder: Path, outcome: Outcome) -> None:
    """Printed, and in results.jsonl too."""
    number_is_out(folder, outcome)
    assert read_results(folder / "out" / "results.jsonl")


COMPLETE = "the results are complete"
CASES = [
    Case(
        "a file where features belong", f"evaluate knn {{student}} {PHOTOS} --out out --json",
        [COMPLETE, "features"], prepare=a_file_named("features"), check=number_is_kept,
    ),
    Case(
        "confusion.json is a folder", f"evaluate knn {{student}} {PHOTOS} --out out --json",
        [COMPLETE, "confusion.json"], prepare=a_folder_named("confusion.json"),
        check=number_is_kept,
    ),
    Case(
        "a file where neighbours belong", f"evaluate knn {{student}} {PHOTOS} --out out --json",
        [COMPLETE, "neighbours"], prepare=a_file_named("neighbours"),
        check=number_is_kept,
    ),
    Case(
        "the classifier is a folder", f"evaluate linear {{student}} {LINEAR} --out out --json",
        [COMPLETE, "classifier.safetensors"], prepare=a_folder_named("classifier.safetensors"),
        check=number_is_kept,
    ),
    Case(
        "results.jsonl is a folder", f"evaluate knn {{student}} {PHOTOS} --out out",
        ["results.jsonl cannot be written"], prepare=a_folder_named("results.jsonl"),
    ),
    Case(
        "results.jsonl is a named pipe", f"evaluate knn {{student}} {PHOTOS} --out out",
        ["results.jsonl cannot be written", "regular file"],
        prepare=a_pipe_for_results,
    ),
    Case(
        "--out without permission", f"evaluate knn {{student}} {PHOTOS} --out out",
        ["results.jsonl cannot be written", "Permission denied"],
        prepare=lambda folder, _: (folder / "out").mkdir(mode=0o500), unprivileged=True,
    ),
    Case(
        "--out is a file", f"evaluate knn {{student}} {PHOTOS} --out out", ["out is a file"],
        prepare=lambda folder, _: (folder / "out").touch(),
    ),
    Case(
        "a report over a folder", "report {student} --out out", ["out"],
        prepare=lambda folder, _: (folder / "out").mkdir(),
    ),
    Case(
        "a report without permission", "report {student} --out out/page.html",
        ["page.html", "Permission denied"], unprivileged=True,
        prepare=lambda folder, _: (folder / "out").mkdir(mode=0o500),
    ),
    Case(
        "a pack without permission", "pack {student} out/n.bnn", ["n.bnn", "Permission denied"],
        unprivileged=True, prepare=lambda folder, _: (folder / "out").mkdir(mode=0o500),
    ),
    Case(
        "evaluate under torchrun", f"evaluate knn {{student}} {PHOTOS} --out out",
        ["cannot run under torchrun"],
        environment={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29511"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answer(case: Case, server: Server, samples: Mapping[str, Path], tmp_path: Path):
    check(case, server, tmp_path, samples)
    assert not list(tmp_path.glob("**/.writing.*"))


FEATURES_DO_NOT_FIT = 20_000  # bytes; the line of a result does
FULL_DISK = [
    Case(
        "knn on a full disk", f"evaluate knn {{student}} {DIGITS} --out out --json",
        [COMPLETE], file_size=FEATURES_DO_NOT_FIT, check=number_is_kept,
    ),
    Case(
        "svm on a full disk",
        f"evaluate svm {{student}} {DIGITS} --out out --json --shots [1] --samples 1 --full false",
        [COMPLETE], file_size=FEATURES_DO_NOT_FIT, check=number_is_kept,
    ),
    Case(
        "pack on a full disk", "pack {student} n.bnn", ["n.bnn cannot be written"],
        file_size=FEATURES_DO_NOT_FIT,
        check=lambda folder, _: [file.name for file in folder.glob("[!.]*")] == [] or 1 / 0,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", FULL_DISK, ids=str)
def test_a_full_disk_does_not_cost_the_number(
    case: Case, server: Server, samples: Mapping[str, Path], tmp_path: Path
):
    check(case, server, tmp_path, samples)
    assert not list(tmp_path.glob("**/.writing.*"))


# --- What is printed decides nothing. ---

PRETRAIN = (
    "pretrain --recipe demo --data digits --teacher {teacher} --out out --max-steps 2 --stages 1 "
    "--batch-size 64 --compute float32 --device cpu --backbone.width 0.25 "
    "--backbone.depths [1,1,1,1,1] --workers 0 "
    "--monitor-every 1"
)


def weights_are_there(folder: Path, _: Outcome) -> None:
    assert (folder / "out" / "stage1.safetensors").is_file()
    assert (folder / "out" / "stage1.json").is_file()


LOST_OUTPUT = [
    Case(
        "pretrain 2>&1 | head -0", PRETRAIN, status=0, lost={"stdout": "pipe", "stderr": "pipe"},
        check=weights_are_there,
    ),
    Case(
        "pretrain 2>/dev/full", PRETRAIN, status=0, lost={"stderr": "/dev/full"},
        check=weights_are_there,
    ),
    Case(
        "pretrain >/dev/full", PRETRAIN, ["standard output cannot be written"],
        lost={"stdout": "/dev/full"}, check=weights_are_there,
    ),
]  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("case", LOST_OUTPUT, ids=str)
def test_training_ends_whatever_becomes_of_its_output(
    case: Case, server: Server, samples: Mapping[str, Path], tmp_path: Path
):
    check(case, server, tmp_path, samples)


@pytest.mark.parametrize(
    ("redirect", "status"),
    [("| head -0", 0), ("> /dev/full", 2), ("2> /dev/full", 0), (">&-", 0), ("2>&-", 0)],
)
def test_short_commands_with_lost_output(redirect: str, status: int):
    if "/dev/full" in redirect and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    line = f"{sys.executable} -m burn --help {redirect}; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


# --- Two at once. ---


def evaluate_at_once(server: Server, samples: Mapping[str, Path], folder: Path, count: int) -> None:
    folder.mkdir()
    case = Case("evaluate", f"evaluate knn {{student}} {PHOTOS} --out out")
    ends = server.run_copies(case, folder, samples, count)
    good = [end for end in ends if end.status == 0]
    assert good, ends
    for end in ends:
        assert end.status == 0 or "another burn process is using" in end.error, end
    assert len(read_results(folder / "out" / "results.jsonl")) == len(good)


def write_at_once(
    server: Server, samples: Mapping[str, Path], folder: Path, command: str, count: int
) -> None:
    """`command` writes `file`, which is not to be replaced: one does, and the others say so."""
    folder.mkdir()
    ends = server.run_copies(Case("write", command, memory=4000), folder, samples, count)
    assert sorted(end.status for end in ends) == [0, *[2] * (count - 1)], ends
    assert all("already exists" in end.error for end in ends if end.status), ends
    assert len(list(folder.glob("[!.]*"))) == 1
    assert not list(folder.glob(".writing.*"))


PACK, EXPORT = "pack {student} file.bnn", "export {student} file.onnx"


def test_two_at_once_do_not_disturb_each_other(
    server: Server, samples: Mapping[str, Path], tmp_path: Path
):
    evaluate_at_once(server, samples, tmp_path / "evaluated", 2)
    write_at_once(server, samples, tmp_path / "packed", PACK, 3)


@pytest.mark.long
def test_many_at_once_many_times(server: Server, samples: Mapping[str, Path], tmp_path: Path):
    for number in range(10):
        evaluate_at_once(server, samples, tmp_path / f"evaluated-{number}", 3)
        write_at_once(server, samples, tmp_path / f"packed-{number}", PACK, 6)
    write_at_once(server, samples, tmp_path / "exported", EXPORT, 2)


APPEND = """
import sys
from pathlib import Path
from burn.core.files import append_lines
for number in range(50):
    append_lines(Path("lines"), f"{sys.argv[1]} {number} {'x' * 5000}\\n")
"""


def test_lines_of_two_processes_do_not_mix(tmp_path: Path):
    both = [subprocess.Popen([sys.executable, "-c", APPEND, n], cwd=tmp_path) for n in "ab"]
    assert [process.wait() for process in both] == [0, 0]
    lines = (tmp_path / "lines").read_text().splitlines()
    assert sorted(lines) == sorted(f"{n} {i} {'x' * 5000}" for n in "ab" for i in range(50))


# --- Interrupted. ---

RESUMES = ["kept in", "the same command resumes"]
SEMI = "evaluate semi {student} " + DIGITS + " --labels 50 --epochs 10 --batch-size 32 --out ."
SVM = "evaluate svm {student} " + DIGITS + " --samples 400 --out ."
INTERRUPTED = [
    pytest.param(
        Case(
            f"{name} and {sent.name}", command, RESUMES, status=128 + sent, signal=(sent, after),
            seconds=400,
        ),
        marks=(pytest.mark.long,) if sent == signal.SIGTERM else (),
    )
    for name, command, after in (
        ("semi", SEMI, "semi-50percent-seed0.jsonl"),
        ("svm", SVM, "svm.jsonl"),
    )
    for sent in (signal.SIGINT, signal.SIGTERM)
]  # fmt: skip


@pytest.mark.parametrize("case", INTERRUPTED, ids=str)
def test_interrupted_protocols_keep_what_is_finished(
    case: Case, server: Server, samples: Mapping[str, Path], tmp_path: Path
):
    check(case, server, tmp_path, samples)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not file.is_file():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- A campaign ends with its parent. ---


@pytest.mark.long
def test_the_runs_of_a_killed_campaign_end_and_the_same_command_resumes(tmp_path: Path):
    out = tmp_path / "compared"
    command = [
        "compare", "--methods=supervised,simclr", "--data=digits", "--test=digits",
        "--budget=3200", "--stages=1", "--processes=2", "--device=cpu", "--workers=0",
        "--linear.epochs=1", "--linear.lr=0.003", f"--out={out}",
    ]  # fmt: skip
    with subprocess.Popen(
        [*BURN, *command], env=environment(), start_new_session=True, text=True
    ) as process:
        wait_for(out / "supervised-seed0" / "stage1" / "metrics.csv", process)
        wait_for(out / "simclr-seed0" / "stage1" / "metrics.csv", process)
        process.kill()
    deadline = time.monotonic() + 60
    while alive(process.pid):
        assert time.monotonic() < deadline, "its runs train on"
        time.sleep(0.1)


def alive(session: int) -> list[int]:
    """Processes of a session, by /proc, but for those that have ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = file.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(file.parent.name))
    return found


# --- A resume file binds the plan. ---


class Killed(BaseException):
    pass


@pytest.fixture
def cut(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended in its third step, saved after each."""
    add, count = ResumeFiles.add, [0]

    def stop(self: ResumeFiles, content: bytes) -> None:
        add(self, content)
        count[0] += 1
        if count[0] == 3:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ResumeFiles, "add", stop)
        with pytest.raises(Killed):
            tiny.train(
                tiny.student_recipe(), tmp_path / "run", teacher, max_steps=6,
                machine=tiny.Machine(device="cpu", workers=0, save_every=0),
            )  # fmt: skip
    return tmp_path / "run"


def edit(path: Path, *keys: str, value: object) -> None:
    content = json.loads(path.read_text())
    part = content
    for key in keys[:-1]:
        part = part[key]
    assert keys[-1] in part
    part[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("recipe", "optim", "lr"), 0.125),
        (("seed",), 5),
        (("recipe", "batch_size"), 64),
        (("recipe", "burn", "temperature"), 0.5),
    ],
)
def test_a_run_with_edited_settings_is_not_resumed(
    keys: tuple[str, ...], value: object, cut: Path, capsys: pytest.CaptureFixture[str]
):
    edit(cut / "run.json", "plan", *keys, value=value)
    before = (cut / "stage1" / "resume.ckpt").read_bytes()
    command = ["pretrain", "--resume", f"--out={cut}", "--device=cpu", "--workers=0"]
    assert main(command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"other settings (plan.{'.'.join(keys)} was" in error
    assert (cut / "stage1" / "resume.ckpt").read_bytes() == before


def test_a_resume_file_that_is_no_file_is_named_and_kept(
    cut: Path, capsys: pytest.CaptureFixture[str]
):
    file = cut / "stage1" / "resume.ckpt"
    kept = file.read_bytes()
    command = ["pretrain", "--resume", f"--out={cut}", "--device=cpu", "--workers=0"]
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
        file.unlink()
        make(file)
        assert main(command) == 2
        assert f"{file} is" in capsys.readouterr().err.splitlines()[-1]
        file.rmdir() if file.is_dir() else file.unlink()
        file.write_bytes(kept)


def test_a_teacher_under_another_name_is_the_same(cut: Path, teacher: Path, tmp_path: Path):
    """By its weights, wherever they lie; another teacher is refused."""
    (tmp_path / "link").symlink_to(teacher)
    shutil.copytree(teacher, tmp_path / "moved")
    other = tmp_path / "other"
    tiny.train(tiny.teacher_recipe(), other, max_steps=1)
    with pytest.raises(UserError, match=r"settings: teacher was .*, is .*other"):
        tiny.train(tiny.student_recipe(), cut, other, max_steps=6, resume=True)
    for name in ("link", "moved"):
        tiny.train(tiny.student_recipe(), cut, tmp_path / name, max_steps=6, resume=True)
    assert (cut / "stage2.safetensors").is_file()
