"""What mixes the scores of a layer, as numbers: DAPE, DAPEv2, CoPE (formulas: headscape/encodings).

Each takes the scaled scores A (after rotation) and the bias B of all heads for some queries and a
range of keys, and gives the final scores of the keys asked for. `reach` says how many keys beyond
the range asked for it needs: none for DAPE, kernel - 1 on both sides for DAPEv2, and for CoPE every
key up to the query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
from jaxtyping import Float

from headscape.captures.cells import Tokens, indices

LEAK: Final = 0.01
"""Slope of DAPE's and DAPEv2's LeakyReLU below 0."""

CACHED: Final = 1 << 17
"""Most numbers of a convolution in memory at once."""

Scores = Float[np.ndarray, "h r c"]
Block = Callable[[Tokens, slice], Scores]
"""Gives values of all heads for some queries and keys."""


@dataclass(frozen=True)
class Parts:
    """What is mixed."""

    length: int
    causal: bool
    scores: Block
    bias: Block | None
    queries: Callable[[Tokens], Float[np.ndarray, "h r e"]]
    """Rotated queries of all heads."""


@dataclass(frozen=True, eq=False)
class DapeFactor:
    """S = A + B + outer leaky(inner [A ; B]); B is not added where `added` is False."""

    inner_weight: Float[np.ndarray, "m c"]
    inner_bias: Float[np.ndarray, " m"]
    outer_weight: Float[np.ndarray, "h m"]
    outer_bias: Float[np.ndarray, " h"]
    added: bool
    kind: ClassVar[Literal["dape"]] = "dape"

    def final(self, rows: Tokens, cols: slice, parts: Parts) -> Scores:
        """Final scores of some queries and keys, all heads."""
        a = parts.scores(rows, cols)
        b = None if parts.bias is None else parts.bias(rows, cols)
        channels = a if b is None else np.concatenate([a, b])
        hidden = _leaky(_linear(self.inner_weight, self.inner_bias, channels))
        mixed = a + _linear(self.outer_weight, self.outer_bias, hidden)
        found: np.ndarray = mixed if b is None or not self.added else mixed + b
        return found


@dataclass(frozen=True, eq=False)
class DapeV2Factor:
    """S = A + B + outer * leaky(inner * [A ; B]), convolutions along the keys."""

    inner_weight: Float[np.ndarray, "m c kernel"]
    inner_bias: Float[np.ndarray, " m"]
    outer_weight: Float[np.ndarray, "h m kernel"]
    outer_bias: Float[np.ndarray, " h"]
    boundary: Literal["masked", "released"]
    kind: ClassVar[Literal["dapev2"]] = "dapev2"

    @property
    def kernel(self) -> int:
        """Width along the keys."""
        found: int = self.inner_weight.shape[-1]
        return found

    def final(self, rows: Tokens, cols: slice, parts: Parts) -> Scores:
        """Final scores of some queries and keys, all heads."""
        half = self.kernel // 2
        reach = slice(max(0, cols.start - 2 * half), min(parts.length, cols.stop + 2 * half))
        a = parts.scores(rows, reach)
        b = None if parts.bias is None else parts.bias(rows, reach)
        channels = a if b is None else np.concatenate([a, b])
        if parts.causal:
            later = indices(reach) > indices(rows)[:, None]
            channels = np.where(later, 0.0, channels)
        before = 2 * half - (cols.start - reach.start)
        after = 2 * half - (reach.stop - cols.stop)
        channels = np.pad(channels, ((0, 0), (0, 0), (before, after)))
        hidden = _leaky(_convolve(self.inner_weight, self.inner_bias, channels))
        at = np.arange(cols.start - half, cols.stop + half)
        outside = at < 0 if self.boundary == "masked" else (at < 0) | (at >= parts.length)
        hidden[..., outside] = 0.0
        asked = slice(cols.start - reach.start, cols.stop - reach.start)
        mixed = a[..., asked] + _convolve(self.outer_weight, self.outer_bias, hidden)
        found: np.ndarray = mixed if b is None else mixed + b[..., asked]
        return found


@dataclass(frozen=True, eq=False)
class CopeFactor:
    """S_ij = A_ij + z_i(p_ij), p_ij the sum of gates from key j to query i."""

    table: Float[np.ndarray, "e n"]
    divide: Literal["scores", "sum"]
    kind: ClassVar[Literal["cope"]] = "cope"

    def final(self, rows: Tokens, cols: slice, parts: Parts) -> Scores:
        """Final scores of some queries and keys, all heads."""
        last = self.table.shape[1] - 1
        query = indices(rows)[:, None]
        behind = np.zeros(1)
        # A count stops at the last entry of the table, so keys beyond that change nothing.
        stop = int(query.max()) + 1
        while stop > cols.stop and (np.min(behind) < last):
            start = max(cols.stop, stop - 1024)
            behind = behind + _gates(parts.scores(rows, slice(start, stop)), query, start).sum(-1)
            stop = start
        a = parts.scores(rows, cols)
        gates = _gates(a, query, cols.start)
        count = np.cumsum(gates[..., ::-1], axis=-1)[..., ::-1] + np.asarray(behind)[..., None]
        count = np.minimum(count, last)
        queries = parts.queries(rows)
        z = queries @ self.table.astype(queries.dtype)
        # A count that is not a number has no index; (count - below) makes its score NaN.
        index = np.nan_to_num(count)
        below = np.floor(index)
        lower = np.take_along_axis(z, below.astype(np.int64), axis=-1)
        upper = np.take_along_axis(z, np.ceil(index).astype(np.int64), axis=-1)
        term = lower + (count - below) * (upper - lower)
        found: np.ndarray = a + (
            term / self.table.shape[0] ** 0.5 if self.divide == "sum" else term
        )
        return found


MixFactor = DapeFactor | DapeV2Factor | CopeFactor


def _gates(scores: np.ndarray, query: np.ndarray, start: int) -> np.ndarray:
    """sigmoid(A), 0 for keys after their query; exp takes no positive argument."""
    small = np.exp(-np.abs(scores))
    gates = np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
    return np.where(np.arange(start, start + scores.shape[-1]) > query, 0.0, gates)


def _linear(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    flat = weight.astype(x.dtype) @ x.reshape(len(x), -1)
    found: np.ndarray = (flat + bias.astype(x.dtype)[:, None]).reshape(len(weight), *x.shape[1:])
    return found


def _convolve(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Correlate along the last axis; the result is kernel - 1 shorter."""
    maps, channels, kernel = weight.shape
    rows, width = x.shape[1], x.shape[2] - kernel + 1
    out = np.empty((maps, rows, width), dtype=x.dtype)
    # All taps of all maps in one product, and then shifted sums; some rows at a time stay in cache.
    taps = np.ascontiguousarray(np.moveaxis(weight, -1, 0), dtype=x.dtype).reshape(-1, channels)
    step = max(1, CACHED // (kernel * maps * x.shape[2]))
    for start in range(0, rows, step):
        part = x[:, start : start + step]
        flat = np.ascontiguousarray(part).reshape(channels, -1)
        every = (taps @ flat).reshape(kernel, maps, part.shape[1], -1)
        target = out[:, start : start + step]
        target[:] = bias.astype(x.dtype)[:, None, None]
        for tap in range(kernel):
            target += every[tap, :, :, tap : tap + width]
    return out


def _leaky(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(x, LEAK * x)
    return found
