"""The command `burn pretrain`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import device_named, teacher_cache
from burn.core.errors import UserError, shortened
from burn.core.paths import expand
from burn.core.plugins import imports
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.launch import launch, started_by_launcher
from burn.runtime.ranks import ranks


def run(arguments: list[str], console: Console) -> None:
    """Run `burn pretrain` with the arguments after its name."""
    from burn.checkpoints.foreign.layouts import TEACHER_SYNTAX
    from burn.core.settings import from_plain
    from burn.methods.registry import registered_configs
    from burn.recipes.registry import find_recipe, recipe_list
    from burn.recipes.schema import Recipe
    from burn.training.callbacks.pace import rate
    from burn.training.plan import Machine, RunPlan

    parser = Parser(
        "pretrain",
        "Unlabelled images in, a binary backbone out. Labels serve monitoring alone, but in\n"
        f"method supervised.\n\nrecipes:\n{recipe_list()}\n\n{TEACHER_SYNTAX}",
        "  burn pretrain --recipe teacher_small --data photos/ --out runs/teacher\n"
        "  burn pretrain --recipe burn_small --data photos/ --teacher runs/teacher \\\n"
        "      --out runs/student\n"
        "  burn pretrain --recipe burn_imagenet --data imagenet/train \\\n"
        "      --teacher resnet50:moco_v2_800ep.pth --out runs/imagenet\n"
        "  burn pretrain --resume --out runs/student\n"
        "  burn pretrain --recipe burn_small --epochs 20 --burn.lam constant --print-config",
    )
    parser.add_argument(
        "--recipe", type=str, default=None, help="name of a recipe, whose fields are the defaults"
    )
    parser.add_argument(
        "--data", type=str, default=None,
        help="folder of images at any depth, parquet with encoded images, CIFAR folder, digits, or "
        "stream:PATH of tar or parquet shards",
    )  # fmt: skip
    parser.add_argument(
        "--teacher", type=str | None, default=None,
        help="PATH, ARCHITECTURE:FILE or hub:NAME, see above",
    )  # fmt: skip
    parser.add_argument("--out", type=str, default=None, help="folder of the run")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--max_steps", type=int | None, default=None,
        help="optimizer steps after which each stage ends",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on where a run in --out stopped, or begin it"
    )
    parser.add_argument("--overwrite", action="store_true", help="begin a run in --out again")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--devices", type=int | None, default=None,
        help="processes on this machine that share each batch, one a GPU (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--num_nodes", type=int | None, default=None,
        help="number of nodes, see docs/scaling.md (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int | None, default=None, help="data-loader workers per rank"
    )
    parser.add_argument(
        "--monitor_every", type=int | None, default=None,
        help="optimizer steps between two rows of metrics (default: a fiftieth of a stage's steps, "
        "at most 20)",
    )  # fmt: skip
    parser.add_argument(
        "--save_every", type=float, default=5.0, help="minutes between two resume files"
    )
    parser.add_argument(
        "--on_nonfinite", type=str, default="stop",
        help="loss or gradient not finite: stop, or skip:N to leave out N steps of a stage",
    )  # fmt: skip
    parser.add_argument(
        "--max_bad", type=str, default="10%",
        help="share of the images that may be unreadable and are left out",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="store_true", help="time the parts of a step, printed after each stage"
    )
    parser.add_argument(
        "--compile", action="store_true", help="run the networks through torch.compile"
    )
    parser.add_argument(
        "--teacher_cache", type=str | None, default=None,
        help="folder that keeps the teacher's features of the views for later runs",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print how stages ended as JSON lines")
    parser.add_configuration()
    parser.add_fields(Recipe, registered_configs())
    expanded = parser.expand(arguments)
    resuming = _resumed_plan(parser, expanded)
    name = resuming.recipe_name if resuming else parser.peek(expanded, "recipe")
    recipe = resuming.recipe if resuming else find_recipe(name) if name else Recipe()
    parser.set_field_defaults(recipe.to_json())
    if resuming:
        parser.set_defaults(
            recipe=name, data=resuming.data, teacher=resuming.teacher, seed=resuming.seed,
            max_steps=resuming.max_steps,
        )  # fmt: skip
    resize = _resize_of_views(parser, expanded, recipe)
    if resize is not None:
        parser.set_defaults({"views.resize": resize})
    options = parser.read(expanded)
    machine = Machine(
        device_named(options.device), options.workers, options.monitor_every, options.save_every,
        _skipped_steps(options.on_nonfinite), _share(options.max_bad), options.profile,
        options.compile, teacher_cache(options.teacher_cache),
    )  # fmt: skip
    if not options.recipe:
        raise UserError("give --recipe: burn_small, say; burn pretrain --help names them all")
    for required in ("data", "out"):
        if not getattr(options, required):
            raise UserError(f"give --{required}: see burn pretrain --help")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one")
    given = {key: getattr(options, key) for key in ("data", "teacher", "seed", "max_steps")}
    chosen = from_plain(Recipe, parser.fields_of(options)).without_foreign_strides(recipe)
    plan = from_plain(RunPlan, {**given, "recipe_name": options.recipe, "recipe": chosen})
    plan.recipe.check()
    machine.check()
    _launch(arguments, options.devices, options.num_nodes)
    from burn.training.run import train_plan

    if ranks().rank == 0 and resize is not None and chosen.views.resize == resize:
        console.print(
            f"--views.resize is {resize} with --views.size {chosen.views.size}, as in the recipe's "
            f"{recipe.views.resize} with {recipe.views.size}"
        )
    summaries = train_plan(
        plan,
        expand(options.out),
        machine,
        console,
        resume=options.resume,
        overwrite=options.overwrite,
        resume_command=_resume_command(arguments, options.out),
        named=recipe,
    )
    for s in summaries if ranks().rank == 0 else ():
        if options.json:
            print(json.dumps({**asdict(s), "checkpoint": str(s.checkpoint)}))
            continue
        knn = "" if s.knn is None else f", kNN {100 * s.knn:.1f} %"
        collapsed = "" if s.collapsed_at is None else f", target collapsed at step {s.collapsed_at}"
        if s.features_collapsed_at is not None:
            collapsed += f", features collapsed at step {s.features_collapsed_at}"
        print(
            f"stage {s.stage} {s.precision.value}: {s.steps} steps, "
            f"{rate(s.images_per_second)}{knn}{collapsed} -> {s.checkpoint}"
        )


def _resize_of_views(parser: Parser, arguments: Sequence[str], recipe: Any) -> int | None:
    """What views.resize is to be, unless it is given, where views.size is not the recipe's.

    None where it follows by itself, or where the size is the recipe's.
    """
    from burn.core.settings import from_plain
    from burn.recipes.schema import Recipe

    if recipe.views.resize is None:
        return None
    options = parser.read([word for word in arguments if word != "--print_config"])
    chosen = from_plain(Recipe, parser.fields_of(options)).with_resize_of(recipe)
    return None if chosen.views.size == recipe.views.size else chosen.views.resize


def _resume_command(arguments: Sequence[str], out: str) -> str:
    """What goes on with a run: the recipe is known, what belongs to the machine is not."""
    if os.environ.get("RANK") is not None and not started_by_launcher():
        return "the same command with --resume"
    kept: list[str] = []
    for position, argument in enumerate(arguments):
        name, separator, _ = argument.partition("=")
        if name.replace("_", "-") in _OF_THE_MACHINE:
            kept.append(argument)
            if not separator and name not in ("--profile", "--compile"):
                kept += arguments[position + 1 : position + 2]
    given = [word for name in imports() for word in ("--import", name)]
    return shlex.join(["burn", "pretrain", "--resume", "--out", out, *given, *kept])


_OF_THE_MACHINE = (
    "--device", "--devices", "--num-nodes", "--workers", "--save-every", "--on-nonfinite",
    "--max-bad", "--monitor-every", "--profile", "--compile", "--teacher-cache",
)  # fmt: skip


def _skipped_steps(text: str) -> int:
    """The number of steps that --on-nonfinite leaves out."""
    if text == "stop":
        return 0
    word, _, number = text.partition(":")
    if word != "skip" or not (number.isascii() and number.isdecimal() and len(number) < 18):
        shown = shortened(text)
        raise UserError(f"--on-nonfinite {shown}: give stop, or skip:10 to leave out 10 steps")
    return int(number)


def _share(text: str) -> float:
    """The share that --max-bad gives as 1% or 0.01."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UserError(f"--max-bad {text} is not a share of the images: 1%, say") from None


