"""`burn evaluate`: protocols by name, from a command line's words to results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.compute import Compute, Device, torch_device, uses_bfloat16
from burn.data.sources import LabeledFiles, Source, open_source
from burn.data.voc import Voc, is_voc, open_voc
from burn.errors import UserError
from burn.evaluation.classifier import LinearConfig
from burn.evaluation.detection import DetectionConfig, run_detection
from burn.evaluation.protocols import (
    KnnConfig,
    TransferConfig,
    check_sources,
    run_knn,
    run_linear,
    run_transfer,
)
from burn.evaluation.semi import SemiConfig, run_semi
from burn.evaluation.subject import Subject, load_model
from burn.evaluation.svm_protocol import SvmConfig, run_svm
from burn.results import Result, append_results


@dataclass(frozen=True)
class Protocol:
    """What `burn evaluate` needs to know of one: its settings, how it is run, and on what."""

    config: type
    run: Callable[[Subject, Any, Console], list[Result]]
    open: Callable[[str, str], tuple[Source, Source]]


def _open_labelled(train_spec: str, test_spec: str) -> tuple[Source, Source]:
    train, test = open_source(train_spec, "train"), open_source(test_spec, "test")
    check_sources(train, test)
    return train, test


def _open_either(train_spec: str, test_spec: str) -> tuple[Source, Source]:
    boxes = is_voc(train_spec) or is_voc(test_spec)
    return (_open_boxes if boxes else _open_labelled)(train_spec, test_spec)


def _open_boxes(train_spec: str, test_spec: str) -> tuple[Source, Source]:
    train = open_voc(train_spec, "train")
    return train, open_voc(test_spec, "test", train.classes)


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(KnnConfig, run_knn, _open_labelled),
    "linear": Protocol(LinearConfig, run_linear, _open_labelled),
    "semi": Protocol(SemiConfig, run_semi, _open_labelled),
    "transfer": Protocol(TransferConfig, run_transfer, _open_labelled),
    "svm": Protocol(SvmConfig, run_svm, _open_either),
    "detection": Protocol(DetectionConfig, run_detection, _open_boxes),
}


@dataclass(frozen=True)
class Request:
    """What to judge, on which images, and where.

    Attributes:
        checkpoint: run folder or checkpoint of burn's, or ARCHITECTURE:FILE.
        train: images to learn from: with labels, or with boxes in VOC's layout.
        test: images to judge on.
        random_init: the checkpoint's network with random weights: the floor.
        out: folder that results.jsonl, extracted features and what else the protocol keeps are
            added to; semi and detection need one.
        seed: of every random number.
        device: auto, cpu or cuda.
        compute: number format of the backbone's arithmetic; auto is bfloat16 where the hardware
            has it.
        workers: image-loading processes.
    """

    checkpoint: str
    train: str = ""
    test: str = ""
    random_init: bool = False
    out: str | None = None
    seed: int = 0
    device: Device = "auto"
    compute: Compute = "auto"
    workers: int = 0

    def check(self) -> None:
        """Raise UserError for values out of range or missing."""
        for name in ("train", "test"):
            if not getattr(self, name):
                raise UserError(f"give --{name}: images with labels")
        if not 0 <= self.seed < 2**32 or self.workers < 0:
            raise UserError("--seed must be in 0 … 2³² - 1 and --workers at least 0")


def evaluate(
    protocol: str, request: Request, config: Any, console: Console
) -> tuple[list[Result], list[str]]:
    """Results, which are also appended to results.jsonl in `request.out`, and remarks on the data.

    config: of the protocol's own type. Raises UserError for whatever the user can mend.
    """
    request.check()
    config.check()
    out = Path(request.out) if request.out else None
    if out:
        append_results(out / "results.jsonl", [])  # hours later would be late to find out
    device = torch_device(request.device)
    name, backbone, views = load_model(
        request.checkpoint, fresh=request.random_init, seed=request.seed
    )
    train, test = PROTOCOLS[protocol].open(request.train, request.test)
    subject = Subject(
        name, request.checkpoint, backbone.to(device), views, train, test, request.seed,
        request.workers, out,
        uses_bfloat16(request.compute, request.device),
    )  # fmt: skip
    for source in (train, test):
        if isinstance(source, Voc) and source.skipped:
            first = "; ".join(source.skipped[:5])
            subject.notes.append(f"{source.name}, {len(source.skipped)} faults: {first}")
        if isinstance(source, LabeledFiles) and source.missing:
            subject.notes.append(f"{source.name}: {source.missing} images it lists have no file")
    results = PROTOCOLS[protocol].run(subject, config, console)
    if out and results:
        append_results(out / "results.jsonl", results)
    return results, subject.notes
