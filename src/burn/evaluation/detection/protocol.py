"""Object detection by fine-tuning the whole network (paper, Table 1 and appendix A)."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from burn.core.errors import Interrupted, UserError
from burn.core.files import write_beside, write_text
from burn.core.inputs import require_regular
from burn.core.results import Result
from burn.data.augment import generator
from burn.data.decode import UnreadableImage
from burn.data.formats.voc import Annotation, Voc
from burn.data.loader import EpochLoader, EpochSampler
from burn.data.workers import QuietLoader, start_worker
from burn.evaluation.configs import DetectionConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.detection.average_precision import Detections, detection_scores
from burn.evaluation.detection.detector import Detector, Images
from burn.evaluation.detection.pictures import draw_detections
from burn.evaluation.progress import progress_bar
from burn.layers.sync_norm import synchronize_norms
from burn.learning.loop import Callback, Learner, Loop
from burn.learning.resume_files import ResumeFiles, SaveResume
from burn.runtime.distributed import Processes
from burn.runtime.random_state import sole_use
from burn.runtime.signals import StopRequest, interrupted

_KEEP_EVERY = 300  # seconds between two resume files
_EMPTY = (
    torch.zeros(3, 64, 64, dtype=torch.uint8),
    torch.zeros(0, 4),
    torch.zeros(0, dtype=torch.int64),
)


@sole_use("detection")
def run_detection(
    context: EvaluationContext, config: DetectionConfig, console: Console
) -> list[Result]:
    """Run object detection: AP, AP50 and AP75, and each class's AP.

    Average precision follows VOC 2007's 11-point rule at each overlap. Objects marked difficult are
    used in training but not in the evaluation. Under torchrun the processes share each batch, and
    the main process tests.

    It writes to `context.out`: detector.safetensors, the fine-tuned network, which is not trained
    again if the file exists; detections.json and detections.png; and, until training is done,
    detection-resume.ckpt.

    Raises:
        UserError: There is no `context.out`, it holds the detector of another training, every test
            object is difficult, or training diverged.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    out = context.out
    if out is None:
        raise UserError("detection keeps the trained detector and a picture: give --out")
    train, test = context.train, context.test
    assert isinstance(train, Voc)
    assert isinstance(test, Voc)
    evaluated = np.concatenate([a.labels[~a.difficult] for a in test.annotations])
    if not len(evaluated):
        raise UserError(f"{test.name}: every object is difficult, so there is nothing to find")
    if absent := [n for i, n in enumerate(train.classes) if i not in evaluated]:
        names = ", ".join(absent)
        context.notes.append(f"classes with no test object, left out of the mean: {names}")
    began = time.perf_counter()
    torch.manual_seed(context.seed)
    backbone = copy.deepcopy(context.backbone)
    detector = Detector(
        backbone, len(train.classes), config.detector, bfloat16=context.bfloat16
    ).to(context.device)
    processes = Processes.start(context.device)
    if config.batch_size % processes.count:
        processes.fail(
            f"batch_size {config.batch_size} cannot be divided among {processes.count} processes"
        )
    if processes.is_main:
        out.mkdir(parents=True, exist_ok=True)
    with processes.report_lost_processes():
        earlier = _trained(detector, train, context, config, processes, out, console)
        processes.stop()
    if not processes.is_main:
        return []
    try:
        return _tested(detector, test, context, config, out, began - earlier, console)
    except KeyboardInterrupt as stopped:
        raise interrupted(
            f"interrupted in the test: the detector is kept in {out}, the same command tests it",
            stopped,
        ) from None


def _tested(
    detector: Detector,
    test: Voc,
    context: EvaluationContext,
    config: DetectionConfig,
    out: Path,
    began: float,
    console: Console,
) -> list[Result]:
    found = detect(detector, test, context, config, console)
    context.note_unreadable(test, set(range(len(test))) - set(found))
    if not found:
        raise UserError(f"{test.name}: none of its images can be read")
    truth = [test.annotations[index] for index in found]
    scores = detection_scores(list(found.values()), truth, len(test.classes))
    numbers = {"AP": scores.AP, "AP50": scores.AP50, "AP75": scores.AP75}
    numbers |= {f"AP {name}": ap for name, ap in zip(test.classes, scores.per_class, strict=True)}
    percent = {name: 100 * value for name, value in numbers.items() if not np.isnan(value)}
    results = context.results("detection", percent, asdict(config), began)
    context.announce(results)
    plain = [
        {
            "image": test.describe(index),
            "boxes": detected.boxes.round(2).tolist(),
            "scores": detected.scores.round(4).tolist(),
            "labels": [test.classes[label] for label in detected.labels],
        }
        for index, detected in found.items()
    ]
    context.keep(lambda: write_text(out / "detections.json", json.dumps(plain)))
    picture = out / "detections.png"
    context.keep(lambda: write_beside(picture, lambda to: draw_detections(to, test, found)))
    return results


