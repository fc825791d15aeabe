"""The command `burn embed`."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import settings_of


def run(arguments: list[str], console: Console) -> None:
    from burn.embedding.settings import EmbedConfig

    parser = Parser(
        "embed MODEL",
        "Write the features of all images as parquet files in the folder --out, with scores if\n"
        "the model has a classifier: one file for each shard of stream:PATH, and for other images\n"
        "one for each --part-size of them. A file is whole or not there. After an interruption of\n"
        "any kind, the same command computes the files that are missing, with the same bits.\n\n"
        "Columns: index (position in the data, or in the shard), name, label (null without\n"
        "labels), features, scores. The names of the scores' classes are in embed.json and in\n"
        "each file's metadata. Unreadable images are left out and named in NAME.unreadable.jsonl.",
        "  burn embed runs/student --data photos --out features\n"
        "  burn embed student.bnn --data stream:shards --out features --share 3/100\n"
        "  burn embed lite0 --data digits --out features --dtype float16\n"
        "  burn embed runs/student --head runs/student-linear --data photos --out features",
    )
    parser.add_argument(
        "model",
        type=str,
        help="run folder or checkpoint of burn's, pretrained network (photos), lite0, "
        "ARCHITECTURE:FILE, or a packed file (.bnn), which needs no PyTorch",
    )
    parser.add_options(EmbedConfig, skip=["model"])
    parser.add_switch("json", "print JSON instead of lines")
    options = parser.read(arguments)
    config = settings_of(options, EmbedConfig)
    config.check()
    from burn.embedding.run import embed

    done = embed(config, console)
    if options.json:
        print(json.dumps({**asdict(done), "out": config.out}))
        return
    scores = f" and {done.classes:,} scores" if done.classes else ""
    print(f"{done.images:,} images, each with {done.features:,} features{scores}")
    files = "file" if done.files == 1 else "files"
    print(f"{done.files:,} {files}, {done.new:,} computed now")
    if done.unreadable:
        print(
            f"{done.unreadable:,} unreadable images left out, named in the files *.unreadable.jsonl"
        )
    print(f"-> {config.out}")
