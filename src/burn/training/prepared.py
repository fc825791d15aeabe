"""A run that is ready to train: its plan, and the images, teacher and cache of its stages."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from rich.console import Console

from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher, load_teacher
from burn.core.errors import Interrupted, UserError
from burn.core.types import Precision
from burn.data.base import Source
from burn.methods.base import Method
from burn.methods.entries import find_method
from burn.methods.registry import build_method
from burn.runtime.compute import default_workers
from burn.runtime.distributed import Processes
from burn.runtime.random_state import seeded
from burn.training.named import check_images
from burn.training.plan import Machine, RunPlan, StageSteps, stage_steps
from burn.training.preflight import check_teacher_size, check_view_size
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

    def fail(self, message: str) -> NoReturn:
        """Raise an error that every process finds; only the main process reports it."""
        self.processes.fail(message)

    def interrupted(self, what: str, number: int) -> Interrupted:
        """Return the exception that ends a run after a signal; `what` was stopped."""
        return Interrupted(f"{what}; resume with: ", number, self.resume_command)


def stage_seed(seed: int, stage: int) -> int:
    """Return the random seed of a stage's order and views, which differ between stages."""
    return seed + 1000 * (stage - 1)
