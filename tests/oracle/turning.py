"""Rotations whose angles are read off the tokens, stick-breaking and PaTH, token by token.

Selective RoPE  angle_ihm = theta_m sum_{t<=i} sum_l taps[h, m, K-1-l] phi_{t-l},hm, phi = W2 W1 x^
CARoPE          angle_ihm = sum_{t<=i} (1 / (softplus(x_t W^T) + 1))^(first + m)
RePo            angle_ihm = theta_m W_f (silu(W_g x_i) * W_c x_i)
GRAPE-M         angle_im = -freq_m sum_{t<i} sigmoid((x_t W^T + b) / 16)
stick-breaking  w_ij = sigmoid(S_ij) prod_{j<t<i} (1 - sigmoid(S_it)), what is left to j = i
PaTH            S_ij = q_i^T H_i ... H_{j+1} k_j / sqrt(e), H_t = I - beta_t w_t w_t^T
Wall            S_ij = sum_c q_ic k_jc prod_{j<t<=i} gate_tc / sqrt(e)

Angles are [b h s m], one per key's token; x [b s d] are the tokens of the keys.
"""

import numpy as np

from oracle.attention import own_key
from oracle.content import sigmoid, softplus
from oracle.rotary import _pair


def turn(x: np.ndarray, angle: np.ndarray, *, pairing: str) -> np.ndarray:
    """x [b h t e] rotated by angles [b h t m]."""
    out, pairs = np.array(x, np.float64), angle.shape[-1]
    for m in range(pairs):
        first, second = _pair(m, 2 * pairs, pairing)
        a, b = x[..., first], x[..., second]
        cos, sin = np.cos(angle[..., m]), np.sin(angle[..., m])
        out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def convolve(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """x [b h s m], taps [h m K], the last tap on the token itself."""
    out, K = np.zeros_like(x), taps.shape[-1]
    for t in range(x.shape[2]):
        for lag in range(min(K, t + 1)):
            out[:, :, t] += taps[:, :, K - 1 - lag] * x[:, :, t - lag]
    return out


def selective_angles(
    x: np.ndarray,
    maps: list[np.ndarray],
    taps: np.ndarray | None,
    theta: np.ndarray,
    *,
    heads: int,
    bias: np.ndarray | None = None,
    gate: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """The angles of Selective RoPE.

    `maps` are W1 and W2, or a matrix per head [h c m] and the lengths [h] that its columns get.
    Without `taps`, phi of the token before is subtracted.
    """
    b, s, d = x.shape
    unit = x.reshape(b, s, heads, d // heads)
    unit = unit / np.sqrt((unit**2).sum(-1, keepdims=True) + 1e-6)
    if maps[0].ndim == 3:
        columns = maps[0] / np.sqrt((maps[0] ** 2).sum(1, keepdims=True))
        phi = np.einsum("bshc,hcm,h->bhsm", unit, columns, maps[1])
    else:
        phi = unit.reshape(b, s, d) @ maps[0].T @ maps[1].T
        phi = phi.reshape(b, s, heads, -1).transpose(0, 2, 1, 3)
    if taps is None:
        phi = phi - np.concatenate([0 * phi[:, :, :1], phi[:, :, :-1]], axis=2)
    else:
        phi = convolve(phi, taps)
    if bias is not None:
        phi = phi + np.exp(bias)[:, None]
    if gate is not None:
        opened = sigmoid(unit.reshape(b, s, d) @ gate[0].T + gate[1])
        phi = phi * opened.reshape(b, s, heads, -1).transpose(0, 2, 1, 3)
    return theta * np.stack([phi[:, :, : i + 1].sum(axis=2) for i in range(s)], axis=2)


def carope_angles(
    x: np.ndarray, W: np.ndarray, pairs: int, *, first: int = 1, own: bool = True
) -> np.ndarray:
    """The angles of CARoPE."""
    base = np.swapaxes(1 / (softplus(x @ W.T) + 1), 1, 2)
    steps = np.stack([base ** (first + m) for m in range(pairs)], axis=-1)
    return np.stack([steps[:, :, : i + own].sum(axis=2) for i in range(x.shape[1])], axis=2)


def repo_angles(
    x: np.ndarray, Wf: np.ndarray, theta: np.ndarray, maps: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray:
    """The angles of RePo; `maps` are W_g and W_c, and without them z is x W_f^T."""
    if maps is not None:
        gate = x @ maps[0].T
        x = gate * sigmoid(gate) * (x @ maps[1].T)
    z = x @ Wf.T
    return np.swapaxes(z, 1, 2)[..., None] * theta


def grape_angles(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray,
    freq: np.ndarray,
    increments: str = "sigmoid",
    scale: float = 16.0,
) -> np.ndarray:
    """The angles of the contextual GRAPE-M, [b 1 or h, s, m]; freq [m] or [h 1 m]."""
    z = np.swapaxes(x @ W.T + b, 1, 2)
    step = sigmoid(z / scale) if increments == "sigmoid" else softplus(z)
    phase = np.stack([step[:, :, :i].sum(axis=2) for i in range(x.shape[1])], axis=2)
    return -phase[..., None] * freq


def stick_weights(
    scores: np.ndarray, visible: np.ndarray, *, attended: bool = False, rest: bool = True
) -> np.ndarray:
    """Weights [b h t s] for pairs visible [t s]; the last visible key is the query's own."""
    weights = np.zeros_like(scores)
    for row in range(scores.shape[2]):
        keys = np.flatnonzero(visible[row])
        left = np.ones(scores.shape[:2])
        for j in keys[::-1] if attended else keys[-2::-1]:
            part = sigmoid(scores[:, :, row, j])
            weights[:, :, row, j] = left * part
            left = left * (1 - part)
        weights[:, :, row, keys[-1]] += left * rest
    return weights


def path_scores(
    q: np.ndarray,
    k: np.ndarray,
    w: np.ndarray,
    beta: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
) -> np.ndarray:
    """Scores [b h t s] through the reflections w [b h s e], beta [b h s]; NaN if hidden."""
    scores = np.full((*q.shape[:3], k.shape[2]), np.nan)
    for row, i in enumerate(own_key(qpos, kpos)):
        back = np.array(q[:, :, row], np.float64)
        for j in range(i, -1, -1):
            scores[:, :, row, j] = (back * k[:, :, j]).sum(-1) / np.sqrt(q.shape[-1])
            met = (back * w[:, :, j]).sum(-1) * beta[:, :, j]
            back = back - met[..., None] * w[:, :, j]
    return scores


def wall_scores(
    q: np.ndarray, k: np.ndarray, gate: np.ndarray, qpos: np.ndarray, kpos: np.ndarray
) -> np.ndarray:
    """Scores [b h t s] through the gates [b h s e], between 0 and 1; NaN if hidden."""
    scores = np.full((*q.shape[:3], k.shape[2]), np.nan)
    for row, i in enumerate(own_key(qpos, kpos)):
        back = np.array(q[:, :, row], np.float64)
        for j in range(i, -1, -1):
            scores[:, :, row, j] = (back * k[:, :, j]).sum(-1) / np.sqrt(q.shape[-1])
            back = back * gate[:, :, j]
    return scores
