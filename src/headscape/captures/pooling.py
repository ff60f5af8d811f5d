"""Maps pooled to cells: the mean, least and greatest of every cell.

    CellReducer   takes blocks of a map, keeps the sum, count, least and greatest of every cell
    pool          every visible pair of a grid of cells
    Pooled        the same from closed forms, where a map has them
    weight_cells  the weights of whole rows, whose log-sum-exp is computed on the way
    sampled_cells from some pairs of every cell: a preview; all others are exact

The mean of content over a wholly visible cell is scale mean(q) . mean(k), so means of content and
of scores after rotation cost as much as one pair per cell, and so do those of a bias by distance
or of running sums, and of their sum. On the causal diagonal

    sum over j <= i of q_i . k_j  =  first half + second half + sum(q of second) . sum(k of first)

gives the triangle of a cell from its two halves. In a bias by distance, every distance d occurs
min(d - low, rows, keys, high - d) times in a cell; of running sums the mean is mean(w r) -
mean(w) mean(c), and per query the extremes are at the extremes of c. Everything else is a loop over
all visible pairs.

A query's weights need all its keys once. Per query and cell of keys one pass keeps the greatest and
the least final score and sum exp(final - greatest); the row's log-sum-exp follows from these, and
from it the sum, the least and the greatest weight of every cell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64

from headscape.captures.saved_call import BLOCK_PAIRS, MIXED_PAIRS, SavedCall, row_cells

if TYPE_CHECKING:
    from torch import Tensor

    from headscape.call.bias import Bias

Reduction = Literal["mean", "min", "max"]
REDUCTIONS: Final[tuple[Reduction, ...]] = ("mean", "min", "max")
BASE_LEVEL: Final = 4
"""Sums are kept from this level on; finer ones are computed where they are needed."""
SAMPLED_KEYS: Final = 64
"""Keys of a cell that go into a preview of its least and greatest score."""
Norms = Callable[[int, slice], Float[np.ndarray, " r"] | None]
"""Gives the log-sum-exp of some queries of a head; None where it spares nothing."""


def cell_edges(length: int, resolution: int) -> Int64[np.ndarray, " edges"]:
    """Boundaries of `resolution` cells over `length` tokens, no two sizes further than 1 apart."""
    return np.arange(resolution + 1, dtype=np.int64) * length // resolution


def visible_pairs(edges: Int64[np.ndarray, " edges"], *, causal: bool) -> Int64[np.ndarray, "a a"]:
    """Return the number of visible pairs of every cell between these edges."""
    seen = np.arange(1, edges[-1] + 1)[:, None] if causal else edges[-1]
    keys = np.clip(np.minimum(edges[1:], seen) - edges[:-1], 0, None)
    by_query = np.broadcast_to(keys, (edges[-1], len(edges) - 1))
    pairs: np.ndarray = np.add.reduceat(by_query, edges[:-1], axis=0)
    return pairs


class CellReducer:
    """Takes the rows of [h r c] maps in blocks, in any order, each row once.

    Cell (a, b) covers queries rows[a]:rows[a+1] and keys cols[b]:cols[b+1]. Sums are float64.
    Memory is of order heads x cells plus the block at hand, whatever the length.
    """

    def __init__(
        self,
        rows: Int64[np.ndarray, " edges"],
        cols: Int64[np.ndarray, " edges"],
        *,
        heads: int = 1,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> None:
        shape = (heads, len(rows) - 1, len(cols) - 1)
        self.rows: Final = rows
        self.cols: Final = cols
        self._sum, self._count = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        self._min, self._max = np.full(shape, np.inf, dtype), np.full(shape, -np.inf, dtype)
        self._seen = np.zeros(rows[-1] - rows[0], dtype=bool)

    def add(
        self,
        rows: slice,
        block: Float[np.ndarray, "h r c"],
        visible: Bool[np.ndarray, "r v"] | None = None,
    ) -> None:
        """Take some queries; their keys begin at the first cell and may end early.

        `visible` is of the last keys of the block, and all before them are visible. Without it
        every entry counts that is finite.
        """
        seen = self._seen[rows.start - self.rows[0] : rows.stop - self.rows[0]]
        if block.shape[1] != len(seen) or seen.any():
            raise ValueError(
                f"rows {rows.start}:{rows.stop} were already added or do not fit the block"
            )
        seen[:] = True
        if not block.shape[2]:
            return
        first, last = np.searchsorted(self.rows, [rows.start, rows.stop - 1], "right") - 1
        down = np.maximum(self.rows[first : last + 1], rows.start) - rows.start
        width = self.cols[0] + block.shape[2]
        across = self.cols[: int(np.searchsorted(self.cols, width, "left"))] - self.cols[0]
        shape = block.shape[1:]
        sizes = [np.diff(at, append=n) for at, n in zip((down, across), shape, strict=True)]

        def reduce(function: np.ufunc, values: np.ndarray, kind: type | None) -> np.ndarray:
            part = function.reduceat(values, down, axis=0, dtype=kind)
            cells: np.ndarray = function.reduceat(part, across, axis=1, dtype=kind)
            return cells

        # A head at a time, so that what is set aside is small beside the block.
        for head, values in enumerate(block):
            hidden = ~(np.isfinite(values) if visible is None else visible)
            at = np.s_[head, first : last + 1, : len(across)]
            if not hidden.any():
                hidden = hidden[:, :0]
            self._sum[at] += reduce(np.add, _blanked(values, hidden, 0.0), np.float64)
            least = reduce(np.minimum, _blanked(values, hidden, np.inf), None)
            self._min[at] = np.minimum(self._min[at], least)
            greatest = reduce(np.maximum, _blanked(values, hidden, -np.inf), None)
            self._max[at] = np.maximum(self._max[at], greatest)
            without = np.zeros((len(down), shape[1]), dtype=np.int64)
            without[:, shape[1] - hidden.shape[1] :] = np.add.reduceat(hidden, down, dtype=np.int64)
            self._count[at] += sizes[0][:, None] * sizes[1]
            self._count[at] -= np.add.reduceat(without, across, axis=1)

    def result(self) -> dict[Reduction, Float[np.ndarray, "h a b"]]:
        """Every reduction; NaN where a cell has no entry. Every row must have been added."""
        if not self._seen.all():
            raise ValueError(f"{int((~self._seen).sum())} of {len(self._seen)} rows were not added")
        empty = self._count == 0
        mean = self._sum / np.where(empty, 1, self._count)
        maps: dict[Reduction, np.ndarray] = {"mean": mean, "min": self._min, "max": self._max}
        return {how: np.where(empty, np.nan, x).astype(x.dtype) for how, x in maps.items()}


def _blanked(
    values: Float[np.ndarray, "r c"], hidden: Bool[np.ndarray, "r v"], blank: float
) -> Float[np.ndarray, "r c"]:
    """Values with `blank` at the hidden ones of the last columns."""
    if not hidden.size:
        return values
    out = values.copy()
    out[:, values.shape[1] - hidden.shape[1] :][hidden] = blank
    return out


@dataclass(frozen=True)
class CellGrid:
    """Some rows and columns of cells of a map."""

    length: int
    """Tokens in the sequence."""
    level: int
    """A cell is 2^level tokens a side."""
    cell_rows: range
    cell_cols: range
    causal: bool = True
    visible: Callable[[slice, slice], np.ndarray] | None = None
    """Where a query sees a key; None is all keys, or in a causal layer all up to its own."""
    window: int | None = None
    """Most keys that a causal query sees, its own included; None is all before it."""

    @classmethod
    def of(cls, layer: SavedCall, level: int, rows: range, cols: range) -> "CellGrid":
        """Cells of a layer's maps."""
        window = layer.described["visible"]["window"]
        visible = None if layer.by_distance else layer.visible
        return cls(layer.length, level, rows, cols, layer.orders_keys, visible, window)

    @property
    def side(self) -> int:
        """Tokens a side of a whole cell."""
        return 1 << self.level

    @property
    def cells(self) -> tuple[slice, slice]:
        """Where the grid is among all cells of its level."""
        rows, cols = self.cell_rows, self.cell_cols
        return slice(rows.start, rows.stop), slice(cols.start, cols.stop)

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
        """Offset of each column of cells from the grid's first key."""
        starts: np.ndarray = np.array([start for start, _ in self.col_spans]) - self.cols.start
        return starts

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
            every: int = (rows.stop - rows.start) * (cols.stop - cols.start)
            return every
        last = np.arange(rows.start, rows.stop) + 1
        first = cols.start if self.window is None else np.maximum(cols.start, last - self.window)
        return int(np.maximum(np.minimum(last, cols.stop) - first, 0).sum())

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


