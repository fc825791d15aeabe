"""`burn-engine teach` and `browse`, which write pages, and the scripts of these."""

from __future__ import annotations

import json
import re

import pytest

from burn_engine.cli import main
from burn_engine.page_code import page_code
from packed import random_network
from pages import digest, script

COMMANDS = ["teach", "browse"]


@pytest.fixture
def base(tmp_path):
    """A packed network."""
    file = tmp_path / "base.bnn"
    file.write_bytes(random_network(0, num_classes=7, image=(40, 32)).to_bytes())
    return file


def test_a_script_of_modules_keeps_their_names_apart():
    code = page_code(
        'import { learn } from "./learn.js";\nimport { eigen } from "./symmetric.js";\nlearn();\n'
    )
    assert code.count("function eigen(") == 1
    assert code.index("const $symmetric =") < code.index("const $learn =")
    assert code.endswith("const { learn } = $learn;\nconst { eigen } = $symmetric;\nlearn();\n")
    with pytest.raises(AssertionError, match="import learn"):
        page_code('import learn from "./learn.js";\n')
    with pytest.raises(AssertionError, match="end the element"):
        page_code('const text = "</script>";\n')


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_holds_all_it_needs(base, tmp_path, command):
    assert main([command, str(tmp_path / "page.html"), "--from", str(base)]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    files = json.loads(*re.findall(r'id="files">(.*?)</script>', page, re.DOTALL))
    assert files["name"] == "base.bnn"
    assert files["network"].startswith("data:application/octet-stream;base64,")
    assert not re.search(
        "https?://|import |import.meta|<link rel=.s", re.sub(r"data:[^\"]*", "", page)
    )
    assert (
        f"script-src 'sha256-{digest(script(page))}' 'wasm-unsafe-eval'; worker-src blob:" in page
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_of_a_file_is_never_part_of_the_page(tmp_path, command):
    network = tmp_path / "<script>alert(1)<!--.bnn"
    network.write_bytes(random_network().to_bytes())
    assert main([command, str(tmp_path / "page.html"), "--from", str(network)]) == 0
    assert "alert(1)<" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pretrained_network_is_the_default(tmp_path, capsys, command):
    out = tmp_path / "page.html"
    assert main([command, str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out}: {out.stat().st_size:,} bytes; open it in a browser\n"
    )
    assert '"name": "photos.bnn"' in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_written_is_refused_in_one_line(base, tmp_path, capsys, command):
    base = str(base)
    there = tmp_path / "there.html"
    there.write_text("mine")
    (tmp_path / "bad.bnn").write_bytes(b"hello")
    (tmp_path / "any.bnn").write_bytes(random_network(image=None).to_bytes())
    cases = {
        ("page.txt",): "page.txt is not the name of a page: end it in .html",
        (str(there), "--from", base): f"{there} exists already: give another name, or overwrite it",
        (str(tmp_path / "no" / "page.html"),): "there is no such folder",
        (str(tmp_path / "a.html"), "--from", str(tmp_path / "bad.bnn")): "5 bytes long",
        (str(tmp_path / "a.html"), "--from", str(tmp_path / "any.bnn")): "how photographs become",
        (str(tmp_path / "a.html"), "--from", "nothing"): "nothing",
    }
    for arguments, sentence in cases.items():
        assert main([command, *arguments]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    assert there.read_text() == "mine"
    assert not (tmp_path / "a.html").exists()
    assert main([command, str(there), "--from", base, "--overwrite"]) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_package_without_the_module_says_so(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr("burn_engine.page_code.files", lambda name: tmp_path)
    assert main([command, str(tmp_path / "a.html")]) == 2
    assert "installed without its module for pages" in capsys.readouterr().err
