"""The command `burn finetune`."""

from __future__ import annotations

import shlex
from dataclasses import fields

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import CHECKPOINT, printing, same_command, settings_of

_USUAL = ("train", "test", "out", "teacher", "epochs", "resume", "overwrite", "device")


def run(arguments: list[str], console: Console) -> str | None:
    from burn.finetuning.settings import FinetuneConfig, FinetuneRequest

    settings = tuple(field.name for field in fields(FinetuneConfig) if field.name not in _USUAL)
    parser = Parser(
        "finetune CHECKPOINT",
        "Train all layers of a pretrained network, and a classifier, on labelled images. A binary\n"
        "network stays binary. The classifier begins as the linear classifier on the frozen\n"
        "network; the learning rates are chosen on held-out training images; the test images are\n"
        "used once, at the end. The folder --out is a run, which burn pack, evaluate, embed,\n"
        "export, info and report take; packed, it predicts the classes.",
        "  burn finetune photos --train labelled/train --test labelled/test --out runs/tuned\n"
        "  burn pack runs/tuned tuned.bnn\n"
        "  burn finetune runs/student --train labelled --test labelled --teacher lite0 \\\n"
        "      --out runs/tuned\n"
        "  burn finetune runs/student --train digits --test digits --flip 0 --lrs 0.002 \\\n"
        "      --epochs 5 --out runs/tuned",
        {"usual options": _USUAL, "how it is fine-tuned": settings},
    )
    parser.add_argument("checkpoint", type=str, help=CHECKPOINT)
    parser.add_options(FinetuneRequest, skip=["checkpoint"])
    parser.add_switch("json", "print JSON lines instead of a table")
    parser.add_class_arguments(FinetuneConfig, as_group=False)
    options = parser.read(arguments)
    request = settings_of(options, FinetuneRequest)
    request.check()
    from burn.finetuning.run import finetune

    again = same_command("finetune", arguments, "--overwrite", "--resume")
    done = finetune(
        request,
        settings_of(options, FinetuneConfig),
        console,
        printing(options.json),
        resume_command=f"{again} --resume",
    )
    if options.json:
        return None
    print(f"-> {done.checkpoint}")
    from burn.checkpoints.foreign.weights import backbone_from
    from burn.checkpoints.native import load_checkpoint
    from burn.deploy.pack import unpackable

    packable = unpackable(backbone_from(load_checkpoint(done.checkpoint))) is None
    command, suffix = ("pack", "bnn") if packable else ("export", "onnx")
    name = f"{request.out.rstrip('/')}.{suffix}"
    return f"burn {command} {shlex.quote(request.out)} {shlex.quote(name)}"
