import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from burn.cli.main import main
from burn.core.errors import UserError
from burn.paper.ablations import GROUPS
from burn.paper.numbers import ablation_figure, figures, paper_figure
from burn.report import page as html
from burn.report.load.datasets import DATASETS, difference
from burn.report.load.gather import gather
from burn.report.model import networks, verdict
from burn.report.page import MOST_BYTES
from burn.report.render import charts
from burn.report.render.charts import COLOURS, Line, Scale, curves
from burn.report.render.templates import unbroken
from burn.report.sections.ladder import ladder
from burn.report.write import write_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def drawn() -> None:
    """For the tests that look at pictures."""


@pytest.fixture(autouse=True)
def _empty_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of curves, which take most of a page's time, are left empty elsewhere."""

    def empty(figure: Figure, key: str) -> str:
        pyplot.close(figure)
        return "<svg></svg>"

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(charts, "_svg", empty)


def page_of(tmp_path: Path, *folders: Path) -> str:
    write_report(folders, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def words_of(page: str) -> str:
    """What a reader sees, in one line."""
    body = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", body).split())).replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_papers_figures_are_those_of_its_tables():
    assert len(figures()) == 198
    found = paper_figure("linear", "top1", {}, "burn", "imagenet")
    assert found is not None
    assert (found.number, found.value) == (2, 62.29)
    few = paper_figure("svm", "k=16 mAP oracle", {}, "s2bnn", "imagenet")
    assert few is not None
    assert (few.number, few.value, few.std) == (3, 61.86, 1.14)
    transfer = paper_figure("transfer", "top1", {"settings": "cub200"}, "burn", "imagenet")
    assert transfer is not None
    assert (transfer.number, transfer.value) == (4, 49.62)
    detection = paper_figure("detection", "AP", {}, "burn", "imagenet")
    assert detection is not None
    assert (detection.number, detection.value) == (1, 41.0)
    assert paper_figure("knn", "top1", {}, "burn", "imagenet") is None
    assert paper_figure("svm", "k=16 mAP cv", {}, "burn", "imagenet") is None


def test_every_ablation_with_a_number_of_the_paper_finds_it():
    named = [row.paper for group in GROUPS for row in group.rows if row.paper]
    assert named
    assert all(ablation_figure(*pair) for pair in named)


@pytest.mark.usefixtures("drawn")
def test_a_page_of_everything_is_one_file_that_needs_nothing_else(tmp_path: Path):
    folders = samples.everything(tmp_path / "runs")
    page = page_of(tmp_path, *folders)
    assert page_of(tmp_path, *folders) == page  # byte for byte
    assert len(page.encode()) < 1_000_000
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    assert "http" not in re.sub(r'xmlns(:\w+)?="http[^"]*"|http-equiv', "", page)
    assert len(set(re.findall(r'\bid="([^"]*)"', page))) == len(re.findall(r'\bid="', page))
    for role in re.findall(r"var\(--(\w[\w-]*)\)", page):
        assert f"--{role}:" in page
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r'\bclass="([^"]*)"', page))))
    styled = set(re.findall(r"\.([a-z][\w-]*)", page.partition("</style>")[0]))
    assert named <= styled
    text = words_of(page)
    for said in (
        "It learned.", "reaches 44.3 % (kNN top-1), where random weights give 21.0 %",
        "Collapsed target: ", "student (stage 1, step 60)", "AMD EPYC 9B14", "b60c5f4", "292 kB",
        "1/24.5 of float32", "what each component adds", "Size of the gradients, by part",
        "Dead channels, by layer", "The distance is larger for bits.",
    ):  # fmt: skip
        assert said in text


def test_paper_stands_beside_with_what_differs(tmp_path: Path):
    run = samples.run(tmp_path / "student", teacher="runs/teacher")
    text = words_of(page_of(tmp_path, run, samples.evaluation(tmp_path / "evaluated", str(run))))
    assert "other data (yours: cifar10/train.parquet, 40,000 images; paper: ImageNet" in text
    assert "0.02 % of the paper's images seen (102,400)" in text
    assert "46.3 62.29 BURN −16.0 2" in text  # linear, here and there
    assert "kNN top-1 44.3 — — —" in text
    assert "33.2 41 BURN −7.8 1" in text
    assert "Your data are not the paper’s" in text
    assert "iterations 800 (paper: 24000)" in text


def test_nothing_differs_where_data_budget_and_settings_are_the_papers(tmp_path: Path):
    run = samples.run(tmp_path / "imagenet", images=1_281_167, teacher="moco")
    about = json.loads((run / "run.json").read_text())
    recipe = about["plan"]["recipe"] | {"batch_size": 2048, "backbone": {"width": 1.0}}
    recipe |= {"views": {"size": 224}, "burn": {"classifier": "joint"}}
    about["plan"]["recipe"] = recipe
    about["teacher"]["architecture"] = "resnet50"
    (run / "run.json").write_text(json.dumps(about))
    for stage in (1, 2):
        meta = json.loads((run / f"stage{stage}.json").read_text()) | {"steps": 125_000}
        (run / f"stage{stage}.json").write_text(json.dumps(meta))
    settings = samples.LINEAR | {"augment": "crop"}
    data = {"num_classes": 1000, "train_images": 1_281_160, "test_images": 50_000}
    result = samples.result("linear", "top1", 63.0, "x", str(run), test="photos/val",
                            settings=settings, data=data)  # fmt: skip
    samples.append_results(tmp_path / "evaluated" / "results.jsonl", [result])
    page = page_of(tmp_path, run, tmp_path / "evaluated")
    assert "Another experiment" not in page
    assert "Your data are not" not in page
    assert re.search(r'<td class="good n"[^>]*>\+0\.7', page)


