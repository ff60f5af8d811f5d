"""Child processes that end with their parent, however it ends, and signals on the way."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread
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
