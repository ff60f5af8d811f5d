"""A grid of square cells over a map, and every pair of a cell reduced to one number.

Cell k at level l covers tokens k 2^l .. (k+1) 2^l, cut at the end of the sequence, so cells stay
where they are when one zooms or pans, and a level's cells are unions of the finer level's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from jaxtyping import Float, Int

Reduction = Literal["mean", "min", "max"]
REDUCTIONS: Final[tuple[Reduction, ...]] = ("mean", "min", "max")
BLOCK_PAIRS: Final = 1 << 20
"""Most pairs in memory at once."""


Tokens = slice | Int[np.ndarray, " n"]
"""Some tokens, as a range or by their indices."""


def indices(tokens: Tokens) -> Int[np.ndarray, " n"]:
    """The indices of some tokens."""
    return np.arange(tokens.start, tokens.stop) if isinstance(tokens, slice) else tokens


@dataclass(frozen=True)
class Grid:
    """Some rows and columns of cells of a map."""

    length: int
    """Tokens in the sequence."""
    level: int
    """A cell is 2^level tokens a side."""
    cell_rows: range
    cell_cols: range
    causal: bool = True
    window: int | None = None
    """Keys that a causal query sees, its own included; None is all before it."""

    @property
    def side(self) -> int:
        """Tokens a side of a whole cell."""
        return 1 << self.level

    @cached_property
    def rows(self) -> slice:
        """The queries covered."""
        return self._tokens(self.cell_rows)

    @cached_property
    def cols(self) -> slice:
        """The keys covered."""
        return self._tokens(self.cell_cols)

    @cached_property
    def row_spans(self) -> list[tuple[int, int]]:
        """First query of each row of cells, and the one after its last."""
        return self._spans(self.cell_rows)

    @cached_property
    def col_spans(self) -> list[tuple[int, int]]:
        """First key of each column of cells, and the one after its last."""
        return self._spans(self.cell_cols)

    @cached_property
    def col_starts(self) -> np.ndarray:
        """Where each column of cells begins within `cols`."""
        found: np.ndarray = np.array([start for start, _ in self.col_spans]) - self.cols.start
        return found

    @cached_property
    def row_sizes(self) -> np.ndarray:
        """Queries in each row of cells."""
        return np.array([stop - start for start, stop in self.row_spans])

    @cached_property
    def col_sizes(self) -> np.ndarray:
        """Keys in each column of cells."""
        return np.array([stop - start for start, stop in self.col_spans])

    def visible_cells(self, first: int) -> int:
        """How many columns, from the left, are wholly visible to the cells of query `first`."""
        if not self.causal:
            return len(self.col_spans)
        return min(max(first // self.side - self.cell_cols.start, 0), len(self.col_spans))

    @cached_property
    def pairs(self) -> int:
        """Visible pairs, an upper bound on what a loop over them costs."""
        rows, cols = self.rows, self.cols
        if not self.causal:
            found: int = (rows.stop - rows.start) * (cols.stop - cols.start)
            return found
        last = np.arange(rows.start, rows.stop) + 1
        first = cols.start if self.window is None else np.maximum(cols.start, last - self.window)
        return int(np.maximum(np.minimum(last, cols.stop) - first, 0).sum())

    @cached_property
    def counts(self) -> Float[np.ndarray, "r c"]:
        """Visible pairs of each cell."""
        rows, cols = self.row_sizes[:, None].astype(np.float64), self.col_sizes
        whole = rows * cols
        if self.window is not None:
            return self._windowed(self.window)
        if not self.causal:
            found: np.ndarray = whole
            return found
        gap = np.array([first for first, _ in self.row_spans])[:, None] - (
            self.col_starts + self.cols.start
        )
        triangle = rows * (rows + 1) / 2
        return np.where(gap > 0, whole, np.where(gap == 0, triangle, 0.0))

    def _windowed(self, window: int) -> Float[np.ndarray, "r c"]:
        """Visible pairs of each cell, counted query by query."""
        query = np.arange(self.rows.start, self.rows.stop)[:, None]
        left = self.col_starts + self.cols.start
        first = np.maximum(left, query + 1 - window)
        seen = np.maximum(np.minimum(query + 1, left + self.col_sizes) - first, 0)
        starts = np.array([start for start, _ in self.row_spans]) - self.rows.start
        found: np.ndarray = np.add.reduceat(seen, starts, axis=0).astype(np.float64)
        return found

    def _tokens(self, cells: range) -> slice:
        return slice(
            min(cells.start * self.side, self.length), min(cells.stop * self.side, self.length)
        )

    def _spans(self, cells: range) -> list[tuple[int, int]]:
        return [
            (cell * self.side, min((cell + 1) * self.side, self.length))
            for cell in cells
            if cell * self.side < self.length
        ]


def empty_cells(grid: Grid) -> Float[np.ndarray, "r c"]:
    """NaN for every cell."""
    return np.full((len(grid.row_spans), len(grid.col_spans)), np.nan)


def pool(
    grid: Grid, block: Callable[[slice, slice], np.ndarray]
) -> dict[Reduction, Float[np.ndarray, "r c"]]:
    """Reduce every visible pair of every cell; `block` gives the values of queries and keys."""
    shape = (len(grid.row_spans), len(grid.col_spans))
    total, low, high = np.zeros(shape), np.full(shape, np.inf), np.full(shape, -np.inf)
    for rows in _strips(grid):
        stop = min(grid.cols.stop, rows.stop) if grid.causal else grid.cols.stop
        if stop <= grid.cols.start:
            continue
        cols = slice(grid.cols.start, stop)
        first = (rows.start - grid.rows.start) // grid.side
        starts = np.arange(first, -(-(rows.stop - grid.rows.start) // grid.side)) * grid.side
        starts = np.maximum(starts + grid.rows.start - rows.start, 0)
        keys = grid.col_starts[: np.searchsorted(grid.col_starts, stop - cols.start)]
        at = np.s_[first : first + len(starts), : len(keys)]
        values = block(rows, cols)
        masked = {"sum": values, "min": values, "max": values}
        windowed = grid.window is not None
        if grid.causal and (windowed or stop > rows.start + 1):
            left = 0 if windowed else max(0, rows.start + 1 - cols.start)
            gap = np.arange(rows.start, rows.stop)[:, None] - np.arange(cols.start + left, stop)
            hidden = gap < 0 if grid.window is None else (gap < 0) | (gap >= grid.window)
            blanks = {"sum": 0.0, "min": np.inf, "max": -np.inf}
            masked = {name: values.copy() for name in masked}
            for name, blank in blanks.items():
                masked[name][:, left:][hidden] = blank
        total[at] += _reduce(np.add, masked["sum"], starts, keys, np.float64)
        low[at] = np.minimum(low[at], _reduce(np.minimum, masked["min"], starts, keys, None))
        high[at] = np.maximum(high[at], _reduce(np.maximum, masked["max"], starts, keys, None))
    count = grid.counts
    mean = total / np.maximum(count, 1)
    found: dict[Reduction, np.ndarray] = {"mean": mean, "min": low, "max": high}
    return {how: np.where(count > 0, value, np.nan) for how, value in found.items()}


def _strips(grid: Grid) -> list[slice]:
    """Queries to take at once: whole rows of cells, or parts of one where that is too many."""
    step = max(1, BLOCK_PAIRS // max(1, grid.cols.stop - grid.cols.start))
    if step >= grid.side:
        step -= step % grid.side
        spans = [(grid.rows.start, grid.rows.stop)]
    else:
        spans = grid.row_spans
    return [
        slice(start, min(last, start + step))
        for first, last in spans
        for start in range(first, last, step)
    ]


def _reduce(
    function: np.ufunc, values: np.ndarray, rows: np.ndarray, cols: np.ndarray, kind: type | None
) -> np.ndarray:
    """Reduce runs of rows, then runs of columns; rows first, because those are contiguous."""
    down = function.reduceat(values, rows, axis=0, dtype=kind)
    across: np.ndarray = function.reduceat(down, cols, axis=1, dtype=kind)
    return across
