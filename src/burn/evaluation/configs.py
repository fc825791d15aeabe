"""Settings of `burn evaluate` and of its protocols, in a module that does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from burn.core.errors import UserError
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.compute import Device

EvaluationCompute = Literal["auto", "packed", "float32", "bfloat16"]

_MOST_EPOCHS = 10**6
_WARMUP_START = 1e-3  # share of the learning rate, as in detectron2


# The learning rates that `lr auto` tries. The best one is proportional to the inverse square of the
# features' length, which is about 100 for some networks here and 1 for others.
LINEAR_RATES = (
    1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0,
)  # fmt: skip


@dataclass(frozen=True)
class LinearConfig:
    """Settings of linear evaluation; the defaults are the paper's, except the learning rate.

    The paper uses one learning rate, 30, for all networks.

    Attributes:
        probe: strict is one linear layer. mlp puts a Linear + ReLU of the features' width below it,
            as the released code does; this is not linear evaluation, and the result says so.
        epochs: number of passes over the training images.
        lr: first learning rate of SGD with momentum 0.9. auto chooses it for each network, from
            0.00001 to 100 in steps of about 3, on a tenth of the training images that are held out,
            and then trains on all of them; with the mlp probe it is the paper's 30.
        drops: shares of the epochs after each of which the learning rate falls to a tenth.
        weight_decay: L2 penalty of the layer.
        batch_size: number of images for each step.
        augment: crop trains on random resized crops and flips, as in the paper; none on plain
            views, extracted once, which the result says.
    """

    probe: Literal["strict", "mlp"] = "strict"
    epochs: int = 100
    lr: float | Literal["auto"] = "auto"
    drops: tuple[float, ...] = (0.6, 0.8)
    weight_decay: float = 0.0
    batch_size: int = 256
    augment: Literal["crop", "none"] = "crop"

    def check(self, prefix: str = "") -> None:
        """Raise UserError if a value is out of range; `prefix` begins options, such as linear."""
        require_within(1, _MOST_EPOCHS, prefix, epochs=self.epochs)
        require_within(1, 2**20, prefix, batch_size=self.batch_size)
        if self.lr != "auto" and not 0 < self.lr <= 1e6:
            raise UserError(f"--{prefix}lr {self.lr} is neither in (0, 1e6] nor auto")
        if not all(0 < drop < 1 for drop in self.drops):
            raise UserError(
                f"--{prefix}drops {list(self.drops)}: give shares of the epochs, in (0, 1)"
            )
        if not 0 <= self.weight_decay < 1:
            raise UserError(f"--{prefix}weight-decay {self.weight_decay} is not in [0, 1)")

    @property
    def first_rate(self) -> float | None:
        """The first learning rate, or None if it is chosen for each network."""
        if self.lr != "auto":
            return self.lr
        return 30.0 if self.probe == "mlp" else None  # the paper's

    def factor(self, epoch: int) -> float:
        """Return the ratio of an epoch's learning rate to the first; epochs are counted from 0."""
        # In floating point 0.6 · 5 is 3.0, but 0.55 · 20 is 11.000000000000002.
        drops = sum(epoch >= round(drop * self.epochs, 9) for drop in self.drops)
        return 0.1**drops


@dataclass(frozen=True)
class KnnConfig:
    """Settings of the kNN protocol.

    Attributes:
        k: number of neighbours that vote.
        temperature: temperature of the votes' weights, exp(cosine / temperature).
    """

    k: int = 20
    temperature: float = 0.07

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        require_within(1, 10**6, k=self.k)
        require_within(1e-3, 1e3, temperature=self.temperature)


_PLACES = LinearConfig(epochs=28, drops=(0.25, 0.5, 0.75), weight_decay=1e-5)


