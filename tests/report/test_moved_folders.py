"""Reports of folders that were moved or renamed after they were written."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import report_samples as samples

from burn.core.paths import located_path, stored_path
from burn.core.results import Result, append_results, read_results
from burn.report.load.gather import gather
from burn.report.model import networks, verdict
from burn.report.write import write_report


def test_a_file_names_paths_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run, folder = tmp_path / "runs" / "student", tmp_path / "runs" / "evaluated"
    run.mkdir(parents=True)
    folder.mkdir()
    for name in ("runs/student", "./runs/student/", str(run), "runs/evaluated/../student"):
        assert stored_path(name, folder) == "../student"
    assert located_path("../student", folder) == str(run)
    assert located_path("runs/student", folder) == str(run)  # as burn 0.2 stored it
    assert stored_path(str(run), run) == "."
    (folder / "photos").mkdir()  # images, while the name means a network that comes with burn
    (tmp_path / "photos").mkdir()
    for name in (
        "photos",
        "lite0",
        "hub:resnet50",
        "resnet18:w.pth",
        "",
        "no/where",
        "a\0b",
        "x" * 5000,
    ):
        assert stored_path(name, folder) == located_path(name, folder) == name


def test_results_are_read_where_they_are_now(tmp_path: Path):
    samples.run(tmp_path / "a" / "student")
    result = samples.result("knn", "top1", 44.0, "x", str(tmp_path / "a" / "student"))
    append_results(tmp_path / "a" / "evaluated" / "results.jsonl", [result])
    (tmp_path / "a").rename(tmp_path / "b")
    text = (tmp_path / "b" / "evaluated" / "results.jsonl").read_text()
    assert json.loads(text)["checkpoint"] == "../student"
    (found,) = read_results(tmp_path / "b" / "evaluated" / "results.jsonl")
    assert found == replace(result, checkpoint=str(tmp_path / "b" / "student"))


def test_folders_of_a_report_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`burn report student evaluated` did not join the result to its run."""
    samples.run(tmp_path / "student")
    result = samples.result("knn", "top1", 44.0, "x", str(tmp_path / "student"))
    append_results(tmp_path / "evaluated" / "results.jsonl", [result])
    monkeypatch.chdir(tmp_path)
    (located,) = gather([Path("student"), Path("evaluated")]).results
    assert located.run is not None
    assert located.result.checkpoint == "student"


def written(folder: Path, *, stages: int, old: bool, stage_file: bool) -> None:
    """A run, its teacher's run, and their results.

    Args:
        folder: Folder of all.
        stages: Stages of the run.
        old: Whether the results are as those of burn 0.2, with absolute paths and without the run.
        stage_file: Whether the stage's file was evaluated, not the run's folder.
    """
    teacher = samples.run(folder / "teacher", stages=1, name="teacher_small")
    run = samples.run(
        folder / "student",
        stages=stages,
        single="binary",
        teacher="runs/teacher",
        name="burn_small",
    )
    for monitors in folder.glob("*/stage?"):
        shutil.rmtree(monitors)  # curves, which take seconds to draw
    spec = str(run / f"stage{stages}.safetensors") if stage_file else str(run)
    for file in (run / f"stage{stages}.safetensors", teacher / "stage1.safetensors"):
        file.write_bytes(b"")
    told = {"stage": stages, "steps": 400, "images_seen": 51_200}
    if not old:
        told |= {"run": json.loads((run / "run.json").read_text())["run"], "precision": "binary"}
    rows = [
        ("random reactnet_a, binary", spec, 21.0, None),
        (f"burn_small, stage {stages}", spec, 44.3, told),
        ("teacher_small, stage 1", str(teacher), 60.3, None),
    ]
    results = [samples.result("knn", "top1", v, m, s, training=t) for m, s, v, t in rows]
    file = folder / "evaluated" / "results.jsonl"
    append_results(file, results)
    if old:
        lines = [vars(result) for result in results]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def differences(one: str, other: str) -> list[tuple[str | None, str | None]]:
    """The first lines that differ; pytest would compare whole pages for minutes."""
    pairs = itertools.zip_longest(one.splitlines(), other.splitlines())
    return [(a and a[:300], b and b[:300]) for a, b in pairs if a != b][:3]


