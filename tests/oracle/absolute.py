"""Positions added to the embeddings: a learned table, sinusoids.

learned      x + wpe[pos]; past the table there is no value: IndexError
sinusoidal   theta_m = base^(-2m/C), m = 0..C/2-1; scale * (sin(p theta_m), cos(p theta_m)),
             p = pos + offset, "interleaved" (sin at 2m, cos at 2m+1) or in "halves" (all sines,
             then all cosines)
                                                                  Vaswani et al., arXiv 1706.03762
"""

import math

import numpy as np


def learned_embedding(x: np.ndarray, wpe: np.ndarray, pos: np.ndarray) -> np.ndarray:
    """x [b t d] + wpe [n d] at pos [t]."""
    return np.asarray(x, np.float64) + np.asarray(wpe, np.float64)[np.asarray(pos)]


def sinusoidal_embedding(
    pos: np.ndarray,
    C: int,
    *,
    layout: str,
    scale: float = 1.0,
    base: float = 1e4,
    offset: int = 0,
) -> np.ndarray:
    """What is added to the embeddings at pos [t] -> [t C]."""
    assert layout in ("interleaved", "halves"), layout
    table = np.zeros((len(pos), C))
    for row, i in enumerate(pos):
        for m in range(C // 2):
            angle = float(i + offset) * base ** (-2 * m / C)
            sine, cosine = (2 * m, 2 * m + 1) if layout == "interleaved" else (m, m + C // 2)
            table[row, sine], table[row, cosine] = scale * math.sin(angle), scale * math.cos(angle)
    return table
