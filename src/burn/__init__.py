"""BURN: 1-bit vision backbones, pretrained without labels."""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is first asked for: `import burn` stays instantaneous."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("burn-ssl")
