"""Many images: which ones a command line names, read ahead of the network, and their progress."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TextIO, TypeVar

from burn_engine.folders import (
    SUFFIXES,
    UNREAD_SUFFIXES,
    Skipped,
    is_hidden,
    is_image,
    suffix_of,
    walk,
)

IMAGE_ERRORS = (OSError, ValueError, MemoryError)  # for which an image is left out
_AHEAD = 4  # images that each reader may be ahead of the network
_LONGEST_LINE = 2**16  # of a list of paths, in bytes
_BETWEEN = 0.2  # seconds between two updates of the progress line
_BETWEEN_LINES = 60.0  # where it is no terminal, and each update is a line more
_PATIENCE = 10.0  # seconds for a reader to finish its image, which may be on a network

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


class NoImages(ValueError):
    """A folder has no images."""


def paths_in(
    arguments: Sequence[str], say: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Yield the paths that a command line names, in order.

    Args:
        arguments: Files; folders, whose images (and .npy files) at any depth are taken in
            alphabetical order, as `folders.walk` has them, and links to nothing, which whoever
            reads them will name; and "-", for a list on standard input with one path a line.
        say: Called with a line about what is skipped of a folder, if there is anything to tell.

    Raises:
        NoImages: A folder has none.
        ValueError: Standard input is no list of paths.
        OSError: A folder cannot be read, or what is not named as an image does not exist.
    """
    for argument in arguments:
        if argument != "-" and suffix_of(argument) not in (*SUFFIXES, *UNREAD_SUFFIXES, ".npy"):
            _require(argument)
    for argument in arguments:
        if argument == "-":
            yield from listed(sys.stdin)
        elif Path(argument).is_dir():
            any_image, skipped = False, Skipped()
            dangling: list[str] = []
            for listing in walk(argument, dangling):
                names = skipped.add(listing, is_read)
                any_image |= bool(names or dangling)
                yield from (str(Path(listing.path, name)) for name in names)
                yield from dangling
                dangling.clear()
            text = skipped.text(others=False)
            if not any_image:
                raise NoImages(
                    f"{argument}: no images in this folder: none of its files ends in "
                    f"{', '.join(SUFFIXES)} or .npy" + (f"; skipped: {text}" if text else "")
                )
            if text:
                say(f"{argument}: skipped: {text}")
        else:
            yield argument


def _require(path: str) -> None:
    """Raise FileNotFoundError if a path, perhaps of a folder, leads to nothing."""
    with contextlib.suppress(NotADirectoryError, PermissionError, ValueError):
        if not os.path.islink(path):  # noqa: PTH114 - whoever reads a link says where it leads
            os.stat(path)  # noqa: PTH116 - of any name


def is_read(name: str) -> bool:
    """Return whether a file in a folder is read; others can be named themselves."""
    return is_image(name) or (suffix_of(name) == ".npy" and not is_hidden(name))


def _line(stream: TextIO) -> str:
    try:
        return stream.readline(_LONGEST_LINE)
    except OSError as error:
        raise ValueError(f"-: standard input cannot be read: {error.strerror}") from error


def listed(stream: TextIO | None) -> Iterator[str]:
    """Yield the paths of a list with one in each line, whatever bytes they have.

    Raises:
        ValueError: The stream is closed or no list of paths.
    """
    if stream is None:
        raise ValueError("-: standard input is closed")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")  # as Python has the names of files
    while line := _line(stream):
        if len(line) == _LONGEST_LINE:
            raise ValueError("-: standard input has a line that is too long to be a path")
        if "\0" in line:
            raise ValueError("-: standard input is no list of paths, one in each line")
        line = line.removesuffix("\n")
        if line.endswith("\r") and not os.path.lexists(line):  # a list with the ends of Windows
            line = line[:-1]
        if line:
            yield line


