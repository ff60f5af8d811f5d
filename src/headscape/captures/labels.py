"""The words on figures and in their file names, which count layers, heads and queries from 1.

Axes show positions, which begin at 0.

heading        CABLE, step 1,200, layer 6: positional bias
default_name   cable-step1200-layer6-head4-bias-grid
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headscape.captures.capture_file import Capture
from headscape.captures.choice import OFF, layer_note
from headscape.io.files import file_name
from headscape.io.terminal import one_line, printable

_QUANTITIES: Final[Mapping[str, str]] = {
    "content": "content scores",
    "bias": "positional bias",
    "final": "final scores",
    "weights": "attention weights",
}


def shown_conventions(conventions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conventions without what is switched off, such as windows and sinks."""
    # RoPE's direction is a convention only where it is the unusual one.
    unsaid = {**OFF, "direction": "forward"}
    off = {name for name, value in unsaid.items() if conventions.get(name, value) == value}
    if "temperature" in off:
        off |= {"temperature_rate", "temperature_start", "temperature_on"}
    return {name: value for name, value in conventions.items() if name not in off}


def quantity_words(quantity: str) -> str:
    """Return what a quantity is called on figures."""
    return _QUANTITIES.get(quantity, quantity)


def encoding_name(capture: Capture) -> str:
    """Return the model's name, or else the key of its encoding."""
    return printable(one_line(str(capture.model.get("name", capture.encoding))))


def method(capture: Capture) -> str:
    """Return the encoding's name and the step of training."""
    name = encoding_name(capture)
    step = capture.provenance.get("step")
    if step is not None:
        return f"{name}, step {step:,}"
    return name if capture.trained else f"{name}, untrained"


def layer_words(capture: Capture, layer: int) -> str:
    """Return the number of a layer, from 1, and its note: layer 1 (RoPE, window 64).

    The layers of a hybrid are its blocks with attention, so the number of the block stands there
    too: layer 1, block 4.
    """
    note = printable(one_line(layer_note(capture.about(layer))))
    blocks = capture.provenance.get("blocks")
    name = f"layer {layer + 1}"
    if isinstance(blocks, list) and layer < len(blocks) and isinstance(blocks[layer], int):
        name += f", block {blocks[layer]}"
    return f"{name} ({note})" if note else name


def heading(capture: Capture, layer: int, quantity: str) -> str:
    """Return the heading of a figure of one layer, counted from 0."""
    return f"{method(capture)}, {layer_words(capture, layer)}: {quantity_words(quantity)}"


def position_label(role: str, unit: str) -> str:
    """Return the label of an axis: Key position, or Key frame if positions count frames."""
    return f"{role} frame" if unit == "frames" else f"{role} position"


def token_texts(capture: Capture) -> tuple[str, ...]:
    """Return the text of every token; its number where the capture has no text."""
    pieces = capture.sequence.get("pieces") or [str(token) for token in capture.tokens]
    return tuple(str(piece) for piece in pieces)


def head_titles(heads: Sequence[int]) -> tuple[str, ...]:
    """Return a panel title per head."""
    return tuple(f"Head {head + 1}" for head in heads)


def default_name(
    kind: str,
    captures: Capture | Sequence[Capture],
    *,
    quantity: str,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    query: int | None = None,
) -> str:
    """Return a file name without suffix that says what a figure of this `kind` shows.

    `layer`, `heads` and `query` count from 0. Heads are named only where they are not all of the
    capture's.
    """
    several = [captures] if isinstance(captures, Capture) else list(captures)
    parts = [file_name("-vs-".join(dict.fromkeys(_slug(each) for each in several)), 120)]
    if kind == "training":
        steps = [each.provenance.get("step") for each in several]
        parts = [_name(several[0]), f"step{steps[0]}-to-{steps[-1]}"]
    if layer is not None:
        parts.append(f"layer{layer + 1}")
    if heads is not None and tuple(heads) != several[0].heads:
        word = "head" if len(heads) == 1 else "heads"
        parts.append(word + "-".join(str(head + 1) for head in heads))
    if query is not None:
        parts.append(f"query{query + 1}")
    return "-".join([*parts, quantity, kind])


def _name(capture: Capture) -> str:
    """Return the encoding as part of a file name; of a schedule, its whole pattern.

    Of a capture without a known encoding, its name.
    """
    named = "schedule" in capture.model or capture.encoding == "unknown"
    name = encoding_name(capture) if named else capture.encoding
    return file_name(name)


def _slug(capture: Capture) -> str:
    name = _name(capture)
    step = capture.provenance.get("step")
    return name if step is None else f"{name}-step{step}"
