"""The first screen: a headline, the answer in words, a few numbers, and cautions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burn.report.load.contents import Gathered, Group, Run
from burn.report.load.values import dig, words
from burn.report.model import BARELY, Network, Number, Verdict, kind_beside, training_of
from burn.report.render.cells import duration, filled, joined, percent, size
from burn.report.render.tables import number_name
from burn.report.render.templates import sentence
from burn.report.sections.campaigns import default_variant, of_group
from burn.report.sections.packed import measured_on, packs


@dataclass(frozen=True)
class Opening:
    """The beginning of the page: the answer in a few words, and in sentences."""

    word: str  # yes, barely, no or unknown; it sets the headline's colour
    headline: str
    lede: str
    command: str = ""  # which would measure what is missing


@dataclass(frozen=True)
class Tile:
    """A number of the first screen."""

    value: str
    unit: str
    name: str
    small: str = ""


def opening(
    answer: Verdict, gathered: Gathered, all_networks: Sequence[Network], titles: Sequence[str]
) -> Opening:
    """Return the beginning of the page, about what comes first here of all that was given."""
    if answer.network is not None and answer.number is not None:
        group = campaign_of(answer, gathered.groups)
        if group is None:
            return _evaluated(answer, answer.network, answer.number, gathered)
        members = of_group(group, all_networks)
        if group.ablation:
            return _ablated(answer, answer.number, group, members)
        return _compared(answer, answer.number, members)
    runs = [run for run in gathered.runs if run.chosen] or gathered.runs
    if runs:
        return _trained(runs[0])
    for model, _, numbers in packs(gathered)[:1]:
        if "bytes" in numbers:
            text = f"{model} was packed for burn-engine. Its accuracy was not given."
            return Opening("unknown", f"Packed into {size(numbers['bytes'])}", text)
    if titles:
        headline = titles[0] if len(titles) == 1 else f"{len(titles)} analyses"
        text = "What burn analyze computed and drew; no run was given beside it."
        return Opening("unknown", headline, text)
    return Opening("unknown", "Not evaluated yet", "No accuracy was given.")


def campaign_of(answer: Verdict, groups: Sequence[Group]) -> Group | None:
    """Return the campaign that the answer is about, None if one of its runs was given directly."""
    network = answer.network
    if network is None or any(run.chosen for run in network.runs):
        return None
    return next((group for group in groups if group.folder == network.group), None)


_HEADLINES = {"yes": "It learned", "barely": "It barely learned", "no": "It did not learn"}
_KINDS = {
    "binary": "binary network",
    "half": "network with binary activations",
    "float": "float network",
    "random": "network with random weights",
}


def _evaluated(answer: Verdict, network: Network, number: Number, gathered: Gathered) -> Opening:
    what = _KINDS[network.kind] if kind_beside(network) else "network"
    taught = network.run is not None and isinstance(dig(network.run.about, "teacher"), Mapping)
    lede = sentence("evaluated", answer, what, taught, training_of(network))
    if answer.short is not None:
        steps = answer.short.steps
        headline = f"Inconclusive after {steps:,} step{'' if steps == 1 else 's'}"
        return Opening("unknown", headline, lede)
    if headline := _HEADLINES.get(answer.word):
        return Opening(answer.word, headline, lede)
    headline = f"{percent(number.mean)} % {number_name(number.protocol, number.metric)}"
    if number.majority_accuracy is not None and number.mean < number.majority_accuracy + BARELY:
        headline = "No better than always predicting the largest class"
    last = number.results[-1]
    command = ""
    if number.protocol == "knn":
        folder = next(item.folder for item in gathered.results if item.result == last)
        out = "evaluated" if any(run.folder == folder for run in gathered.runs) else str(folder)
        command = shlex.join(
            ["burn", "evaluate", "knn", network.checkpoint, "--random-init",
             "--train", number.train, "--test", number.test, "--out", out]
        )  # fmt: skip
    return Opening("unknown", headline, lede, command)


def _compared(answer: Verdict, number: Number, members: Sequence[Network]) -> Opening:
    rivals = [
        (network, n)
        for network, n in _students(members, number)
        if not network.method.startswith("supervised")
    ]
    rivals.sort(key=lambda pair: -pair[1].mean)
    names = [network.name for network, _ in rivals]
    shown = rivals[:3]
    headline = f"{len(rivals)} method{'s' if len(rivals) != 1 else ''} at one budget"
    if "BURN" in names and len(names) > 1:
        place = names.index("BURN")
        headline = f"BURN is {_ordinal(place + 1)} of {len(names)}"
        shown += rivals[place : place + 1] if place >= 3 else []
    return Opening("unknown", headline, sentence("compared", answer, shown))


def _ablated(answer: Verdict, number: Number, group: Group, members: Sequence[Network]) -> Opening:
    variants = _students(members, number)
    recipe = words(group.about, "recipe") or "the recipe"
    best, highest = max(variants, key=lambda pair: pair[1].mean)
    default = default_variant(group, members)
    usual = default.like(number) if default else None
    one_seed = all(len(n.results) == 1 for _, n in variants)
    other = None if best is default else best
    headline = f"{len(variants)} variant{'s' if len(variants) > 1 else ''} of {recipe}"
    lede = sentence("ablated", answer, recipe, other, highest, usual, one_seed)
    return Opening("unknown", headline, lede)


def _students(members: Sequence[Network], number: Number) -> list[tuple[Network, Number]]:
    """Return each network with binary layers that has a number like `number`, and its number."""
    kinds = ("binary", "half")
    return [
        (network, n) for network in members if network.kind in kinds and (n := network.like(number))
    ]


def _ordinal(place: int) -> str:
    return ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
            "ninth", "tenth")[place - 1] if place <= 10 else f"number {place}"  # fmt: skip


def _trained(run: Run) -> Opening:
    word, headline = "unknown", "Trained, not evaluated yet"
    if any(stage.collapsed_at is not None for stage in run.stages):
        word, headline = "no", "Its target collapsed"
    elif any(stage.features_collapsed_at is not None for stage in run.stages):
        word, headline = "no", "Its features collapsed"
    elif not run.finished:
        headline = "Not trained to its end"
    command = ""
    if run.finished:
        command = shlex.join(["burn", "evaluate", "knn", str(run.folder), "--train"])
        command += " TRAIN --test TEST --out evaluated"
    lede = sentence("trained", run, watched(run), *watched_of(run))
    return Opening(word, headline, lede, command)


def watched(run: Run) -> float | None:
    """Return the last kNN accuracy, as a share, that a run's monitor measured."""
    for stage in reversed(run.stages):
        if (knn := stage.monitored("knn")) is not None:
            return knn
        if points := stage.metrics.points("knn"):
            return points[-1][1]
    return None


