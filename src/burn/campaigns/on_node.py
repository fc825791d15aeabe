"""The process of one run on a node of a cluster: `python -m burn.campaigns.on_node`.

`burn.campaigns.cluster.watch_over` starts it, and writes the run to its standard input. When that
is closed, its starter has ended, and so does this process: otherwise the run would keep its folder
locked, and could not resume on another node.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import threading

from burn.campaigns.workers import execute
from burn.runtime.hardware import cores


def main() -> None:
    """Execute the run that standard input describes."""
    (length,) = struct.unpack("<Q", _read(8))
    plugins, job, share, log = pickle.loads(_read(length))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    execute(plugins, job, log, threads=share, processes=max(1, cores() // share))


def _read(length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = os.read(0, length - len(received))
        if not part:
            sys.exit(1)
        received += part
    return received


def _end_with_starter() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
