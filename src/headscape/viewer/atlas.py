"""`atlas`: every head of a model measured and shown in a folder that opens in a browser."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headscape.captures.pack import safetensors_bytes
from headscape.captures.pooling import cell_edges, visible_pairs
from headscape.errors import InputError
from headscape.io.files import reporting
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.measures.definitions import KINDS as KINDS_OF_HEADS
from headscape.measures.measures import DESCRIBED, Measures, definition, listed
from headscape.viewer.page import page_of, with_measures, write_page

if TYPE_CHECKING:
    from headscape.captures.sequences import Text
    from headscape.models.model import Model

PAGE: Final = "atlas.html"
VIEWER: Final = "viewer.html"
FILES: Final = ("heads.json", "heads.csv", PAGE, VIEWER)
VIEWED: Final = 128
"""Tokens of the sequence that the viewer shows."""
POINTS: Final = 48
"""Distances of a drawn kernel on either side of 0."""
FORMAT: Final = 1


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
) -> Path:
    """Measure every head of a model, write a page, a table and JSON, and return the page's path.

    `heads.json` beside the page has every number; `model.measures()` returns them without a page.
    Files of an earlier atlas are replaced; a file of a different kind is refused.

    Args:
        model: A model, or what `load` takes.
        out: Folder to write to.
        text: Text or token numbers whose windows are measured; by default the validation text of a
            run.
        corpus: Corpus to take the windows from instead.
        sequences: Number of windows.
        length: Tokens of a window; by default the trained length, at most 512.
        drift: Multiples of the trained length to measure again at.
        effects: Number of sequences on which each head is changed in turn.
        viewer: Whether to write a viewer of one short sequence and link each head to it.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.atlas(model, "atlas", list(range(200)), length=64, sequences=2).name
        'atlas.html'
    """
    from headscape.captures.record import capture
    from headscape.measures.measure_model import measure_model, open_stream

    folder = Path(out)
    check_folder(folder, reads=() if corpus is None else (corpus,))
    opened = _opened(model)
    with reporting("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if viewer:
        shown = min(VIEWED, opened.spec.train_length or VIEWED)
        tokens = open_stream(opened, text, corpus).windows(1, shown)[0]
        write_page(folder / VIEWER, [with_measures(capture(opened, tokens, layers="all").pack())])
    measured = measure_model(
        opened,
        text,
        corpus=corpus,
        sequences=sequences,
        length=length,
        drift=drift,
        effects=effects,
    )
    measured.save(folder / "heads.json")
    write_output(folder / "heads.csv", measured.to_csv(first=1), KINDS["csv"])
    page = atlas_page(measured, viewer=VIEWER if viewer else None)
    write_output(folder / PAGE, page, KINDS["html"])
    return folder / PAGE


def check_folder(folder: Path, reads: Iterable[Path | str] = ()) -> None:
    """Refuse a folder where an atlas would replace a file of a different kind, or one it reads."""
    for name in FILES:
        check_output(folder / name, KINDS[Path(name).suffix[1:]], reads=reads)


def atlas_page(measured: Measures, viewer: str | None = None) -> str:
    """Return the atlas as one page; `viewer` is the address of a viewer page to link heads to."""
    title = str(measured.about["model"])
    header = {**atlas_header(measured), "viewer": viewer}
    data = safetensors_bytes(header, atlas_arrays(measured))
    return page_of("atlas", [(title, data)], f"Atlas of {title}")


def atlas_header(measured: Measures) -> dict[str, Any]:
    """Return what the page's module reads beside the arrays."""
    about, rows = measured.about, measured.rows()
    heads = len(measured.heads)
    kinds = [row["kinds"] for row in rows]
    return {
        "format": FORMAT,
        "title": about["model"],
        "encoding": "",
        "about": [text for text in (_measured(about), _counted(rows)) if text],
        "recognised": about["recognised"],
        "causal": about["causal"],
        "length": _length(measured),
        "layers": list(measured.layers),
        "heads": list(measured.heads),
        "factors": [],
        "importance": measured.importance,
        "measures": [
            {
                "name": name,
                **{field: getattr(definition(name), field) for field in DESCRIBED},
                "by_size": name.startswith("effect_"),
                **dict(zip(("values", "low", "high"), listed(estimates, digits=6), strict=True)),
            }
            for name, estimates in measured.values.items()
        ],
        "kinds": [kinds[at : at + heads] for at in range(0, len(rows), heads)],
        "drift": {
            str(multiple): {name: listed(values, digits=6) for name, values in measures.items()}
            for multiple, measures in measured.drift.items()
            if measures is not None
        },
        "distances": _distances(measured),
    }


def atlas_arrays(measured: Measures) -> dict[str, np.ndarray]:
    """Return kernels at `distances`, and mean weights as cells of the viewer's overview."""
    length = _length(measured)
    at = np.array(_distances(measured)) + length - 1
    curves = {"kernel": measured.kernel, "closed_form": measured.closed_form}
    arrays = {
        f"layer.{layer}.{name}": values[:, at].astype(np.float32)
        for name, every in curves.items()
        if every is not None
        for layer, values in enumerate(every)
    }
    if measured.maps is not None:
        side = measured.maps.shape[-1]
        edges = cell_edges(length, side)
        # A map has the weight that the mean query of a row puts into a cell; a pair's mean is less.
        queries = np.diff(edges)[:, None]
        pairs = visible_pairs(edges, causal=bool(measured.about["causal"]))
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(pairs > 0, measured.maps * queries / pairs, np.nan)
        arrays["edges"] = edges.astype(np.int32)
        for layer, values in enumerate(means):
            arrays[f"layer.{layer}.overview.weights.mean"] = values.astype(np.float16)
    return arrays


def _length(measured: Measures) -> int:
    assert measured.kernel is not None
    return int(measured.kernel.shape[-1] + 1) // 2


def _distances(measured: Measures) -> list[int]:
    """Return distances from 0, dense near it; on both sides of a bidirectional model."""
    length, causal = _length(measured), bool(measured.about["causal"])
    # The farthest distances have few pairs and a noisy mean.
    last = max(1, length * 7 // 8 if causal else length * 3 // 4)
    behind = sorted({round(d) for d in np.geomspace(1, last + 1, POINTS) - 1})
    return behind if causal else [-d for d in reversed(behind[1:])] + behind


def _measured(about: Mapping[str, Any]) -> str:
    changed = f" Effects are over {about['effects']} of them." if about["effects"] else ""
    several = "s" * (about["sequences"] != 1)
    return (
        f"Measured on {about['sequences']} sequence{several} of {about['length']:,} tokens of "
        f"{about['text']}.{changed}"
    )


def _counted(rows: list[dict[str, Any]]) -> str:
    counts = {kind: sum(kind in row["kinds"] for row in rows) for kind in KINDS_OF_HEADS}
    parts = [
        f"{count} {kind} ({KINDS_OF_HEADS[kind][2]})" for kind, count in counts.items() if count
    ]
    return f"Of {len(rows)} heads: {'; '.join(parts)}." if parts else ""


def _opened(model: "Model | str | Path") -> "Model":
    from headscape.models.model import Model

    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        from headscape.models.load import load

        return load(model)
    raise InputError(f"atlas takes a model or its folder, got {type(model).__name__}.")