def watched_of(run: Run) -> tuple[str, str]:
    """Return of how many images the number of `watched` is, and what chance would give."""
    for stage in reversed(run.stages):
        if stage.monitored("knn") is not None:
            images, chance = stage.monitored("knn_images"), stage.monitored("knn_chance")
            where = filled(", where chance is {:.1f} %", None if chance is None else 100 * chance)
            return filled("{:,.0f}", images) or "a few", where
    return "a few", ""


# Numbers


def way(answer: Verdict) -> float | None:
    """Return the share in percent of the way from random weights to a better teacher."""
    if answer.number is None or answer.floor is None or answer.teacher is None:
        return None
    whole = answer.teacher.mean - answer.floor.mean
    return 100 * (answer.number.mean - answer.floor.mean) / whole if whole >= 1 else None


def tiles(answer: Verdict, gathered: Gathered) -> list[Tile]:
    chosen: list[Tile] = []
    network, number = answer.network, answer.number
    group = campaign_of(answer, gathered.groups)
    whose = f"{network.name}, " if network and group else ""
    runs = [run for run in gathered.runs if run.chosen] or gathered.runs
    run = network.run if network else runs[0] if runs else None
    if network is not None and number is not None:
        linear = network.find("linear", "top1", (number.train, number.test))
        for n in (number, linear if linear is not number else None):
            if n is not None:
                seeds = f"{len(n.results)} seeds" if len(n.results) > 1 else ""
                largest = filled("largest class {:.1f} %", n.majority_accuracy)
                small = joined(n.plus_minus, seeds, largest)
                chosen.append(Tile(percent(n.mean), "%", whose + n.label, small))
    elif run is not None and (knn := watched(run)) is not None:
        chosen.append(
            Tile(percent(100 * knn), "%", "kNN while training", f"of {watched_of(run)[0]} images")
        )
    share = way(answer)
    if share is not None:
        chosen.append(Tile(f"{share:.0f}", "%", "of the way from random weights to the teacher"))
    for _, result, packed in packs(gathered)[:1]:
        if (count := packed.get("bytes")) is not None:
            value, _, unit = size(count).partition(" ")
            ratio = packed.get("float32_bytes", 0) / count if count else 0
            chosen.append(
                Tile(value, unit, "packed file", f"1/{ratio:.1f} of float32" if ratio else "")
            )
        if (ms := packed.get("milliseconds")) is not None:
            value = f"{ms:.0f}" if ms >= 99.5 else f"{ms:.2g}"
            chosen.append(Tile(value, "ms", "an image in burn-engine", measured_on(result)))
    if group is not None:
        within = [r for r in gathered.runs if r.folder.parent == group.folder]
        total = sum(r.seconds or 0 for r in within)
        if total:
            value, _, unit = duration(total).partition(" ")
            chosen.append(Tile(value, unit, "of training in all", f"{len(within)} runs"))
    elif run is not None and run.seconds is not None and run.finished:
        value, _, unit = duration(run.seconds).partition(" ")
        seen = f"{run.images_seen:,} images seen" if run.images_seen else ""
        chosen.append(Tile(value, unit, "of training", seen))
    return chosen


