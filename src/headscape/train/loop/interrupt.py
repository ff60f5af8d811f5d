"""Ctrl-C and SIGTERM as a wish: the step is finished, a checkpoint written, and the run ends.

A second Ctrl-C is taken at its word. Signals are the main thread's alone; elsewhere nothing is
changed.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Notes a signal between entering and leaving."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
