"""What decoding keeps of the tokens so far; owned by the caller, handed to every forward.

Per layer: keys (rotated where a rotated key never changes again), values, the running sum of an
encoding that has one, and what of its bias is the same for every token (bias_rows.py). Memory is
taken ahead and doubled when full, because growing by a token at a time copies everything each step.
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
    v: Float[Tensor, "b h c e"]
    total: Float[Tensor, "b h c"] | None


class Cache:
    """The tokens so far, for every layer of one model."""

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise InputError(f"a cache's capacity must be at least 1, not {capacity}.")
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
        v: Float[Tensor, "b h t e"],
        total: Float[Tensor, "b h t"] | None,
    ) -> LayerCache:
        """Write the new tokens behind the old; give views of all of them."""
        if torch.is_grad_enabled() and k.requires_grad:
            raise InputError("a cache is for decoding: call the model inside torch.no_grad().")
        end = self.length + k.shape[2]
        if layer not in self.layers:
            self.layers[layer] = LayerCache(
                k.new_empty(*k.shape[:2], self.capacity, k.shape[3]),
                v.new_empty(*v.shape[:2], self.capacity, v.shape[3]),
                None if total is None else total.new_empty(*total.shape[:2], self.capacity),
            )
        store = self.layers[layer]
        if store.k.shape[0] != k.shape[0]:
            raise InputError(
                f"the cache holds a batch of {store.k.shape[0]}, the new tokens {k.shape[0]}."
            )
        store.k[:, :, self.length : end] = k
        store.v[:, :, self.length : end] = v
        if store.total is not None and total is not None:
            store.total[:, :, self.length : end] = total
        return LayerCache(
            store.k[:, :, :end],
            store.v[:, :, :end],
            None if store.total is None else store.total[:, :, :end],
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
        return store.total[:, :, self.length - 1]

    def advance(self, tokens: int) -> None:
        """The new tokens are now old ones."""
        self.length += tokens

    def _double(self) -> None:
        extra = self.capacity
        self.capacity += extra
        for store in self.layers.values():
            store.k = torch.cat([store.k, store.k.new_empty(store.k[:, :, :extra].shape)], dim=2)
            store.v = torch.cat([store.v, store.v.new_empty(store.v[:, :, :extra].shape)], dim=2)
            if store.total is not None:
                spare = store.total.new_empty(store.total[:, :, :extra].shape)
                store.total = torch.cat([store.total, spare], dim=2)


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
