"""Windows, sinks, softcap, temperature, grouped queries and sheared biases, pair by pair."""

import numpy as np


def windowed(qpos: np.ndarray, kpos: np.ndarray, window: int, *, causal: bool = True) -> np.ndarray:
    """Which pairs [t s] a window of w leaves: i - w < j, and j <= i or, both ways, j < i + w."""
    pairs = np.zeros((len(qpos), len(kpos)), bool)
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            pairs[row, column] = i - window < j <= (i if causal else i + window - 1)
    return pairs


def chunked(qpos: np.ndarray, kpos: np.ndarray, chunk: int) -> np.ndarray:
    """Which pairs [t s] chunks of c leave: j <= i, and both in the same block of c positions."""
    pairs = np.zeros((len(qpos), len(kpos)), bool)
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            pairs[row, column] = j <= i and i // chunk == j // chunk
    return pairs


def shaped(
    scores: np.ndarray, temperature: np.ndarray | None = None, softcap: float | None = None
) -> np.ndarray:
    """cap tanh(tau_i s_ij / cap): scores [b h t s], temperature broadcast to [b h t]."""
    found = np.array(scores, np.float64)
    if temperature is not None:
        for row in range(found.shape[2]):
            found[:, :, row] *= temperature[:, :, row, None]
    return found if softcap is None else softcap * np.tanh(found / softcap)


def softmax_with_sink(scores: np.ndarray, visible: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """exp(S_ij) / (exp(sink_h) + sum over visible j of exp(S_ij)); scores [b h t s], sink [h]."""
    visible = np.broadcast_to(visible, scores.shape)
    total = np.where(visible, np.exp(np.where(visible, scores, 0.0)), 0.0)
    return total / (np.exp(sink)[:, None, None] + total.sum(axis=-1, keepdims=True))


def repeated(x: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [b hk s e] for every query head: head n reads n hk // heads."""
    return np.stack([x[:, n * x.shape[1] // heads] for n in range(heads)], axis=1)


def sheared_bias(
    r: np.ndarray, basis: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, zero: int
) -> np.ndarray:
    """B_ij = r_i . basis[:, i - j + zero], columns clipped: r [b h t c], basis [h c n]."""
    bias = np.zeros((*r.shape[:3], len(kpos)))
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            at = min(max(int(i - j) + zero, 0), basis.shape[2] - 1)
            bias[:, :, row, column] = np.einsum("bhc,hc->bh", r[:, :, row], basis[:, :, at])
    return bias
