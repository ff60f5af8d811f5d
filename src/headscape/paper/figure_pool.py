"""Several figures at once, in processes of one thread each.

Small models train faster side by side, one thread each, than one after the other with all
threads. A process trains, captures and draws one figure after the other; the caller writes the page
as figures arrive.

Children ignore Ctrl-C, which a terminal sends to every process, outside of a training. The caller
ends them with SIGTERM instead: a training then writes a checkpoint and ends, everything else ends
at once. A second Ctrl-C kills them. If the caller is killed, they end too.
"""

import os
import queue
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from headscape.encodings.registry import load_plugin, loaded_plugins
from headscape.errors import InputError
from headscape.io.child_process import (
    end_with_parent,
    handling,
    no_semaphores,
    repeat_lost_interrupts,
)
from headscape.paper.figure_job import Job, Progress, make
from headscape.paper.paper_figures import PaperFigure
from headscape.plots.gallery import Entry

Update = Callable[[str, str, float], None]
"""Called with a figure's title, its stage in words, and the share of its work that is done."""


def make_all(
    job: Job, figures: Sequence[PaperFigure], processes: int, update: Update
) -> Generator[Entry, None, None]:
    """Make figures in parallel and yield their entries as they are done."""
    if processes == 1 or len(figures) == 1:
        for figure in figures:
            yield make(job, figure, _progress(figure, update))
        return
    context = get_context("spawn")
    try:
        tasks, results = context.Queue(), context.Queue()
    except OSError as error:
        raise InputError(f"{no_semaphores(error)}: use one process.") from error
    count = min(processes, len(figures))
    for task in [*figures, *[None] * count]:
        tasks.put(task)
    arguments = (job, loaded_plugins(), tasks, results)
    workers: list[BaseProcess] = [
        context.Process(target=_work, args=arguments) for _ in range(count)
    ]
    try:
        with _one_thread_each(), handling(signal.SIGINT, signal.SIG_IGN):
            for worker in workers:
                worker.start()
        yield from _receive(workers, results, len(figures), update)
        for worker in workers:
            worker.join()
    finally:
        _end(workers)


def by_work(figures: Sequence[PaperFigure]) -> list[PaperFigure]:
    """A quick figure first, so that there is soon something to see; then the slowest first."""
    ordered = sorted(figures, key=lambda figure: figure.cost)
    return [*ordered[:1], *reversed(ordered[1:])]


def _receive(
    workers: Sequence[BaseProcess], results: "Queue[Any]", count: int, update: Update
) -> Iterator[Entry]:
    while count:
        try:
            result = results.get(timeout=0.2)
        except queue.Empty:
            _check_alive(workers)
            continue
        if isinstance(result, Exception):
            raise result
        if isinstance(result, Entry):
            count -= 1
            yield result
        elif isinstance(result, str):
            warnings.warn(result, stacklevel=2)
        else:
            update(*result)


def _check_alive(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.exitcode:
            raise InputError(
                f"a process that made a figure ended with exit code {worker.exitcode}, which may "
                f"mean that memory ran out: repeat it to continue, with one process."
            )


def _end(workers: Sequence[BaseProcess]) -> None:
    """End every process that still runs; a training writes its checkpoint first."""
    started = [worker for worker in workers if worker.pid is not None]
    try:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join()
    finally:
        for worker in started:
            worker.kill()


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


def _work(
    job: Job, plugins: Sequence[Path], tasks: "Queue[PaperFigure | None]", results: "Queue[Any]"
) -> None:
    """Make figures until there are none left, in a process of its own."""
    import torch

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    repeat_lost_interrupts(signal.SIGTERM)
    warnings.showwarning = lambda message, *_, **__: results.put(str(message))
    end_with_parent()
    torch.set_num_threads(1)

    def update(title: str, words: str, share: float) -> None:
        results.put((title, words, share))

    try:
        for plugin in plugins:
            load_plugin(plugin)
        while (figure := tasks.get()) is not None:
            results.put(make(job, figure, _progress(figure, update)))
    except KeyboardInterrupt:
        # The caller no longer reads, so a full pipe must not keep this process.
        results.cancel_join_thread()
    except InputError as error:
        results.put(InputError(str(error)))
    except Exception:  # noqa: BLE001 - shown by the caller, with its traceback
        results.put(RuntimeError(traceback.format_exc()))
    finally:
        # This process ends by itself now.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _progress(figure: PaperFigure, update: Update) -> Progress:
    return lambda words, share: update(figure.title, words, share)
