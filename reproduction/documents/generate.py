"""Write the results' pages, pictures, and tables of README and the quickstart from their numbers.

    make docs                       # after a number or a word has changed
    python -m reproduction.documents.generate --take runs/compared …   # first copy these runs'

The numbers are in reproduction/results/. --take copies the results and rows of comparisons,
ablations, analyses, demos and reproduction/rivals.sh into it. They give the claims, the comparison,
the ablations, the analyses, the networks that were taught alike and the engine's times. The other
tables, of single measurements, and the text are in pages/ there, a template for each page of
docs/project/results/ and for docs/project/results.md.
benchmarks/engine.py --out writes engine/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from matplotlib import pyplot as plt

from burn.campaigns.ablate import VARIANTS, read_ablation
from burn.campaigns.folder import read_campaign
from burn.core.results import Result, read_results, result_lines
from burn.core.seeds import OverSeeds
from burn.report.render.ablations import ablation_markdown
from burn.report.render.plots import STYLE, comparison_picture, demo_picture
from burn.report.render.tables import comparison_markdown, number_name
from reproduction.analyses.figure import Report
from reproduction.analyses.rows import from_csv
from reproduction.analyses.run import ANALYSES
from reproduction.claims import Campaign, Evidence, claims
from reproduction.documents import engine_figure, family_picture, rivals_picture, search_table
from reproduction.documents.teacher_share import share_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = ROOT / "reproduction/results"
_HEADLINE = (  # of clothing.jsonl, in README
    "random weights, binary",
    "burn, binary, taught by lite0",
    "lite0, float, trained with ImageNet labels",
)
TEST_IMAGES = 5000  # size of CIFAR-10's validation split, on which the claims are evaluated
_BUDGET = 51_200  # images of the comparison on CIFAR-10
_LONGER = "compared-longer.jsonl"  # of methods that need less time for an image, with more of them
_TINY = "compared-tiny.jsonl"
_ABLATED_TINY = "ablated-tiny.jsonl"
_TINY_TEST_IMAGES = 10_000


def main() -> None:
    """Copy the numbers of the given runs, and write all documents and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--take", nargs="*", type=Path, default=[], metavar="RUN")
    for folder in parser.parse_args().take:
        take(folder)
    for name, text in documents().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    draw(DOCS / "pictures")


# --- taking in -----------------------------------------------------------------------------------


def take(folder: Path) -> None:
    """Copy the numbers of a folder of `burn compare`, `ablate`, `analyze`, `demo` or rivals.sh."""
    DATA.mkdir(exist_ok=True)
    names = []
    if (folder / "comparison.json").is_file():
        about = json.loads((folder / "comparison.json").read_text())
        name, results = _comparison(about), read_campaign(folder)
        if name == _TINY:
            results = _with_other_seeds(name, [*results, *_evaluated_beside(folder, results)])
        if name is not None:
            names.append(_keep(name, results))
    if (folder / "ablation.json").is_file():
        runs = json.loads((folder / "ablation.json").read_text())["runs"]
        names += _keep_ablation(read_ablation(folder, runs))
    for name in ANALYSES:
        if (folder / f"{name}.csv").is_file():
            shutil.copy(folder / f"{name}.csv", DATA)
            names.append(name)
        about = folder / f"{name}-parts" / "about.json"
        if about.is_file():
            text = json.dumps(_without_paths(json.loads(about.read_text())), indent=2)
            (DATA / f"{name}.json").write_text(text + "\n")
    if (folder / "rivals.json").is_file():
        measured = json.loads((folder / "rivals.json").read_text(encoding="utf-8"))
        del measured["accuracies"]  # by run, for a measurement that goes on
        (DATA / "rivals.json").write_text(json.dumps(measured, indent=1) + "\n")
        names.append("rivals.json")
    if (folder / "student" / "stage1.json").is_file() and (folder / "results.jsonl").is_file():
        names.append(_keep("demo.jsonl", read_results(folder / "results.jsonl")))
        shutil.rmtree(DATA / "demo", ignore_errors=True)
        for metrics in sorted(folder.glob("*/stage?/metrics.csv")):
            there = DATA / "demo" / metrics.parent.relative_to(folder)
            there.mkdir(parents=True, exist_ok=True)
            shutil.copy(metrics, there)
    print(f"{folder}: {', '.join(names) or 'nothing that is shown'}")


def _comparison(about: dict[str, Any]) -> str | None:
    """Return the file for a comparison with these settings; None for data that is not shown."""
    if about["family"] == "photos":
        return "compared-photos.jsonl" if "clothing" in _short(about["data"]) else None
    if _of_tiny(about["data"]):
        return _TINY
    if not _of_cifar10(about["data"]):
        return None
    if about["teacher"] != "lite0":
        return "compared-label-free.jsonl"
    return "compared.jsonl" if about["budget"] <= _BUDGET else _LONGER


