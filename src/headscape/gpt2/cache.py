"""What decoding keeps of the tokens so far; owned by the caller, handed to every forward.

Per layer: keys (rotated where a rotated key never changes again), values, the running sum and the
vector per key of an encoding that has them, what its stream goes on from, and what of its bias is
the same for every token (`KeptBias`). Memory is taken ahead and doubled when full, because
growing by a token at a time copies everything each step. A layer with a window or chunk keeps the
tokens at a smaller distance and a little room, which is moved when full. A forward pass writes
behind `length` and advances it once, at its end, so the tokens of a pass that fails are not among
those so far.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.bias import (
    Bias,
    Pairwise,
    Perceptron,
    Slope,
    Toeplitz,
    covered_distances,
)
from headscape.call.positions import ALL, Positions, Visible
from headscape.encodings import Encoding, LayerContext, Stream
from headscape.errors import InputError, at_least

FRESH = 64
"""Tokens for which sums stay relative to the same one: few, so that near keys stay near 0."""

GROWTH = 16.0
"""The same for scores: a base from which they have changed by more is replaced sooner."""


@dataclass
class LayerCache:
    """One layer's keys, values, running sum and vectors, with room to spare."""

    k: Float[Tensor, "b h c e"]
    v: Float[Tensor, "b h c ev"]
    total: Float[Tensor, "b h c"] | None = None
    vector: Float[Tensor, "b h c x"] | None = None
    reach: int | None = None
    """No later token sees a key at this distance or more."""
    start: int = 0
    """The token in column 0; above 0 in a layer with a window or chunk."""
    carry: Any = None
    """What the stream goes on from."""
    passing: Stream | None = None
    """The stream of the tokens that the current pass has written."""

    @property
    def room(self) -> int:
        """Tokens there is memory for."""
        return self.k.shape[2]

    def resize(self, first: int, last: int, room: int) -> None:
        """Keep the tokens from `first` up to `last`, in memory for `room` tokens."""
        columns = slice(first - self.start, last - self.start)

        def moved(x: Tensor) -> Tensor:
            fresh = x.new_empty(*x.shape[:2], room, *x.shape[3:])
            fresh[:, :, : last - first] = x[:, :, columns]
            return fresh

        self.k, self.v = moved(self.k), moved(self.v)
        self.total = None if self.total is None else moved(self.total)
        self.vector = None if self.vector is None else moved(self.vector)
        self.start = first


class Nothing:
    """Where nothing can be kept: no bias, or one that is new for every token."""

    def row(self, count: int, bias: Bias | None) -> None:  # noqa: ARG002
        """No row."""
        return


class ByDistance:
    """A view of one table."""

    def __init__(self, bias: Toeplitz, dtype: torch.dtype) -> None:
        self.table = bias.table[None, :, None, bias.zero :].flip(-1).to(dtype).contiguous()

    def row(self, count: int, bias: Bias | None) -> Float[Tensor, "1 h 1 s"]:  # noqa: ARG002
        """Distances count - 1 to 0."""
        return self.table.narrow(3, self.table.shape[3] - count, count)


class ByPosition:
    """Two small matrix products."""

    def __init__(self, bias: Perceptron, dtype: torch.dtype) -> None:
        self.near = bias.near[None, bias.zero :].flip(-1)
        self.far = bias.far[0]
        self.inner = bias.in_bias[:, None], bias.in_weight[:, None]
        self.outer = bias.out_bias[:, None], bias.out_weight
        self.leak, self.dtype = bias.leak, dtype

    def row(self, count: int, bias: Bias | None) -> Float[Tensor, "1 h 1 s"]:  # noqa: ARG002
        """Distances count - 1 to 0, as the last query sees them."""
        u = self.near.narrow(1, self.near.shape[1] - count, count) / self.far[count - 1]
        hidden = F.leaky_relu(torch.addmm(self.inner[0], self.inner[1], u), self.leak, inplace=True)
        return torch.addmm(self.outer[0], self.outer[1], hidden).to(self.dtype)[None, :, None]


class BySum:
    """weight_i ((sum_i - base) - (sum_j - base)), where the base is the sum at a recent token."""

    def __init__(self, capacity: int, dtype: torch.dtype) -> None:
        self.capacity, self.dtype = capacity, dtype
        self.first, self.last = 0, -1
        self.base = self.relative = torch.empty(0)

    def row(self, count: int, bias: Bias | None) -> Slope:
        """The same slope, its sums relative to the base."""
        assert isinstance(bias, Slope)
        own = None
        if self.last == count - 1 and count <= self.first + FRESH:
            own = self._own(count, bias)
        if own is None or _largest_score(own, bias.weight) > GROWTH:
            self.base, self.first = bias.col[..., -1:].clone(), count
            b, h = self.base.shape[:2]
            self.relative = self.base.new_empty(b, h, self.capacity, dtype=self.dtype)
            self.relative[:, :, :count] = bias.col - self.base
            own = self._own(count, bias)
        self.last = count
        return Slope(bias.weight, own, self.relative.narrow(2, 0, count))

    def _own(self, count: int, bias: Slope) -> Float[Tensor, "#b h 1"]:
        """Write the last token's sum, relative to the base, and return it."""
        return torch.sub(bias.row, self.base, out=self.relative.narrow(2, count - 1, 1))


