"""Child processes that end with their parent, however it ends."""

import os
from multiprocessing import parent_process
from threading import Thread


def end_with_parent() -> None:
    """End this process when its parent is gone; a killed parent cannot tell its children."""

    def wait() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def usable_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
