"""The `burn` command: parse, call, print.

Exit status: 0 done; 1 a fault of burn's own; 2 something the user can mend, said in one line;
128 + signal after Ctrl-C (130) or SIGTERM (143).
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console

from burn.errors import Interrupted, SaidByFirst, UserError, printable
from burn.launch import end_with_launcher, launch, started_by_launcher
from burn.options import Parser

T = TypeVar("T")

_OVERVIEW = """\
usage: burn COMMAND [options]

1-bit vision backbones, pretrained without labels.

commands:
  demo       the whole road on built-in images, in minutes
  pretrain   unlabelled images in, a binary backbone out
  evaluate   judge a checkpoint by one of the paper's protocols
  compare    train and judge several methods at one budget
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
    """Run a command line; returns the exit status."""
    end_with_launcher()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    status = 2
    try:
        return _run(arguments, console)
    except SaidByFirst:
        return 2
    except Interrupted as stopped:
        message, status = str(stopped), 128 + stopped.number
        if os.environ.get("RANK", "0") != "0":  # all stopped at the same step
            return status
    except UserError as error:
        message = str(error)
    except BrokenPipeError:  # the reader of our output left
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - kept open until exit
        return 0
    except OSError as error:  # a full disk, a name too long, a missing right
        message = ": ".join(str(part) for part in (error.strerror or error, error.filename) if part)
    except KeyboardInterrupt:
        message, status = "interrupted; nothing was saved by this step", 128 + signal.SIGINT
    rank = os.environ.get("RANK", "0")
    who = "burn" if rank == "0" else f"burn (process {rank})"
    print(f"{who}: {_one_line(message)}", file=sys.stderr)
    return status


def _one_line(text: str) -> str:
    """Not longer than a screen."""
    line = printable(text)
    return line if len(line) <= 2000 else line[:2000] + " …"


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
        "Pretrain a float teacher and a binary network on built-in handwritten digits, judge both.",
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
    from burn.demo import run_demo
    from burn.report.tables import results_table

    device = _device(options.device)
    out = Path(options.out)
    results = run_demo(out, options.seed, device, console, overwrite=options.overwrite)
    _print_results(results, options.json, results_table)


def _pretrain(arguments: list[str], console: Console) -> None:
    from burn.processes import in_group
    from burn.recipes import find_recipe, recipe_list
    from burn.settings import from_plain
    from burn.targets.layouts import TEACHER_SYNTAX
    from burn.training.recipe import Recipe
    from burn.training.run import Machine, RunPlan, pretrain, read_plan

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
        "--monitor_every", type=int, default=20, help="optimizer steps between two looks at the run"
    )
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
    parser.add_argument("--json", action="store_true", help="print how stages ended as JSON lines")
    parser.add_argument("--config", action="config", help="YAML file with any of these options")
    parser.add_fields(Recipe)
    resuming = _resumed_plan(arguments, read_plan)
    name = resuming.recipe_name if resuming else parser.peek(arguments, "recipe")
    recipe = resuming.recipe if resuming else find_recipe(name) if name else Recipe()
    parser.set_field_defaults(recipe.to_json())
    if resuming:
        parser.set_defaults(
            recipe=name, data=resuming.data, teacher=resuming.teacher, seed=resuming.seed,
            max_steps=resuming.max_steps,
        )  # fmt: skip
    options = parser.read(arguments)
    machine = Machine(
        _device(options.device), options.workers, options.monitor_every, options.save_every,
        _skipped_steps(options.on_nonfinite), _share(options.max_bad), options.profile,
        options.compile,
    )  # fmt: skip
    if not options.recipe:
        raise UserError("give --recipe: burn_small, say; burn pretrain --help names them all")
    for required in ("data", "out"):
        if not getattr(options, required):
            raise UserError(f"give --{required}: see burn pretrain --help")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one")
    if options.recipe != name:
        raise UserError(f"two recipes are given, {name} and {options.recipe}: give one")
    given = {key: getattr(options, key) for key in ("data", "teacher", "seed", "max_steps")}
    chosen = from_plain(Recipe, parser.fields_of(options)).freed_of(recipe)
    plan = from_plain(RunPlan, {**given, "recipe_name": options.recipe, "recipe": chosen})
    plan.recipe.check()
    machine.check()
    _launch(arguments, options.devices, options.num_nodes)
    prints = not in_group() or os.environ["RANK"] == "0"
    summaries = pretrain(
        plan,
        Path(options.out),
        machine,
        console,
        resume=options.resume,
        overwrite=options.overwrite,
        resume_command=_resume_command(arguments, options.out),
    )
    for s in summaries if prints else ():
        if options.json:
            print(json.dumps({**asdict(s), "checkpoint": str(s.checkpoint)}))
            continue
        knn = "" if s.knn is None else f", kNN {100 * s.knn:.1f} %"
        collapsed = "" if s.collapsed_at is None else f", target collapsed at step {s.collapsed_at}"
        if s.features_collapsed_at is not None:
            collapsed += f", features collapsed at step {s.features_collapsed_at}"
        print(
            f"stage {s.stage} {s.precision.value}: {s.steps} steps, "
            f"{s.images_per_second:.0f} images/s{knn}{collapsed} -> {s.checkpoint}"
        )


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
    "--max-bad", "--monitor-every", "--profile", "--compile",
)  # fmt: skip


