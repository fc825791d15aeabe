"""Kill a run at random moments, go on with the same command each time, and compare the ends.

    python tests/faults/killing.py --kills 20 --devices 2 [--seed 0] [--steps 100]

Prints one line a kill, and at the end whether the weights are those of a run that nobody disturbed,
bit by bit; exits with 1 where they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import commands


def kill_and_compare(
    teacher: Path, folder: Path, kills: int, devices: int, steps: int, seed: int
) -> bool:
    """Whether the end is the same. The time to each kill, in training, is drawn anew."""
    options = [
        f"--max-steps={steps}",
        "--epochs=1000",
        f"--devices={devices}",
        "--save-every=0.005",
    ]
    whole, cut = folder / "whole", folder / "cut"
    status, output = commands.run(commands.command(teacher, whole, *options))
    assert status == 0, output
    draws = random.Random(seed)
    done = 0
    while done < kills:
        with commands.started(commands.command(teacher, cut, *options)) as process:
            begun, stage = _where(cut)
            commands.wait_for_step(process, cut, begun + 1, stage)
            time.sleep(draws.uniform(0, steps / 15))
            if process.poll() is not None:  # it was faster: kill it again from the beginning
                assert process.returncode == 0, process.communicate()[0]
                if not commands.same(commands.weights(whole), commands.weights(cut)):
                    return False
                _begin_again(cut)
                continue
            members = list(commands.ranks(process.pid).values()) if devices > 1 else []
            assert devices == 1 or len(members) == devices
            victim = draws.choice([process.pid, *members])
            half_written = [file.name for file in cut.glob("**/.writing.*")]
            os.kill(victim, signal.SIGKILL)
            step, stage = _where(cut)
            done += 1
            what = "launcher" if members and victim == process.pid else "process"
            about = {"kill": done, "of": what, "stage": stage, "step": step}
            print(json.dumps({**about, "half written": half_written}), flush=True)
            if members and victim != process.pid:
                process.wait(timeout=60)  # the others end by themselves
    status, output = commands.run(commands.command(teacher, cut, *options))
    assert status == 0, output
    return commands.same(commands.weights(whole), commands.weights(cut))


def _where(out: Path) -> tuple[int, int]:
    """Step and stage that the run has come to."""
    stage = 2 if (out / "stage1.safetensors").is_file() else 1
    return commands.last_step(out, stage), stage


def _begin_again(out: Path) -> None:
    for file in sorted(out.glob("**/*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a run at random moments.")
    for name, default in (("kills", 20), ("devices", 1), ("steps", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher"
        status, output = commands.run(
            ["pretrain", "--recipe=demo_teacher", "--data=digits", "--max-steps=8", "--device=cpu",
             "--workers=0", "--compute=float32", "--backbone.width=0.125", f"--out={teacher}"]
        )  # fmt: skip
        assert status == 0, output
        same = kill_and_compare(
            teacher, Path(folder), options.kills, options.devices, options.steps, options.seed
        )
    print(json.dumps({**vars(options), "bit-identical": same}))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
