"""Where the `burn-engine` command begins: outside of the package that takes long to import."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line of this process, and return the exit status.

    Importing NumPy takes seconds on a small computer. Ctrl-C is one line then, too.
    """
    if sys.argv[1:2] == ["learn"]:
        # Of matrices with a thousand columns a second thread saves little, and beside other work
        # threads that wait for each other take ten times as long.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from burn_engine.cli import main as run

        return run()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # closed
            print("burn-engine: interrupted", file=sys.stderr)
        return 130