def _trained(
    detector: Detector,
    train: Voc,
    context: EvaluationContext,
    config: DetectionConfig,
    processes: Processes,
    out: Path,
    console: Console,
) -> float:
    """Train the detector or load a trained one; return the seconds that earlier calls spent."""
    path, key = out / "detector.safetensors", _key(context, config)
    if path.is_file():
        require_regular(path)  # safetensors reports a file without read permission as missing
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
            if about["key"] != key:
                raise UserError(f"{path} is from another training: give another --out")
            detector.load_state_dict(load_file(path))
            context.notes.extend(str(note) for note in json.loads(about["notes"]))
            return float(about["seconds"])
        except UserError:
            raise
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"{path} is damaged: remove it to train again") from error
    began, num_notes = time.perf_counter(), len(context.notes)
    if processes.count > 1 and context.device.type == "cuda":
        synchronize_norms(detector)
    elif processes.count > 1:
        context.notes.append("BN used each process's own images: it is synchronized only on CUDA")
    files = ResumeFiles(out, key, name="detection-resume")
    earlier = _train(detector, train, context, config, processes, files, console)

    def save() -> None:
        seconds = earlier + time.perf_counter() - began
        weights = {name: t.cpu().contiguous() for name, t in detector.state_dict().items()}
        if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
            raise UserError("detection diverged in its last iterations: lower --lr")
        notes = json.dumps(context.notes[num_notes:])
        about = {"key": key, "seconds": f"{seconds:.3f}", "notes": notes}
        if context.keep(lambda: write_beside(path, lambda to: save_file(weights, to, about))):
            files.finish(keep=False)

    processes.run_on_main(save)
    return earlier


def _train(
    detector: Detector,
    train: Voc,
    context: EvaluationContext,
    config: DetectionConfig,
    processes: Processes,
    files: ResumeFiles,
    console: Console,
) -> float:
    """Train to the last iteration, from the resume file if there is one, and compute precise BN.

    Ctrl-C and SIGTERM, to any of the processes, stop all of them between two iterations. Returns
    the seconds that earlier calls spent.
    """
    learner, loader = _Detection(detector), _batches(train, context, config, processes)
    loop = Loop(
        learner,
        loader,
        torch.optim.SGD(_groups(detector, config.weight_decay), lr=1.0, momentum=0.9),
        config.learning_rate,
        num_steps=config.iterations,
        processes=processes,
    )
    stop = StopRequest()
    saver = SaveResume(files, stop, _KEEP_EVERY / 60, console)
    stopped_by = 0  # number of the signal, on which all processes agree

    def unless_stopped(batches: Iterable[_Batch]) -> Iterator[tuple[Any, ...]]:
        nonlocal stopped_by
        for number, batch in enumerate(batches, start=config.iterations):
            stopped_by = int(processes.all_reduce_max(stop.number))
            if stopped_by:
                return
            torch.manual_seed(_step_seed(context.seed, number, processes.rank))
            course.unreadable.update(batch.unreadable)
            yield tuple(batch.to(context.device))[:2]

    with progress_bar(console) as progress, stop.installed():
        bar = progress.add_task("detection", total=config.iterations)
        course = _Course(train, context.seed, progress, bar, console)
        loop.callbacks = [course, saver]
        files.resume(loop, console)
        earlier = course.earlier
        detector.train()
        loop.run()
        stopped_by = saver.stopped_by
        if config.precise_bn and not stopped_by:
            progress.update(bar, description="precise BN", completed=0, total=config.precise_bn)
            endless: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(loader))
            chosen = itertools.islice(endless, config.precise_bn)
            precise_batch_norm(detector, unless_stopped(chosen), lambda: progress.advance(bar))
    if stopped_by:
        kept = f"kept in {files.newest}; the same command resumes"
        raise Interrupted(
            f"interrupted after {loop.step} of {config.iterations} iterations, "
            + (kept if saver.last_step == loop.step else "not saved"),
            stopped_by,
        )
    context.note_unreadable(train, course.unreadable)
    return earlier


class _Batch(NamedTuple):
    """Images of a batch, the objects in each, and positions of images that could not be read."""

    images: Images
    targets: list[dict[str, Tensor]]
    unreadable: list[int]

    def to(self, device: torch.device) -> _Batch:
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        moved = [{name: move(tensor) for name, tensor in target.items()} for target in self.targets]
        return _Batch(Images(move(self.images.pixels), self.images.sizes), moved, self.unreadable)


