"""Biases that read only positions: ALiBi, T5, Kerple, FIRE, Sandwich.

ALiBi     B = -m_h |i-j|                                        Press et al., arXiv 2108.12409
T5        B = factor * table[bucket(j-i), h]                    Raffel et al., arXiv 1910.10683
clipped   B = table[clip(i-j, -K, K) + K, h]
Kerple    B = -p_h ln(1 + a_h |i-j|),  or  -a_h |i-j|^p_h       Chi et al., arXiv 2205.09921
FIRE      B = MLP(u)_h, u = ln(1+|c (i-j)|) / (ln(1 + |c| max(i, |L_mult L0|)) + 1e-6)
                                                                Li et al., arXiv 2310.04418
Sandwich  B = (sum_m cos((i-j) base^(-2m/R)) - R/2) / (8h/H)    Chi et al., arXiv 2212.10356

Absent: forms that add a constant to a row (ALiBi as m_h j), which softmax cannot tell apart but a
picture can; a bidirectional FIRE, which nobody has defined.
"""

import math

import numpy as np

from oracle.attention import per_pair


def alibi_slopes(heads: int, rule: str) -> np.ndarray:
    """m_h [h] by rule: geometric, fairseq, mpt, falcon."""

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8 * h / count) for h in range(1, count + 1)]

    if rule == "geometric":
        return np.array(geometric(heads))
    if rule == "mpt":
        above = 1
        while above < heads:
            above *= 2
        slopes = geometric(above)
        if above != heads:
            slopes = slopes[1::2] + slopes[0::2]
        return np.array(slopes[:heads])
    below = 1
    while 2 * below <= heads:
        below *= 2
    slopes = np.array(geometric(below) + geometric(2 * below)[0::2][: heads - below])
    if rule == "fairseq":
        return slopes
    assert rule == "falcon", rule
    return np.array([_to_bfloat16(slope) for slope in slopes])


