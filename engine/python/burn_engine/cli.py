"""The `burn-engine` command."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import burn_engine
from burn_engine import (
    cluster_command,
    copies_command,
    find_commands,
    learn_command,
    page_commands,
)
from burn_engine.bench import Times, measure, report
from burn_engine.collection import identity_of
from burn_engine.errors import in_file, shown
from burn_engine.facts import facts_of
from burn_engine.features_file import FeaturesFile
from burn_engine.format import parse_program
from burn_engine.images import PillowMissing, read_input
from burn_engine.many import Progress, paths_in, read_ahead
from burn_engine.model import Model, load, load_bytes
from burn_engine.native import isas
from burn_engine.pretrained import PRETRAINED, read_model
from burn_engine.terminal import (
    OUTPUT,
    about,
    add_readers,
    at_least_1,
    complain,
    counted,
    discard_output,
    output,
    printable,
    warnings_as_lines,
)

_MODEL = "packed file, *.bnn, or a pretrained network's name, such as photos"
_LONGEST_TEXT = 80  # characters of the origin that info prints whole: more than a SHA-256
_LONGEST_LIST = 20
_WRITTEN = {"html": ".html", "features": ".npy"}  # what options write, by their names
_OF_BURN = ("train", "pretrain", "evaluate", "finetune", "pack", "export", "report", "compare")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: The arguments after the command's name; None for those of the process.

    Returns:
        The exit status: 0, 2 after an error, which is printed in one line, or 128 + signal: 130
        after Ctrl-C, 143 after SIGTERM.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - kept open until exit
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names need not fit the terminal
    # As `pixels` does, whose own filter is lost where several threads set one.
    warnings.filterwarnings("ignore", module="PIL")
    status = 0
    try:
        try:
            options = _parsed(arguments)
            with _signals_raise():
                options.run(options)
        except SystemExit as leaving:  # argparse, after --help or --version
            status = int(leaving.code or 0)
        with output():
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output has closed it
        discard_output()
        return 0
    except OSError as error:
        if error.filename == OUTPUT:
            discard_output()
        message = about(error, error.filename)
    except MemoryError:
        message = "not enough memory"
    except _Ended as ended:
        complain(f"ended by {signal.Signals(ended.number).name}")
        return 128 + ended.number
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except ValueError as error:
        message = str(error)
    complain(message)
    return 2


class _Ended(KeyboardInterrupt):
    """Raised when another signal than Ctrl-C's asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Make signals that end a process raise `_Ended`, so that no unfinished file is left.

    Those that the caller ignores, as under `nohup`, or handles are left alone. A second one ends
    the process at once.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _Ended(number)

    ours: list[int] = []
    with contextlib.suppress(ValueError):  # not in the main thread
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                ours.append(number)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        lacking = message.partition("the following arguments are required: ")[2]
        if lacking:
            message = f"give {lacking}, as in: {' '.join((self.prog, *self._names()))}"
        raise ValueError(f"{message} (see {self.prog} --help)")

    def _names(self) -> list[str]:
        """Return what the arguments without an option are called, in their order."""
        arguments = (each for each in self._actions if not each.option_strings)
        return [str(each.metavar) for each in arguments]

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raise ValueError for arguments that the command does not have."""
        option = next((each for each in unknown if each.startswith("-")), None)
        if option is None:
            self.error(f"unexpected argument {shown(unknown[0])}")
        name = option.partition("=")[0]
        options = [
            each for each in self._option_string_actions if each not in ("-h", "--help", name)
        ]
        self.error(f"unknown option {name[:60]}{_meant(name, options)}")

    def _print_message(self, message: str, file: Any = None) -> None:
        # For --help and --version. argparse's own ignores an error of writing.
        with output():
            print(message, end="", file=file or sys.stderr)


def _meant(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line; errors suggest what may have been meant."""
    parser, commands = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and not given[0].startswith("-") and given[0] not in commands:
        of_burn = f": did you mean burn {given[0]}?" if given[0] in _OF_BURN else ""
        meant = of_burn or _meant(given[0], commands)
        parser.error(f"unknown command {shown(given[0])}{meant}")
    options, unknown = parser.parse_known_args(given)
    if unknown:
        commands.get(options.command, parser).refuse(unknown)
    if options.command is None:
        parser.error(f"give a command: {', '.join(commands)}")
    _require_no_forgotten_option(vars(options))
    return options


