"""The panels in which a packed model classifies photographs and learns classes, in the page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import read_bytes
from burn.report.render.templates import source

MOST_MODEL_BYTES = 16_000_000


@dataclass(frozen=True)
class TryIt:
    """What the panels need."""

    name: str  # of the model's file
    about: str  # what the model gives
    learns: bool  # whether it says how photographs become its images, which learning needs
    model: str  # the packed file, in base64
    engine: str  # a WebAssembly module, in base64
    script: str  # all JavaScript of the panels, also that of the engine

    @property
    def num_bytes(self) -> int:
        """How many bytes the panels add to the page, without their own few."""
        return len(self.model) + len(self.engine) + len(self.script)


def try_it(model: Path) -> TryIt:
    """Read a packed model and the engine for the panels; UserError if one cannot be used."""
    import burn_engine
    from burn_engine.page_code import page_code, page_file

    if not model.is_file():
        what = "not a regular file" if model.exists() else "there is no such file"
        raise UserError(f"--with-model {model}: {what}; give one of burn pack")
    size = model.stat().st_size
    if size > MOST_MODEL_BYTES:
        raise UserError(
            f"--with-model {model} has {size / 1e6:.1f} MB, more than the "
            f"{MOST_MODEL_BYTES / 1e6:.0f} that a page may hold"
        )
    try:
        network = burn_engine.load(model)
    except (OSError, ValueError) as error:
        raise UserError(f"--with-model {error}") from None
    try:
        engine, script = page_file("burn_engine.wasm"), page_code(source("try.js"))
    except ValueError as error:
        raise UserError(f"--with-model: {error}") from None
    gives = f"{network.num_features:,} features"
    if network.classes:
        gives = f"{len(network.classes):,} classes"
    side = f", {network.image.size} × {network.image.size} pixels" if network.image else ""
    return TryIt(
        name=model.name,
        about=f"{size / 1000:,.0f} kB, {gives}{side}",
        learns=network.image is not None,
        model=base64.b64encode(read_bytes(model, MOST_MODEL_BYTES)).decode(),
        engine=base64.b64encode(engine).decode(),
        script=script,
    )
