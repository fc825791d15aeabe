"""A run that is ready to train, with what its stages share, and the checks before that."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher, load_teacher
from burn.core.errors import Interrupted, UserError
from burn.core.types import Precision
from burn.data.base import Source
from burn.layers import BinaryConv2d
from burn.methods.base import Method
from burn.methods.entries import find_method
from burn.methods.registry import build_method
from burn.recipes.schema import Recipe
from burn.runtime.compute import default_workers
from burn.runtime.distributed import Processes
from burn.runtime.random_state import seeded
from burn.training.graphs import why_not_recorded
from burn.training.named import check_images
from burn.training.plan import Machine, RunPlan, StageSteps, stage_steps
from burn.training.run_dir import describe_machine, describe_run
from burn.training.start import load_start, put_in
from burn.training.teacher_cache import TeacherCache


class PreparedRun:
    """A plan with everything that its stages share, opened and checked.

    `compute` is the number format of the arithmetic, float32 or bfloat16. `teacher`, where given,
    is used instead of loading the plan's.
    """

    def __init__(
        self,
        plan: RunPlan,
        machine: Machine,
        compute: str,
        processes: Processes,
        console: Console,
        source: Source,
        teacher: Teacher | None = None,
    ) -> None:
        self.plan, self.machine, self.compute = plan, machine, compute
        self.processes, self.console = processes, console
        self.resume_command = ""  # for messages
        self.base_recipe = plan.recipe  # before the user changed its fields
        self.extendable = True  # whether finished stages keep what a longer run goes on from
        self.source = source
        check_images(plan, self.source, processes.count)
        if teacher is None and plan.teacher is not None:
            teacher = load_teacher(plan.teacher)
        self.teacher = teacher
        self.start = None if plan.init is None else load_start(plan.init, plan.recipe)
        check_view_size(plan.recipe)
        self.cache: TeacherCache | None = None
        if machine.teacher_cache is not None:
            assert self.teacher is not None  # `check_settings` has refused it
            folder = Path(machine.teacher_cache)
            self.cache = TeacherCache(folder, plan.recipe, self.teacher, source, compute)
        if self.teacher is not None and not (self.cache and self.cache.is_there):
            check_teacher_size(plan.recipe, self.teacher, plan.teacher or "")
        if self.cache is not None:  # only after the check that the teacher can take its views
            self.processes.run_on_main(self.cache.make)
        resolved = {"compute": compute, "device": processes.device.type}
        self.described = describe_run(  # for run.json
            plan, self.source, self.teacher, self.start and self.start.origin, resolved
        )
        self.machine_described = describe_machine(processes.device, processes.count)
        if processes.device.type == "cuda":
            self.machine_described["cuda_graphs"] = machine.cuda_graphs

    def make_method(self, precision: Precision) -> Method:
        """Build the method of a stage with the weights that the run starts from."""
        recipe = self.plan.recipe
        config, num_classes = recipe.settings, len(self.source.classes)
        try:
            with seeded(self.plan.seed):
                backbone = build_backbone(recipe.backbone, precision)
                if self.start is not None:  # before the method, which may copy it
                    put_in(self.start, backbone)
                return build_method(recipe.method, config, backbone, self.teacher, num_classes)
        except RuntimeError as error:  # torch's allocator raises it if memory runs out
            raise UserError(f"method {recipe.method} cannot be built: {error}") from error

    @property
    def workers(self) -> int:
        """Number of data-loader workers of each process."""
        if self.machine.workers is not None:
            return self.machine.workers
        return default_workers(self.machine.device, self.processes.local_count)

    @property
    def steps(self) -> StageSteps:
        plan = self.plan
        return stage_steps(plan.recipe, len(self.source), self.processes.count, plan.max_steps)

    @property
    def synchronizes(self) -> bool:
        """Whether BN computes its statistics over the images of all processes."""
        several = self.processes.count > 1 and self.processes.device.type == "cuda"
        return several and find_method(self.plan.recipe.method).synchronize_norms

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line that may contain a user's names."""
        self.console.print(line, style=style, markup=False, highlight=False)

    def interrupted(self, what: str, number: int) -> Interrupted:
        """Return the exception that ends a run after a signal; `what` was stopped."""
        return Interrupted(f"{what}; resume with: ", number, self.resume_command)


