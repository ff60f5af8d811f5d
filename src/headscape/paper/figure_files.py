"""One figure of the paper from one model: capture, measure, draw, describe.

What a figure is a function of is hashed and kept beside it; where hash and files are as they were,
nothing is done again.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import headscape
from headscape.arrays.capture_file import Capture
from headscape.arrays.capture_file import load as load_capture
from headscape.arrays.context import ContextDependence, context_dependence
from headscape.arrays.measures import Measures
from headscape.capture.record import record, sample
from headscape.capture.tap import Request
from headscape.errors import InputError
from headscape.figures import style
from headscape.figures.caption import caption
from headscape.figures.curves import Curves
from headscape.figures.gallery import Entry
from headscape.figures.grid import Grid
from headscape.io import atomic
from headscape.paper.paper_figures import PaperFigure
from headscape.paper.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Look:
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
    colormap: str | None = None
    """A matplotlib colour map instead of the chosen one."""

    def __post_init__(self) -> None:
        style.check_formats(self.formats)
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is a file; figures go into a folder.")


def draw(figure: PaperFigure, subject: Subject, look: Look, command: str) -> Entry:
    """Make the figure's files, unless they are there already, and describe it for the page."""
    capture_file = look.out / "data" / f"{figure.name}.safetensors"
    measures_file = look.out / "data" / f"{figure.name}.json"
    stamp_file = look.out / "data" / f"{figure.name}.stamp"
    stamp = _stamp(figure, subject, look)
    layer = subject.model.config.layers - 1
    wanted = [measures_file, capture_file, *_pictures(figure, look)]
    if _read(stamp_file) != stamp or not all(path.is_file() for path in wanted):
        stamp_file.unlink(missing_ok=True)
        capture = _capture(figure, subject, look, look.seed)
        measures = Measures.of(
            capture, figure.quantity, context={layer: _context(figure, subject, look)}
        )
        capture.save(capture_file)
        atomic.write_text(measures_file, measures.to_json())
        _draw(figure, capture, look)
        atomic.write_text(stamp_file, stamp)
    capture = load_capture(capture_file, quantities=())
    measures = Measures.from_json(measures_file.read_text())
    return _entry(figure, subject, look, capture, measures, command)


def _capture(figure: PaperFigure, subject: Subject, look: Look, seed: int) -> Capture:
    config = subject.model.config
    return record(
        subject.model,
        sample(subject.validation, look.length, seed, subject.corpus),
        Request(
            layers=(config.layers - 1,),
            heads=tuple(range(config.heads)),
            quantities=(figure.quantity, "weights"),
        ),
        preset=subject.preset,
        trained=subject.trained,
        tokenizer=subject.tokenizer,
        provenance=subject.provenance,
    )


def _context(figure: PaperFigure, subject: Subject, look: Look) -> ContextDependence:
    layer = subject.model.config.layers - 1
    return context_dependence(
        _capture(figure, subject, look, look.seed + number).values(layer, figure.quantity)
        for number in range(look.sequences)
    )


def _draw(figure: PaperFigure, capture: Capture, look: Look) -> None:
    layer = capture.layers[-1]
    grid = Grid.of(
        capture,
        layer,
        figure.quantity,
        heading=None,
        shared_scale=look.shared_scale,
        colormap=look.colormap,
    )
    style.save(grid.draw(), look.out / figure.name, look.formats)
    curves = Curves.of(capture, layer, figure.quantity, heading=None)
    style.save(curves.draw(), look.out / f"{figure.name}-curves", look.formats)


def _pictures(figure: PaperFigure, look: Look) -> list[Path]:
    stems = (figure.name, f"{figure.name}-curves")
    return [look.out / f"{stem}.{ending}" for stem in stems for ending in look.formats]


def _entry(
    figure: PaperFigure,
    subject: Subject,
    look: Look,
    capture: Capture,
    measures: Measures,
    command: str,
) -> Entry:
    files = {
        path.suffix[1:].upper(): path.name for path in _pictures(figure, look)[: len(look.formats)]
    }
    files |= {
        f"against distance ({ending.upper()})": f"{figure.name}-curves.{ending}"
        for ending in look.formats
    }
    files |= {
        "measures (JSON)": f"data/{figure.name}.json",
        "capture": f"data/{figure.name}.safetensors",
    }
    shown = "png" if "png" in look.formats else look.formats[0]
    made = {"command": command, "sequence": f"seed {look.seed}, {look.length} tokens"}
    made |= {key.replace("_", " "): str(value) for key, value in subject.provenance.items()}
    return Entry(
        name=figure.name,
        title=figure.title,
        number=figure.number,
        image=f"{figure.name}.{shown}",
        alt=f"{figure.method}: {figure.quantity} of every head of the final layer as heat maps.",
        caption=caption(
            capture, capture.layers[-1], figure.quantity, measures, title=figure.method
        ),
        measures=measures,
        files=files,
        made=made,
    )


def _stamp(figure: PaperFigure, subject: Subject, look: Look) -> str:
    described = {
        "headscape": headscape.__version__,
        "figure": asdict(figure),
        "look": asdict(look) | {"out": None},
        "preset": subject.preset,
        "trained": subject.trained,
        "model": dict(subject.provenance),
    }
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