def _of_tiny(data: str) -> bool:
    """Return whether a path is one of those that `reproduction.tiny` writes."""
    return "tiny" in _short(data)


def _of_cifar10(data: str) -> bool:
    return "cifar10" in _short(data)


def _evaluated_beside(folder: Path, results: Sequence[Result]) -> list[Result]:
    """Return what `burn evaluate` wrote about a comparison's runs to FOLDER-svm/MODEL-seedN."""
    evaluated = []
    for run in {(r.model, r.seed): r for r in results}.values():
        file = folder.with_name(f"{folder.name}-svm") / f"{run.model}-seed{run.seed}/results.jsonl"
        if not file.is_file():
            continue
        pretraining = {"pretraining": run.settings.get("pretraining")}
        evaluated += [
            replace(
                r, model=run.model, seed=run.seed, checkpoint=run.checkpoint,
                settings={**r.settings, **pretraining}, training=run.training,
            )
            for r in read_results(file)
        ]  # fmt: skip
    return evaluated


def _with_other_seeds(name: str, results: Sequence[Result]) -> list[Result]:
    """Return results, and before them those that are kept of runs that are not among them."""
    runs = {(r.model, r.seed) for r in results}
    file = DATA / name
    kept = read_results(file) if file.is_file() else []
    return sorted(
        [*(r for r in kept if (r.model, r.seed) not in runs), *results],
        key=lambda r: (r.model, r.seed),
    )


def _keep(name: str, results: Sequence[Result]) -> str:
    results = [
        replace(r, train=_short(r.train), test=_short(r.test), checkpoint=_short(r.checkpoint))
        for r in results
    ]
    (DATA / name).write_text(result_lines(results, DATA), encoding="utf-8")
    return name


def _keep_ablation(results: Sequence[Result]) -> list[str]:
    """Write the variants of the recipe and those of the paper's method, if there are any.

    Of Tiny-ImageNet only the paper's method is shown, beside random weights.
    """
    of_paper = [r for r in results if r.model.startswith("paper")]
    if any(_of_tiny(r.train) for r in results):
        weights = [r for r in results if r.model == "random weights"]
        return [_keep(_ABLATED_TINY, _with_other_seeds(_ABLATED_TINY, [*of_paper, *weights]))]
    if not all(_of_cifar10(r.train) for r in results if r.train):
        return []
    of_recipe = [r for r in results if r.model in VARIANTS and r not in of_paper]
    others = [r for r in results if r.model not in VARIANTS]  # teachers and random weights
    kept = {"ablated.jsonl": of_paper, "ablated-default.jsonl": of_recipe}
    return [_keep(name, [*chosen, *others]) for name, chosen in kept.items() if chosen]


def _short(path: str) -> str:
    """Return the end of a path, without the folders of the machine on which it was recorded."""
    return "/".join(Path(path).parts[-2:])


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    return _short(value) if isinstance(value, str) and value.startswith("/") else value


# --- writing -------------------------------------------------------------------------------------