class _Detection(Learner):
    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        self.loss = torch.zeros(())  # of the last batch

    def forward(self, batch: _Batch, progress: float) -> Tensor:
        _, losses = self.detector(batch.images, batch.targets)
        loss = torch.stack(list(losses.values())).sum()
        self.loss = loss.detach()
        return loss


class _Course(Callback):
    """Seeds every iteration, ends a training that diverges, and shows how far it is."""

    def __init__(
        self, train: Voc, seed: int, progress: Progress, bar: TaskID, console: Console
    ) -> None:
        self._train, self._seed, self._console = train, seed, console
        self._progress, self._bar = progress, bar
        self._began = self._printed = time.perf_counter()
        self.unreadable: set[int] = set()  # positions of images
        self.earlier = 0.0  # seconds that earlier calls spent

    def on_batch_start(self, loop: Loop[_Detection], batch: _Batch) -> None:
        self.unreadable.update(batch.unreadable)
        if len(self.unreadable) == len(self._train):
            raise UserError(f"{self._train.name}: none of its images can be read")
        # The samplers of anchors and regions draw from torch's global random state.
        torch.manual_seed(_step_seed(self._seed, loop.step, loop.processes.rank))

    def on_batch_end(self, loop: Loop[_Detection], batch: _Batch) -> None:
        # All processes must decide the same at the same iteration: otherwise some wait forever for
        # the gradients of those that have ended.
        loss = float(loop.learner.loss)
        if loop.processes.all_reduce_max(float(not math.isfinite(loss))):
            loop.processes.fail(f"detection diverged at iteration {loop.step - 1}: lower --lr")
        text = f"detection, loss {loss:.2f}"
        self._progress.update(self._bar, completed=loop.step, description=text)
        now = time.perf_counter()
        if now - self._printed > _KEEP_EVERY and loop.processes.is_main:
            self._printed = now
            self._console.print(f"iteration {loop.step} of {loop.num_steps}, loss {loss:.2f}")

    def state_dict(self) -> dict[str, Any]:
        spent = self.earlier + time.perf_counter() - self._began
        return {"seconds": spent, "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.earlier, self.unreadable = state["seconds"], set(state["unreadable"])


def precise_batch_norm(
    module: nn.Module,
    batches: Iterable[tuple[Any, ...]],
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Replace BN's running statistics by the mean over some batches, with fixed weights.

    Running averages lag behind the weights during training (Wu & Johnson, 2021). `batches` are
    arguments of the network, which is left in training mode.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    module.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # makes PyTorch compute a cumulative average
    with torch.no_grad():
        for batch in batches:
            module(*batch)
            advance()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def detect(
    detector: Detector,
    source: Voc,
    context: EvaluationContext,
    config: DetectionConfig,
    console: Console,
) -> dict[int, Detections]:
    """Return the detections in each image that can be read, in its own pixels, by its position.

    The detector is left in eval mode.
    """
    detector.eval()
    dataset = _Resized(source, config, context.seed)
    loader = QuietLoader(
        dataset, batch_size=None, sampler=[(None, index) for index in range(len(source))],  # type: ignore[arg-type]
        num_workers=context.workers, worker_init_fn=start_worker,
    )  # fmt: skip
    found: dict[int, Detections] = {}
    with progress_bar(console) as progress, torch.inference_mode():
        bar = progress.add_task("detecting", total=len(source))
        for index, item in enumerate(loader):
            progress.advance(bar)
            if isinstance(item, int):
                continue
            pixels, _, _, original = item
            # Padded as in training, so that anchors lie in the same places: torchvision divides the
            # image's side by that of its map.
            images, _ = _pad([item[:3]], _padding(context))
            ((output,), _) = detector(Images(images.pixels.to(context.device), images.sizes))
            scale = original[1] / pixels.shape[2], original[0] / pixels.shape[1]
            boxes, scores, labels = (
                output[name].cpu().numpy() for name in ("boxes", "scores", "labels")
            )
            boxes = boxes * np.array([*scale, *scale], dtype=np.float32)
            found[index] = Detections(boxes, scores, labels - 1)
    return found


class _Resized(Dataset[Any]):
    """A dataset that maps (epoch, index) to pixels, boxes, labels and (height, width) as stored.

    For training the short side and a flip are drawn from (seed, epoch, index); for the test the
    epoch is None. If the image cannot be read, the item is its index.
    """

    def __init__(self, source: Voc, config: DetectionConfig, seed: int) -> None:
        self._source, self._config, self._seed = source, config, seed

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: tuple[int | None, int]) -> Any:
        epoch, index = key
        try:
            image = self._source.read(index)
        except UnreadableImage:
            return index
        config, annotation = self._config, self._source.annotations[index]
        side, flip = config.test_side, False
        if epoch is not None:
            random = generator(self._seed, epoch, index, 0)
            side = int(random.choice(config.train_sides))
            flip = bool(random.random() < 0.5)
        pixels, boxes = resize_and_flip(image, annotation, side, config.max_side, flip=flip)
        return pixels, boxes, torch.from_numpy(annotation.labels) + 1, tuple(image.shape[1:])


def resize_and_flip(
    image: Tensor, annotation: Annotation, side: int, max_side: int, *, flip: bool
) -> tuple[Tensor, Tensor]:
    """Resize an image, uint8 (3, height, width), and its boxes, and flip them horizontally.

    The short side becomes `side` pixels, or less if the long side would exceed `max_side`.
    """
    height, width = image.shape[1:]
    scale = min(side / min(height, width), max_side / max(height, width))
    new = max(1, round(width * scale)), max(1, round(height * scale))
    array = image.permute(1, 2, 0).numpy()
    array = cv2.resize(array, new, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    boxes = annotation.boxes * np.array([new[0] / width, new[1] / height] * 2, dtype=np.float32)
    if flip:
        array = cv2.flip(array, 1)
        boxes = boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1) + (new[0], 0, new[0], 0)
    pixels = torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1).contiguous()
    return pixels, torch.from_numpy(boxes.astype(np.float32))


