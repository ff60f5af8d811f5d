"""Attention weights summed up: over heads, over layers (rollout), over sequences.

Each is a capture of weights, so it is drawn, viewed, measured and saved like any other. What made
the weights is not part of it: an average of softmaxes has no scores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from jaxtyping import Float32

from headscape.captures.capture_file import Capture
from headscape.captures.own_arrays import from_arrays
from headscape.errors import InputError

MAX_LENGTH: Final = 4096
"""Tokens up to which weights are summed up: whole maps are kept, of 4 length^2 bytes each."""


def over_heads(capture: Capture, how: str = "mean") -> Capture:
    """Return the weights of each layer with all captured heads as one: their mean or their sum.

    Args:
        capture: What every head did with one sequence.
        how: "mean" or "sum".
    """
    if how not in {"mean", "sum"}:
        raise InputError(f"heads are combined by mean or sum, not {how!r}.")
    layers = [_weights(capture, layer) for layer in capture.layers]
    combined = [getattr(layer, how)(axis=0, keepdims=True) for layer in layers]
    return _summed(capture, capture.layers, combined, f"{how} of {len(capture.heads)} heads")


def rollout(capture: Capture) -> Capture:
    """Return how much each token of the input is part of each position, layer by layer.

    Attention rollout (Abnar and Zuidema 2020, arXiv:2005.00928): with W the mean over heads, every
    layer mixes by (W + I) / 2, rows scaled to sum to 1; the mixings are multiplied from the first
    layer on. In a hybrid these are the layers with attention only, and the result says so.

    Args:
        capture: All layers from the first on, and all heads.
    """
    if capture.layers != tuple(range(len(capture.layers))):
        raise InputError(
            "rollout multiplies the layers from the first on: capture all layers, or the first few."
        )
    if len(capture.heads) != capture.model.get("heads"):
        raise InputError("rollout takes the mean over all heads: capture all of them.")
    mixed = np.eye(capture.length)
    layers: list[np.ndarray] = []
    for layer in capture.layers:
        step = (
            _weights(capture, layer).mean(axis=0, dtype=np.float64) + np.eye(capture.length)
        ) / 2
        mixed = step / step.sum(axis=-1, keepdims=True) @ mixed
        layers.append(mixed[None].astype(np.float32))
    hybrid = "other_layers" in capture.provenance
    what = "rollout of its attention layers only" if hybrid else "rollout"
    return _summed(capture, capture.layers, layers, what)


def over_sequences(captures: Iterable[Capture]) -> Capture:
    """Return the weights of every head averaged over sequences of one length.

    Args:
        captures: Of the same layers and heads of a model, such as `captures` returns.
    """
    every = [*captures]
    if not every:
        raise InputError("an average needs at least one capture, got none.")
    first = every[0]
    for one in every:
        for name in ("length", "layers", "heads", "causal"):
            if getattr(one, name) != getattr(first, name):
                raise InputError(
                    f"captures that are averaged must agree in {name}, got {getattr(first, name)} "
                    f"and {getattr(one, name)}."
                )
    layers = [
        np.asarray(np.mean([_weights(one, layer) for one in every], axis=0, dtype=np.float64))
        for layer in first.layers
    ]
    summary = _summed(first, first.layers, layers, f"mean of {len(every)} sequences")
    # The tokens differ, so the first sequence's would be wrong labels.
    same = all(np.array_equal(one.tokens, first.tokens) for one in every)
    summary = replace(summary, heads=first.heads)
    return summary if same else replace(summary, sequence={"pieces": []})


def _weights(capture: Capture, layer: int) -> Float32[np.ndarray, "h t s"]:
    if capture.length > MAX_LENGTH:
        raise InputError(
            f"weights are summed up for at most {MAX_LENGTH:,} tokens, and the capture has "
            f"{capture.length:,}: capture a shorter part."
        )
    return capture.weights(layer=layer)


def _summed(
    capture: Capture, layers: Sequence[int], weights: Sequence[np.ndarray], what: str
) -> Capture:
    """Return a capture of weights of the same sequence and layers."""
    summary = from_arrays(
        [np.asarray(each, dtype=np.float32) for each in weights],
        causal=capture.causal,
        normalized=False,
        name=f"{capture.model['name']}, {what}",
    )
    calls = {layer: summary.calls[at] for at, layer in enumerate(layers)}
    return replace(
        summary,
        layers=tuple(layers),
        calls=calls,
        sequence={"pieces": list(capture.sequence.get("pieces") or [])},
        tokens=capture.tokens,
        model={**summary.model, "layers": capture.model.get("layers", len(layers))},
        provenance={**capture.provenance, "summary": what},
        trained=capture.trained,
    )