def test_names_of_strangers_are_text(tmp_path: Path):
    folder = tmp_path / "evaluated"
    evil = tmp_path / EVIL.replace("/", "∕")
    run = samples.run(evil, name=EVIL, detailed=True)
    for file in (run / "stage1" / "gradients.csv", run / "stage1" / "layers.csv"):
        text = file.read_text().replace("student", EVIL).replace("blocks.3.conv1", EVIL)
        file.write_text(text)
    samples.evaluated(folder / "results.jsonl", EVIL, EVIL, 50.0)
    samples.confusion(folder, [EVIL, "ça \u202e\ud800 va"], [[3, 1], [0, 2]])
    samples.neighbours(folder, rows=2, label=EVIL)
    analysis = tmp_path / "analysis"
    analysis.mkdir()
    (analysis / "x.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{EVIL}</svg>")
    (analysis / "x.md").write_text(f"# {EVIL}\n\n{EVIL}\n\n| {EVIL} |\n|---|\n| {EVIL} |\n")
    compared = samples.comparison(tmp_path / "compared", burn=(40.0,))
    samples.evaluated(compared / "burn-seed0" / "compared.jsonl", EVIL, "c", 41.0)
    page = page_of(tmp_path, run, folder, analysis, compared)
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page
    assert re.search(r"script-src 'sha256-[\w+/=]{44}'", page)


def test_newest_of_two_like_numbers_counts(tmp_path: Path):
    file = tmp_path / "evaluated" / "results.jsonl"
    for value in (30.0, 40.0):
        samples.evaluated(file, "x", "runs/x", value)
    (network,) = networks(gather([tmp_path / "evaluated"]))
    number = network.find("knn", "top1")
    assert number is not None
    assert number.values == [40.0]


def test_settings_that_differ_make_two_numbers(tmp_path: Path):
    results = [
        samples.result("linear", "top1", v, "x", "runs/x", settings={"lr": lr, "epochs": 100})
        for v, lr in ((44.0, 30.0), (53.0, 0.003))
    ]
    samples.append_results(tmp_path / "j" / "results.jsonl", results)
    (network,) = networks(gather([tmp_path / "j"]))
    labels = [n.label for n in network.numbers]
    assert labels == ["linear top-1, lr 30", "linear top-1, lr 0.003"]


@pytest.mark.parametrize(
    ("value", "word"), [(44.0, "yes"), (23.0, "barely"), (21.5, "no"), (12.0, "no")]
)
def test_verdict_is_by_the_distance_from_random_weights(tmp_path: Path, value: float, word: str):
    samples.evaluated(tmp_path / "j" / "results.jsonl", "burn_small, stage 2", "runs/x", value)
    samples.evaluated(tmp_path / "j" / "results.jsonl", "random reactnet_a, binary", "runs/x", 21.0)
    assert verdict(networks(gather([tmp_path / "j"]))).word == word


def test_without_a_floor_it_is_not_told(tmp_path: Path):
    samples.evaluated(tmp_path / "j" / "results.jsonl", "burn_small, stage 2", "runs/x", 44.0)
    text = words_of(page_of(tmp_path, tmp_path / "j"))
    assert "no result of the same network with random weights was given" in text
    assert "It learned" not in text


def test_seeds_of_a_comparison_are_one_network(tmp_path: Path):
    folder = samples.comparison(tmp_path / "compared", burn=(44.0, 42.0), byol=(36.0,))
    found = {n.name: n for n in networks(gather([folder]))}
    assert set(found) == {"BURN", "BYOL", "random weights", "teacher"}
    number = found["BURN"].find("knn", "top1")
    assert number is not None
    assert number.mean == 43.0
    assert number.spread == pytest.approx(2**0.5)
    assert [run.name for run in found["BURN"].runs] == ["burn-seed0", "burn-seed1"]
    assert found["random weights"].kind == "random"
    assert found["teacher"].kind == "float"


def test_a_run_beside_its_comparison_is_read_once(tmp_path: Path):
    folder = samples.comparison(tmp_path / "compared", burn=(44.0,))
    found = gather([folder / "burn-seed0", folder])
    assert [run.chosen for run in found.runs] == [True]
    assert len(found.results) == 9