def _require_no_forgotten_option(given: Mapping[str, Any]) -> None:
    """Raise ValueError if a file to write stands among the files to read."""
    paths = [path for value in given.values() if isinstance(value, list) for path in value]
    missing = [path for path in paths if not os.path.lexists(path)]
    for option, suffix in _WRITTEN.items():
        forgotten = option in given and given[option] is None
        if path := next((path for path in missing if forgotten and path.endswith(suffix)), None):
            raise ValueError(f"{path}: no such file; --{option} {path} writes it")


class _Pretrained(argparse.Action):
    """Prints the pretrained networks, and ends as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        width = max(len(each.name) for each in PRETRAINED)
        with output():
            for each in PRETRAINED:
                size = each.path.stat().st_size / 1e6
                print(f"{each.name:{width}}  {size:.1f} MB  {each.summary}")
        parser.exit()


def _parser() -> tuple[_Parser, Mapping[str, _Parser]]:
    """Return the parser, and those of the commands by name."""
    parser = _Parser(
        prog="burn-engine",
        description="Run packed binary networks: pretrained ones, or your own, written by "
        "`burn pack`.",
        epilog="examples:\n"
        "  burn-engine run photos photo.jpg --features photo.npy\n"
        "  burn-engine run model.bnn photo.jpg\n"
        "  burn-engine run model.bnn photos/ --json --readers 2 > results.jsonl\n"
        "  find . -name '*.jpg' | burn-engine run model.bnn - --features features.npy\n"
        "  burn-engine index photos/ photos.index\n"
        "  burn-engine search photos.index query.jpg\n"
        "  burn-engine duplicates photos/ --html copies.html\n"
        "  burn-engine learn labelled/ mine.bnn\n"
        "  burn-engine info model.bnn\n"
        "  burn-engine bench model.bnn --threads 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"burn-engine {burn_engine.__version__}"
    )
    parser.add_argument(
        "--pretrained", action=_Pretrained, nargs=0, help="list the pretrained networks and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")

    run = commands.add_parser(
        "run",
        help="print the classes of images, or write their features",
        description="Print each image's most probable classes, or write features. Photographs are "
        "resized and cropped as the model says; an array (.npy, height × width × 3) is used "
        "unchanged. Images that cannot be read are named and left out; the exit status is then 2.",
    )
    run.add_argument("model", metavar="MODEL", help=_MODEL)
    run.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="image file, folder of images at any depth, or - for a list on standard input with "
        "one path a line",
    )
    run.add_argument(
        "--top", metavar="N", type=at_least_1, default=5, help="classes to print (default: 5)"
    )
    run.add_argument("--threads", metavar="N", type=int, default=1, help="1 to 256 (default: 1)")
    add_readers(run)
    run.add_argument(
        "--features", metavar="PATH", help="write the features, images × features, to this .npy"
    )
    run.add_argument("--json", action="store_true", help="print a line of JSON for each image")
    run.set_defaults(run=_run)

    info = commands.add_parser(
        "info",
        help="print the layers, sizes and classes of a model",
        description="Print a model's layers, sizes, classes and origin, and the instruction set "
        "that runs it on this machine.",
    )
    info.add_argument("model", metavar="MODEL", help=_MODEL)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    bench = commands.add_parser(
        "bench",
        help="measure the time per image",
        description="Print the median, 10th and 90th percentile of milliseconds per image.",
    )
    bench.add_argument("model", metavar="MODEL", help=_MODEL)
    bench.add_argument(
        "--size",
        metavar="N",
        type=at_least_1,
        help="side of the images in pixels (default: the size the model expects, or 224)",
    )
    bench.add_argument(
        "--batch", metavar="N", type=at_least_1, default=1, help="images in one call (default: 1)"
    )
    bench.add_argument("--threads", metavar="N", type=int, default=1, help="1 to 256 (default: 1)")
    bench.add_argument(
        "--isa",
        metavar="NAME",
        help="instruction set, one that `burn-engine info` prints (default: the best)",
    )
    bench.add_argument(
        "--seconds",
        metavar="NUMBER",
        type=_seconds,
        default=3.0,
        help="time to measure for (default: 3)",
    )
    bench.add_argument("--json", action="store_true", help="print JSON")
    bench.add_argument(
        "--report",
        action="store_true",
        help="print this machine and a table of one thread, all cores and batches of 8, in "
        "Markdown, to compare machines (four times --seconds)",
    )
    bench.set_defaults(run=_bench)
    find_commands.add_to(commands)
    cluster_command.add_to(commands)
    copies_command.add_to(commands)
    learn_command.add_to(commands)
    page_commands.add_to(commands)
    return parser, commands.choices


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= 86_400:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 86400")


def _run(options: argparse.Namespace) -> None:
    named = options.images
    if options.features is not None:
        _check_output(options.features)
    with warnings_as_lines():
        model = load(options.model, options.threads)
    paths: Iterable[str] = paths_in(named, complain)
    if options.features is not None:
        paths = _apart(options.features, options.model, paths)
    total = None
    if "-" not in named:
        paths = list(paths)
        total = len(paths)
    progress = Progress(sys.stderr, total)
    failed: list[str] = []
    done = 0
    no_pillow = False  # whether an image needed Pillow, which is said once
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        file = None
        if options.features is not None:
            file = stack.enter_context(FeaturesFile(Path(options.features)))
        images = stack.enter_context(
            contextlib.closing(
                read_ahead(paths, partial(read_input, size=model.image), options.readers)
            )
        )
        for path, image in images:
            result, error = _result(model, path, image, options.top, file)
            repeated = isinstance(image, PillowMissing) and no_pillow
            no_pillow |= isinstance(image, PillowMissing)
            progress.clear()
            if error is None or options.json:
                with output(last=file is None):
                    _print_result(result, options)
            if error is not None:
                failed.append(error)
                if total != 1 and not repeated:
                    complain(error)
            done += 1
            progress.show(done)
    if failed and total == 1:
        raise ValueError(failed[0])
    if failed:
        raise ValueError(f"{len(failed):,} of {counted(done)} were left out; see above")
    if not done:
        raise ValueError("standard input names no images")


def _result(
    model: Model, path: str, image: NDArray[Any] | Exception, top: int, file: FeaturesFile | None
) -> tuple[dict[str, Any], str | None]:
    """Return what is printed of an image, and the error if there is one."""
    result: dict[str, Any] = {"image": path}
    try:
        if isinstance(image, Exception):
            raise image
        if model.classes:
            result["classes"] = _top_classes(model, image, top, path)
            result |= learn_command.refusal(model, image)
        if file is not None or not model.classes:
            vector = model.features(image)
            norm = _finite(float(np.linalg.norm(vector.astype(np.float64))), path)
            result |= {"features": len(vector), "norm": norm}
    except OSError as error:
        message = about(error, path)
        return {"image": path, "error": message}, message
    except MemoryError:
        message = f"{path}: not enough memory"
        return {"image": path, "error": message}, message
    except ValueError as error:
        return {"image": path, "error": str(error)}, str(error)
    if file is not None:  # outside: if it cannot be written, the run ends
        result["row"] = file.num_rows
        file.add(vector)
    return result, None


def _check_output(file: str) -> None:
    """Raise ValueError if a file cannot be written."""
    path = Path(file)
    if not path.name:
        raise ValueError(f"--features {file!r} is not a file name")
    if not path.parent.is_dir():
        raise ValueError(f"--features {file}: there is no such folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"--features {file} is not a regular file")
    if path.suffix != ".npy":
        raise ValueError(f"--features {file} does not end in .npy: name a file such as photos.npy")


def _apart(file: str, model: str, paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths of images; raise ValueError if the output is one of them, or the model."""
    output = identity_of(file)

    def is_output(path: str) -> bool:
        return output is not None and identity_of(path) == output

    message = f"--features {file} is an input as well: give another name"
    if is_output(model):
        raise ValueError(message)
    for path in paths:
        if is_output(path):
            raise ValueError(message)
        yield path