def empty_cells(grid: CellGrid) -> Float[np.ndarray, "r c"]:
    """NaN for every cell."""
    return np.full((len(grid.row_spans), len(grid.col_spans)), np.nan)


def pool(
    grid: CellGrid, block: Callable[[slice, slice], np.ndarray]
) -> dict[Reduction, Float[np.ndarray, "r c"]]:
    """Reduce every visible pair of every cell; `block` gives the values of queries and keys."""
    edges = [
        np.array([*(first for first, _ in spans), spans[-1][1]])
        for spans in (grid.row_spans, grid.col_spans)
    ]
    cells = CellReducer(edges[0], edges[1])
    for rows in _strips(grid):
        stop = min(grid.cols.stop, rows.stop) if grid.causal else grid.cols.stop
        if stop <= grid.cols.start:
            cells.add(rows, np.empty((1, rows.stop - rows.start, 0)))
            continue
        cols = slice(grid.cols.start, stop)
        if grid.visible is not None:
            visible = grid.visible(rows, cols)
        else:
            first = max(cols.start, rows.start + 1) if grid.causal else stop
            visible = np.arange(first, stop) <= np.arange(rows.start, rows.stop)[:, None]
        cells.add(rows, block(rows, cols)[None], visible)
    return {how: values[0] for how, values in cells.result().items()}


