"""What a report says of a machine, from the files that Linux has on a Raspberry Pi."""

import pytest

from burn_engine.machine import celsius, describe, slowed

FILES = {
    "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2400000\n",
    "etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "sys/class/thermal/thermal_zone0/temp": "48312\n",
    "sys/class/thermal/thermal_zone1/temp": "-2000\n",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "0\n",
}


@pytest.fixture
def root(tmp_path):
    def root(**changes):
        for name, text in {**FILES, **changes}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return root


def test_a_raspberry_pi(root):
    found = describe(root())
    assert found.board == "Raspberry Pi 5 Model B Rev 1.0"
    assert found.megahertz == 2400
    assert found.system.startswith("Debian GNU/Linux 12 (bookworm), ")
    assert celsius(root()) == pytest.approx(48.312)
    assert slowed(root()) is False


def test_a_slowed_one(root):
    assert slowed(root(**{"sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n"}))


def test_without_such_files(tmp_path):
    found = describe(tmp_path)
    assert (found.board, found.megahertz) == (None, None)
    assert found.processor
    assert found.cores >= 1
    assert celsius(tmp_path) is None
    assert slowed(tmp_path) is None


def test_files_that_say_nothing(root):
    changes = dict.fromkeys(FILES, "?")
    found = describe(root(**changes))
    assert found.megahertz is None
    assert celsius(root(**changes)) is None
    assert slowed(root(**changes)) is None
