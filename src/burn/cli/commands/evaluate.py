"""The command `burn evaluate`."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console

from burn.cli.parser import Parser
from burn.cli.shared import CHECKPOINT, printing, settings_of
from burn.core.errors import UserError

_EVALUATE = "Evaluate a backbone by a protocol of the paper (appendix A)"
_PROTOCOLS = {
    "knn": "weighted k nearest neighbours, no training",
    "linear": "a linear layer on the frozen backbone",
    "semi": "fine-tuning on 1 % or 10 % of the labels, the best of nine pairs of learning rates",
    "svm": "one linear SVM for each class on frozen features, full and few-shot",
    "transfer": "linear evaluation with the settings of one of the paper's five data sets",
    "detection": "Faster R-CNN fine-tuned on images with boxes, VOC layout",
}
_EXAMPLES = """\
  burn evaluate knn runs/student --train digits --test digits
  burn evaluate linear runs/student --train cifar.parquet --test val.parquet
  burn evaluate linear runs/student --augment none --train digits --test digits
  burn evaluate semi runs/student --labels 10 --train digits --test digits --out runs/semi
  burn evaluate svm runs/student --train VOC2007:trainval --test VOC2007:test
  burn evaluate transfer runs/student --settings cifar10 --train cifar10 --test cifar10
  burn evaluate detection runs/student --train VOC2007:trainval --test VOC2007:test --out runs/voc
  burn evaluate knn resnet50:moco_v2_800ep.pth --train photos/train --test photos/val"""
_USUAL = ("train", "test", "out", "random_init", "device", "compute")


def run(arguments: list[str], console: Console) -> None:
    from burn.evaluation.configs import Request
    from burn.evaluation.entries import PROTOCOLS

    protocol = arguments[0] if arguments else "--help"
    if protocol not in (*PROTOCOLS, "-h", "--help"):
        raise UserError(
            f"unknown protocol {protocol!r}: give {', '.join(PROTOCOLS)} first "
            "(--import FILE adds your own)"
        )
    kind = PROTOCOLS[protocol].config if protocol in PROTOCOLS else None
    named = protocol if kind else "PROTOCOL"
    groups: dict[str, tuple[str, ...]] = {"usual options": _USUAL}
    if kind:
        groups[f"settings of {protocol}"] = tuple(field.name for field in fields(kind))
    parser = Parser(
        f"evaluate {named} CHECKPOINT", *_texts(protocol, has_settings=bool(kind)), groups
    )
    parser.add_argument("protocol", type=str, help=", ".join(PROTOCOLS))
    parser.add_argument("checkpoint", type=str, help=CHECKPOINT)
    parser.add_options(Request, skip=["checkpoint"])
    parser.add_switch("json", "print JSON lines instead of a table")
    if kind:
        parser.add_class_arguments(kind, as_group=False)
    options = parser.read(arguments or ["--help"])
    assert kind is not None
    config = settings_of(options, kind)
    from burn.evaluation.registry import evaluate_checkpoint

    evaluate_checkpoint(
        protocol, settings_of(options, Request), config, console, printing(options.json)
    )


def _texts(protocol: str, has_settings: bool) -> tuple[str, str]:  # description and examples
    if not has_settings:
        width = max(map(len, _PROTOCOLS))
        rows = "\n".join(f"  {name:<{width}}  {about}" for name, about in _PROTOCOLS.items())
        how = f"{_EVALUATE}. --help after a protocol's name\nshows its settings, whose defaults are"
        return f"{how} the paper's:\n\n{rows}", _EXAMPLES
    about = _PROTOCOLS.get(protocol, "one that a plugin added")
    examples = [line for line in _EXAMPLES.splitlines() if f"evaluate {protocol} " in line]
    other = f"  burn evaluate {protocol} runs/student --train photos/train --test photos/val"
    return f"{_EVALUATE}.\n\n  {protocol}  {about}", "\n".join(examples or [other])