def _to_bfloat16(value: float) -> float:
    """The nearest number with 8 significant bits, ties to even (no overflow, no subnormals)."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def alibi_bias(
    slopes: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, causal: bool = True
) -> np.ndarray:
    """-m_h |i-j|: slopes [h] -> [h t s]."""
    m = np.asarray(slopes, np.float64)
    return per_pair(len(m), qpos, kpos, lambda i, j: -m * abs(i - j), causal=causal)


def t5_bucket(relative: int, *, N: int = 32, M: int = 128, bidirectional: bool = False) -> int:
    """Bucket of `relative` = key position - query position."""
    offset = 0
    if bidirectional:
        N //= 2
        offset = N if relative > 0 else 0
        n = abs(relative)
    else:
        n = max(-relative, 0)
    E = N // 2
    if n < E:
        return offset + n
    return offset + min(E + math.floor(math.log(n / E) / math.log(M / E) * (N - E)), N - 1)


def t5_bias(
    table: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    M: int = 128,
    bidirectional: bool = False,
    factor: float = 1.0,
) -> np.ndarray:
    """factor * table[bucket]: table [N h] -> [h t s]. factor is sqrt(e) in gpt-neox, 1 in T5."""
    table = np.asarray(table, np.float64)
    N, heads = table.shape
    return per_pair(
        heads,
        qpos,
        kpos,
        lambda i, j: factor * table[t5_bucket(j - i, N=N, M=M, bidirectional=bidirectional)],
        causal=not bidirectional,
    )


def wavlm_gate(x: np.ndarray, V: np.ndarray, v: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The gate of every token and head, [b h s], from x [b s d], V [8 d/h], v [8], c [h]."""
    b, s, d = x.shape
    found = np.zeros((b, len(c), s))
    for head in range(len(c)):
        own = x[:, :, head * d // len(c) : (head + 1) * d // len(c)]
        y = own @ np.asarray(V, np.float64).T + v
        first, second = (1 / (1 + np.exp(-part.sum(-1))) for part in (y[..., :4], y[..., 4:]))
        found[:, head] = first * (second * c[head] - 1) + 2
    return found


def grid_bias(
    table: np.ndarray,
    height: int,
    width: int,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    class_token: bool = False,
    causal: bool = True,
) -> np.ndarray:
    """table [n h] by offset in a grid of tokens, the class token's three rows last -> [h t s]."""
    table = np.asarray(table, np.float64)

    def value(i: int, j: int) -> np.ndarray:
        if class_token:
            if i == 0 or j == 0:
                return table[-1] if i == j else table[-3] if i == 0 else table[-2]
            i, j = i - 1, j - 1
        dy, dx = i // width - j // width, i % width - j % width
        dy = max(1 - height, min(height - 1, dy))
        return table[(dy + height - 1) * (2 * width - 1) + dx + width - 1]

    return per_pair(table.shape[1], qpos, kpos, value, causal=causal)


def t5_clipped_bias(
    table: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, K: int = 256, causal: bool = True
) -> np.ndarray:
    """One value per clipped distance: table [2K+1 h], or [K+1 h] of which row = min(i-j, K)."""
    table = np.asarray(table, np.float64)
    rows, heads = table.shape
    assert rows == 2 * K + 1 or (rows == K + 1 and causal), (rows, K, causal)
    zero = rows - 1 - K
    return per_pair(
        heads, qpos, kpos, lambda i, j: table[min(max(i - j, -K), K) + zero], causal=causal
    )


def kerple_clamp(
    p: np.ndarray, a: np.ndarray, *, p_max: float = math.inf
) -> tuple[np.ndarray, np.ndarray]:
    """The authors' bounds on their raw parameters: both >= 0.01, and p <= 2 in the power form."""
    p, a = np.ravel(np.asarray(p, np.float64)), np.ravel(np.asarray(a, np.float64))
    return np.minimum(np.maximum(p, 0.01), p_max), np.maximum(a, 0.01)


def kerple_log_bias(
    p: np.ndarray, a: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, causal: bool = True
) -> np.ndarray:
    """-p_h ln(1 + a_h |i-j|): p, a [h], taken as they are (no bounds) -> [h t s]."""
    p, a = np.ravel(np.asarray(p, np.float64)), np.ravel(np.asarray(a, np.float64))
    return per_pair(len(p), qpos, kpos, lambda i, j: -p * np.log(1 + a * abs(i - j)), causal=causal)


def kerple_power_bias(
    p: np.ndarray, a: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, causal: bool = True
) -> np.ndarray:
    """-a_h |i-j|^p_h: p, a [h], taken as they are (no bounds) -> [h t s]."""
    p, a = np.ravel(np.asarray(p, np.float64)), np.ravel(np.asarray(a, np.float64))
    return per_pair(len(p), qpos, kpos, lambda i, j: -a * float(abs(i - j)) ** p, causal=causal)


def kerple_power_weight(
    p: np.ndarray, a: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, causal: bool = True
) -> np.ndarray:
    """exp(-a_h |i-j|^p_h), the factor on q.k of Kerple's multiplicative form -> [h t s]."""
    return np.exp(kerple_power_bias(p, a, qpos, kpos, causal=causal))


def fire_bias(
    *,
    c: float,
    L_mult: float,
    L0: float,
    W1: np.ndarray,
    b1: np.ndarray,
    W2: np.ndarray,
    b2: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    negative_slope: float = 0.0,
    eps: float = 1e-6,
) -> np.ndarray:
    """MLP(u): W1 [m 1], b1 [m], W2 [h m], b2 [h] -> [h t s]; causal only.

    negative_slope 0 is ReLU (plain FIRE), 0.01 the LeakyReLU of FIRE inside DAPE.
    """
    W1, b1, W2, b2 = (np.asarray(w, np.float64) for w in (W1, b1, W2, b2))
    c, threshold = float(c), abs(float(L_mult) * float(L0))

    def value(i: int, j: int) -> np.ndarray:
        u = math.log(1 + abs(c * (i - j))) / (math.log(1 + abs(c) * max(i, threshold)) + eps)
        hidden = W1[:, 0] * u + b1
        return W2 @ np.where(hidden > 0, hidden, negative_slope * hidden) + b2

    return per_pair(len(b2), qpos, kpos, value)


def sandwich_bias(
    heads: int,
    R: int,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    base: float = 1e4,
    first: int = 1,
    shift: bool = True,
    causal: bool = True,
) -> np.ndarray:
    """Sinusoids' inner product over 8h/H, h = 1..H -> [h t s].

    The R/2 terms start at m = `first`: 1 in NeMo, 0 in the paper. shift subtracts R/2, which makes
    the bias of distance 0 zero.
    """
    compression = 8 * np.arange(1, heads + 1) / heads

    def value(i: int, j: int) -> np.ndarray:
        terms = [math.cos((i - j) * base ** (-2 * m / R)) for m in range(first, first + R // 2)]
        return (sum(terms) - (R / 2 if shift else 0.0)) / compression

    return per_pair(heads, qpos, kpos, value, causal=causal)
