"""Where the `burn-engine` command begins: outside of the package that takes long to import."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process, and return the exit status.

    Importing NumPy takes seconds on a small computer. Ctrl-C is one line then, too.
    """
    try:
        from burn_engine.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("burn-engine: interrupted", file=sys.stderr)
        return 130
