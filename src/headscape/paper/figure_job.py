"""One figure of a job, from nothing to its files: train what is missing, capture, measure, draw.

FIGURES are 8 to 15 of the paper: one method each, final layer, all heads, one random sequence.
Fields and scale are those of the released code: T5-bias is the clipped table, with q.k over
sqrt(width); RoPE rotates interleaved pairs. What a method is called and which quantity its figure
shows are attributes of its class.

What a figure is a function of is hashed and kept beside it; where hash and files are as they were,
nothing is done again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import headscape
from headscape.captures.capture_file import CAPTURE, Capture
from headscape.captures.file_checks import FORMAT
from headscape.data.dataset import open_dataset
from headscape.encodings import kinds, slug, title
from headscape.encodings.registry import parse
from headscape.errors import InputError, at_least
from headscape.gpt2 import GPT2
from headscape.gpt2.model_config import Scale
from headscape.io.files import write_text
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.measures.context import ContextDependence, context_dependence
from headscape.measures.measures import Measures
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import open_run
from headscape.models.loaded import LoadedModel
from headscape.plots import style
from headscape.plots.gallery import GalleryEntry, caption, check_gallery
from headscape.training import checkpoint
from headscape.training.config import TrainConfig
from headscape.training.config import preset as train_preset
from headscape.training.metrics import Line
from headscape.training.run import read_config
from headscape.training.trainer import train

Progress = Callable[[str, float], None]
"""Called with the stage of a figure, in words, and the share of its work that is done."""
VIEWER_PAGE: Final = "viewer.html"
"""The page with every capture, beside the figures."""
TRAINING_SHARE = 0.85
"""Share of a figure's work that is training."""


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """One page of the paper's appendix, or one made in the same way for a different encoding."""

    number: int | None
    """Its number in the paper; None for a method the paper does not draw."""
    encoding: str
    """Name in the table of encodings, or a schedule; the figure shows its last layer."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the encoding as in the released code, where public code disagrees."""
    scale: Scale = "head_dim"
    """What q.k is divided by the square root of."""

    def __post_init__(self) -> None:
        _ = self.quantity  # raises for an encoding that has nothing to draw

    @property
    def slug(self) -> str:
        """The end of its file name."""
        return slug(self.encoding)

    @property
    def method(self) -> str:
        """The method as the paper spells it."""
        return title(self.encoding)

    @property
    def quantity(self) -> str:
        """The quantity that is drawn."""
        shown = kinds(parse(self.encoding)[-1].name).all[0].shows
        if shown is None:
            raise InputError(
                f"{self.encoding!r} acts on the embeddings, so its scores contain no bias to draw."
            )
        return shown

    @property
    def cost(self) -> float:
        """About how long its model trains, relative to one that adds a bias."""
        every = [kind for entry in parse(self.encoding) for kind in kinds(entry.name).all]
        return 2.0 if any(kind.mixes for kind in every) else 1.0

    @property
    def name(self) -> str:
        """The file name without its suffix."""
        return f"figure-{self.number:02d}-{self.slug}" if self.number else f"extra-{self.slug}"

    @property
    def title(self) -> str:
        """The heading on the page."""
        return f"Figure {self.number}: {self.method}" if self.number else self.method


FIGURES = (
    PaperFigure(number=8, encoding="cable"),
    PaperFigure(number=9, encoding="dapev2+cable"),
    PaperFigure(number=10, encoding="kerple"),
    PaperFigure(number=11, encoding="dapev2+kerple"),
    PaperFigure(number=12, encoding="alibi"),
    PaperFigure(number=13, encoding="fire"),
    PaperFigure(number=14, encoding="t5-clipped", scale="width"),
    PaperFigure(number=15, encoding="rope", fields={"pairing": "interleaved"}),
)