def _strips(grid: CellGrid) -> list[slice]:
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


@dataclass(frozen=True, eq=False)
class DistanceTable:
    """One head's bias by distance; column `zero` is distance 0."""

    table: Float[np.ndarray, " n"]
    zero: int

    def bias(self) -> "Bias":
        """Return the value that defines it."""
        from headscape.call.bias import Toeplitz

        return Toeplitz(_tensor(self.table)[None], self.zero)

    def _of(self, distance: np.ndarray) -> np.ndarray:
        column = np.clip(distance + self.zero, 0, len(self.table) - 1)
        values: np.ndarray = self.table[column].astype(np.float64)
        return values

    def cells(self, grid: CellGrid, reduction: Reduction) -> Float[np.ndarray, "r c"]:
        """One value per difference of cells and pair of sizes, spread over the grid."""
        out = empty_cells(grid)
        known: dict[tuple[int, int, int], float] = {}
        for y, (first, last) in enumerate(grid.row_spans):
            for x, (left, right) in enumerate(grid.col_spans):
                if grid.causal and left >= last:
                    break
                at = (first - left, last - first, right - left)
                if at not in known:
                    known[at] = self._cell(*at, causal=grid.causal, reduction=reduction)
                out[y, x] = known[at]
        return out

    def _cell(self, gap: int, rows: int, keys: int, *, causal: bool, reduction: Reduction) -> float:
        low, high = gap - keys + 1, gap + rows - 1
        distance = np.arange(max(low, 0) if causal else low, high + 1)
        values = self._of(distance)
        if reduction != "mean":
            return float(values.min() if reduction == "min" else values.max())
        times = np.minimum(
            np.minimum(distance - low + 1, high - distance + 1), min(rows, keys)
        ).astype(np.float64)
        return float(values @ times / times.sum())


