"""What pretraining's loop consists of: a method that learns, its batches and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.errors import GradientFlowError
from burn.core.schedule import learning_rate_factor
from burn.core.types import Batch, Part
from burn.data.base import Source
from burn.data.feature_cache import FeatureCache
from burn.data.formats.shards import ShardedImages
from burn.data.formats.stream import StreamLoader
from burn.data.loader import EpochLoader, EpochSampler, TrainLoader, Transform, random_views
from burn.learning.loop import Learner, Loader, Loop
from burn.methods.base import Method, StepOutput
from burn.methods.shared.contrast import KeyQueue
from burn.methods.shared.frozen import FrozenTarget, frozen_target
from burn.methods.shared.standardize import Standardize
from burn.recipes.schema import OptimConfig, Recipe
from burn.runtime.distributed import Processes
from burn.runtime.signals import StopsAreErrors
from burn.training.graphs import StepGraph
from burn.training.plan import StageSteps


class Pretraining(Learner):
    """A method that learns, on the device of the processes.

    `graph` runs the steps that can be recorded and replayed; without it each runs as it is.
    """

    def __init__(
        self,
        method: Method,
        processes: Processes,
        *,
        bfloat16: bool = False,
        graph: StepGraph | None = None,
    ) -> None:
        super().__init__()
        self.method, self.in_bfloat16 = method, bfloat16
        self._processes, self._graph = processes, graph
        self._recorded = False  # whether the last pass was one of a recorded step
        # Momentum networks as well: what they compute must be what they average.
        self._backbones = [module for module in method.modules() if isinstance(module, Backbone)]
        self.output: StepOutput | None = None  # of the last micro-batch; None: too few images
        self.learned = False  # whether any optimizer step of the stage has changed the weights
        # Whether any micro-batch since the last optimizer step had enough images, and no loss or
        # gradient of that step has been found not finite.
        self.learned_in_step = False
        self.terms_of_step: dict[str, Tensor] = {}  # sums since then of the loss and its terms
        # DistributedDataParallel reads this; otherwise it broadcasts every buffer at every step.
        self._ddp_params_and_buffers_to_ignore = [
            f"method.{name}" for name in redundant_buffers(method)
        ]

    def autocast(self) -> AbstractContextManager[Any]:
        if self.in_bfloat16:
            # Without the cache of cast weights, in which the gradients of several views of a batch
            # would be added in bfloat16.
            device = self._processes.device.type
            return torch.autocast(device, torch.bfloat16, cache_enabled=False)
        return nullcontext()

    def forward(self, batch: Batch, progress: float) -> Tensor:
        batch = self._as_large_as_every_process_has(batch)
        self.output, self._recorded = None, False
        if len(batch.indices) < 2:  # the other images were unreadable; BN needs two
            # Gradients are zero, not None: DistributedDataParallel waits for all of them.
            trained = (p for p in self.parameters() if p.requires_grad)
            return 0 * torch.stack([p.sum() for p in trained]).sum()
        with StopsAreErrors(), self.autocast():
            for backbone in self._backbones:
                backbone.at_progress(progress)
            output = self._graph and self._graph.step(batch, progress)
            self._recorded = output is not None
            if output is None:
                output = self.method(batch, progress)
        if not (output.loss.requires_grad or self._recorded):
            raise GradientFlowError("the loss has no gradient: it is detached from all parameters")
        self.output, self.learned_in_step = output, True
        for name, term in {"loss": output.loss.detach(), **output.terms}.items():
            self.terms_of_step[name] = self.terms_of_step.get(name, 0) + term
        return output.loss

    def _as_large_as_every_process_has(self, batch: Batch) -> Batch:
        """Drop images so that every process has the same number of them.

        Unreadable images make the batches of processes differ in size. Losses over all processes'
        images need the same number from each, and gradients are averaged as if it were the same.
        """
        if self._processes.count == 1:
            return batch
        fewest = -int(self._processes.all_reduce_max(-len(batch.indices)))
        return batch if fewest == len(batch.indices) else batch.first(fewest)

    def backward(self, loss: Tensor) -> None:
        if self._recorded and self._graph is not None:
            self._graph.give_gradients()
        else:
            loss.backward()

    def after_step(self, progress: float) -> None:
        with StopsAreErrors():
            self.method.after_step(progress)
        self.learned = self.learned or self.learned_in_step
        self.learned_in_step, self.terms_of_step = False, {}

    def weights(self) -> dict[str, Tensor]:
        return {f"method.{name}": tensor for name, tensor in self.method.weights().items()}

    def numbers(self) -> dict[str, Any]:
        target = frozen_target(self.method)
        taught = {} if target is None else {"taught": [target.num_given, target.num_computed]}
        return {"learned": self.learned, **taught}

    def load(self, weights: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self.load_state_dict(dict(weights), strict=False)  # they lack the frozen teacher's
        self.learned = numbers["learned"]
        target = frozen_target(self.method)
        if target is not None:  # a resume file of burn 0.2.0 does not say what was taught before
            target.num_given, target.num_computed = map(int, numbers.get("taught", (0, 0)))


def redundant_buffers(method: Method) -> list[str]:
    """Return names of buffers that processes need not take from the first one at every step.

    They are BN's statistics, which training passes do not read and checkpoints take from the first
    process; a frozen teacher's, which stay as they are; and a queue of keys and the statistics of
    targets, to which every process adds the same. All are the same on every process when a stage
    begins or is resumed.
    """
    kinds = (nn.modules.batchnorm._BatchNorm, FrozenTarget, KeyQueue, Standardize)
    return [
        f"{prefix}.{name}"
        for prefix, module in method.named_modules()
        if isinstance(module, kinds)
        for name, _ in module.named_buffers()
    ]


def stage_views(
    recipe: Recipe, method: Method, seed: int, cache: FeatureCache | None = None
) -> Transform:
    """Return the transform that draws a stage's views of an image."""
    configs = recipe.view_configs(method.num_views)
    views = random_views(configs, seed, recipe.teacher_configs(method.num_taught), cache)
    return lambda image, epoch, index: views(image, recipe.view_epoch(epoch), index)


