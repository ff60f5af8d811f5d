"""A table's figures: a quantity against length, loss along the window, accuracy by depth."""

from collections.abc import Sequence

import numpy as np

from headscape.data.tasks import task
from headscape.evaluation.row import SHARES, Cell, Quantity, Row
from headscape.plots.lengths import Depths, Lengths, Line


def against_length(rows: Sequence[Row], quantity: Quantity) -> Lengths:
    """A line per method; bands are the spread over seeds, or a single run's interval."""
    methods = dict.fromkeys(row.method for row in rows)
    lines = [_line([row for row in rows if row.method == name], quantity) for name in methods]
    if rows[0].task is not None:
        chosen = task(rows[0].task)
        return Lengths(
            lines=lines,
            label=f"{SHARES[quantity].capitalize()}, {chosen.name}",
            across="Question length (symbols)",
            trained=[chosen.train_lengths[1]],
            trained_word="trained up to",
            reference=("commonest answer", chosen.guess) if chosen.guess else None,
            doubling=False,
            logarithmic=False,
            limits=(-0.02, 1.05),
        )
    return Lengths(
        lines=lines,
        label=f"{quantity.replace('-', ' ').capitalize()} ({rows[0].protocol})",
        trained=_trained(rows),
        logarithmic=quantity.endswith("perplexity"),
    )


def along_window(rows: Sequence[Row]) -> Lengths:
    """Loss along the window at each method's longest length, averaged over seeds.

    Positions are gathered into bins, four to a doubling, so that the noise of single positions
    does not hide the shape.
    """
    lines, shown = [], set()
    for method in dict.fromkeys(row.method for row in rows):
        here = [row for row in rows if row.method == method]
        longest = max(row.length for row in here)
        shown.add(longest)
        seeds = [np.array(row.by_position) for row in here if row.length == longest]
        losses = np.mean(seeds, axis=0)
        edges = np.unique(np.append((2 ** np.arange(0, np.log2(longest), 0.25)).astype(int), 0))
        counts = np.diff([*edges, longest])
        lines.append(
            Line(
                label=method,
                lengths=(edges + (counts + 1) / 2).tolist(),
                values=(np.add.reduceat(losses, edges) / counts).tolist(),
            )
        )
    return Lengths(
        lines=lines,
        label="Loss (nats per token, per-position)",
        across=f"Position in a window of {' or '.join(map(str, sorted(shown)))} tokens",
        trained=_trained(rows),
    )


def heat_map(rows: Sequence[Row], quantity: Quantity = "exact") -> Depths:
    """One model's accuracy by depth and length."""
    depths = sorted({row.depth for row in rows if row.depth is not None})
    lengths = sorted({row.length for row in rows})
    values = np.full((len(depths), len(lengths)), np.nan)
    for row in rows:
        value = row.value(quantity)
        if value is not None and row.depth is not None:
            values[depths.index(row.depth), lengths.index(row.length)] = value
    seed = "" if rows[0].seed is None else f", seed {rows[0].seed}"
    title = f"{rows[0].task}, {rows[0].method}{seed}"
    return Depths(accuracy=values, depths=depths, lengths=lengths, heading=title)


def _line(rows: Sequence[Row], quantity: Quantity) -> Line:
    """One method's line; lengths that it cannot read are left out."""
    points = []
    for length in sorted({row.length for row in rows}):
        here = [row for row in rows if row.length == length]
        cell = Cell.of([row.value(quantity) for row in here])
        if cell.mean is None:
            continue
        low, high = here[0].interval(quantity) or (cell.mean, cell.mean)
        if cell.spread is not None:
            low, high = cell.mean - cell.spread, cell.mean + cell.spread
            # A band must not leave what the axis can show: shares, or a logarithmic scale.
            share = here[0].task is not None
            low, high = (
                (max(low, 0.0), min(high, 1.0)) if share else (max(low, cell.mean / 10), high)
            )
        points.append((length, cell.mean, low, high))
    columns = list(zip(*points, strict=True)) or [(), (), (), ()]
    lengths, values, lows, highs = columns
    return Line(label=rows[0].method, lengths=lengths, values=values, low=lows, high=highs)


def _trained(rows: Sequence[Row]) -> list[int]:
    return sorted({row.train_length for row in rows if row.train_length is not None})
