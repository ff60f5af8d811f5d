"""The main job: train what is missing, capture, measure, draw, and put it all on one page.

ALiBi's bias needs no training, so it is drawn first from an untrained model and again, with the
measures of attention, from the trained one.
"""

import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import headscape
from headscape.errors import InputError, at_least
from headscape.io.child_process import handling, usable_cores
from headscape.paper import figure_models
from headscape.paper.figure_files import Drawing, draw
from headscape.paper.figure_job import Job
from headscape.paper.figure_pool import by_work, make_all
from headscape.paper.figure_viewer import link_viewer
from headscape.paper.job_line import JobLine
from headscape.paper.paper_figures import FIGURES
from headscape.plots.gallery import Entry, merge, read_entries, write_gallery
from headscape.plots.style import FORMATS
from headscape.training import metrics

TITLE = "What position does in every head"
QUICK: Mapping[str, object] = {"steps": 100}
"""Training settings of `quick`."""


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
    colormap: str | None = None,
    processes: int | None = None,
    command: str = "headscape.paper_figures",
    **settings: Any,
) -> Path:
    """Make the paper's figures and return their page.

    Draws the final layer of one model per encoding (default: the eight of Figures 8 to 15 of
    arXiv:2503.08067) for one random sequence of `length` tokens. Models are trained into
    `run_folder` unless `runs` (encoding to folder) has one or `untrained` is set; `quick` trains
    them for fewer steps. Finished parts are kept, so a repeated call continues. Figures that are
    already on the page in `out` stay there. `settings` are fields of the training config.

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
            colormap=colormap,
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
            figure_models.open_text(wanted[0], job.preset, job.settings)
        # SIGTERM acts as Ctrl-C, so that trainings write a checkpoint.
        with (
            handling(signal.SIGTERM, signal.default_int_handler),
            closing(make_all(job, wanted, processes, line.update)) as entries,
        ):
            for entry in entries:
                _write_page(job, [entry])
                line.message(f"{entry.title}: {job.drawing.out / entry.image}{_loss(job, entry)}")
    return _write_page(job, link_viewer(job.drawing.out, read_entries(job.drawing.out)))


def _preview(job: Job) -> list[Entry]:
    """ALiBi as initialised, unless its figure is there already."""
    for figure in [] if job.untrained else job.figures():
        path = job.drawing.out / f"{figure.name}.{job.drawing.formats[0]}"
        if figure.encoding == "alibi" and job.run_of(figure) is None and not path.exists():
            model = figure_models.untrained(figure, job.preset, job.seed, job.settings)
            return [draw(figure, model, job.drawing, job.command)]
    return []


def _loss(job: Job, entry: Entry) -> str:
    """The validation loss of a figure's model, if it has one."""
    figure = next(figure for figure in job.figures() if figure.name == entry.name)
    lines = [] if job.untrained else metrics.read(job.folder_of(figure))
    losses = [line["validation_loss"] for line in lines if "validation_loss" in line]
    return f" (validation loss {losses[-1]:.3f})" if losses else ""


def _write_page(job: Job, entries: list[Entry]) -> Path:
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
    return write_gallery(job.drawing.out, shown, TITLE, provenance)
