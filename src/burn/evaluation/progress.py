"""The progress bar of every protocol."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from burn.runtime.signals import raise_unseen


class _Interruptible(Progress):
    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        raise_unseen()


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with counts and the time left; it only shows on a terminal.

    Within `signals_raise`, an advance raises a signal's KeyboardInterrupt that was swallowed.
    """
    return _Interruptible(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
