"""Text and progress bars for a terminal. Control characters are shown instead of sent.

A name in a file of others may contain escape sequences, which a terminal obeys: they set its title,
hide text or write over it. `say` is how every command prints.
"""

import re
import sys
import time
from typing import TYPE_CHECKING, ClassVar, Final

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return text with control characters but tab and line feed as their escapes, as in \x1b."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return text with every run of white space, line breaks included, as one space."""
    return " ".join(text.split())


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print to stdout, or stderr; a file or pipe behind stdout gets the text as it is."""
    stream = sys.stderr if err else sys.stdout
    # A closed stdout is None.
    seen = err or (stream is not None and stream.isatty())
    shown = printable(str(text)) if seen else str(text)
    typer.echo(shown, err=err, nl=nl)


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
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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
