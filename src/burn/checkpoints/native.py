"""burn's checkpoints: a safetensors file with its description inside, and a JSON copy beside it.

The description (`meta`) holds: format (version of this layout), burn and torch (versions), recipe
(name and every field), backbone, views, precision, stage, num_stages, steps, images_per_step,
images_seen, max_steps, seed, teacher, data (name, number of images, fingerprint), monitor (the
stage's exit summary), and replanned_at (the steps after which the stage was extended) if there are
any. An imported one has source (format, name and SHA-256 of the file) instead of data and monitor.

A resume file serves only to go on with an interrupted stage, or to extend a finished one.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from burn.checkpoints.pretrained import in_full, pretrained_file, without_sizes
from burn.core.errors import UserError, printable
from burn.core.files import write_beside, write_text
from burn.core.inputs import parse_json, require_safetensors, status_of
from burn.core.paths import nearest_path
from burn.core.types import Checkpoint
from burn.runtime.hardware import memory_bytes

if TYPE_CHECKING:
    import torch

FORMAT = 1
CLASSIFIER_NAME = "classifier.safetensors"  # of `burn.checkpoints.classifier`


def save_checkpoint(
    path: Path, weights: Mapping[str, torch.Tensor], meta: dict[str, Any], *, new: bool = False
) -> None:
    """Write `path` (.safetensors) and the same meta beside it as .json, each atomically.

    Raises OSError if one of them cannot be written, and UserError if `new` is set and there is a
    file at `path`.
    """
    import torch
    from safetensors.torch import save_file

    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    text = json.dumps({"format": FORMAT, **versions, **meta}, indent=2)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_beside(
        path, lambda beside: save_file(contiguous, beside, metadata={"burn": text}), new=new
    )
    write_text(path.with_suffix(".json"), text + "\n")


def complete_checkpoint(path: Path, meta: Mapping[str, Any]) -> None:
    """Write the .json beside a checkpoint whose process was killed before it could."""
    if not path.with_suffix(".json").is_file():
        write_text(path.with_suffix(".json"), json.dumps(meta, indent=2) + "\n")


def find_checkpoint(path: Path) -> Path:
    """Return the file of a checkpoint, of a run's last stage, or of a named pretrained network.

    Raises UserError if there is no such file or folder, or the folder has no finished stage.
    """
    pretrained = pretrained_file(path)
    if pretrained is not None:
        return pretrained
    status = status_of(path)
    if status is None:
        near = nearest_path(path)
        hint = f": did you mean {near}?" if near else ""
        raise UserError(f"no checkpoint at {path}{hint}")
    if not stat.S_ISDIR(status.st_mode):
        return path
    stages = {
        int(match[1]): file
        for file in path.glob("stage*.safetensors")
        if (match := re.fullmatch(r"stage(\d+)\.safetensors", file.name))
    }
    if not stages:
        # Of pretraining or fine-tuning.
        begun = (path / "stage1").is_dir()
        hint = ": the command that began it goes on with --resume" if begun else ""
        raise UserError(f"{path} holds no finished stage (stage1.safetensors){hint}")
    return stages[max(stages)]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of burn's: a file, or the last stage in the folder of a run.

    Weights that are kept in 8 bits are returned in float32, see `pretrained`. Raises UserError if
    there is none, it is damaged, is something else, is of another version, or does not fit into
    memory.
    """
    file = find_checkpoint(path)
    text, weights = read_safetensors(file, "burn")
    meta = _meta(text, file)
    return Checkpoint(in_full(weights, str(file)), meta, str(file))


@dataclass(frozen=True)
class Description:
    """A checkpoint's description, as plain JSON values, and the shapes of its tensors."""

    meta: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    origin: str


def read_description(path: Path) -> Description:
    """Read a checkpoint's description and shapes, without its numbers and without torch.

    Raises UserError as `load_checkpoint`. The file is mapped, not read, so it must fit into the
    memory that this process may take.
    """
    file = find_checkpoint(path)
    with _errors_of(file, require_safetensors(file)), safe_open(file, framework="np") as opened:
        text = (opened.metadata() or {}).get("burn")
        slices = {name: opened.get_slice(name) for name in list(opened.keys())}
        names = without_sizes({name: part.get_dtype() for name, part in slices.items()})
        shapes = {name: tuple(slices[name].get_shape()) for name in names}
    return Description(_meta(text, file), shapes, str(file))


