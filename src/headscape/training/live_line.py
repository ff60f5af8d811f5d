"""Progress of a run on stderr: one live line in a terminal, else one line per validation loss.

cable  step 400/1200  loss 3.21  validation 3.30  12.1k tokens/s  1:06 left
"""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headscape.training.config import TrainConfig
from headscape.training.metrics import Line

Report = Callable[[Line, float], None]
"""Called after a step with its metrics and the share of the run that is done."""


class LiveLine:
    """Writes progress and messages to stderr, from one process only."""

    def __init__(self, config: TrainConfig, *, enabled: bool, report: Report | None = None) -> None:
        self._report = report
        self._config = config
        self._enabled = enabled
        self._console = Console(
            stderr=True, quiet=not enabled, highlight=False, soft_wrap=True, markup=False
        )
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._validation = ""

    def __enter__(self) -> "LiveLine":
        if self._enabled and self._console.is_terminal:
            columns = (TextColumn(self._config.model.encoding), BarColumn(bar_width=24))
            text = TextColumn("{task.description}")
            self._bar = Progress(*columns, text, console=self._console)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        return self

    def step(self, line: Line, progress: float, speed: float, left: float) -> None:
        """Show a step: fraction of the run done, tokens per second, seconds left."""
        if self._report is not None:
            self._report(line, progress)
        if "validation_loss" in line:
            self._validation = f"  validation {line['validation_loss']:.3f}"
        of = f"/{self._config.steps}" if self._config.steps else ""
        text = (
            f"step {line['step']:.0f}{of}  loss {line['loss']:.3f}{self._validation}  "
            f"{_short(speed)} tokens/s  {_clock(left)} left"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=progress, description=text)
        elif "validation_loss" in line:
            self._console.print(f"{self._config.model.encoding}  {text}")

    def message(self, text: str) -> None:
        """Show a sentence."""
        self._console.print(text)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _short(number: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
