"""The pretrained networks that come with burn, as checkpoints: what training and evaluation need.

burn-engine comes with the same networks packed. The latent weights of binary layers are kept in 8
bits (`burn.checkpoints.latents`).
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import sha256_of
from burn.core.paths import expand, is_file_or_run, nearest_path

_FOLDER = Path(__file__).with_name("pretrained")

# SHA-256 of each network's file, by its name.
PRETRAINED = {
    "photos": "46a72c42d55bb67aa9ec667daa269e15247dfdc6940f29065b1ca40b4239c799",
    "small": "8fbc7f4492601b398f4fab55fe94e38ce6d7d583f549336e6e45378ccfdb8fcf",
}


def pretrained_file(spec: str | os.PathLike[str]) -> Path | None:
    """Return the file of the pretrained network that a name means, or None if it means none.

    A file or run of that name comes first. Another folder does not, since it is no network:
    `photos` means the network beside a folder of photos. Raises UserError if the network's file is
    missing, or is not the one that burn was made with.
    """
    name = os.fspath(spec)
    if name not in PRETRAINED or is_file_or_run(expand(name)):
        return None
    file = _FOLDER / f"{name}.safetensors"
    digest = sha256_of(file) if file.is_file() else None
    if digest != PRETRAINED[name]:
        state = "missing" if digest is None else "damaged"
        raise UserError(f"{name}: the network's file in the package is {state}: install burn again")
    return file


def names_checkpoint(spec: str | os.PathLike[str]) -> bool:
    """Return whether a name stands for a checkpoint of burn's: a path, or a pretrained network.

    Raises UserError as `pretrained_file`.
    """
    return pretrained_file(spec) is not None or expand(os.fspath(spec)).exists()


def nearest_network(spec: str, *others: str) -> str | None:
    """Return the network or the path whose name is nearest to one that means nothing.

    Networks are the pretrained ones and `others`.
    """
    near = difflib.get_close_matches(spec, (*PRETRAINED, *others), n=1)
    path = nearest_path(expand(spec))
    return near[0] if near else path and str(path)
