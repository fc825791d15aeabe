"""The command `burn info`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError, printable


def run(arguments: list[str], console: Console) -> None:
    parser = Parser(
        "info NAME",
        "Show parameters, operations and size of a network or of a checkpoint's network, or the "
        "contents of\na packed file. With --family and without NAME, compare burn's binary "
        "networks and measure their\ntimes on this machine.",
        "  burn info reactnet_a --image-size 224 --classes 1000\n"
        "  burn info runs/student --json\n"
        "  burn info resnet50\n"
        "  burn info student.bnn\n"
        "  burn info --family --image-size 96",
    )
    parser.add_argument(
        "name",
        type=str | None,
        nargs="?",
        default=None,
        help="reactnet_a or another binary network, a timm name, a checkpoint of burn's, or a "
        "packed file (.bnn)",
    )
    parser.add_switch(
        "family",
        "compare burn's binary networks: sizes, and milliseconds in burn-engine, measured now",
    )
    parser.add_optional("image_size", int, "side in pixels")
    parser.add_optional(
        "classes", int, "outputs of a linear classifier (default: the checkpoint's, or none)"
    )
    parser.add_optional("width", float, "factor on the channels")
    parser.add_switch("json", "print JSON instead of a table")
    options = parser.read(arguments)
    if options.family:
        _family_info(options, console)
        return
    if options.name is None:
        raise UserError("give NAME, or --family: see burn info --help")
    from burn.core.paths import expand, nearest_path

    path = expand(options.name)
    there = os.path.lexists(path)
    near = None if there else nearest_path(path)
    hint = f"did you mean {near}?" if near else "give a run folder, a checkpoint or a timm name"
    if not there and ({"/", os.sep} & set(options.name) or path.suffix in (".safetensors", ".bnn")):
        raise UserError(f"no run, checkpoint or packed file at {options.name}: {hint}")
    if path.suffix == ".bnn":
        _packed_info(options, path)
        return
    from burn.costs.compute import cost_table, cost_title, count_named

    try:
        cost, about = count_named(
            options.name, path, options.image_size, options.classes, options.width
        )
    except UserError as error:
        if near and "unknown backbone" in str(error):
            raise UserError(
                f"{options.name} is not a run, checkpoint or backbone: {hint}"
            ) from error
        raise
    if options.json:
        print(json.dumps({**about, **asdict(cost), "ops": cost.ops}, indent=2))
    else:
        print(cost_title(about))
        Console(markup=False, highlight=False).print(cost_table(cost))


def _family_info(options: Any, console: Console) -> None:
    from burn.costs import family

    if options.name is not None:
        raise UserError(f"--family compares all binary networks: leave out {options.name}")
    if (options.classes, options.width) != (None, None):
        raise UserError(
            "--family compares networks as they are, without a classifier: leave out --classes and "
            "--width"
        )
    size = family.IMAGE_SIZE if options.image_size is None else options.image_size
    measured = family.measure_family(size, console)
    if options.json:
        print(json.dumps(asdict(measured), indent=2, ensure_ascii=False))
        return
    Console(markup=False, highlight=False).print(family.family_table(measured))
    for line in family.family_notes(measured):
        print(printable(line))


def _packed_info(options: Any, file: Path) -> None:
    from burn.deploy.described import packed_facts, packed_table

    if (options.image_size, options.classes, options.width) != (None, None, None):
        raise UserError(
            f"{options.name} is a packed file, which cannot be changed: leave out --image-size, "
            "--classes and --width"
        )
    facts = packed_facts(file)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(printable(f"packed file {options.name}"))
        Console(markup=False, highlight=False, emoji=False).print(packed_table(facts))
        hint = f"burn-engine info {options.name} lists its layers and what runs them here"
        print(printable(hint))
