"""The `burn` command: it loads plugins, runs the chosen command and prints its error, if any.

Exit status: 0 success; 1 an internal error of burn; 2 an error that the user can fix, printed as
one line; 128 + signal after Ctrl-C (130) or SIGTERM (143).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from burn.core.errors import (
    Interrupted,
    ReportedByMain,
    UserError,
    foreseen,
    listed,
    one_line,
    printable,
    shortened,
)
from burn.core.inputs import last_opened
from burn.core.plugins import all_plugins, fault_in_plugin, load_installed, load_plugin
from burn.runtime.launch import end_with_launcher
from burn.runtime.signals import Terminated
from burn.runtime.streams import safe_streams

_ANALYZE = """\
  analyze    run one of the paper's small experiments: a picture, its data and a text
"""
_OVERVIEW = f"""\
usage: burn COMMAND [options]

1-bit vision backbones, pretrained without labels.

commands:
  demo       train, evaluate and pack a network on built-in images, in minutes
  train      make a packed classifier of folders of images, by the commands below
  pretrain   train a binary backbone on unlabelled images
  finetune   train a pretrained network and a classifier on labelled images
  evaluate   evaluate a checkpoint by one of the paper's protocols
  compare    train and evaluate several methods at one budget
  ablate     train and evaluate BURN with one choice changed at a time, at one budget
{_ANALYZE}  import     convert a published binary checkpoint to burn's format
  export     convert a checkpoint to ONNX or to another project's format
  pack       write a binary checkpoint as one packed file, for burn-engine
  info       show the size and cost of a network or a checkpoint
  embed      write the features of a collection of images as parquet files
  report     write runs, results and comparisons as one HTML page

`burn COMMAND --help` shows the options of a command, with examples; `burn --version` shows the
version. Every command accepts `--import FILE.py`, which adds your own methods, backbones, protocols
and recipes.
"""


_OF_THE_ENGINE = (
    "run", "bench", "index", "search", "duplicates", "cluster", "learn", "teach", "browse",
)  # fmt: skip
_COMMANDS = (
    "demo", "train", "pretrain", "finetune", "evaluate", "compare", "ablate", "analyze", "import",
    "export", "pack", "info", "embed", "report",
)  # fmt: skip
_MODULES = {"analyze": "reproduction.command", "import": "burn.cli.commands.import_"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default this process's, and return the exit status.

    A failure to print never stops the work. If the reader of standard output has left, as `head`
    does, nothing changes; any other failure to write there gives status 2 at the end, because
    numbers were lost.
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
    status, command = 2, ""
    try:
        return _run(arguments, console)
    except ReportedByMain:
        return 2
    except Interrupted as stopped:
        message, status, command = str(stopped), 128 + stopped.number, stopped.command
        if os.environ.get("RANK", "0") != "0":  # every rank stopped; rank 0 prints the message
            return status
    except Terminated as ended:
        name = signal.Signals(ended.number).name
        message, status = f"ended by {name}; nothing more was saved", 128 + ended.number
    except KeyboardInterrupt:
        message, status = "interrupted; nothing more was saved", 128 + signal.SIGINT
    except BaseException as error:  # a plugin may raise what is no Exception
        message, status = _explained(error, arguments)
        command = error.command if isinstance(error, UserError) else ""
        if os.environ.get("BURN_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
    rank = os.environ.get("RANK", "0")
    who = "burn" if rank == "0" else f"burn (process {shortened(rank, 10)})"
    with contextlib.suppress(OSError):  # standard error may be closed
        line = one_line(f"{who}: {message.removesuffix(command)}")
        print(f"{line} {command}".rstrip() if command else line, file=sys.stderr)
    return status


def _explained(error: BaseException, arguments: Sequence[str]) -> tuple[str, int]:
    """Return the message for an exception, and the exit status: 1 for an unforeseen error.

    Errors of libraries on a user's input become UserErrors where the input is known. This is the
    last resort, which knows only the command and the file that was opened last.
    """
    if isinstance(error, UserError):
        return str(error), 2
    if message := foreseen(error):
        return message, 2
    command = " ".join(["burn", *arguments[:1]])
    if fault := fault_in_plugin(error):
        return f"{fault}; set BURN_DEBUG=1 for the traceback", 1
    file = f" (the last file opened was {opened})" if (opened := last_opened()) else ""
    text = shortened(printable(str(error)), 90)
    if isinstance(error, MemoryError) or _MEMORY.search(f"{type(error).__name__}: {error}"):
        return f"{command}: not enough memory{file}: {text or 'give smaller sizes'}", 2
    what = f"internal error in {command}{file}: {type(error).__name__}: {text}"
    if plugins := all_plugins():
        return f"{what}; perhaps a fault of {listed(plugins)}; BURN_DEBUG=1 shows the traceback", 1
    return f"{what}; set BURN_DEBUG=1 for the traceback, and report it", 1


# The wordings of torch, NumPy and Arrow; torch's OutOfMemoryError is a RuntimeError.
_MEMORY = re.compile(
    "OutOfMemory|ArrowMemoryError|out of memory|not enough memory|[Uu]nable to allocate"
)


def _run(arguments: list[str], console: Console) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(_OVERVIEW if _find_reproduction() else _OVERVIEW.replace(_ANALYZE, ""), end="")
        return 0
    if command == "--version":
        print(f"burn {version('burn-ssl')}")
        return 0
    if command not in _COMMANDS:
        import difflib

        offered = [name for name in _COMMANDS if name != "analyze" or _find_reproduction()]
        near = difflib.get_close_matches(command, offered, n=1)
        if command in _OF_THE_ENGINE:
            near = [f"burn-engine {command}"]
        hint = f"did you mean {near[0]}?" if near else "burn --help lists the commands"
        raise UserError(f"unknown command {command!r}: {hint}")
    if command == "analyze" and not _find_reproduction():
        raise UserError(
            "burn analyze belongs to the paper's reproduction, which is in burn's repository and "
            "not in this installation: run it from a checkout"
        )
    load_installed(lambda line: console.print(line, style="yellow"))
    rest = _import_plugins(rest)
    try:
        # Only this command's module is imported.
        module = importlib.import_module(_MODULES.get(command, f"burn.cli.commands.{command}"))
        next_command = module.run(rest, console)
        if next_command:
            print(f"next: {next_command}")
    except SystemExit as leaving:  # argparse, after --help or --print-config
        if fault_in_plugin(leaving):
            raise
        return int(leaving.code or 0)
    return 0


def _find_reproduction() -> bool:
    """Return whether the paper's reproduction can be imported, as in a checkout, beside `src/`."""
    checkout = Path(__file__).parents[3]
    if (checkout / "reproduction/command.py").is_file() and str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    try:
        return importlib.util.find_spec(_MODULES["analyze"]) is not None
    except ModuleNotFoundError:
        return False


def _import_plugins(arguments: list[str]) -> list[str]:
    """Load every plugin that --import names, and return the other arguments."""
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, separator, value = word.partition("=")
        if name != "--import":
            rest.append(word)
            continue
        given = value if separator else next(words, "")
        if given.startswith("--"):
            raise UserError("--import lacks its value: give a Python file or a module")
        load_plugin(given)
    return rest
