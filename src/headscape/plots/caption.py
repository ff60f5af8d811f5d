"""Captions made from what was captured, so that a figure cannot say what its data does not.

A caption names the method, the quantity, the layer (counted from 1), the model, the sequence and
the conventions. It ends with whether the pattern depends on the context: as a number where it was
measured, otherwise as what the encoding's formula says.
"""

from collections.abc import Mapping
from typing import Any, Final

from headscape.captures.capture_file import Capture
from headscape.captures.labels import encoding_name, shown_conventions
from headscape.measures.context import ContextDependence
from headscape.measures.measures import Measures

_SHOWN: Final[Mapping[str, str]] = {
    "content": "content scores (scaled q·k before any position)",
    "bias": "positional bias (final score minus scaled q·k)",
    "final": "final attention scores (pre-softmax)",
    "weights": "attention weights",
}


def caption(
    capture: Capture,
    layer: int,
    quantity: str,
    measures: Measures | None = None,
) -> str:
    """Return the caption of a figure of `quantity` in `layer`, counted from 0."""
    heads = "head" if len(capture.heads) == 1 else "heads"
    place = f"{_layer(capture, layer)} of {_model(capture)}"
    shown = f"{_SHOWN[quantity]} of {len(capture.heads)} {heads}"
    name = encoding_name(capture)
    parts = [f"{name}: {shown}, {place}."]
    about = capture.about(layer)
    if about["shows"] == "final" and quantity in {"bias", "final"}:
        parts.append(
            f"{about.get('title', name)} adds no bias: these are the final scores."
            if quantity == "final"
            else f"{about.get('title', name)} adds no bias: shown is what it changed in the scores."
        )
    if about["shows"] == quantity == "weights":
        parts.append(f"{about.get('title', name)} adds no bias: position acts on the weights.")
    parts.append(_sequence(capture))
    if capture.resolution is not None:
        parts.append(f"Each cell is the mean of its entries, {capture.resolution} cells a side.")
    if about["conventions"]:
        parts.append(f"Conventions: {_listed(about['conventions'])}.")
    parts.append(_context(capture, layer, quantity, _found(measures, layer)))
    return " ".join(parts)


def _layer(capture: Capture, layer: int) -> str:
    count, title = capture.model.get("layers"), capture.about(layer).get("title")
    which = "" if title is None else f", {title},"
    if count is None:
        return f"layer {layer + 1}{which}"
    return (
        f"final layer ({count} of {count}){which}"
        if layer + 1 == count
        else f"layer {layer + 1} of {count}{which}"
    )


def _model(capture: Capture) -> str:
    state = "trained" if capture.trained else "untrained"
    step = capture.provenance.get("step")
    if capture.trained and step is not None:
        state += f" for {step:,} steps"
    model = capture.model
    trained_at = model.get("train_length")
    length = f" at length {trained_at}" if capture.trained and trained_at else ""
    return f"the {model.get('preset', 'custom')} model ({state}{length})"


def _sequence(capture: Capture) -> str:
    known = [
        f"{name} {capture.sequence[name]}"
        for name in ("corpus", "document", "offset", "seed")
        if capture.sequence.get(name) is not None
    ]
    source = f" ({', '.join(known)})" if known else ""
    return f"One sequence of {capture.length:,} {capture.unit}{source}."


def _listed(conventions: Mapping[str, Any]) -> str:
    shown = shown_conventions(conventions)
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _found(measures: Measures | None, layer: int) -> ContextDependence | None:
    return None if measures is None else measures.context.get(layer)


def _context(capture: Capture, layer: int, quantity: str, found: ContextDependence | None) -> str:
    if found is None:
        if quantity != "bias":
            return "Scores of queries and keys vary with the input; how much was not measured."
        depends = capture.about(layer)["claims"].get("context_dependent")
        claim = "depends on" if depends else "does not depend on"
        return f"By its formula the bias {claim} the context; not measured here."
    what = {"bias": "bias", "weights": "attention"}.get(quantity, "score")
    over = f"of the {what}'s variance over {found.sequences} sequences"
    if found.overall == 0:
        return (
            f"Context-independent: the {what} is uniform across {capture.unit}; "
            f"the input explains exactly 0 {over}."
        )
    share, low, high = (f"{100 * each:.3g}%" for each in (found.overall, *found.interval))
    return (
        f"Context-dependent: the {what} varies across {capture.unit}; "
        f"the input explains {share} {over} (95% interval {low} to {high})."
    )
