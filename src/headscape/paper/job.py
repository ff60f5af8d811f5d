"""The main job: train what is missing, capture, measure, draw, and put it all on one page.

ALiBi's bias needs no training, so it is drawn first from an untrained model and again, with the
measures of attention, from the trained one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import headscape
from headscape.errors import InputError
from headscape.figures.gallery import Entry, write_gallery
from headscape.paper import subject as subjects
from headscape.paper.figure_files import Look, draw
from headscape.paper.paper_figures import FIGURES, PaperFigure, figure_of
from headscape.paper.subject import Subject
from headscape.train import train

Say = Callable[[str], None]
TITLE = "What position does in every head"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to draw, and of which models."""

    look: Look
    """How, and where to."""
    encodings: tuple[str, ...] = tuple(figure.encoding for figure in FIGURES)
    """Encodings to draw, in the order of the page."""
    preset: str = "nano"
    """Size of the models trained here."""
    untrained: bool = False
    """Draw models as they are initialised."""
    own_runs: Mapping[str, Path] = field(default_factory=dict)
    """Runs to use instead of training, by encoding."""
    run_folder: Path = Path("runs")
    """Where models trained here are kept."""
    seed: int = 0
    """Of initialisation and training."""

    def figures(self) -> list[PaperFigure]:
        """The figures asked for; an encoding that is not asked for cannot have a run."""
        figures = [figure_of(name) for name in self.encodings]
        known = {figure.encoding for figure in figures}
        for name in self.own_runs:
            if figure_of(name).encoding not in known:
                raise InputError(f"a run is given for {name!r}, which is not being drawn.")
        return figures


def run(job: Job, command: str, say: Say) -> Path:
    """Make every figure; give the page."""
    figures = job.figures()
    own = {figure_of(name).encoding: folder for name, folder in job.own_runs.items()}
    if job.untrained and own:
        raise InputError("models are drawn as initialised (untrained) or from runs, not both.")
    for encoding, folder in own.items():
        subjects.check_run(folder, encoding)
    entries: dict[str, Entry] = {}
    preview = [f for f in figures if f.encoding == "alibi" and f.encoding not in own]
    for figure in [] if job.untrained else preview:
        subject = subjects.untrained(figure, job.preset, job.seed)
        if not (job.look.out / f"{figure.name}.{job.look.formats[0]}").exists():
            entries[figure.name] = draw(figure, subject, job.look, command)
            say(f"{figure.title}: {job.look.out / entries[figure.name].image}")
    clock = _Clock(len(figures))
    for number, figure in enumerate(figures, start=1):
        subject = _subject(job, figure, own, clock.before(number), say)
        entries[figure.name] = draw(figure, subject, job.look, command)
        clock.done(number)
        say(f"{figure.title}: {job.look.out / entries[figure.name].image}")
        _page(job, figures, entries, command)
    return _page(job, figures, entries, command)


def _subject(
    job: Job, figure: PaperFigure, own: Mapping[str, Path], standing: str, say: Say
) -> Subject:
    if figure.encoding in own:
        return subjects.trained(own[figure.encoding])
    if job.untrained:
        return subjects.untrained(figure, job.preset, job.seed)
    config = subjects.settings(figure, job.preset, job.seed)
    folder = job.run_folder / f"{job.preset}-{figure.slug}-seed{job.seed}"
    if not subjects.is_finished(folder, config):
        say(f"{standing} training {figure.method}")
        result = train(config, out=folder, resume=True)
        if not result.finished:
            raise KeyboardInterrupt
    return subjects.trained(folder)


def _page(
    job: Job, figures: Sequence[PaperFigure], entries: Mapping[str, Entry], command: str
) -> Path:
    shown = [entries[figure.name] for figure in figures if figure.name in entries]
    provenance = {
        "command": command,
        "headscape": headscape.__version__,
        "models": "as initialised" if job.untrained else f"preset {job.preset}, seed {job.seed}",
    }
    return write_gallery(job.look.out, shown, TITLE, provenance)


class _Clock:
    """How much of the whole is left, from what each part took."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.start = time.monotonic()
        self.spent = 0.0

    def done(self, number: int) -> None:
        """Take note that a part is done."""
        self.spent = (time.monotonic() - self.start) / number

    def before(self, number: int) -> str:
        """Where the whole stands when a part begins."""
        left = self.spent * (self.parts - number + 1)
        hint = f", about {max(1, round(left / 60))} min left for all" if left else ""
        return f"[{number} of {self.parts}{hint}]"