@dataclass(frozen=True)
class TransferConfig:
    """Settings of transfer learning: the paper's for a dataset, which the other fields override.

    Attributes:
        settings: the dataset whose settings are used. cifar10, cifar100, cub200 and birdsnap use
            those of linear evaluation; places205 trains for 28 epochs, with the learning rate
            falling to a tenth after every 7, and weight decay 1e-5.
        epochs: number of epochs instead of the dataset's.
        lr: learning rate, as for protocol linear; the paper's is 30, and 0.01 for places205.
        drops: shares of the epochs, as for protocol linear, instead of the dataset's.
        weight_decay: weight decay instead of the dataset's.
        batch_size: number of images for each step.
        augment: augmentation, as for protocol linear.
        probe: the probe, as for protocol linear.
    """

    settings: Literal["cifar10", "cifar100", "cub200", "birdsnap", "places205"] = "cifar10"
    epochs: int | None = None
    lr: float | Literal["auto"] = "auto"
    drops: tuple[float, ...] | None = None
    weight_decay: float | None = None
    batch_size: int = 256
    augment: Literal["crop", "none"] = "crop"
    probe: Literal["strict", "mlp"] = "strict"

    def linear(self) -> LinearConfig:
        """Return the settings of linear evaluation, with the dataset's for fields that are None."""
        base = _PLACES if self.settings == "places205" else LinearConfig()
        given = {name: value for name, value in asdict(self).items() if name != "settings"}
        if (self.settings, self.probe, self.lr) == ("places205", "mlp", "auto"):
            given["lr"] = 0.01  # auto would be the paper's for the other datasets
        return replace(base, **{name: value for name, value in given.items() if value is not None})

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        self.linear().check()