def _top_classes(
    model: Model, image: NDArray[Any], top: int, path: str
) -> list[dict[str, str | float]]:
    scores = model(image).astype(np.float64)
    _finite(float(np.abs(scores).max()), path)
    exponentials = np.exp(scores - scores.max())
    probabilities = exponentials / exponentials.sum()
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [
        {"class": model.classes[index], "probability": float(probabilities[index])}
        for index in best
    ]


def _finite(value: float, path: str) -> float:
    if not np.isfinite(value):
        raise ValueError(f"{path}: the model's output is not finite")
    return value


def _print_result(result: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(result), flush=True)
        return
    name = printable(result["image"])
    if "classes" not in result:
        hint = "" if options.features else "; --features FILE.npy writes them"
        print(f"{name}: {result['features']} features, norm {result['norm']:.4g}{hint}")
        return
    print(f"{name}:", *learn_command.lines_of(result), sep="\n")
    for entry in result["classes"]:
        print(f"  {entry['probability']:7.2%}  {printable(entry['class'])}")


def _info(options: argparse.Namespace) -> None:
    with in_file(options.model):
        data = read_model(options.model)
        program = parse_program(data)
        with warnings_as_lines():
            model = load_bytes(data)
    facts: dict[str, Any] = {
        **facts_of(program, len(data)),
        "backend": model.backend,
        "isa": model.isa,
        "isas": isas(),
    }
    if options.json:
        _print_json(facts)
    else:
        _print_info(facts)


