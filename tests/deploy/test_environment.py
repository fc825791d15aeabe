"""An environment that holds numpy and burn-engine alone."""

import subprocess
from pathlib import Path

import pytest
import torch

from burn.core.errors import UserError
from burn.deploy.environment import make_environment, run_on_device
from networks import shallow_reactnet


def test_the_environment_holds_what_it_was_given_and_nothing_else(tmp_path: Path):
    python = make_environment(tmp_path / "environment")
    program = "import burn_engine, numpy, importlib.util as u; print(u.find_spec('torch'))"
    done = subprocess.run([python, "-I", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "None\n"


@pytest.mark.parametrize(
    ("package", "reason"),
    [("no-such-package", "is not installed"), ("burn-ssl", "is installed in place: .*--editable")],
)
def test_a_package_that_cannot_be_copied_is_named(tmp_path: Path, package: str, reason: str):
    with pytest.raises(UserError, match=f"{package} {reason}"):
        make_environment(tmp_path / "environment", [package])


def test_a_file_that_does_not_run_there_is_one_line(tmp_path: Path):
    packed = tmp_path / "garbage.bnn"
    packed.write_bytes(b"garbage")
    classifier = (torch.zeros(2, 8), torch.zeros(2))
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(UserError, match=r"cannot be run .* alone: .*garbage\.bnn") as raised:
        run_on_device(packed, shallow_reactnet(), classifier, images)
    assert "\n" not in str(raised.value)