def test_a_run_under_way_is_shown_as_such(tmp_path: Path):
    run = samples.run(tmp_path / "student", finished=False)
    text = words_of(page_of(tmp_path, run))
    assert "Not trained to its end." in text
    assert "trained on cifar10/train.parquet: 1 of 2 stages are done" in text
    assert "not trained to its end: 1 of 2 stages, at step 200 of the next" in text
    assert "The command that began it goes on with --resume" in text


def test_a_run_without_a_classifier_has_no_classes_and_no_course_of_lambda(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    about = json.loads((run / "run.json").read_text())
    burn = about["plan"]["recipe"]["burn"]
    burn |= {"similarity": "cosine", "lam": "constant", "num_classes": 2000}
    for classifier in ("joint", "none"):
        burn["classifier"] = classifier
        (run / "run.json").write_text(json.dumps(about))
        text = words_of(page_of(tmp_path, run))
        assert ("feature similarity alone, cosine" in text) == (classifier == "none")
        assert ("2,000 classes" in text) == (classifier == "joint")


def headline(page: str) -> str:
    return words_of(re.findall(r"(?s)<h1>.*?</h1>", page)[0])


def is_full(page: str) -> bool:
    """Whether every section has something below its heading."""
    sections = re.findall(r"(?s)<section .*?</section>", page)
    bare = [re.sub(r"(?s)<h2>.*?</h2>", "", section) for section in sections]
    return all(words_of(section) for section in bare)


def test_a_run_alone_says_what_to_type_next(tmp_path: Path):
    run = samples.run(tmp_path / "stu dent")
    page = page_of(tmp_path, run)
    assert headline(page) == "Trained, not evaluated yet."
    assert f"burn evaluate knn '{run}' --train TRAIN --test TEST" in words_of(page)
    assert is_full(page)
    assert "Beside the paper" not in page


def test_a_evaluatement_alone_says_how_to_measure_the_floor(tmp_path: Path):
    file = tmp_path / "evaluated" / "results.jsonl"
    samples.evaluated(file, "burn_small, stage 2", "runs/x", 44.3)
    page = page_of(tmp_path, tmp_path / "evaluated")
    assert headline(page) == "44.3 % kNN top-1."
    assert (
        "burn evaluate knn runs/x --random-init --train /data/cifar10/train.parquet --test "
        f"/data/cifar10/val.parquet --out {tmp_path / 'evaluated'}"
    ) in words_of(page)
    assert is_full(page)


def test_a_comparison_alone_says_where_burn_stands(tmp_path: Path):
    folder = samples.comparison(
        tmp_path / "compared", burn=(44.0, 42.0), s2bnn=(46.0,), supervised=(50.0,)
    )
    page = page_of(tmp_path, folder)
    assert headline(page) == "BURN is second of 2."
    assert (
        "by kNN top-1: S2-BNN 46.0 % and BURN 43.0 ± 1.4 %. For reference: random weights 21.0 % "
        "and the float teacher 48.2 %."
    ) in words_of(page)
    assert is_full(page)


def test_two_campaigns_keep_their_teacher_and_floor_each(tmp_path: Path):
    compared = samples.comparison(tmp_path / "compared", burn=(44.0,), byol=(36.0,))
    ablated = samples.ablation(tmp_path / "ablated")
    samples.evaluated(ablated / "teacher.jsonl", "teacher", "runs/teacher", 48.2)
    found = networks(gather([compared, ablated]))
    for name in ("teacher", "random weights"):
        assert {n.group for n in found if n.name == name} == {compared, ablated}
    page = page_of(tmp_path, compared, ablated)
    rungs = words_of(re.findall(r'(?s)<figure class="ladder".*?</figure>', page)[0])
    assert "teacher float kNN top-1 48.2" in rungs


@pytest.mark.parametrize("told", [True, False])
def test_an_ablation_alone_says_the_best_and_what_is_usual(tmp_path: Path, told: bool):
    folder = samples.ablation(tmp_path / "ablated")
    if not told:
        about = json.loads((folder / "ablation.json").read_text())
        del about["runs"]
        (folder / "ablation.json").write_text(json.dumps(about))
    page = page_of(tmp_path, folder)
    assert headline(page) == "5 variants of burn_small."
    text = words_of(page)
    assert "the best is joint with 44.2 ± 0.4 %; what burn_small does anyway gives 42.2" in text
    assert "two-stages, kNN top-1" in text
    assert "Gradient of the activations' sign" in text if told else True
    assert is_full(page)


def test_detection_alone(tmp_path: Path):
    picture = Image.new("RGB", (20, 20))
    folder = tmp_path / "det"
    found = samples.result("detection", "AP", 33.2, "burn_small, stage 2", "runs/x",
                           train="bccd:trainval", test="bccd:test")  # fmt: skip
    samples.append_results(folder / "results.jsonl", [found])
    picture.save(folder / "detections.png")
    page = page_of(tmp_path, folder)
    assert headline(page) == "33.2 % detection AP."
    assert is_full(page)


def test_an_analysis_is_called_what_its_text_is_called(tmp_path: Path):
    folder = tmp_path / "an1"
    folder.mkdir()
    (folder / "x.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    rows = "| a | b |\n|---|---:|\n| x | 4.5 → 3 |\n| y | – |"
    (folder / "x.md").write_text(f"# How λ falls\n\n![](x.svg)\n\nIt falls.\n\n{rows}\n")
    page = page_of(tmp_path, folder)
    assert headline(page) == "How λ falls."
    assert "an1" not in re.findall(r"(?s)<nav.*?</nav>", page)[0]
    assert '<td class="n" data-k="4.5">4.5 → 3</td>' in page
    assert is_full(page)


def test_numbers_of_other_settings_stand_not_on_one_scale(tmp_path: Path):
    about = {"k": 20, "temperature": 0.07}
    found = [
        samples.result("knn", "top1", 44.0, "burn_small, stage 2", "runs/x", settings=about),
        samples.result("knn", "top1", 30.0, "random reactnet_a", "runs/x",
                       settings=about | {"k": 200}),
    ]  # fmt: skip
    samples.append_results(tmp_path / "j" / "results.jsonl", found)
    answer = verdict(networks(gather([tmp_path / "j"])))
    assert (answer.word, answer.floor) == ("unknown", None)


def test_features_that_collapse_are_an_alarm_while_the_stage_is_under_way(tmp_path: Path):
    run = samples.run(tmp_path / "student", finished=False)
    rows = [
        {"step": step, "loss": 1.0, "feature_rank": rank, "feature_spread": 0.4}
        for step, rank in ((20, 2.0), (40, 20.0), (60, 2.0), (80, 1.5))
    ]
    samples.table(run / "stage2" / "metrics.csv", rows)
    page = page_of(tmp_path, run)
    assert headline(page) == "Its features collapsed."
    assert "Collapsed features: student (stage 2, step 80)." in words_of(page)


def test_the_batch_is_the_one_that_was_trained_on(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    assert "batch 128" in words_of(page_of(tmp_path, run))
    for stage in (1, 2):
        meta = json.loads((run / f"stage{stage}.json").read_text()) | {"images_per_step": 30}
        (run / f"stage{stage}.json").write_text(json.dumps(meta))
    assert "batch 30" in words_of(page_of(tmp_path, run))


def test_every_stage_names_its_machine_and_commit(tmp_path: Path):
    run = samples.run(tmp_path / "student", teacher="runs/teacher")
    file = run / "stage2.json"
    file.write_text(file.read_text().replace("b60c5f4", "0123abc+").replace("9B14", "9B15"))
    text = words_of(page_of(tmp_path, run))
    for said in ("AMD EPYC 9B14 cpu, 2 cores, 2 threads, 1 process b60c5f4", "9B15", "0123abc+",
                 "40,000 images, fingerprint ab", "resnet18, SHA-256 abababababab",
                 "frozen λ cosine"):  # fmt: skip
        assert said in text


def test_an_old_run_lacks_and_a_newer_one_adds(tmp_path: Path):
    run = samples.run(tmp_path / "old")
    for stage in (1, 2):
        file = run / f"stage{stage}.json"
        meta = json.loads(file.read_text())
        del meta["machine"]
        del meta["monitor"]["seconds"]
        file.write_text(json.dumps(meta | {"unheard_of": [1]}))
    samples.table(run / "stage1" / "metrics.csv", [{"step": 20, "loss": 1, "unheard_of": 2}])
    assert "not recorded" in words_of(page_of(tmp_path, run))


def test_torn_rows_are_left_out_and_told(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    with (run / "stage2" / "metrics.csv").open("a") as file:
        file.write("420,0,0.1\n440,0,bad" + "," * 12 + "\n\0\0\n")
    found = gather([run])
    assert len(found.runs[0].stages[1].metrics.rows) == 20
    assert "3 torn lines" in found.notes[0]


def test_many_classes_are_no_table(tmp_path: Path):
    counts = [[3 if i == j else 0 for j in range(120)] for i in range(120)]
    counts[7][9] = 2
    samples.confusion(tmp_path / "j", [f"class {i}" for i in range(120)], counts)
    page = page_of(tmp_path, tmp_path / "j")
    assert "Accuracy of each class" in page
    assert 'class="confusion"' not in page
    assert "class 7 class 9 2 40.0" in words_of(page)


def test_demo_folder_brings_its_runs(tmp_path: Path):
    folder = tmp_path / "demo"
    samples.run(folder / "student")
    samples.run(folder / "teacher", method="simclr", stages=1)
    samples.evaluated(folder / "results.jsonl", "x", str(folder / "student"), 44.0)
    assert len(gather([folder]).runs) == 2
    assert len(gather([tmp_path]).runs) == 2  # and so does the folder that it lies in


def damage_json(folder: Path) -> None:
    (folder / "stage1.json").write_text('{"stage": ')


def damage_deeply(folder: Path) -> None:
    (folder / "run.json").write_text("[" * 200_000)


def damage_result(folder: Path) -> None:
    (folder / "results.jsonl").write_text('{"protocol": "knn", "value": 1}\n')


def damage_value(folder: Path) -> None:
    samples.evaluated(folder / "results.jsonl", "x", "y", 44.0)
    file = folder / "results.jsonl"
    file.write_text(file.read_text().replace("44.0", "NaN"))


def damage_csv(folder: Path) -> None:
    (folder / "stage1" / "metrics.csv").write_bytes(os.urandom(2000).replace(b"step", b""))


def make_link(folder: Path) -> None:
    (folder / "results.jsonl").symlink_to("/etc/passwd")


def make_huge(folder: Path) -> None:
    with (folder / "results.jsonl").open("wb") as file:
        file.truncate(2**34)


def make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "results.jsonl")


def damage_confusion(folder: Path) -> None:
    samples.confusion(folder, ["a", "b"], [[1, 2], [3]])


def damage_picture(folder: Path) -> None:
    samples.neighbours(folder)
    (folder / "neighbours" / "network.jpg").write_bytes(b"\xff\xd8\xff not a picture")


def small_picture(folder: Path) -> None:
    samples.neighbours(folder, rows=3)
    Image.new("RGB", (10, 10)).save(folder / "neighbours" / "network.jpg")


def picture_elsewhere(folder: Path) -> None:
    samples.neighbours(folder, rows=3)
    file = folder / "neighbours" / "network.json"
    file.write_text(file.read_text().replace("network.jpg", "../../secret.jpg"))


def bomb(folder: Path) -> None:
    Image.new("1", (8_000, 8_000)).save(folder / "detections.png")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (damage_json, r"stage1\.json is damaged"),
        (damage_deeply, r"run\.json is damaged"),
        (damage_result, "line 1 is not a result"),
        (damage_value, "line 1 is not a result"),
        (damage_csv, r"metrics\.csv is damaged"),
        (make_link, "results.jsonl is a link"),
        (make_huge, "has 16384 MB"),
        (make_pipe, "is not a regular file"),
        (damage_confusion, r"confusion\.json is damaged"),
        (damage_picture, r"network\.jpg is not a complete PNG or JPEG"),
        (small_picture, "names more images than its picture holds"),
        (picture_elsewhere, r"network\.json is damaged"),
        (bomb, "more pixels than a report shows"),
    ],
)
def test_damage_is_one_line_that_names_the_file(tmp_path: Path, harm, says: str):
    run = samples.run(tmp_path / "student")
    harm(run)
    with pytest.raises(UserError, match=says):
        write_report([run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_folders_that_are_none(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        gather([tmp_path / "file"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds nothing that a report shows"):
        gather([tmp_path / "empty"])


def test_out_that_cannot_be(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    with pytest.raises(UserError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        write_report([run], tmp_path / "nowhere" / "page.html")
    with pytest.raises(UserError, match="cannot be written"):
        write_report([run], Path("/proc/page.html"))


def test_a_page_too_large_is_shrunk_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = samples.evaluation(tmp_path / "evaluated")
    whole = len(page_of(tmp_path, folder))
    assert whole < MOST_BYTES
    monkeypatch.setattr(html, "MOST_BYTES", whole - 1)
    page = page_of(tmp_path, folder)
    assert len(page) < whole
    assert "Pictures were made smaller" in page
    monkeypatch.setattr(html, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="give fewer folders"):
        page_of(tmp_path, folder)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = samples.run(tmp_path / "student")
    out = tmp_path / "r.html"
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert re.fullmatch(rf"-> {re.escape(str(out))} \(\d+ kB\)\n", capsys.readouterr().out)
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["results.jsonl", "run.json"])
def test_no_file_but_a_page_is_replaced(name: str, tmp_path: Path):
    (tmp_path / name).write_text('{"a": 1}\n')
    with pytest.raises(UserError, match="exists and is not a page"):
        write_report([tmp_path], tmp_path / name)
    assert (tmp_path / name).read_text() == '{"a": 1}\n'


def test_json_that_lies_too_deep_is_damaged(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"plan": ' + "[" * 900 + "]" * 900 + "}")
    with pytest.raises(UserError, match="is damaged"):
        write_report([tmp_path], tmp_path / "report.html")


IMBALANCED = samples.ABOUT_DATA | {"test_images": 196, "largest_class": 63.78}


def test_forty_networks_in_one_file(tmp_path: Path):
    file = tmp_path / "j" / "results.jsonl"
    for place in range(40):
        samples.evaluated(file, f"network {place % 20}", f"runs/{place}", 20.0 + place)
    samples.evaluated(file, "random reactnet_a, binary", "runs/3", 15.0)
    page = page_of(tmp_path, tmp_path / "j")
    rungs = words_of(re.findall(r'(?s)<figure class="ladder".*?</figure>', page)[0])
    assert "in percent of cifar10/val.parquet; 25 more networks are in All results" in rungs
    assert rungs.count("kNN top-1") == 1 + 16
    assert "network 19 (runs/39) kNN top-1 59.0" in rungs  # the best, which the answer is about
    assert "random reactnet_a, binary kNN top-1 15.0" in rungs
    assert words_of(page).count("network 7") >= 2  # all are in the table


def test_data_sets_are_known_by_classes_and_counts():
    voc = DATASETS["voc07"]
    data = {"num_classes": 20, "classes": voc.names.split(), "train_images": 5_011,
            "test_images": 4_952}  # fmt: skip
    assert difference(data, "voc07") == ""
    assert difference(data | {"classes": sorted(voc.names.upper().split())}, "voc07") == ""
    assert difference(data | {"classes": [str(i) for i in range(20)]}, "voc07") == ""
    assert difference(data | {"test_images": 4_900}, "voc07") == ""  # a few are unreadable
    assert difference(data | {"test_images": 500}, "voc07") == (
        "another number of images (yours: 5,011 training and 500 test images; paper: VOC07, "
        "5,011 training and 4,952 test images)"
    )
    other = [f"cell {i}" for i in range(20)]
    assert "yours: other classes: cell 0, cell 1, cell 2 …" in (
        difference(data | {"classes": other}, "voc07")
    )
    assert "yours: 3 classes, 5,011 training" in difference(data | {"num_classes": 3}, "voc07")
    assert len(set(DATASETS["cifar100"].names.split())) == 100
    assert set(DATASETS) == {f.dataset for f in figures()} | {"imagenet"}


@pytest.mark.parametrize("path", ["/data/imagenet/val", "voc/my-own", "cub"])
def test_a_path_makes_no_data_set(tmp_path: Path, path: str):
    run = samples.run(tmp_path / "student")
    numbers = [
        samples.result("linear", "top1", 63.0, "burn_small, stage 2", str(run), test=path),
        samples.result("linear", "top5", 83.0, "burn_small, stage 2", str(run), test=path),
    ]
    samples.append_results(tmp_path / "j" / "results.jsonl", numbers)
    text = words_of(page_of(tmp_path, run, tmp_path / "j"))
    assert "other images (yours: 10 classes, 40,000 training and 5,000 test images; paper:" in text


def test_results_that_do_not_say_their_images_have_no_row_beside_the_paper(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    old = samples.result("linear", "top1", 63.0, "burn_small, stage 2", str(run), data=None,
                         test="imagenet/val")  # fmt: skip
    samples.append_results(tmp_path / "j" / "results.jsonl", [old])
    page = page_of(tmp_path, run, tmp_path / "j")
    assert "62.29" not in page
    assert (
        "Not compared, since their results do not say which classes and how many images they were "
        "measured on, as those of burn 0.1.0 do not (evaluate again): burn_small, stage 2: linear "
        "top-1."
    ) in words_of(page)


def test_a_file_of_results_of_the_first_version_is_read(tmp_path: Path):
    file = tmp_path / "j" / "results.jsonl"
    samples.evaluated(file, "burn_small, stage 2", "runs/x", 44.0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["data"], line["training"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert headline(page_of(tmp_path, tmp_path / "j")) == "44.0 % kNN top-1."


def test_a_method_is_compared_with_itself_or_with_nothing(tmp_path: Path):
    folder = samples.comparison(
        tmp_path / "compared", burn=(44.0,), mocov2=(40.0,), supervised_kl=(50.0,), byol=(36.0,)
    )
    text = words_of(page_of(tmp_path, folder))
    theirs = paper_figure("linear", "top1", {}, "mocov2_tuned", "imagenet")
    assert theirs is not None
    gap = f"{theirs.value - 42:.1f}"
    assert f"MoCo v2 linear top-1 42.0 {theirs.value:g} tuned MoCo v2 −{gap} 2" in text
    assert "BURN linear top-1 46.0 62.29 BURN −16.3 2" in text
    assert "supervised, KL linear top-1 52.0" not in text
    named = samples.result("linear", "top1", 40.0, "mocov2_small, stage 2", "runs/elsewhere")
    samples.append_results(tmp_path / "j" / "results.jsonl", [named])
    text = words_of(page_of(tmp_path, tmp_path / "j"))
    assert f"mocov2_small, stage 2 linear top-1 40.0 {theirs.value:g} tuned MoCo v2" in text


def test_the_largest_class_is_a_floor_beside_accuracies(tmp_path: Path):
    about = {"data": IMBALANCED}
    found = [
        samples.result("knn", "top1", 63.8, "burn_small, stage 2", "runs/x", **about),
        samples.result("linear", "top5", 99.0, "burn_small, stage 2", "runs/x", **about),
        samples.result("knn", "top1", 40.0, "random reactnet_a, binary", "runs/x", **about),
    ]
    samples.append_results(tmp_path / "j" / "results.jsonl", found)
    page = page_of(tmp_path, tmp_path / "j")
    text = words_of(page)
    assert headline(page) == "It did not learn."  # 24 points above random weights though it is
    assert "40.0 %, and always answering the largest class gives 63.8 %" in text
    assert "always the largest class needs no network 63.8 —" in text
    assert "largest class 63.8 %" in text  # on the tile
    rungs = words_of(re.findall(r'(?s)<figure class="ladder".*?</figure>', page)[0])
    assert "always the largest class kNN top-1 63.8" in rungs
    samples.append_results(tmp_path / "k" / "results.jsonl", found[:1])
    page = page_of(tmp_path, tmp_path / "k")
    assert headline(page) == "No better than always predicting the largest class."
    even = samples.result("knn", "top1", 63.8, "burn_small, stage 2", "runs/x")
    samples.append_results(tmp_path / "l" / "results.jsonl", [even])
    assert "largest class" not in words_of(page_of(tmp_path, tmp_path / "l"))


@pytest.mark.parametrize("given", ["run", "results"])
def test_ten_steps_are_no_verdict(tmp_path: Path, given: str):
    run = samples.run(tmp_path / "student")
    meta = json.loads((run / "stage2.json").read_text()) | {"steps": 10}
    (run / "stage2.json").write_text(json.dumps(meta))
    training = {"stage": 2, "steps": 10, "images_seen": 1280}
    more = {"training": training} if given == "results" else {}
    found = [
        samples.result("knn", "top1", 21.0, "burn_small, stage 2", str(run), **more),
        samples.result("knn", "top1", 21.0, "random reactnet_a, binary", str(run)),
    ]
    samples.append_results(tmp_path / "j" / "results.jsonl", found)
    page = page_of(tmp_path, *([run] if given == "run" else []), tmp_path / "j")
    assert headline(page) == "Inconclusive after 10 steps."
    assert "trained for only 10 optimizer steps (1,280 images seen) in stage 2," in words_of(page)


def test_a_long_training_that_did_not_learn_says_how_long_it_was(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    for model in ("burn_small, stage 2", "random reactnet_a, binary"):
        samples.evaluated(tmp_path / "j" / "results.jsonl", model, str(run), 21.0)
    page = page_of(tmp_path, run, tmp_path / "j")
    assert headline(page) == "It did not learn."
    assert "trained for 400 optimizer steps (51,200 images seen) in stage 2." in words_of(page)


@pytest.mark.parametrize(
    ("protocol", "metric", "data"),
    [
        ("svm", "full mAP cv", None),
        ("knn", "top1", {"num_classes": 1, "train_images": 9, "test_images": 9}),
        ("linear", "top1", {"num_classes": 2, "largest_class": 100.0}),
    ],
)
def test_a_number_that_says_nothing_makes_no_headline(tmp_path: Path, protocol, metric, data):
    found = samples.result(protocol, metric, 100.0, "burn_small, stage 2", "runs/x", data=data)
    samples.append_results(tmp_path / "j" / "results.jsonl", [found])
    page = page_of(tmp_path, tmp_path / "j")
    assert headline(page) == "Not evaluated yet."
    assert "so that these numbers say nothing" in words_of(page)


@pytest.mark.parametrize(("protocol", "metric"), [("svm", "full mAP cv"), ("detection", "AP")])
def test_a_precision_of_a_single_class_is_a_number(tmp_path: Path, protocol: str, metric: str):
    data = {"num_classes": 1, "train_images": 9, "test_images": 9}
    found = samples.result(protocol, metric, 60.0, "burn_small, stage 2", "runs/x", data=data)
    samples.append_results(tmp_path / "j" / "results.jsonl", [found])
    assert headline(page_of(tmp_path, tmp_path / "j")).startswith("60.0 %")


def test_every_rung_has_the_floor_of_its_own_precision(tmp_path: Path):
    run = samples.run(tmp_path / "student")
    file = tmp_path / "j" / "results.jsonl"
    first, second = str(run / "stage1.safetensors"), str(run / "stage2.safetensors")
    samples.evaluated(file, "BURN stage 1, binary activations", first, 50.0)
    samples.evaluated(file, "random, binary activations", first, 24.0)
    samples.evaluated(file, "BURN stage 2, binary", second, 44.0)
    samples.evaluated(file, "random, binary", second, 21.0)
    samples.evaluated(file, "teacher, float", "runs/teacher", 55.0)
    gathered = gather([run, tmp_path / "j"])
    found = networks(gathered)
    answer = verdict(found)
    rungs = ladder(answer, found, gathered.groups)
    assert rungs is not None
    assert {r.name: (r.what, r.floor) for r in rungs.rungs} == {
        "teacher, float": ("", None), "random, binary": ("", None),
        "random, binary activations": ("", None),
        "BURN stage 1, binary activations": ("", 24.0), "BURN stage 2, binary": ("", 21.0),
    }  # fmt: skip
    text = words_of(page_of(tmp_path, run, tmp_path / "j"))
    assert "float float" not in text
    assert "The network BURN stage 2, binary reaches 44.0 %" in text
    assert "teacher, float 55.0" in text


def test_every_network_shows_its_neighbours_the_answers_first(tmp_path: Path):
    folder = samples.evaluation(tmp_path / "evaluated")
    for place in range(8):
        samples.neighbours(folder, rows=1, model=f"other {place}", name=f"a{place}")
    page = page_of(tmp_path, folder)
    section = words_of(re.findall(r'(?s)<section id="neighbours".*?</section>', page)[0])
    shown = re.findall(r"(\S+ \S+ \S+), among cifar10/train", section)
    assert shown[0].endswith("burn_small, stage 2")
    assert section.count("among cifar10/train") == 6
    assert "Neighbours by 6 of 10 networks are shown" in words_of(page)


def test_a_set_of_neighbours_of_the_first_version_is_shown(tmp_path: Path):
    samples.neighbours(tmp_path / "j")
    for file in (tmp_path / "j" / "neighbours").iterdir():
        file.rename(tmp_path / "j" / f"neighbours{file.suffix}")
    text = (tmp_path / "j" / "neighbours.json").read_text()
    (tmp_path / "j" / "neighbours.json").write_text(text.replace("network.jpg", "neighbours.jpg"))
    (tmp_path / "j" / "neighbours").rmdir()
    assert len(gather([tmp_path / "j"]).neighbours) == 1


@pytest.mark.parametrize("alarm", [None, 50.0])
def test_a_line_at_the_top_is_drawn_whole(alarm: float | None, monkeypatch: pytest.MonkeyPatch):
    drawn: list[Any] = []
    subplots = pyplot.subplots
    monkeypatch.setattr(
        pyplot, "subplots", lambda **named: drawn.append(subplots(**named)) or drawn[-1]
    )
    flat = Line("rank", "blue", [[(0.0, 38.0), (9.0, 38.1)]])
    assert curves("rank", [flat], "a", bottom=0, alarm=alarm) is not None
    low, high = drawn[0][1].get_ylim()
    assert low == 0
    assert high == pytest.approx(1.06 * (alarm or 38.1))


def test_the_monitors_knn_says_of_how_many_images_it_is(tmp_path: Path):
    folder = samples.run(tmp_path / "run")
    page = page_of(tmp_path, folder)
    assert "kNN on a few of its training images came to 50.0 %." in page
    for stage in folder.glob("stage*.json"):
        meta = json.loads(stage.read_text())
        meta["monitor"] |= {"knn_images": 60, "knn_chance": 0.117}
        stage.write_text(json.dumps(meta))
    page = page_of(tmp_path, folder)
    assert "kNN on 60 of its training images came to 50.0 %, where chance is 11.7 %." in page
    assert "<dt>kNN while training<br>of 60 images</dt>" in page
    assert "50.0<small>of 60, chance 12</small>" in page


@pytest.mark.usefixtures("drawn")
def test_stages_are_not_joined_in_curves():
    parts = [[(1.0, 0.9), (2.0, 0.5)], [(3.0, 0.9), (4.0, 0.5)]]
    two = curves("λ", [Line("λ", "blue", parts)], "a", stages=[2])
    one = curves("λ", [Line("λ", "blue", [[*parts[0], *parts[1]]])], "a", stages=[2])
    assert two is not None
    assert one is not None

    def lines(svg: str) -> int:
        return len(re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: '
                              r"var\(--blue\)", svg))  # fmt: skip

    assert (lines(one.svg), lines(two.svg)) == (1, 2)


def test_a_diverging_scale_is_neutral_at_its_middle():
    scale = Scale(0.4, 0.6, "burn", "blue")
    assert [scale.level(v) for v in (0.3, 0.4, 0.5, 0.55, 0.6, 0.9)] == [-8, -8, 0, 4, 8, 8]
    assert scale.look(0)["color"] == COLOURS["line"]
    assert scale.look(-8) == {"color": COLOURS["blue"], "alpha": 1.0}
    assert scale.look(4) == {"color": COLOURS["burn"], "alpha": 0.5}
    rising = Scale(0.0, 0.2, "alarm")
    assert [rising.level(v) for v in (-1, 0.0, 0.1, 0.2)] == [0, 0, 4, 8]


@pytest.mark.usefixtures("drawn")
def test_shares_of_plus_one_have_a_bar_around_a_half(tmp_path: Path):
    page = page_of(tmp_path, samples.run(tmp_path / "student", detailed=True))
    part = page[page.index("Activations that are +1, by layer") :]
    part = part[: part.index("</figure>")]
    assert [f">{text}</text>" in part for text in ("45 %", "50 %", "55 %")] == [True] * 3
    assert "pale" not in words_of(page)


def test_a_millisecond_names_pixels_instruction_set_and_processor(tmp_path: Path):
    text = words_of(page_of(tmp_path, samples.evaluation(tmp_path / "evaluated")))
    said = "32 × 32 pixels, 1 thread, avx2, AMD EPYC 9B14"
    assert f"an image in burn-engine {said} 0.069 ms" in text
    assert f"0.0691 {said}" in text
    old = samples.result("pack", "milliseconds", 0.5, "x", "runs/x", data=None)
    samples.append_results(tmp_path / "k" / "results.jsonl", [old])
    assert "0.5 pixels and processor were not recorded" in words_of(
        page_of(tmp_path, tmp_path / "k")
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("burn, stage 2", "burn, stage&nbsp;2"),
        (
            "which --random-init measures",
            'which <span class="option">--random-init</span> measures',
        ),
        ("a stage--2 of <b>", "a stage--2 of &lt;b&gt;"),
    ],
)
def test_what_is_read_as_one_word_stays_on_one_line(text: str, kept: str):
    assert unbroken(text) == kept
