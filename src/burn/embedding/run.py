"""The work of `burn embed`: every missing part of a collection, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from burn.core.errors import UserError, listed, printable
from burn.core.paths import expand
from burn.embedding.embedder import embed_part, open_network
from burn.embedding.files import OutputFolder, Written, require_folder
from burn.embedding.parts import Collection, Part, open_collection, require_apart
from burn.embedding.settings import EmbedConfig
from burn.evaluation.progress import progress_bar
from burn.runtime.cluster import connected
from burn.runtime.signals import interrupted, signals_raise


@dataclass(frozen=True)
class Embedded:
    """The numbers of the files of this process's share, and of what they hold.

    Attributes:
        files: Number of files that are complete.
        new: Number of these that were computed now.
        unreadable: Number of images that were left out and are named beside the files.
        classes: Number of scores of an image, 0 without a classifier.
    """

    files: int
    new: int
    images: int
    unreadable: int
    features: int
    classes: int


def embed(config: EmbedConfig, console: Console) -> Embedded:
    """Write the features of a collection, and go on where an earlier call was interrupted.

    A part that is there is left as it is. A part that cannot be computed, because its shard is
    damaged or too many of its images are, does not keep the others from being computed; after them
    it is a UserError. Interrupted is raised after Ctrl-C or SIGTERM.
    """
    config.check()
    number, count = config.shares
    assert config.out is not None
    out = expand(config.out)
    # The classifier of a packed file runs in NumPy, in threads that are there already.
    blas = threadpool_limits(1, "blas") if config.packed else contextlib.nullcontext()
    with connected(config.cluster), signals_raise(), blas:
        written_parts: dict[str, Written] = {}
        total = 0
        try:
            collection = open_collection(config.data, config.part_size)
            require_folder(out)
            require_apart(out, collection)
            network = open_network(config, console)
            for note in (*collection.notes, *network.notes):
                console.print(printable(note))
            folder = OutputFolder(config, network, collection)
            folder.require_no_others(collection)
            parts = collection.parts[number::count]
            total = len(parts)
            written_parts |= {part.name: there for part in parts if (there := folder.find(part))}
            found = len(written_parts)
            failed: list[str] = []
            with progress_bar(console) as bar:
                advance = _advancer(bar, collection, parts)
                for name in written_parts:
                    advance(name, 1.0)
                missing = [part for part in parts if part.name not in written_parts]
                if config.cluster is None:
                    done = (
                        (part.name, embed_part(network, folder, part, partial(advance, part.name)))
                        for part in missing
                    )
                else:
                    from burn.embedding.cluster import compute  # here, because it needs Ray

                    done = compute(config, [part.name for part in missing], advance)
                for name, written in done:
                    if isinstance(written, Written):
                        written_parts[name] = written
                    else:
                        failed.append(f"{name}.parquet: {written}")
                        console.print(printable(f"not computed: {failed[-1]}"), style="yellow")
        except KeyboardInterrupt as stopped:
            done = f"{len(written_parts):,} of {total:,} files are complete in {out}"
            raise interrupted(f"interrupted: {done}; the same command resumes", stopped) from None
    if failed:
        raise UserError(
            f"{len(failed):,} of {total:,} files could not be computed, the others are complete in "
            f"{out}; fix this, and give the same command: {listed(failed, 1, each=400)}"
        )
    return Embedded(
        len(written_parts),
        len(written_parts) - found,
        sum(written.images for written in written_parts.values()),
        sum(written.unreadable for written in written_parts.values()),
        network.num_features,
        len(network.classes),
    )


def _advancer(
    bar: Progress, collection: Collection, parts: Sequence[Part]
) -> Callable[[str, float], None]:
    """Begin a bar for all parts, and return a function that advances it by a share of one of them.

    It counts images, or shards, whose numbers of images are not known.
    """
    unit, sizes = "shards", {part.name: 1 for part in parts}
    if collection.num_images is not None:
        unit, sizes = "images", {part.name: len(part.open().positions) for part in parts}
    total = sum(sizes.values())
    task = bar.add_task(f"features of {collection.name}, {unit}", total=total)
    return lambda name, share: bar.advance(task, share * sizes[name])