def stage_batches(
    recipe: Recipe,
    method: Method,
    source: Source,
    seed: int,
    workers: int,
    *,
    rank: int = 0,
    count: int = 1,
    cache: FeatureCache | None = None,
    pin: bool = False,
) -> EpochLoader:
    """Return the data loader of a stage, which yields one process's micro-batches.

    `cache` is that of the teacher's features for the same seed; `pin` puts batches into page-locked
    memory, for a GPU. Fewer images than processes raise UserError.
    """
    batch_size = recipe.batch_size // recipe.accumulate // count
    views = stage_views(recipe, method, seed, cache)
    cached_shape = None if cache is None else cache.cached_shape
    if isinstance(source, ShardedImages):
        return StreamLoader(
            source, views, batch_size, seed, rank, count, workers, cached_shape, pin=pin
        )
    sampler = EpochSampler(len(source), batch_size, seed, drop_last=True, rank=rank, count=count)
    return TrainLoader(source, views, sampler, workers, cached_shape, pin=pin)


def parameter_groups(parts: Sequence[Part], config: OptimConfig) -> list[dict[str, Any]]:
    """Return two parameter groups for each trained part: with weight decay and without.

    Matrices and convolution kernels decay; biases and the parameters of BN do not. A part's
    `learning_rate` multiplies that of the optimizer.
    """
    groups: list[dict[str, Any]] = []
    for part in parts:
        if not part.trained:
            continue
        params = list(part.module.parameters())
        for decays in (True, False):
            chosen = [p for p in params if (p.ndim > 1) == decays]
            if chosen:
                groups.append(
                    {
                        "params": chosen,
                        "lr": config.lr * part.learning_rate,
                        "weight_decay": config.weight_decay if decays else 0.0,
                    }
                )
    return groups


def build_optimizer(parts: Sequence[Part], config: OptimConfig) -> torch.optim.Optimizer:
    groups = parameter_groups(parts, config)
    if config.name == "adam":
        return torch.optim.Adam(
            groups, lr=config.lr, betas=(config.momentum, config.beta2), fused=True
        )
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    # timm is slow to import, and only LARS needs it.
    from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]

    return create_optimizer_v2(groups, opt="lars", lr=config.lr, momentum=config.momentum)


def pretraining_loop(
    learner: Pretraining,
    loader: Loader,
    recipe: Recipe,
    steps: StageSteps,
    processes: Processes,
) -> Loop[Pretraining]:
    optim = recipe.optim
    warmup = min(round(optim.warmup_epochs * steps.per_epoch), steps.total)
    return Loop(
        learner,
        loader,
        build_optimizer(learner.method.parts(), optim),
        lambda step: learning_rate_factor(step, steps.total, warmup, optim.schedule),
        num_steps=steps.total,
        parts=recipe.accumulate,
        processes=processes,
    )
