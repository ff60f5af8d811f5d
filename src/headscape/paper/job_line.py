"""One live line for the whole job: figures done, time left, the stage of each process."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text

EVERY = 15.0
"""Seconds between lines where the output is not a terminal."""


class JobLine:
    """Progress of several figures on stderr."""

    def __init__(self, costs: Mapping[str, float]) -> None:
        """`costs` is the work of each figure, by its title, in any unit."""
        self._costs = dict(costs)
        self._share = dict.fromkeys(costs, 0.0)
        self._words: dict[str, str] = {}
        self._started = self._printed = time.monotonic()
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self._live: Live | None = None

    def __enter__(self) -> "JobLine":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def update(self, title: str, words: str, share: float) -> None:
        """Set the stage of a figure, in words, and the share of its work that is done."""
        self._words[title], self._share[title] = words, share
        if share >= 1:
            self._words.pop(title)
        if self._live is not None:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            self._console.print(self.line())

    def message(self, text: str) -> None:
        """Print a sentence above the live line."""
        self._console.print(text)

    def line(self) -> str:
        """The line as text."""
        done = sum(share >= 1 for share in self._share.values())
        # The time left comes first, because a narrow terminal cuts the end.
        figures = f"{done} of {len(self._share)} figures{self._left()}"
        return "  |  ".join([figures, *self._at_work()])

    def _at_work(self) -> list[str]:
        return [f"{title}: {words}" for title, words in self._words.items()]

    def _left(self) -> str:
        done = sum(self._costs[title] * share for title, share in self._share.items())
        spent = time.monotonic() - self._started
        total = sum(self._costs.values())
        # The first steps include starting processes and opening the text.
        if done < 0.03 * total:
            return ""
        left = spent * (total - done) / done
        minutes, seconds = divmod(int(left), 60)
        return f", {minutes}:{seconds:02d} left"

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
