"""The command `burn train`: from folders of images to a packed classifier, step by step."""

from __future__ import annotations

import importlib
import itertools
import json
import shlex
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import burn_engine
from burn.cli.parser import Parser
from burn.cli.shared import same_command, settings_of
from burn.core.errors import Interrupted, UserError, typed
from burn.core.files import locked, write_beside, write_text
from burn.core.inputs import read_bytes, read_json, sha256_of
from burn.core.paths import expand, require_kept
from burn.core.results import Result, num_test_images, read_results

if TYPE_CHECKING:
    from burn.data.base import Source

_PLAN, _PACKED = "train.json", "packed.bnn"
_MOST_BYTES = 2**31  # of a packed file
_PARTS = ("pretrained", "linear", "tuned")  # folders of the steps
_USUAL = ("data", "test", "init", "teacher", "work", "epochs", "pretrain_epochs", "overwrite")


@dataclass(frozen=True)
class TrainRequest:
    """What `burn train` was asked for.

    Attributes:
        labelled: images with classes.
        data: images without labels to pretrain on first.
        test: images with classes to test on; default: the test images beside those in LABELLED if
            it holds both, and otherwise a tenth of them, which is then not trained on.
        init: network to start from: a pretrained one, a run folder or its file.
        teacher: float network to learn from: lite0, a run folder, or others.
        recipe: recipe of pretraining on --data, whose network --init must be.
        epochs: passes over the labelled images.
        pretrain_epochs: passes over --data in each stage of pretraining; default: the recipe's.
        seed: random seed.
    """

    labelled: str
    data: str | None = None
    test: str | None = None
    init: str = "photos"
    teacher: str = "lite0"
    recipe: str = "burn"
    epochs: int = 30
    pretrain_epochs: int | None = None
    seed: int = 0


def run(arguments: list[str], console: Console) -> str:
    parser = Parser(
        "train LABELLED OUT.bnn",
        "Make a packed classifier of your images, from a pretrained network. Each step is a\n"
        "command of burn, which is printed: pretraining on --data if it is given, a linear\n"
        "classifier on the frozen network, fine-tuning of all layers, packing of whichever of the\n"
        "two is better on the test images, and a report. The same command goes on where it was\n"
        "interrupted.",
        "  burn train labelled/ flowers.bnn\n"
        "  burn train labelled/ flowers.bnn --data photos/\n"
        "  burn train labelled/train flowers.bnn --test labelled/test --epochs 60\n"
        "  burn-engine run flowers.bnn photo.jpg",
        {"usual options": _USUAL},
    )
    parser.add_argument("labelled", type=str, help="images in one folder per class, or other data")
    parser.add_argument("out", type=str, help="packed file to write, a new one")
    parser.add_options(TrainRequest, skip=["labelled"])
    parser.add_optional("work", str, "folder for the steps (default: OUT without .bnn)")
    parser.add_switch("overwrite", "start again, and replace OUT.bnn")
    options = parser.read(arguments)
    request = settings_of(options, TrainRequest)
    out = Path(options.out)
    if out.suffix != ".bnn":
        raise UserError(f"{options.out} does not end in .bnn: name the packed file, such as x.bnn")
    command = same_command("train", arguments, "--overwrite")
    work = Path(options.work) if options.work is not None else out.with_suffix("")
    _Steps(request, out, work, command, console).run(overwrite=options.overwrite)
    return f"burn-engine run {shlex.quote(options.out)} PHOTO"


