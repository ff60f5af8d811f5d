"""A map too long to keep, reduced to r x r cells while its rows are computed.

Cell (a, b) covers queries edges[a]:edges[a+1] and keys edges[b]:edges[b+1], with edges as even as
whole tokens allow. Each cell has the mean, the least and the greatest of its visible entries, and
NaN where it has none. An entry is invisible when it is not finite, or when the map is causal and
its key comes after its query, so attention weights need no special care.

Sums and counts are kept in float64; minimum and maximum are exact. Memory is of order h r^2 plus
the block at hand, whatever the length.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from jaxtyping import Float, Float32, Int64


def cell_edges(length: int, resolution: int) -> Int64[np.ndarray, " edges"]:
    """Boundaries of `resolution` cells over `length` tokens, no two sizes further than 1 apart."""
    return np.arange(resolution + 1, dtype=np.int64) * length // resolution


class Reducer:
    """Takes the rows of [h t s] maps in blocks, in any order, each row once."""

    def __init__(self, *, heads: int, length: int, resolution: int, causal: bool = True) -> None:
        resolution = min(resolution, length)
        shape = (heads, resolution, resolution)
        self.edges: Final = cell_edges(length, resolution)
        self._causal = causal
        self._sum = np.zeros(shape)
        self._count = np.zeros(shape, dtype=np.int64)
        self._min = np.full(shape, np.inf, dtype=np.float32)
        self._max = np.full(shape, -np.inf, dtype=np.float32)
        self._seen = np.zeros(length, dtype=bool)

    def add(self, rows: slice, block: Float[np.ndarray, "h t s"]) -> None:
        """Take queries `rows`; keys start at 0 and may end early, as the unseen are invisible."""
        start, stop, _ = rows.indices(len(self._seen))
        if block.shape[1] != stop - start or self._seen[start:stop].any():
            raise ValueError(f"rows {start}:{stop} were already added or do not fit the block")
        self._seen[start:stop] = True
        first, last = (int(x) for x in np.searchsorted(self.edges, [start, stop - 1], "right") - 1)
        row_starts = np.maximum(self.edges[first : last + 1], start) - start
        columns = int(np.searchsorted(self.edges, block.shape[2], "left"))
        key_starts = self.edges[:columns]
        ahead = np.arange(block.shape[2]) > np.arange(start, stop)[:, None]

        def reduce(function: np.ufunc, values: np.ndarray, kind: type) -> np.ndarray:
            down: np.ndarray = function.reduceat(values, row_starts, axis=0, dtype=kind)
            across: np.ndarray = function.reduceat(down, key_starts, axis=1, dtype=kind)
            return across

        # A head at a time, so that what is set aside is small beside the block.
        for head, values in enumerate(block):
            visible = np.isfinite(values)
            if self._causal:
                visible &= ~ahead
            cells = np.s_[head, first : last + 1, :columns]
            self._sum[cells] += reduce(np.add, np.where(visible, values, 0), np.float64)
            self._count[cells] += reduce(np.add, visible, np.int64)
            least = reduce(np.minimum, np.where(visible, values, np.inf), np.float32)
            self._min[cells] = np.minimum(self._min[cells], least)
            greatest = reduce(np.maximum, np.where(visible, values, -np.inf), np.float32)
            self._max[cells] = np.maximum(self._max[cells], greatest)

    def result(self) -> Mapping[str, Float32[np.ndarray, "h r r"]]:
        """The `mean`, `min` and `max` maps; every row must have been added."""
        if not self._seen.all():
            raise ValueError(f"{int((~self._seen).sum())} of {len(self._seen)} rows were not added")
        empty = self._count == 0
        mean = self._sum / np.where(empty, 1, self._count)
        maps: dict[str, np.ndarray] = {"mean": mean, "min": self._min, "max": self._max}
        return {name: np.where(empty, np.nan, x).astype(np.float32) for name, x in maps.items()}
