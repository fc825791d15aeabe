"""Networks for comparison, made from results, and the verdict on whether training worked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from burn.core.results import ACCURACIES, Result, majority_accuracy
from burn.core.seeds import OverSeeds
from burn.methods.entries import METHODS
from burn.report.load.contents import Gathered, LocatedResult, Run
from burn.report.load.gather import settings_of
from burn.report.load.origins import common_names, is_foreign, stage_in
from burn.report.load.values import number, short_path, words
from burn.report.render.tables import number_name

Kind = Literal["random", "float", "half", "binary"]  # half: after stage 1 of two
PROTOCOLS = ("knn", "linear", "finetune", "semi", "transfer", "svm", "detection")
KINDS: dict[Kind, str] = {
    "random": "random weights",
    "float": "float",
    "half": "binary activations",
    "binary": "binary",
}
_REFERENCES = ("random weights", "teacher", "labelled teacher")  # in every comparison
# Points above random weights that count as learned. On the demo's 360 test images two standard
# errors of a difference are 6 at a random network's accuracy, and less on larger sets.
_LEARNED = 8.0
BARELY = 1.0
# Optimizer steps of a stage below which its accuracy says nothing about the recipe: warm-up alone
# is longer, and the measurements on small images (docs/project/results/) took 400 steps a stage.
FEW_STEPS = 100


@dataclass(frozen=True)
class Number:
    """One number of a network, over its seeds."""

    protocol: str
    metric: str
    label: str  # for people, with the settings in which it differs from similar numbers
    train: str
    test: str
    results: tuple[Result, ...]  # of each seed

    @property
    def values(self) -> list[float]:
        return [r.value for r in self.results]

    @property
    def mean(self) -> float:
        return OverSeeds.of(self.values).mean

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds or, with a single result, over its samples."""
        deviation = OverSeeds.of(self.values).deviation
        return self.results[0].spread if deviation is None else deviation

    @property
    def plus_minus(self) -> str:
        """The spread as text, such as "± 0.4", or ""."""
        return "" if self.spread is None else f"± {self.spread:.1f}"

    @property
    def majority_accuracy(self) -> float | None:
        """The accuracy in percent of always predicting the largest class, on imbalanced data."""
        return majority_accuracy(self.results[-1])

    @property
    def meaningless(self) -> str:
        """The reason why the number means nothing for any network, or "" if it means something."""
        data = self.results[-1].data
        if self.protocol in ACCURACIES:  # average precisions of a single class are meaningful
            if number(data, "num_classes") == 1:
                return "there is one class only"
            if number(data, "largest_class") == 100:
                return "all test images are of one class"
        # burn 0.1.0 also evaluated classes that every image has, and did not record the data
        if self.protocol == "svm" and data is None and self.mean >= 100:
            return "every test image seems to have the class"
        return ""


@dataclass(frozen=True)
class Network:
    """A network that was evaluated."""

    name: str  # for people
    kind: Kind
    method: str  # or ""
    checkpoint: str  # in the results
    group: Path | None  # folder of the comparison or ablation that it belongs to
    runs: Sequence[Run]  # its pretraining, as far as it was given
    numbers: tuple[Number, ...]  # at least one

    @property
    def run(self) -> Run | None:
        return next(iter(self.runs), None)

    def find(
        self, protocol: str, metric: str, on: tuple[str, str] | None = None, label: str = ""
    ) -> Number | None:
        """Return the newest number that fits; `on` are training and test images, None for any."""
        fitting = (
            n
            for n in reversed(self.numbers)
            if (n.protocol, n.metric) == (protocol, metric)
            and on in (None, (n.train, n.test))
            and label in ("", n.label)
        )
        return next(fitting, None)

    def like(self, other: Number) -> Number | None:
        """Return its number of the same protocol, images and settings as another network's."""
        return self.find(other.protocol, other.metric, (other.train, other.test), other.label)


def kind_beside(network: Network) -> str:
    """Return a network's kind for display beside its name, or "" if the name contains it."""
    kind = KINDS[network.kind]
    return "" if kind.removesuffix(" weights") in network.name.lower() else kind


@dataclass(frozen=True)
class Training:
    """How long the stage that produced a network was trained."""

    stage: int | None  # None if there is only one
    steps: int
    images_seen: int | None

    @property
    def said(self) -> str:
        """The training in words that follow "trained for"."""
        seen = f" ({self.images_seen:,} images seen)" if self.images_seen is not None else ""
        where = f" in stage {self.stage}" if self.stage is not None else ""
        return f"{self.steps:,} optimizer step{'' if self.steps == 1 else 's'}{seen}{where}"


