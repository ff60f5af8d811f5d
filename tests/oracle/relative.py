"""Biases that read queries and keys: Shaw, Transformer-XL, DeBERTa, Inkling, GRAPE; pair by pair.

q is [b h t e], k [b h s e]; every bias is [b h t s] and includes the factor of the scores.
"""

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray


def _pairs(
    b: int, h: int, qpos: Array, kpos: Array, value: Callable[[int, int, int], Array]
) -> Array:
    """value(row, column, distance) [b h] of every pair."""
    found = np.zeros((b, h, len(qpos), len(kpos)))
    for row, i in enumerate(qpos):
        for column, j in enumerate(kpos):
            found[:, :, row, column] = value(row, column, int(i - j))
    return found


def shaw_bias(
    q: Array, table: Array, left: int, right: int, qpos: Array, kpos: Array, scale: float
) -> Array:
    """scale q_i . a[clip(j - i, -left, right) + left]; table [left + right + 1, e]."""

    def value(row: int, _: int, distance: int) -> Array:
        at = min(max(-distance, -left), right) + left
        return scale * (q[:, :, row] @ table[at])

    return _pairs(*q.shape[:2], qpos, kpos, value)


def xl_sinusoids(
    distance: int, width: int, *, layout: str = "halves", base: float = 10_000.0
) -> Array:
    """R(d): all sines, then all cosines; or each sine with its cosine."""
    angles = [distance / base ** (2 * m / width) for m in range(width // 2)]
    if layout == "halves":
        return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
    return np.array([wave(a) for a in angles for wave in (math.sin, math.cos)])


def xl_bias(
    q: Array,
    k: Array,
    u: Array,
    w: Array,
    W: Array,
    qpos: Array,
    kpos: Array,
    scale: float,
    *,
    layout: str = "halves",
    base: float = 10_000.0,
    clamp: int | None = None,
) -> Array:
    """scale (u_h . k_j + (q_i + w_h) . (W R(i - j))_h); u, w [h e], W [h e, width]."""
    heads, e = u.shape

    def value(row: int, column: int, distance: int) -> Array:
        if clamp is not None:
            distance = min(max(distance, -clamp), clamp)
        R = (W @ xl_sinusoids(distance, W.shape[1], layout=layout, base=base)).reshape(heads, e)
        by_query = ((q[:, :, row] + w) * R).sum(-1)
        return scale * (by_query + (u * k[:, :, column]).sum(-1))

    return _pairs(*q.shape[:2], qpos, kpos, value)


def deberta_bucket(distance: int, n: int, M: int | None) -> int:
    """The distance up to n/2, then logarithmic up to M, with its sign; without M the distance."""
    if M is None:
        return distance
    middle, size = n // 2, abs(distance)
    if size <= middle:
        return distance
    far = math.ceil(math.log(size / middle) / math.log((M - 1) / middle) * (middle - 1)) + middle
    return far if distance > 0 else -far


def deberta_bias(
    q: Array,
    k: Array,
    K: Array | None,
    Q: Array | None,
    n: int,
    M: int | None,
    qpos: Array,
    kpos: Array,
    scale: float,
) -> Array:
    """scale (q_i . K_b + k_j . Q_b), b = clip(n + bucket(i - j), 0, 2n - 1); K, Q [h 2n e]."""

    def value(row: int, column: int, distance: int) -> Array:
        b = min(max(n + deberta_bucket(distance, n, M), 0), 2 * n - 1)
        found = np.zeros(q.shape[:2])
        if K is not None:
            found = found + (q[:, :, row] * K[:, b]).sum(-1)
        if Q is not None:
            found = found + (k[:, :, column] * Q[:, b]).sum(-1)
        return scale * found

    return _pairs(*q.shape[:2], qpos, kpos, value)


def inkling_bias(r: Array, P: Array, qpos: Array, kpos: Array) -> Array:
    """r_i . P[:, i - j] for 0 <= i - j < extent, else 0; r [b h t c], P [c extent]."""

    def value(row: int, _: int, distance: int) -> Array:
        inside = 0 <= distance < P.shape[1]
        return r[:, :, row] @ P[:, distance] if inside else np.zeros(r.shape[:2])

    return _pairs(*r.shape[:2], qpos, kpos, value)


def clipped(x: Array, limit: float) -> Array:
    """Vectors no longer than the limit; Inkling 2 adds 1e-6 to a length."""
    length = np.sqrt((x**2).sum(-1, keepdims=True)) + 1e-6
    return x * np.minimum(limit / length, 1)


def grape_bias(
    q: Array,
    k: Array,
    slopes: Array,
    omega: Array,
    u: Array | None,
    w: Array | None,
    qpos: Array,
    kpos: Array,
    unit: tuple[bool, bool] = (True, True),
) -> Array:
    """-(i - j) m_h softplus(omega_h) (softplus(u.k_j/sqrt(e)) + softplus(w.q_i/sqrt(e))).

    `unit` says whether u and w are divided by their lengths.
    """
    e = q.shape[-1]

    def gate(x: Array, direction: Array, unit: bool) -> Array:
        if unit:
            direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
        return np.logaddexp(0, (x * direction).sum(-1) / math.sqrt(e))

    def value(row: int, column: int, distance: int) -> Array:
        rate = np.zeros(q.shape[:2])
        if u is not None:
            rate = rate + gate(k[:, :, column], u, unit[0])
        if w is not None:
            rate = rate + gate(q[:, :, row], w, unit[1])
        return -distance * slopes * np.logaddexp(0, omega) * rate

    return _pairs(*q.shape[:2], qpos, kpos, value)


def grape_path_bias(p: Array, slopes: Array, qpos: Array, kpos: Array) -> Array:
    """m_h sum over j < t <= i of ln sigmoid(p_i . R(t) p'_t / P); p [b h s P] of every key.

    Queries are the last keys. NaN where the key follows its query.
    """
    P, half = p.shape[-1], p.shape[-1] // 2
    norm = p / np.sqrt((p**2).mean(-1, keepdims=True) + np.finfo(np.float64).eps)
    turned = np.zeros_like(norm)
    for t, at in enumerate(kpos):
        pair = norm[:, :, t, :half] + 1j * norm[:, :, t, half:]
        pair = pair * np.exp(-1j * at)
        turned[:, :, t] = np.concatenate([pair.real, pair.imag], axis=-1)
    found = np.full((*p.shape[:2], len(qpos), len(kpos)), np.nan)
    past = len(kpos) - len(qpos)
    for row in range(len(qpos)):
        total = np.zeros(p.shape[:2])
        for t in range(past + row, -1, -1):
            found[:, :, row, t] = slopes * total
            z = (p[:, :, past + row] * turned[:, :, t]).sum(-1) / P
            total = total - np.logaddexp(0, -z)
    return found
