"""DAPE and DAPEv2: a small network over the heads' scores A and static biases B.

DAPE    S = A + B + W2 leaky(W1 [A;B] + b1) + b2, at every pair by itself   Zheng et al., 2405.14722
DAPEv2  S = A + B + conv2(leaky(conv1(X))), X = [A;B] with zeros at hidden pairs     2410.04798
        convolutions run along the keys of one query, kernel k, centred

Channels are the H scores, then the H biases; without B (NoPE, RoPE) the H scores alone. leaky has
slope 0.01. A is scaled and unmasked; the caller masks S afterwards.

DAPEv2's boundary: both pad X with zeros left and right. "released" also pads the hidden map with
zeros, so the last k//2 columns depend on how many keys there are. "masked" computes k//2 more
hidden columns to the right from zeros, as if unseen keys followed, and so does not depend on it.

Absent: even kernels, which have no centre.
"""

import numpy as np


def _leaky(z: np.ndarray) -> np.ndarray:
    return np.where(z > 0, z, 0.01 * z)


def _channels(A: np.ndarray, B: np.ndarray | None) -> np.ndarray:
    """[A;B] over the head axis: [b h t s] twice -> [b 2h t s]."""
    if B is None:
        return A
    return np.concatenate([A, np.broadcast_to(B, A.shape)], axis=1)


def dape_scores(
    A: np.ndarray,
    B: np.ndarray | None,
    *,
    W1: np.ndarray,
    b1: np.ndarray,
    W2: np.ndarray,
    b2: np.ndarray,
    add_bias: bool = True,
) -> np.ndarray:
    """A [b h t s], B [h t s] or [b h t s] or None; W1 [m 2h], b1 [m], W2 [h m], b2 [h].

    add_bias=False is the form A + f([A;B]) of CABLE's authors.
    """
    A, W1, b1, W2, b2 = (np.asarray(w, np.float64) for w in (A, W1, b1, W2, b2))
    X = np.moveaxis(_channels(A, B), 1, -1)
    mixed = np.moveaxis(_leaky(X @ W1.T + b1) @ W2.T + b2, -1, 1)
    return A + mixed + (B if B is not None and add_bias else 0.0)


def _along_keys(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """out[o, i, j] = b[o] + sum_{c, r} W[o, c, r] X[c, i, j + r - k//2], zero outside the keys."""
    k, keys = W.shape[-1], X.shape[-1]
    assert k % 2 == 1, k
    out = np.zeros((X.shape[0], W.shape[0], *X.shape[2:])) + b[:, None, None]
    for j in range(keys):
        for r in range(k):
            source = j + r - k // 2
            if 0 <= source < keys:
                out[:, :, :, j] += np.einsum("oc,bct->bot", W[:, :, r], X[:, :, :, source])
    return out


def dapev2_scores(
    A: np.ndarray,
    B: np.ndarray | None,
    *,
    W1: np.ndarray,
    b1: np.ndarray,
    W2: np.ndarray,
    b2: np.ndarray,
    visible: np.ndarray,
    boundary: str,
) -> np.ndarray:
    """A [b h t s], B as in `dape_scores`, W1 [m 2h k], W2 [h m k] (or Conv2d's [.. .. 1 k]).

    visible [t s] or [b 1 t s] says which pairs enter the convolution; consecutive columns are
    neighbours. NaN at hidden pairs of B does no harm to visible ones.
    """
    A, W1, b1, W2, b2 = (np.asarray(w, np.float64) for w in (A, W1, b1, W2, b2))
    W1, W2 = (W.reshape(W.shape[0], W.shape[1], W.shape[-1]) for W in (W1, W2))
    keys = A.shape[-1]
    X = np.where(visible, _channels(A, B), 0.0)
    assert boundary in ("masked", "released"), boundary
    if boundary == "masked":
        unseen = np.zeros((*X.shape[:-1], W2.shape[-1] // 2))
        X = np.concatenate([X, unseen], axis=-1)
    Y = _along_keys(_leaky(_along_keys(X, W1, b1)), W2, b2)[..., :keys]
    return A + Y + (0.0 if B is None else B)