def training_of(network: Network) -> Training | None:
    """Return the training of the longest of its seeds, from results or from its runs."""
    trainings: list[Training] = []
    for n in network.numbers:
        for r in n.results:
            steps, seen = number(r.training, "steps"), number(r.training, "images_seen")
            stage = number(r.training, "stage")
            if steps is not None:
                trainings.append(Training(_whole(stage), int(steps), _whole(seen)))
    for run in network.runs if not trainings else ():
        stages = run.stages[:1] if network.kind == "half" else run.stages
        if stages and (steps := stages[-1].steps) is not None:
            stage = stages[-1].number if run.num_stages > 1 else None
            trainings.append(Training(stage, steps, run.images_of(steps)))
    return max(trainings, key=lambda t: t.steps, default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def colour_of(network: Network) -> str:
    """Return a colour for references, methods with labels, BURN, and others without labels."""
    if network.kind in ("random", "float"):
        return "grey"
    if network.method.startswith("supervised"):
        return "pale"
    return "burn" if network.method in ("burn", "") else "blue"


@dataclass(frozen=True)
class Verdict:
    """The answer to the question whether training worked, by numbers that were measured alike."""

    word: Literal["yes", "barely", "no", "unknown"] = "unknown"
    network: Network | None = None
    number: Number | None = None  # the one that decides
    floor: Number | None = None  # the same with random weights
    teacher: Number | None = None  # the same of a float network
    short: Training | None = None  # the training, if it was too short


def networks(gathered: Gathered) -> list[Network]:
    """Return every network that was evaluated, with all its numbers but those of packed files."""
    evaluated = [
        item
        for item in gathered.results
        if item.result.protocol != "pack" and item.result.protocol.isidentifier()
    ]
    names = _labels([item.result for item in evaluated])
    clusters: dict[tuple[str, ...], list[LocatedResult]] = {}
    for item in evaluated:
        # In a comparison all seeds are one network; elsewhere each checkpoint is one.
        place = (str(item.group), "") if item.group else ("", item.result.checkpoint)
        clusters.setdefault((item.result.model, *place), []).append(item)
    compared = {group.folder for group in gathered.groups if not group.ablation}
    told_apart = [
        model
        for (model, _, _), cluster in clusters.items()
        if cluster[0].group is None or (cluster[0].group in compared and model not in _REFERENCES)
    ]
    several = {model for model, count in Counter(told_apart).items() if count > 1}
    fresh: dict[str, Kind] = {
        item.result.checkpoint: stated
        for item in evaluated
        if item.result.model.startswith("random") and (stated := _stated(item.result.model))
    }
    evaluated_networks = []
    for (model, _, checkpoint), cluster in clusters.items():
        first = cluster[0]
        runs = tuple({item.run.folder: item.run for item in cluster if item.run}.values())
        columns: dict[tuple[str, str, str, str, str], dict[tuple[str, int], Result]] = {}
        for item in cluster:
            r = item.result
            key = (r.protocol, r.metric, names[_key(r)], r.train, r.test)
            columns.setdefault(key, {})[r.checkpoint, r.seed] = r
        kind = _kind(first.result, first.run, fresh.get(checkpoint))
        where = short_path(str(first.group) if first.group else checkpoint)
        entry = METHODS.get(model) if first.group in compared else None
        name = entry.title if entry else model
        evaluated_networks.append(
            Network(
                f"{name} ({where})" if model in several else name,
                kind,
                runs[0].method if runs and kind != "random" else model if first.group else "",
                first.result.checkpoint,
                first.group,
                runs,
                tuple(Number(*key, tuple(rs.values())) for key, rs in columns.items()),
            )
        )
    return evaluated_networks


_STATED: dict[str, Kind] = {
    "float": "float",
    "binary_activations": "half",
    "binary activations": "half",
    "binary": "binary",
}


def _kind(result: Result, run: Run | None, alike: Kind | None) -> Kind:
    """Return a network's kind; `alike` is that of its checkpoint's network of random weights."""
    if result.model.lower().startswith("random"):
        return "random"
    if stated := _STATED.get(words(result.training, "precision")):
        return stated
    stage = number(result.training, "stage") or stage_in(result.checkpoint)
    if run is not None:
        if run.is_float:
            return "float"
        return "half" if run.num_stages == 2 and stage == 1 else "binary"
    if stated := _stated(result.model) or alike:
        return stated
    # hub:resnet50 and resnet50:FILE name float networks from elsewhere
    if "teacher" in result.model.lower() or is_foreign(result.checkpoint):
        return "float"
    return "half" if stage_in(result.checkpoint) == 1 else "binary"


def _stated(name: str) -> Kind | None:
    """Return the precision that a network's name ends with, as in "random reactnet_a, binary"."""
    return _STATED.get(name.rpartition(", ")[2])


def _labels(results: Sequence[Result]) -> dict[str, str]:
    """Return a label for each kind of number: its name and the settings that distinguish it."""
    alike: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for r in results:
        alike.setdefault((r.protocol, r.metric, r.train, r.test), {})[_key(r)] = _scalars(r)
    labels = {}
    for (protocol, metric, _, _), variants in alike.items():
        settings = list(variants.values())
        names = sorted({name for s in settings for name in s})
        differ = [name for name in names if len({json.dumps(s.get(name)) for s in settings}) > 1]
        for key, distinguishing in variants.items():
            texts = [
                f"{_plain(name)} {_plain(distinguishing[name])}"
                for name in differ
                if name in distinguishing
            ]
            labels[key] = ", ".join([number_name(protocol, metric), *texts])
    return labels


def _key(result: Result) -> str:
    parts = (result.protocol, result.metric, result.train, result.test, _scalars(result))
    return json.dumps(parts, sort_keys=True)


def _scalars(result: Result) -> dict[str, Any]:
    """Return the settings with a single value, except one."""
    return {
        name: value
        for name, value in settings_of(result).items()
        if isinstance(value, (str, int, float, bool))
        and name != "compute"  # which changes a number by less than another seed does
    }


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).replace("_", " ") if not isinstance(value, bool) else str(value).lower()


