"""Captions made from what was captured, so that a figure cannot say what its data does not.

A caption names the method, the quantity, the layer, the model, the sequence and the conventions,
and ends with whether the pattern depends on the context: as a number where it was measured, and
otherwise as the encoding's own claim, said to be one.
"""

from collections.abc import Mapping
from typing import Any, Final

from headscape.arrays.capture_file import Capture
from headscape.arrays.measures import Measures

_SHOWN: Final[Mapping[str, str]] = {
    "content": "content scores (scaled q·k before any position)",
    "bias": "positional bias (final score less scaled q·k)",
    "final": "final attention scores (pre-softmax)",
    "weights": "attention weights (softmax)",
}


def caption(capture: Capture, layer: int, quantity: str, measures: Measures | None = None) -> str:
    """The caption of a figure of `quantity` in `layer`."""
    heads = "head" if len(capture.heads) == 1 else "heads"
    place = f"{_layer(capture, layer)} of {_model(capture)}"
    shown = f"{_SHOWN[quantity]} of {len(capture.heads)} {heads}"
    parts = [f"{capture.title}: {shown}, {place}."]
    if capture.encoding == "rope":
        rotated = "of the rotated queries and keys"
        parts.append(
            f"RoPE adds no bias: these are the scores {rotated}."
            if quantity == "final"
            else f"RoPE adds no bias: its positional part is what the scores {rotated} changed."
        )
    parts.append(_sequence(capture))
    if capture.resolution is not None:
        parts.append(f"Each cell is the mean of its entries, {capture.resolution} cells a side.")
    if capture.conventions:
        parts.append(f"Conventions: {_listed(capture.conventions)}.")
    parts.append(_context(capture, quantity, measures))
    return " ".join(parts)


def _layer(capture: Capture, layer: int) -> str:
    count = capture.model.get("layers")
    if count is None:
        return f"layer {layer + 1}"
    return (
        f"final layer ({count} of {count})"
        if layer + 1 == count
        else f"layer {layer + 1} of {count}"
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
    told = [
        f"{name} {capture.sequence[name]}"
        for name in ("corpus", "document", "offset", "seed")
        if capture.sequence.get(name) is not None
    ]
    source = f" ({', '.join(told)})" if told else ""
    return f"One sequence of {capture.length:,} tokens{source}."


def _listed(conventions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in conventions.items())


def _context(capture: Capture, quantity: str, measures: Measures | None) -> str:
    if measures is None or measures.context is None:
        if quantity != "bias":
            return "Scores of queries and keys vary with the input; how much was not measured."
        claim = "depends on" if capture.claims.get("context_dependent") else "does not depend on"
        return f"By its formula the bias {claim} the context; not measured here."
    found = measures.context
    what = {"bias": "bias", "weights": "attention"}.get(measures.quantity, "score")
    over = f"of the {what}'s variance over {found.sequences} sequences"
    if found.overall == 0:
        return (
            f"Context-independent: the {what} is uniform across tokens; "
            f"the input explains exactly 0 {over}."
        )
    share, low, high = (f"{100 * each:.3g}%" for each in (found.overall, *found.interval))
    return (
        f"Context-dependent: the {what} varies across tokens; "
        f"the input explains {share} {over} (95% interval {low} to {high})."
    )
