"""What the maps of one layer are made of, and any part of any map computed from it.

    content_ij = scale q_i . k_j                    q, k before rotation
    turned_ij  = scale R(q_i) . R(k_j)
    mixed      = mix(turned, bias), or turned + bias where nothing is mixed
    final_ij   = softcap tanh(temperature_i mixed_ij / softcap), each left out where it is absent
    bias       = final - content; for an additive encoding the bias itself
    weights_ij = exp(final_ij - lse_i)              lse: log-sum-exp over visible keys and the sink

A window hides keys at its distance or more. A tile is exact: float64 arithmetic on the stored
factors, NaN where a key is hidden from its query (0 in weights). Heads count from 0 in the order
they are stored. Arrays may stay in their file; a tile reads only the rows it needs. Query and key
positions are consecutive, so a distance is i - j.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64

from headscape.captures.bias_factors import BiasFactor
from headscape.captures.cells import Tokens, indices
from headscape.captures.mix_factors import MixFactor, Parts
from headscape.errors import InputError

Quantity = Literal["content", "bias", "final", "weights"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("content", "bias", "final", "weights")
WHOLE_PAIRS: Final = 1 << 20
"""Pairs of all heads that are computed or measured at once."""


@dataclass(frozen=True, eq=False)
class Turn:
    """cos and sin per token and pair, any magnitude included, of queries and of keys."""

    q: Float[np.ndarray, "2 t p"]
    k: Float[np.ndarray, "2 t p"]
    pairing: Literal["halves", "interleaved"]

    def rotate(self, x: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Turn the first 2p dims of x [.. t e] in pairs; the rest pass through."""
        cos, sin = table.astype(x.dtype)
        dims = 2 * cos.shape[-1]
        first, second = slice(0, dims, 2), slice(1, dims, 2)
        if self.pairing == "halves":
            first, second = slice(0, dims // 2), slice(dims // 2, dims)
        a, b = x[..., first], x[..., second]
        turned = x.copy()
        turned[..., first] = a * cos - b * sin
        turned[..., second] = b * cos + a * sin
        return turned


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerFactors:
    """The factors of one layer."""

    q: Float[np.ndarray, "h t e"]
    """Queries before rotation."""
    k: Float[np.ndarray, "kv t e"]
    """Keys before rotation; h is a multiple of kv."""
    scale: float
    causal: bool = True
    turn: Turn | None = None
    bias: BiasFactor | None = None
    mix: MixFactor | None = None
    window: int | None = None
    """Keys that a causal query sees, its own included; None is all before it."""
    softcap: float | None = None
    temperature: Float[np.ndarray, "h t"] | None = None
    sink: Float[np.ndarray, " h"] | None = None
    """The score of a key without a value, which only the log-sum-exp contains."""
    lse: Float64[np.ndarray, "h t"] | None = None
    """Absent where it has not been computed, as in very long captures."""

    @property
    def heads(self) -> int:
        """Heads stored."""
        found: int = self.q.shape[0]
        return found

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        found: int = self.q.shape[1]
        return found

    @property
    def additive(self) -> bool:
        """Whether position does nothing but add a bias."""
        return self.mix is None and self.turn is None and not self.bends

    @property
    def bends(self) -> bool:
        """Whether something acts on scores after the bias."""
        return self.softcap is not None or self.temperature is not None

    def visible(self, rows: Tokens, cols: slice) -> Bool[np.ndarray, "r c"]:
        """Where a query sees a key."""
        query, key = indices(rows)[:, None], indices(cols)
        seen = key <= query if self.causal else np.ones((len(query), len(key)), dtype=bool)
        return seen if self.window is None else seen & (query - key < self.window)

    def first_key(self, query: int) -> int:
        """The first key that a query sees."""
        return 0 if self.window is None else max(0, query + 1 - self.window)

    def queries(
        self, head: int, rows: Tokens, *, turned: bool, dtype: Any = np.float64
    ) -> np.ndarray:
        """Some queries of a head, rotated or not."""
        q = self.q[head, rows].astype(dtype, copy=False)
        return self.turn.rotate(q, self.turn.q[:, rows]) if turned and self.turn else q

    def keys(self, head: int, cols: slice, *, turned: bool, dtype: Any = np.float64) -> np.ndarray:
        """Some keys of a head, rotated or not."""
        k = self.k[head * len(self.k) // self.heads, cols].astype(dtype, copy=False)
        return self.turn.rotate(k, self.turn.k[:, cols]) if turned and self.turn else k

    def content(
        self, head: int, rows: Tokens, cols: slice, *, turned: bool = False, dtype: Any = np.float64
    ) -> Float[np.ndarray, "r c"]:
        """Scale q.k, before rotation or after it."""
        q = self.queries(head, rows, turned=turned, dtype=dtype) * np.dtype(dtype).type(self.scale)
        found: np.ndarray = q @ self.keys(head, cols, turned=turned, dtype=dtype).T
        return found

    def final(
        self, head: int, rows: Tokens, cols: slice, *, dtype: Any = np.float64
    ) -> Float[np.ndarray, "r c"]:
        """What the softmax takes, hidden entries included as they come."""
        if self.mix is not None:
            values: np.ndarray = self.finals(rows, cols, dtype=dtype)[head]
            return values
        scores = self.content(head, rows, cols, turned=True, dtype=dtype)
        if self.bias is not None:
            scores += self.bias.block(head, rows, cols, dtype)
        if self.temperature is not None:
            scores *= self.temperature[head, rows].astype(dtype)[:, None]
        if self.softcap is not None:
            scores = np.tanh(scores / dtype(self.softcap)) * dtype(self.softcap)
        return scores

    def finals(
        self, rows: Tokens, cols: slice, *, dtype: Any = np.float64
    ) -> Float[np.ndarray, "h r c"]:
        """The same for all heads; heads that are mixed are computed together."""
        every, bias = range(self.heads), self.bias
        if self.mix is None:
            return np.stack([self.final(head, rows, cols, dtype=dtype) for head in every])

        def scores(rows: Tokens, cols: slice) -> np.ndarray:
            one = [self.content(head, rows, cols, turned=True, dtype=dtype) for head in every]
            return np.stack(one)

        def added(rows: Tokens, cols: slice) -> np.ndarray:
            assert bias is not None
            return np.stack([bias.block(head, rows, cols) for head in every]).astype(dtype)

        def queries(rows: Tokens) -> np.ndarray:
            return np.stack([self.queries(head, rows, turned=True, dtype=dtype) for head in every])

        given = None if bias is None else added
        return self.mix.final(rows, cols, Parts(self.length, self.causal, scores, given, queries))

    def block(
        self,
        quantity: str,
        head: int,
        rows: Tokens,
        cols: slice,
        *,
        lse: Float[np.ndarray, " r"] | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "r c"]:
        """One quantity of one head, hidden entries as they come; `lse` replaces a missing one."""
        found: np.ndarray = self.blocks(
            quantity, [head], rows, cols, lse=None if lse is None else lse[None], dtype=dtype
        )[0]
        return found

    def blocks(
        self,
        quantity: str,
        heads: Sequence[int],
        rows: Tokens,
        cols: slice,
        *,
        lse: Float[np.ndarray, "n r"] | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "n r c"]:
        """The same for some heads; heads that are mixed are computed once for all."""
        if quantity not in QUANTITIES:
            raise InputError(f"unknown quantity {quantity!r}: choose from {', '.join(QUANTITIES)}.")
        picked = list(heads)
        shape = (len(picked), len(indices(rows)), cols.stop - cols.start)
        if 0 in shape or (quantity == "bias" and self.additive and self.bias is None):
            return np.zeros(shape, dtype=dtype)
        if quantity == "content":
            return np.stack([self.content(head, rows, cols, dtype=dtype) for head in picked])
        if quantity == "bias" and self.additive:
            assert self.bias is not None
            return np.stack([self.bias.block(head, rows, cols) for head in picked])
        if self.mix is not None:
            final = self.finals(rows, cols, dtype=dtype)[picked]
        else:
            final = np.stack([self.final(head, rows, cols, dtype=dtype) for head in picked])
        if quantity == "final":
            return final
        if quantity == "bias":
            found: np.ndarray = final - self.blocks("content", picked, rows, cols, dtype=dtype)
            return found
        if lse is None:
            if self.lse is None:
                raise InputError("this capture has no log-sum-exp: compute it to get weights.")
            lse = self.lse[np.array(picked)[:, None], indices(rows)]
        # A hidden score may exceed its row's norm by far; it is replaced later, never shown.
        weights: np.ndarray = np.exp(np.minimum(final - lse[..., None], 1.0).astype(dtype))
        return weights

    def whole(self, quantity: str) -> Float32[np.ndarray, "h t t"]:
        """The maps of all heads; NaN where hidden, 0 in weights."""
        length = self.length
        blank = 0.0 if quantity == "weights" else np.nan
        out = np.full((self.heads, length, length), blank, dtype=np.float32)
        for rows in rows_at_once(self.heads, length):
            cols = slice(0, rows.stop if self.causal else length)
            out[:, rows, cols] = self.tile(quantity, range(self.heads), rows, cols)
        return out

    def tile(
        self, quantity: str, heads: Sequence[int], rows: slice, cols: slice
    ) -> Float64[np.ndarray, "n r c"]:
        """Exact values of some heads, queries and keys; NaN where hidden, 0 in weights."""
        for name, part in (("queries", rows), ("keys", cols)):
            if not 0 <= part.start <= part.stop <= self.length:
                raise InputError(
                    f"{name} {part.start}:{part.stop} are outside the sequence of length "
                    f"{self.length}."
                )
        for head in heads:
            if not 0 <= head < self.heads:
                raise InputError(f"head {head} is not stored: there are {self.heads}, from 0.")
        values = self.blocks(quantity, heads, rows, cols)
        blank = 0.0 if quantity == "weights" else np.nan
        return np.where(self.visible(rows, cols), values, blank)


def rows_at_once(heads: int, length: int) -> Iterator[slice]:
    """Cut the rows of maps into parts that are computed or measured at once."""
    step = max(1, WHOLE_PAIRS // (heads * length))
    return (slice(start, min(length, start + step)) for start in range(0, length, step))