@dataclass(frozen=True)
class SemiConfig:
    """Settings of semi-supervised fine-tuning; the defaults are the paper's.

    The paper does not state its batch size.

    Attributes:
        labels: percentage of the training images whose labels are used, the same number of each
            class.
        select: the images on which the best run of the sweep is selected. held_out uses a fifth of
            the labelled images; the best setting then trains on all of them and is tested once.
            test uses the test images themselves, as for the paper's numbers, which is optimistic.
        epochs: number of passes over the labelled images; both learning rates fall to a fifth after
            three fifths and again after four fifths of them.
        batch_size: number of images for each step.
        lrs: learning rates of the backbone to try.
        head_factors: factors to try with each of these, which give the linear layer's learning
            rate.
        weight_decay: weight decay of all parameters.
        keep: write the network that is tested, with its classifier, to a checkpoint in the folder
            of the results; not with select test.
    """

    labels: float = 1.0
    select: Literal["held_out", "test"] = "held_out"
    epochs: int = 20
    batch_size: int = 256
    lrs: tuple[float, ...] = (0.1, 0.01, 0.001)
    head_factors: tuple[float, ...] = (1.0, 10.0, 100.0)
    weight_decay: float = 5e-4
    keep: bool = False

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        if self.keep and self.select == "test":
            raise UserError(
                "--keep with --select test: a network that the test images chose has no honest "
                "accuracy; give --select held_out"
            )
        if not 0 < self.labels <= 100:
            raise UserError(f"labels {self.labels} is not a percentage in (0, 100]")
        require_within(1, _MOST_EPOCHS, epochs=self.epochs)
        require_within(2, 2**20, batch_size=self.batch_size)
        for name in ("lrs", "head_factors"):
            values = getattr(self, name)
            if not 1 <= len(values) <= 100 or not all(0 < value <= 1e6 for value in values):
                raise UserError(f"{name} {list(values)}: give 1 to 100 numbers in (0, 1e6]")
        if not 0 <= self.weight_decay < 1:
            raise UserError(f"weight_decay {self.weight_decay} is not in [0, 1)")

    def learning_rate(self, lr: float, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0, from the first one."""
        drops = sum(10 * epoch >= tenth * self.epochs for tenth in (6, 8))
        return lr * 0.2**drops


@dataclass(frozen=True)
class SvmConfig:
    """Settings of SVM classification; the defaults are the paper's.

    Attributes:
        full: learn from all training images.
        shots: numbers of positives of each class in few-shot learning, each with 19 times as many
            negatives; default: those of 1, 2, 4, 8, 16, 32, 64 and 96 that every class has.
        samples: number of independent few-shot samples.
        image_size: side in pixels of the square that images are resized to, without keeping their
            aspect ratio; default: the size of the views in pretraining.
    """

    full: bool = True
    shots: tuple[int, ...] | None = None
    samples: int = 5
    image_size: int | None = None

    def check(self) -> None:
        """Raise UserError if a value is out of range, or there is nothing to do."""
        for shots in self.shots or ():
            require_within(1, 10**6, shots=shots)
        require_within(1, 1000, samples=self.samples)
        require_within(8, 4096, image_size=self.image_size)
        if not self.full and self.shots == ():
            raise UserError("nothing to do: --full false and no --shots")


@dataclass(frozen=True)
class DetectorConfig:
    """Sizes of the detector; the defaults are detectron2's for C4, which MoCo and the paper use.

    Attributes:
        anchors: sides of the anchors in pixels of the resized image, each at three aspect ratios.
        proposals: number of regions that the last stage evaluates in each test image.
        rois: number of regions that the last stage learns from in each training image.
        roi_size: side in cells of the feature map that is cut out for a region.
        score_threshold: least score of a detection.
        detections: greatest number of detections in an image.
    """

    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    proposals: int = 1000
    rois: int = 512
    roi_size: int = 14
    score_threshold: float = 0.05
    detections: int = 100


@dataclass(frozen=True)
class DetectionConfig:
    """Settings of object detection; the defaults are MoCo's VOC configuration, as in the paper.

    Attributes:
        iterations: number of optimizer steps.
        batch_size: number of images for each step, over all processes.
        lr: learning rate of SGD with momentum 0.9 after warm-up.
        drops: shares of the iterations after each of which the learning rate falls to a tenth.
        warmup: number of iterations in which the learning rate rises linearly from a thousandth.
        weight_decay: L2 penalty of all parameters except those of BN.
        train_sides: short sides in pixels; each training image is resized to one of them at random.
        test_side: short side in pixels of the resized test images.
        max_side: greatest long side in pixels of a resized image.
        precise_bn: number of training batches from which BN's statistics are recomputed before the
            test; 0 keeps the running averages.
        detector: sizes of the detector.
    """

    iterations: int = 24000
    batch_size: int = 16
    lr: float = 0.02
    drops: tuple[float, ...] = (18 / 24, 22 / 24)
    warmup: int = 100
    weight_decay: float = 1e-4
    train_sides: tuple[int, ...] = tuple(range(480, 801, 32))
    test_side: int = 800
    max_side: int = 1333
    precise_bn: int = 200
    detector: DetectorConfig = field(default_factory=DetectorConfig)

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        require_within(1, 10**8, iterations=self.iterations)
        require_within(1, 2**12, batch_size=self.batch_size)
        if not 0 < self.lr <= 1e6 or not 0 <= self.weight_decay < 1:
            raise UserError("lr must be in (0, 1e6] and weight_decay in [0, 1)")
        if not all(0 < drop < 1 for drop in self.drops):
            raise UserError(f"drops {list(self.drops)}: give shares of the iterations, in (0, 1)")
        require_within(0, 10**8, warmup=self.warmup, precise_bn=self.precise_bn)
        sides = (*self.train_sides, self.test_side, self.max_side)
        if not self.train_sides or not all(32 <= side <= 8192 for side in sides):
            raise UserError("train_sides, test_side and max_side must be in 32 … 8192 pixels")
        d = self.detector
        if not 1 <= len(d.anchors) <= 32 or not all(1 <= side <= 8192 for side in d.anchors):
            raise UserError("detector.anchors: give 1 to 32 sides in 1 … 8192 pixels")
        require_within(1, 20_000, "detector.", proposals=d.proposals, detections=d.detections)
        require_within(2, 20_000, "detector.", rois=d.rois)  # BN needs a batch
        require_within(1, 64, "detector.", roi_size=d.roi_size)
        if not 0 <= d.score_threshold < 1:
            raise UserError(f"detector.score_threshold {d.score_threshold} is not in [0, 1)")

    def learning_rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        rate = self.lr * 0.1 ** sum(
            iteration >= round(drop * self.iterations) for drop in self.drops
        )
        rise = min(1.0, iteration / self.warmup) if self.warmup else 1.0
        return rate * (_WARMUP_START * (1 - rise) + rise)


@dataclass(frozen=True)
class Request:
    """What to evaluate, on which images, and where.

    Attributes:
        checkpoint: run folder or checkpoint of burn's, or ARCHITECTURE:FILE.
        train: images to learn from, with labels, or with boxes in VOC's layout.
        test: images to evaluate on.
        random_init: evaluate the checkpoint's network with random weights, as a lower bound.
        out: folder to which results.jsonl, extracted features and other files of the protocol are
            written; semi and detection need one.
        seed: random seed.
        device: where the networks run; auto is the GPU, if there is one.
        compute: arithmetic of the backbone; packed runs a binary network in burn-engine; auto is
            packed on a CPU where the protocol and the network allow it, otherwise bfloat16 if the
            hardware is faster in it.
        workers: data-loader workers (default: by the device).
    """

    checkpoint: str
    train: str = ""
    test: str = ""
    random_init: bool = False
    out: str | None = None
    seed: int = 0
    device: Device = "auto"
    compute: EvaluationCompute = "auto"
    workers: int | None = None

    def check(self) -> None:
        """Raise UserError if a value is missing or out of range."""
        for name in ("train", "test"):
            if not getattr(self, name):
                raise UserError(f"give --{name}: images with labels")
        require_within(0, 2**32 - 1, seed=self.seed)
        require_processes(0, workers=self.workers)
