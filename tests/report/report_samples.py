"""Small folders as burn's commands leave them, made up."""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from burn.core.results import Result, append_results

DATA = {"name": "/data/cifar10/train.parquet", "images": 40_000, "fingerprint": "ab"}
CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


ABOUT_DATA = {
    "num_classes": 10, "classes": list(CLASSES), "train_images": 40_000, "test_images": 5_000,
    "train_fingerprint": "ab", "test_fingerprint": "cd", "largest_class": 10.0,
}  # fmt: skip
MEASURED_ON = {"isa": "avx2", "threads": 1, "image_size": 32, "processor": "AMD EPYC 9B14"}
CELLS = {"num_classes": 3, "classes": ["RBC", "WBC", "Platelets"], "train_images": 292,
         "test_images": 72, "train_fingerprint": "ef", "test_fingerprint": "01"}  # fmt: skip


def result(
    protocol: str, metric: str, value: float, model: str, checkpoint: str, **more: Any
) -> Result:
    about: dict[str, Any] = {
        "train": "/data/cifar10/train.parquet", "test": "/data/cifar10/val.parquet", "seed": 0,
        "seconds": 1.5, "settings": {}, "spread": None, "data": ABOUT_DATA,
    }  # fmt: skip
    return Result(protocol, metric, value, model, checkpoint, **(about | more))


def recipe(method: str = "burn", stages: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "method": method, "epochs": 2, "batch_size": 128, "accumulate": 1, "stages": stages,
        "backbone": {"name": "reactnet_a" if stages == 2 else "resnet18", "width": 0.5},
        "burn": {"classifier": "frozen", "lam": "cosine"}, "byol": {"momentum": 0.99},
        "views": {"size": 32}, "optim": {"name": "adam", "lr": 0.002}, **more,
    }  # fmt: skip


