"""One figure of a job, from nothing to its files: train what is missing, capture, draw."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output
from headscape.models.loaded import LoadedModel
from headscape.paper import figure_models
from headscape.paper.figure_files import Drawing, check_files, draw
from headscape.paper.figure_viewer import PAGE as VIEWER
from headscape.paper.paper_figures import FIGURES, PaperFigure, figure_of
from headscape.plots.gallery import Entry, check_gallery
from headscape.training.metrics import Line
from headscape.training.trainer import train

Progress = Callable[[str, float], None]
"""Called with the stage of a figure, in words, and the share of its work that is done."""
TRAINING_SHARE = 0.85
"""Share of a figure's work that is training."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to draw, and from which models."""

    drawing: Drawing
    """How figures are drawn, and where they go."""
    encodings: tuple[str, ...] = tuple(figure.encoding for figure in FIGURES)
    """Encodings to draw, in the order of the page."""
    preset: str = "nano"
    """Size of the models trained here."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Fields of the training config that differ from the preset."""
    untrained: bool = False
    """Draw models as initialised."""
    own_runs: Mapping[str, Path] = field(default_factory=dict)
    """Runs to use instead of training, by encoding."""
    run_folder: Path = Path("runs")
    """Where models trained here are stored."""
    seed: int = 0
    """Seed of initialisation and training."""
    command: str = ""
    """The command that made the figures, for the page."""

    def figures(self) -> list[PaperFigure]:
        """The figures asked for; refuse runs of encodings that are not drawn."""
        if not self.encodings:
            raise InputError("there is nothing to draw: name at least one encoding.")
        figures = list({figure.name: figure for figure in map(figure_of, self.encodings)}.values())
        known = {figure.encoding for figure in figures}
        for name in self.own_runs:
            if figure_of(name).encoding not in known:
                raise InputError(f"a run is given for {name!r}, which is not being drawn.")
        if self.untrained and self.own_runs:
            raise InputError("untrained and runs of your own exclude each other: give one of them.")
        return figures

    def check(self) -> None:
        """Refuse runs that cannot be drawn and files in the way, before anything is trained."""
        check_gallery(self.drawing.out)
        check_output(self.drawing.out / VIEWER, KINDS["html"])
        for figure in self.figures():
            check_files(figure, self.drawing)
            if self.run_of(figure) is None:
                figure_models.settings(figure, self.preset, self.seed, self.settings)
        for name, folder in self.own_runs.items():
            figure_models.check_run(folder, figure_of(name).encoding)

    def folder_of(self, figure: PaperFigure) -> Path:
        """The run of a figure: the user's own, or one of these settings under `run_folder`."""
        changed = ""
        if self.settings:
            text = json.dumps(dict(self.settings), sort_keys=True, default=str)
            changed = f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        name = f"{self.preset}-{figure.slug}-seed{self.seed}{changed}"
        return self.run_of(figure) or self.run_folder / name

    def run_of(self, figure: PaperFigure) -> Path | None:
        """The user's own run of a figure, if there is one."""
        own = {figure_of(name).encoding: folder for name, folder in self.own_runs.items()}
        return own.get(figure.encoding)


def make(job: Job, figure: PaperFigure, progress: Progress, *, quiet: bool = True) -> Entry:
    """Make one figure and return its entry on the page."""
    model = _model(job, figure, progress, quiet=quiet)
    progress("drawing", TRAINING_SHARE)
    entry = draw(figure, model, job.drawing, job.command)
    progress("done", 1.0)
    return entry


def _model(job: Job, figure: PaperFigure, progress: Progress, *, quiet: bool) -> LoadedModel:
    own = job.run_of(figure)
    if own is not None:
        return figure_models.trained(own)
    if job.untrained:
        return figure_models.untrained(figure, job.preset, job.seed, job.settings)
    config = figure_models.settings(figure, job.preset, job.seed, job.settings)
    folder = job.folder_of(figure)
    if not figure_models.is_finished(folder, config):

        def report(line: Line, share: float) -> None:
            of = f"/{config.steps}" if config.steps else ""
            text = f"step {line['step']:.0f}{of} loss {line['loss']:.2f}"
            progress(text, TRAINING_SHARE * share)

        result = train(config, out=folder, resume=True, quiet=quiet, report=report)
        if not result.finished:
            raise KeyboardInterrupt
    return figure_models.trained(folder)
