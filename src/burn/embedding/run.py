"""The work of `burn embed`: every missing part of a collection, one after the other."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from rich.console import Console
from threadpoolctl import threadpool_limits

from burn.core.errors import UserError, listed, printable
from burn.core.paths import expand
from burn.data.decode import UnreadableImage
from burn.data.readable import image_readers
from burn.embedding.files import FORMAT, LostPart, OutputFolder, Rows, Written, require_folder
from burn.embedding.network import Network, Unfit, open_network
from burn.embedding.parts import Collection, Images, Part, open_collection, require_apart
from burn.embedding.settings import EmbedConfig
from burn.evaluation.progress import progress_bar
from burn.runtime.bounds import require_share
from burn.runtime.cluster import joined
from burn.runtime.signals import interrupted, signals_raise

_TASK_IMAGES = 16  # that a thread takes at a time: handing over costs about 50 µs

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Embedded:
    """Summary of the files of this process's share.

    Attributes:
        files: Number of files that are complete.
        new: Number of these that were computed now.
        images: Number of images in them.
        unreadable: Number of images that were left out and are named beside the files.
        features: Number of features of an image.
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
    damaged or too many of its images are, does not keep the others from being computed.

    Args:
        config: The settings.
        console: Where progress and remarks are shown.

    Raises:
        UserError: A setting, the network or the images cannot be used, or the folder holds
            something else; or, after all other parts, some could not be computed.
        OSError: A file cannot be written.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    config.check()
    number, count = config.shares
    assert config.out is not None
    out = expand(config.out)
    # The classifier of a packed file runs in NumPy, in threads that are there already.
    blas = threadpool_limits(1, "blas") if config.packed else contextlib.nullcontext()
    with joined(config.cluster), signals_raise(), blas:
        complete = total = 0
        try:
            collection = open_collection(config.data, config.part_size)
            require_folder(out)
            require_apart(out, collection)
            network = open_network(config, console)
            for note in (*collection.notes, *network.notes):
                console.print(printable(note))
            folder = _folder(config, network, collection)
            folder.require_no_others(collection)
            parts = collection.parts[number::count]
            total = len(parts)
            found = {part.name: there for part in parts if (there := folder.find(part))}
            complete, new = len(found), 0
            failed: list[str] = []
            with _Progress(console, collection, parts) as progress:
                for part in parts:
                    if part.name in found:
                        progress.advance(part, 1.0)
                missing = [part for part in parts if part.name not in found]
                if config.cluster is None:
                    done = _one_by_one(network, folder, missing, progress)
                else:
                    done = _on_cluster(config, missing, progress)
                for part, written in done:
                    if isinstance(written, str):
                        failed.append(f"{folder.file(part).name}: {written}")
                        console.print(printable(f"not computed: {failed[-1]}"), style="yellow")
                        continue
                    found[part.name] = written
                    complete, new = complete + 1, new + 1
        except KeyboardInterrupt as stopped:
            done = f"{complete:,} of {total:,} files are complete in {out}"
            raise interrupted(f"interrupted: {done}; the same command resumes", stopped) from None
    if failed:
        raise UserError(
            f"{len(failed):,} of {total:,} files could not be computed, the others are complete in "
            f"{out}; fix this, and give the same command: {listed(failed, 1, each=400)}"
        )
    return Embedded(
        complete,
        new,
        sum(written.images for written in found.values()),
        sum(written.unreadable for written in found.values()),
        network.num_features,
        len(network.classes),
    )


def _folder(config: EmbedConfig, network: Network, collection: Collection) -> OutputFolder:
    assert config.out is not None
    settings: dict[str, Any] = {"dtype": config.dtype, **network.settings}
    if collection.num_images is not None:
        settings["part_size"] = config.part_size
    manifest = {
        "format": FORMAT,
        "model": {
            "name": printable(network.name),
            "fingerprint": network.fingerprint,
            "features": network.num_features,
            "classes": list(network.classes),
        },
        "data": {
            "name": printable(collection.name),
            "fingerprint": collection.fingerprint,
            "images": collection.num_images,
        },
        "settings": settings,
    }
    return OutputFolder(expand(config.out), manifest, config.dtype, require_share(config.max_bad))


def _one_by_one(
    network: Network, folder: OutputFolder, parts: Sequence[Part], progress: _Progress
) -> Iterator[tuple[Part, Written | str]]:
    """Compute parts here, and yield what was written of each, or why it could not be."""
    for part in parts:
        along = partial(progress.along, part)
        try:
            yield part, _embed_part(network, folder, part, along)
        except LostPart as error:
            yield part, str(error)


