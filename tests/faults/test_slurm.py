"""examples/slurm.sh, with stand-ins for the three commands of SLURM's that it calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
# Two tasks on one machine; signals are forwarded to them, as srun does.
SRUN = """\
#!/bin/bash
shift 2  # its own options
for task in 0 1; do
    SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=$task SLURM_LOCALID=$task \
        SLURM_NODEID=0 "$@" $MORE &
    tasks="$tasks $!"
done
trap 'kill -TERM $tasks' TERM
wait -n || wait -n
status=$?
wait
exit $status
"""
SCONTROL = """\
#!/bin/bash
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$CALLS"; fi
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bash of another age")
@pytest.mark.long
def test_the_job_saves_requeues_itself_and_goes_on(teacher: Path, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    burn = f'#!/bin/bash\nexec {sys.executable} -m burn "$@"\n'
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("burn", burn)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    out, calls = tmp_path / "run", tmp_path / "calls"
    more = [a for a in commands.command(teacher, out) if a.startswith("--")]
    given = ("--recipe", "--data", "--teacher", "--out", "--resume")
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls),
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "here", "OMP_NUM_THREADS": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "MORE": " ".join([*(a for a in more if not a.startswith(given)), "--max-steps=12"]),
    }  # fmt: skip

    def job() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(SCRIPT), "demo", "digits", str(teacher), str(out)], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    first = job()
    try:
        commands.wait_for_step(first, out, 2)
        first.send_signal(signal.SIGUSR1)
        asked = time.monotonic()
        output, _ = first.communicate(timeout=100)
    finally:
        commands.kill_all(first)
    assert first.returncode == 0, output
    assert time.monotonic() - asked < 60
    assert output.count("stopped and saved at step") == 1, output
    assert calls.read_text() == f"requeue {os.getpid()}\n"
    second = job()
    try:
        output, _ = second.communicate(timeout=200)
    finally:
        commands.kill_all(second)
    assert second.returncode == 0, output
    assert (out / "stage2.safetensors").is_file()
    assert calls.read_text().count("requeue") == 1
