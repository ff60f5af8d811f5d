"""A map by distance: the curve behind a Toeplitz map, with its spread over tokens.

For each head and each distance d = query - key, the profile has the count, mean, standard
deviation, minimum and maximum of the map's d-th diagonal. Where the bias is a function of the
distance, the last two are equal to the mean. Invisible entries are NaN and left out; a distance
without a visible entry is left out, so causal maps give d = 0 ... t-1. Reduced maps have no exact
profile.

The viewer's profile of one head has count, mean, standard deviation, least and greatest by distance
and the mean by query. The map minus its row means, or minus its distance means (what is left when
position by distance is taken away), is the map minus a bias with closed forms.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import Float, Float64, Int64

from headscape.captures.pooling import ClosedBias, DistanceTable, Norms, SumGap
from headscape.captures.saved_call import SavedCall
from headscape.errors import InputError

BAND: Final = 64
"""Queries that are read at a time."""
Minus = Literal["nothing", "row", "distance"]
MAX_EXACT: Final = 32_768
"""Tokens up to which every pair goes into a head's profile; beyond, `samples` of the queries do."""
Read = Callable[[slice, slice], Float[np.ndarray, "h r c"]]
"""Returns the values of some queries and keys; NaN where a key is invisible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Curves per head over the same distances."""

    distance: Int64[np.ndarray, " n"]
    count: Int64[np.ndarray, " n"]
    """Pairs at each distance."""
    mean: Float[np.ndarray, "h n"]
    min: Float[np.ndarray, "h n"]
    max: Float[np.ndarray, "h n"]
    std: Float[np.ndarray, "h n"]
    """Standard deviation over the pairs."""

    @classmethod
    def of(cls, maps: Float[np.ndarray, "h t t"]) -> "Profile":
        """Return the profile of one sequence's maps, which must not be reduced."""
        return cls.of_blocks(lambda rows, cols: maps[:, rows, cols], maps.shape[1])

    @classmethod
    def of_blocks(cls, read: Read, length: int, *, causal: bool = False) -> "Profile":
        """Return the profile of maps that are read a block of queries and keys at a time.

        Memory is of order heads x length. `causal` leaves out the distances below 0.
        """
        first = 0 if causal else 1 - length
        sums: DistanceSums | None = None
        for start in range(0, length, BAND):
            rows = slice(start, min(start + BAND, length))
            block = read(rows, slice(0, rows.stop if causal else length))
            sums = sums or DistanceSums(len(block), first, length - first)
            seen: np.ndarray = np.logical_and.reduce(np.isfinite(block), axis=0)
            for query in range(rows.start, rows.stop):
                keys = np.flatnonzero(seen[query - rows.start])
                if len(keys):
                    sums.add(query, keys, block[:, query - rows.start, keys])
        if sums is None or not sums.count.any():
            raise InputError("no distance has a finite value in every head to be drawn.")
        there = np.flatnonzero(sums.count)
        curves = {name: values[:, there] for name, values in sums.curves().items()}
        return cls(distance=there + first, count=sums.count[there].astype(np.int64), **curves)


class DistanceSums:
    """Sums of several heads by distance, from distance `first` on, taken a query at a time.

    Squares are taken of differences from the first entry of a distance, so that a large mean costs
    no digits and the mean of equal entries is exactly their value.
    """

    def __init__(self, heads: int, first: int, size: int) -> None:
        self.first = first
        self.count = np.zeros(size)
        self._guess, self._total, self._square = np.zeros((3, heads, size))
        self._least = np.full((heads, size), np.inf)
        self._greatest = np.full((heads, size), -np.inf)

    def add(
        self, query: int, keys: Int64[np.ndarray, " n"], values: Float[np.ndarray, "h n"]
    ) -> None:
        """Take what a query has at some keys, which ascend."""
        at: slice | np.ndarray = query - keys - self.first
        if keys[-1] - keys[0] + 1 == len(keys):
            at = slice(query - keys[-1] - self.first, query - keys[0] - self.first + 1)
            values = values[:, ::-1]
        fresh = self.count[at] == 0
        self._guess[:, at] = np.where(fresh, values, self._guess[:, at])
        off = values - self._guess[:, at]
        self.count[at] += 1
        self._total[:, at] += off
        self._square[:, at] += off * off
        self._least[:, at] = np.minimum(self._least[:, at], values)
        self._greatest[:, at] = np.maximum(self._greatest[:, at], values)

    def curves(self) -> dict[str, Float64[np.ndarray, "h n"]]:
        """Return mean, std, min and max; NaN at a distance without an entry."""
        some = np.maximum(self.count, 1)
        mean = self._total / some
        std = np.sqrt(np.maximum(self._square / some - mean * mean, 0.0))
        curves = {
            "mean": self._guess + mean, "std": std, "min": self._least, "max": self._greatest
        }  # fmt: skip
        return {name: np.where(self.count > 0, x, np.nan) for name, x in curves.items()}


@dataclass(frozen=True, eq=False)
class HeadProfile:
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

    def minus(self, what: Minus) -> ClosedBias | None:
        """What is to be taken away."""
        if what == "nothing":
            return None
        if not self.complete:
            raise InputError(
                f"taking away the {what} mean needs every pair: use at most {MAX_EXACT} tokens."
            )
        if what == "row":
            return SumGap(None, self.rows, np.zeros(len(self.rows)))
        if what == "distance":
            return DistanceTable(self.mean, -self.first)
        raise InputError(f"unknown minus {what!r}: choose nothing, row or distance.")


def profile(
    layer: SavedCall,
    head: int,
    quantity: str,
    *,
    norms: Norms | None = None,
    samples: int = 512,
) -> HeadProfile:
    """Profile one head of one quantity over all visible pairs."""
    length, first = layer.length, 0 if layer.orders_keys else 1 - layer.length
    sums = DistanceSums(1, first, length - first)
    rows, complete = np.full(length, np.nan), length <= MAX_EXACT
    for query, keys, part in _rows(layer, head, quantity, norms, None if complete else samples):
        rows[query] = part.mean()
        sums.add(query, keys, part[None])
    curves = {name: values[0] for name, values in sums.curves().items()}
    return HeadProfile(first=first, count=sums.count, rows=rows, complete=complete, **curves)


def _rows(
    layer: SavedCall, head: int, quantity: str, norms: Norms | None, samples: int | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each query that sees a key, with the keys it sees and their values."""
    length = layer.length
    queries = np.arange(length)
    if samples is not None:
        queries = np.unique(np.linspace(0, length - 1, samples).astype(np.int64))
    step = max(1, (1 << 20) // length)
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        rows = slice(int(part[0]), int(part[-1]) + 1) if samples is None else part
        cols = slice(0, int(part[-1]) + 1 if layer.orders_keys else length)
        lse = None
        if norms is not None and quantity == "weights" and layer.has_norms:
            spans = [rows] if isinstance(rows, slice) else [slice(q, q + 1) for q in part.tolist()]
            lse = np.concatenate([norms(head, span) for span in spans])
        block, visible = layer.block(quantity, head, rows, cols, lse=lse), layer.visible(rows, cols)
        for query, values, seen in zip(part, block, visible, strict=True):
            keys = np.flatnonzero(seen)
            if len(keys):
                span = values[keys[0] : keys[-1] + 1]
                yield int(query), keys, span if len(span) == len(keys) else values[keys]
