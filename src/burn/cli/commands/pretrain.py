"""The command `burn pretrain`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import machine_of
from burn.core.errors import UserError, typed
from burn.core.paths import expand
from burn.core.plugins import imports
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.launch import launch, ranks, started_by_launcher

_GROUPS = {  # the first holds what nearly every run needs
    "usual options": ("data", "teacher", "recipe", "out", "resume"),
    "what is trained, and for how long (a recipe gives the defaults)": (
        "init", "max_steps", "epochs", "batch_size", "stages", "method", "teacher_size",
        "view_epochs", "accumulate", "seed",
    ),
    "speed and hardware": (
        "device", "workers", "compute", "compile", "teacher_cache", "deterministic", "devices",
        "num_nodes", "cuda_graphs", "profile",
    ),
    "interruptions, faults and monitoring": (
        "overwrite", "save_every", "on_nonfinite", "max_bad", "monitor_every", "json",
    ),
}  # fmt: skip


def run(arguments: list[str], console: Console) -> None:
    from burn.checkpoints.foreign.layouts import TEACHER_SYNTAX
    from burn.core.settings import from_plain
    from burn.learning.pace import rate
    from burn.methods.entries import METHODS, find_method
    from burn.recipes.registry import DEFAULT, find_recipe, recipe_list
    from burn.recipes.schema import Recipe
    from burn.training.plan import Machine, RunPlan

    parser = Parser(
        "pretrain",
        "Train a binary backbone on unlabelled images. Labels, if there are any, are only used\n"
        "for monitoring, except by method supervised.",
        "  burn pretrain --data photos/ --teacher lite0 --out runs/student\n"
        "  burn pretrain --resume --out runs/student\n"
        "  burn pretrain --recipe teacher_small --data photos/ --out runs/teacher\n"
        "  burn pretrain --recipe burn_small --data photos/ --teacher runs/teacher --out runs/s\n"
        "  burn pretrain --recipe paper_small --epochs 20 --burn.lam constant --print-config",
        _GROUPS,
        f"A recipe is one of\n{recipe_list()}\n\n{TEACHER_SYNTAX}",
    )
    parser.add_argument(
        "--recipe",
        type=str,
        default=DEFAULT,
        help=f"name of all settings, see below; has its own --help (default: {DEFAULT})",
    )
    parser.add_argument(
        "--data",
        type=str,
        default=None,
        help="images: a folder, parquet file, CIFAR folder, digits, or stream:SHARDS",
    )
    parser.add_optional(
        "teacher", str, "float network to learn from: lite0, a run folder, or others, see below"
    )
    parser.add_optional(
        "init",
        str,
        "network to start from: a pretrained one (photos), a run folder or its file (default: "
        "random weights)",
    )
    parser.add_argument("--out", type=str, default=None, help="folder for the run, a new one")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_optional("max_steps", int, "optimizer steps after which each stage ends")
    parser.add_switch(
        "resume", "continue the run in --out, further with larger --max-steps or --epochs"
    )
    parser.add_switch("overwrite", "restart the run in --out")
    parser.add_optional(
        "devices", int, "processes that share each batch, one for each GPU here (default: 1)"
    )
    parser.add_optional("num_nodes", int, "number of nodes, see docs/guide/scale.md (default: 1)")
    parser.add_options(Machine)
    parser.add_switch("json", "print stage summaries as JSON lines")
    parser.add_configuration()
    parser.add_fields(Recipe, {n: entry.config for n, entry in METHODS.items() if entry.config})
    expanded = parser.expand(arguments)
    resuming = _resumed_plan(parser, expanded)
    name = resuming.recipe_name if resuming else parser.peek(expanded, "recipe") or DEFAULT
    recipe = resuming.recipe if resuming else find_recipe(name)
    recipe = replace(recipe, method=parser.peek(expanded, "method") or recipe.method)
    find_method(recipe.method)
    parser.choose_method(recipe.method)
    expanded = parser.expand(arguments)  # again, now without the settings of other methods
    parser.set_field_defaults(recipe.to_json())
    if resuming:
        parser.set_defaults(
            recipe=name,
            data=resuming.data,
            teacher=resuming.teacher,
            init=resuming.init,
            seed=resuming.seed,
            # Who extends a run by its epochs wants all of them.
            max_steps=None if parser.given(expanded, "epochs") else resuming.max_steps,
        )
    resize = _resize_of_views(parser, expanded, recipe)
    if resize is not None:
        parser.set_defaults({"views.resize": resize})

    def checked(options: Any) -> tuple[RunPlan, Machine]:
        """Return the plan, whose data may still be missing, and the machine."""
        chosen = Recipe.from_json(parser.fields_of(options))
        chosen = chosen.without_foreign_strides(recipe).without_unused_teacher_size(recipe)
        named = {key: getattr(options, key) for key in ("teacher", "init", "seed", "max_steps")}
        named |= {"recipe_name": options.recipe or "", "data": options.data or ""}
        plan, machine = from_plain(RunPlan, {**named, "recipe": chosen}), machine_of(options)
        plan.check()
        _require_effect(arguments, chosen)
        machine.check()
        require_processes(1, devices=options.devices)
        require_within(1, 10_000, num_nodes=options.num_nodes)
        return plan, machine

    options = parser.read(expanded, checked)
    for required in ("data", "out"):
        if not getattr(options, required):
            raise UserError(f"give --{required}: see burn pretrain --help")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one")
    plan, machine = checked(options)
    out, source = expand(options.out), None
    if ranks().count == 1:  # several processes check together, so that one of them reports it
        from burn.training.named import open_named

        how = {"resume": options.resume, "overwrite": options.overwrite}
        source = open_named(plan, out, machine, **how)
    _launch(arguments, options.devices, options.num_nodes)
    from burn.training.run import train_plan

    views = plan.recipe.views
    if ranks().rank == 0 and resize is not None and views.resize == resize:
        console.print(
            f"--views.resize is {resize} with --views.size {views.size}, as in the recipe's "
            f"{recipe.views.resize} with {recipe.views.size}"
        )
    summaries = train_plan(
        plan,
        out,
        machine,
        console,
        resume=options.resume,
        overwrite=options.overwrite,
        resume_command=_resume_command(options, machine),
        base_recipe=recipe,
        source=source,
    )
    for s in summaries if ranks().rank == 0 else ():
        if options.json:
            print(json.dumps({**asdict(s), "checkpoint": str(s.checkpoint)}))
            continue
        knn = "" if s.watched is None else f", kNN {s.watched}"
        collapsed = "" if s.collapsed_at is None else f", target collapsed at step {s.collapsed_at}"
        if s.features_collapsed_at is not None:
            collapsed += f", features collapsed at step {s.features_collapsed_at}"
        print(
            f"stage {s.stage} {s.precision.value}: {s.steps} steps, "
            f"{rate(s.images_per_second)}{knn}{collapsed} -> {s.checkpoint}"
        )


def _require_effect(arguments: Sequence[str], chosen: Any) -> None:
    """Raise UserError for a setting on the command line that nothing reads beside the others.

    A sweep over its values would measure nothing. A configuration file may have such settings, as
    that of a whole recipe does.
    """
    settings = chosen.settings
    unread = settings.without_effect() if hasattr(settings, "without_effect") else {}
    for word in arguments:
        option = word.partition("=")[0]
        name = option.removeprefix(f"--{chosen.method}.").replace("-", "_")
        if name != option.replace("-", "_") and name in unread:
            raise UserError(f"{option} has no effect with {unread[name]}: leave it out")


def _resize_of_views(parser: Parser, arguments: Sequence[str], recipe: Any) -> int | None:
    """Return the value of views.resize that follows a views.size which is not the recipe's."""
    from burn.recipes.schema import Recipe

    if recipe.views.resize is None:
        return None
    options = parser.read([word for word in arguments if word != "--print_config"])
    chosen = Recipe.from_json(parser.fields_of(options)).with_resize_of(recipe)
    return None if chosen.views.size == recipe.views.size else chosen.views.resize