@dataclass(frozen=True)
class _Steps:
    """The steps of one call of `burn train`."""

    request: TrainRequest
    out: Path  # the packed file, as it was typed
    work: Path  # the folder of the steps, as it was typed
    command: str  # which goes on after an interruption
    console: Console

    def run(self, *, overwrite: bool) -> None:
        """Do the steps that are not done yet."""
        from burn.training.run_dir import make_folder

        out, work = expand(str(self.out)), expand(str(self.work))
        if overwrite:
            for name, part in itertools.product(("init", "teacher"), _PARTS):
                require_kept(name, getattr(self.request, name), work / part, "--work")
        train, test, images = self._check()
        plan = {**asdict(self.request), "images": images}
        self._prepare(out, work, plan, overwrite=overwrite)
        make_folder(work)
        with locked(work):
            self._remember(out, work, plan, overwrite=overwrite)
            network = self._pretrain(work)
            linear = self._linear(network, train, test, work)
            tuned = self._finetune(network, train, test, work)
            is_better = tuned.value > linear.value
            better = "fine-tuning" if is_better else "the linear classifier"
            number = num_test_images(tuned)
            images = "the test images" if number is None else f"the {number:,} test images"
            print(
                f"on {images}, fine-tuning has {_text(tuned)} and the linear "
                f"classifier {_text(linear)}: {better} is packed (± is the standard error)"
            )
            if not _is_packed(work / _PACKED):
                (work / _PACKED).unlink(missing_ok=True)
                chosen = [str(self.work / "tuned"), str(self.work / _PACKED)]
                if not is_better:
                    chosen[:1] = [network]
                    chosen += ["--head", str(self.work / "linear")]
                self._step("pack", *chosen)
            self._publish(out, work)
            # A fine-tuned network that was not packed would open the report.
            folders = ["pretrained", "linear", *(["tuned"] if is_better else [])]
            paths = [str(self.work / name) for name in folders if (work / name).exists()]
            page = str(self.work / "report.html")
            self._step("report", *paths, "--with-model", str(self.out), "--out", page)

    def _check(self) -> tuple[str, str, dict[str, str]]:
        """Return the names of training and test images, and all fingerprints, without torch."""
        from burn.checkpoints.foreign.named import require_network
        from burn.data.checks import require_outside
        from burn.data.open import open_source
        from burn.evaluation.checks import open_labelled
        from burn.finetuning.settings import FinetuneConfig
        from burn.methods.entries import find_method
        from burn.recipes.registry import find_recipe
        from burn.runtime.bounds import require_within
        from burn.training.start import check_start

        request = self.request
        recipe = find_recipe(request.recipe)
        if not find_method(recipe.method).needs_teacher:
            raise UserError(f"--recipe {request.recipe} has no teacher: give another, such as burn")
        require_within(0, 2**32 - 1, seed=request.seed)
        if request.pretrain_epochs is not None:
            require_within(1, 10**6, pretrain_epochs=request.pretrain_epochs)
            if request.data is None:
                raise UserError("--pretrain-epochs is of pretraining: give its images by --data")
        FinetuneConfig(epochs=request.epochs).check()
        check_start(request.init, recipe if request.data is not None else None)
        require_network(request.teacher)
        train, test = self._parts(open_source(request.labelled, "train"))
        sources: dict[str, Source] = {}
        sources["labelled"], sources["test"] = open_labelled(train, test)
        if request.data is not None:
            sources["data"] = open_source(request.data)
        require_outside(self.work, *sources.values(), option="--work")
        return train, test, {name: source.fingerprint for name, source in sources.items()}

    def _parts(self, train: Source) -> tuple[str, str]:
        from burn.data.open import open_source

        labelled = self.request.labelled
        if self.request.test is not None:
            return labelled, self.request.test
        if open_source(labelled, "test").fingerprint != train.fingerprint:
            return labelled, labelled  # it holds both
        return f"{labelled}:rest", f"{labelled}:tenth"

    def _prepare(self, out: Path, work: Path, plan: dict[str, Any], *, overwrite: bool) -> None:
        """Check the folder and the file, which may be those of an earlier call like this one."""
        file = work / _PLAN
        if not out.parent.is_dir():
            raise UserError(f"{self.out}: there is no folder {out.parent}: make it first")
        if out.is_symlink() and not out.exists():
            raise UserError(f"{self.out} is a link to nothing: remove it, or give another name")
        if out.exists() and not out.is_file():
            raise UserError(f"{self.out} is not a file: give another name")
        if work.exists() and not work.is_dir():
            raise UserError(
                f"{self.work}, the folder of the steps, is a file: give another by --work"
            )
        if file.is_file() and not overwrite:
            self._require_same(file, plan)
            self._require_own(out, work)
            return
        if not file.is_file() and work.exists() and any(work.iterdir()):
            raise UserError(
                f"{self.work}, the folder of the steps, holds other files: give another by --work"
            )
        if out.exists() and not overwrite:
            raise UserError(
                f"{self.out} already exists: give --overwrite to replace it, or another name"
            )
        if file.is_file():
            for part in _PARTS:
                shutil.rmtree(work / part, ignore_errors=True)
            for old in (file, work / _PACKED, work / "report.html"):
                old.unlink(missing_ok=True)

    def _require_same(self, file: Path, plan: dict[str, Any]) -> None:
        before = read_json(file)
        for name, value in plan.items():
            was = before.get(name) if isinstance(before, dict) else None
            if was == value or (name == "images" and was is None):  # an earlier burn
                continue
            changed = f"{name} was {was}, is {value}"
            if name == "images" and isinstance(was, dict):
                changed = f"the {next(n for n in value if was.get(n) != value[n])} images changed"
            raise UserError(
                f"{self.work} holds steps of another call: {changed}; give another folder by "
                "--work, or --overwrite"
            )

    def _require_own(self, out: Path, work: Path) -> None:
        """Check that the packed file, if it is there, is the one that these steps made."""
        hashes = {self._replaced(work)}
        if _is_packed(work / _PACKED):
            hashes.add(sha256_of(work / _PACKED))
        elif _measured(work / "tuned", "finetune"):
            return  # all but packing is done, so the file may be an earlier burn's, and is compared
        if out.exists() and sha256_of(out) not in hashes:
            raise UserError(
                f"{self.out} was not made by the steps in {self.work}: move it away, or give "
                "another name and --work"
            )

    def _remember(self, out: Path, work: Path, plan: dict[str, Any], *, overwrite: bool) -> None:
        """Write what is to be done, and which packed file the new one may replace."""
        may_replace = overwrite or _is_packed(work / _PACKED)  # the file was compared with that
        replaced = sha256_of(out) if may_replace and out.is_file() else self._replaced(work)
        text = json.dumps({**plan, "replaces": replaced}, indent=2) + "\n"
        write_text(work / _PLAN, text)

    def _replaced(self, work: Path) -> str | None:
        before = read_json(work / _PLAN) if (work / _PLAN).is_file() else None
        return before.get("replaces") if isinstance(before, dict) else None

    def _publish(self, out: Path, work: Path) -> None:
        self._require_own(out, work)
        packed, new = work / _PACKED, not out.exists()
        if not new and sha256_of(out) == sha256_of(packed):
            return
        content = read_bytes(packed, _MOST_BYTES)
        write_beside(out, lambda file: file.write_bytes(content), new=new)
        print(f"{self.out}: a copy of {self.work / _PACKED}")

    def _pretrain(self, work: Path) -> str:
        """Pretrain on the unlabelled images, if there are any; return the network's name."""
        request = self.request
        if request.data is None:
            return request.init
        words = ["--init", request.init, "--data", request.data, "--teacher", request.teacher]
        if request.recipe != TrainRequest("").recipe:
            words += ["--recipe", request.recipe]
        if request.pretrain_epochs is not None:
            words += ["--epochs", str(request.pretrain_epochs)]
        words += self._seed()
        if (work / "pretrained" / "run.json").exists():
            words += ["--resume"]
        else:  # what is there of later steps is of another network
            self._forget(work, "linear", "tuned")
        network = str(self.work / "pretrained")
        self._step("pretrain", *words, "--out", network)
        return network

    def _linear(self, network: str, train: str, test: str, work: Path) -> Result:
        folder = work / "linear"
        if not (_measured(folder, "linear") and _has_weights(folder)):
            self._forget(work, "linear")  # begun, but not finished
            words = [network, "--augment", "none", "--train", train, "--test", test]
            out = str(self.work / "linear")
            self._step("evaluate", "linear", *words, *self._seed(), "--out", out)
        return _newest(folder, "linear")

    def _finetune(self, network: str, train: str, test: str, work: Path) -> Result:
        folder, request = work / "tuned", self.request
        is_measured = bool(_measured(folder, "finetune"))
        if not (is_measured and _has_weights(folder)):
            self._forget(work, *(["tuned"] if is_measured else []))
            words = [network, "--train", train, "--test", test, "--teacher", request.teacher]
            words += ["--epochs", str(request.epochs), *self._seed()]
            words += ["--resume"] if (folder / "run.json").exists() else []
            self._step("finetune", *words, "--out", str(self.work / "tuned"))
        return _newest(folder, "finetune")

    def _forget(self, work: Path, *parts: str) -> None:
        """Remove steps that are done again, and what was packed of them."""
        for part in parts:
            shutil.rmtree(work / part, ignore_errors=True)
        (work / _PACKED).unlink(missing_ok=True)

    def _seed(self) -> list[str]:
        return ["--seed", str(self.request.seed)] if self.request.seed else []

    def _step(self, command: str, *words: str) -> None:
        """Run a command of burn's in this process, after it was printed."""
        self.console.print(f"\n$ {typed(['burn', command, *words])}", style="bold")
        module: Any = importlib.import_module(f"burn.cli.commands.{command}")
        try:
            module.run(list(words), self.console)
        except Interrupted as stopped:
            message = f"stopped in burn {command}; to go on: "
            raise Interrupted(message, stopped.number, self.command) from None


