"""One run of a campaign: training, evaluation, and resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.campaigns.folder import (
    FEATURES,
    KEPT,
    read_results_of,
    results_file,
    write_results,
)
from burn.campaigns.settings import RANDOM, FurtherProtocol, FurtherProtocols
from burn.core.files import locked
from burn.core.results import Result
from burn.data.open import open_source
from burn.evaluation.checks import open_labelled
from burn.evaluation.configs import KnnConfig, LinearConfig, SvmConfig, TransferConfig
from burn.evaluation.context import open_context, open_model
from burn.evaluation.knn import run_knn
from burn.evaluation.linear import run_linear, run_transfer
from burn.evaluation.semi import run_semi
from burn.evaluation.svm.protocol import run_svm
from burn.training.plan import Machine, RunPlan
from burn.training.records.summary import StageSummary
from burn.training.run import train_plan
from burn.training.teacher_cache import is_cacheable


@dataclass(frozen=True)
class EvaluationPlan:
    """The images and protocols by which a campaign's networks are evaluated."""

    train: str
    test: str
    linear: LinearConfig
    machine: Machine
    further: FurtherProtocols

    def evaluate(
        self,
        protocol: FurtherProtocol | None,
        model: str,
        spec: str,
        seed: int,
        console: Console,
        folder: Path,
        size: int | None = None,
    ) -> list[Result]:
        """Evaluate a network by kNN and linear evaluation, or by a further protocol.

        The latter resumes from its files in the folder. `spec` is a run's folder, a checkpoint or a
        teacher. If `model`, its name in the results, is RANDOM, its weights are random. `size` is
        the side of its views in pixels, or None for its own.
        """
        network = replace(open_model(spec, fresh=model == RANDOM, seed=seed), name=model)
        if size is not None:
            network = replace(network, views=replace(network.views, size=size, resize=None))
        train, test = self.train, self.test
        if protocol == "transfer":
            assert self.further.transfer_train is not None
            assert self.further.transfer_test is not None
            train, test = self.further.transfer_train, self.further.transfer_test
        context = open_context(
            network,
            spec,
            open_labelled(train, test),
            seed=seed,
            device=self.machine.device,
            workers=self.machine.workers,
        )
        if protocol is None:
            knn = run_knn(context, KnnConfig(), console)
            return [*knn, *run_linear(context, self.linear, console)]
        if protocol == "transfer":
            return run_transfer(context, TransferConfig(augment="none"), console)
        context = replace(context, out=folder)
        if protocol == "svm":
            return run_svm(context, SvmConfig(full=False), console)
        labels = {"semi1": 1.0, "semi10": 10.0}[protocol]
        # Fine-tuning changes the weights, which burn-engine would not see.
        context = replace(context, packed=None)
        return run_semi(context, replace(self.further.semi, labels=labels), console)


@dataclass(frozen=True)
class Job:
    """One run of a campaign."""

    model: str  # name of the method or variant
    plan: RunPlan
    out: Path  # folder of the campaign
    evaluation: EvaluationPlan

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.plan.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def done(self) -> bool:
        """Whether the run is trained and evaluated; its results are written last."""
        return self._trained and not self._lacking()

    @property
    def _trained(self) -> bool:
        return self._results() is not None

    def _results(self, protocol: FurtherProtocol | None = None) -> list[Result] | None:
        return read_results_of(self.folder, self.model, protocol, trained=True)

    def _lacking(self) -> list[FurtherProtocol]:
        """Return the requested protocols, beside kNN and linear, without results."""
        further = self.evaluation.further.protocols
        return [protocol for protocol in further if self._results(protocol) is None]

    def run(self, console: Console) -> None:
        """Train or resume the run, and evaluate it.

        Raises:
            Busy: Another process holds the run's folder.
            UserError: The run cannot be trained or evaluated.
            Interrupted: After a signal. The run is saved.
        """
        console.rule(self.name)
        if not self._trained:
            self._train(console)
        for protocol in self._lacking():
            with locked(self.folder):
                if protocol in self._lacking():  # another command may have done it meanwhile
                    console.print(f"{self.name}: {protocol}")
                    trained = self._results()
                    assert trained is not None
                    self._evaluate(protocol, trained[0].settings["pretraining"], console)

    def _train(self, console: Console) -> None:
        cache = None
        if self.plan.teacher and is_cacheable(self.plan.recipe):
            cache = self.evaluation.machine.teacher_cache or str(self.out / FEATURES)
        # Unreadable images are only counted, as in the evaluation.
        machine = replace(self.evaluation.machine, max_bad="100%", teacher_cache=cache)
        summaries = train_plan(
            self.plan,
            self.folder,
            machine,
            console,
            overwrite=False,
            resume=(self.folder / "run.json").is_file(),
            resume_command="the same command",
            caller_continues=True,
            extendable=False,
        )
        with locked(self.folder):
            if not self._trained:  # another command may have evaluated it since training ended
                self._evaluate(None, self._pretraining(summaries), console)

    def _pretraining(self, summaries: Sequence[StageSummary]) -> dict[str, Any]:
        """Return what results tell of the training."""
        seen = sum(summary.images_seen for summary in summaries)
        return {
            "recipe": self.plan.recipe_name,
            "images_seen": seen,
            "epochs": round(seen / len(open_source(self.plan.data, "train")), 3),
            "seconds": round(sum(summary.seconds for summary in summaries), 1),
            "collapsed_stages": [s.stage for s in summaries if s.collapsed_at is not None],
            "teacher_cached": max((s.teacher_cached or 0.0 for s in summaries), default=0.0),
            "collapsed_features": [
                s.stage for s in summaries if s.features_collapsed_at is not None
            ],
        }

    def _evaluate(
        self, protocol: FurtherProtocol | None, pretraining: Mapping[str, Any], console: Console
    ) -> None:
        results = self.evaluation.evaluate(
            protocol, self.model, str(self.folder), self.plan.seed, console, self.folder / KEPT
        )
        write_results(
            results_file(self.folder, protocol),
            [replace(r, settings={**r.settings, "pretraining": pretraining}) for r in results],
        )
