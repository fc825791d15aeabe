"""Settings of `burn embed`, in a module of its own that does not import torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from burn.checkpoints.pretrained import pretrained_file
from burn.core.errors import UserError, shortened
from burn.core.paths import expand
from burn.runtime.bounds import require_processes, require_share, require_within
from burn.runtime.cluster import require_address
from burn.runtime.compute import Compute, Device
from burn_engine.pretrained import find


@dataclass(frozen=True)
class EmbedConfig:
    """What to embed, by which network, and where.

    Attributes:
        model: run folder or checkpoint of burn's, lite0, ARCHITECTURE:FILE, or a packed file
            (.bnn), which needs no PyTorch. A pretrained network's name, such as photos, stands for
            its packed file, and with `head`, `batch_size`, `device` or `compute` for its
            checkpoint.
        data: images, as for `burn pretrain`; of stream:PATH, each shard gives one file.
        out: folder for the files.
        head: linear classifier for the scores of a checkpoint, as for `burn pack` (default: the
            checkpoint's own, if it has one).
        dtype: number format of the features and scores in the files.
        part_size: number of images of a file; not for stream:PATH.
        share: which files this process computes, such as 3/100 for the third of 100 processes, on
            any machines, that share the work and the folder.
        threads: threads that decode images and, for a packed file, run the network (default: all
            cores for a packed file, otherwise half of them).
        batch_size: number of images in a batch; not for a packed file.
        device: where the network runs; auto is the GPU, if there is one. A packed file runs on the
            processor.
        compute: number format of the network's arithmetic; auto is bfloat16 if the hardware
            is faster in it. A packed file has its own.
        max_bad: largest share of unreadable images of a file; they are left out and named. A file
            with more is not written.
        cluster: address of a Ray cluster on whose nodes the files are computed, HOST:PORT or auto;
            all nodes need the same folders. Each of its tasks has `threads` cores (default: 1, or
            those of a GPU).
    """

    model: str
    data: str = ""
    out: str | None = None
    head: str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    part_size: int = 10_000
    share: str | None = None
    threads: int | None = None
    batch_size: int = 256
    device: Device = "auto"
    compute: Compute = "auto"
    max_bad: str = "10%"
    cluster: str | None = None

    @property
    def packed(self) -> bool:
        return self.packed_file is not None

    @property
    def packed_file(self) -> Path | None:
        """The packed file that the model is, or None for a checkpoint or a teacher."""
        if self.model.endswith(".bnn"):
            return expand(self.model)
        of_checkpoints = (self.head, self.batch_size, self.device, self.compute)
        if of_checkpoints != (None, EmbedConfig.batch_size, "auto", "auto"):
            return None
        if pretrained_file(self.model) is None:
            return None
        named = find(self.model)
        assert named is not None, self.model  # both packages have the same networks
        return named.path

    @property
    def shares(self) -> tuple[int, int]:
        """The number of this process among those that share the work, from 0, and their number."""
        if self.share is None:
            return 0, 1
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.share, re.ASCII)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"--share {shortened(self.share)} is not one of several shares: give 3/100 for the "
                "third of 100"
            )
        return int(match[1]) - 1, int(match[2])

    def check(self) -> None:
        """Raise UserError if a value is missing, out of range, or none of a packed file's."""
        if not self.data:
            raise UserError("give --data: the images to embed")
        if not self.out:
            raise UserError("give --out, a folder for the features")
        require_within(1, 10**9, part_size=self.part_size)
        require_within(1, 2**20, batch_size=self.batch_size)
        require_processes(1, threads=self.threads)
        require_share(self.max_bad)
        _ = self.shares  # which checks it
        if self.cluster is not None:
            require_address(self.cluster)
        if not self.packed:
            return
        if self.batch_size != EmbedConfig.batch_size:
            raise UserError(
                f"--batch-size: {self.model} is packed and takes one image at a time; leave "
                "--batch-size out"
            )
        if self.head is not None:
            raise UserError(f"--head: {self.model} is packed, with a classifier or without one")
        if self.device == "cuda" or self.compute != "auto":
            option = "--device" if self.device == "cuda" else "--compute"
            raise UserError(
                f"{option}: {self.model} is packed and runs on the processor; leave {option} out"
            )
