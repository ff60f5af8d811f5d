"""A progress bar that appears only when a task takes longer than two seconds, one at a time."""

import time
from typing import ClassVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

DELAY_SECONDS = 2.0


class SlowBar:
    """A bar on stderr, in terminals only, removed when the task is done.

    A task inside a task whose bar is shown has none of its own.
    """

    _shown: "ClassVar[SlowBar | None]" = None

    def __init__(self, title: str, total: int | None):
        self._title = title
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> "SlowBar":
        return self

    def advance(self, amount: int) -> None:
        """Add `amount` to what is done."""
        self._done += amount
        slow = time.monotonic() - self._started > DELAY_SECONDS
        if self._progress is None and SlowBar._shown is None and slow:
            SlowBar._shown = self
            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
            self._progress.add_task(self._title, total=self._total)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            SlowBar._shown = None