def read_ahead(
    items: Iterable[_Item], read: Callable[[_Item], _Read], readers: int
) -> Generator[tuple[_Item, _Read | Exception], None, None]:
    """Read images in threads, while the caller works on those before them.

    Closing the generator waits until the threads have finished the images that they are reading.

    Args:
        items: What is read, such as paths; a thread iterates over them.
        read: Returns the input of an item, such as pixels.
        readers: Number of threads that read.

    Yields:
        Each item in order, with its input, or with the error that reading it raised.

    Raises:
        Exception: What iterating over `items` raised, after the images before it.
    """
    # A signal may raise in the caller's thread between taking a lock and what releases it. That of
    # a SimpleQueue cannot be left locked so; those of Queue, Event and Future can, and then
    # whoever ends the threads would wait for ever.
    waiting: SimpleQueue[tuple[_Item, SimpleQueue[_Read | Exception]] | Exception | None]
    waiting = SimpleQueue()
    jobs: SimpleQueue[tuple[_Item, SimpleQueue[_Read | Exception]] | None] = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()  # one for each image that may be read ahead
    for _ in range(_AHEAD * readers):
        room.put(None)
    left = False

    def submit() -> None:
        end = None
        try:
            for each in items:
                room.get()
                if left:
                    return
                job = each, SimpleQueue[_Read | Exception]()
                jobs.put(job)
                waiting.put(job)
        except Exception as error:
            end = error
        waiting.put(end)

    def work_off() -> None:
        while (job := jobs.get()) is not None and not left:
            each, answer = job
            try:
                answer.put(read(each))
            except Exception as error:
                answer.put(error)

    threads = [Thread(target=work_off, daemon=True) for _ in range(readers)]

    def end() -> None:
        nonlocal left
        left = True
        room.put(None)
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            if thread.ident is not None:
                thread.join(_PATIENCE)

    # Python's end would abort the process if a reader were in the compiled core.
    atexit.register(end)
    try:
        # A daemon, because nothing ends the wait for a line of standard input.
        _started([Thread(target=submit, daemon=True)])
        _started(threads)
        while (item := waiting.get()) is not None:
            if isinstance(item, Exception):
                raise item
            each, answer = item
            result = answer.get()
            room.put(None)
            if isinstance(result, Exception) and not isinstance(result, IMAGE_ERRORS):
                raise result
            yield each, result
    finally:
        end()
        atexit.unregister(end)


def _started(threads: list[Thread]) -> None:
    """Start threads, as many as the system allows; raise ValueError if that is none."""
    for at, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            if at == 0:
                raise ValueError(
                    "the system has neither memory nor a free process for another thread"
                ) from None
            return


class Progress:
    """One line on a terminal that says how many images are done; elsewhere a line every minute.

    Args:
        stream: Where the line is shown.
        total: Number of images; None if it is not known.
        doing: What is done with them, before the numbers.
        things: What is counted.
    """

    def __init__(
        self, stream: TextIO, total: int | None, doing: str = "", things: str = "images"
    ) -> None:
        self._stream, self._total = stream, total
        self._doing, self._things = doing, things
        self._on_terminal = stream.isatty()
        self._shown = total != 1
        self._between = _BETWEEN if self._on_terminal else _BETWEEN_LINES
        self._start = self._last = time.perf_counter()
        self._width = 0

    def show(self, done: int) -> None:
        """Show that `done` images are done, if enough time has passed since the last time."""
        now = time.perf_counter()
        if not self._shown or now - self._last < self._between:
            return
        self._last = now
        rate = done / (now - self._start)
        line = f"{done:,} {self._things}"
        if self._total is not None:
            line = f"{done:,} of {self._total:,} {self._things}"
        line += f" · {rate:,.{0 if rate >= 10 else 1}f} {self._things}/s"
        if self._total is not None and done:
            line += f" · {(self._total - done) / rate:,.0f} s left"
        line = self._doing + line
        if not self._on_terminal:
            with contextlib.suppress(OSError):  # such as a full disk: the work goes on
                print(line, file=self._stream, flush=True)
            return
        self.clear()
        self._width = len(line)
        print(line, end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the line, so that other output can follow."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=self._stream, flush=True)
            self._width = 0
