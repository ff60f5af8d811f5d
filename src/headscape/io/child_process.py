"""Child processes that end with their parent, however it ends, and signals that are not lost."""

import _thread
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread, Timer
from typing import Any


def end_with_parent() -> None:
    """End this process when its parent is gone; a killed parent cannot tell its children."""

    def wait() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


@contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal differently for a while; does nothing outside the main thread."""
    try:
        old = signal.signal(number, handler)
    except ValueError:  # Python delivers signals to the main thread only
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, old)


def no_semaphores(error: OSError) -> str:
    """Return why a queue between processes cannot be made; Python's own error names no path."""
    # On Linux semaphores are files in /dev/shm.
    reason = error.strerror or error
    return f"worker processes need semaphores in /dev/shm, which cannot be written: {reason}"


def usable_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


DELAY = 0.01
"""Seconds after which a lost signal arrives again, so that the callback is over."""


def repeat_lost_interrupts(number: signal.Signals) -> None:
    """Handle `number` again whenever its KeyboardInterrupt was lost, until the process ends.

    Python calls a signal's handler between two instructions of the main thread. If these belong to
    `__del__` or to the callback of a weak reference, KeyboardInterrupt cannot leave them: Python
    prints "Exception ignored" with a traceback, and the program goes on.
    """
    show = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            show(lost)
            return
        again = Timer(DELAY, _thread.interrupt_main, [number])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
