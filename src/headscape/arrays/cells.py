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
"""Pairs that are held at once."""


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
        return np.array([start for start, _ in self.col_spans]) - self.cols.start

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
            return (rows.stop - rows.start) * (cols.stop - cols.start)
        seen = np.clip(np.arange(rows.start, rows.stop) + 1 - cols.start, 0, cols.stop - cols.start)
        return int(seen.sum())

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
    out: dict[Reduction, np.ndarray] = {how: empty_cells(grid) for how in REDUCTIONS}
    for y, (first, last) in enumerate(grid.row_spans):
        stop = min(grid.cols.stop, last) if grid.causal else grid.cols.stop
        if stop <= grid.cols.start:
            continue
        cells = int(np.searchsorted(grid.col_starts, stop - grid.cols.start))
        step = max(1, BLOCK_PAIRS // (stop - grid.cols.start))
        state = Cells(cells)
        for start in range(first, last, step):
            rows, cols = slice(start, min(last, start + step)), slice(grid.cols.start, stop)
            values = block(rows, cols)
            hidden = None
            if grid.causal and stop > start + 1:
                hidden = np.arange(cols.start, stop) > np.arange(start, rows.stop)[:, None]
            state.add(values, hidden, grid.col_starts[:cells])
        for how, values in state.result().items():
            out[how][y, :cells] = values
    return out


class Cells:
    """Sum, count, least and greatest of the cells of one row of cells."""

    def __init__(self, cells: int) -> None:
        self.sum, self.count = np.zeros(cells), np.zeros(cells)
        self.min, self.max = np.full(cells, np.inf), np.full(cells, -np.inf)

    def add(self, values: np.ndarray, hidden: np.ndarray | None, starts: np.ndarray) -> None:
        """Take the values of some queries; columns of a cell begin at `starts`."""
        seen = np.full(values.shape[1], float(len(values)))
        low = high = total = values
        if hidden is not None:
            seen = (~hidden).sum(axis=0, dtype=np.float64)
            total = np.where(hidden, 0.0, values)
            low, high = np.where(hidden, np.inf, values), np.where(hidden, -np.inf, values)
        self.sum += np.add.reduceat(total.sum(axis=0, dtype=np.float64), starts)
        self.count += np.add.reduceat(seen, starts)
        self.min = np.minimum(self.min, np.minimum.reduceat(low.min(axis=0), starts))
        self.max = np.maximum(self.max, np.maximum.reduceat(high.max(axis=0), starts))

    def result(self) -> dict[Reduction, np.ndarray]:
        """Mean, least and greatest of each cell, NaN where nothing is visible."""
        nothing = self.count == 0
        mean = self.sum / np.where(nothing, 1, self.count)
        values: dict[Reduction, np.ndarray] = {"mean": mean, "min": self.min, "max": self.max}
        return {how: np.where(nothing, np.nan, value) for how, value in values.items()}