# Cautions


def alarms(gathered: Gathered) -> list[tuple[str, str, str]]:
    """Return (what collapsed, in which runs, what that means) for targets and for features."""
    targets, features = [], []
    for run in gathered.runs:
        for stage in run.stages:
            for step, where in (
                (stage.collapsed_at, targets),
                (stage.features_collapsed_at, features),
            ):
                if step is not None:
                    where.append(f"{run.name} (stage {stage.number}, step {step:,})")
    notes = []
    if targets:
        meaning = "From there on it told few images apart, and the KL term taught next to nothing."
        notes.append(("Collapsed target", ", ".join(targets), meaning))
    if features:
        meaning = "From there on the network hardly told images apart."
        notes.append(("Collapsed features", ", ".join(features), meaning))
    return notes


def cautions(gathered: Gathered, networks: Sequence[Network]) -> list[tuple[str, str]]:
    """Return (name of the run or network, caution) pairs."""
    notes = []
    for network in networks:
        for reason in dict.fromkeys(n.meaningless for n in network.numbers if n.meaningless):
            labels = ", ".join(n.label for n in network.numbers if n.meaningless == reason)
            notes.append((network.name, f"{reason}, so that these numbers say nothing: {labels}."))
    for run in gathered.runs:
        if not run.finished:
            done = sum(stage.finished for stage in run.stages)
            steps = run.stages[-1].steps if run.stages else None
            at = f", at step {steps:,} of the next" if steps and done < len(run.stages) else ""
            notes.append(
                (run.name, f"not trained to its end: {done} of {run.num_stages} stages{at}.")
            )
        bad = sum(int(stage.monitored("unreadable_images") or 0) for stage in run.stages)
        if bad:
            notes.append((run.name, f"{bad:,} images could not be read and were left out."))
    return notes
