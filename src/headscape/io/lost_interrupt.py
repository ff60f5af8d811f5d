"""Ctrl-C where Python would lose it.

Python calls a signal's handler between two instructions of the main thread. If these belong to
`__del__` or to the callback of a weak reference, KeyboardInterrupt cannot leave them: Python prints
"Exception ignored" with a traceback, and the program goes on.
"""

import _thread
import signal
import sys
from threading import Timer

DELAY = 0.01
"""Seconds after which a lost signal arrives again, so that the callback is over."""


def repeat_lost_interrupts(number: signal.Signals) -> None:
    """Handle `number` again whenever its KeyboardInterrupt was lost, until the process ends."""
    show = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            show(lost)
            return
        again = Timer(DELAY, _thread.interrupt_main, [number])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
