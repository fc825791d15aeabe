import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

import tiny
from burn.checkpoints.foreign.weights import load_teacher
from burn.checkpoints.native import load_checkpoint
from burn.core.errors import Interrupted, UserError
from burn.core.thresholds import TARGET_ALARM
from burn.data.open import open_source
from burn.methods.burn.method import feature_similarity, kl_divergence
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.runtime.signals import StopRequest
from reproduction.analyses.gradients.compute import SETTINGS, SPLIT_EVERY, FirstSteps, Setting
from reproduction.analyses.gradients.measure import _read_part, measure_gradients
from reproduction.analyses.options import GradientOptions
from reproduction.analyses.rows import from_csv, to_csv

QUIET = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of 50 digits."""
    folder = tmp_path_factory.mktemp("digits")
    digits = open_source("digits")
    for index in range(50):
        pixels = digits.read(index).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return str(folder)


def few_steps(**burn: object) -> Recipe:
    """An epoch of three steps on the 50 digits."""
    recipe = tiny.student_recipe(**burn)
    network = replace(recipe.backbone, width=0.125)
    return replace(recipe, stages=1, batch_size=16, backbone=network)


def start(setting: Setting, recipe: Recipe, teacher: Path, data: str, seed: int = 0) -> FirstSteps:
    source = open_source(data)
    return FirstSteps(setting.of(recipe), source, load_teacher(str(teacher)), seed, "cpu")


@pytest.mark.parametrize("setting", [SETTINGS[1], SETTINGS[4]], ids=lambda s: s.name)
def test_the_trajectory_is_that_of_pretrain_to_the_last_bit(
    setting: Setting, teacher: Path, data: str, tmp_path: Path
):
    """Two more backward passes at the first step change nothing; views crossed as well."""
    views = "cross" if setting.similarity == "none" else "same"
    recipe = few_steps(views=views)
    recipe = replace(recipe, optim=replace(recipe.optim, warmup_epochs=0.4))
    tiny.train(setting.of(recipe), tmp_path / "run", teacher, data=data, max_steps=None, seed=3)
    training = start(setting, recipe, teacher, data, seed=3)
    assert training.num_steps == len(list(training.rows())) == 3
    trained = load_checkpoint(tmp_path / "run").weights
    ours = training.method.weights()
    assert ours.keys() == trained.keys()
    assert all(torch.equal(ours[name], trained[name]) for name in trained)


def test_so_it_is_where_batches_are_cut_and_epochs_end(teacher: Path, data: str, tmp_path: Path):
    """50 images make three parts of 16: a step of two and one of one in each epoch."""
    recipe = replace(few_steps(), batch_size=32, accumulate=2, epochs=2)
    tiny.train(SETTINGS[5].of(recipe), tmp_path / "run", teacher, data=data, max_steps=None)
    training = start(SETTINGS[5], recipe, teacher, data)
    assert len(list(training.rows())) == training.num_steps == 4
    trained = load_checkpoint(tmp_path / "run").weights
    assert all(torch.equal(training.method.weights()[name], trained[name]) for name in trained)


def test_at_step_one_the_similarity_only_weighs_the_classifiers_gradient(teacher: Path, data: str):
    recipe = few_steps(lam_start=0.8, lam_end=0.3)
    rows = {s.name: next(start(s, recipe, teacher, data).rows()) for s in SETTINGS}
    alone = rows["joint-none"]
    assert (alone["lambda"], alone["extractor_fs"]) == (0, None)
    for name, row in rows.items():
        assert row["lambda"] == (0 if name.endswith("none") else 0.8)
        weight = 1 - row["lambda"]
        # float32's rounding, of backward passes whose incoming gradients differ by that factor
        assert row["classifier"] == pytest.approx(weight * alone["classifier"], rel=2e-5), name
        assert row["classifier_per_weight"] == pytest.approx(alone["classifier"], rel=2e-5)
        assert row["extractor_kl"] == pytest.approx(alone["extractor"], rel=2e-5), name
        assert row["kl"] == alone["kl"]


@pytest.mark.parametrize("views", ["same", "cross"])
def test_gradients_by_terms_are_those_of_the_losses_written_down(
    teacher: Path, data: str, views: str
):
    """Against autograd of each term, on networks of the same draws."""
    setting = Setting("joint", "l2")
    training = start(setting, few_steps(views=views), teacher, data)
    row = next(training.rows())
    twin = start(setting, few_steps(views=views), teacher, data)
    (batch,) = next(twin._steps())
    method = twin.method
    assert method.classifier is not None
    assert method.teacher_classifier is not None
    assert method.projection is not None
    a, b = batch.views[0], batch.views[-1]
    pairs = [(a, b), (b, a)] if views == "cross" else [(a, a)]
    terms = torch.zeros(2)
    # the students' order, b before a, is that of the method: BN's statistics depend on nothing else
    for of_teacher, of_student in pairs:
        v1, v2 = method.teacher(of_teacher), method.backbone(of_student)
        kl = kl_divergence(method.teacher_classifier(v1), method.classifier(v2), 0.2)
        similarity = feature_similarity(v1, method.projection(v2), "l2")
        terms = terms + torch.stack([kl, similarity]) / len(pairs)
    extractor = list(method.backbone.parameters())
    for term, name in zip(terms, ("extractor_kl", "extractor_fs"), strict=True):
        found = torch.autograd.grad(term, extractor, retain_graph=True)
        norm = torch.cat([g.flatten() for g in found]).double().norm()
        # float32: the weighted gradients are subtracted at the features and divided again
        assert row[name] == pytest.approx(float(norm), rel=1e-4), name
    (0.1 * terms[0] + 0.9 * terms[1]).backward()
    for module, name in ((method.classifier, "classifier"), (method.backbone, "extractor")):
        every = torch.cat(
            [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        ).double()
        assert row[name] == pytest.approx(float(every.norm()), rel=1e-4)
        assert row[f"{name}_mean"] == pytest.approx(float(every.abs().mean()), rel=1e-4)


def test_terms_are_told_apart_now_and_then_and_the_collapse_is_seen(teacher: Path, data: str):
    """A joint classifier collapses at a high and constant learning rate.

    After 30 steps the entropy was at most 0.17 on any of five seeds; with a frozen classifier it
    never was below 0.8.
    """
    recipe = replace(few_steps(), epochs=10)
    recipe = replace(
        recipe, optim=replace(recipe.optim, lr=0.01, warmup_epochs=0, schedule="constant")
    )
    rows = list(start(Setting("joint", "none"), recipe, teacher, data).rows())
    split = [row["step"] for row in rows if row["extractor_kl"] is not None]
    assert split == [1, *range(SPLIT_EVERY, 31, SPLIT_EVERY)]
    assert rows[0]["target_entropy"] > TARGET_ALARM > rows[-1]["target_entropy"]


def test_every_setting_is_a_recipe_that_only_the_loss_sets_apart():
    recipe = find_recipe("feature_only_small")
    assert len({setting.name for setting in SETTINGS}) == 8
    for setting in SETTINGS:
        made = setting.of(recipe)
        made.check()
        assert replace(made, settings=recipe.settings) == recipe
    with pytest.raises(UserError, match="no feature similarity"):
        SETTINGS[0].of(find_recipe("byol_small"))


def test_finished_runs_are_kept_and_others_refused(
    teacher: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = few_steps()
    options = GradientOptions(data, str(teacher), steps=2, seeds="5", device="cpu", workers=0)

    def measure() -> list[dict]:
        return measure_gradients(recipe, "tiny", options, tmp_path, QUIET)[0]

    begun: list[str] = []
    make, make_stop = FirstSteps.__init__, StopRequest.__init__
    stops: list[StopRequest] = []

    def stop_in_the_third(self, recipe, *rest):
        begun.append(recipe.settings.similarity)
        if len(begun) == 3:
            stops[-1].number = 15
        make(self, recipe, *rest)

    def remember(self, *arguments):
        make_stop(self, *arguments)
        stops.append(self)

    monkeypatch.setattr(StopRequest, "__init__", remember)
    monkeypatch.setattr(FirstSteps, "__init__", stop_in_the_third)
    with pytest.raises(Interrupted, match="joint-l1, seed 5") as stopped:
        measure()
    assert stopped.value.number == 15
    parts = sorted(tmp_path.glob("*/*.csv"))
    assert [part.name for part in parts] == ["joint-cosine-seed5.csv", "joint-none-seed5.csv"]
    before = parts[0].stat().st_mtime_ns
    rows = measure()
    assert len(begun) == 3 + 6
    assert parts[0].stat().st_mtime_ns == before
    assert len(rows) == 8 * 2
    assert measure() == rows
    assert len(begun) == 9
    options = replace(options, steps=3)
    with pytest.raises(UserError, match="begun with --steps 2, not 3: give another --out"):
        measure()
    options = replace(options, steps=2)
    recipe = few_steps(lam_start=0.5)
    with pytest.raises(UserError, match=r"a recipe's burn.lam_start 0.9, not 0.5: give another"):
        measure()
    recipe = few_steps()
    whole = parts[0].read_bytes()
    for other in damaged_parts(whole.decode()):
        parts[0].write_bytes(other)
        with pytest.raises(UserError, match=f"{parts[0]} is damaged: remove it to measure again"):
            _read_part(parts[0], 2)
    with pytest.raises(UserError, match="damaged"):
        measure()
    lost = whole.decode().splitlines(keepends=True)[:2]
    names, values = (line.strip().split(",") for line in lost)
    values[names.index("loss")] = "nan"
    parts[0].write_text(f"{lost[0]}{','.join(values)}\n")
    assert len(measure()) == 8 * 2 - 1  # really not finite: a finding
    parts[0].write_bytes(whole)

    about = tmp_path / "gradients-parts/about.json"
    good = json.loads(about.read_text())
    del good["recipe"]["burn"]["teacher_batch_norm"]  # as of a burn that had no such choice
    about.write_text(json.dumps(good))
    assert len(measure()) == 16
    for text in (
        "[" * 100_000, about.read_text()[:-20], "[]", "\xff", json.dumps({**good, "steps": "2"}),
        json.dumps({**good, "recipe": {}}), json.dumps({**good, "data": {}}),
        json.dumps({**good, "teacher": 3}), None,
    ):  # fmt: skip
        about.unlink() if text is None else about.write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=r"about\.json is damaged: remove"):
            measure()
    assert len(begun) == 9


def damaged_parts(text: str) -> list[bytes]:
    """Of a run of two steps."""
    header, one, two = text.splitlines()

    def with_(name: str, value: str) -> str:
        values = one.split(",")
        values[header.split(",").index(name)] = value
        return f"{header}\n{','.join(values)}\n{two}\n"

    texts = [
        "step,kl\n1\n", "step,kl\n1,2\n2,2\n", f"{header}\n{one}\n", f"{header}\n{two}\n{one}\n",
        f"{text}{two}\n", with_("step", "abc"), with_("step", "1e300"), with_("kl", "9" * 200_000),
        with_("kl", "9" * 400), with_("loss", "nan"), with_("target_entropy", ""),
        with_("target_entropy", "7"), with_("extractor", "-1"), with_("extractor_fs", "x"),
    ]  # fmt: skip
    return [b"\xff\xfe" + text.encode(), *(text.encode() for text in texts)]


def test_rows_survive_their_file():
    rows = [{"word": "cosine", "step": 1, "loss": 0.5}, {"word": "l1", "step": 2, "loss": None}]
    assert from_csv(to_csv(rows).splitlines()) == rows
    for cut in ("", "a,b\n", "a,b\n1\n", "a,b\n1,2,3\n"):
        with pytest.raises(UserError, match="damaged"):
            from_csv(cut.splitlines())
