"""What is known of one captured layer, and what a title says of it.

A title names what only some layers or models have: in a schedule the layer's encoding, and wherever
there is one a window, chunk, temperature, softcap or sink.
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
"""Fields of every encoding, and their values where they are switched off."""


def about_layer(described: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """Return the conventions, `shows` and `claims` of a layer, counted from 0.

    `described` has a capture's model, conventions and claims. In a model whose layers differ, the
    layer also has a `title`, that of its encoding.
    """
    model, conventions = described["model"], described["conventions"]
    return {
        "conventions": conventions.get(str(layer), conventions),
        "shows": str(model.get("shows", "bias")),
        "claims": described["claims"],
        **model.get("schedule", {}).get(str(layer), {}),
    }


def layer_note(about: Mapping[str, Any]) -> str:
    """Return what a title adds to a layer's number: RoPE, window 64; empty if there is nothing."""
    on = about["conventions"]
    noted = [about["title"]] if "title" in about else []
    noted += [
        name if on[name] is True else f"{name} {_plain(on[name])}"
        for name, off in OFF.items()
        if on.get(name, off) != off
    ]
    return ", ".join(noted)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