def _on_cluster(
    config: EmbedConfig, parts: Sequence[Part], progress: _Progress
) -> Iterator[tuple[Part, Written | str]]:
    """Compute parts on the cluster that was joined; the order is that in which they end."""
    from burn.embedding.cluster import compute

    named = {part.name: part for part in parts}
    for name, written in compute(config, list(named)):
        progress.advance(named[name], 1.0)
        yield named[name], written


class PartEmbedder:
    """Computes parts of a collection in another process, whose signals are its own.

    Args:
        config: The settings, without `cluster`.

    Raises:
        UserError: The network or the images cannot be used.
        OSError: The folder cannot be written.
    """

    def __init__(self, config: EmbedConfig) -> None:
        console = Console(quiet=True)
        collection = open_collection(config.data, config.part_size)
        self._parts = {part.name: part for part in collection.parts}
        self._network = open_network(config, console)
        self._folder = _folder(config, self._network, collection)
        self._packed = config.packed

    def __call__(self, name: str) -> Written | str:
        """Write the file of a part, and return what it holds, or why it could not be computed.

        Raises:
            UserError: A number is not finite, or the network cannot be run.
            OSError: The file cannot be written.
        """
        if name not in self._parts:
            return "this node does not find it among the images"
        with threadpool_limits(1, "blas") if self._packed else contextlib.nullcontext():
            try:
                return _embed_part(self._network, self._folder, self._parts[name], _alone)
            except LostPart as error:
                return str(error)


def _embed_part(
    network: Network,
    folder: OutputFolder,
    part: Part,
    along: Callable[[Images, Iterator[Rows]], Iterator[Rows]],
) -> Written:
    """Write the file of a part; `along` is passed the batches and yields them again."""
    try:
        images = part.open()
    except UserError as error:
        raise LostPart(str(error)) from error
    # A pool for each part, so that nothing of a part that failed is left running.
    pool = ThreadPoolExecutor(network.threads, "embed")
    try:
        rows = _rows(network, images, pool)
        return folder.write(part, images, along(images, rows))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _alone(_: Images, rows: Iterator[Rows]) -> Iterator[Rows]:
    return rows


def _rows(network: Network, images: Images, pool: ThreadPoolExecutor) -> Iterator[Rows]:
    """Yield the outputs of a part's images in batches, which depend on nothing but the part."""
    source, positions = images.source, images.positions
    if source is None:
        return

    def prepare(task: list[tuple[int, Callable[[], Any]]]) -> list[tuple[int, Any]]:
        made: list[tuple[int, Any]] = []
        for position, read in task:
            try:
                made.append((position, network.prepare(read())))
            except UnreadableImage as error:
                made.append((position, error))
            except Unfit as error:
                made.append((position, UnreadableImage(f"{source.describe(position)}: {error}")))
        return made

    readers = image_readers(source, positions, tensors=network.tensors)
    tasks = _groups(zip(positions, readers, strict=True), _TASK_IMAGES)
    made = (one for task in _in_order(pool, prepare, tasks, 2 * network.threads) for one in task)
    for batch in _groups(made, network.batch_size):
        good = [(at, one) for at, one in batch if not isinstance(one, UnreadableImage)]
        bad = [(at, str(one)) for at, one in batch if isinstance(one, UnreadableImage)]
        outputs = network.finish([one for _, one in good]) if good else None
        yield Rows([at for at, _ in good], outputs, bad)


def _groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Item], Made], items: Iterable[Item], ahead: int
) -> Iterator[Made]:
    """Yield what `work` makes of each item, in order; at most `ahead` items are begun before."""
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _Progress:
    """One bar for all parts, in images, or in shards, whose numbers of images are not known."""

    def __init__(self, console: Console, collection: Collection, parts: Sequence[Part]) -> None:
        self._bar = progress_bar(console)
        self._sizes = {part.name: 1 for part in parts}
        unit = "shards"
        if collection.num_images is not None:
            unit = "images"
            self._sizes = {part.name: len(part.open().positions) for part in parts}
        total = sum(self._sizes.values())
        self._task = self._bar.add_task(f"features of {collection.name}, {unit}", total=total)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, part: Part, share: float) -> None:
        """Show that a share of a part, in [0, 1], is done in addition."""
        self._bar.advance(self._task, share * self._sizes[part.name])

    def along(self, part: Part, images: Images, batches: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the batches of a part, and show each as done."""
        for rows in batches:
            yield rows
            self.advance(part, (len(rows.positions) + len(rows.unreadable)) / len(images.positions))