def run(
    folder: Path, *, method: str = "burn", stages: int = 2, finished: bool = True,
    collapsed_at: int | None = None, name: str | None = None, detailed: bool = False,
    teacher: str | None = None, images: int = 40_000, single: str = "float",
) -> Path:  # fmt: skip
    """A run of `burn pretrain` with 20 rows of monitor a stage; `single` is that of one stage."""
    folder.mkdir(parents=True)
    name = name or f"{method}_small"
    told = {"spec": teacher, "architecture": "resnet18", "sha256": "ab" * 32} if teacher else None
    about = {
        "format": 1, "burn": "0.1.0", "torch": "2.15.0", "data": {**DATA, "images": images},
        "teacher": told, "run": f"{zlib.crc32(str(folder).encode()):x}",
        "plan": {"recipe_name": name, "recipe": recipe(method, stages), "seed": 0},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    precisions = ("binary_activations", "binary") if stages == 2 else (single,)
    for number, precision in enumerate(precisions, start=1):
        last = number == len(precisions)
        if finished or not last:
            meta = {
                "burn": "0.1.0", "torch": "2.15.0", "stage": number, "num_stages": stages,
                "precision": precision, "steps": 400,
                "monitor": {
                    "knn": 0.4 + number / 20, "seconds": 200.0, "images_per_second": 250.0,
                    "collapsed_at": collapsed_at if number == 1 else None,
                    "unreadable_images": 0, "last": {"target_entropy": 0.31},
                },
                "machine": {
                    "processor": "AMD EPYC 9B14", "device": "cpu", "cores": 2, "threads": 2,
                    "processes": 1, "torch": "2.15.0", "burn": "0.1.0", "commit": "b60c5f4",
                },
            }  # fmt: skip
            (folder / f"stage{number}.json").write_text(json.dumps(meta))
        rows = []
        new = {"memory": 1400.0, "feature_rank": 20.0, "feature_spread": 0.4}
        for step in range(20, 401 if finished else 201, 20):
            fall = math.exp(-step / 150) / number
            rows.append(
                {
                    "step": step, "epoch": 0, "loss": 0.2 + 0.5 * fall, "kl": 0.5 + 2 * fall,
                    "feature_similarity": 0.05 + fall / 4, "lambda": 0.9 - step / 2000,
                    "learning_rate": 0.002 * (1 - step / 400), "feature_std": 2 + fall,
                    "target_entropy": 0.3 + fall / 3 if collapsed_at else 0.9 + fall / 20,
                    "target_mean_entropy": 0.25 if collapsed_at else 0.75,
                    "effective_rank": 50 - 10 * fall, "knn": 0.3 + step / 2500 if step % 100 == 0
                    else "", "images_per_second": 250 + 20 * math.sin(step),
                    **(new | {"weight_flips": 0.02 * fall} if detailed else {}),
                }
            )  # fmt: skip
        table(folder / f"stage{number}" / "metrics.csv", rows)
        if detailed:
            parts = ("student", "projection", "classifier")
            table(
                folder / f"stage{number}" / "gradients.csv",
                [
                    {"step": s, "part": p, "norm": 10 ** (-i) * (1 + math.sin(s) / 3)}
                    for s in range(20, 401, 20)
                    for i, p in enumerate(parts)
                ],
            )
            table(
                folder / f"stage{number}" / "layers.csv",
                [
                    {
                        "step": s, "epoch": 0, "layer": f"blocks.{i}.{conv}",
                        "weight_flips": 0.03 * math.exp(-s / 200) * (1 + i / 13),
                        "weight_balance": 0.5 + 0.02 * math.sin(i), "activation_balance": 0.45,
                        "dead_channels": max(0.0, (i - 9) / 60) * s / 400,
                    }
                    for s in range(20, 401, 20)
                    for i in range(13)
                    for conv in ("conv3", "conv1")
                ],
            )  # fmt: skip
    return folder


def table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(buffer.getvalue())


LINEAR = {"lr": 30.0, "epochs": 100, "augment": "none", "probe": "strict", "compute": "float32"}


def comparison(folder: Path, **numbers: Sequence[float]) -> Path:
    """A folder of `burn compare`: kNN of each method's seeds; linear is 2 points more."""
    folder.mkdir(parents=True)
    about = {
        "data": DATA["name"], "test": "/data/cifar10/val.parquet", "budget": 102400,
        "teacher": "runs/teacher", "linear": LINEAR,
    }  # fmt: skip
    (folder / "comparison.json").write_text(json.dumps(about))
    for method, values in numbers.items():
        for seed, value in enumerate(values):
            out = run(folder / f"{method}-seed{seed}", method=method, teacher="runs/teacher")
            evaluated(out / "compared.jsonl", method, str(out), value, seed)
    evaluated(folder / "random-weights.jsonl", "random weights", str(folder / "burn-seed0"), 21.0)
    evaluated(folder / "teacher.jsonl", "teacher", "runs/teacher", 48.2)
    return folder


def ablation(folder: Path) -> Path:
    """A folder of `burn ablate`; one run stands for three variants."""
    folder.mkdir(parents=True)
    runs = {
        "paper-kl": "paper-kl", "paper-kl+fs": "paper-kl+fs", "two-stages": "two-stages",
        "poly": "two-stages", "clip": "clip", "frozen": "two-stages", "joint": "joint",
    }  # fmt: skip
    about = {"data": DATA["name"], "test": "/data/val", "budget": 102400, "recipe": "burn_small"}
    about["runs"] = runs
    (folder / "ablation.json").write_text(json.dumps(about))
    for place, variant in enumerate(dict.fromkeys(runs.values())):
        for seed in (0, 1):
            collapsed = 40 if variant == "joint" else None
            out = run(folder / f"{variant}-seed{seed}", collapsed_at=collapsed)
            evaluated(out / "compared.jsonl", variant, str(out), 40.0 + place + seed / 2, seed)
    evaluated(folder / "random-weights.jsonl", "random weights", str(folder / "clip-seed0"), 21.0)
    return folder


def evaluated(file: Path, model: str, checkpoint: str, value: float, seed: int = 0) -> None:
    settings = dict(LINEAR)
    pretraining = {"recipe": "x", "images_seen": 102400, "epochs": 2.56, "seconds": 400.0 + value}
    extra = {} if "teacher" in model or "random" in model else {"pretraining": pretraining}
    knn = {"k": 20, "temperature": 0.07, **extra}
    append_results(
        file,
        [
            result("knn", "top1", value, model, checkpoint, settings=knn, seed=seed),
            result("linear", "top1", value + 2, model, checkpoint, settings=settings | extra,
                   seed=seed),
            result("linear", "top5", 90.0, model, checkpoint, settings=settings | extra, seed=seed),
        ],
    )  # fmt: skip


def evaluation(folder: Path, checkpoint: str = "runs/student") -> Path:
    """A folder of `burn evaluate --out` with all that protocols keep."""
    folder.mkdir(parents=True)
    evaluate = folder / "results.jsonl"
    name = "burn_small, stage 2"
    evaluated(evaluate, name, checkpoint, 44.3)
    evaluated(evaluate, "random reactnet_a, binary", checkpoint, 21.0)
    evaluated(evaluate, "teacher_small, stage 1", "runs/teacher", 48.2)
    append_results(
        evaluate,
        [
            result("semi", "1% top1", 38.8, name, checkpoint, settings={"select": "held-out"}),
            result("semi", "10% top1", 48.6, name, checkpoint, settings={"select": "held-out"}),
            *(
                result("svm", f"k={k} mAP {choice}", 17.0 + k / 4, name, checkpoint, spread=1.2)
                for k in (1, 4, 16)
                for choice in ("cv", "oracle")
            ),
            result("transfer", "top1", 61.0, name, checkpoint, settings={"settings": "cifar10"}),
            *(
                result("detection", metric, value, name, checkpoint, train="bccd:trainval",
                       test="bccd:test", data=CELLS,
                       settings={"iterations": 800, "batch_size": 4})
                for metric, value in (("AP", 33.2), ("AP50", 62.7), ("AP75", 32.8),
                                      ("AP red cells", 36.9))
            ),
            *(
                result("pack", metric, value, name, checkpoint, data=None, train="", test="",
                       settings=MEASURED_ON)
                for metric, value in (("bytes", 291_596), ("float32_bytes", 7_144_102),
                                      ("milliseconds", 0.0691))
            ),
        ],
    )  # fmt: skip
    random = np.random.default_rng(0)
    counts = random.integers(0, 40, (10, 10)) + np.diag(random.integers(80, 350, 10))
    confusion(folder, CLASSES, counts.tolist())
    neighbours(folder)
    neighbours(folder, model="random reactnet_a, binary", name="random")
    picture = Image.new("RGB", (1152, 450), "white")
    draw = ImageDraw.Draw(picture)
    for left in (20, 590):
        draw.rectangle((left, 20, left + 540, 400), fill="#c9b8b0")
        draw.ellipse((left + 90, 90, left + 260, 260), fill="#a05a60")
        draw.rectangle((left + 90, 90, left + 260, 260), outline="#e4572e", width=4)
    picture.save(folder / "detections.png")
    return folder


def confusion(folder: Path, classes: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "protocol": "knn", "model": "burn_small, stage 2", "checkpoint": "runs/student",
        "train": "t", "test": "/data/cifar10/val.parquet", "classes": list(classes),
        "counts": counts,
    }  # fmt: skip
    (folder / "confusion.json").write_text(json.dumps(about))


def neighbours(
    folder: Path, rows: int = 8, side: int = 48, label: str = "cat",
    model: str = "burn_small, stage 2", name: str = "network",
) -> None:  # fmt: skip
    """A set of neighbours of one network."""
    folder = folder / "neighbours"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    small = random.integers(0, 255, (rows * 4, 6 * 4, 3), dtype=np.uint8)
    grid = Image.fromarray(small).resize((6 * side, rows * side), Image.Resampling.BICUBIC)
    grid.save(folder / f"{name}.jpg")
    about = {
        "model": model, "checkpoint": "runs/student", "train": "/d/cifar10/train",
        "test": "/d/cifar10/val", "classes": list(CLASSES), "side": side, "columns": 6,
        "picture": f"{name}.jpg",
        "rows": [
            {
                "position": r, "label": label,
                "neighbours": [
                    {"position": n, "label": "dog" if (r + n) % 4 == 0 else label,
                     "cosine": 0.93 - 0.02 * n}
                    for n in range(5)
                ],
            }
            for r in range(rows)
        ],
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(about))


def analysis(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("gradients", "ema-toy"):
        (folder / f"{name}.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 240"><rect width="400" '
            'height="240" fill="#f4f0ea"/><path d="M20 200C120 20 240 220 380 60" fill="none" '
            'stroke="#e4572e" stroke-width="4"/><text x="20" y="30">EMA</text></svg>'
        )
        (folder / f"{name}.md").write_text("# Title\n\nThe distance is larger for bits.\n")
        (folder / f"{name}.csv").write_text("step,value\n1,2\n")
    return folder


def everything(folder: Path) -> list[Path]:
    """One folder of every kind."""
    compared = comparison(
        folder / "compared", burn=(44.3, 43.9), s2bnn=(42.5, 42.9), byol=(36.2, 35.1)
    )
    student = run(folder / "student", detailed=True, teacher="runs/teacher", collapsed_at=60)
    evaluated_in = evaluation(folder / "evaluated", str(student))
    return [compared, student, evaluated_in, ablation(folder / "ablated"), analysis(folder / "ema")]
