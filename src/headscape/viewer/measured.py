"""Measures of every head in a pack's header, where the viewer's sorting and tables find them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headscape.captures.browser import Pack
from headscape.captures.saved_call import rows_at_once
from headscape.measures.definitions import MEASURES, computed, estimates
from headscape.measures.measures import Measures

MAX_PAIRS: Final = 1 << 22
"""Pairs of tokens, over all heads, up to which a capture is measured when it is opened."""


def with_measures(pack: Pack) -> Pack:
    """Return the pack with `measures` in its header: those of the bias and the weights.

    A capture of more than MAX_PAIRS pairs is not measured here: the viewer then offers what it
    computes itself.
    """
    from headscape.measures.sums import Rows, sums_of_maps

    layers, heads, length = pack.header["layers"], pack.header["heads"], pack.length
    if "measures" in pack.header or len(layers) * len(heads) * length**2 > MAX_PAIRS:
        return pack
    causal = bool(pack.header["causal"])
    by_layer = [
        computed(sums_of_maps(_blocks(pack, n), heads=len(heads), length=length, causal=causal))
        for n in layers
    ]
    values = {
        name: parts[:1]
        for name, parts in estimates(by_layer, Rows(length, causal)).items()
        if not MEASURES[name].numbers_heads
    }
    measures = Measures(
        quantity="bias", about={}, layers=tuple(layers), heads=tuple(heads), values=values
    )
    return replace(pack, header={**pack.header, "measures": measures.for_viewer()})


def table_of(values: np.ndarray) -> Any:
    """Return nested lists of numbers with 6 digits, None where there is none."""
    if values.ndim:
        return [table_of(each) for each in values]
    return float(f"{values:.6g}") if np.isfinite(values) else None


def _blocks(pack: Pack, layer: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield queries with their biases and weights."""
    heads, stored = range(len(pack.header["heads"])), pack.layer(layer)
    for rows in rows_at_once(len(heads), pack.length):
        scores, weights = (
            stored.tile(quantity, heads, rows, slice(0, pack.length))
            for quantity in ("bias", "weights")
        )
        yield rows, scores, weights