class _Shares(EpochSampler):
    """A sampler of all processes' batches that yields this one's share of each."""

    def __init__(self, num_images: int, batch_size: int, seed: int, processes: Processes) -> None:
        super().__init__(num_images, batch_size, seed, drop_last=True)
        self._processes = processes

    def __iter__(self) -> Iterator[Any]:
        rank, count = self._processes.rank, self._processes.count
        return (batch[rank::count] for batch in super().__iter__())


def _batches(
    train: Voc, context: EvaluationContext, config: DetectionConfig, processes: Processes
) -> EpochLoader:
    padding = _padding(context)

    def collate(items: list[Any]) -> _Batch:
        good = [item[:3] for item in items if not isinstance(item, int)]
        # If no image of a batch can be read, an empty image keeps the processes synchronous.
        images, targets = _pad(good or [_EMPTY], padding)
        return _Batch(images, targets, [i for i in items if isinstance(i, int)])

    shares = _Shares(len(train), config.batch_size, context.seed, processes)
    return EpochLoader(
        shares, _Resized(train, config, context.seed), context.workers, batch_sampler=shares,
        collate_fn=collate, pin_memory=context.device.type == "cuda",
    )  # fmt: skip


def _padding(context: EvaluationContext) -> tuple[int, ...]:
    """Return the colour around images, the mean of those that the network learned from."""
    return tuple(round(255 * value) for value in context.backbone.config.mean)


def _pad(
    items: list[tuple[Tensor, Tensor, Tensor]], colour: tuple[int, ...]
) -> tuple[Images, list[dict[str, Tensor]]]:
    sizes = [(pixels.shape[1], pixels.shape[2]) for pixels, _, _ in items]
    # Sides are multiples of stride 32: a strided convolution would drop the last row of odd maps.
    height, width = (-(-max(side) // 32) * 32 for side in zip(*sizes, strict=True))
    padded = torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1)
    padded = padded.repeat(len(items), 1, height, width)
    for into, (pixels, _, _) in zip(padded, items, strict=True):
        into[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    targets = [{"boxes": boxes, "labels": labels} for _, boxes, labels in items]
    return Images(padded, sizes), targets


def _groups(detector: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    norms = [m for m in detector.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    of_norms = {id(p) for norm in norms for p in norm.parameters()}
    params = list(detector.parameters())
    return [
        {"params": [p for p in params if id(p) not in of_norms], "weight_decay": weight_decay},
        {"params": [p for p in params if id(p) in of_norms], "weight_decay": 0.0},
    ]


def _step_seed(seed: int, iteration: int, rank: int) -> int:
    return int(np.random.SeedSequence((seed, iteration, rank)).generate_state(1)[0])


def _key(context: EvaluationContext, config: DetectionConfig) -> str:
    """Return a hash of everything that affects the result of training."""
    parts = (context.fingerprint, context.train.fingerprint, asdict(config), context.seed)
    return hashlib.sha256(repr((*parts, context.bfloat16)).encode()).hexdigest()[:16]
