"""Zoomed out: the mean, least or greatest of every cell of a map, exactly, never sampled.

The mean of content over a wholly visible cell is scale mean(q) . mean(k), so means of content, of
scores after rotation, and with the closed forms of `bias_factors` of bias and final scores cost as
much as one pair per cell. On the causal diagonal

    sum over j <= i of q_i . k_j  =  first half + second half + sum(q of second) . sum(k of first)

gives the triangle of a cell from its two halves. Everything else is a loop over all visible pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float64

from headscape.captures.bias_factors import BiasFactor, SlopeFactor, ToeplitzFactor
from headscape.captures.cells import REDUCTIONS, Grid, Reduction, empty_cells, pool
from headscape.captures.factors import LayerFactors

BASE_LEVEL: Final = 4
"""Sums are kept from this level on; finer ones are computed where they are needed."""

Norms = Callable[[int, slice], Float[np.ndarray, " r"]]
"""Gives the log-sum-exp of some queries of a head."""


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums of q and of k over cells of tokens, and of q.k over triangles, level by level."""

    layer: LayerFactors
    head: int
    turned: bool
    _levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default_factory=list, init=False, repr=False
    )

    def means(self, grid: Grid) -> Float64[np.ndarray, "r c"]:
        """Scale times the mean of q.k over every cell, NaN where a cell is hidden."""
        rows, cols = grid.cell_rows, grid.cell_cols
        if grid.level <= BASE_LEVEL:
            q, _, triangle = self._direct(grid.rows, grid.level)
            _, k, _ = self._direct(grid.cols, grid.level)
        else:
            every_q, every_k, every = self._level(grid.level)
            q, k = every_q[rows.start : rows.stop], every_k[cols.start : cols.stop]
            triangle = every[rows.start : rows.stop]
        out: np.ndarray = (q / grid.row_sizes[:, None]) @ (k / grid.col_sizes[:, None]).T
        if grid.causal:
            y = np.arange(len(q))[:, None] + rows.start
            x = np.arange(len(k)) + cols.start
            size = grid.row_sizes
            diagonal = (triangle / (size * (size + 1) / 2))[:, None]
            out = np.where(x < y, out, np.where(x == y, diagonal, np.nan))
        return out * self.layer.scale

    def _direct(self, tokens: slice, level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts = np.arange(0, tokens.stop - tokens.start, 1 << level)
        q = self.layer.queries(self.head, tokens, turned=self.turned)
        k = self.layer.keys(self.head, tokens, turned=self.turned)
        before = np.cumsum(k, axis=0)
        owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(q)))
        zero = np.concatenate([np.zeros((1, k.shape[1])), before])[starts]
        pairs = np.einsum("te,te->t", q, before - zero[owner])
        return (
            np.add.reduceat(q, starts),
            np.add.reduceat(k, starts),
            np.add.reduceat(pairs, starts),
        )

    def _level(self, level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self._levels:
            side = 1 << BASE_LEVEL
            step = 4096 * side
            ends = range(0, self.layer.length, step)
            parts = [
                self._direct(slice(start, min(self.layer.length, start + step)), BASE_LEVEL)
                for start in ends
            ]
            q, k, triangle = (np.concatenate(each) for each in zip(*parts, strict=True))
            self._levels.append((q, k, triangle))
        while len(self._levels) <= level - BASE_LEVEL:
            q, k, triangle = self._levels[-1]
            if len(q) % 2:
                q, k = (np.concatenate([each, np.zeros_like(each[:1])]) for each in (q, k))
                triangle = np.append(triangle, 0.0)
            across = np.einsum("te,te->t", q[1::2], k[::2])
            self._levels.append(
                (q[::2] + q[1::2], k[::2] + k[1::2], triangle[::2] + triangle[1::2] + across)
            )
        return self._levels[level - BASE_LEVEL]


class Pooled:
    """The pooled maps of one layer; sums of q and k are computed once and kept."""

    def __init__(self, layer: LayerFactors) -> None:
        self.layer = layer
        self._sums: dict[tuple[int, bool], CellSums] = {}

    def grid(self, level: int, cell_rows: range, cell_cols: range) -> Grid:
        """A grid over this layer's map."""
        layer = self.layer
        return Grid(layer.length, level, cell_rows, cell_cols, layer.causal, layer.window)

    def cells(
        self,
        quantity: str,
        head: int,
        grid: Grid,
        reductions: Sequence[Reduction] = REDUCTIONS,
        *,
        minus: BiasFactor | None = None,
        norms: Norms | None = None,
        dtype: Any = np.float64,
    ) -> dict[Reduction, Float64[np.ndarray, "r c"]]:
        """The reductions asked for of every cell of a grid, NaN where hidden.

        `minus`, whose one head is 0, is taken away from the map first. `norms` gives log-sum-exp
        where none is stored.
        """
        if not grid.row_spans or not grid.col_spans:
            return {how: empty_cells(grid) for how in reductions}
        closed = [how for how in reductions if self.closed(quantity, how, minus)]
        out = {how: self._closed(quantity, head, grid, how, minus) for how in closed}
        rest = [how for how in reductions if how not in closed]
        if not rest:
            return out

        def block(rows: slice, cols: slice) -> np.ndarray:
            lse = None if norms is None or quantity != "weights" else norms(head, rows)
            values = self.layer.block(quantity, head, rows, cols, lse=lse, dtype=dtype)
            return values if minus is None else values - minus.block(0, rows, cols)

        looped = pool(grid, block)
        return out | {how: looped[how] for how in rest}

    def closed(self, quantity: str, reduction: Reduction, minus: BiasFactor | None = None) -> bool:
        """Whether cells come from closed forms, at a cost that does not grow with their pairs."""
        bias = self.layer.bias
        simple = bias is None or isinstance(bias, ToeplitzFactor | SlopeFactor)
        if self.layer.window is not None or (self.layer.bends and quantity != "content"):
            return False
        if quantity == "content":
            return reduction == "mean"
        if self.layer.mix is not None or quantity == "weights" or not simple:
            return False
        if reduction == "mean":
            return True
        return quantity == "bias" and self.layer.turn is None and minus is None

    def _closed(
        self, quantity: str, head: int, grid: Grid, how: Reduction, minus: BiasFactor | None
    ) -> np.ndarray:
        layer = self.layer
        if quantity == "content":
            values = self._score(head, grid, turned=False)
        elif layer.additive and quantity == "bias":
            values = self._bias(head, grid, how)
        else:
            values = self._score(head, grid, turned=layer.turn is not None)
            if layer.bias is not None:
                values = values + layer.bias.cells(head, grid, "mean")
            if quantity == "bias":
                values = values - self._score(head, grid, turned=False)
        return values if minus is None else values - minus.cells(0, grid, "mean")

    def _bias(self, head: int, grid: Grid, reduction: Reduction) -> np.ndarray:
        if self.layer.bias is not None:
            return self.layer.bias.cells(head, grid, reduction)
        out = np.zeros((len(grid.row_spans), len(grid.col_spans)))
        if grid.causal:
            first = np.array([start for start, _ in grid.row_spans])[:, None]
            out[np.array([start for start, _ in grid.col_spans]) > first] = np.nan
        return out

    def _score(self, head: int, grid: Grid, *, turned: bool) -> np.ndarray:
        if (head, turned) not in self._sums:
            self._sums[head, turned] = CellSums(self.layer, head, turned)
        return self._sums[head, turned].means(grid)