def _launch(arguments: Sequence[str], devices: int | None, num_nodes: int | None) -> None:
    """With --devices, run the command in so many processes and exit with their status."""
    require_processes(1, devices=devices)
    require_within(1, 10_000, num_nodes=num_nodes)
    place = ranks()
    if place.count > 1:
        count, local = place.count, place.local_count
        if (devices or local) != local or (num_nodes or count // local) * local != count:
            raise UserError(
                f"{count} processes were started, {local} on a machine, but --devices "
                f"{devices or local} and --num-nodes {num_nodes or 1} were given: leave both out"
            )
        return
    if (devices or 1) * (num_nodes or 1) > 1:
        given = [f"--import={name}" for name in imports()]
        raise SystemExit(launch(["pretrain", *given, *arguments], devices or 1, num_nodes or 1))


def _resumed_plan(parser: Parser, arguments: Sequence[str]) -> Any:
    """With --resume, the plan of the run that is resumed, whose options are the defaults.

    None where there is no run yet and a recipe is given to begin one.
    """
    if "--resume" not in arguments:
        return None
    out = parser.peek(arguments, "out")
    if not out:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if parser.peek(arguments, "recipe") is not None and not (expand(out) / "run.json").exists():
        return None
    from burn.training.run_dir import read_plan

    return read_plan(expand(out))
