"""One run of a campaign: trained, evaluated, and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.campaigns.folder import (
    FEATURES,
    KEPT,
    RESULTS_FILE,
    more_file,
    read_more,
    read_results_of,
    write_results,
)
from burn.campaigns.settings import RANDOM, More, MoreProtocol
from burn.core.files import locked
from burn.core.results import Result
from burn.data.open import open_source
from burn.evaluation.configs import KnnConfig, LinearConfig, SvmConfig, TransferConfig
from burn.evaluation.context import EvaluationContext, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear, run_transfer
from burn.evaluation.semi import run_semi
from burn.evaluation.svm.protocol import run_svm
from burn.runtime.compute import default_workers, torch_device, uses_bfloat16
from burn.training.plan import Machine, RunPlan
from burn.training.run import train_plan
from burn.training.stage import StageSummary
from burn.training.teacher_cache import is_cacheable


@dataclass(frozen=True)
class EvaluationPlan:
    """The images and protocols of evaluation: kNN, `linear`, and what `more` asks for."""

    train: str
    test: str
    linear: LinearConfig
    machine: Machine
    more: More

    def evaluate(
        self, model: str, spec: str, seed: int, console: Console, size: int | None = None
    ) -> list[Result]:
        """Results by kNN and linear evaluation, under the name `model`.

        The network's weights stay random if that is RANDOM. size: side of the views in pixels;
        default: what the network is used to.
        """
        context = self._context(model, spec, seed, size, self.train, self.test)
        knn = run_knn(context, KnnConfig(), console)
        return [*knn, *run_linear(context, self.linear, console)]

    def evaluate_more(
        self, protocol: MoreProtocol, model: str, spec: str, seed: int, console: Console,
        kept: Path, size: int | None = None,
    ) -> list[Result]:  # fmt: skip
        """Results by another protocol; what it goes on from when interrupted is in `kept`."""
        train, test = self.train, self.test
        if protocol == "transfer":
            assert self.more.transfer_train is not None
            assert self.more.transfer_test is not None
            train, test = self.more.transfer_train, self.more.transfer_test
        context = self._context(model, spec, seed, size, train, test)
        if protocol == "transfer":
            return run_transfer(context, TransferConfig(augment="none"), console)
        context = replace(context, out=kept)
        if protocol == "svm":
            return run_svm(context, SvmConfig(full=False), console)
        labels = {"semi1": 1.0, "semi10": 10.0}[protocol]
        return run_semi(context, replace(self.more.semi, labels=labels), console)

    def _context(
        self, model: str, spec: str, seed: int, size: int | None, train: str, test: str
    ) -> EvaluationContext:
        network = open_model(spec, fresh=model == RANDOM, seed=seed)
        views = network.views if size is None else replace(network.views, size=size, resize=None)
        machine = self.machine
        workers = default_workers(machine.device) if machine.workers is None else machine.workers
        return EvaluationContext(
            model, spec, network.backbone.to(torch_device(machine.device)), views,
            open_source(train, "train"), open_source(test, "test"), seed, workers=workers,
            bfloat16=uses_bfloat16("auto", machine.device), training=network.training,
        )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run of a campaign in its folder, MODEL-seedN in `out`."""

    model: str
    plan: RunPlan
    out: Path
    evaluation: EvaluationPlan

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.model}-seed{self.plan.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def done(self) -> bool:
        """Whether it is trained and evaluated: its results are written last."""
        return self._trained and not self._lacking()

    @property
    def _trained(self) -> bool:
        return read_results_of(self.folder / RESULTS_FILE, self.model, trained=True) is not None

    def _lacking(self) -> list[MoreProtocol]:
        """Protocols beside kNN and linear that are asked for and not done."""
        return [
            protocol for protocol in self.evaluation.more.protocols
            if read_more(self.folder, protocol, self.model, trained=True) is None
        ]  # fmt: skip

    def run(self, console: Console) -> None:
        """Train, or resume, and evaluate. Raises Busy where another process is at it."""
        console.rule(self.name)
        if not self._trained:
            self._train(console)
        for protocol in self._lacking():
            with locked(self.folder):
                if protocol in self._lacking():  # not done by another command, meanwhile
                    console.print(f"{self.name}: {protocol}")
                    results = self.evaluation.evaluate_more(
                        protocol, self.model, str(self.folder), self.plan.seed, console,
                        self.folder / KEPT,
                    )  # fmt: skip
                    trained = self._about_training()
                    write_results(more_file(self.folder, protocol), _with(results, trained))

    def _train(self, console: Console) -> None:
        """Train, or resume, and evaluate by kNN and linear evaluation."""
        cache = None
        if self.plan.teacher and is_cacheable(self.plan.recipe):
            cache = self.evaluation.machine.teacher_cache or str(self.out / FEATURES)
        # Unreadable images are counted, as in the evaluation.
        machine = replace(self.evaluation.machine, max_bad=1.0, teacher_cache=cache)
        summaries = train_plan(
            self.plan, self.folder, machine, console, overwrite=False,
            resume=(self.folder / "run.json").is_file(), resume_command="the same command",
        )  # fmt: skip
        with locked(self.folder):
            if not self._trained:  # by another command, since the training has ended
                self._evaluate(summaries, console)

    def _about_training(self) -> Mapping[str, Any]:
        """What its results say of its training."""
        results = read_results_of(self.folder / RESULTS_FILE, self.model, trained=True)
        assert results is not None
        return results[0].settings["pretraining"]

    def _evaluate(self, summaries: Sequence[StageSummary], console: Console) -> None:
        """Write the results of a network that is trained."""
        results = self.evaluation.evaluate(self.model, str(self.folder), self.plan.seed, console)
        train = open_source(self.plan.data, "train")
        seen = sum(summary.images_seen for summary in summaries)
        collapsed = [s.stage for s in summaries if s.collapsed_at is not None]
        training = {
            "recipe": self.plan.recipe_name,
            "images_seen": seen,
            "epochs": round(seen / len(train), 3),
            "seconds": round(sum(summary.seconds for summary in summaries), 1),
            "collapsed_stages": collapsed,
            "teacher_cached": max((s.teacher_cached or 0.0 for s in summaries), default=0.0),
            "collapsed_features": [
                s.stage for s in summaries if s.features_collapsed_at is not None
            ],
        }
        write_results(self.folder / RESULTS_FILE, _with(results, training))


def _with(results: Sequence[Result], training: Mapping[str, Any]) -> list[Result]:
    return [replace(r, settings={**r.settings, "pretraining": training}) for r in results]