def _largest_score(since: Tensor, weight: Tensor | None) -> float:
    """Return by how much scores have changed since the base, which is what rounding is of."""
    scores = since if weight is None else since * weight
    return float(torch.linalg.vector_norm(scores, ord=math.inf))


KeptBias = ByDistance | ByPosition | BySum | Nothing
"""What is the same for the bias rows of all tokens, computed once.

    ByDistance   Toeplitz: the table, farthest first, so that a row is a view of it
    ByPosition   Perceptron: its two inputs for every distance and every query there is room for
    BySum        Slope: sums relative to a recent token, rounded once for many tokens

`row(count, bias)` is the bias of the last of `count` tokens, written out or, by BySum, as a slope
in the model's dtype; its own bias is handed in where it has one. BySum is not for encodings that
mix scores, which take rows, nor for half precision, where a key near the query but far from the
base would lose too much.
"""


def keep_bias(bias: Bias | None, capacity: int, dtype: torch.dtype, *, mixes: bool) -> KeptBias:
    """Return what can be kept of a bias that was made for `capacity` consecutive positions.

    Nothing of a table that is shorter: each token then asks for its own bias, which is checked.
    """
    covered = None if bias is None else covered_distances(bias)
    if covered is not None and covered[1] < capacity - 1:
        return Nothing()
    if isinstance(bias, Toeplitz):
        return ByDistance(bias, dtype)
    if isinstance(bias, Perceptron):
        return ByPosition(bias, dtype)
    if isinstance(bias, Slope) and not mixes and torch.finfo(dtype).bits >= 32:
        return BySum(capacity, dtype)
    return Nothing()


