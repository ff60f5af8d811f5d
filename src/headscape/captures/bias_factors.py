"""The bias of one layer as numbers: any block of it exactly, any cell of it from closed forms.

    ToeplitzFactor    table[i - j]                 ALiBi, T5, Kerple, Sandwich
    SlopeFactor       weight_i (row_i - col_j)     CABLE, FoX
    PerceptronFactor  mlp(near[i - j] / far_i)     FIRE
    DenseFactor       the map itself               any other bias

`block` gives [r c] values of one head, in float64 by default. `cells` gives the mean,
min or max of every cell of a grid. Cell (a, b) at level l covers queries a 2^l .. (a+1) 2^l and
keys b 2^l .. (b+1) 2^l. In a causal layer a cell with a > b is wholly visible, a = b is a triangle,
a < b is hidden.

    Toeplitz   every distance d occurs min(d - low, rows, keys, high - d) times in a cell
    Slope      mean(w r) - mean(w) mean(c); on the diagonal with running sums of c; per query the
               extremes are at the extremes of c

Values of hidden pairs are finite and mean nothing, as in the model.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from headscape.captures.cells import (
    BLOCK_PAIRS,
    Grid,
    Reduction,
    Tokens,
    empty_cells,
    indices,
    pool,
)

Values = Float[np.ndarray, "r c"]


@dataclass(frozen=True, eq=False)
class ToeplitzFactor:
    """A value per head and distance; column `zero` is distance 0."""

    table: Float[np.ndarray, "h n"]
    zero: int
    kind: ClassVar[Literal["toeplitz"]] = "toeplitz"

    def block(self, head: int, rows: Tokens, cols: slice, dtype: Any = np.float64) -> Values:
        """table[i - j]."""
        distance = indices(rows)[:, None] - indices(cols)
        return self._of(head, distance, dtype)

    def _of(self, head: int, distance: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
        column = np.clip(distance + self.zero, 0, self.table.shape[1] - 1)
        found: np.ndarray = self.table[head, column].astype(dtype)
        return found

    def cells(self, head: int, grid: Grid, reduction: Reduction) -> Values:
        """One value per difference of cells and pair of sizes, spread over the grid."""
        out = empty_cells(grid)
        known: dict[tuple[int, int, int], float] = {}
        for y, (first, last) in enumerate(grid.row_spans):
            for x, (left, right) in enumerate(grid.col_spans):
                if grid.causal and left >= last:
                    break
                at = (first - left, last - first, right - left)
                if at not in known:
                    known[at] = self._cell(head, *at, causal=grid.causal, reduction=reduction)
                out[y, x] = known[at]
        return out

    def _cell(
        self, head: int, gap: int, rows: int, keys: int, *, causal: bool, reduction: Reduction
    ) -> float:
        low, high = gap - keys + 1, gap + rows - 1
        distance = np.arange(max(low, 0) if causal else low, high + 1)
        values = self._of(head, distance)
        if reduction != "mean":
            return float(values.min() if reduction == "min" else values.max())
        times = np.minimum(
            np.minimum(distance - low + 1, high - distance + 1), min(rows, keys)
        ).astype(np.float64)
        return float(values @ times / times.sum())


@dataclass(frozen=True, eq=False)
class SlopeFactor:
    """One running sum per token and one weight per query; no weight means 1."""

    weight: Float[np.ndarray, "h t"] | None
    row: Float[np.ndarray, "h t"]
    col: Float[np.ndarray, "h t"]
    kind: ClassVar[Literal["slope"]] = "slope"

    def block(self, head: int, rows: Tokens, cols: slice, dtype: Any = np.float64) -> Values:
        """weight_i (row_i - col_j).

        In float32, row and col are first taken relative to the last key's sum, in float64: what is
        rounded is the change from there, however large the sums are.
        """
        if dtype == np.float32 and cols.stop > cols.start:
            last = float(self.col[head, cols.stop - 1])
            row = (self.row[head, rows] - last).astype(dtype)
            near: np.ndarray = row[:, None] + (last - self.col[head, cols]).astype(dtype)
            if self.weight is not None:
                near *= self.weight[head, rows].astype(dtype)[:, None]
            return near
        gap = self.row[head, rows, None].astype(np.float64) - self.col[head, None, cols]
        found: np.ndarray = gap if self.weight is None else gap * self.weight[head, rows, None]
        return found

    def cells(self, head: int, grid: Grid, reduction: Reduction) -> Values:
        """Closed forms; the diagonal of a causal layer from running sums."""
        out = empty_cells(grid)
        width = grid.col_sizes
        base = float(self.col[head, grid.cols.start])
        col = self.col[head, grid.cols].astype(np.float64) - base
        total = np.add.reduceat(col, grid.col_starts) / width
        least = np.minimum.reduceat(col, grid.col_starts)
        greatest = np.maximum.reduceat(col, grid.col_starts)
        for y, (first, last) in enumerate(grid.row_spans):
            row = self.row[head, first:last].astype(np.float64) - base
            weight = np.ones(len(row))
            if self.weight is not None:
                weight = self.weight[head, first:last].astype(np.float64)
            whole = grid.visible_cells(first)
            if reduction == "mean":
                mean = weight.mean()
                out[y, :whole] = (weight * row).mean() - mean * total[:whole]
            else:
                out[y, :whole] = _extremes(weight, row, least[:whole], greatest[:whole], reduction)
            if grid.causal and whole < len(width) and grid.col_spans[whole][0] == first:
                start = first - grid.cols.start
                out[y, whole] = _triangle(weight, row, col[start : start + len(row)], reduction)
        return out


def _extremes(
    weight: np.ndarray, row: np.ndarray, least: np.ndarray, greatest: np.ndarray, how: Reduction
) -> np.ndarray:
    """Least or greatest of weight_i (row_i - c) over queries i and c between least and greatest."""
    if (weight == 1).all():
        found: np.ndarray = row.min() - greatest if how == "min" else row.max() - least
        return found
    up, down = (greatest, least) if how == "min" else (least, greatest)
    reduce = np.minimum if how == "min" else np.maximum
    out = np.full(len(least), np.inf if how == "min" else -np.inf)
    step = max(1, BLOCK_PAIRS // max(1, len(least)))
    for start in range(0, len(row), step):
        w, r = weight[start : start + step, None], row[start : start + step, None]
        far = np.where(w >= 0, up, down) if (w < 0).any() else up
        out = reduce(out, reduce.reduce(w * (r - far), axis=0))
    return out


def _triangle(weight: np.ndarray, row: np.ndarray, col: np.ndarray, how: Reduction) -> float:
    """The same over pairs j <= i of one cell."""
    if how == "mean":
        seen = np.arange(1, len(row) + 1)
        values = weight * (row * seen - np.cumsum(col))
        return float(values.sum() / seen.sum())
    least, greatest = np.minimum.accumulate(col), np.maximum.accumulate(col)
    near = np.where((weight >= 0) == (how == "min"), greatest, least)
    values = weight * (row - near)
    return float(values.min() if how == "min" else values.max())


@dataclass(frozen=True, eq=False)
class PerceptronFactor:
    """A two-layer perceptron of near[i - j] / far_i, evaluated by its linear pieces."""

    near: Float[np.ndarray, " n"]
    zero: int
    far: Float[np.ndarray, " t"]
    in_weight: Float[np.ndarray, " m"]
    in_bias: Float[np.ndarray, " m"]
    out_weight: Float[np.ndarray, "h m"]
    out_bias: Float[np.ndarray, " h"]
    leak: float
    kind: ClassVar[Literal["perceptron"]] = "perceptron"
    _pieces: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False
    )

    def block(self, head: int, rows: Tokens, cols: slice, dtype: Any = np.float64) -> Values:
        """mlp(near[i - j] / far_i)."""
        distance = indices(rows)[:, None] - indices(cols)
        column = np.clip(distance + self.zero, 0, len(self.near) - 1)
        u = self.near[column].astype(np.float64) / self.far[rows, None]
        breaks, slope, intercept = self._linear(head)
        piece = np.searchsorted(breaks, u)
        values: np.ndarray = slope[piece] * u + intercept[piece]
        return values

    def cells(self, head: int, grid: Grid, reduction: Reduction) -> Values:
        """Every pair of every cell."""
        return pool(grid, lambda rows, cols: self.block(head, rows, cols))[reduction]

    def _linear(self, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the pieces of one head meet, and slope and intercept of each."""
        if head not in self._pieces:
            inner, offset = self.in_weight.astype(np.float64), self.in_bias.astype(np.float64)
            bends = inner != 0
            breaks = np.unique(-offset[bends] / inner[bends])
            inside = np.concatenate(
                [breaks[:1] - 1, (breaks[1:] + breaks[:-1]) / 2, breaks[-1:] + 1]
            )
            inside = inside if len(breaks) else np.zeros(1)
            active = np.where(inside[:, None] * inner + offset > 0, 1.0, self.leak)
            outer = self.out_weight[head].astype(np.float64)
            slope, intercept = active @ (outer * inner), active @ (outer * offset)
            self._pieces[head] = breaks, slope, intercept + float(self.out_bias[head])
        return self._pieces[head]


@dataclass(frozen=True, eq=False)
class DenseFactor:
    """A bias written out."""

    map: Float[np.ndarray, "h t t"]
    kind: ClassVar[Literal["dense"]] = "dense"

    def block(self, head: int, rows: Tokens, cols: slice, dtype: Any = np.float64) -> Values:
        """A part of the map."""
        return self.map[head, rows, cols].astype(np.float64)

    def cells(self, head: int, grid: Grid, reduction: Reduction) -> Values:
        """Every pair of every cell."""
        return pool(grid, lambda rows, cols: self.block(head, rows, cols))[reduction]


BiasFactor = ToeplitzFactor | SlopeFactor | PerceptronFactor | DenseFactor
