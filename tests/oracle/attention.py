"""Masked softmax attention: out_i = sum_j softmax_j(S_ij over visible j) v_j.

S = scale * q.k + bias, scale = 1/sqrt(e) unless given. A pair is visible when kpos <= qpos (causal)
or always (bidirectional), and the key is kept by the padding mask. A query that sees no key at all
gets zeros.
"""

from collections.abc import Callable

import numpy as np


def content_scores(q: np.ndarray, k: np.ndarray, scale: float | None = None) -> np.ndarray:
    """scale * q.k: [b h t e], [b h s e] -> [b h t s]."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    if scale is None:
        scale = 1 / np.sqrt(q.shape[-1])
    return scale * (q @ np.swapaxes(k, -1, -2))


def visible_pairs(
    qpos: np.ndarray, kpos: np.ndarray, *, causal: bool = True, keep: np.ndarray | None = None
) -> np.ndarray:
    """Which pairs take part: [t s], or [b 1 t s] with `keep` [b s], true where the key is text."""
    pairs = np.ones((len(qpos), len(kpos)), bool)
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            pairs[row, column] = j <= i or not causal
    if keep is None:
        return pairs
    return pairs & np.asarray(keep, bool)[:, None, None, :]


def masked_softmax(scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Weights [... t s]; hidden pairs weigh exactly 0, whatever their score is (NaN included)."""
    visible = np.broadcast_to(visible, scores.shape)
    masked = np.where(visible, scores, -np.inf)
    top = masked.max(axis=-1, keepdims=True)
    weights = np.exp(masked - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def attend(scores: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """softmax(scores over visible pairs) @ v: [b h t s], [b h s e] -> [b h t e]."""
    return masked_softmax(scores, visible) @ np.asarray(v, np.float64)


def per_pair(
    heads: int,
    qpos: np.ndarray,
    kpos: np.ndarray,
    value: Callable[[int, int], np.ndarray],
    *,
    causal: bool = True,
) -> np.ndarray:
    """bias[:, row, column] = value(i, j), the values of all heads; NaN at j > i when causal."""
    bias = np.full((heads, len(qpos), len(kpos)), np.nan)
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            if j <= i or not causal:
                bias[:, row, column] = value(int(i), int(j))
    return bias


def own_key(qpos: np.ndarray, kpos: np.ndarray) -> list[int]:
    """For every query, the column of the key that is its own token."""
    keys = [int(j) for j in kpos]
    return [keys.index(int(i)) for i in qpos]
