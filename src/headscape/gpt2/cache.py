"""What decoding keeps of the tokens so far; owned by the caller, handed to every forward.

Per layer: keys (rotated where a rotated key never changes again), values, the running sum of an
encoding that has one, and what of its bias is the same for every token (bias_rows.py). Memory is
taken ahead and doubled when full, because growing by a token at a time copies everything each step.
A layer with a window keeps the last window - 1 tokens and a little room, which is moved when full.
A forward pass writes behind `length` and advances it once, at its end, so the tokens of a pass that
fails are not among those so far.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.bias import Bias, Pairwise, Slope
from headscape.encodings import Encoding, Stream
from headscape.errors import InputError
from headscape.gpt2 import bias_rows
from headscape.types import ALL, Positions


@dataclass
class LayerCache:
    """One layer's keys, values and running sum, with room to spare."""

    k: Float[Tensor, "b h c e"]
    v: Float[Tensor, "b h c ev"]
    total: Float[Tensor, "b h c"] | None
    window: int | None = None
    start: int = 0
    """The token in column 0; above 0 in a layer with a window."""

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
        self.start = first


class Cache:
    """The tokens so far, for every layer of one model."""

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise InputError(f"a cache's capacity must be at least 1, got {capacity}.")
        self.capacity = capacity
        self.length = 0
        self.counted = True
        """Every position so far is the token's index; none was handed in."""
        self.layers: dict[int, LayerCache] = {}
        self.rows: dict[int, tuple[bias_rows.Rows, int]] = {}
        """Per layer, what is kept of the bias, and for how many tokens."""
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
        total: Float[Tensor, "b h t"] | None,
        window: int | None = None,
    ) -> LayerCache:
        """Write the new tokens behind the old; give views of all that the new ones may see."""
        if torch.is_grad_enabled() and k.requires_grad:
            raise InputError("a cache is for decoding: call the model inside torch.no_grad().")
        new, end = k.shape[2], self.length + k.shape[2]
        if layer not in self.layers:
            room = self.capacity if window is None else window - 1 + max(new, _spare(window))
            self.layers[layer] = LayerCache(
                k.new_empty(*k.shape[:2], room, k.shape[3]),
                v.new_empty(*v.shape[:2], room, v.shape[3]),
                None if total is None else total.new_empty(*total.shape[:2], room),
                window,
                self.length,
            )
        store = self.layers[layer]
        if store.k.shape[0] != k.shape[0]:
            raise InputError(
                f"the cache has a batch of {store.k.shape[0]}, but the new tokens {k.shape[0]}."
            )
        first = 0 if window is None else max(store.start, self.length - window + 1)
        if window is not None and end - store.start > store.room:
            store.resize(first, self.length, window - 1 + max(new, _spare(window)))
        old, last = self.length - store.start, end - store.start
        store.k[:, :, old:last] = k
        store.v[:, :, old:last] = v
        if store.total is not None and total is not None:
            store.total[:, :, old:last] = total
        seen = slice(first - store.start, last)
        return LayerCache(
            store.k[:, :, seen],
            store.v[:, :, seen],
            None if store.total is None else store.total[:, :, seen],
        )

    def bias(
        self,
        layer: int,
        encoding: Encoding,
        positions: Positions,
        stream: Stream | None,
        keys: Stream | None,
        dtype: torch.dtype,
    ) -> Bias | None:
        """The bias of one token, from what is kept of it for all of them.

        For a path that takes a row as it comes. A pass that asks the encoding itself has to say so
        with `forget`, or its tokens would be missing here.
        """
        own = None if stream is None else encoding.bias(positions, stream, keys)
        kept, room = self.rows.get(layer, (None, 0))
        if kept is None or room != self.capacity:
            ahead = Positions.span(self.capacity, on=positions.q.device)
            whole = encoding.bias(ahead) if stream is None else own
            kept = bias_rows.keep(whole, self.capacity, dtype, mixes=encoding.mixes)
            self.rows[layer] = kept, self.capacity
        row = kept.row(self.length + 1, own)
        if row is None:
            return encoding.bias(positions) if stream is None else own
        if isinstance(row, Slope):
            return row
        return Pairwise(lambda at, seen: row if at == seen == ALL else row[:, :, at, seen])

    def forget(self, layer: int) -> None:
        """Keep nothing of a layer's bias."""
        self.rows.pop(layer, None)

    def carry(self, layer: int) -> Float[Tensor, "b h"] | None:
        """The running sum at the last token."""
        store = self.layers.get(layer)
        if not self.length or store is None or store.total is None:
            return None
        return store.total[:, :, self.length - 1 - store.start]

    def advance(self, tokens: int) -> None:
        """The new tokens are now old ones; drop what no later token sees."""
        self.length += tokens
        for store in self.layers.values():
            if store.window is not None and store.room > store.window - 1 + _spare(store.window):
                first = max(store.start, self.length - store.window + 1)
                store.resize(first, self.length, store.window - 1 + _spare(store.window))

    def _double(self) -> None:
        self.capacity *= 2
        for store in self.layers.values():
            if store.window is None:
                store.resize(0, self.length, self.capacity)


def _spare(window: int) -> int:
    """Tokens a layer with a window writes before it moves the window to the front."""
    return max(16, window // 8)


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
