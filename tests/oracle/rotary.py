"""Rotations of queries and keys: RoPE, its scalings for longer texts, xPos.

RoPE: theta_m = base^(-2m/R), m = 0..R/2-1; pair m of the first R dimensions turns by pos * theta_m:
(a, b) -> (a cos - b sin, b cos + a sin)                             Su et al., arXiv 2104.09864
Pairs are (m, m + R/2) in "half" pairing and (2m, 2m+1) in "interleaved"; the rest passes through.

linear       theta / f                                               Chen et al., arXiv 2306.15595
ntk          base * f^(R/(R-2)) for base
dynamic      ntk with factor f L/L0 - (f-1), for L > L0
yarn         theta for fast bands, theta/f for slow ones, a ramp over m between them; cos and sin
             times 0.1 ln f + 1                                      Peng et al., arXiv 2309.00071
llama3       theta for waves shorter than L0/high, theta/f for those longer than L0/low, in between
             a blend linear in L0/wavelength
proportional theta / f for the first pairs of the whole head, 0 for the others
learned      theta exp(a), a learned per pair                        Mistral Large 4
xPos         RoPE with q times zeta_m^((i-centre)/base), k times zeta_m^-((j-centre)/base),
             zeta_m = (2m + 0.4 e) / (1.4 e)                         Sun et al., arXiv 2212.10554
"""

import math

import numpy as np


def rope_frequencies(R: int, base: float = 1e4) -> np.ndarray:
    """theta [R/2]."""
    return np.array([base ** (-2 * m / R) for m in range(R // 2)])


def linear_frequencies(R: int, f: float, base: float = 1e4) -> np.ndarray:
    """Position interpolation, written on the frequencies."""
    return rope_frequencies(R, base) / f


def ntk_frequencies(R: int, f: float, base: float = 1e4) -> np.ndarray:
    """A larger base: the fastest band stays, the slowest is divided by f."""
    return rope_frequencies(R, base * f ** (R / (R - 2)))


def dynamic_ntk_frequencies(R: int, f: float, L: int, L0: int, base: float = 1e4) -> np.ndarray:
    """ntk whose factor follows the current length L; unscaled up to the trained length L0."""
    return ntk_frequencies(R, f * max(L, L0) / L0 - (f - 1), base)


def yarn_frequencies(
    R: int, f: float, L0: int, base: float = 1e4, fast: float = 32, slow: float = 1
) -> np.ndarray:
    """Bands that turn more than `fast` times in L0 tokens stay, less than `slow` are divided."""

    def band(turns: float) -> float:
        return R * math.log(L0 / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(band(fast)), 0), min(math.ceil(band(slow)), R - 1)
    theta = rope_frequencies(R, base)
    for m in range(R // 2):
        divided = min(max((m - low) / max(high - low, 0.001), 0.0), 1.0)
        theta[m] *= (1 - divided) + divided / f
    return theta


def proportional_frequencies(R: int, f: float, turned: int, base: float = 1e4) -> np.ndarray:
    """The first `turned` pairs turn, the others do not."""
    theta = linear_frequencies(R, f, base)
    return np.array([theta[m] if m < turned else 0.0 for m in range(R // 2)])


def learned_frequencies(theta: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Any frequencies, each times a learned factor."""
    return np.array([t * math.exp(x) for t, x in zip(theta, a, strict=True)])


def yarn_factor(f: float) -> float:
    """What YaRN multiplies cos and sin by; scores get its square."""
    return 0.1 * math.log(f) + 1


def llama3_frequencies(
    R: int, f: float, L0: int, base: float = 1e4, low: float = 1, high: float = 4
) -> np.ndarray:
    """Llama 3.1's recipe; low and high are waves per L0 tokens."""
    theta = rope_frequencies(R, base)
    for m in range(R // 2):
        waves = L0 * theta[m] / (2 * math.pi)
        kept = min(max((waves - low) / (high - low), 0.0), 1.0)
        theta[m] *= kept + (1 - kept) / f
    return theta


def _pair(m: int, R: int, pairing: str) -> tuple[int, int]:
    assert pairing in ("half", "interleaved"), pairing
    return (m, m + R // 2) if pairing == "half" else (2 * m, 2 * m + 1)


def rotate(
    x: np.ndarray, pos: np.ndarray, theta: np.ndarray, *, pairing: str, factor: float = 1.0
) -> np.ndarray:
    """x [b h t e] at positions pos [t], theta [R/2], R <= e; factor multiplies cos and sin."""
    x = np.asarray(x, np.float64)
    R = 2 * len(theta)
    out = x.copy()
    for row, i in enumerate(pos):
        for m in range(R // 2):
            first, second = _pair(m, R, pairing)
            cos, sin = (factor * w(float(i) * theta[m]) for w in (math.cos, math.sin))
            a, b = x[:, :, row, first], x[:, :, row, second]
            out[:, :, row, first] = a * cos - b * sin
            out[:, :, row, second] = b * cos + a * sin
    return out


def xpos_rotate(
    x: np.ndarray,
    pos: np.ndarray,
    *,
    role: str,
    pairing: str = "interleaved",
    scale_base: float = 512,
    centre: float = 0,
    base: float = 1e4,
) -> np.ndarray:
    """xPos of x [b h t e], role "query" or "key"; the centre cancels in scores."""
    assert role in ("query", "key"), role
    e = np.shape(x)[-1]
    out = rotate(x, pos, rope_frequencies(e, base), pairing=pairing)
    sign = 1 if role == "query" else -1
    for row, i in enumerate(pos):
        for m in range(e // 2):
            zeta = (2 * m + 0.4 * e) / (1.4 * e)
            out[:, :, row, list(_pair(m, e, pairing))] *= zeta ** (sign * (i - centre) / scale_base)
    return out