def _is_packed(file: Path) -> bool:
    try:
        burn_engine.load(file)
    except (OSError, ValueError):
        return False
    return True


def _measured(folder: Path, protocol: str) -> list[Result]:
    """Return the top-1 accuracies that a step measured: none if it is not done."""
    file = folder / "results.jsonl"
    results = read_results(file) if file.is_file() else []
    return [r for r in results if (r.protocol, r.metric) == (protocol, "top1")]


def _has_weights(folder: Path) -> bool:
    """Return whether a step has left a network or a classifier that can be read."""
    from burn.checkpoints.native import is_whole

    files = list(folder.glob("*.safetensors"))
    return bool(files) and all(map(is_whole, files))


def _newest(folder: Path, protocol: str) -> Result:
    """Return the accuracy that a step has just measured, or an earlier call of it."""
    accuracies = _measured(folder, protocol)
    value = accuracies[-1].value if accuracies else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise UserError(
            f"{folder / 'results.jsonl'} has no accuracy of {protocol}: remove {folder}, and the "
            "same command does this step again"
        )
    return accuracies[-1]


def _text(result: Result) -> str:
    """Return an accuracy with the standard error that the number of its test images gives it."""
    from burn_engine.learning import standard_error

    images = num_test_images(result)
    if images is None:
        return f"{result.value:.1f} %"
    error = 100 * standard_error(result.value / 100 * images, images)
    return f"{result.value:.1f} ± {error:.1f} %"
