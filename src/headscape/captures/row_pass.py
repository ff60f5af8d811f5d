"""Whole rows of a layer in bounded memory: log-sum-exp, and the weights reduced to cells exactly.

A query's weights need all its keys once. Per query and cell of keys one pass keeps the greatest and
the least final score and sum exp(final - greatest); the row's log-sum-exp follows from these, and
from it the sum, the least and the greatest weight of every cell. Nothing is sampled, unless asked
for: `weight_cells` with `samples` takes that many whole queries of every row of cells, and is then
a preview.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int

from headscape.captures.cells import Grid
from headscape.captures.factors import LayerFactors

BLOCK_PAIRS: Final = 1 << 20
"""Most pairs in memory at once where heads are independent."""
MIXED_PAIRS: Final = 1 << 16
"""The same where heads are mixed, which takes some hundred numbers per pair."""

Progress = Callable[[int], None]


def log_sum_exp(
    layer: LayerFactors,
    heads: Sequence[int] | None = None,
    rows: slice | None = None,
    *,
    dtype: Any = np.float64,
    progress: Progress = lambda _: None,
) -> Float64[np.ndarray, "n r"]:
    """Log sum of exp(final) over visible keys and the sink; by default of all heads and queries."""
    rows = slice(0, layer.length) if rows is None else rows
    picked = list(range(layer.heads) if heads is None else heads)
    out = np.empty((len(picked), rows.stop - rows.start))
    together = [picked] if layer.mix is not None else [[head] for head in picked]
    for group in together:
        at = [picked.index(head) for head in group]
        start = rows.start
        while start < rows.stop:
            width, step = _block(layer, start)
            block = slice(start, min(rows.stop, start + step))
            out[at, start - rows.start : block.stop - rows.start] = _norms(
                layer, group, block, width, dtype
            )
            if group is together[-1]:
                progress(block.stop - start)
            start = block.stop
    return out


def _block(layer: LayerFactors, start: int) -> tuple[int, int]:
    """Keys and queries to take at once."""
    if layer.mix is not None:
        last = start + 1 if layer.causal else layer.length
        return layer.length, max(1, min(256, MIXED_PAIRS // last))
    width = min(layer.length, 8192)
    return width, BLOCK_PAIRS // width


def _norms(
    layer: LayerFactors, heads: list[int], rows: slice, width: int, dtype: Any
) -> Float64[np.ndarray, "n r"]:
    shape = (len(heads), rows.stop - rows.start)
    greatest, total = np.full(shape, -np.inf), np.zeros(shape)
    last = rows.stop if layer.causal else layer.length
    for left in range(layer.first_key(rows.start), last, width):
        cols = slice(left, min(last, left + width))
        final = layer.blocks("final", heads, rows, cols, dtype=dtype)
        if layer.causal and (layer.window is not None or cols.stop > rows.start + 1):
            final = np.where(layer.visible(rows, cols), final, -np.inf)
        top = np.maximum(greatest, final.max(axis=-1))
        # A query that sees none of these keys has -inf - -inf = NaN, so its maximum is set to 0.
        safe = np.where(np.isfinite(top), top, 0.0)
        final = np.exp((final - safe[..., None]).astype(dtype))
        total = total * np.exp(greatest - safe) + final.sum(axis=-1, dtype=np.float64)
        greatest = top
    found: np.ndarray = greatest + np.log(total)
    return found if layer.sink is None else np.logaddexp(found, layer.sink[heads, None])


@dataclass(frozen=True, eq=False)
class WeightCells:
    """The weights of some rows of cells, keys from 0 on."""

    sum: Float64[np.ndarray, "a b"]
    min: Float64[np.ndarray, "a b"]
    max: Float64[np.ndarray, "a b"]
    count: Float64[np.ndarray, "a b"]
    """Pairs that went into each cell; 0 where it is hidden."""
    lse: Float64[np.ndarray, " r"]
    """Of the queries taken, in order."""

    def values(self, reduction: str) -> Float64[np.ndarray, "a b"]:
        """Mean, least or greatest, NaN where hidden."""
        empty = self.count == 0
        mean = self.sum / np.where(empty, 1, self.count)
        return np.where(empty, np.nan, {"mean": mean, "min": self.min, "max": self.max}[reduction])


def weight_cells(
    layer: LayerFactors,
    head: int,
    level: int,
    cell_rows: range,
    *,
    samples: int | None = None,
    dtype: Any = np.float32,
) -> WeightCells:
    """The weights of rows of cells over all keys; from `samples` whole queries each, if given."""
    grid = Grid(layer.length, level, cell_rows, range(-(-layer.length // (1 << level))))
    spans = grid.row_spans
    taken = [_evenly(first, last, samples) for first, last in spans]
    rows, owner = np.concatenate(taken), np.repeat(np.arange(len(spans)), [len(t) for t in taken])
    shape = (len(spans), len(grid.col_spans))
    total, count = np.zeros(shape), np.zeros(shape)
    least, greatest = np.full(shape, np.inf), np.zeros(shape)
    norms = []
    step = max(1, MIXED_PAIRS // layer.length) if layer.mix is not None else 128
    for start in range(0, len(rows), step):
        part, own = rows[start : start + step], owner[start : start + step]
        lse, low, high, sums, seen = _row_cells(layer, head, part, level, dtype)
        norms.append(lse)
        for cell in np.unique(own):
            mine, cells = own == cell, sums.shape[1]
            total[cell, :cells] += sums[mine].sum(axis=0)
            count[cell, :cells] += seen[mine].sum(axis=0)
            least[cell, :cells] = np.minimum(least[cell, :cells], low[mine].min(axis=0))
            greatest[cell, :cells] = np.maximum(greatest[cell, :cells], high[mine].max(axis=0))
    return WeightCells(total, least, greatest, count, np.concatenate(norms))


def _evenly(first: int, last: int, samples: int | None) -> Int[np.ndarray, " n"]:
    """All queries of a row of cells, or some at even spacing."""
    if samples is None or samples >= last - first:
        return np.arange(first, last)
    return first + ((np.arange(samples) + 0.5) * (last - first) / samples).astype(np.int64)


def _row_cells(
    layer: LayerFactors, head: int, rows: Int[np.ndarray, " r"], level: int, dtype: Any
) -> tuple[np.ndarray, ...]:
    """Log-sum-exp [r]; least, greatest and summed weight and visible keys [r cells] of queries."""
    side = 1 << level
    last = int(rows[-1]) + 1 if layer.causal else layer.length
    cells = -(-last // side)
    shape = (len(rows), cells)
    high, low = np.full(shape, -np.inf, dtype), np.full(shape, np.inf, dtype)
    sums, seen = np.zeros(shape, dtype), np.zeros(shape)
    width = layer.length if layer.mix is not None else max(side, 4096)
    begin = layer.first_key(int(rows[0])) // width * width
    for left in range(begin, last, width):
        cols = slice(left, min(last, left + width))
        # Rows ascend, so the queries that see a key at all are the last of them.
        first = int(np.searchsorted(rows, left)) if layer.causal else 0
        part, starts = rows[first:], np.arange(0, cols.stop - left, side)
        final = layer.blocks("final", [head], part, cols, dtype=dtype)[0]
        at = np.s_[first:, left // side : left // side + len(starts)]
        visible = None
        if layer.causal and (layer.window is not None or cols.stop > part[0] + 1):
            visible = layer.visible(part, cols)
            seen[at] = np.add.reduceat(visible, starts, axis=1, dtype=np.float64)
            hidden = np.where(visible, final, np.inf)
            final = np.where(visible, final, -np.inf)
        else:
            seen[at] = np.diff(starts, append=cols.stop - left)
            hidden = final
        top, bottom = _reduce(np.maximum, final, side), _reduce(np.minimum, hidden, side)
        high[at], low[at] = top, bottom
        safe = np.where(np.isfinite(top), top, 0)
        if len(starts) * side == final.shape[1]:
            by_cell = final.reshape(len(final), len(starts), side)
            by_cell -= safe[..., None]
        else:
            final -= np.repeat(safe, np.diff(starts, append=cols.stop - left), axis=1)
        np.exp(final, out=final)
        sums[at] = _reduce(np.add, final, side)
    top = high.max(axis=1).astype(np.float64)[:, None]
    shift = np.exp(high - top)
    lse = top + np.log((shift * sums).sum(axis=1, keepdims=True))
    if layer.sink is not None:
        lse = np.logaddexp(lse, layer.sink[head])
    factor = np.exp(top - lse)
    return lse[:, 0], np.exp(low - lse), shift * factor, shift * sums * factor, seen


def _reduce(function: np.ufunc, values: np.ndarray, side: int) -> np.ndarray:
    """Reduce runs of `side` columns; the last run may be shorter."""
    whole = values.shape[1] // side
    if whole * side == values.shape[1]:
        out: np.ndarray = function.reduce(values.reshape(len(values), whole, side), axis=-1)
        return out
    return function.reduceat(values, np.arange(0, values.shape[1], side), axis=1)
