"""Where `burn analyze` is offered: by a burn that is installed from a checkout, and by no other."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import burn

ROOT = Path(__file__).parents[2]
CASES = [  # installed from the checkout?, words, status, what is said, what is not
    (True, "--help", 0, "  analyze  ", "Traceback"),
    (True, "analyze --help", 0, "usage: burn analyze", "Traceback"),
    (True, "analize", 2, "did you mean analyze?", "Traceback"),
    (False, "--help", 0, "  ablate  ", "analyze"),
    (False, "analyze --help", 2, "burn: burn analyze belongs to the paper's reproduction, which is "
     "in burn's repository and not in this installation: run it from a checkout\n", "Traceback"),
    (False, "analize", 2, "burn --help lists the commands", "analyze"),
]  # fmt: skip


@pytest.mark.parametrize(("in_checkout", "words", "status", "said", "unsaid"), CASES)
def test_a_checkout_offers_it_from_any_folder_and_a_package_does_not(
    in_checkout: bool, words: str, status: int, said: str, unsaid: str, tmp_path: Path
):
    site = Path(burn.__file__).parents[1]
    if not in_checkout:  # as a wheel is installed: beside it is nothing of the repository
        site = tmp_path / "lib/python3/site-packages"
        site.mkdir(parents=True)
        (site / "burn").symlink_to(Path(burn.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "burn", *words.split()],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert unsaid not in done.stdout + done.stderr


def test_the_package_holds_burn_alone():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/burn"]}