def figure_of(encoding: str) -> PaperFigure:
    """Return the paper's figure of an encoding, or a new one for an encoding without."""
    for figure in FIGURES:
        if encoding in {figure.encoding, figure.slug}:
            return figure
    return PaperFigure(number=None, encoding=encoding)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How figures are made, whatever they show."""

    out: Path
    """Folder of the figures; captures and measures go to its `data`."""
    length: int = 512
    """Tokens of the captured sequence."""
    seed: int = 0
    """Of the sequence's place in the validation text."""
    sequences: int = 16
    """Sequences that context-dependence is measured over."""
    formats: tuple[str, ...] = style.FORMATS
    """Endings."""
    shared_scale: bool = False
    """One colour range for all heads."""
    cmap: str | None = None
    """A matplotlib colour map instead of the chosen one."""
    title: bool = False
    """Whether the pictures say their method, layer and quantity."""

    def __post_init__(self) -> None:
        style.check_formats(self.formats)
        at_least(1, length=self.length)
        at_least(0, seed=self.seed)
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is a file; figures go into a folder.")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to draw, and from which models."""

    drawing: Drawing
    """How figures are drawn, and where they go."""
    encodings: tuple[str, ...] = tuple(figure.encoding for figure in FIGURES)
    """Encodings to draw, in the order of the page."""
    preset: str = "nano"
    """Size of the models trained here."""
    settings: Mapping[str, Any] = field(default_factory=dict)
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
        """Return the figures to draw, each once; raise InputError if a run is of none of them."""
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
        check_output(self.drawing.out / VIEWER_PAGE, KINDS["html"])
        for figure in self.figures():
            check_files(figure, self.drawing)
            if self.run_of(figure) is None:
                self.config_of(figure)
        for name, folder in self.own_runs.items():
            check_run(folder, figure_of(name).encoding)

    def config_of(self, figure: PaperFigure) -> TrainConfig:
        """How the model of a figure is trained."""
        return train_preset(
            self.preset,
            encoding=figure.encoding,
            encoding_fields=dict(figure.fields),
            scale=figure.scale,
            seed=self.seed,
            **self.settings,
        )

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


def make(job: Job, figure: PaperFigure, progress: Progress, *, quiet: bool = True) -> GalleryEntry:
    """Make one figure and return its entry on the page."""
    model = _model(job, figure, progress, quiet=quiet)
    progress("drawing", TRAINING_SHARE)
    entry = draw(figure, model, job.drawing, job.command)
    progress("done", 1.0)
    return entry


def _model(job: Job, figure: PaperFigure, progress: Progress, *, quiet: bool) -> LoadedModel:
    own = job.run_of(figure)
    if own is not None:
        return trained_model(own)
    if job.untrained:
        return untrained_model(job, figure)
    config = job.config_of(figure)
    folder = job.folder_of(figure)
    if not is_finished(folder, config):

        def report(line: Line, share: float) -> None:
            of = f"/{config.steps}" if config.steps else ""
            text = f"step {line['step']:.0f}{of} loss {line['loss']:.2f}"
            progress(text, TRAINING_SHARE * share)

        result = train(config, out=folder, resume=True, quiet=quiet, report=report)
        if not result.finished:
            raise KeyboardInterrupt
    return trained_model(folder)


def draw(figure: PaperFigure, model: LoadedModel, drawing: Drawing, command: str) -> GalleryEntry:
    """Make the figure's files, unless they are up to date, and describe it for the page."""
    data = drawing.out / "data"
    capture_path = data / f"{figure.name}.safetensors"
    measures_path = data / f"{figure.name}.json"
    stamp_path = data / f"{figure.name}.stamp"
    stamp = _stamp(figure, model, drawing)
    wanted = [measures_path, capture_path, *_pictures(figure, drawing)]
    if _read(stamp_path) != stamp or not all(path.is_file() for path in wanted):
        stamp_path.unlink(missing_ok=True)
        both = list(dict.fromkeys((figure.quantity, "weights")))
        capture = model.capture(length=drawing.length, seed=drawing.seed, quantities=both)
        context = _context(figure, model, drawing, capture)
        measures = capture.measures(figure.quantity, context=context)
        shown = _only(capture, figure.quantity)
        shown.save(capture_path)
        write_output(measures_path, measures.to_json(), KINDS["json"])
        _draw(figure, shown, drawing)
        write_text(stamp_path, stamp)
    capture = Capture.load(capture_path, quantities=())
    measures = Measures.from_json(measures_path.read_text(encoding="utf-8"))
    return _entry(figure, model, drawing, capture, measures, command)


def check_files(figure: PaperFigure, drawing: Drawing) -> None:
    """Refuse a folder where a figure would replace a file of a different kind."""
    data = drawing.out / "data"
    check_output(data / f"{figure.name}.safetensors", CAPTURE)
    for path in (data / f"{figure.name}.json", *_pictures(figure, drawing)):
        check_output(path, KINDS[path.suffix[1:]])


def _context(
    figure: PaperFigure, model: LoadedModel, drawing: Drawing, first: Capture
) -> ContextDependence:
    """Context-dependence over several sequences, the captured one first."""

    def maps() -> Iterator[np.ndarray]:
        yield first.map(figure.quantity)
        for number in range(1, drawing.sequences):
            yield model.capture(
                length=drawing.length, seed=drawing.seed + number, quantities=(figure.quantity,)
            ).map(figure.quantity)

    return context_dependence(maps())


