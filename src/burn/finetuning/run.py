"""The work of `burn finetune`: choose learning rates, train, write the checkpoint, test it once."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.checkpoints.foreign.named import require_network
from burn.core.errors import Interrupted, UserError
from burn.core.files import cannot_be_written, locked
from burn.core.inputs import read_json
from burn.core.paths import RUN_FILE, expand, require_kept
from burn.core.results import Result
from burn.data.base import Source
from burn.data.checks import require_outside
from burn.evaluation.checks import open_labelled
from burn.finetuning.folder import KIND, TunedFolder
from burn.finetuning.settings import FinetuneConfig, FinetuneRequest
from burn.runtime.compute import goes_on_in, torch_device, uses_bfloat16
from burn.runtime.launch import require_alone
from burn.runtime.signals import StopRequest, StopsAreErrors

if TYPE_CHECKING:
    from torch import nn

    from burn.checkpoints.classifier import Classifier
    from burn.evaluation.context import Model
    from burn.evaluation.fine_tuning import Tuner
    from burn.finetuning.job import Job
    from burn.finetuning.tested import Show


@dataclass(frozen=True)
class Finetuned:
    """Output of a fine-tuning, whose checkpoint holds the network and its classifier."""

    results: list[Result]  # accuracies on the test images
    notes: list[str]  # remarks, a line each
    classifier: Classifier
    checkpoint: Path


def finetune(
    request: FinetuneRequest,
    config: FinetuneConfig,
    console: Console,
    show: Show = lambda results, notes: None,
    *,
    resume_command: str = "the same command with --resume",
    model: Model | None = None,
    train: Source | None = None,
    test: Source | None = None,
) -> Finetuned:
    """Fine-tune a network, and write it with its classifier as the run in `request.out`.

    `show` is called with the results and with remarks, a line each, as soon as they are known.
    `model`, `train` and `test` are used instead of what the request names. After Ctrl-C or SIGTERM
    the run is saved, and Interrupted raised.
    """
    from burn.training.run_dir import make_folder, require_usable

    request.check()
    out = expand(request.out)
    config.check(resumed=request.resume and (out / RUN_FILE).is_file())
    require_alone("finetune")
    if model is None:
        require_network(request.checkpoint)
    if config.teacher is not None:
        require_network(config.teacher)
    require_usable(out, resume=request.resume, overwrite=request.overwrite, kind=KIND)
    if request.overwrite:
        require_kept("network", request.checkpoint if model is None else None, out)
        require_kept("teacher", config.teacher, out)
    request = _in_the_same_format(request, out, console)
    sources = open_labelled(
        request.train if train is None else train, request.test if test is None else test
    )
    require_outside(out, *sources)
    device = torch_device(request.device)
    from burn.finetuning.job import Job, Stopped
    from burn.runtime.gpu import gpu_arithmetic, gpu_failures_named

    smaller = f"a batch of {config.batch_size} images does not fit; give a smaller --batch-size"
    stop = StopRequest("finishing this step and saving")
    with contextlib.ExitStack() as stack:
        stack.enter_context(gpu_failures_named(smaller))
        stack.enter_context(gpu_arithmetic(device, fixed_shapes=True))
        stack.enter_context(stop.installed())
        job = Job(request, config, console, sources, stop, model)
        make_folder(out)
        stack.enter_context(locked(out))
        stack.enter_context(StopsAreErrors())
        folder = TunedFolder(out, job.described, request.resume, request.overwrite)
        try:
            return _run(job, folder, show)
        except Stopped as stopped:
            saved = "saved" if stopped.saved else "not saved"
            message = f"stopped and {saved} in {out}; to go on: "
            raise Interrupted(message, stop.number, resume_command) from None
        except KeyboardInterrupt:  # a second Ctrl-C
            message = f"stopped at once; to go on from what is saved in {out}: "
            raise Interrupted(message, stop.number or SIGINT, resume_command) from None


def _in_the_same_format(request: FinetuneRequest, out: Path, console: Console) -> FinetuneRequest:
    """Return the request of a run, which keeps the number format in which it began."""
    if not (request.resume and (out / RUN_FILE).is_file()):
        return request
    stored = read_json(out / RUN_FILE)
    resolved = stored.get("resolved") if isinstance(stored, dict) else None
    began = resolved.get("compute") if isinstance(resolved, dict) else None
    if began not in ("float32", "bfloat16"):
        return request
    if request.compute not in ("auto", began):
        raise UserError(
            f"{out} cannot be resumed with other settings: compute was {began}, is "
            f"{request.compute}; leave the option out, or give another --out"
        )
    now = "bfloat16" if uses_bfloat16("auto", request.device) else "float32"
    if request.compute == "auto" and began != now:
        console.print(goes_on_in(began, now), highlight=False)
    return replace(request, compute=began)


def _run(job: Job, folder: TunedFolder, show: Show) -> Finetuned:
    from burn.checkpoints.classifier import own_classifier
    from burn.checkpoints.foreign.weights import backbone_from
    from burn.checkpoints.native import load_checkpoint
    from burn.finetuning.tested import test

    trained = folder.checkpoint.is_file()
    if not trained:
        from burn.finetuning.trainings import train

        _write(job, folder, *train(job, folder))
    tuned = load_checkpoint(folder.checkpoint)
    folder.require_own(tuned)
    if trained:
        trials = tuned.meta["finetuned"]["trials"]
        job.earlier += sum(trial["seconds"] for trial in trials) + tuned.meta["monitor"]["seconds"]
    if results := folder.results():
        job.console.print(f"{folder.path} is finished", highlight=False)
        show(results, job.notes)
        classifier = own_classifier(tuned, backbone_from(tuned))
        assert classifier is not None
        return Finetuned(results, job.notes, classifier, folder.checkpoint)
    with job.stop.at_once():
        results, notes, classifier = test(job, folder, tuned, show)
    return Finetuned(results, notes, classifier, folder.checkpoint)


def _write(
    job: Job,
    folder: TunedFolder,
    tuner: Tuner,
    head: nn.Linear,
    about: dict[str, Any],
    seconds: float,
) -> None:
    """Write the checkpoint, with a classifier whose probabilities are calibrated."""
    import torch

    from burn.checkpoints.tuned import save_tuned, tuned_meta
    from burn.training.run_dir import describe_machine

    with torch.no_grad():
        for parameter in head.parameters():
            parameter.div_(about["calibration"])
    assert job.model.meta is not None
    images = min(job.config.batch_size, len(job.train))
    meta = tuned_meta(
        job.model.meta,
        classes=job.frozen.class_names,
        data=job.described["data"],
        steps=tuner.loop.step,
        images_per_step=images,
        seed=job.request.seed,
        about=about,
    )
    meta["run"] = folder.name
    meta["machine"] = describe_machine(job.device, 1)
    meta["monitor"] = {
        "knn": None,
        "collapsed_at": None,
        "seconds": seconds,
        "images_per_second": tuner.loop.step * images / max(seconds, 1e-9),
        "unreadable_images": len(tuner.unreadable),
        "last": {},
    }
    try:
        save_tuned(folder.checkpoint, tuner.learner.backbone, head, meta)
    except OSError as error:
        problem = cannot_be_written(error.filename or folder.checkpoint, error)
        raise UserError(
            f"the network is trained but not saved: {problem}; free some space, then --resume"
        ) from error
    folder.resume_files().finish(keep=False)