def documents() -> dict[str, str]:
    """Return the text of every generated document, by its path from docs/."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(DATA / "pages"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    values = dict(
        compared=_table(comparison_markdown(_compared())),
        compared_tiny=_table(comparison_markdown(_results(_TINY))),
        compared_photos=_table(comparison_markdown(_results("compared-photos.jsonl"))),
        label_free=_table(comparison_markdown(_results("compared-label-free.jsonl"))),
        ablated=_table(ablation_markdown(_results("ablated.jsonl"))),
        ablated_tiny=_table(ablation_markdown(_ablated_on_tiny())),
        ablated_default=_table(ablation_markdown(_results("ablated-default.jsonl"))),
        claims=_claims(),
        twice=_accuracies("ablated-102400.jsonl"),
        default=_table_over_seeds("default.jsonl"),
        clothing=_table_over_seeds("clothing.jsonl", count=True),
        shares=share_table(
            default=_results("default.jsonl"),
            clothing=_results("clothing.jsonl"),
            compared=_results("compared.jsonl"),
            label_free=_results("compared-label-free.jsonl"),
        ),
        family=family_picture.table(_rows("family/members"), _on_clothes()),
        engine=_engine(),
        agreement=_agreement(),
        count=_verdicts(),
        search=search_table.table(_rows("search")),
        **{name.replace("-", "_"): _told(name) for name in ANALYSES},
    )
    pages = {
        template.removesuffix(".md.j2"): environment.get_template(template).render(values)
        for template in environment.list_templates(["j2"])
    }
    index = pages.pop("index")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    clothes = _table_over_seeds("clothing.jsonl", _HEADLINE, count=True)
    readme = _between("clothes", clothes, readme)
    picture = f"![{_engine().title}](docs/pictures/engine.svg)"
    quickstart = (DOCS / "guide/quickstart.md").read_text(encoding="utf-8")
    choosing = (DOCS / "guide/choosing.md").read_text(encoding="utf-8")
    return {
        "project/results.md": index,
        **{f"project/results/{name}.md": text for name, text in pages.items()},
        "../README.md": _between("engine", picture, readme),
        "guide/quickstart.md": _between("demo", _demo_table(), quickstart),
        "guide/choosing.md": _between("rivals", rivals_picture.table(_rivals()), choosing),
    }


def draw(folder: Path) -> None:
    """Draw every picture into `folder`."""
    comparison_picture(_results("compared.jsonl"), folder / "comparison.svg")
    _engine().draw(folder / "engine.svg")
    _teacher(folder / "teacher.svg")
    search_table.draw(
        _rows("search"),
        _results("compared.jsonl"),
        _results("default.jsonl"),
        folder / "search.svg",
    )
    family_picture.draw(_rows("family/members"), _on_clothes(), folder / "family.svg")
    rivals_picture.draw(_rivals(), folder / "rivals.svg")
    demo = _results("demo.jsonl")
    demo_picture(demo, DATA / "demo/teacher", DATA / "demo/student", [folder / "demo.svg"])
    for name in ANALYSES:
        if (DATA / f"{name}.csv").is_file():
            _analysis(name).draw(folder / f"{name}.svg")


def _teacher(file: Path) -> None:
    """Draw the curves of the teacher that was trained without labels."""
    rows = _rows("teacher")
    epochs = [row["epoch"] for row in rows]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
        left.plot(epochs, [row["loss"] for row in rows], color="#2e6fb7", lw=1.4)
        left.set_title("SimCLR's loss")
        right.plot(epochs, [100 * row["knn"] for row in rows], color="#2e6fb7", lw=1.4)
        right.set_title("kNN accuracy on 200 training images, %")
        for panel in (left, right):
            panel.set_xlabel("epoch")
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def _results(name: str) -> list[Result]:
    return read_results(DATA / name)


def _ablated_on_tiny() -> list[Result]:
    return _results(_ABLATED_TINY) if (DATA / _ABLATED_TINY).is_file() else []


def _on_clothes() -> list[Result]:
    files = ("family/clothes.jsonl", "compared-photos.jsonl", "clothing.jsonl")
    return [result for file in files for result in _results(file)]


def _rows(name: str) -> list[dict[str, Any]]:
    file = DATA / f"{name}.csv"
    return from_csv(file.read_text(encoding="utf-8").splitlines(), str(file))


def _rivals() -> list[dict[str, Any]]:
    """Return the rows that benchmarks/rivals.py wrote."""
    return json.loads((DATA / "rivals.json").read_text(encoding="utf-8"))["rows"]


def _engine() -> Report:
    """Return the report on every machine that benchmarks/engine.py measured, the fastest first."""
    machines = [json.loads(file.read_text("utf-8")) for file in sorted(DATA.glob("engine/*.json"))]

    def fastest(machine: dict[str, Any]) -> float:
        return min(
            row["milliseconds"]
            for row in machine["rows"]
            if row["runtime"] == "burn-engine" and row["size"] == 224 and row["threads"] == 1
        )

    return engine_figure.engine(sorted(machines, key=fastest))


def _agreement() -> str:
    """Return the table of how often packed networks of every backbone decide as in PyTorch."""
    rows = [json.loads(line) for line in (DATA / "agreement.jsonl").read_text().splitlines()]
    columns = [
        ("burn", "cifar10"), ("feature_only", "cifar10"), ("supervised", "cifar10"),
        ("supervised", "digits"),
    ]  # fmt: skip
    names = "burn | feature_only | with labels | with labels, digits"
    lines = [f"| network | width | {names} |", "|---|---:|---:|---:|---:|---:|"]
    for name in dict.fromkeys(row["network"] for row in rows):
        network_rows = [row for row in rows if row["network"] == name]
        cells = []
        for method, data in columns:
            here = [r for r in network_rows if (r["method"], r["data"]) == (method, data)]
            here.sort(key=lambda row: row["steps"])
            cells.append(
                ", ".join(f"{100 * r['same_class']:.2f} % ({r['steps']} steps)" for r in here)
            )
        lines.append(f"| `{name}` | {network_rows[0]['width']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _analysis(name: str) -> Report:
    """Return the report of an analysis, from its rows and what they were measured with."""
    about = DATA / f"{name}.json"
    conditions = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    return ANALYSES[name].describe(_rows(name), conditions)


def _told(name: str) -> str:
    """Return picture, text and table of an analysis, or "" if it has no rows yet."""
    if not (DATA / f"{name}.csv").is_file():
        return ""
    report = _analysis(name)
    return "\n\n".join(
        p for p in (f"![{report.title}](../../pictures/{name}.svg)", report.text, report.table) if p
    )


def _compared() -> list[Result]:
    """Return the results of the comparison, with those of fine-tuning that were measured later.

    These are of other networks. Those with 1 % of the labels replace earlier ones, see the page.
    """
    later = [r for share in (10, 1) for r in _results(f"compared-semi{share}.jsonl")]
    replaced = {(r.model, r.seed, r.metric) for r in later}
    kept = (r for r in _results("compared.jsonl") if (r.model, r.seed, r.metric) not in replaced)
    return [*kept, *later]


def _tiny() -> Campaign:
    compared, ablated = _results(_TINY), _ablated_on_tiny()
    return Campaign("Tiny-ImageNet", _TINY_TEST_IMAGES, compared, ablated)


def _evidence() -> Evidence:
    rows = {
        name: _rows(name) if (DATA / f"{name}.csv").is_file() else []
        for name in ("gradients", "ema-toy", "negatives")
    }
    return Evidence(
        TEST_IMAGES,
        _compared(),
        _results("ablated.jsonl"),
        rows["gradients"],
        rows["ema-toy"],
        rows["negatives"],
        [_tiny()],
        _results(_LONGER) if (DATA / _LONGER).is_file() else [],
    )


def _claims() -> str:
    lines = ["| the paper says | its numbers | here | |", "|---|---|---|---|"]
    for claim in claims(_evidence()):
        lines.append(
            f"| {claim.text} ({claim.where}) | {claim.paper} | {claim.here} | **{claim.verdict}** |"
        )
    return "\n".join(lines)


def _verdicts() -> dict[str, int]:
    verdicts = [claim.verdict for claim in claims(_evidence())]
    return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}


def _demo_table() -> str:
    """Return the table of each network's top-1 in the demo."""
    results = [r for r in _results("demo.jsonl") if r.metric == "top1"]
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    names = (number_name(*column).removesuffix(" top-1") for column in columns)
    lines = [f"| network | {' | '.join(names)} |", "|---|" + "---|" * len(columns)]
    for model in dict.fromkeys(r.model for r in results):
        numbers = {(r.protocol, r.metric): f"{r.value:.1f} %" for r in results if r.model == model}
        lines.append(f"| {model} | {' | '.join(numbers[column] for column in columns)} |")
    return "\n".join(lines)