def stage_seed(seed: int, stage: int) -> int:
    """Return the random seed of a stage's order and views, which differ between stages."""
    return seed + 1000 * (stage - 1)


def check_shares(recipe: Recipe, processes: Processes) -> None:
    """Raise UserError unless every process gets as many of a batch's images, at least two."""
    images, rest = divmod(recipe.batch_size, recipe.accumulate * processes.count)
    if rest or images < 2:
        raise UserError(
            f"a batch of {recipe.batch_size} in {recipe.accumulate} parts cannot be shared by "
            f"{processes.count} processes with at least two images each: change --batch-size, "
            "--accumulate or the number of devices"
        )


def check_gpu_options(plan: RunPlan, machine: Machine, processes: Processes) -> None:
    """Raise UserError if `--cuda-graphs` cannot work on this device or with the other settings."""
    if not machine.cuda_graphs:
        return
    recipe = plan.recipe
    why = why_not_recorded(recipe.method, recipe.settings)
    for there_is, what in (
        (processes.device.type != "cuda", "needs a GPU, and this run is on a CPU"),
        (processes.count > 1, f"is for one process, and this run has {processes.count}"),
        (recipe.accumulate > 1, f"needs --accumulate 1 (it is {recipe.accumulate})"),
        (machine.compile, "and --compile exclude each other"),
        (machine.profile, "and --profile exclude each other: replayed steps have no parts"),
        (
            machine.teacher_cache is not None,
            "and --teacher-cache exclude each other: the number of features that are not "
            "cached varies",
        ),
        (why is not None, f"cannot record method {recipe.method}: {why}"),
    ):
        if there_is:
            raise UserError(f"--cuda-graphs {what}; leave --cuda-graphs out")


def smaller_batch(recipe: Recipe, processes: Processes) -> str:
    """Say how many images a device takes at once, and how to make it fewer, if they do not fit."""
    images = recipe.batch_size // recipe.accumulate // processes.count
    text = f"a batch per device of {images} images does not fit; "
    if not find_method(recipe.method).accumulates:
        return text + "give more --devices, or a smaller --batch-size"
    parts = 2 * recipe.accumulate
    if images % 2 or images < 4:
        return text + "give a smaller --batch-size, or smaller views"
    return text + f"begin again with --accumulate {parts} (it is {recipe.accumulate})"


def check_view_size(recipe: Recipe) -> None:
    """Raise UserError unless the backbone takes the views and returns a vector for each.

    Nor may views shrink to a single pixel before its last stride.
    """
    network = build_backbone(recipe.backbone, recipe.precisions()[0]).eval()
    name = recipe.backbone.name
    single: list[nn.Module] = []

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if layer.stride not in (1, (1, 1)) and max(inputs[0].shape[2:]) == 1:
            single.append(layer)

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, BinaryConv2d)):
            layer.register_forward_pre_hook(look)
    sizes = {view.size for view in recipe.view_configs()}
    for size in sizes:
        try:
            with torch.inference_mode():
                width = network(torch.zeros(1, 3, size, size)).shape[1]
        except (RuntimeError, AssertionError, IndexError) as error:
            raise UserError(f"backbone {name} cannot take views of {size} pixels") from error
        if width != network.num_features:
            raise UserError(f"backbone {name} has no plain pooled features: use another")
        if single:
            # Torch 2.15 also computes a wrong gradient of such a layer in bfloat16 on a CPU.
            raise UserError(
                f"views of {size} pixels shrink to a single pixel before the last stride of "
                f"{name}: use larger views, or smaller strides"
            )


def check_teacher_size(recipe: Recipe, teacher: Teacher, spec: str) -> None:
    """Raise UserError unless the teacher takes its views and returns a vector for each.

    `spec` is its name for messages.
    """
    size, fixed = recipe.teacher_size or recipe.views.size, teacher.backbone.fixed_size
    try:
        with torch.inference_mode():
            width = teacher.backbone(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1]
    except (RuntimeError, AssertionError, IndexError, UserError) as error:
        hint = f"give --teacher-size {fixed}" if fixed else "give a larger --teacher-size"
        if isinstance(error, UserError) and not fixed:  # timm says which sizes a network takes
            hint = f"{error}; give another --teacher-size"
        raise UserError(f"teacher {spec} cannot take views of {size} pixels: {hint}") from error
    if width != teacher.backbone.num_features:
        raise UserError(f"teacher {spec} has no plain pooled features: use another")
