"""A decay per channel between a key and its query, and the scores with it.

    a_ij = sum_c q_ic k_jc exp(P_ic - P_jc),        P_i = sum of the log gates g_t over t <= i

exp(P) alone leaves the range of floats within a few hundred tokens, so a block of queries is
anchored at its first token a: exp(P_i - P_a) and exp(P_a - P_j) are at most 1 for keys before the
block. Inside a block the second factor grows, so blocks are short where gates are strong. The sums
are float64 and are subtracted before they are cast.

A cached key k_j is stored as k_j exp(P_last - P_j), so older tokens' gates are not needed again.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call.full_precision import full_precision

BLOCK = 64
"""Largest number of queries that share an anchor."""
LARGEST_EXPONENT = 40.0
"""exp of this and of twice this are in the range of float32."""


@dataclass(frozen=True)
class Decay:
    """The log gates of the last n keys; older keys already contain their own decay."""

    gate: Float[Tensor, "b h tail e"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors; the third axis of each is tokens."""
        return (self.gate,)

    def shapes(self, b: int, h: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor needs, by name."""
        return {"gate": (b, h, n, e)}

    @full_precision
    def through(self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"]) -> "Decayed":
        """Return queries and keys with the sums for their scores; queries are the last t keys."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        strongest = float(self.gate.detach().abs().max())
        size = max(1, min(BLOCK, int(LARGEST_EXPONENT / max(strongest, 1e-9))))
        return Decayed(q.to(dtype), k.to(dtype), *self._sums(k.shape[2]), size)

    @full_precision
    def advance(self, k: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h s e"]:
        """Return every key after the decays of all later tokens."""
        total, before = self._sums(k.shape[2])
        return (k * (total[:, :, -1:] - before).exp()).to(k.dtype)

    def _sums(self, keys: int) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h s e"]]:
        """Return P of the n tokens, and P of all keys, which is 0 for older keys."""
        total = self.gate.double().cumsum(dim=2)
        return total, F.pad(total, (0, 0, keys - total.shape[2], 0))


@dataclass(frozen=True)
class Decayed:
    """Queries, keys and the running sums of the log gates."""

    queries: Float[Tensor, "b h t e"]
    keys: Float[Tensor, "b h s e"]
    total: Float[Tensor, "b h n e"]
    """P of the last n keys."""
    before: Float[Tensor, "b h s e"]
    """P of every key; 0 for cached keys, which already contain their decay."""
    size: int
    """How many queries share an anchor."""

    @full_precision
    def scores(self, rows: slice) -> Float[Tensor, "b h r seen"]:
        """Return sum_c q_ic k_jc exp(P_ic - P_jc) of the queries in `rows`.

        The last axis ends at the key of the last of these queries. Keys after a block of queries
        have score 0.
        """
        count, dtype = self.total.shape[2], self.queries.dtype
        own = range(count - self.queries.shape[2], count)[rows]
        old, parts, done = self.keys.shape[2] - count, [], own.start
        for some in torch.split(self.queries[:, :, rows], self.size, dim=2):
            end = done + some.shape[2]
            anchor, seen = self.total[:, :, done : done + 1], old + end
            left = some * (self.total[:, :, done:end] - anchor).exp().to(dtype)
            decay = (anchor - self.before[:, :, :seen]).exp().to(dtype)
            parts.append(
                F.pad(left @ (self.keys[:, :, :seen] * decay).mT, (0, old + own.stop - seen))
            )
            done = end
        return torch.cat(parts, dim=2)
