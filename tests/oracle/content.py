"""Biases that read the input: CABLE and its kernels, FoX, CoPE.

CABLE  B_ij = g_i (S_i - S_j), S_i = -sum_{t<=i} delta_t, delta = ReLU or softplus(x W^T + b),
       g = softplus(x U^T + c), or 1 (NW). Bidirectional: -|S_i - S_j| for S_i - S_j.
FoX    B_ij = sum_{t=j+1..i} ln sigmoid(x_t W^T + b)                 Lin et al., arXiv 2503.02130
CoPE   p_ij = min(sum_{t=j..i} sigmoid(q_i.k_t / sqrt(e)), n-1); z_i[m] = q_i.table[:, m];
       pos_ij = z_i interpolated linearly at p_ij                    Golovneva et al., 2405.18719

`x` [b s d] are the keys' tokens in the order of kpos, and every query's token is among them: a
decoding row asks for one qpos against all kpos. Sums run over the tokens strictly after the
earlier one up to the later one, directly, not as differences of running sums.

Absent: backward gates (a bidirectional FoX), CABLE's block-averaged variant, CoPE without a causal
order.
"""

import numpy as np

from oracle.attention import content_scores, own_key


def softplus(z: np.ndarray) -> np.ndarray:
    """ln(1 + e^z), stably."""
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-z), stably."""
    return np.exp(-softplus(-z))


def _project(x: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One number per token and head: x [b s d], W [h d], b [h] -> [b h s]."""
    x, W, b = (np.asarray(w, np.float64) for w in (x, W, b))
    return np.swapaxes(x @ W.T + b, 1, 2)


def _sums_between(
    steps: np.ndarray, qpos: np.ndarray, kpos: np.ndarray, *, causal: bool
) -> np.ndarray:
    """Sum of steps [b h s] after the earlier token up to the later: [b h t s], NaN if hidden."""
    sums = np.full((*steps.shape[:2], len(qpos), len(kpos)), np.nan)
    for row, i in enumerate(own_key(qpos, kpos)):
        for j in range(len(kpos)):
            if j <= i or not causal:
                sums[:, :, row, j] = steps[:, :, min(i, j) + 1 : max(i, j) + 1].sum(axis=-1)
    return sums


def cable_bias(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    U: np.ndarray | None = None,
    c: np.ndarray | None = None,
    increments: str,
    kernel: str = "none",
    causal: bool = True,
) -> np.ndarray:
    """CABLE's bias [b h t s]; with U [h d], c [h] weighted by the query's g, without them NW.

    increments: "relu" or "softplus". kernel: "none"; "sums", g_i * -ln((S_i - S_j)^2 + 1), as in
    the released code; "bias", -ln((g_i (S_i - S_j))^2 + 1), as the paper words it. The two kernels
    are one when there is no weight.
    """
    z = _project(x, W, b)
    assert increments in ("relu", "softplus"), increments
    delta = np.maximum(z, 0) if increments == "relu" else softplus(z)
    penalty = -_sums_between(delta, qpos, kpos, causal=causal)
    g = np.ones_like(penalty)
    if U is not None:
        assert c is not None
        g = g * softplus(_project(x, U, c))[:, :, own_key(qpos, kpos), None]
    if kernel == "none":
        return g * penalty
    if kernel == "sums":
        return g * -np.log(penalty**2 + 1)
    assert kernel == "bias", kernel
    return -np.log((g * penalty) ** 2 + 1)


def weighted_alibi_bias(
    x: np.ndarray,
    U: np.ndarray,
    c: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    causal: bool = True,
) -> np.ndarray:
    """-softplus(x U^T + c)_i |i-j|, CABLE's neighbour with unit increments -> [b h t s]."""
    g = softplus(_project(x, U, c))
    bias = np.full((*g.shape[:2], len(qpos), len(kpos)), np.nan)
    for row, own in enumerate(own_key(qpos, kpos)):
        for column, j in enumerate(kpos):
            if j <= qpos[row] or not causal:
                bias[:, :, row, column] = -g[:, :, own] * abs(int(qpos[row]) - int(j))
    return bias


def fox_bias(
    x: np.ndarray, W: np.ndarray, b: np.ndarray, qpos: np.ndarray, kpos: np.ndarray
) -> np.ndarray:
    """Log of the product of forget gates between key and query -> [b h t s]; causal only."""
    return _sums_between(-softplus(-_project(x, W, b)), qpos, kpos, causal=True)


def cope_positions(
    q: np.ndarray, k: np.ndarray, n: int, qpos: np.ndarray, kpos: np.ndarray
) -> np.ndarray:
    """p_ij [b h t s], in [0, n-1]; NaN at hidden pairs. kpos ascends."""
    gates = sigmoid(content_scores(q, k))
    p = np.full(gates.shape, np.nan)
    for row, i in enumerate(qpos):
        seen = [column for column, j in enumerate(kpos) if j <= i]
        for column in seen:
            counted = [t for t in seen if kpos[t] >= kpos[column]]
            p[:, :, row, column] = np.minimum(gates[:, :, row, counted].sum(axis=-1), n - 1)
    return p


def cope_scores(
    q: np.ndarray,
    k: np.ndarray,
    table: np.ndarray,
    qpos: np.ndarray,
    kpos: np.ndarray,
    *,
    scale_positions: bool = False,
) -> np.ndarray:
    """q.k/sqrt(e) + pos, or (q.k + pos)/sqrt(e): table [e n], shared by the heads -> [b h t s]."""
    q, table = np.asarray(q, np.float64), np.asarray(table, np.float64)
    e, n = table.shape
    p = cope_positions(q, k, n, qpos, kpos)
    z = q @ table
    pos = np.full(p.shape, np.nan)
    for index in np.argwhere(~np.isnan(p)):
        batch, head, row, column = index
        pos[batch, head, row, column] = np.interp(
            p[batch, head, row, column], np.arange(n), z[batch, head, row]
        )
    return content_scores(q, k) + pos * (1 / np.sqrt(e) if scale_positions else 1.0)
