"""The panel in which a packed model classifies a photograph, inside the page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import read_bytes

MOST_MODEL_BYTES = 16_000_000


@dataclass(frozen=True)
class TryIt:
    """What the panel needs.

    Attributes:
        name: Name of the model's file.
        about: What the model gives.
        model: The packed file, in base64.
        engine: The engine as a WebAssembly module, in base64.
        script: The engine's JavaScript, a module that exports `load`, `prepare` and `decode`.
    """

    name: str
    about: str
    model: str
    engine: str
    script: str

    @property
    def num_bytes(self) -> int:
        """How many bytes the panel adds to the page, without its own few."""
        return len(self.model) + len(self.engine) + len(self.script)


def try_it(model: Path) -> TryIt:
    """Read a packed model and the engine for the panel.

    Args:
        model: A packed file, as `burn pack` writes it.

    Raises:
        UserError: The file cannot be read, is no packed model, or is too large, or burn-engine was
            installed without its module for pages.
    """
    import burn_engine

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
    web = files("burn_engine") / "web"
    try:
        module = (web / "burn_engine.wasm").read_bytes()
        script = (web / "index.js").read_text(encoding="utf-8")
    except OSError:
        raise UserError(
            "--with-model: this burn-engine was installed without its module for pages, as where "
            "there was no C++ compiler; install it again with one"
        ) from None
    gives = f"{network.num_features:,} features"
    if network.classes:
        gives = f"{len(network.classes):,} classes"
    side = f", {network.image.size} × {network.image.size} pixels" if network.image else ""
    return TryIt(
        name=model.name,
        about=f"{size / 1000:,.0f} kB, {gives}{side}",
        model=base64.b64encode(read_bytes(model, MOST_MODEL_BYTES)).decode(),
        engine=base64.b64encode(module).decode(),
        script=script,
    )