def _table(text: str) -> str:
    """Return a table without the paragraph below it, which the page replaces by its own."""
    return text.rpartition("\n\n")[0]


def _accuracies(file: str) -> dict[str, OverSeeds]:
    """Return top-1 by protocol of the one network in a file of results, over its seeds."""
    results = _results(file)
    return {name: OverSeeds.of(_top1(results, name)) for name in ("knn", "linear")}


def _top1(results: Sequence[Result], protocol: str) -> list[float]:
    return [r.value for r in results if (r.protocol, r.metric) == (protocol, "top1")]


def _table_over_seeds(file: str, models: Sequence[str] = (), *, count: bool = False) -> str:
    """Return top-1 of each network in a file of results, over its runs.

    Args:
        file: File of the results.
        models: The networks to show; all if it is empty.
        count: Whether to say how many runs a number is of.
    """
    results = _results(file)
    lines = ["| network | kNN | linear |", "|---|---|---|"]
    if count:
        lines = ["| network | kNN | linear | runs |", "|---|---|---|---:|"]
    for model in models or dict.fromkeys(r.model for r in results):
        cells: list[str] = []
        runs = ""
        for protocol in ("knn", "linear"):
            values = _top1([r for r in results if r.model == model], protocol)
            cells.append(f"{OverSeeds.of(values)} %" if values else "–")
            runs = str(len(values))
        cells += [runs] if count else []
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _between(name: str, content: str, text: str) -> str:
    """Return the text with the part between <!-- name --> and <!-- /name --> replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    changed, count = pattern.subn(lambda m: f"{m[1]}{content}{m[2]}", text)
    assert count == 1, f"no place for {name}"
    return changed


if __name__ == "__main__":
    main()
