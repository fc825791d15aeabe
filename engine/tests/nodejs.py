"""Scripts of tests/js in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "js"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="without node")


def answers(script, package, requests=()):
    """Return what a script prints as JSON, of a file of the package and of requests."""
    done = subprocess.run(
        ["node", SCRIPTS / script, package],
        input=json.dumps(requests, default=str),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