def verdict(all_networks: Sequence[Network], candidates: Sequence[Network] = ()) -> Verdict:
    """Answer whether training worked, of a candidate if any, by the first protocol able to tell."""
    students = [n for n in candidates or all_networks if n.kind in ("binary", "half")]
    pool = students or [n for n in candidates or all_networks if n.kind == "float"]
    for protocol, metric in _MEASURES:
        able = [
            (n, measured)
            for n in pool
            if (measured := n.find(protocol, metric)) and not measured.meaningless
        ]
        if able:
            network, number = max(able, key=lambda pair: _rank(*pair))
            return _verdict(network, number, all_networks)
    return Verdict()


_MEASURES = (
    ("finetune", "top1"),  # of a network that was made to be used
    ("knn", "top1"),
    ("linear", "top1"),
    ("transfer", "top1"),
    ("semi", "10% top1"),
    ("semi", "1% top1"),
    ("svm", "full mAP cv"),
    ("detection", "AP"),
)


def _rank(network: Network, number: Number) -> tuple[Any, ...]:
    return (
        any(run.chosen for run in network.runs) or network.group is None,  # given directly
        network.method == "burn",
        network.kind == "binary",
        not network.method.startswith("supervised"),
        number.mean,
    )


def _verdict(network: Network, number: Number, all_networks: Sequence[Network]) -> Verdict:
    floor = random_of(network, number, all_networks)
    teacher = _teacher_of(network, number, all_networks) if network.kind != "float" else None
    training, short = training_of(network), None
    word: Literal["yes", "barely", "no", "unknown"] = "unknown"
    if floor is not None:
        above = number.mean - max(floor.mean, number.majority_accuracy or 0.0)
        word = "yes" if above >= _LEARNED else "barely" if above >= BARELY else "no"
    if (
        word != "yes"
        and number.protocol != "finetune"  # whose network was pretrained for many more
        and training is not None
        and training.steps < FEW_STEPS
    ):
        word, short = "unknown", training
    return Verdict(word, network, number, floor, teacher, short)


def random_of(network: Network, number: Number, all_networks: Sequence[Network]) -> Number | None:
    """Return the same number of the same network with random weights, at the same precision."""
    if network.kind == "random":
        return None
    able = [
        n
        for n in all_networks
        if n.kind == "random" and n.like(number) and _precision(n) == _precision(network)
    ]
    best = max(
        able,
        key=lambda n: (n.group == network.group, n.checkpoint == network.checkpoint),
        default=None,
    )
    return best.like(number) if best else None


def _precision(network: Network) -> Kind:
    """Return float, half or binary, also for a network with random weights."""
    if network.kind != "random":
        return network.kind
    if stated := _stated(network.name.partition(" (")[0]):
        return stated
    if any(run.is_float for run in network.runs):
        return "float"
    two = any(run.num_stages == 2 for run in network.runs)
    return "half" if two and stage_in(network.checkpoint) == 1 else "binary"


def _teacher_of(network: Network, number: Number, all_networks: Sequence[Network]) -> Number | None:
    """Return a float network's number for comparison, preferably that of the network's teacher."""
    able = [n for n in all_networks if n.kind == "float" and n.like(number)]
    taught = words(network.run.about, "teacher", "spec") if network.run else ""
    labelled = network.method == "supervised_kl"
    best = max(
        able,
        key=lambda n: (
            n.group == network.group,
            n.checkpoint == network.checkpoint,
            common_names(n.checkpoint, taught),
            ("labelled" in n.name) == labelled,
        ),
        default=None,
    )
    return best.like(number) if best else None
