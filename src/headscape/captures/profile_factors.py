"""What a head's map is by distance and by query: profiles, and what can be taken away from a map.

    by distance   count, mean, standard deviation, least and greatest of all pairs with one i - j
    by query      the mean over its visible keys

The map minus its row means, or minus its distance means (what is left when position by distance is
taken away), is the map minus a bias of a known kind: row_i - 0, or table[i - j].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

from headscape.captures.bias_factors import BiasFactor, SlopeFactor, ToeplitzFactor
from headscape.captures.factors import LayerFactors
from headscape.captures.pooled import Norms
from headscape.errors import InputError

Minus = Literal["nothing", "row", "distance"]
LONGEST = 32_768
"""Tokens up to which every pair goes into a profile; beyond, `samples` of the queries do."""


@dataclass(frozen=True, eq=False)
class Profile:
    """A map by distance, from distance `first` on, and by query."""

    first: int
    count: Float64[np.ndarray, " n"]
    mean: Float64[np.ndarray, " n"]
    std: Float64[np.ndarray, " n"]
    min: Float64[np.ndarray, " n"]
    max: Float64[np.ndarray, " n"]
    rows: Float64[np.ndarray, " t"]
    """Mean of each query over its visible keys; NaN where a query was left out."""
    complete: bool
    """Whether every query went in."""

    def minus(self, what: Minus) -> BiasFactor | None:
        """What is to be taken away, as a bias with one head."""
        if what == "nothing":
            return None
        if not self.complete:
            raise InputError(
                f"taking away the {what} mean needs every pair: use at most {LONGEST} tokens."
            )
        if what == "row":
            return SlopeFactor(None, self.rows[None], np.zeros((1, len(self.rows))))
        if what == "distance":
            return ToeplitzFactor(self.mean[None], -self.first)
        raise InputError(f"unknown minus {what!r}: choose nothing, row or distance.")


def profile(
    layer: LayerFactors,
    head: int,
    quantity: str,
    *,
    norms: Norms | None = None,
    samples: int = 512,
) -> Profile:
    """Profile one head of one quantity over all visible pairs."""
    length, first = layer.length, 0 if layer.causal else 1 - layer.length
    size = length - first
    count, total, square = np.zeros(size), np.zeros(size), np.zeros(size)
    least, greatest = np.full(size, np.inf), np.full(size, -np.inf)
    rows, complete = np.full(length, np.nan), length <= LONGEST
    # Squares are taken of differences from a first guess, so that a large mean costs no digits.
    guess = np.zeros(size)
    for query, values in _rows(layer, head, quantity, norms, None if complete else samples):
        rows[query] = values.mean()
        nearest = 0 if layer.causal else query + 1 - length
        at = slice(nearest - first, nearest - first + len(values))
        backwards = values[::-1]
        fresh = count[at] == 0
        guess[at] = np.where(fresh, backwards, guess[at])
        off = backwards - guess[at]
        count[at] += 1
        total[at] += off
        square[at] += off * off
        np.minimum(least[at], backwards, out=least[at])
        np.maximum(greatest[at], backwards, out=greatest[at])
    some = np.maximum(count, 1)
    mean = total / some
    std = np.sqrt(np.maximum(square / some - mean * mean, 0.0))
    found = {"mean": guess + mean, "std": std, "min": least, "max": greatest}
    blank = {name: np.where(count > 0, value, np.nan) for name, value in found.items()}
    return Profile(first=first, count=count, rows=rows, complete=complete, **blank)


def _rows(
    layer: LayerFactors, head: int, quantity: str, norms: Norms | None, samples: int | None
) -> Iterator[tuple[int, np.ndarray]]:
    """Each query with its visible values, keys ascending."""
    length = layer.length
    queries = np.arange(length)
    if samples is not None:
        queries = np.unique(np.linspace(0, length - 1, samples).astype(np.int64))
    step = max(1, (1 << 20) // length)
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        rows = slice(int(part[0]), int(part[-1]) + 1) if samples is None else part
        cols = slice(0, int(part[-1]) + 1 if layer.causal else length)
        lse = None
        if norms is not None and quantity == "weights":
            spans = [rows] if isinstance(rows, slice) else [slice(q, q + 1) for q in part.tolist()]
            lse = np.concatenate([norms(head, span) for span in spans])
        block = layer.block(quantity, head, rows, cols, lse=lse)
        for query, values in zip(part, block, strict=True):
            first = layer.first_key(int(query))
            yield int(query), values[first : query + 1] if layer.causal else values
