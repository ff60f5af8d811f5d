"""The main job: train what is missing, capture, measure, draw, and put it all on one page.

ALiBi's bias needs no training, so it is drawn first from an untrained model and again, with the
measures of attention, from the trained one.

Small models train faster side by side, one thread each, than one after the other with all
threads: a process trains, captures and draws one figure after the other, and the caller writes the
page as figures arrive. Children ignore Ctrl-C, which a terminal sends to every process, outside of
a training. The caller ends them with SIGTERM instead: a training then writes a checkpoint and ends,
everything else ends at once. A second Ctrl-C kills them. If the caller is killed, they end too.
"""

import os
import queue
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

import headscape
from headscape.captures.capture_file import open_pack
from headscape.captures.pack import Pack
from headscape.data.dataset import open_dataset
from headscape.encodings.registry import load_plugin, loaded_plugins
from headscape.errors import InputError, at_least
from headscape.io.child_process import (
    end_with_parent,
    handling,
    no_semaphores,
    repeat_lost_interrupts,
    usable_cores,
)
from headscape.paper.figure_job import (
    FIGURES,
    VIEWER_PAGE,
    Drawing,
    Job,
    PaperFigure,
    Progress,
    draw,
    make,
    untrained_model,
)
from headscape.plots.gallery import GalleryEntry, merge, read_entries, write_gallery
from headscape.plots.style import FORMATS
from headscape.training import metrics
from headscape.viewer.page import write_figures_page

TITLE = "What position does in every head"
ABOUT = (
    "Each figure is one model's final layer reading one text, a panel per head: query positions "
    "run down, key positions across, and lighter is greater. It shows what the encoding adds to "
    "the scores before the softmax, or for RoPE, which adds nothing, the scores themselves. "
    "Figures 8 to 15 are those of the paper on CABLE, arXiv:2503.08067."
)
QUICK: Mapping[str, object] = {"steps": 100}
"""Training settings of `quick`."""


Update = Callable[[str, str, float], None]
"""Called with a figure's title, its stage in words, and the share of its work that is done."""


def paper_figures(
    encodings: str | Sequence[str] | None = None,
    *,
    out: Path | str = "figures",
    runs: Mapping[str, Path | str] | None = None,
    run_folder: Path | str = "runs",
    preset: str = "nano",
    untrained: bool = False,
    quick: bool = False,
    length: int = 512,
    seed: int = 0,
    formats: Sequence[str] = FORMATS,
    shared_scale: bool = False,
    cmap: str | None = None,
    title: bool = False,
    processes: int | None = None,
    command: str = "headscape.paper_figures",
    **settings: Any,
) -> Path:
    """Make the paper's figures and return their page.

    Draws the final layer of one model per encoding (default: the eight of Figures 8 to 15 of
    arXiv:2503.08067) for one random sequence. Finished parts are kept, so a repeated call
    continues. Figures that are already on the page in `out` stay there.

    Args:
        encodings: Which ones; by default the eight of the paper.
        out: Folder of the pictures and their page.
        runs: Folder of a trained model by encoding; these are not trained again.
        run_folder: Folder that models are trained into.
        preset: Size and training of the models.
        untrained: Draw models as initialised.
        quick: Train for fewer steps.
        length: Tokens of the sequence.
        seed: Of training and of the sequence.
        formats: Any of png, svg and pdf.
        shared_scale: One colour range for all heads of a figure.
        cmap: A matplotlib colour map in place of the chosen one.
        title: Write method, layer and quantity into the pictures.
        processes: How many models are trained side by side; by default one per core.
        command: The command that the page names as its origin.
        **settings: Fields of the training config.

    Example:
        >>> import headscape as hs
        >>> page = hs.paper_figures("alibi", untrained=True, length=32, formats=["png"])
        >>> page.name
        'index.html'
    """
    if quick and untrained:
        raise InputError("quick and untrained exclude each other: give one of them.")
    if encodings is None:
        encodings = [figure.encoding for figure in FIGURES]
    elif isinstance(encodings, str):
        encodings = [encodings]
    job = Job(
        drawing=Drawing(
            out=Path(out),
            length=length,
            seed=seed,
            formats=tuple(formats),
            shared_scale=shared_scale,
            cmap=cmap,
            title=title,
        ),
        encodings=tuple(encodings),
        preset=preset,
        settings={**(QUICK if quick else {}), **settings},
        untrained=untrained,
        own_runs={name: Path(folder) for name, folder in (runs or {}).items()},
        run_folder=Path(run_folder),
        seed=seed,
        command=command,
    )
    return run(job, usable_cores() if processes is None else processes)


