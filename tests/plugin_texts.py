"""Sources of small plugins, into which a test puts what it is about."""

from __future__ import annotations

from pathlib import Path

METHOD = """
import burn
from torch import nn

@burn.register_method("{name}")
class Mine(burn.Method):
    num_views = 1

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.num_features, 4)

    def parts(self):
        return {parts}

    {more}

    def forward(self, batch, progress):
        features = self.backbone(batch.views[0])
        loss = {loss}
        return {output}
"""
PROTOCOL = """
from dataclasses import dataclass

import burn

@dataclass(frozen=True)
class Config:
    scale: float = 1.0

@burn.register_protocol("mine", config=Config)
def mine(context, settings, console):
    {body}
"""


def method_text(
    name: str = "mine",
    *,
    parts: str = (
        '[burn.Part("backbone", self.backbone, True), burn.Part("head", self.head, True)]'
    ),
    more: str = "",
    loss: str = "self.head(features).square().mean()",
    terms: str = '{"loss": loss.detach()}',
    output: str | None = None,
) -> str:
    """Return the source of a method whose loss is a linear layer's output."""
    output = output or f"burn.StepOutput(loss, {terms}, features.detach())"
    return METHOD.format(name=name, parts=parts, more=more, loss=loss, output=output)


def write(folder: Path, name: str, text: str) -> str:
    """Write a file, and return its path."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)
