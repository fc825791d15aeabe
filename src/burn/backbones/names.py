"""Names of backbones: burn's, those of plugins, and timm's, which are read without importing timm.

timm imports torch and takes seconds to import. Its names are read from its source text instead, so
that a mistyped one is refused at once.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from burn.backbones.entries import BACKBONES
from burn.core.errors import UserError
from burn.core.inputs import read_text

_REGISTERED = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
_RENAMED = re.compile(r"register_model_deprecations\(__name__, \{(.*?)\}\)", re.DOTALL)
_OLD_NAME = re.compile(r"""^\s*['"](\w+)['"]\s*:""", re.MULTILINE)


def require_known(name: str) -> None:
    """Raise UserError unless burn, a plugin or timm has NAME; a TAG after a dot is not checked."""
    if name in BACKBONES:
        return
    stem, names = name.partition(".")[0], _names_in_source()
    # Asking timm, which sorts its names at every call, would take a tenth of a run of one step.
    if stem not in names and "timm" in sys.modules:
        import timm

        names |= frozenset(timm.list_models())  # plugins may have added some
    if stem not in names:
        raise unknown(name, "give reactnet_a or a timm name", (*BACKBONES, *sorted(names)))


def unknown(name: str, what: str, candidates: Iterable[str]) -> UserError:
    """Return the error about an unknown name: what to give instead, and similar candidates."""
    near = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.5)
    hint = f"; similar names: {', '.join(near)}" if near else ""
    return UserError(f"unknown backbone {name!r}: {what}{hint}")


@lru_cache(maxsize=1)
def _names_in_source() -> frozenset[str]:
    package = find_spec("timm")
    assert package is not None
    assert package.origin is not None
    names: set[str] = set()
    for file in Path(package.origin).parent.joinpath("models").glob("*.py"):
        text = read_text(file)
        names.update(_REGISTERED.findall(text))
        for renamed in _RENAMED.findall(text):
            names.update(_OLD_NAME.findall(renamed))
    return frozenset(names)
