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

from headscape.types import ALL

BLOCK = 64
"""Largest number of queries that share an anchor."""
LARGEST_EXPONENT = 40.0
"""exp of this and of twice this are in the range of float32."""


@dataclass(frozen=True)
class Decay:
    """The log gates of the last n keys; older keys already contain their own decay."""

    gate: Float[Tensor, "b h n e"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors; the third axis of each is tokens."""
        return (self.gate,)

    def shapes(self, b: int, h: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor needs, by name."""
        return {"gate": (b, h, n, e)}

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], rows: slice = ALL
    ) -> Float[Tensor, "b h r s"]:
        """Return sum_c q_ic k_jc exp(P_ic - P_jc) for the queries in `rows`.

        The queries are those of the last t keys. Keys after a block of queries have score 0.
        """
        dtype = torch.promote_types(q.dtype, torch.float32)
        total, before = self._sums(k.shape[2])
        count, keys = total.shape[2], k.shape[2]
        first = range(count - q.shape[2], count)[rows].start
        strongest = float(self.gate.detach().abs().max())
        size = max(1, min(BLOCK, int(LARGEST_EXPONENT / max(strongest, 1e-9))))
        parts, wide, done = [], k.to(dtype), first
        for some in torch.split(q[:, :, rows].to(dtype), size, dim=2):
            end = done + some.shape[2]
            anchor, seen = total[:, :, done : done + 1], keys - count + end
            left = some * (total[:, :, done:end] - anchor).exp().to(dtype)
            right = wide[:, :, :seen] * (anchor - before[:, :, :seen]).exp().to(dtype)
            parts.append(F.pad(left @ right.mT, (0, keys - seen)))
            done = end
        return torch.cat(parts, dim=2)

    def advance(self, k: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h s e"]:
        """Return every key after the decays of all later tokens."""
        total, before = self._sums(k.shape[2])
        return (k * (total[:, :, -1:] - before).exp()).to(k.dtype)

    def _sums(self, keys: int) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h s e"]]:
        """Return P of the n tokens, and P of all keys, which is 0 for older keys."""
        total = self.gate.double().cumsum(dim=2)
        return total, F.pad(total, (0, 0, keys - total.shape[2], 0))
