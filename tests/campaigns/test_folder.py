"""A campaign's folder goes on with the same images wherever they are, and with no others."""

import json
from pathlib import Path

import pytest

from burn.campaigns.folder import open_folder
from burn.core.errors import UserError

BEGAN = {"data": "/a", "test": "/t", "teacher": None, "budget": 5}
NOW, EARLIER = "content:0123456789abcdef", "0123456789abcdef"


def begin(out: Path, fingerprint: str) -> None:
    out.mkdir()
    open_folder(out, "comparison", BEGAN, {"--data": fingerprint, "--test": "t"}, {})


def again(out: Path, data: str, fingerprint: str) -> dict[str, object]:
    shared = {**BEGAN, "data": data}
    open_folder(out, "comparison", shared, {"--data": fingerprint, "--test": "t"}, {})
    return json.loads((out / "comparison.json").read_text())


@pytest.mark.parametrize(
    ("fingerprint", "data", "told"),
    [
        (NOW, "/a", None),
        (NOW, "/b", None),
        ("content:fedcba9876543210", "/a", "--data /a has changed since"),
        ("content:fedcba9876543210", "/b", "begun with --data /a, not /b, which holds other"),
    ],
)
def test_the_content_decides_and_not_the_place(
    fingerprint: str, data: str, told: str | None, tmp_path: Path
):
    begin(tmp_path / "out", NOW)
    if told is None:
        assert again(tmp_path / "out", data, fingerprint)["data"] == data
        return
    before = (tmp_path / "out" / "comparison.json").read_bytes()
    with pytest.raises(UserError, match=told):
        again(tmp_path / "out", data, fingerprint)
    assert (tmp_path / "out" / "comparison.json").read_bytes() == before


def test_a_campaign_of_an_earlier_burn_goes_on_in_its_place(tmp_path: Path):
    begin(tmp_path / "out", EARLIER)
    assert again(tmp_path / "out", "/a", NOW)["files"] == {"--data": NOW, "--test": "t"}
    begin(tmp_path / "other", EARLIER)
    with pytest.raises(UserError, match="begun with --data /a, not /b"):
        again(tmp_path / "other", "/b", NOW)