def _resume_command(options: Any, machine: Any) -> str:
    """Return the command that continues a run, with the options that belong to the machine."""
    if os.environ.get("RANK") is not None and not started_by_launcher():
        return "the same command with --resume"
    words = ["burn", "pretrain", "--resume", "--out", options.out]
    for name in imports():
        words += ["--import", name]
    given = {"devices": options.devices, "num_nodes": options.num_nodes}
    default = type(machine)()
    for field in fields(machine):
        value = getattr(machine, field.name)
        if value != getattr(default, field.name):
            given[field.name] = value
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None:
            words += [option, str(value)]
    return typed(words)


def _launch(arguments: Sequence[str], devices: int | None, num_nodes: int | None) -> None:
    """With --devices, run the command in that many processes and exit with their status."""
    place = ranks()
    if place.count > 1:
        count, local = place.count, place.local_count
        if (devices or local) != local or (num_nodes or count // local) * local != count:
            raise UserError(
                f"{count} processes were started, {local} on each machine, but --devices "
                f"{devices or local} and --num-nodes {num_nodes or 1} were given: leave both out"
            )
        return
    if (devices or 1) * (num_nodes or 1) > 1:
        given = [f"--import={name}" for name in imports()]
        raise SystemExit(launch(["pretrain", *given, *arguments], devices or 1, num_nodes or 1))


def _resumed_plan(parser: Parser, arguments: Sequence[str]) -> Any:
    """Return the plan of the resumed run, if there is one, whose settings are the defaults."""
    if "--resume" not in arguments:
        return None
    out = parser.peek(arguments, "out")
    if not out:
        raise UserError("--resume needs --out, the folder of the run to continue")
    begins = any(parser.given(arguments, name) for name in ("recipe", "data"))
    if begins and not (expand(out) / "run.json").exists():
        return None
    from burn.training.run_dir import read_plan

    plan = read_plan(expand(out))
    method = parser.peek(arguments, "method")
    if method not in (None, plan.recipe.method):
        raise UserError(
            f"{out} cannot be resumed with another method than {plan.recipe.method}: leave "
            "--method out, or give another --out"
        )
    return plan