def is_whole(file: Path) -> bool:
    """Return whether a safetensors file is there, and is neither damaged nor cut off."""
    try:
        with _errors_of(file, require_safetensors(file)), safe_open(file, framework="np"):
            return True
    except UserError:
        return False


def _meta(text: str | None, file: Path) -> dict[str, Any]:
    """Parse the description in a file's metadata. Raises UserError as `load_checkpoint` does."""
    if text is None and file.suffix == ".bnn":
        raise UserError(
            f"{file} is a packed network, which burn embed and burn-engine run: give the run or "
            "checkpoint that it was packed from"
        )
    if text is None:
        raise UserError(f"{file} holds weights but is not a checkpoint of burn's (no metadata)")
    meta = parse_json(text, f"{file}: its description")
    if not isinstance(meta, dict) or "format" not in meta:
        raise UserError(f"{file}: its description cannot be read: it does not say its format")
    file_format = meta["format"]
    if file_format != FORMAT:
        raise UserError(
            f"{file} has checkpoint format {_short(file_format)}, this burn "
            f"({version('burn-ssl')}) reads {FORMAT}: use the version that wrote it "
            f"({_short(meta.get('burn', 'unknown'))})"
        )
    return meta


def images_per_step(meta: Mapping[str, Any]) -> int:
    """Return the number of images of an optimizer step in the training of a checkpoint.

    The checkpoints of burn 0.1.0 do not say it: there it is the recipe's batch, or the number of
    all images if that is smaller. Raises KeyError, TypeError or ValueError if the description lacks
    that too.
    """
    if "images_per_step" in meta:
        return int(meta["images_per_step"])
    return min(int(meta["recipe"]["batch_size"]), int(meta["data"]["images"]))


def images_seen(meta: Mapping[str, Any]) -> int:
    """Return the number of images that a checkpoint's stage has seen, each time that it saw them.

    Earlier checkpoints do not say it: there every step counts as whole. Raises as
    `images_per_step`.
    """
    if "images_seen" in meta:
        return int(meta["images_seen"])
    return int(meta["steps"]) * images_per_step(meta)


def labels_behind(meta: Mapping[str, Any]) -> str | None:
    """Return the data whose labels a network, its teachers or its start learned from, or None.

    In the description of its checkpoint, `labels` names the data whose labels it learned from
    itself; `teacher`, `init` and the teacher in `finetuned` are origins of other networks, whose
    `labels` are all that is behind these. The names are joined by "and", each once.
    """
    tuned = meta.get("finetuned")
    origins = [meta, meta.get("teacher"), meta.get("init"), _part(tuned, "teacher")]
    labels = [_part(origin, "labels") for origin in origins]
    # Checkpoints of earlier versions do not say `labels`.
    if labels[0] is None and _part(meta.get("recipe"), "method") == "supervised":
        labels[0] = _part(meta.get("data"), "name")
    names = dict.fromkeys(printable(name)[:80] for name in labels if isinstance(name, str))
    return " and ".join(names) or None


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def read_safetensors(file: Path, key: str) -> tuple[str | None, dict[str, torch.Tensor]]:
    """Read a safetensors file: the entry `key` of its metadata, if there is one, and its tensors.

    Raises UserError if it is damaged, is something else, or does not fit into memory.
    """
    size, memory = require_safetensors(file), memory_bytes()
    if memory is not None and size > memory:
        raise UserError(
            f"{file} has {size / 1e9:,.1f} GB; this machine has {memory / 1e9:,.1f} GB of memory"
        )
    with _errors_of(file, size), safe_open(file, framework="pt") as opened:
        text = (opened.metadata() or {}).get(key)
        return text, {name: opened.get_tensor(name) for name in list(opened.keys())}


@contextlib.contextmanager
def _errors_of(file: Path, size: int) -> Iterator[None]:
    """Turn the exceptions of safetensors' reader into UserError; `size` is the file's, in bytes."""
    try:
        yield
    except MemoryError as error:
        raise UserError(f"{file} does not fit into memory ({size / 1e9:,.1f} GB)") from error
    except (SafetensorError, OSError, RuntimeError) as error:
        text = f"{file} is not a readable safetensors file: {str(error)[:100]}"
        raise UserError(text) from error


def _short(value: Any) -> str:
    return printable(str(value)[:40])


def take(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the entries whose names begin with `prefix`, under their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }
