"""Where the command `burn` begins, which is also `python -m burn`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process, and return the exit status.

    Importing what reads it takes a moment; Ctrl-C is one line then, too.
    """
    try:
        from burn.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # closed
            print("burn: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
