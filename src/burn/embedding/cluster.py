"""The files of `burn embed --cluster`, computed on the nodes of a Ray cluster by Ray Data.

A file is written by the node that computes it, beside its place and then renamed. So a file is
there once and whole, however often a node is lost and its work is done again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rich.console import Console
from threadpoolctl import threadpool_limits

from burn.core.errors import UserError
from burn.core.paths import expand
from burn.embedding.files import OutputFolder, Written
from burn.embedding.settings import EmbedConfig
from burn.runtime.cluster import Origin, share_of


def compute(
    config: EmbedConfig, parts: Sequence[str], advance: Callable[[str, float], None]
) -> Iterator[tuple[str, Written | str]]:
    """Compute parts, by name, on the cluster that was joined, in the order in which they end.

    Yields the name of each part with what was written, or with the reason why it could not be, and
    tells `advance` that all of it is done. A cluster that lacks what a task needs, and a node that
    cannot do the work, are a UserError.
    """
    if not parts:
        return
    try:
        import ray.data
    except ImportError:
        raise UserError("--cluster needs Ray Data: pip install 'burn-ssl[ray]'") from None
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    device = "cpu" if config.packed else config.device
    with_gpu = device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes)
    cores = config.threads or (None if with_gpu else 1)
    share = share_of(nodes, len(parts), device, cores, "--threads")
    slots = sum(
        int(min(n.get("CPU", 0) // share.cores, n.get("GPU", 0) if share.gpus else 2**20))
        for n in nodes
    )
    context = ray.data.DataContext.get_current()  # burn has a bar of its own
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    assert config.out is not None
    given = replace(config, cluster=None, threads=share.cores)
    rows = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
    with Origin.marked(expand(config.out)) as origin:
        results = rows.map(
            cast(Any, NodeEmbedder),
            fn_constructor_args=(given, origin),
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(len(parts), slots)),
            num_cpus=share.cores,
            num_gpus=share.gpus,
        )
        for row in results.iter_rows():
            if row["fault"]:
                raise UserError(row["fault"])
            advance(row["part"], 1.0)
            written = Written(row["images"], row["unreadable"])
            yield row["part"], row["lost"] or written


class NodeEmbedder:
    """Computes parts on a node. Ray Data makes one for each of its actors.

    It raises nothing that a user could mend: Ray would wrap that in two tracebacks.
    """

    def __init__(self, config: EmbedConfig, origin: Origin) -> None:
        self._node, self._fault = socket.gethostname(), ""
        self._folder, self._packed = origin.folder, config.packed
        try:
            origin.check()
            with contextlib.chdir(self._folder):
                from burn.embedding.embedder import embed_part, open_network
                from burn.embedding.parts import open_collection

                collection = open_collection(config.data, config.part_size)
                self._parts = {part.name: part for part in collection.parts}
                network = open_network(config, Console(quiet=True))
                out = OutputFolder(config, network, collection)
                self._embed = partial(embed_part, network, out)
        except (UserError, OSError) as error:
            self._fault = f"node {self._node}: {error}"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        done = {"part": row["part"], "images": 0, "unreadable": 0, "lost": "", "fault": self._fault}
        if self._fault:
            return done
        if (part := self._parts.get(row["part"])) is None:
            return {**done, "lost": "this node does not find it among the images"}
        blas = threadpool_limits(1, "blas") if self._packed else contextlib.nullcontext()
        try:
            with contextlib.chdir(self._folder), blas:
                written = self._embed(part)
        except (UserError, OSError) as error:
            return {**done, "fault": f"node {self._node}: {error}"}
        if isinstance(written, str):
            return {**done, "lost": written}
        return {**done, "images": written.images, "unreadable": written.unreadable}
