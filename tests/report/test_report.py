import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from burn.core.errors import UserError
from burn.core.results import (
    Result,
    append_results,
    majority_accuracy,
    read_results,
    require_appendable,
)
from burn.report.load.contents import Gathered, LocatedResult
from burn.report.model import networks
from burn.report.render.plots import demo_picture
from burn.report.render.tables import (
    comparison_markdown,
    comparison_table,
    number_name,
    results_table,
)
from burn.report.sections.results_tables import result_tables
from burn.training.records.metrics import COLUMNS, StepFile


def result(model: str, protocol: str, value: float, metric: str = "top1") -> Result:
    return Result(protocol, metric, value, model, "c", "a", "b", 0, 1.0, {"k": 20})


RESULTS = [
    result("random", "knn", 11.25),
    result("random", "linear", 20),
    result("teacher", "knn", 90),
    result("teacher", "linear", 95.55),
    result("teacher", "linear", 99.9, "top5"),
]


def test_results_survive_their_file(tmp_path: Path):
    append_results(tmp_path / "new" / "results.jsonl", RESULTS[:2])
    append_results(tmp_path / "new" / "results.jsonl", RESULTS[2:])
    assert read_results(tmp_path / "new" / "results.jsonl") == RESULTS


def test_whether_results_can_be_appended_is_known_before_there_are_any(tmp_path: Path):
    file = tmp_path / "new" / "results.jsonl"
    require_appendable(file)
    assert list(tmp_path.rglob("*")) == [file.parent]
    append_results(file, RESULTS)
    require_appendable(file)
    assert read_results(file) == RESULTS
    with pytest.raises(UserError, match=r"results\.jsonl is a file: give a folder"):
        require_appendable(file / "results.jsonl")
    (tmp_path / "results.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot be written: not a regular file"):
        require_appendable(tmp_path / "results.jsonl")


def test_a_line_cut_short_does_not_take_the_next_with_it(tmp_path: Path):
    append_results(tmp_path / "r.jsonl", RESULTS[:1])
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"protocol": "kn')
    append_results(tmp_path / "r.jsonl", RESULTS[1:2])
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (tmp_path / "r.jsonl").write_text("".join(f"{line}\n" for line in (lines[0], lines[2])))
    assert read_results(tmp_path / "r.jsonl") == RESULTS[:2]


@pytest.mark.parametrize(
    ("metric", "name"),
    [("top1", "kNN top-1"), ("1% top5", "kNN 1% top-5"), ("AP laptop", "kNN AP laptop")],
)
def test_numbers_are_named_as_people_write_them(metric: str, name: str):
    assert number_name("knn", metric) == name


def test_a_damaged_line_is_named(tmp_path: Path):
    append_results(tmp_path / "r.jsonl", RESULTS)
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"protocol": "knn"')
    with pytest.raises(UserError, match="line 6 is not a result"):
        read_results(tmp_path / "r.jsonl")


def test_table_has_a_row_a_model_and_a_column_a_number():
    text = io.StringIO()
    Console(file=text, width=100).print(results_table(RESULTS))
    lines = text.getvalue().splitlines()
    assert "kNN top-1" in lines[1]
    assert "linear top-5" in lines[1]
    random = next(line for line in lines if "random" in line)
    assert [cell.strip() for cell in random.split("│")][1:-1] == ["random", "11.2 %", "20.0 %", ""]


def test_table_of_one_model_has_a_row_a_number():
    few = replace(result("BURN", "svm", 52.04, "k=1 mAP cv"), spread=1.26)
    text = io.StringIO()
    Console(file=text, width=100).print(results_table([result("BURN", "knn", 48), few]))
    lines = text.getvalue().splitlines()
    assert lines[0] == "BURN: labels of a, evaluated on b"
    rows = [[cell.strip() for cell in line.split("│")][1:-1] for line in lines if "│" in line]
    assert rows == [["kNN top-1", "48.0"], ["svm k=1 mAP cv", "52.0 ± 1.3"]]