def run(job: Job, processes: int) -> Path:
    """Make every figure of a job and return the page."""
    at_least(1, processes=processes)
    job.check()
    wanted = by_work(job.figures())
    with JobLine({figure.title: figure.cost for figure in wanted}) as line:
        for entry in _preview(job):
            _write_page(job, [entry])
            line.message(f"{entry.title}: {job.drawing.out / entry.image} (untrained)")
        if any(job.run_of(figure) is None for figure in wanted):
            # Written once here, so that the processes below do not each write the same tokens.
            config = job.config_of(wanted[0])
            open_dataset(config.corpus, config.tokenizer)
        # SIGTERM acts as Ctrl-C, so that trainings write a checkpoint.
        with (
            handling(signal.SIGTERM, signal.default_int_handler),
            closing(make_all(job, wanted, processes, line.update)) as entries,
        ):
            for entry in entries:
                _write_page(job, [entry])
                line.message(f"{entry.title}: {job.drawing.out / entry.image}{_loss(job, entry)}")
    return _write_page(job, link_viewer(job.drawing.out, read_entries(job.drawing.out)))


def _preview(job: Job) -> list[GalleryEntry]:
    """ALiBi as initialised, unless its figure is there already."""
    for figure in [] if job.untrained else job.figures():
        path = job.drawing.out / f"{figure.name}.{job.drawing.formats[0]}"
        if figure.encoding == "alibi" and job.run_of(figure) is None and not path.exists():
            return [draw(figure, untrained_model(job, figure), job.drawing, job.command)]
    return []


def _loss(job: Job, entry: GalleryEntry) -> str:
    """The validation loss of a figure's model, if it has one."""
    figure = next(figure for figure in job.figures() if figure.name == entry.name)
    lines = [] if job.untrained else metrics.read(job.folder_of(figure))
    losses = [line["validation_loss"] for line in lines if "validation_loss" in line]
    return f" (validation loss {losses[-1]:.3f})" if losses else ""


def _write_page(job: Job, entries: list[GalleryEntry]) -> Path:
    """Put figures on the page beside those that are there."""
    provenance = {
        "command": job.command,
        "headscape": headscape.__version__,
        "models": "as initialised" if job.untrained else f"preset {job.preset}, seed {job.seed}",
    }
    places = {figure.name: place for place, figure in enumerate(job.figures())}
    # Figures finish in any order. Those of earlier jobs come first.
    shown = sorted(
        merge(read_entries(job.drawing.out), entries),
        key=lambda each: (each.number is None, each.number or 0, places.get(each.name, -1)),
    )
    return write_gallery(job.drawing.out, shown, TITLE, provenance, about=ABOUT)


def link_viewer(folder: Path, entries: list[GalleryEntry]) -> list[GalleryEntry]:
    """Write the viewer's page and return the entries with their links into it.

    A figure that a page cannot compute has no link.
    """
    shown: dict[str, tuple[Pack, str]] = {}
    for entry in entries:
        try:
            pack = open_pack(folder / "data" / f"{entry.name}.safetensors")
        except InputError:
            continue
        if pack.page_bytes is None:
            continue
        quantity = "bias" if entry.measures is None else entry.measures.quantity
        shown[entry.name] = pack, quantity
    links = write_figures_page(folder / VIEWER_PAGE, shown) if shown else {}
    return [replace(entry, viewer=links.get(entry.name)) for entry in entries]


EVERY = 15.0
"""Seconds between lines where the output is not a terminal."""


class JobLine:
    """Progress of several figures on stderr."""

    def __init__(self, costs: Mapping[str, float]) -> None:
        """`costs` is the work of each figure, by its title, in any unit."""
        self._costs = dict(costs)
        self._share = dict.fromkeys(costs, 0.0)
        self._words: dict[str, str] = {}
        self._started = self._printed = time.monotonic()
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self._live: Live | None = None

    def __enter__(self) -> "JobLine":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def update(self, title: str, words: str, share: float) -> None:
        """Set the stage of a figure, in words, and the share of its work that is done."""
        self._words[title], self._share[title] = words, share
        if share >= 1:
            self._words.pop(title)
        if self._live is not None:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            self._console.print(self.line())

    def message(self, text: str) -> None:
        """Print a sentence above the live line."""
        self._console.print(text)

    def line(self) -> str:
        """The line as text."""
        done = sum(share >= 1 for share in self._share.values())
        # The time left comes first, because a narrow terminal cuts the end.
        figures = f"{done} of {len(self._share)} figures{self._left()}"
        return "  |  ".join([figures, *self._at_work()])

    def _at_work(self) -> list[str]:
        return [f"{title}: {words}" for title, words in self._words.items()]

    def _left(self) -> str:
        done = sum(self._costs[title] * share for title, share in self._share.items())
        spent = time.monotonic() - self._started
        total = sum(self._costs.values())
        # The first steps include starting processes and opening the text.
        if done < 0.03 * total:
            return ""
        left = spent * (total - done) / done
        minutes, seconds = divmod(int(left), 60)
        return f", {minutes}:{seconds:02d} left"

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def make_all(
    job: Job, figures: Sequence[PaperFigure], processes: int, update: Update
) -> Generator[GalleryEntry, None, None]:
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
) -> Iterator[GalleryEntry]:
    while count:
        try:
            result = results.get(timeout=0.2)
        except queue.Empty:
            _check_alive(workers)
            continue
        if isinstance(result, Exception):
            raise result
        if isinstance(result, GalleryEntry):
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
