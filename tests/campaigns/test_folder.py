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


TRANSFER = {"transfer_train": "/p", "transfer_test": "/q"}
IMAGES = {"--data": NOW, "--test": "t", "--transfer-train": "p", "--transfer-test": "q"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        ({"--transfer-train": "r"}, "--transfer-train /p has changed since"),
        ({"transfer_train": "/s"}, None),  # the same images in another place
        ({"transfer_train": "/s", "--transfer-train": "r"}, "transfer-train /p, not /s, which"),
        ({"semi": {}}, None),
        ({"semi": {"epochs": 4}}, r"begun with semi \{\}, not \{'epochs': 4\}"),
    ],
)
def test_protocols_may_be_added_and_left_out_but_not_changed(
    changed: dict[str, object], told: str | None, tmp_path: Path
):
    out = tmp_path / "out"
    begin(out, NOW)
    open_folder(out, "comparison", BEGAN | TRANSFER, IMAGES, {})
    assert {**again(out, "/a", NOW), **TRANSFER} == again(out, "/a", NOW), "left out and kept"
    if changed.get("semi"):
        open_folder(out, "comparison", BEGAN | {"semi": {}}, IMAGES, {})
    shared = BEGAN | TRANSFER | {k: v for k, v in changed.items() if not k.startswith("--")}
    images = IMAGES | {k: str(v) for k, v in changed.items() if k.startswith("--")}
    before = (out / "comparison.json").read_bytes()
    if told is None:
        open_folder(out, "comparison", shared, images, {})
        stored = json.loads((out / "comparison.json").read_text())
        assert stored == {**stored, **shared}
        return
    with pytest.raises(UserError, match=told):
        open_folder(out, "comparison", shared, images, {})
    assert (out / "comparison.json").read_bytes() == before
