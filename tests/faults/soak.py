"""Train for half an hour with evaluation and resume files, and watch the memory.

    python tests/faults/soak.py [--minutes 30] [--devices 1] [--data digits]

Prints the resident memory of the training process and of all its processes every minute, and at
the end how much more it is than at minute five; exits with 1 where that is above 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import commands

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pids: list[int]) -> float:
    """MiB, of those that still live; what they share counts for each."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * _PAGE / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description="Train for half an hour and watch the memory.")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--data", default="digits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        teacher, out = Path(folder) / "teacher", Path(folder) / "run"
        status, output = commands.run(
            ["pretrain", "--recipe=demo_teacher", "--data=digits", "--max-steps=8", "--device=cpu",
             "--workers=0", "--compute=float32", "--backbone.width=0.125", f"--out={teacher}"]
        )  # fmt: skip
        assert status == 0, output
        arguments = commands.command(
            teacher, out, "--epochs=100000", "--save-every=0.25", "--monitor-every=20",
            f"--devices={options.devices}", f"--data={options.data}",
        )  # fmt: skip
        rows: list[tuple[float, float]] = []
        with commands.started(arguments) as process:
            begun = time.monotonic()
            for minute in range(1, options.minutes + 1):
                time.sleep(max(0.0, begun + 60 * minute - time.monotonic()))
                if process.poll() is not None:
                    print(process.communicate()[0])
                    return 1
                family = [process.pid, *commands.descendants(process.pid)]
                rows.append((resident([process.pid]), resident(family)))
                step, one, all_ = commands.last_step(out), *rows[-1]
                about = {"minute": minute, "step": step, "MiB": round(one), "all": round(all_)}
                print(json.dumps(about), flush=True)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM, output
    growth = [last / first - 1 for first, last in zip(rows[4], rows[-1], strict=True)]
    print(json.dumps({**vars(options), "growth since minute 5": [round(g, 4) for g in growth]}))
    return 0 if max(growth) <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
