"""One figure of the paper from one model: capture, measure, draw, describe.

What a figure is a function of is hashed and kept beside it; where hash and files are as they were,
nothing is done again.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import headscape
from headscape.captures.capture_file import CAPTURE, Capture
from headscape.captures.file_checks import FORMAT
from headscape.errors import InputError, at_least
from headscape.io import atomic
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.measures.context import ContextDependence, context_dependence
from headscape.measures.measures import Measures
from headscape.models.loaded import LoadedModel
from headscape.paper.paper_figures import PaperFigure
from headscape.plots import style
from headscape.plots.caption import caption
from headscape.plots.curves import Curves
from headscape.plots.gallery import Entry
from headscape.plots.grid import Grid


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
    colormap: str | None = None
    """A matplotlib colour map instead of the chosen one."""

    def __post_init__(self) -> None:
        style.check_formats(self.formats)
        at_least(1, length=self.length)
        at_least(0, seed=self.seed)
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is a file; figures go into a folder.")


def draw(figure: PaperFigure, model: LoadedModel, drawing: Drawing, command: str) -> Entry:
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
        atomic.write_text(stamp_path, stamp)
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
    layer = capture.layers[-1]
    grid = Grid.of(
        capture,
        figure.quantity,
        layer,
        shared_scale=drawing.shared_scale,
        colormap=drawing.colormap,
        heading=None,
    )
    style.save(grid.draw(), drawing.out / figure.name, drawing.formats)
    curves = Curves.of(capture, figure.quantity, layer, heading=None)
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
) -> Entry:
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
    return Entry(
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
