"""The words on figures and in their file names, which count layers and heads from 1.

heading        CABLE, step 1,200, layer 6: positional bias
default_name   cable-step1200-layer6-head4-bias-grid
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headscape.arrays.capture_file import CaptureData

_QUANTITIES: Final[Mapping[str, str]] = {
    "content": "content scores",
    "bias": "positional bias",
    "final": "final scores",
    "weights": "attention weights",
}

_OFF: Final[Mapping[str, Any]] = {
    "window": None,
    "chunk": None,
    "temperature": "none",
    "softcap": None,
    "sink": False,
    "direction": "forward",
}


def shown_conventions(conventions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conventions without what is switched off, such as windows and sinks."""
    off = {name for name, value in _OFF.items() if conventions.get(name, value) == value}
    if "temperature" in off:
        off |= {"temperature_rate", "temperature_start", "temperature_on"}
    return {name: value for name, value in conventions.items() if name not in off}


def quantity_words(quantity: str) -> str:
    """Return what a quantity is called on figures."""
    return _QUANTITIES.get(quantity, quantity)


def encoding_name(capture: CaptureData) -> str:
    """Return the model's name, or else the key of its encoding."""
    return str(capture.model.get("name", capture.encoding))


def method(capture: CaptureData) -> str:
    """Return the encoding's name and the step of training."""
    name = encoding_name(capture)
    step = capture.provenance.get("step")
    if step is not None:
        return f"{name}, step {step:,}"
    return name if capture.trained else f"{name}, untrained"


def head_titles(heads: Sequence[int]) -> tuple[str, ...]:
    """Return a panel title per head."""
    return tuple(f"Head {head + 1}" for head in heads)


def default_name(
    kind: str,
    captures: CaptureData | Sequence[CaptureData],
    *,
    quantity: str,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    query: int | None = None,
) -> str:
    """Return a file name without suffix that says what a figure of this `kind` shows.

    `layer` and `heads` count from 0; heads are named only where they are not all of the capture's.
    """
    several = [captures] if isinstance(captures, CaptureData) else list(captures)
    parts = ["-vs-".join(dict.fromkeys(_slug(each) for each in several))]
    if kind == "training":
        steps = [each.provenance.get("step") for each in several]
        parts = [several[0].encoding.replace("+", "-"), f"step{steps[0]}-to-{steps[-1]}"]
    if layer is not None:
        parts.append(f"layer{layer + 1}")
    if heads is not None and tuple(heads) != several[0].heads:
        word = "head" if len(heads) == 1 else "heads"
        parts.append(word + "-".join(str(head + 1) for head in heads))
    if query is not None:
        parts.append(f"query{query}")
    return "-".join([*parts, quantity, kind])


def _slug(capture: CaptureData) -> str:
    name = capture.encoding.replace("+", "-")
    step = capture.provenance.get("step")
    return name if step is None else f"{name}-step{step}"
