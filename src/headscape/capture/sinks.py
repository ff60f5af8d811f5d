"""Where rows of scores go: kept whole, or reduced to cells with one exact window."""

import numpy as np
from jaxtyping import Float32

from headscape.arrays.pyramid import Reducer

Maps = dict[str, Float32[np.ndarray, "h _ _"]]


class Whole:
    """Keeps every entry."""

    def __init__(self, heads: int, length: int) -> None:
        self.map = np.empty((heads, length, length), dtype=np.float32)

    def add(self, rows: slice, block: Float32[np.ndarray, "h t s"]) -> None:
        """Take some queries' rows."""
        self.map[:, rows] = block

    def result(self) -> Maps:
        """The map, by the end of its name in a capture."""
        return {"": self.map}


class Reduced:
    """Keeps cells, and the exact entries of one window."""

    def __init__(self, reducer: Reducer, heads: int, window: tuple[slice, slice] | None) -> None:
        self.reducer = reducer
        self.window = window
        self.exact = None
        if window is not None:
            size = tuple(part.stop - part.start for part in window)
            self.exact = np.full((heads, *size), np.nan, dtype=np.float32)

    def add(self, rows: slice, block: Float32[np.ndarray, "h t s"]) -> None:
        """Take some queries' rows."""
        self.reducer.add(rows, block)
        if self.window is None or self.exact is None:
            return
        queries, keys = self.window
        first, last = max(rows.start, queries.start), min(rows.stop, queries.stop)
        if first < last:
            self.exact[:, first - queries.start : last - queries.start] = block[
                :, first - rows.start : last - rows.start, keys
            ]

    def result(self) -> Maps:
        """The map, by the end of its name in a capture."""
        maps = {f".{name}": value for name, value in self.reducer.result().items()}
        return maps if self.exact is None else maps | {".exact": self.exact}
