"""The mean of a measure over sequences with its 95% bootstrap interval."""

from typing import Final

import numpy as np
from jaxtyping import Float

RESAMPLES: Final = 1000


def estimate(values: Float[np.ndarray, " n *rest"], seed: int = 0) -> Float[np.ndarray, " 3 *rest"]:
    """Return mean, low and high; one sequence has no interval, NaN is not counted."""
    kept = np.asarray(values, dtype=np.float64)
    found = np.isfinite(kept)
    filled = np.where(found, kept, 0.0)
    sequences = len(kept)
    mean = _mean(filled, found, np.ones((1, sequences)))[0]
    if sequences < 2:
        return np.stack([mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)])
    share = np.full(sequences, 1 / sequences)
    times = np.random.default_rng(seed).multinomial(sequences, share, size=RESAMPLES)
    drawn = _mean(filled, found, times)
    with np.errstate(all="ignore"):
        missing = np.isnan(drawn).all(axis=0)
        low, high = np.nanpercentile(np.where(missing, 0.0, drawn), [2.5, 97.5], axis=0)
    return np.stack([mean, np.where(missing, np.nan, low), np.where(missing, np.nan, high)])


def _mean(filled: np.ndarray, found: np.ndarray, times: np.ndarray) -> np.ndarray:
    total = np.tensordot(times, filled, axes=1)
    count = np.tensordot(times, found.astype(np.float64), axes=1)
    mean: np.ndarray = np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)
    return mean
