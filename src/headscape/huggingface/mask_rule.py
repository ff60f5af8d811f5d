"""Which keys a query sees, as one row of integers in place of a mask of queries x keys.

transformers hands a mask from its mask function to its attention function as a 4-D tensor. This one
has shape [#b, 1, 1, n] and dtype int64:

    MARK causal window queries keys first_query first_key grouped | positions of queries, of keys
                                                                  | groups of queries, of keys

Being a tensor, it survives what models and `generate` do with masks between the two. A window of 0
is no window. Positions count from the first token that is not padding.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from headscape.call.positions import Positions, Visible

MARK = 0x68656164
HEADER = 8


@dataclass(frozen=True)
class MaskRule:
    """Positions of queries and keys, and which keys a query sees."""

    positions: Positions
    visible: Visible
    first_query: int = 0
    """The first query's index in the sequence, padding included."""
    first_key: int = 0
    """The first key's index."""

    @classmethod
    def plain(
        cls,
        queries: int,
        keys: int,
        *,
        first_query: int = 0,
        first_key: int = 0,
        causal: bool = True,
        window: int | None = None,
    ) -> "MaskRule":
        """Return the rule of a batch without padding."""
        q = first_query + torch.arange(queries)[None]
        k = first_key + torch.arange(keys)[None]
        bounds = bounds_of(queries, keys, first_query, first_key)
        visible = Visible(causal, window=window)
        return cls(Positions(q, k, bounds), visible, first_query, first_key)

    def written(self) -> "MaskRule":
        """Return the rule without the keys after the last query of a causal one.

        They are the end of a static cache, which is not written yet.
        """
        t, s = self.positions.q.shape[1], self.positions.k.shape[1]
        last = self.first_query + t - self.first_key
        if not self.visible.causal or last >= s:
            return self
        some = slice(0, last)
        bounds = bounds_of(t, last, self.first_query, self.first_key)
        positions = Positions(self.positions.q, self.positions.k[:, some], bounds)
        visible = self.visible.block(slice(None), some)
        return MaskRule(positions, visible, self.first_query, self.first_key)

    def pack(self) -> Tensor:
        """Return the rule as a row of integers."""
        at, visible = self.positions, self.visible
        rows = [at.q, at.k]
        if visible.q_group is not None and visible.k_group is not None:
            rows += [visible.q_group, visible.k_group]
        header = torch.tensor(
            [[
                MARK, visible.causal, visible.window or 0, at.q.shape[1], at.k.shape[1],
                self.first_query, self.first_key, len(rows) == 4,
            ]],
            dtype=torch.int64,
            device=at.q.device,
        )  # fmt: skip
        batch = max(row.shape[0] for row in rows)
        packed = torch.cat([row.to(torch.int64).expand(batch, -1) for row in [header, *rows]], 1)
        return packed[:, None, None]

    @classmethod
    def unpack(cls, mask: Tensor) -> "MaskRule":
        """Return the rule that `pack` wrote."""
        rows = mask[:, 0, 0]
        header = rows[0, :HEADER].tolist()
        _, causal, window, t, s, first_query, first_key, grouped = header
        ends = [HEADER, HEADER + t, HEADER + t + s, HEADER + 2 * t + s, HEADER + 2 * (t + s)]
        q, k, q_group, k_group = (rows[:, a:b] for a, b in pairwise(ends))
        positions = Positions(q, k, bounds_of(t, s, first_query, first_key))
        groups = (q_group, k_group) if grouped else (None, None)
        visible = Visible(bool(causal), groups[0], groups[1], window or None)
        return cls(positions, visible, first_query, first_key)


def is_packed(mask: Tensor) -> bool:
    """Return whether a mask is one that `MaskRule.pack` wrote."""
    return mask.dtype == torch.int64 and mask.ndim == 4 and int(mask[0, 0, 0, 0]) == MARK


@lru_cache(maxsize=4)
def packed_rule(mask: Tensor) -> MaskRule | None:
    """Return the rule that a mask is, or None; all layers of a pass ask for the same ones."""
    return MaskRule.unpack(mask) if is_packed(mask) else None


def bounds_of(queries: int, keys: int, first_query: int, first_key: int) -> tuple[int, int]:
    """Return the smallest and largest distance between queries and keys that follow each other."""
    gap = first_query - first_key
    return gap - keys + 1, gap + queries - 1
