"""What a capture says of one layer, and the note that titles add to the layer's number.

The note names the layer's encoding if layers differ, and its window, chunk, temperature, softcap
and sink if it has them.
"""

from collections.abc import Mapping
from typing import Any, Final

OFF: Final[Mapping[str, Any]] = {
    "window": None,
    "chunk": None,
    "temperature": "none",
    "softcap": None,
    "sink": False,
}
"""Fields of every encoding that a note names, and the value of each that switches it off."""


def about_layer(described: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """Return the conventions, `shows` and `claims` of a layer, counted from 0.

    `described` has a capture's model, conventions and claims. If layers differ, the `title` of the
    layer's encoding is returned too.
    """
    model, conventions = described["model"], described["conventions"]
    return {
        "conventions": conventions.get(str(layer), conventions),
        "shows": str(model.get("shows", "bias")),
        "claims": described["claims"],
        **model.get("schedule", {}).get(str(layer), {}),
    }


def layer_note(about: Mapping[str, Any]) -> str:
    """Return the note of a layer, such as "RoPE, window 64"; it may be empty."""
    conventions = about["conventions"]
    parts = [about["title"]] if "title" in about else []
    for name, off in OFF.items():
        value = conventions.get(name, off)
        if value != off:
            parts.append(name if value is True else f"{name} {_plain(value)}")
    return ", ".join(parts)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