def _only(capture: Capture, quantity: str) -> Capture:
    """What a figure is drawn from; other weights only serve its measures."""
    kept = {
        name: value
        for name, value in capture.maps.items()
        if quantity == "weights" or ".weights" not in name
    }
    return replace(capture, maps=kept, shown=(quantity,))


def _draw(figure: PaperFigure, capture: Capture, drawing: Drawing) -> None:
    title = "auto" if drawing.title else None
    grid = capture.grid(
        figure.quantity, shared_scale=drawing.shared_scale, cmap=drawing.cmap, title=title
    )
    style.save(grid.draw(), drawing.out / figure.name, drawing.formats)
    curves = capture.curves(figure.quantity, title=title)
    style.save(curves.draw(), drawing.out / f"{figure.name}-curves", drawing.formats)


def _pictures(figure: PaperFigure, drawing: Drawing) -> list[Path]:
    stems = (figure.name, f"{figure.name}-curves")
    return [drawing.out / f"{stem}.{ending}" for stem in stems for ending in drawing.formats]


def _entry(
    figure: PaperFigure,
    model: LoadedModel,
    drawing: Drawing,
    capture: Capture,
    measures: Measures,
    command: str,
) -> GalleryEntry:
    files = {
        path.suffix[1:].upper(): path.name
        for path in _pictures(figure, drawing)[: len(drawing.formats)]
    }
    files |= {
        f"against distance ({ending.upper()})": f"{figure.name}-curves.{ending}"
        for ending in drawing.formats
    }
    files |= {
        "measures (JSON)": f"data/{figure.name}.json",
        "capture": f"data/{figure.name}.safetensors",
    }
    shown = "png" if "png" in drawing.formats else drawing.formats[0]
    made = {"command": command, "sequence": f"seed {drawing.seed}, {drawing.length} tokens"}
    made |= {key.replace("_", " "): str(value) for key, value in _provenance(model).items()}
    return GalleryEntry(
        name=figure.name,
        title=figure.title,
        number=figure.number,
        image=f"{figure.name}.{shown}",
        alt=f"{figure.method}: {figure.quantity} of every head of the final layer as heat maps.",
        caption=caption(capture, capture.layers[-1], figure.quantity, measures),
        measures=measures,
        files=files,
        made=made,
    )


def _provenance(model: LoadedModel) -> dict[str, object]:
    """Where the model and its text come from: a figure is up to date while this is the same."""
    text = {} if model.dataset is None else {"corpus_hash": model.dataset.fingerprint}
    return {**model.spec.provenance, **text}


def _stamp(figure: PaperFigure, model: LoadedModel, drawing: Drawing) -> str:
    described = {
        "headscape": headscape.__version__,
        "capture": FORMAT,
        "figure": asdict(figure),
        "drawing": asdict(drawing) | {"out": None},
        "preset": model.spec.preset,
        "trained": model.spec.trained,
        "model": dict(_provenance(model)),
    }
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def untrained_model(job: Job, figure: PaperFigure) -> GPT2Model:
    """Return a model as initialised, with the text it would be trained on."""
    config = job.config_of(figure)
    dataset = open_dataset(config.corpus, config.tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        gpt2 = GPT2(config.model_for(dataset.tokenizer.vocabulary))
    return GPT2Model(
        gpt2,
        tokenizer=dataset.tokenizer,
        dataset=lambda: dataset,
        preset=job.preset,
        trained=False,
        provenance={"initialisation_seed": job.seed},
    )


def trained_model(folder: Path) -> GPT2Model:
    """The newest good checkpoint of a run on text."""
    model = open_run(folder)
    if model.dataset is None:
        raise InputError(f"{folder} was trained on a task: figures need a run on text.")
    return model


def check_run(folder: Path, encoding: str) -> None:
    """Refuse a run that cannot be drawn, before anything is trained."""
    found = open_run(folder).spec.encoding
    if found != ",".join(dict.fromkeys(entry.name for entry in parse(encoding))):
        raise InputError(f"{folder} was trained with {found!r}, not {encoding!r}.")


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether the folder contains a finished run of this config."""
    saved = checkpoint.steps(folder) if folder.is_dir() else []
    return bool(saved) and saved[-1][0] == config.steps and read_config(folder) == config
