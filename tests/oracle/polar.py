"""PoPE and BAM, pair by pair."""

import math

import numpy as np


def pope_scores(
    q: np.ndarray,
    k: np.ndarray,
    phase: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    base: float = 10_000.0,
) -> np.ndarray:
    """sum_m sp(q_im) sp(k_jm) cos((i - j) w_m - b_hm) / sqrt(e); q, k [b h t e], phase [h e]."""
    e = q.shape[-1]
    speed = np.array([base ** (-m / e) for m in range(e)])
    b = np.minimum(np.maximum(phase, -2 * math.pi), 0.0)
    found = np.zeros((*q.shape[:3], len(kpos)))
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            turn = np.cos((i - j) * speed - b)
            sizes = np.logaddexp(0, q[:, :, row]) * np.logaddexp(0, k[:, :, column])
            found[:, :, row, column] = (sizes * turn).sum(axis=-1) / math.sqrt(e)
    return found


def bam_bias(
    scale: np.ndarray, shape: np.ndarray, loc: np.ndarray, qpos: np.ndarray, kpos: np.ndarray
) -> np.ndarray:
    """-exp(scale_h) (|j - i - 2 sinh(loc_h)| + 1e-5)^shape_h, [h t s]."""
    found = np.zeros((len(scale), len(qpos), len(kpos)))
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            away = np.abs(j - i - 2 * np.sinh(loc)) + 1e-5
            found[:, row, column] = -np.exp(scale) * away**shape
    return found
