"""`atlas`: every head of a model measured and shown in a folder that opens in a browser."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.io.system_errors import reporting
from headscape.measures.measures import Measures
from headscape.viewer.atlas_page import atlas_page
from headscape.viewer.build import link, write_page

if TYPE_CHECKING:
    from headscape.captures.sequences import Text
    from headscape.models.model import Model

PAGE = "atlas.html"
VIEWER = "viewer.html"
FILES = ("heads.json", "heads.csv", PAGE, VIEWER)
VIEWED = 128
"""Tokens of the sequence that the viewer shows."""


def atlas(
    model: "Model | str | Path",
    out: str | Path,
    text: "Text | None" = None,
    *,
    corpus: str | None = None,
    sequences: int = 8,
    length: int | None = None,
    drift: Sequence[int] = (),
    effects: int = 0,
    viewer: bool = False,
) -> Measures:
    """Measure every head of a model and write a page, a table and JSON to the folder `out`.

    `model` is a model or what `load` takes. The sequences are windows of `text` (or of token
    numbers), of a `corpus`, or of the validation text of a run. `drift` lists multiples of the
    trained length to measure again at; `effects` is the number of sequences on which each head is
    changed in turn. With `viewer`, the page links each head to a viewer of one short sequence.
    Files of an earlier atlas are replaced; a file of a different kind is refused.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> found = hs.atlas(model, "atlas", list(range(200)), length=64, sequences=2)
        >>> found.row(layer=0, head=0)["slash_distance"]
        0.0
    """
    from headscape.measures.measure_model import measure_model, open_stream

    folder = Path(out)
    check_folder(folder, reads=() if corpus is None else (corpus,))
    opened = _opened(model)
    with reporting("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    links: dict[tuple[int, int], str] = {}
    if viewer:
        shown = min(VIEWED, opened.spec.train_length or VIEWED)
        tokens = open_stream(opened, text, corpus).windows(1, shown)
        links = _write_viewer(folder / VIEWER, opened, tokens[0])
    found = measure_model(
        opened,
        text,
        corpus=corpus,
        sequences=sequences,
        length=length,
        drift=drift,
        effects=effects,
    )
    write_output(folder / "heads.json", found.to_json(), KINDS["json"])
    write_output(folder / "heads.csv", found.to_csv(first=1), KINDS["csv"])
    write_output(folder / PAGE, atlas_page(found, links), KINDS["html"])
    return found


def check_folder(folder: Path, reads: Iterable[Path | str] = ()) -> None:
    """Refuse a folder where an atlas would replace a file of a different kind, or one it reads."""
    for name in FILES:
        check_output(folder / name, KINDS[Path(name).suffix[1:]], reads=reads)


def _opened(model: "Model | str | Path") -> "Model":
    from headscape.models.model import Model

    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        from headscape.models.load import load

        return load(model)
    raise InputError(f"atlas takes a model or its folder, got {type(model).__name__}.")


def _write_viewer(path: Path, model: Any, tokens: np.ndarray) -> dict[tuple[int, int], str]:
    """Write the viewer of one sequence; return the link to each layer and head."""
    from headscape.captures.record import capture

    write_page(path, [capture(model, tokens, layers="all").pack()])
    return {
        (layer, head): link(
            path.name, {"screen": "head", "capture": "p0", "layer": layer, "head": head}
        )
        for layer in range(len(model.spec.layers))
        for head in range(model.spec.heads)
    }