class Cache:
    """The tokens so far, for every layer of one model."""

    def __init__(self, capacity: int = 256) -> None:
        at_least(1, capacity=capacity)
        self.capacity = capacity
        self.length = 0
        self.counted = True
        """Every position so far is the token's index; none was handed in."""
        self.layers: dict[int, LayerCache] = {}
        self.rows: dict[int, tuple[KeptBias, int]] = {}
        """Per layer, what is kept of the bias, and for how many tokens."""
        self.kept: dict[int, dict[str, tuple[int, Any]]] = {}
        """Per layer, values that depend on its encoding's parameters alone (context.py)."""
        self.positions: Int[Tensor, "#b c"] | None = None
        self.groups: Int[Tensor, "#b c"] | None = None

    def place(
        self, at: Int[Tensor, "#b t"], group: Int[Tensor, "#b t"] | None, *, counted: bool
    ) -> tuple[Int[Tensor, "#b s"], Int[Tensor, "#b s"] | None]:
        """Note the new tokens' positions and groups; give those of all tokens."""
        if self.length and (group is None) != (self.groups is None):
            raise InputError("groups must be given for every pass over a cache or for none.")
        self.counted = self.counted and counted
        while self.length + at.shape[-1] > self.capacity:
            self._double()
        self.positions = _write(self.positions, at, self.length, self.capacity)
        end = self.length + at.shape[-1]
        if group is None:
            return self.positions[..., :end], None
        self.groups = _write(self.groups, group, self.length, self.capacity)
        return self.positions[..., :end], self.groups[..., :end]

    def extend(
        self,
        layer: int,
        k: Float[Tensor, "b h t e"],
        v: Float[Tensor, "b h t ev"],
        stream: Stream | None = None,
        reach: int | None = None,
        first: int = 0,
    ) -> LayerCache:
        """Write the new tokens behind the old; give views of all from token `first` on."""
        new, end = k.shape[2], self.length + k.shape[2]
        total, vector = (None, None) if stream is None else (stream.total, stream.key)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (k, total)):
            raise InputError("a cache is for decoding: call the model inside torch.no_grad().")
        if layer not in self.layers:
            room = self.capacity
            if reach is not None:  # a wide window is filled by and by
                room = min(room, reach - 1 + max(new, _spare(reach)))
            rooms: list[Any] = [_room(x, room) for x in (k, v, total, vector)]
            self.layers[layer] = LayerCache(*rooms)
            self.layers[layer].reach, self.layers[layer].start = reach, self.length
        store = self.layers[layer]
        if store.k.shape[0] != k.shape[0]:
            raise InputError(
                f"the cache has a batch of {store.k.shape[0]}, but the new tokens {k.shape[0]}."
            )
        if reach is not None and end - store.start > store.room:
            most = max(reach - 1, self.length - first)
            room = min(self.capacity, most + max(new, _spare(reach)))
            store.resize(first, self.length, room)
        old, last = self.length - store.start, end - store.start
        store.passing = stream
        stores = (store.k, store.v, store.total, store.vector)
        for kept, x in zip(stores, (k, v, total, vector), strict=True):
            if kept is not None and x is not None:
                kept[:, :, old:last] = x
        seen = slice(first - store.start, last)
        views: list[Any] = [None if kept is None else kept[:, :, seen] for kept in stores]
        return LayerCache(*views)

    def bias(
        self, layer: int, encoding: Encoding, dtype: torch.dtype, context: LayerContext
    ) -> Bias | None:
        """The bias of one token, from what is kept of it for all of them.

        For a path that takes a row as it comes. A pass that asks the encoding itself has to say so
        with `forget`, or its tokens would be missing here.
        """
        kept, room = self.rows.get(layer, (None, 0))
        known = kept if room == self.capacity else None
        own = None
        if not isinstance(known, ByDistance | ByPosition):
            own = encoding.bias(context)
            by_position = context.queries is None and isinstance(own, Toeplitz | Perceptron)
            if known is None:
                # A table or a perceptron of distances alone is made once, for all tokens to come.
                ahead = LayerContext(Positions.span(self.capacity, on=context.positions.q.device))
                whole = encoding.bias(ahead) if by_position else own
                whole = whole if by_position or isinstance(whole, Slope) else None
                known = keep_bias(whole, self.capacity, dtype, mixes=encoding.mixes)
                self.rows[layer] = known, self.capacity
        row = known.row(self.length + 1, own)
        if row is None:
            return own
        if isinstance(row, Slope):
            return row
        return Pairwise(lambda at, seen: row if at == seen == ALL else row[:, :, at, seen])

    def forget(self, layer: int) -> None:
        """Keep nothing of a layer's bias."""
        self.rows.pop(layer, None)

    def carry(self, layer: int) -> Any:
        """What the stream of the next tokens goes on from."""
        store = self.layers.get(layer)
        return store.carry if self.length and store is not None else None

    def advance(self, tokens: int) -> None:
        """The new tokens are now old ones; drop what no later token sees."""
        self.length += tokens
        for store in self.layers.values():
            self._end_pass(store)
            if store.reach is None:
                continue
            first = max(store.start, self._oldest(store.reach))
            room = max(store.reach - 1, self.length - first) + _spare(store.reach)
            if store.room > room:
                store.resize(first, self.length, room)

    def first(self, layer: int, reach: int, positions: Positions, visible: Visible) -> int:
        """The first token that a layer's new tokens may see; raise if it has been dropped."""
        if self.counted:
            return max(0, self.length - reach + 1)
        columns = visible.dense(positions).any(dim=2).flatten(0, 1).any(dim=0).nonzero()
        first = int(columns[0]) if len(columns) else self.length
        store = self.layers.get(layer)
        if store is not None and first < store.start:
            raise InputError(
                f"a new token sees token {first}, which a cache of {reach} positions has dropped: "
                f"the positions of a document must not decrease between passes over a cache."
            )
        return min(first, self.length)

    def _oldest(self, reach: int) -> int:
        """The oldest token that a later one may see, if positions do not decrease."""
        if self.counted or self.positions is None:
            return max(0, self.length - reach + 1)
        at = self.positions[:, : self.length]
        near = (at[:, -1:] - at) < reach
        if self.groups is not None:
            group = self.groups[:, : self.length]
            near = near & (group == group[:, -1:])
        return int(near.any(dim=0).nonzero()[0])

    def _end_pass(self, store: LayerCache) -> None:
        """Store the results of a pass: where streams continue, and keys after new transitions."""
        stream, store.passing = store.passing, None
        if stream is None:
            return
        store.carry = stream.carry_after()
        if stream.transition is not None:
            keys = store.k[:, :, : self.length - store.start]
            keys.copy_(stream.transition.advance(keys))

    def _double(self) -> None:
        self.capacity *= 2
        for store in self.layers.values():
            if store.reach is None:
                store.resize(0, self.length, self.capacity)


def _spare(reach: int) -> int:
    """Tokens a layer with a window or chunk writes before it moves what it keeps to the front."""
    return max(16, reach // 8)


def _room(x: Tensor | None, room: int) -> Tensor | None:
    return None if x is None else x.new_empty(*x.shape[:2], room, *x.shape[3:])


def _write(
    store: Int[Tensor, "#b c"] | None, new: Int[Tensor, "#b t"], start: int, capacity: int
) -> Int[Tensor, "#b grown"]:
    if store is None or store.shape[-1] < capacity:
        grown = new.new_zeros(new.shape[0], capacity)
        if store is not None:
            grown[:, :start] = store[:, :start]
        store = grown
    if store.shape[0] < new.shape[0]:
        store = store.expand(new.shape[0], -1).clone()
    store[:, start : start + new.shape[-1]] = new
    return store
