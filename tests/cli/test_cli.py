import json
import re
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import tiny
from burn.cli.main import _COMMANDS as COMMANDS
from burn.cli.main import _OF_THE_ENGINE, main
from burn.cli.parser import Parser
from burn.evaluation.entries import PROTOCOLS
from burn.methods.entries import METHODS
from burn_engine import cli
from reproduction.analyses.run import ANALYSES

SMALL = [
    "--recipe", "demo", "--data", "digits", "--max-steps", "2", "--workers", "0",
    "--compute", "float32", "--batch-size", "16", "--stages", "2", "--backbone.width", "0.125",
    "--backbone.depths", "[1,1,1,1,1]",
]  # fmt: skip


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run; the status must be 2 and the error one line on stderr, which is returned."""
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("burn: ")
    assert "Traceback" not in captured.err
    return lines[0]


def test_no_arguments_show_the_commands(capsys):
    assert main([]) == 0
    assert "pretrain" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    ["demo", "pretrain", "evaluate", "compare", "ablate", "analyze", "report", "import", "export",
     "pack", "info"],
)  # fmt: skip
def test_help_leads_with_examples_and_fits_a_screen_or_two(command: str, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.index("examples:") < text.index("options:\n")
    assert f"burn {command} " in text
    assert len(text.splitlines()) <= (89 if command == "pretrain" else 75)
    assert "_" not in "".join(re.findall(r"--[\w.-]+", text))


_PAGES = [  # every page of help
    *(f"{command} --help" for command in COMMANDS),
    *(f"evaluate {protocol} --help" for protocol in PROTOCOLS),
    *(f"analyze {analysis} --help" for analysis in ANALYSES),
    "pretrain --help-fields",
]


@pytest.mark.parametrize("page", _PAGES)
def test_help_says_of_every_value_what_it_is(page: str, capsys):
    assert main(page.split()) == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^  (?:-h, )?--([\w.-]+)(?: (\S+))?", text, re.MULTILINE)
    assert shown
    for name, value in shown:
        words = "PATH TEACHER NETWORK PLUGIN NAME N NUMBER MINUTES BYTES SHARE ACTION K/N TYPE"
        words += " HOST:PORT"
        parts = re.split(r"[,|]", value.removesuffix(",..."))
        spelled = value.startswith("{") or {*parts} <= {*words.split(), "auto", "1", "2", ""}
        assert spelled, f"--{name} {value}"
    assert len(re.findall(r"^  --out PATH", text, re.MULTILINE)) <= 1
    assert all(len(line) <= 100 for line in text.splitlines())
    assert not re.search(r"default: (\[|True|False|\S*\.\d{5})", text)


def test_help_of_pretrain_begins_with_what_nearly_every_run_needs(capsys):
    assert main(["pretrain", "--help"]) == 0
    text = capsys.readouterr().out
    options = re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.MULTILINE)
    assert options[:5] == ["data", "teacher", "recipe", "out", "resume"]
    assert options[-2:] == ["import", "help"]
    assert len(set(options)) == len(options)
    last_option = text.index("show this help message")
    for recipe in ("burn_device", "paper_imagenet", "demo_teacher"):
        assert text.index(recipe, text.index("usual options:")) > last_option
    assert "resnet50:moco" in text[last_option:]


def test_an_option_that_no_group_names_is_shown_once(capsys):
    groups = {"first": ("b",), "empty": ("absent",)}
    parser = Parser("x FILE", "Do x.", "  burn x", groups, "Notes.")
    for name in "abc":
        parser.add_argument(f"--{name}", type=int, default=1, help=f"about {name}")
    text = parser.format_help()
    assert parser.prog == "burn x"
    assert re.findall(r"^(?:  (?:-h, )?--\w+|[\w ]+:$|Notes.)", text, re.MULTILINE) == [
        "examples:", "first:", "  --b", "other options:", "  --a", "  --c", "  --import",
        "  -h, --help", "Notes.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (int, "N"),
        (int | None, "N"),
        (float, "NUMBER"),
        (float | Literal["auto"], "NUMBER|auto"),
        (tuple[int, int], "N,N"),
        (tuple[float, ...] | None, "NUMBER,..."),
        (Literal["a", "b"], "{a,b}"),
        (bool, "{true,false}"),
    ],
)
def test_what_stands_for_a_value_follows_from_its_type(kind: Any, shown: str):
    parser = Parser("x", "Do x.", "  burn x")
    parser.add_argument("--some", type=kind, default=None, help="about it")
    assert f"  --some {shown} " in parser.format_help().replace("\n", " ")


def test_help_of_pack_has_readmes_commands(capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    deploy = readme.partition("## Deploy")[2]
    commands = re.findall(r"^burn (?:evaluate|pack)(?:.*\\\n)*.*", deploy, re.MULTILINE)
    assert len(commands) == 2
    assert main(["pack", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    for command in commands:
        assert " ".join(command.replace("\\\n", " ").split()) in text


def test_help_of_a_protocol_is_about_this_protocol(capsys):
    assert main(["evaluate", "semi", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: burn evaluate semi CHECKPOINT [options]")
    assert "settings of semi:\n  --labels NUMBER" in text
    assert "evaluate knn" not in text
    assert "see burn evaluate semi --help" in fails(capsys, "evaluate", "semi", "--x", "1")


def test_every_field_of_a_recipe_is_an_option(capsys):
    assert main(["pretrain", "--help-fields"]) == 0
    fields = capsys.readouterr().out
    assert main(["pretrain", "--help"]) == 0
    text = fields + capsys.readouterr().out
    from burn.cli.parser import _flatten
    from burn.recipes.schema import Recipe

    for name in _flatten(Recipe().to_json()):
        assert f"--{name.replace('_', '-')} " in text


def test_only_the_settings_of_the_runs_method_are_options(capsys, tmp_path: Path):
    for method in METHODS:
        assert main(["pretrain", "--method", method, "--help-fields"]) == 0
        options = re.findall(r"^  --([\w.-]+)", capsys.readouterr().out, re.MULTILINE)
        assert len(options) <= 60
        assert {o.partition(".")[0] for o in options} - {"backbone", "views", "optim"} <= {method}
    line = fails(capsys, "pretrain", "--swav.queue", "3", "--data", "x", "--out", "y")
    assert line.endswith(
        "--swav.queue is a setting of method swav, and this run is of burn: leave it out, or give "
        "--method swav"
    )
    line = fails(capsys, "pretrain", "--method", "brun", "--burn.lam", "constant")
    assert "unknown method brun: did you mean burn?" in line
    earlier = tmp_path / "earlier.yaml"  # earlier versions printed the settings of every method
    earlier.write_text("recipe: demo\nswav: {queue: 3}\nburn: {lam: constant}\n")
    assert main(["pretrain", "--config", str(earlier), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "lam: constant" in printed
    assert "swav" not in printed
    assert main(["pretrain", "--config", str(earlier), "--method", "swav", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "queue: 3" in printed
    assert "lam:" not in printed


def test_a_batch_too_small_for_the_recipes_parts_says_what_to_type(capsys):
    command = ["pretrain", "--recipe", "burn_imagenet", "--data", "x", "--out", "y"]
    line = fails(capsys, *command, "--teacher", "z", "--batch-size", "8")
    assert "batch_size 8 cannot be divided into 8 equal parts (accumulate)" in line
    assert line.endswith("give --accumulate 1 too")


@pytest.mark.parametrize(
    ("options", "size", "resize"),
    [
        ([], 32, 32),
        (["--views.size", "96"], 96, 96),
        (["--views.size=96", "--views.resize=110"], 96, 110),
        (["--views.size=24", "--views.resize=32"], 24, 32),
        (["--recipe", "burn_imagenet", "--views.size", "96"], 96, "null"),
        (["--config", "sizes.yaml"], 24, 32),
        (["--config", "size.yaml"], 24, 24),
    ],
)
def test_the_resize_of_evaluation_follows_the_size_of_the_views(
    options: list[str], size: int, resize: int | str, capsys, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("sizes.yaml").write_text("views:\n  size: 24\n  resize: 32\n")
    Path("size.yaml").write_text("views:\n  size: 24\n")
    recipe = [] if "--recipe" in options else ["--recipe", "burn_small"]
    assert main(["pretrain", *recipe, *options, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert f"  size: {size}\n" in printed
    assert f"  resize: {resize}\n" in printed


@pytest.mark.parametrize("given", ["2,2,1,2", "[2,2,1,2]", " [2, 2, 1, 2]", "2, 2, 1, 2"])
def test_lists_are_written_with_and_without_brackets(given: str, capsys):
    recipe = ["--recipe", "burn_small", "--backbone.stage-strides", given]
    assert main(["pretrain", *recipe, "--print-config"]) == 0
    assert "stage_strides: [2, 2, 1, 2]\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--burn.kl-direction", "student_first"], "burn.kl-direction has no effect with burn.c"),
        (["--burn.lam-end", "0"], "--burn.lam-end has no effect with burn.classifier none"),
        (["--recipe", "paper_small", "--burn.lam", "constant", "--burn.lam-start", "0.5"],
         "--burn.lam-start has no effect with burn.lam constant: leave it out"),
        (["--recipe", "s2bnn_small", "--s2bnn.queue", "512"], "no effect with s2bnn.contrastive 0"),
        (["--recipe", "paper_small", "--burn.classifier", "none"], None),
        (["--burn.classifier", "joint", "--burn.num-classes", "100"], None),
    ],
)  # fmt: skip
def test_a_setting_that_would_change_nothing_is_refused(
    options: list[str], words: str | None, capsys
):
    assert main(["pretrain", *options, "--print-config"]) == (0 if words is None else 2)
    assert (words or "") in capsys.readouterr().err


def test_config_and_print_config_reproduce_each_other(capsys, tmp_path: Path):
    arguments = ["--recipe", "paper_small", "--burn.lam=constant", "--views.crop-scale", "[0.5,1]"]
    assert main(["pretrain", *arguments, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "lam: constant" in printed
    assert "classifier: joint" in printed
    (tmp_path / "run.yaml").write_text(printed)
    assert main(["pretrain", "--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    (tmp_path / "part.yaml").write_text("recipe: paper_small\nepochs: 3\n")
    assert main(["pretrain", "--config", str(tmp_path / "part.yaml"), "--print-config"]) == 0
    part = capsys.readouterr().out
    assert "epochs: 3" in part
    assert "classifier: joint" in part


def test_pretrain_evaluate_info_through_the_command(teacher: Path, tmp_path: Path, capsys):
    out = tmp_path / "run"
    assert main(["pretrain", *SMALL, "--teacher", str(teacher), "--out", str(out)]) == 0
    assert "stage 2 binary: 2 steps" in capsys.readouterr().out
    assert main(["pretrain", "--resume", "--out", str(out)]) == 0
    assert "stage 2 binary: 2 steps" in capsys.readouterr().out
    error = fails(capsys, "pretrain", "--resume", "--out", str(out), "--method", "simclr")
    assert "another method than burn: leave --method out" in error
    data = ["--train", "digits", "--test", "digits", "--out", str(tmp_path), "--json"]
    assert main(["evaluate", "knn", str(out), *data]) == 0
    knn = json.loads(capsys.readouterr().out)
    assert (knn["protocol"], knn["metric"], knn["settings"]["k"]) == ("knn", "top1", 20)
    linear = ["evaluate", "linear", str(out), "--epochs", "2", "--augment", "none", *data]
    assert main(linear) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["metric"] for row in rows] == ["top1", "top5"]
    assert rows[0]["settings"]["augment"] == "none"
    assert main(["evaluate", "knn", str(out), "--random-init", *data]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "random reactnet_a, binary"
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 4
    assert main(["info", str(out), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["precision"], info["recipe"], info["steps"]) == ("binary", "demo", 2)


@pytest.mark.parametrize("method", ["byol", "swav", "mocov2", "supervised"])
def test_a_recipe_of_a_binary_network_trains_a_float_one(method: str, capsys, tmp_path: Path):
    arguments = f"pretrain --recipe {method}_small --data digits --max-steps 1 --batch-size 8"
    network = "--backbone.name resnet18 --stages 1 --backbone.width 0.125 --backbone.stem-stride 2"
    out = tmp_path / "run"
    assert main([*arguments.split(), *network.split(), "--workers", "0", "--out", str(out)]) == 0
    assert "stage 1 float: 1 steps" in capsys.readouterr().out


def test_info_counts_reactnet_as_the_paper_does(capsys):
    assert main(["info", "reactnet_a", "--image-size", "224", "--classes", "1000", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["binary_macs"] == 4_816_896_000
    assert round(info["flops"] / 1e8, 2) == 0.12
    assert round(info["ops"] / 1e8, 2) == 0.87
    assert info["binary_parameters"] + info["float_parameters"] == 29_343_592


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "burn.cli.main":
                raise KeyboardInterrupt

    from burn.__main__ import main as begin

    monkeypatch.delitem(sys.modules, "burn.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert begin() == 130
    assert capsys.readouterr().err == "burn: interrupted\n"


def test_the_commands_of_the_other_program_are_those_that_it_has():
    _, of_the_engine = cli._parser()
    assert set(_OF_THE_ENGINE) == set(of_the_engine) - set(COMMANDS)
    assert set(cli._OF_BURN) <= set(COMMANDS) - set(of_the_engine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretran", "unknown command 'pretran': did you mean pretrain?"),
        ("learn a b", "unknown command 'learn': did you mean burn-engine learn?"),
        ("pretrain", "give --data"),
        ("pretrain --data digits --out {tmp}/x", "method burn needs a teacher: --teacher lite0"),
        ("pretrain --recipe burn_smal", "did you mean burn_small?"),
        ("pretrain --recipe demo --max-stepz 3", "did you mean --max-steps?"),
        ("pretrain --recipe demo --lamb_start 3", "did you mean --burn.lam-start?"),
        ("pretrain --recipe demo --bogus 3", "unknown option --bogus: see burn pretrain --help"),
        ("pretrain --recipe demo", "give --data"),
        ("pretrain --recipe demo --data digits", "give --out"),
        ("pretrain --recipe demo --data digits --out {tmp}/x", "method burn needs a teacher"),
        ("pretrain --recipe swav_small --backbone.stage-strides [2,2,2,2] --data digits "
         "--out {tmp}/x", "views of 16 pixels shrink to a single pixel before the last stride"),
        ("pretrain --recipe demo --epochs many", "--epochs: expected int. Got value: many"),
        ("pretrain --recipe demo --view-epochs x", "--view-epochs: expected int, or none. Got"),
        ("pretrain --recipe demo --burn.lam wavy", "--burn.lam wavy: give "),
        ("pretrain --recipe demo --device tpu", "--device tpu: give auto, cpu or cuda"),
        ("pretrain --recipe demo --data digits --out {tmp}/x --devices 0", "--devices 0 is not"),
        ("pretrain --recipe simclr_small --data digits --out {tmp}/x --num-nodes 2",
         "set NODE_RANK (0 … 1)"),
        ("pretrain --recipe demo --data digits --out {tmp}/x --max-bad some",
         "--max-bad some is not a share"),
        ("pretrain --recipe demo --data digits --out {tmp}/x --max-bad 120%", "is not a share"),
        ("pretrain --recipe demo --data digits --out {tmp}/x --on-nonfinite skip",
         "--on-nonfinite skip: give stop, or skip:10"),
        ("pretrain --recipe demo --data digits --out {tmp}/x --save-every -1",
         "--save-every -1.0 is not in 0 …"),
        ("pretrain --resume", "--resume needs --out"),
        ("pretrain --resume --out {tmp}", "holds no run to resume"),
        ("pretrain --recipe teacher_small --data {tmp}/none --out {tmp}/x", "no data at"),
        ("pretrain --recipe teacher_small --data {tmp} --out {tmp}/x", "holds no image"),
        ("pretrain --recipe teacher_small --data digits --teacher r:f --out {tmp}/x",
         "method simclr learns without a teacher"),
        ("pretrain --recipe demo --data digits --teacher resnet18 --out {tmp}/x",
         "no checkpoint at resnet18"),
        ("pretrain --recipe demo --data digits --teacher lite1 --out {tmp}/x",
         "no checkpoint at lite1: did you mean lite0?"),
        ("pretrain --recipe demo --data digits --teacher resnet81:f --out {tmp}/x",
         "unknown backbone 'resnet81'"),
        ("pretrain --recipe demo --data digits --teacher resnet18:{tmp}/f --out {tmp}/x",
         "no weights file at"),
        ("pretrain --recipe demo --data digits --teacher {tmp} --out {tmp}/x",
         "holds no finished stage"),
        ("pretrain --recipe demo --config {tmp}/none.yaml", "none.yaml: no such file"),
        ("evaluate knn {tmp}/none --train digits --test digits", "no checkpoint at"),
        ("evaluate cnn {tmp} --train digits --test digits", "unknown protocol 'cnn'"),
        ("evaluate --train digits knn {tmp}", "unknown protocol '--train': give knn, linear"),
        ("evaluate knn {tmp} --epochs 3", "unknown option --epochs"),
        ("evaluate knn {tmp} --test digits", "give --train"),
        ("pretrain --recipe demo --seed= --out {tmp}/x", "--seed is empty"),
        ("pretrain --recipe demo --teacher-size= --out {tmp}/x", "--teacher-size is empty"),
        ("pretrain --recipe demo --out= --data digits", "--out is empty"),
        ("pretrain --recipe demo --compile=1 --out {tmp}/x", "--compile is a switch"),
        ("pretrain --recipe demo --epochs 0 --print-config", "--epochs 0 is not in 1"),
        ("pretrain --recipe demo --seed -1 --print-config", "seed -1 is not in 0 … 2³² - 1"),
        ("pretrain --recipe demo --max-bad 7 --print-config", "--max-bad 7"),
        ("pretrain --recipe demo --devices 0 --print-config", "--devices 0"),
        ("evaluate nearest x", "--import FILE adds your own"),
        ("compare --data digits --test digits --budget 64", "give --out"),
        ("compare --data digits --test digits --budget 64 --out {tmp}/x --methods moco",
         "unknown 'moco'"),
        ("compare --data digits --test digits --budget 64 --out {tmp}/x --methods burn",
         "burn needs --teacher"),
        ("compare --data digits --test digits --budget 64 --out {tmp}/x --seeds a",
         "--seeds a: give whole numbers"),
        ("compare --methods byol --data digits --test digits --budget 64 --out {tmp}/x "
         "--processes 0",
         "--processes 0"),
        ("compare --family imagenet --methods feature_only --data digits --test digits --budget 64 "
         "--out {tmp}/x", "feature_only has no recipe in the family imagenet; leave it out of"),
        ("compare --data digits --test digits --out {tmp}/x", "budget"),
        ("compare --data digits --test digits --budget lots --out {tmp}/x", "--budget: expected"),
        ("ablate --data digits --test digits --budget 64 --teacher {tmp}", "give --out"),
        ("ablate --data digits --test digits --budget 64 --out {tmp}/x", "give --teacher"),
        ("ablate --data digits --test digits --budget 64 --teacher {tmp} --out {tmp}/x --groups a",
         "--groups: unknown 'a'"),
        ("ablate --data digits --test digits --budget 64 --teacher {tmp} --out {tmp}/x --seeds 0,0",
         "each once"),
        ("ablate --data digits --test digits --budget 512 --teacher {tmp} --out {tmp}/x",
         "holds no finished stage"),
        ("ablate --data digits --test digits --budget 64 --teacher {tmp} --out {tmp}/x "
         "--recipe byol_small", "is not of method burn"),
        ("analyze gradient --out {tmp}/x", "unknown analysis 'gradient': give gradients"),
        ("analyze cost --compared {tmp} --out {tmp}/x", "is not a folder of burn compare"),
        ("analyze negatives --data digits --test digits --budget 64 --recipe byol_small "
         "--out {tmp}/x", "is not of method infomin"),
        ("analyze ema-toy", "give --out"),
        ("import {tmp}/none --format reactnet --out {tmp}/x.safetensors", "none: no such file"),
        ("import {tmp}/none --format keras --out {tmp}/x.safetensors", "unknown format 'keras'"),
        ("import {tmp}/none --out {tmp}/x.safetensors", "--format"),
        ("export {tmp} {tmp}/x.pth --format reactnet", "holds no finished stage"),
        ("export {tmp} {tmp}/x.onnx", "holds no finished stage"),
        ("export {tmp} {tmp}/x.pth", "give --format, onnx, c or reactnet"),
        ("export {tmp} {tmp}/x.pth --format tflite", "cannot export to 'tflite'"),
        ("export {tmp} {tmp}/x.onnx --format reactnet", "ends in .onnx, but --format is reactnet"),
        ("export {tmp} {tmp}/x.pth --format reactnet --image-size 64",
         "--image-size belongs to formats onnx and c"),
        ("export {tmp} {tmp}/x --format c", "is not a packed file"),
        ("export phots {tmp}/x --format c", "no packed file at phots: did you mean photos?"),
        ("export {tmp}/no.bnn {tmp}/x --format c", "no.bnn: No such file"),
        ("export {tmp}/no.bnn {tmp}/x --format c --ram 1G", "--ram '1G' is not a number of bytes"),
        ("export {tmp} {tmp}/x.onnx --name net", "--name belongs to format c"),
        ("pack {tmp} {tmp}/x.bnn", "holds no finished stage"),
        ("pretrain --recipe burn_small --backbone.stage-strides 2,2 --data digits --out {tmp}/x",
         "--backbone.stage-strides: expected 4 values, with commas. Got value: [2, 2]"),
        ("pretrain --recipe burn_small --backbone.depths 1,2 --data digits --out {tmp}/x",
         "--backbone.depths: expected 5 whole numbers, with commas, or none. Got value: [1, 2]"),
        ("pretrain --recipe burn_small --backbone.depths 1:30,2 --data digits --out {tmp}/x",
         "is not a number: write it without colons"),
        ("evaluate semi {tmp} --lrs a,1 --train digits --test digits --out {tmp}/x",
         "--lrs: expected float. Got value: a"),
        ("compare --methods supervised --data digits --test digits --budget 64 --out {tmp}/x "
         "--linear.epochs 0", "--linear.epochs 0 is not in 1"),
        ("compare --methods [supervised,mocov3] --data digits --test digits --budget 64 "
         "--out {tmp}/x", "--methods: unknown 'mocov3'"),
        ("evaluate knn {tmp}/none.bnn --train digits --test digits --out {tmp}/x",
         "no checkpoint at"),
        ("pack {tmp} {tmp}/x.bin", "must end in .bnn"),
        ("info resnet81", "unknown backbone 'resnet81'"),
        ("info reactnet_a --image-size 0", "--image-size 0 is not in 1 … 4,096"),
        ("info reactnet_a --classes -1", "--classes -1 is not in 0 … 10,000,000"),
        ("info reactnet_a --width 99", "width 99.0 is not in (0, 16]"),
        ("info", "give NAME, or --family"),
        ("info --family reactnet_a", "leave out reactnet_a"),
        ("info --family --classes 10", "leave out --classes and --width"),
        ("info --family --image-size 15", "--image-size 15 is not in 16 … 512"),
        ("info --family --image-size 513", "--image-size 513 is not in 16 … 512"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_status_2(arguments: str, message: str, capsys, tmp_path: Path):
    error = fails(capsys, *arguments.format(tmp=tmp_path).split())
    assert message in error
    assert not (tmp_path / "x").exists()


def test_labels_are_needed_to_evaluate(teacher: Path, tmp_path: Path, capsys):
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "photos" / "a.png")
    photos = str(tmp_path / "photos")
    error = fails(capsys, "evaluate", "knn", teacher, "--train", photos, "--test", photos)
    assert "has no labels: give at least two class folders" in error


def test_a_packed_network_is_not_evaluated(tmp_path: Path, capsys):
    packed = tmp_path / "net.bnn"
    save_file({"weight": torch.zeros(1)}, packed)
    arguments = ("--train", "digits", "--test", "digits", "--out", tmp_path / "x")
    error = fails(capsys, "evaluate", "knn", packed, *arguments)
    assert "is a packed network" in error
    assert not (tmp_path / "x").exists()


def test_no_readable_image_is_said_before_anything_is_written(tmp_path: Path, capsys):
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.png"):
        (tmp_path / "photos" / name).write_bytes(b"nothing")
    out = tmp_path / "run"
    error = fails(
        capsys, "pretrain", "--recipe", "teacher_small", "--data", tmp_path / "photos", "--out", out
    )
    assert "none of its 2 images can be read" in error
    assert not out.exists()


def test_a_checkpoint_of_another_version_is_named(teacher: Path, tmp_path: Path, capsys):
    from safetensors.torch import load_file, save_file

    meta = json.loads((teacher / "stage1.json").read_text()) | {"format": 99}
    weights = load_file(teacher / "stage1.safetensors")
    save_file(weights, tmp_path / "new.safetensors", metadata={"burn": json.dumps(meta)})
    error = fails(capsys, "info", tmp_path / "new.safetensors")
    assert "has checkpoint format 99" in error


def test_tiny_runs_do_not_warn(teacher: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder):
    tiny.train(tiny.student_recipe(), tmp_path / "run", teacher, max_steps=2)
    assert [str(w.message) for w in recwarn] == []
