"""Bias against distance: the curve behind a Toeplitz map, with its spread over tokens.

For each head and each distance d = query - key, the profile has the mean, the minimum, the maximum
and the 10th and 90th percentile of the map's d-th diagonal. Where the bias is a function of the
distance all five are equal. Invisible entries are NaN and left out; a distance without a visible
entry is left out, so causal maps give d = 0 ... t-1. Reduced maps have no exact profile.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from headscape.errors import InputError


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
        length = maps.shape[1]
        distances, curves = [], []
        for distance in range(1 - length, length):
            entries = np.diagonal(maps, offset=-distance, axis1=1, axis2=2).astype(np.float64)
            entries = entries[:, np.isfinite(entries).all(axis=0)]
            if entries.shape[1] == 0:
                continue
            distances.append(distance)
            low, high = np.percentile(entries, [10, 90], axis=1)
            # Relative to the first entry, so that the mean of equal entries is exactly their value.
            first = entries[:, :1]
            mean = (first + (entries - first).mean(axis=1, keepdims=True))[:, 0]
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
