"""Bias against distance: the curve behind a Toeplitz map, with its spread over tokens.

For each head and each distance d = query - key, the profile has the mean, the minimum, the maximum
and the 10th and 90th percentile of the map's d-th diagonal. Where the bias is a function of the
distance all five are equal. Invisible entries are NaN and left out; a distance without a visible
entry is left out, so causal maps give d = 0 ... t-1. Reduced maps have no exact profile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float, Int64

from headscape.errors import InputError

BAND: Final = 128
"""Distances, and queries, that are read at a time."""
Read = Callable[[slice, slice], Float[np.ndarray, "h r c"]]
"""Returns the values of some queries and keys; NaN where a key is invisible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Five curves per head over the same distances."""

    distance: Int64[np.ndarray, " n"]
    mean: Float[np.ndarray, "h n"]
    min: Float[np.ndarray, "h n"]
    max: Float[np.ndarray, "h n"]
    low: Float[np.ndarray, "h n"]
    """10th percentile."""
    high: Float[np.ndarray, "h n"]
    """90th percentile."""

    @classmethod
    def of(cls, maps: Float[np.ndarray, "h t t"]) -> "Profile":
        """Return the profile of one sequence's maps, which must not be reduced."""
        return cls.of_blocks(lambda rows, cols: maps[:, rows, cols], maps.shape[1])

    @classmethod
    def of_blocks(cls, read: Read, length: int, *, causal: bool = False) -> "Profile":
        """Return the profile of maps that are read a block of queries and keys at a time.

        Memory is of order heads x length. `causal` leaves out the distances below 0 unread.
        """
        distances, curves = [], []
        for first in range(0 if causal else 1 - length, length, BAND):
            band = np.arange(first, min(first + BAND, length))
            for distance, diagonal in zip(band, _diagonals(read, length, band), strict=True):
                entries = diagonal[:, np.isfinite(diagonal).all(axis=0)]
                if entries.shape[1] == 0:
                    continue
                distances.append(distance)
                low, high = np.percentile(entries, [10, 90], axis=1)
                # Relative to one entry, so that the mean of equal entries is exactly their value.
                start = entries[:, :1]
                mean = (start + (entries - start).mean(axis=1, keepdims=True))[:, 0]
                curves.append((mean, entries.min(axis=1), entries.max(axis=1), low, high))
        if not curves:
            raise InputError("no distance has a finite value in every head to be drawn.")
        mean, minimum, maximum, low, high = np.array(curves).transpose(1, 2, 0)
        return cls(
            distance=np.array(distances, dtype=np.int64),
            mean=mean,
            min=minimum,
            max=maximum,
            low=low,
            high=high,
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
