"""Context-dependence: the share of a bias's variance that comes from the input.

With b_s[i, j] the bias of sequence s = 1 ... n between query i and key j, over visible entries:

    share = sum_s,i,j (b_s[i, j] - mean_s b_s[i, j])^2 / sum_s,i,j (b_s[i, j] - mean b)^2

0 means that (i, j) alone determines the bias, 1 that it determines nothing. The share over all
heads adds up the numerators and the denominators of the heads, each with its own mean.

Everything is computed relative to the first sequence's map, so maps that are equal bit for bit give
exactly 0.0. Both sums are quadratic in the differences, so one n x n Gram matrix per head contains
all that the bootstrap over sequences needs, and the cost of resampling does not depend on the
length. A resample repeats sequences, which shrinks the numerator by (n - 1)/n on average; the
interval is corrected for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from headscape.errors import InputError
from headscape.measures.interval import resamples, tails

MINIMUM_SEQUENCES: Final = 16


@dataclass(frozen=True, kw_only=True)
class ContextDependence:
    """The share, with its 95% bootstrap interval over sequences (interval.py)."""

    sequences: int
    heads: tuple[float, ...]
    """Share per head."""
    head_intervals: tuple[tuple[float, float], ...]
    overall: float
    """Share over all heads."""
    interval: tuple[float, float]


def context_dependence(maps: Iterable[Float[np.ndarray, "h t s"]]) -> ContextDependence:
    """Return the context-dependence of one layer.

    maps  the maps of at least 16 sequences of one length, NaN where a key is invisible
    """
    gram, along, ones, base, count = _products(maps)
    sequences = gram.shape[-1]
    times = np.concatenate([np.ones((1, sequences)), *resamples(sequences)])
    squares = np.einsum("hss->hs", gram) @ times.T
    spread = np.einsum("rs,hsu,ru->hr", times, gram, times, optimize=True) / sequences
    within = np.maximum(squares - spread, 0.0)
    within[:, 1:] *= sequences / (sequences - 1)
    total = sequences * base[:, None] + 2 * along @ times.T + squares
    total -= (ones @ times.T) ** 2 / (sequences * count)
    shares = _ratio(within, total)
    overall = _ratio(within.sum(axis=0), total.sum(axis=0))
    limits = np.percentile(shares[:, 1:], tails(sequences), axis=1)
    return ContextDependence(
        sequences=sequences,
        heads=tuple(shares[:, 0].tolist()),
        head_intervals=tuple((float(low), float(high)) for low, high in limits.T),
        overall=float(overall[0]),
        interval=tuple(np.percentile(overall[1:], tails(sequences)).tolist()),
    )


def _products(
    maps: Iterable[np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the inner products over visible entries that the shares are computed from.

    With x_s = b_s - b_1 and c = b_1 minus its mean: <x_s, x_u> [h n n], <c, x_s> [h n],
    <1, x_s> [h n], <c, c> [h], and the number of visible entries.
    """
    sequence_maps = iter(maps)
    first = next(sequence_maps, None)
    if first is None:
        raise InputError(f"context-dependence needs at least {MINIMUM_SEQUENCES} sequences, got 0.")
    visible = np.isfinite(first).all(axis=0)
    origin = first[:, visible].astype(np.float64)
    differences: list[np.ndarray | None] = [None]
    for each in sequence_maps:
        if each.shape != first.shape:
            raise InputError(
                f"context-dependence compares maps of one shape, got {first.shape} and "
                f"{each.shape}; capture sequences of one length."
            )
        entries = each[:, visible]
        same = np.array_equal(entries, first[:, visible])
        differences.append(None if same else (entries - origin).astype(np.float32))
    sequences = len(differences)
    if sequences < MINIMUM_SEQUENCES:
        raise InputError(
            f"context-dependence needs at least {MINIMUM_SEQUENCES} sequences, got {sequences}."
        )
    heads = len(first)
    centred = origin - origin.mean(axis=1, keepdims=True)
    gram = np.zeros((heads, sequences, sequences))
    along, ones = np.zeros((heads, sequences)), np.zeros((heads, sequences))
    moved = [index for index, each in enumerate(differences) if each is not None]
    if moved:
        kept = [each for each in differences if each is not None]
        for head in range(heads):
            x = np.stack([each[head] for each in kept]).astype(np.float64)
            gram[head][np.ix_(moved, moved)] = x @ x.T
            along[head, moved] = x @ centred[head]
            ones[head, moved] = x.sum(axis=1)
    return gram, along, ones, np.einsum("hp,hp->h", centred, centred), int(visible.sum())


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, at most 1; 0 for a constant bias, which has no variance."""
    positive = whole > 0
    share: np.ndarray = np.where(positive, part, 0.0) / np.where(positive, whole, 1.0)
    limited: np.ndarray = np.minimum(share, 1.0)
    return limited
