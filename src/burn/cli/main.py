"""The `burn` command: parse, call, print.

Exit status: 0 done; 1 a fault of burn's own; 2 something the user can fix, said in one line;
128 + signal after Ctrl-C (130) or SIGTERM (143).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console

from burn.cli.shared import one_line
from burn.core.errors import Interrupted, ReportedByMain, UserError, printable, shortened
from burn.core.inputs import last_opened
from burn.core.plugins import fault_in_plugin, load_installed, load_plugin
from burn.runtime.launch import end_with_launcher
from burn.runtime.streams import safe_streams

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

`burn COMMAND --help` shows each with examples; `burn --version` the version. Every command takes
`--import FILE.py`, which adds methods, backbones, protocols and recipes of your own.
"""


_COMMANDS = {  # a command to its module, which is imported when it is asked for
    "demo": "burn.cli.commands.demo",
    "pretrain": "burn.cli.commands.pretrain",
    "evaluate": "burn.cli.commands.evaluate",
    "compare": "burn.cli.commands.compare",
    "ablate": "burn.cli.commands.ablate",
    "analyze": "burn.cli.commands.analyze",
    "import": "burn.cli.commands.import_",
    "export": "burn.cli.commands.export",
    "pack": "burn.cli.commands.pack",
    "info": "burn.cli.commands.info",
    "report": "burn.cli.commands.report",
}


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
    except ReportedByMain:
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
        print(one_line(f"{who}: {message}"), file=sys.stderr)
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
    if place := fault_in_plugin(error):
        what = shortened(printable(f"{type(error).__name__}: {error}"), 200)
        return f"{place}: {what}; set BURN_DEBUG=1 for the traceback", 1
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


def _run(arguments: list[str], console: Console) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(_OVERVIEW, end="")
        return 0
    if command == "--version":
        print(f"burn {version('burn-ssl')}")
        return 0
    if command not in _COMMANDS:
        import difflib

        near = difflib.get_close_matches(command, _COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_COMMANDS)}"
        raise UserError(f"unknown command {command!r}: {hint}")
    load_installed(lambda line: console.print(line, style="yellow"))
    rest = _import_plugins(rest)
    try:
        importlib.import_module(_COMMANDS[command]).run(rest, console)
    except SystemExit as leaving:  # argparse, after --help or --print-config
        return int(leaving.code or 0)
    return 0


def _import_plugins(arguments: list[str]) -> list[str]:
    """Load what every --import names; the arguments without them."""
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
