"""Heads processed by Python threads, each with one thread of torch.

    for_each(work, pieces, device)      as many pieces at once as torch has threads

The tiles of the torch path are small. If all threads of torch share each operation, they wait for
each other after each of them, and the slowest decides; a thread that has its own heads never waits.
Torch releases the interpreter lock inside an operation.

`torch.set_num_threads` acts on the thread that calls it and on threads that are started later, so
the caller sets its own number again as soon as the workers have set theirs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Piece = TypeVar("Piece")


def for_each(work: Callable[[Piece], None], pieces: Sequence[Piece], device: torch.device) -> None:
    """Call `work` with every piece, without recording for autograd; pieces must be independent."""
    own = torch.get_num_threads()
    workers = min(own, len(pieces))
    if workers == 1 or device.type != "cpu" or torch.compiler.is_compiling():
        for piece in pieces:
            work(piece)
        return
    left, started = iter(pieces), Barrier(workers + 1)
    inference = torch.is_inference_mode_enabled()  # of the calling thread only

    def some() -> None:
        torch.get_num_threads()  # a new thread takes over the common number at its first question
        torch.set_num_threads(1)
        started.wait()
        with torch.inference_mode(inference), torch.no_grad():
            for piece in left:
                work(piece)

    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(some) for _ in range(workers)]
        started.wait()
        torch.set_num_threads(own)
        for job in jobs:
            job.result()
