"""The `burn` command: parse, call, print.

Exit status: 0 done; 1 a fault of burn's own; 2 something the user can mend, said in one line;
128 + signal after Ctrl-C (130) or SIGTERM (143).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import Interrupted, SaidByFirst, UserError, printable, shortened
from burn.core.inputs import last_opened
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.launch import end_with_launcher, launch, started_by_launcher
from burn.runtime.ranks import ranks
from burn.runtime.streams import safe_streams

T = TypeVar("T")

_OVERVIEW = """\
usage: burn COMMAND [options]

1-bit vision backbones, pretrained without labels.

commands:
  demo       the whole road on built-in images, in minutes
  pretrain   unlabelled images in, a binary backbone out
  evaluate   evaluate a checkpoint by one of the paper's protocols
  compare    train and evaluate several methods at one budget
  ablate     BURN with one choice changed at a time, at one budget
  analyze    the paper's small experiments, each as a picture, its data and a text
  import     a published binary checkpoint becomes burn's
  export     a checkpoint in another project's format, or as ONNX
  pack       a binary checkpoint as one file of bits, for burn-engine
  info       size and cost of a network or a checkpoint
  report     runs, results and comparisons as one page to look at

`burn COMMAND --help` shows each with examples; `burn --version` the version.
"""

_EVALUATE = """\
Judge a backbone by a protocol of the paper (appendix A). Of each, --help after its name shows the
settings, whose defaults are the paper's:

  knn        weighted k nearest neighbours, no training
  linear     a linear layer on the frozen backbone
  semi       fine-tuning on 1 % or 10 % of the labels, the best of nine learning rates
  svm        one linear SVM a class on frozen features, full and few-shot
  transfer   linear evaluation with the settings of one of the paper's five data sets
  detection  Faster R-CNN fine-tuned on images with boxes, VOC layout"""
_EVALUATE_EXAMPLES = """\
  burn evaluate knn runs/student --train digits --test digits
  burn evaluate linear runs/student --train cifar.parquet --test val.parquet
  burn evaluate linear runs/student --augment none --train digits --test digits
  burn evaluate semi runs/student --labels 10 --train digits --test digits --out runs/semi
  burn evaluate knn resnet50:moco_v2_800ep.pth --train photos/train --test photos/val"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status.

    A failure to print never stops the work. A reader of standard output that has left, as `head`
    does, changes nothing; any other failure there is status 2 at the end, for numbers were lost.
    """
    with safe_streams() as out:
        status = _answer(arguments)
        out.flush()
        if out.failure is not None and out.failure.errno != errno.EPIPE and not status:
            why = out.failure.strerror or out.failure
            print(f"burn: standard output cannot be written: {why}", file=sys.stderr)
            status = 2
        return status


def _answer(arguments: Sequence[str] | None) -> int:
    end_with_launcher()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    status = 2
    try:
        return _run(arguments, console)
    except SaidByFirst:
        return 2
    except Interrupted as stopped:
        message, status = str(stopped), 128 + stopped.number
        if os.environ.get("RANK", "0") != "0":  # all stopped at the same step
            return status
    except KeyboardInterrupt:
        message, status = "interrupted; nothing was saved by this step", 128 + signal.SIGINT
    except Exception as error:
        message, status = _explained(error, arguments)
        if os.environ.get("BURN_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
    rank = os.environ.get("RANK", "0")
    who = "burn" if rank == "0" else f"burn (process {shortened(rank, 10)})"
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(_one_line(f"{who}: {message}"), file=sys.stderr)
    return status


def _explained(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """The line for an exception, and the exit status: 1 for what burn should have foreseen.

    What a library raises on a user's input is a UserError where the input is known; this is the
    last resort, which knows the command and the file that was opened last.
    """
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, OSError):  # a full disk, a name too long, a missing right
        parts = (error.strerror or error, error.filename)
        return ": ".join(str(part) for part in parts if part), 2
    command = " ".join(["burn", *arguments[:1]])
    file = f" (the last file opened was {opened})" if (opened := last_opened()) else ""
    text = shortened(printable(str(error)), 90)
    if isinstance(error, MemoryError) or _MEMORY.search(f"{type(error).__name__}: {error}"):
        return f"{command}: not enough memory{file}: {text or 'give smaller sizes'}", 2
    if isinstance(error, UnicodeEncodeError):
        name = shortened(printable(ascii(error.object)), 90)
        return f"{name} has characters that this locale cannot name: set LC_ALL=C.UTF-8", 2
    what = f"internal error in {command}{file}: {type(error).__name__}: {text}"
    return f"{what}; set BURN_DEBUG=1 for the traceback, and report it", 1


# What torch, NumPy and Arrow call it; torch's own OutOfMemoryError is a RuntimeError.
_MEMORY = re.compile(
    "OutOfMemory|ArrowMemoryError|out of memory|not enough memory|[Uu]nable to allocate"
)


def _one_line(text: str) -> str:
    """A few lines of a terminal at most: the beginning says what, the end what to do."""
    words = (w if len(w) <= _LONG_PATH else shortened(w, 100) for w in printable(text).split(" "))
    return shortened(" ".join(words), _MOST_CHARACTERS)


_LONG_PATH, _MOST_CHARACTERS = 200, 600


def _run(arguments: list[str], console: Console) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(_OVERVIEW, end="")
        return 0
    if command == "--version":
        print(f"burn {version('burn-ssl')}")
        return 0
    commands: dict[str, Callable[[list[str], Console], None]] = {
        "demo": _demo,
        "pretrain": _pretrain,
        "evaluate": _evaluate,
        "compare": _compare,
        "ablate": _ablate,
        "analyze": _analyze,
        "import": _import,
        "export": _export,
        "pack": _pack,
        "info": _info,
        "report": _report,
    }
    if command not in commands:
        import difflib

        near = difflib.get_close_matches(command, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"
        raise UserError(f"unknown command {command!r}: {hint}")
    try:
        commands[command](rest, console)
    except SystemExit as leaving:  # argparse, after --help or --print-config
        return int(leaving.code or 0)
    return 0


def _demo(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "demo",
        "Pretrain a float teacher and a binary network on built-in handwritten digits, and\n"
        "evaluate both.",
        "  burn demo\n  burn demo --out runs/another --seed 1\n  burn demo --overwrite",
    )
    parser.add_argument("--out", type=str, default="runs/demo", help="folder for what it makes")
    parser.add_argument("--seed", type=int, default=0, help="of every random number")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--overwrite", action="store_true", help="begin again (default: keep what is finished)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON lines")
    options = parser.read(arguments)
    from burn.cli.demo import run_demo
    from burn.report.render.tables import results_table

    device = _device(options.device)
    out = Path(options.out)
    results = run_demo(out, options.seed, device, console, overwrite=options.overwrite)
    _print_results(results, options.json, results_table)


def _pretrain(arguments: list[str], console: Console) -> None:
    from burn.checkpoints.foreign.layouts import TEACHER_SYNTAX
    from burn.core.settings import from_plain
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
    parser.add_argument("--seed", type=int, default=0, help="of every random number")
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
        help="machines with so many each, see docs/scaling.md (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int | None, default=None, help="image-loading processes of each process"
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
    parser.add_fields(Recipe)
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
        _device(options.device), options.workers, options.monitor_every, options.save_every,
        _skipped_steps(options.on_nonfinite), _share(options.max_bad), options.profile,
        options.compile, _cache(options.teacher_cache),
    )  # fmt: skip
    if not options.recipe:
        raise UserError("give --recipe: burn_small, say; burn pretrain --help names them all")
    for required in ("data", "out"):
        if not getattr(options, required):
            raise UserError(f"give --{required}: see burn pretrain --help")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one")
    given = {key: getattr(options, key) for key in ("data", "teacher", "seed", "max_steps")}
    chosen = from_plain(Recipe, parser.fields_of(options)).freed_of(recipe)
    plan = from_plain(RunPlan, {**given, "recipe_name": options.recipe, "recipe": chosen})
    plan.recipe.check()
    machine.check()
    _launch(arguments, options.devices, options.num_nodes)
    from burn.training.run import pretrain

    if ranks().rank == 0 and resize is not None and chosen.views.resize == resize:
        console.print(
            f"--views.resize is {resize} with --views.size {chosen.views.size}, as in the recipe's "
            f"{recipe.views.resize} with {recipe.views.size}"
        )
    summaries = pretrain(
        plan,
        Path(options.out),
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
    return shlex.join(["burn", "pretrain", "--resume", "--out", out, *kept])


_OF_THE_MACHINE = (
    "--device", "--devices", "--num-nodes", "--workers", "--save-every", "--on-nonfinite",
    "--max-bad", "--monitor-every", "--profile", "--compile", "--teacher-cache",
)  # fmt: skip


def _cache(given: str | None) -> str | None:
    """Of --teacher-cache."""
    from burn.core.paths import expand

    return None if given is None else str(expand(given))


def _skipped_steps(text: str) -> int:
    """Of --on-nonfinite."""
    if text == "stop":
        return 0
    word, _, number = text.partition(":")
    if word != "skip" or not (number.isascii() and number.isdecimal() and len(number) < 18):
        shown = shortened(text)
        raise UserError(f"--on-nonfinite {shown}: give stop, or skip:10 to leave out 10 steps")
    return int(number)


def _share(text: str) -> float:
    """Of --max-bad: 1% or 0.01."""
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
        raise SystemExit(launch(["pretrain", *arguments], devices or 1, num_nodes or 1))


def _resumed_plan(parser: Parser, arguments: Sequence[str]) -> Any:
    """With --resume, the plan of the run that is resumed, whose options are the defaults.

    None where there is no run yet and a recipe is given to begin one.
    """
    if "--resume" not in arguments:
        return None
    out = parser.peek(arguments, "out")
    if not out:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if parser.peek(arguments, "recipe") is not None and not (Path(out) / "run.json").exists():
        return None
    from burn.training.run_dir import read_plan

    return read_plan(Path(out))


def _evaluate(arguments: list[str], console: Console) -> None:
    from burn.evaluation.configs import PROTOCOL_CONFIGS, Request
    from burn.report.render.tables import results_table

    protocol = arguments[0] if arguments else "--help"
    if protocol not in (*PROTOCOL_CONFIGS, "-h", "--help"):
        raise UserError(f"unknown protocol {protocol!r}: give {', '.join(PROTOCOL_CONFIGS)} first")
    parser = Parser("evaluate PROTOCOL CHECKPOINT", _EVALUATE, _EVALUATE_EXAMPLES)
    parser.add_argument("protocol", type=str, help=", ".join(PROTOCOL_CONFIGS))
    parser.add_argument(
        "checkpoint", type=str, help="run folder or checkpoint of burn's, or ARCHITECTURE:FILE"
    )
    parser.add_class_arguments(Request, as_group=False, skip={"checkpoint", "random_init"})
    parser.add_argument(
        "--random_init",
        action="store_true",
        help="the checkpoint's network with random weights: the floor",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    kind = PROTOCOL_CONFIGS.get(protocol)
    if kind:
        parser.add_class_arguments(kind, as_group=False)
    options = parser.read(arguments or ["--help"])
    assert kind is not None
    config = _settings(options, kind)
    from burn.evaluation.registry import evaluate

    def show(results: Sequence[Any], notes: Sequence[str]) -> None:
        for note in notes:
            print(_one_line(note), file=sys.stderr)
        _print_results(results, options.json, results_table)

    evaluate(protocol, _settings(options, Request), config, console, show)


def _compare(arguments: list[str], console: Console) -> None:
    from burn.campaigns.compare import COMPARED, Comparison, compare
    from burn.report.render.tables import comparison_table

    parser = Parser(
        "compare",
        "Train several methods on the same images, network and budget, and evaluate them by kNN "
        "and linear\nevaluation. Interrupted, the same command goes on; later ones may add methods "
        "and seeds.",
        "  burn compare --methods burn,s2bnn,mocov2 --data cifar/train.parquet \\\n"
        "      --test cifar/val.parquet --budget 400000 --teacher runs/teacher \\\n"
        "      --out runs/compared\n"
        "  burn compare --methods all --seeds 0,1 --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher \\\n"
        "      --labelled-teacher runs/teacher-supervised --out runs/compared",
    )
    parser.add_argument(
        "--methods", type=str, default="all", help=f"all, or some of {', '.join(COMPARED)}"
    )
    options, comparison, execution = _read_campaign(parser, arguments, Comparison)
    methods = (
        COMPARED if options.methods == "all" else [m.strip() for m in options.methods.split(",")]
    )
    compare(
        comparison, methods, execution, console,
        lambda results: _print_results(results, options.json, comparison_table),
    )  # fmt: skip


def _ablate(arguments: list[str], console: Console) -> None:
    from burn.campaigns.ablate import Ablation, ablate, groups_named
    from burn.paper.ablations import GROUPS
    from burn.report.render.ablations import ablation_table

    named = "\n".join(f"  {group.name:<11}{group.title}" for group in GROUPS)
    parser = Parser(
        "ablate",
        "Train a BURN recipe with one choice changed at a time, at equal budget, and evaluate\n"
        "every variant by kNN and linear evaluation. Interrupted, the same command goes on; later "
        f"ones may add\ngroups and seeds.\n\ngroups:\n{named}",
        "  burn ablate --groups components,stages --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher --seeds 0,1 --out runs/ablated",
    )
    parser.add_argument(
        "--groups", type=str, default="all", help="all, or names from above with commas between"
    )
    options, ablation, execution = _read_campaign(parser, arguments, Ablation)
    groups = groups_named(options.groups, ablation.labelled_teacher)
    ablate(
        ablation, groups, execution, console,
        lambda results: _print_results(results, options.json, ablation_table),
    )  # fmt: skip


def _read_campaign(parser: Parser, arguments: list[str], kind: type[T]) -> tuple[Any, T, Any]:
    """The options of compare and ablate: all of them, those of `kind`, and the Execution."""
    from burn.campaigns.settings import Execution, More, seeds_in
    from burn.core.paths import expand
    from burn.training.plan import Machine

    parser.add_argument("--seeds", type=str, default="0", help="of every random number, 0,1,2 …")
    parser.add_argument("--out", type=str, default=None, help="folder of the runs and the table")
    parser.add_argument(
        "--processes", type=int | None, default=None,
        help="runs at once; default: one for each GPU, or one",
    )  # fmt: skip
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument("--workers", type=int | None, default=None, help="image-loading processes")
    parser.add_argument(
        "--teacher_cache", type=str | None, default=None,
        help="folder that keeps the teachers' features of the views, which other campaigns may "
        "share (default: teacher-features in --out)",
    )  # fmt: skip
    parser.add_argument(
        "--compile", action="store_true", help="train the networks through torch.compile"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_class_arguments(kind, as_group=False)
    parser.add_class_arguments(More, as_group=False, skip={"semi"})
    options = parser.read(arguments)
    if not options.out:
        raise UserError("give --out: a folder for the runs and the table")
    cache = _cache(options.teacher_cache)
    machine = Machine(
        _device(options.device), options.workers, compile=options.compile, teacher_cache=cache
    )
    execution = Execution(
        expand(options.out), seeds_in(options.seeds), machine, options.processes,
        _settings(options, More),
    )  # fmt: skip
    return options, _settings(options, kind), execution


def _analyze(arguments: list[str], console: Console) -> None:
    from burn.core.paths import expand
    from burn.experiments.run import ANALYSES, analyze

    what = arguments[0] if arguments else "--help"
    if what not in (*ANALYSES, "-h", "--help"):
        raise UserError(f"unknown analysis {what!r}: give {', '.join(ANALYSES)} first")
    width = max(map(len, ANALYSES))
    parser = Parser(
        "analyze WHAT",
        "An experiment of the paper that is no training run to its end: WHAT.svg, its numbers in "
        "WHAT.csv,\nand in WHAT.md what was seen. --help after its name shows the settings.\n\n"
        + "\n".join(f"  {name:<{width}}  {about.title}" for name, about in ANALYSES.items()),
        "  burn analyze gradients --data cifar10/train.parquet --teacher runs/teacher \\\n"
        "      --out runs/gradients\n"
        "  burn analyze ema-toy --out runs/ema-toy\n"
        "  burn analyze cost --compared runs/compared --out runs/cost\n"
        "  burn analyze negatives --data cifar10/train.parquet --test cifar10/val.parquet \\\n"
        "      --budget 100000 --out runs/negatives",
    )
    parser.add_argument("what", type=str, help=", ".join(ANALYSES))
    parser.add_argument("--out", type=str, required=True, help="folder for the three files")
    kind = ANALYSES[what].options if what in ANALYSES else None
    if kind and fields(kind):
        parser.add_class_arguments(kind, as_group=False)
    options = parser.read(arguments or ["--help"])
    assert kind is not None

    print(analyze(what, _settings(options, kind), expand(options.out), console))
    for suffix in ("svg", "csv", "md"):
        print(f"-> {Path(options.out) / what}.{suffix}")


def _import(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "import FILE",
        "A published checkpoint of a binary network becomes burn's: the same function but where a\n"
        "sign's argument is exactly 0.",
        "  burn import model_best.pth.tar --format reactnet --out runs/reactnet.safetensors\n"
        "  burn import checkpoint.pth --format s2bnn --stage 2 --out runs/s2bnn.safetensors\n"
        "  burn import stage1.pth --format burn-release --stage 1 --out runs/stage1.safetensors",
    )
    parser.add_argument("file", type=str, help="torch file; nothing in it is executed")
    parser.add_argument(
        "--format", type=str, required=True,
        help="reactnet (liuzechun/ReActNet), burn-release, or s2bnn",
    )  # fmt: skip
    parser.add_argument("--out", type=str, required=True, help="our checkpoint, .safetensors")
    parser.add_argument(
        "--stage", type=int | None, default=None,
        help="1: only the activations are binary, 2: the weights too; needed for burn-release and "
        "s2bnn, whose files do not say it (default: what the file says)",
    )  # fmt: skip
    options = parser.read(arguments)
    from burn.checkpoints.foreign.exchange import import_checkpoint
    from burn.core.paths import expand

    done = import_checkpoint(
        expand(options.file), options.format, expand(options.out), options.stage
    )
    kept = "".join(f", {name} ({count:,} parameters)" for name, count in done.heads.items())
    print(f"reactnet_a, {done.precision.value} ({done.parameters:,} parameters){kept}")
    for note in done.notes:
        print(note)
    for name, count in done.dropped.items():
        print(f"left out: {name}" + (f" ({count} entries)" if count > 1 else ""))
    print(f"-> {options.out}")


def _export(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "export CHECKPOINT OUT",
        "A checkpoint of burn's in another format.\n\n"
        "onnx      the network in float for ONNX Runtime and others: `images`, float32 (batch, 3,\n"
        "          size, size) on the scale 0 to 1, to `features`, and to `scores` where it has a\n"
        "          linear classifier; batch normalisation is folded away\n"
        "reactnet  a torch file for ReActNet's code, which builds reactnet_a with all strides 2\n"
        "          alone, as the ImageNet recipes train it",
        "  burn export runs/student student.onnx\n"
        "  burn export runs/teacher teacher.onnx --image-size 64\n"
        "  burn export runs/imagenet runs/imagenet.pth.tar --format reactnet",
    )
    parser.add_argument("checkpoint", type=str, help="run folder or checkpoint of burn's")
    parser.add_argument("out", type=str, help="file to write")
    parser.add_argument(
        "--format", type=str | None, default=None,
        help="onnx, or reactnet (liuzechun/ReActNet); default: onnx for a name that ends in .onnx",
    )  # fmt: skip
    parser.add_argument(
        "--image_size", type=int | None, default=None,
        help="side in pixels of onnx's images; default: the training views'",
    )  # fmt: skip
    options = parser.read(arguments)
    onnx = options.out.endswith(".onnx")
    format = options.format or ("onnx" if onnx else None)
    if format is None:
        raise UserError("give --format, onnx or reactnet: see burn export --help")
    if format not in ("onnx", "reactnet"):
        raise UserError(f"cannot export to {format!r}: onnx or reactnet")
    if onnx and format != "onnx":
        raise UserError(f"{options.out}: .onnx is not how a file of format {format} ends")
    from burn.core.paths import expand

    checkpoint, out = expand(options.checkpoint), expand(options.out)
    if format == "onnx":
        from burn.deploy.onnx import export_onnx

        done = export_onnx(checkpoint, out, options.image_size)
        print(f"{done.bytes:,} bytes, images of {done.image_size} × {done.image_size} pixels")
        print(f"in ONNX Runtime: cosine to the network's features {done.cosine:.6f}")
        print(f"outputs: {', '.join(done.outputs)}")
        for name in done.left_out:
            print(f"left out: {name}, which is neither backbone nor linear classifier")
        print(f"-> {options.out}")
        return
    if options.image_size is not None:
        raise UserError("--image-size belongs to format onnx")
    from burn.checkpoints.foreign.exchange import export_checkpoint

    done = export_checkpoint(checkpoint, out, format)
    for name in done.left_out:
        print(f"left out: {name}, for which the format has no place")
    for note in done.notes:
        print(note)
    print(f"-> {options.out}")


def _pack(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "pack CHECKPOINT OUT",
        "A binary checkpoint (stage 2) as one file of bits, which burn-engine runs without torch.\n"
        "The file is run and compared with the network before it gets its name. With --head it\n"
        "names classes; burn evaluate linear --out DIR keeps the classifier that it trains in DIR.",
        "  burn pack runs/student student.bnn\n"
        "  burn evaluate linear runs/student --lr 0.003 --train photos/train --test photos/val \\\n"
        "      --out runs/student-linear\n"
        "  burn pack runs/student student.bnn --head runs/student-linear\n"
        "  burn pack runs/supervised classes.bnn --head runs/supervised\n"
        "  burn pack runs/student student.bnn --results runs/student-judged",
    )
    parser.add_argument("checkpoint", type=str, help="run folder or checkpoint of burn's")
    parser.add_argument("out", type=str, help="file to write, .bnn")
    parser.add_argument(
        "--head", type=str | None, default=None,
        help="linear classifier: what evaluate linear kept (the folder or the file), or a "
        "checkpoint or run that has one, of the same backbone",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=str | None, default=None,
        help="folder to whose results.jsonl the file's size, its agreement and the milliseconds of "
        "an image here on one thread are added",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.core.results import append_results
    from burn.deploy.pack import pack

    head = None if options.head is None else expand(options.head)
    kept = None if options.results is None else expand(options.results) / "results.jsonl"
    if kept:
        append_results(kept, [])  # after packing would be late to find out
    done = pack(expand(options.checkpoint), expand(options.out), head)
    speed: dict[str, float] = {}
    unkept: UserError | None = None
    if kept:
        from burn.deploy.measured import pack_results

        results = pack_results(done, expand(options.out), options.checkpoint)
        try:
            append_results(kept, results)
        except UserError as error:
            unkept = error  # raised below, after the numbers are out
        speed = {r.metric: r.value for r in results if r.metric == "milliseconds"}
    if options.json:
        print(json.dumps({**asdict(done), **speed, "out": options.out}))
        if unkept:
            raise unkept
        return
    print(
        f"{done.bytes:,} bytes, {done.ratio:.1f} times less than the {done.float32_bytes:,} of its "
        "parameters in float32"
    )
    print(
        f"run and compared on {done.images} images: least cosine of the features {done.cosine:.6f}"
        + (f", same class for {done.same_class} of them" if done.classes else "")
    )
    if kept:
        added = "" if unkept else f", added to {kept}"
        print(f"{speed['milliseconds']:.3f} ms an image here on one thread{added}")
    print(f"-> {options.out}")
    print(f"next: burn-engine run {shlex.quote(options.out)} photo.jpg")
    if unkept:
        raise unkept


def _info(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "info NAME",
        "Parameters, operations and size of a network, or of the one in a checkpoint; the contents "
        "of a\npacked file.",
        "  burn info reactnet_a --image-size 224 --classes 1000\n"
        "  burn info runs/student --json\n"
        "  burn info resnet50\n"
        "  burn info student.bnn",
    )
    parser.add_argument(
        "name", type=str,
        help="reactnet_a, a timm name, a checkpoint of burn's, or a packed file (.bnn)",
    )  # fmt: skip
    parser.add_argument("--image_size", type=int | None, default=None, help="side in pixels")
    parser.add_argument("--classes", type=int, default=0, help="outputs of a linear classifier")
    parser.add_argument("--width", type=float | None, default=None, help="factor on the channels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.read(arguments)
    from burn.core.paths import expand, nearest_path

    path = expand(options.name)
    there = os.path.lexists(path)
    near = None if there else nearest_path(path)
    hint = f"did you mean {near}?" if near else "give a run folder, a checkpoint or a timm name"
    if not there and ({"/", os.sep} & set(options.name) or path.suffix in (".safetensors", ".bnn")):
        raise UserError(f"no run, checkpoint or packed file at {options.name}: {hint}")
    if path.suffix == ".bnn":
        _packed_info(options, path)
        return
    from burn.experiments.cost.compute import cost_table, cost_title, count_named

    try:
        cost, about = count_named(
            options.name, path, options.image_size, options.classes, options.width
        )
    except UserError as error:
        if near and "unknown backbone" in str(error):
            raise UserError(f"{options.name} is no run, checkpoint or backbone: {hint}") from error
        raise
    if options.json:
        print(json.dumps({**about, **asdict(cost), "ops": cost.ops}, indent=2))
    else:
        print(cost_title(about))
        Console(markup=False, highlight=False).print(cost_table(cost))


def _packed_info(options: Any, file: Path) -> None:
    """Of `burn info FILE.bnn`."""
    from burn.deploy.described import packed_facts, packed_table

    if (options.image_size, options.classes, options.width) != (None, 0, None):
        raise UserError(
            f"{options.name} is a packed file, which is as it is: leave out --image-size, "
            "--classes and --width"
        )
    facts = packed_facts(file)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(printable(f"packed file {options.name}"))
        Console(markup=False, highlight=False, emoji=False).print(packed_table(facts))
        hint = f"burn-engine info {options.name} lists its layers and what runs them here"
        print(printable(hint))


def _report(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "report RUN…",
        "What runs, results and comparisons hold, as one page that needs no network: did it work, "
        "how it\nwas trained, the paper's numbers beside, curves, pictures. Each RUN is a folder "
        "of pretrain,\nevaluate, compare, ablate, analyze or demo.",
        "  burn report runs/demo\n"
        "  burn report runs/student runs/judged --out student.html\n"
        "  burn report runs/compared runs/ablated runs/analysis --out all.html",
    )
    parser.add_argument("run", type=str, nargs="+", help="folder with what burn left")
    parser.add_argument(
        "--out", type=str, default="report.html", help="page to write, in the place of an older one"
    )
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.report.page import write_report

    out = expand(options.out)
    size = write_report([expand(run) for run in options.run], out)
    print(f"-> {options.out} ({size / 1000:,.0f} kB)")


def _settings(options: Any, kind: type[T]) -> T:
    """The dataclass whose fields are among the options; what is no option keeps its default."""
    from burn.core.settings import from_plain

    given = options.as_dict()
    names = (field.name for field in fields(cast(Any, kind)))
    return from_plain(kind, {name: given[name] for name in names if name in given})


def _print_results(results: Sequence[Any], as_json: bool, table: Callable[..., Any]) -> None:
    if as_json:
        for result in results:
            line = asdict(result)
            del line["right"]  # it is for comparisons, and long
            print(json.dumps(line))
    else:
        Console(markup=False, highlight=False, emoji=False).print(table(results))
    sys.stdout.flush()  # the numbers are out before anything else may fail


def _device(name: str) -> Any:
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: auto, cpu or cuda")
    return name