def page_of(folder: Path, student: str = "student") -> str:
    """The page of the run and the results, with every mention of the folder's place removed."""
    out = folder.parent / "page.html"
    write_report([folder / student, folder / "teacher", folder / "evaluated"], out)
    text = out.read_text().replace(str(folder), "ROOT").replace(f"{folder.name}/", "ROOT/")
    return text.replace(f"ROOT/{student}", "ROOT/RUN")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("stage_file", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_folder_that_is_moved_gives_the_same_report(
    tmp_path: Path, stages: int, stage_file: bool, old: bool
):
    written(tmp_path / "before", stages=stages, old=old, stage_file=stage_file)
    before = page_of(tmp_path / "before")
    assert "It learned" in before
    assert "where random weights give 21.0 % and its float teacher 60.3 %" in before
    assert "network with binary activations" not in before
    assert "<small>binary activations</small>" not in before
    (tmp_path / "else").mkdir()
    shutil.move(tmp_path / "before", tmp_path / "else" / "after")
    assert differences(page_of(tmp_path / "else" / "after"), before) == []
    if old:
        return  # its paths name the copy in the old place
    shutil.copytree(tmp_path / "else" / "after", tmp_path / "before")
    assert (
        differences(page_of(tmp_path / "else" / "after"), before) == []
    )  # also where there is a copy


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("stage_file", [False, True])
def test_a_run_that_is_renamed_alone_is_found_by_its_identity(
    tmp_path: Path, stages: int, stage_file: bool
):
    folder = tmp_path / "runs"
    written(folder, stages=stages, old=False, stage_file=stage_file)
    before = page_of(folder)
    (folder / "student").rename(folder / "best")
    after = (
        page_of(folder, "best").replace(">best<", ">student<").replace("of best<", "of student<")
    )
    assert differences(before, after) == []


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("stage_file", [False, True])
def test_a_network_of_one_stage_is_binary_without_its_run_too(
    tmp_path: Path, stage_file: bool, old: bool
):
    written(tmp_path / "runs", stages=1, old=old, stage_file=stage_file)
    shutil.rmtree(tmp_path / "runs" / "student")
    found = networks(gather([tmp_path / "runs" / "evaluated"]))
    assert [n.kind for n in found] == ["random", "binary", "float"]
    assert verdict(found).word == "yes"


def test_a_run_that_was_written_anew_does_not_take_the_results_of_the_one_before(tmp_path: Path):
    written(tmp_path / "runs", stages=1, old=False, stage_file=False)
    file = tmp_path / "runs" / "student" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"run": "another"}))
    found = networks(gather([tmp_path / "runs" / "student", tmp_path / "runs" / "evaluated"]))
    assert next(n for n in found if n.name.startswith("burn_small")).run is None


def test_images_that_were_moved_are_the_same_images(tmp_path: Path):
    def result(model: str, value: float, **more: object) -> Result:
        return samples.result("knn", "top1", value, model, "runs/x", **more)

    moved = result("random reactnet_a, binary", 21.0, train="b/train", test="b/val")
    append_results(tmp_path / "e" / "results.jsonl", [result("burn_small, stage 2", 44.0), moved])
    assert verdict(networks(gather([tmp_path / "e"]))).word == "yes"
    other = replace(moved, data=samples.ABOUT_DATA | {"test_fingerprint": "ee"})
    append_results(tmp_path / "f" / "results.jsonl", [result("burn_small, stage 2", 44.0), other])
    assert verdict(networks(gather([tmp_path / "f"]))).word == "unknown"