@dataclass(frozen=True, eq=False)
class SumGap:
    """One head's weight_i (row_i - col_j); no weight means 1."""

    weight: Float[np.ndarray, " t"] | None
    row: Float[np.ndarray, " t"]
    col: Float[np.ndarray, " t"]

    def bias(self) -> "Bias":
        """Return this bias as a `Slope`."""
        from headscape.call.bias import Slope

        weight = None if self.weight is None else _tensor(self.weight)[None, None]
        return Slope(weight, _tensor(self.row)[None, None], _tensor(self.col)[None, None])

    def cells(self, grid: CellGrid, reduction: Reduction) -> Float[np.ndarray, "r c"]:
        """Closed forms; the diagonal of a causal layer from running sums."""
        out = empty_cells(grid)
        width = grid.col_sizes
        base = float(self.col[grid.cols.start])
        col = self.col[grid.cols].astype(np.float64) - base
        total = np.add.reduceat(col, grid.col_starts) / width
        least = np.minimum.reduceat(col, grid.col_starts)
        greatest = np.maximum.reduceat(col, grid.col_starts)
        for y, (first, last) in enumerate(grid.row_spans):
            row = self.row[first:last].astype(np.float64) - base
            weight = np.ones(len(row))
            if self.weight is not None:
                weight = self.weight[first:last].astype(np.float64)
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
        extremes: np.ndarray = row.min() - greatest if how == "min" else row.max() - least
        return extremes
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


ClosedBias = DistanceTable | SumGap


def bias_block(closed: ClosedBias, rows: slice, cols: slice) -> Float[np.ndarray, "r c"]:
    """Return some pairs of a bias, by its definition."""
    from headscape.call.bias import dense
    from headscape.call.positions import Positions

    at = Positions.span(max(rows.stop, cols.stop))
    values: np.ndarray = dense(closed.bias(), at, rows, cols)[0, 0].numpy()
    return values