def test_demo_picture_draws_what_the_runs_wrote_and_is_reproducible(tmp_path: Path):
    for run, stages in (("teacher", 1), ("student", 2)):
        for stage in range(1, stages + 1):
            folder = tmp_path / run / f"stage{stage}"
            folder.mkdir(parents=True)
            metrics = StepFile(folder / "metrics.csv", COLUMNS)
            metrics.start(0)
            for step in (20, 40):
                numbers = {"loss": 1 / step, "learning_rate": 0.1}
                if run == "student":
                    numbers |= {"kl": 3 / step, "feature_similarity": 1 / step}
                metrics.append([{"step": step, "epoch": 0, **numbers}])
    files = [tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "c.png"]
    demo_picture(RESULTS, tmp_path / "teacher", tmp_path / "student", files)
    svg = files[0].read_text()
    assert svg == files[1].read_text()
    assert "weights become bits" in svg or svg.count("<path") > 50
    assert files[2].read_bytes().startswith(b"\x89PNG")


IMBALANCED = {"num_classes": 2, "largest_class": 63.78}


def printed(table: object) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    lines = [line for line in text.getvalue().splitlines() if "│" in line]
    return [[cell.strip() for cell in line.split("│")][1:-1] for line in lines]


def test_largest_class_is_a_floor_of_accuracies_on_imbalanced_images():
    knn = replace(result("x", "knn", 63.8), data=IMBALANCED)
    assert majority_accuracy(knn) == 63.78
    assert majority_accuracy(replace(knn, metric="10% top1", protocol="semi")) == 63.78
    assert majority_accuracy(replace(knn, metric="top5")) is None
    assert majority_accuracy(replace(knn, protocol="svm", metric="full mAP cv")) is None
    two = {"num_classes": 2}
    for data in (None, {}, two | {"largest_class": 55.0}, {"largest_class": 63.0},
                 two | {"largest_class": "63"}, two | {"largest_class": 640},
                 {"num_classes": 0, "largest_class": 63.0}):  # fmt: skip
        assert majority_accuracy(replace(knn, data=data)) is None


def test_tables_show_the_largest_class_beside_accuracies():
    one = [replace(r, model="x", data=IMBALANCED) for r in RESULTS[:2]]
    assert printed(results_table(one))[-1] == ["always the largest class", "63.8"]
    both = [replace(r, data=IMBALANCED) for r in RESULTS]
    assert printed(results_table(both))[-1] == ["always the largest class", "63.8 %", "63.8 %", ""]
    campaign = [replace(r, settings={"lr": 1.0, "epochs": 1, "augment": "none"}) for r in both[:2]]
    assert printed(comparison_table(campaign))[-1][:3] == [
        "always the largest class", "63.8", "63.8"
    ]  # fmt: skip
    assert "| always the largest class | 63.8 | 63.8 |" in comparison_markdown(campaign)
    others = {"num_classes": 10, "largest_class": 23.75}
    transfer = [replace(r, protocol="transfer", data=others) for r in campaign[:1]]
    balanced = [replace(r, data=None) for r in campaign]
    assert "| always the largest class |  |  | 23.8 |" in comparison_markdown(balanced + transfer)
    table = printed(results_table([*RESULTS, *(replace(r, model="y") for r in transfer)]))
    assert table[-1] == ["always the largest class", "", "", "", "23.8 %"]
    assert "largest class" not in comparison_markdown([replace(r, data=None) for r in campaign])


def test_the_page_of_many_networks_takes_time_in_proportion():
    """Eight times as many took 60 times as long when each was looked for among all."""

    def seconds(count: int) -> float:
        found = tuple(
            LocatedResult(
                replace(result(f"net{i}", "knn", i % 40), checkpoint=f"{i}"), Path(), None
            )
            for i in range(count)
        )
        began = time.process_time()
        tables = result_tables(networks(Gathered((), (), found)))
        assert len(tables[0].rows) == count
        return time.process_time() - began

    # Proportional is 8 times; the margin is for caches that become too small.
    assert min(seconds(3200) for _ in range(2)) < 24 * min(seconds(400) for _ in range(3))
