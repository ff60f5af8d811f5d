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

BAND: Final = 128
"""Distances, and queries, that are read at a time."""
Minus = Literal["nothing", "row", "distance"]
LONGEST: Final = 32_768
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

        Memory is of order heads x length. `causal` leaves out the distances below 0 unread.
        """
        distances, counts, curves = [], [], []
        for first in range(0 if causal else 1 - length, length, BAND):
            band = np.arange(first, min(first + BAND, length))
            for distance, diagonal in zip(band, _diagonals(read, length, band), strict=True):
                entries = diagonal[:, np.isfinite(diagonal).all(axis=0)]
                if entries.shape[1] == 0:
                    continue
                distances.append(distance)
                counts.append(entries.shape[1])
                # Relative to one entry, so that the mean of equal entries is exactly their value.
                start = entries[:, :1]
                mean = (start + (entries - start).mean(axis=1, keepdims=True))[:, 0]
                std = (entries - start).std(axis=1)
                curves.append((mean, entries.min(axis=1), entries.max(axis=1), std))
        if not curves:
            raise InputError("no distance has a finite value in every head to be drawn.")
        mean, minimum, maximum, std = np.array(curves).transpose(1, 2, 0)
        return cls(
            distance=np.array(distances, dtype=np.int64),
            count=np.array(counts, dtype=np.int64),
            mean=mean,
            min=minimum,
            max=maximum,
            std=std,
        )


def _diagonals(
    read: Read, length: int, band: Int64[np.ndarray, " d"]
) -> Float[np.ndarray, "d h t"]:
    """Return the entries at each distance of a band by query, NaN where there is no key."""
    found = np.empty(0)
    for start in range(0, length, BAND):
        queries = np.arange(start, min(start + BAND, length))
        keys = queries - band[:, None]
        inside = (keys >= 0) & (keys < length)
        if not inside.any():
            continue
        rows = slice(int(queries[0]), int(queries[-1]) + 1)
        cols = slice(int(keys[inside].min()), int(keys[inside].max()) + 1)
        block = read(rows, cols)
        if not found.size:
            found = np.full((len(band), len(block), length), np.nan)
        distance, query = np.nonzero(inside)
        values = block[:, query, keys[inside] - cols.start]
        found[distance, :, query + rows.start] = values.T
    return found


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
                f"taking away the {what} mean needs every pair: use at most {LONGEST} tokens."
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
    size = length - first
    count, total, square = np.zeros(size), np.zeros(size), np.zeros(size)
    least, greatest = np.full(size, np.inf), np.full(size, -np.inf)
    rows, complete = np.full(length, np.nan), length <= LONGEST
    # Squares are taken of differences from a first guess, so that a large mean costs no digits.
    guess = np.zeros(size)
    for query, keys, found in _rows(layer, head, quantity, norms, None if complete else samples):
        rows[query] = found.mean()
        at: slice | np.ndarray = query - keys - first
        values = found
        if keys[-1] - keys[0] + 1 == len(keys):
            at, values = slice(query - keys[-1] - first, query - keys[0] - first + 1), found[::-1]
        fresh = count[at] == 0
        guess[at] = np.where(fresh, values, guess[at])
        off = values - guess[at]
        count[at] += 1
        total[at] += off
        square[at] += off * off
        least[at] = np.minimum(least[at], values)
        greatest[at] = np.maximum(greatest[at], values)
    some = np.maximum(count, 1)
    mean = total / some
    std = np.sqrt(np.maximum(square / some - mean * mean, 0.0))
    curves = {"mean": guess + mean, "std": std, "min": least, "max": greatest}
    blank = {name: np.where(count > 0, value, np.nan) for name, value in curves.items()}
    return HeadProfile(first=first, count=count, rows=rows, complete=complete, **blank)


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
