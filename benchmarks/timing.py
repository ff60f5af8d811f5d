"""Contenders taking turns in one process, and the memory each of them needs.

A busy machine slows all contenders of a round alike, so a claim is the median over rounds of that
round's ratio to the floor, never a quotient of two medians. Every round has an order of its own, so
that none always finds the caches as the same other one left them. Memory is resident memory at its
highest above its level before the call, with what the allocator (glibc's) held back returned first.
"""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

Step = Callable[[], object]


def times(
    steps: dict[str, Step], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every step in every round, after one round to warm up."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in Random(turn).sample(list(steps.items()), len(steps)):
            start = clock()
            step()
            if turn:
                found[name].append(clock() - start)
    return found


def ratios(seconds: dict[str, list[float]], floor: str) -> dict[str, float]:
    """The median over rounds of each contender's time over the floor's."""
    return {
        name: statistics.median(a / b for a, b in zip(own, seconds[floor], strict=True))
        for name, own in seconds.items()
    }


def peak_megabytes(step: Step) -> float:
    """How far resident memory rises during the step."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    # 5 resets the kernel's record of the largest resident size.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