@output()
def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


@output()
def _print_info(facts: dict[str, Any]) -> None:
    layers = facts["layers"]
    name_width = max(5, *(len(layer["name"]) for layer in layers))
    print(f"{'layer':{name_width}}  {'kind':18}  {'channels':>8}  {'bytes':>12}")
    for layer in layers:
        print(
            f"{layer['name']:{name_width}}  {layer['kind']:18}  {layer['channels']:8,}  "
            f"{layer['bytes']:12,}"
        )
        if also := layer.get("also"):
            print(f"{'':{name_width}}  also averages {', '.join(also)}")
    print()
    integers = f" and {facts['integers']:,} 16-bit integers" if facts["integers"] else ""
    print(
        f"file      {facts['file_bytes']:,} bytes: {facts['bits']:,} bits, "
        f"{facts['floats']:,} floats{integers}"
    )
    print(f"features  {facts['features']:,}")
    classes = facts["classes"]
    shown = printable(", ".join(classes[:10])) + (", …" if len(classes) > 10 else "")
    print(f"classes   {len(classes):,}: {shown}" if classes else "classes   none")
    image = "any size"
    if facts["image"]:
        resize, size = facts["image"]["resize"], facts["image"]["size"]
        image = f"short side resized to {resize} pixels, centre {size} × {size} cut out"
    print(f"image     {image}")
    if facts["origin"] is not None:
        origin = json.dumps(_brief(facts["origin"]), ensure_ascii=False)
        print(f"origin    {printable(origin)}")
    print(
        f"runs on   {facts['isa'] or 'the NumPy reference'} (there are {', '.join(facts['isas'])})"
    )


def _brief(value: Any) -> Any:
    """Return a JSON value with its long texts and lists shortened; --json prints all of them."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:16]}…"
    if isinstance(value, list):
        return [*map(_brief, value[:_LONGEST_LIST]), *["…"][: len(value) > _LONGEST_LIST]]
    if isinstance(value, dict):
        return {_brief(key): _brief(each) for key, each in value.items()}
    return value


def _bench(options: argparse.Namespace) -> None:
    with in_file(options.model):
        data = read_model(options.model)
        with warnings_as_lines():
            model = load_bytes(data, options.threads, options.isa)
    if options.report:
        _bench_report(options, data)
        return
    times = measure(model, options.threads, options.size, options.batch, options.seconds)
    if options.json:
        _print_json(times._asdict())
    else:
        _print_times(times)


@output()
def _print_times(times: Times) -> None:
    print(
        f"{times.median_ms:.3f} ms per image (median of {times.runs} runs; p10 {times.p10_ms:.3f}, "
        f"p90 {times.p90_ms:.3f})"
    )
    print(
        f"{times.size} × {times.size} pixels, batch {times.batch}, threads "
        f"{times.threads}, {times.isa or 'NumPy reference'}"
    )


def _bench_report(options: argparse.Namespace, data: bytes) -> None:
    if options.json or options.batch != 1 or options.threads != 1:
        raise ValueError("--report does not go with --batch, --threads and --json")
    name = Path(options.model).name
    with warnings_as_lines(), output():
        for line in report(name, data, options.isa, options.size, options.seconds):
            print(printable(line), flush=True)
