"""Where rows of scores go: kept whole, kept within one window, or reduced to cells."""

from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float32

from headscape.captures.pyramid import Reducer

Maps = dict[str, Float32[np.ndarray, "h _ _"]]


class Sink(Protocol):
    """Takes the rows of one quantity."""

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows; `hidden` is True where a query does not see a key."""

    def result(self) -> Maps:
        """What was kept, by the end of its name in a capture."""


class Whole:
    """Keeps every entry; hidden ones become `blank`."""

    def __init__(self, heads: int, length: int, blank: float) -> None:
        self.map = np.empty((heads, length, length), dtype=np.float32)
        self.blank = np.float32(blank)

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows."""
        self.map[:, rows] = np.where(hidden, self.blank, block)

    def result(self) -> Maps:
        """The map."""
        return {"": self.map}


class Exact:
    """Keeps the entries of one window of queries and keys; hidden ones become `blank`."""

    def __init__(self, heads: int, window: tuple[slice, slice], blank: float) -> None:
        self.queries, self.keys = window
        size = tuple(part.stop - part.start for part in window)
        self.map = np.empty((heads, *size), dtype=np.float32)
        self.blank = np.float32(blank)

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows."""
        first, last = max(rows.start, self.queries.start), min(rows.stop, self.queries.stop)
        if first < last:
            own = np.s_[first - rows.start : last - rows.start, self.keys]
            shown = np.where(hidden[own], self.blank, block[:, *own])
            self.map[:, first - self.queries.start : last - self.queries.start] = shown

    def result(self) -> Maps:
        """The window."""
        return {".exact": self.map}


class Reduced:
    """Keeps cells of visible entries."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows."""
        self.reducer.add(rows, np.where(hidden, np.float32(np.nan), block))

    def result(self) -> Maps:
        """The mean, min and max of every cell."""
        return {f".{name}": value for name, value in self.reducer.result().items()}