def _tensor(values: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def closed_bias(layer: SavedCall, head: int) -> ClosedBias | None:
    """The bias of a head, where cells of it have closed forms."""
    bias, arrays = layer.described["bias"], layer.arrays
    if bias is not None and bias["kind"] == "Toeplitz":
        return DistanceTable(arrays["bias.table"][head], bias["zero"])
    if bias is not None and bias["kind"] == "Slope":
        weight = arrays.get("bias.weight")
        own = None if weight is None else weight[head]
        return SumGap(own, arrays["bias.row"][head], arrays["bias.col"][head])
    return None


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums of q and of k over cells of tokens, and of q.k over triangles, level by level."""

    layer: SavedCall
    head: int
    turned: bool
    _levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default_factory=list, init=False, repr=False
    )

    def means(self, grid: CellGrid) -> Float64[np.ndarray, "r c"]:
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
        return out * float(self.layer.described["scale"])

    def _direct(self, tokens: slice, level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts = np.arange(0, tokens.stop - tokens.start, 1 << level)
        q = self.layer.calculator.side(0, self.head, tokens, turned=self.turned)
        k = self.layer.calculator.side(1, self.head, tokens, turned=self.turned)
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

    def __init__(self, layer: SavedCall) -> None:
        self.layer = layer
        self._sums: dict[tuple[int, bool], CellSums] = {}

    def grid(self, level: int, cell_rows: range, cell_cols: range) -> CellGrid:
        """A grid over this layer's map."""
        return CellGrid.of(self.layer, level, cell_rows, cell_cols)

    def cells(
        self,
        quantity: str,
        head: int,
        grid: CellGrid,
        reductions: Sequence[Reduction] = REDUCTIONS,
        *,
        minus: ClosedBias | None = None,
        norms: Norms | None = None,
        dtype: Any = np.float64,
    ) -> dict[Reduction, Float64[np.ndarray, "r c"]]:
        """The reductions asked for of every cell of a grid, NaN where hidden.

        `minus` is taken away from the map first. `norms` gives log-sum-exp
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
            return values if minus is None else values - bias_block(minus, rows, cols)

        looped = pool(grid, block)
        return out | {how: looped[how] for how in rest}

    def closed(self, quantity: str, reduction: Reduction, minus: ClosedBias | None = None) -> bool:
        """Return whether the cells have a closed form, whose cost does not grow with the pairs."""
        layer = self.layer
        if not layer.by_distance or (layer.transformed and quantity != "content"):
            return False
        if quantity == "content":
            return reduction == "mean"
        named = ("mixing", "transition")
        if quantity == "weights" or any(layer.described[name] is not None for name in named):
            return False
        if layer.described["bias"] is not None and closed_bias(layer, 0) is None:
            return False
        if reduction == "mean":
            return True
        return quantity == "bias" and layer.additive and minus is None

    def _closed(
        self, quantity: str, head: int, grid: CellGrid, how: Reduction, minus: ClosedBias | None
    ) -> np.ndarray:
        layer = self.layer
        if quantity == "content":
            values = self._score(head, grid, turned=False)
        elif layer.additive and quantity == "bias":
            values = self._bias(head, grid, how)
        else:
            values = self._score(head, grid, turned=True)
            bias = closed_bias(layer, head)
            if bias is not None:
                values = values + bias.cells(grid, "mean")
            if quantity == "bias":
                values = values - self._score(head, grid, turned=False)
        return values if minus is None else values - minus.cells(grid, "mean")

    def _bias(self, head: int, grid: CellGrid, reduction: Reduction) -> np.ndarray:
        bias = closed_bias(self.layer, head)
        if bias is not None:
            return bias.cells(grid, reduction)
        out = np.zeros((len(grid.row_spans), len(grid.col_spans)))
        if grid.causal:
            first = np.array([start for start, _ in grid.row_spans])[:, None]
            out[np.array([start for start, _ in grid.col_spans]) > first] = np.nan
        return out

    def _score(self, head: int, grid: CellGrid, *, turned: bool) -> np.ndarray:
        if (head, turned) not in self._sums:
            self._sums[head, turned] = CellSums(self.layer, head, turned)
        return self._sums[head, turned].means(grid)


@dataclass(frozen=True, eq=False)
class WeightCells:
    """The weights of some rows of cells, keys from 0 on."""

    sum: Float64[np.ndarray, "a b"]
    min: Float64[np.ndarray, "a b"]
    max: Float64[np.ndarray, "a b"]
    count: Float64[np.ndarray, "a b"]
    """Pairs that went into each cell; 0 where it is hidden."""
    lse: Float64[np.ndarray, " r"]
    """Of the queries taken, in order; NaN where weights are not a softmax of stored scores."""

    def values(self, reduction: str) -> Float64[np.ndarray, "a b"]:
        """Mean, least or greatest, NaN where hidden."""
        empty = self.count == 0
        mean = self.sum / np.where(empty, 1, self.count)
        return np.where(empty, np.nan, {"mean": mean, "min": self.min, "max": self.max}[reduction])

    def coarser(self, levels: int) -> "WeightCells":
        """Return the same weights in cells of 2^levels x 2^levels of these."""
        down = np.arange(0, self.sum.shape[0], 1 << levels)
        across = np.arange(0, self.sum.shape[1], 1 << levels)

        def merge(function: np.ufunc, values: np.ndarray) -> np.ndarray:
            merged: np.ndarray = function.reduceat(
                function.reduceat(values, down, axis=0), across, axis=1
            )
            return merged

        return WeightCells(
            sum=merge(np.add, self.sum),
            min=merge(np.minimum, self.min),
            max=merge(np.maximum, self.max),
            count=merge(np.add, self.count),
            lse=self.lse,
        )


def weight_cells(
    layer: SavedCall,
    head: int,
    level: int,
    cell_rows: range,
    *,
    samples: int | None = None,
    dtype: Any = np.float32,
) -> WeightCells:
    """The weights of rows of cells over all keys; from `samples` whole queries each, if given."""
    grid = CellGrid(layer.length, level, cell_rows, range(-(-layer.length // (1 << level))))
    spans = grid.row_spans
    taken = [_evenly(first, last, samples) for first, last in spans]
    rows, owner = np.concatenate(taken), np.repeat(np.arange(len(spans)), [len(t) for t in taken])
    shape = (len(spans), len(grid.col_spans))
    total, count = np.zeros(shape), np.zeros(shape)
    least, greatest = np.full(shape, np.inf), np.zeros(shape)
    norms = []
    mixed = layer.described["mixing"] is not None
    step = max(1, MIXED_PAIRS // layer.length) if mixed else 128
    for start in range(0, len(rows), step):
        part, own = rows[start : start + step], owner[start : start + step]
        reduced = row_cells if layer.has_norms else _whole_rows
        parts = reduced(layer, [head], part, 1 << level, dtype)
        lse, low, high, sums, seen = (each[0] for each in parts)
        norms.append(lse)
        for cell in np.unique(own):
            mine, at = own == cell, np.s_[cell, : sums.shape[1]]
            total[at] += sums[mine].sum(axis=0)
            count[at] += seen[mine].sum(axis=0)
            least[at] = np.minimum(least[at], low[mine].min(axis=0))
            greatest[at] = np.maximum(greatest[at], high[mine].max(axis=0))
    return WeightCells(total, least, greatest, count, np.concatenate(norms))


def _evenly(first: int, last: int, samples: int | None) -> Int[np.ndarray, " n"]:
    """All queries of a row of cells, or some at even spacing."""
    if samples is None or samples >= last - first:
        return np.arange(first, last)
    return first + ((np.arange(samples) + 0.5) * (last - first) / samples).astype(np.int64)


def _whole_rows(
    layer: SavedCall, heads: Sequence[int], rows: Int[np.ndarray, " r"], side: int, _: Any
) -> tuple[np.ndarray, ...]:
    """The same where weights are not a softmax of stored scores."""
    cols = slice(0, int(rows[-1]) + 1 if layer.orders_keys else layer.length)
    weights, visible = layer.blocks("weights", heads, rows, cols), layer.visible(rows, cols)
    starts = np.arange(0, cols.stop, side)
    low = np.minimum.reduceat(np.where(visible, weights, np.inf), starts, axis=-1)
    high = np.maximum.reduceat(weights, starts, axis=-1)
    sums = np.add.reduceat(weights, starts, axis=-1)
    seen = np.add.reduceat(visible[None], starts, axis=-1, dtype=np.float64)
    return np.full(weights.shape[:2], np.nan), low, high, sums, seen


def sampled_cells(
    layer: SavedCall, head: int, quantity: str, grid: CellGrid
) -> dict[Reduction, Float[np.ndarray, "r c"]]:
    """Cells from their middle query and SAMPLED_KEYS keys in their middle: a preview."""
    rows = np.array([(first + last) // 2 for first, last in grid.row_spans])
    cells: dict[Reduction, np.ndarray] = {how: empty_cells(grid) for how in REDUCTIONS}
    for x, (left, right) in enumerate(grid.col_spans):
        middle = (left + right - SAMPLED_KEYS) // 2
        cols = slice(max(left, middle), min(right, max(left, middle) + SAMPLED_KEYS))
        sees = (rows >= cols.start) | (not layer.orders_keys)
        if not sees.any():
            continue
        part = rows[sees]
        values = layer.block(quantity, head, part, cols, dtype=np.float32)
        visible = layer.visible(part, cols)
        count = np.maximum(visible.sum(axis=1), 1)
        cells["mean"][sees, x] = np.where(visible, values, 0.0).sum(axis=1) / count
        cells["min"][sees, x] = np.where(visible, values, np.inf).min(axis=1)
        cells["max"][sees, x] = np.where(visible, values, -np.inf).max(axis=1)
        for reduced in cells.values():
            reduced[np.flatnonzero(sees)[~visible.any(axis=1)], x] = np.nan
    return cells
