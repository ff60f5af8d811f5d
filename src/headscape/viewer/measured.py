"""Measures of every head as the viewer reads them: `measures` in a pack's header.

A measure is one record: name, label, text (what it is), form (how it is printed) and values by
layer and head, None where it does not apply. It is in the viewer's sorting and in the table of a
head by being in this list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headscape.captures.factors import rows_at_once
from headscape.captures.pack import Pack
from headscape.measures.measures import RowBlocks, measure_layer

MAX_PAIRS: Final = 1 << 22
"""Pairs of tokens, over all heads, up to which a capture is measured when it is opened."""
CAPTURED: Final = {
    "shift_invariance": (
        "position_share",
        "position share",
        "Share of the variance of the bias over visible pairs that the distance explains.",
        ".2f",
    ),
    "reach_median": (
        "reach_median",
        "reach, median",
        "Least distance that contains 90% of a query's weight, median over queries.",
        ".1f",
    ),
    "reach_mean": (
        "reach_mean",
        "reach, mean",
        "Least distance that contains 90% of a query's weight, mean over queries.",
        ".1f",
    ),
    "similarity": (
        "similarity",
        "similarity",
        "Correlation of the bias with that of the most similar head of the layer.",
        ".2f",
    ),
}
"""Measures of one capture: the column of its rows, and name, label, text and form."""


def with_measures(pack: Pack) -> Pack:
    """Return the pack with the measures of its heads in the header.

    A capture of more than MAX_PAIRS pairs is not measured here: the viewer then offers what it
    computes itself.
    """
    layers, heads = pack.header["layers"], pack.header["heads"]
    if "measures" in pack.header or len(layers) * len(heads) * pack.length**2 > MAX_PAIRS:
        return pack
    rows: list[Mapping[str, Any]] = []
    for layer in layers:
        maps, weights = (_blocks(pack, layer, quantity) for quantity in ("bias", "weights"))
        found = measure_layer(layer=layer, heads=tuple(heads), maps=maps, weights=weights)
        rows += found.records()
    records = []
    for column, (name, label, text, form) in CAPTURED.items():
        values = np.array([row[column] for row in rows], dtype=np.float64)
        table = table_of(values.reshape(len(layers), len(heads)))
        records.append({"name": name, "label": label, "text": text, "form": form, "values": table})
    return replace(pack, header={**pack.header, "measures": records})


def table_of(values: np.ndarray) -> Any:
    """Return nested lists of numbers with 6 digits, None where there is none."""
    if values.ndim:
        return [table_of(each) for each in values]
    return float(f"{values:.6g}") if np.isfinite(values) else None


def _blocks(pack: Pack, layer: int, quantity: str) -> RowBlocks:
    heads, factors = len(pack.header["heads"]), pack.layer(layer)

    def read() -> Iterator[tuple[slice, np.ndarray]]:
        for rows in rows_at_once(heads, pack.length):
            yield rows, factors.tile(quantity, range(heads), rows, slice(0, pack.length))

    return RowBlocks(heads, pack.length, read)
