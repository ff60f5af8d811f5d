"""Several figures at once, in processes of one thread each.

Small models train faster side by side, one thread each, than one after the other with all
threads. A process trains, captures and draws its figure; the page is written by the caller as
figures arrive. Ctrl-C reaches every process: trainings write a checkpoint and end.
"""

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.queues import Queue

from headscape.figures.gallery import Entry
from headscape.io.child_process import end_with_parent
from headscape.paper.figure_job import Job, Progress, make
from headscape.paper.paper_figures import PaperFigure

Event = tuple[str, str, float]
"""A figure's title, what it is at, and the share of its work that is done."""
_events: list["Queue[Event]"] = []


def make_all(
    job: Job,
    figures: Sequence[PaperFigure],
    processes: int,
    update: Callable[[str, str, float], None],
) -> Iterator[Entry]:
    """Make figures in parallel and yield their entries as they are done."""
    if processes == 1 or len(figures) == 1:
        for figure in figures:
            yield make(job, figure, _progress(figure, update))
        return
    context = get_context("spawn")
    events: Queue[Event] = context.Queue()
    with (
        _one_thread_each(),
        ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(events,)) as pool,
    ):
        waiting: set[Future[Entry]] = {pool.submit(_make, job, figure) for figure in figures}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for event in _drain(events):
                    update(*event)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def by_work(figures: Sequence[PaperFigure]) -> list[PaperFigure]:
    """A quick figure first, so that there is soon something to see; then the slowest first."""
    ordered = sorted(figures, key=lambda figure: figure.cost)
    return [*ordered[:1], *reversed(ordered[1:])]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Start child processes with one thread each."""
    old = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if old is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = old


def _begin(events: "Queue[Event]") -> None:
    import torch

    torch.set_num_threads(1)
    _events.append(events)
    end_with_parent()


def _make(job: Job, figure: PaperFigure) -> Entry:
    def put(title: str, words: str, share: float) -> None:
        _events[0].put((title, words, share))

    return make(job, figure, _progress(figure, put))


def _progress(figure: PaperFigure, update: Callable[[str, str, float], None]) -> Progress:
    return lambda words, share: update(figure.title, words, share)


def _drain(events: "Queue[Event]") -> Iterator[Event]:
    while True:
        try:
            yield events.get_nowait()
        except queue.Empty:
            return
