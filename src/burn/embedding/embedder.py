"""Computes a part of a collection: images are prepared in threads, and go on in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from rich.console import Console

from burn.checkpoints.foreign.named import require_network
from burn.core.errors import UserError
from burn.core.paths import expand
from burn.data.checks import image_readers
from burn.data.decode import UnreadableImage
from burn.deploy.named import head_file
from burn.embedding.files import LostPart, OutputFolder, Rows, Written
from burn.embedding.network import Network, PackedNetwork, Unfit
from burn.embedding.parts import Images, Part
from burn.embedding.settings import EmbedConfig

_TASK_IMAGES = 16  # that a thread takes at a time: handing over costs about 50 µs

Item = TypeVar("Item")
Made = TypeVar("Made")


def open_network(config: EmbedConfig, console: Console) -> Network:
    """Open the network that `config.model` names. For a packed file torch is not imported."""
    if not config.packed:
        require_network(config.model)
        if config.head is not None:
            head_file(expand(config.head))
        from burn.embedding.trained import TrainedNetwork

        return TrainedNetwork(config)
    return PackedNetwork(config, console)


def embed_part(
    network: Network,
    folder: OutputFolder,
    part: Part,
    advance: Callable[[float], None] = lambda share: None,
) -> Written | str:
    """Write the file of a part, and return what it holds, or why it could not be computed.

    `advance` is told the share of the part's images in each batch that is done.
    """
    try:
        images = part.open()
    except UserError as error:
        return str(error)
    # A pool for each part, so that nothing of a part that failed is left running.
    pool = ThreadPoolExecutor(network.threads, "embed")
    try:
        return folder.write(part, images, _rows(network, images, pool, advance))
    except LostPart as error:
        return str(error)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _rows(
    network: Network, images: Images, pool: ThreadPoolExecutor, advance: Callable[[float], None]
) -> Iterator[Rows]:
    """Yield the outputs of a part's images in batches, which depend on nothing but the part."""
    source, positions = images.source, images.positions

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
    made = (item for task in _in_order(pool, prepare, tasks, 2 * network.threads) for item in task)
    for batch in _groups(made, network.batch_size):
        good = [(at, item) for at, item in batch if not isinstance(item, UnreadableImage)]
        bad = [(at, str(item)) for at, item in batch if isinstance(item, UnreadableImage)]
        outputs = network.finish([item for _, item in good]) if good else None
        yield Rows([at for at, _ in good], outputs, bad)
        advance(len(batch) / len(positions))


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