def _skipped_steps(text: str) -> int:
    """Of --on-nonfinite."""
    if text == "stop":
        return 0
    word, _, number = text.partition(":")
    if word != "skip" or not (number.isascii() and number.isdecimal()):
        raise UserError(f"--on-nonfinite {text}: give stop, or skip:10 to leave out 10 steps")
    return int(number)


def _share(text: str) -> float:
    """Of --max-bad: 1% or 0.01."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UserError(f"--max-bad {text} is not a share of the images: 1%, say") from None


def _launch(arguments: Sequence[str], devices: int | None, num_nodes: int | None) -> None:
    """With --devices, run the command in so many processes and exit with their status."""
    for name, value in (("devices", devices), ("num-nodes", num_nodes)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value} is not at least 1")
    from burn.processes import in_group

    if in_group():
        count = int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(count)))
        if (devices or local) != local or (num_nodes or count // local) * local != count:
            raise UserError(
                f"{count} processes were started, {local} on a machine, but --devices "
                f"{devices or local} and --num-nodes {num_nodes or 1} were given: leave both out"
            )
        return
    if (devices or 1) * (num_nodes or 1) > 1:
        raise SystemExit(launch(["pretrain", *arguments], devices or 1, num_nodes or 1))


def _resumed_plan(arguments: Sequence[str], read_plan: Callable[[Path], Any]) -> Any:
    """With --resume, the plan of the run that is resumed, whose options are the defaults.

    None where there is no run yet and a recipe is given to begin one.
    """
    if "--resume" not in arguments:
        return None
    given = {name for name in arguments if name.startswith("--recipe")}
    for position, argument in enumerate(arguments):
        if argument == "--out" and position + 1 < len(arguments):
            out = Path(arguments[position + 1])
        elif argument.startswith("--out="):
            out = Path(argument.removeprefix("--out="))
        else:
            continue
        return None if given and not (out / "run.json").exists() else read_plan(out)
    raise UserError("--resume needs --out, the folder of the run to go on with")


def _evaluate(arguments: list[str], console: Console) -> None:
    from burn.evaluation.run import PROTOCOLS, Request, evaluate
    from burn.report.tables import results_table

    protocol = arguments[0] if arguments else "--help"
    if protocol not in (*PROTOCOLS, "-h", "--help"):
        raise UserError(f"unknown protocol {protocol!r}: give {', '.join(PROTOCOLS)} first")
    parser = Parser("evaluate PROTOCOL CHECKPOINT", _EVALUATE, _EVALUATE_EXAMPLES)
    parser.add_argument("protocol", type=str, help=", ".join(PROTOCOLS))
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
    if protocol in PROTOCOLS:
        parser.add_class_arguments(PROTOCOLS[protocol].config, as_group=False)
    options = parser.read(arguments or ["--help"])
    config = _settings(options, PROTOCOLS[protocol].config)
    results, notes = evaluate(protocol, _settings(options, Request), config, console)
    for note in notes:
        print(_one_line(note), file=sys.stderr)
    _print_results(results, options.json, results_table)


def _compare(arguments: list[str], console: Console) -> None:
    from burn.compare import Comparison, compare
    from burn.methods.registry import METHODS
    from burn.report.tables import comparison_table

    parser = Parser(
        "compare",
        "Train several methods on the same images, network and budget, and judge them by kNN and "
        "linear\nevaluation. Interrupted, the same command goes on; later ones may add methods and "
        "seeds.",
        "  burn compare --methods burn,s2bnn,mocov2 --data cifar/train.parquet \\\n"
        "      --test cifar/val.parquet --budget 400000 --teacher runs/teacher \\\n"
        "      --out runs/compared\n"
        "  burn compare --methods all --seeds 0,1 --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher \\\n"
        "      --labelled-teacher runs/teacher-supervised --out runs/compared",
    )
    parser.add_argument(
        "--methods", type=str, default="all", help=f"all, or some of {', '.join(METHODS)}"
    )
    options, comparison, execution = _read_campaign(parser, arguments, Comparison)
    methods = (
        METHODS if options.methods == "all" else [m.strip() for m in options.methods.split(",")]
    )
    results = compare(comparison, methods, execution, console)
    _print_results(results, options.json, comparison_table)


def _ablate(arguments: list[str], console: Console) -> None:
    from burn.ablate import Ablation, ablate, groups_named
    from burn.report.ablations import GROUPS, ablation_table

    named = "\n".join(f"  {group.name:<11}{group.title}" for group in GROUPS)
    parser = Parser(
        "ablate",
        "Train a BURN recipe with one choice changed at a time, at equal budget, and judge every\n"
        "variant by kNN and linear evaluation. Interrupted, the same command goes on; later ones "
        f"may add\ngroups and seeds.\n\ngroups:\n{named}",
        "  burn ablate --groups components --data cifar/train.parquet --test cifar/val.parquet \\\n"
        "      --budget 400000 --teacher runs/teacher --out runs/ablated\n"
        "  burn ablate --groups all --seeds 0,1 --data photos/train --test photos/val \\\n"
        "      --budget 400000 --teacher runs/teacher \\\n"
        "      --labelled-teacher runs/teacher-supervised --out runs/ablated",
    )
    parser.add_argument(
        "--groups", type=str, default="all", help="all, or names from above with commas between"
    )
    options, ablation, execution = _read_campaign(parser, arguments, Ablation)
    groups = groups_named(options.groups, ablation.labelled_teacher)
    results = ablate(ablation, groups, execution, console)
    _print_results(results, options.json, ablation_table)


def _read_campaign(parser: Parser, arguments: list[str], kind: type[T]) -> tuple[Any, T, Any]:
    """The options of compare and ablate: all of them, those of `kind`, and the Execution."""
    from burn.campaign import Execution, seeds_in
    from burn.files import expand
    from burn.training.run import Machine

    parser.add_argument("--seeds", type=str, default="0", help="of every random number, 0,1,2 …")
    parser.add_argument("--out", type=str, default=None, help="folder of the runs and the table")
    parser.add_argument(
        "--processes", type=int | None, default=None,
        help="runs at once; default: one for each GPU, or one",
    )  # fmt: skip
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu or cuda")
    parser.add_argument("--workers", type=int | None, default=None, help="image-loading processes")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_class_arguments(kind, as_group=False)
    options = parser.read(arguments)
    if not options.out:
        raise UserError("give --out: a folder for the runs and the table")
    machine = Machine(_device(options.device), options.workers)
    execution = Execution(expand(options.out), seeds_in(options.seeds), machine, options.processes)
    return options, _settings(options, kind), execution


def _analyze(arguments: list[str], console: Console) -> None:
    from burn.analyze import ANALYSES, analyze
    from burn.files import expand

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
        help="1: binary activations, 2: weights too; default: what the file's shapes tell, or 2",
    )  # fmt: skip
    options = parser.read(arguments)
    from burn.exchange import import_checkpoint
    from burn.files import expand

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
    from burn.files import expand

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
    from burn.exchange import export_checkpoint

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
    from burn.deploy.pack import pack
    from burn.files import expand
    from burn.results import append_results

    head = None if options.head is None else expand(options.head)
    kept = None if options.results is None else expand(options.results) / "results.jsonl"
    if kept:
        append_results(kept, [])  # after packing would be late to find out
    done = pack(expand(options.checkpoint), expand(options.out), head)
    speed: dict[str, float] = {}
    if kept:
        from burn.deploy.measured import pack_results

        results = pack_results(done, expand(options.out), options.checkpoint)
        append_results(kept, results)
        speed = {r.metric: r.value for r in results if r.metric == "milliseconds"}
    if options.json:
        print(json.dumps({**asdict(done), **speed, "out": options.out}))
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
        print(f"{speed['milliseconds']:.3f} ms an image here on one thread, added to {kept}")
    print(f"-> {options.out}")
    print(f"next: burn-engine run {shlex.quote(options.out)} photo.jpg")


def _info(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "info NAME",
        "Parameters, operations and size of a network, or of the one in a checkpoint.",
        "  burn info reactnet_a --image-size 224 --classes 1000\n"
        "  burn info runs/student --json\n"
        "  burn info resnet50",
    )
    parser.add_argument("name", type=str, help="reactnet_a, a timm name, or a checkpoint of burn's")
    parser.add_argument("--image_size", type=int | None, default=None, help="side in pixels")
    parser.add_argument("--classes", type=int, default=0, help="outputs of a linear classifier")
    parser.add_argument("--width", type=float | None, default=None, help="factor on the channels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.read(arguments)
    from burn.analysis.cost import cost_table, count_named

    cost, about = count_named(options.name, options.image_size, options.classes, options.width)
    if options.json:
        print(json.dumps({**about, **asdict(cost), "ops": cost.ops}, indent=2))
    else:
        Console(markup=False, highlight=False).print(cost_table(cost, about))


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
    from burn.files import expand
    from burn.report.html import write_report

    out = expand(options.out)
    size = write_report([expand(run) for run in options.run], out)
    print(f"-> {options.out} ({size / 1000:,.0f} kB)")


def _settings(options: Any, kind: type[T]) -> T:
    """The dataclass whose fields are among the options."""
    from burn.settings import from_plain

    given = options.as_dict()
    return from_plain(kind, {field.name: given[field.name] for field in fields(cast(Any, kind))})


def _print_results(results: Sequence[Any], as_json: bool, table: Callable[..., Any]) -> None:
    if as_json:
        for result in results:
            print(json.dumps(asdict(result)))
    else:
        Console(markup=False, highlight=False, emoji=False).print(table(results))


def _device(name: str) -> Any:
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: auto, cpu or cuda")
    return name
