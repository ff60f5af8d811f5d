"""What an evaluation leaves behind, and several of them put together.

    evaluation.json              every measurement, with all it says      (measurement.py)
    evaluation.csv               the same, a row each
    evaluation.md, .tex          the table in the paper's layout          (table.py)
    evaluation.png, .svg, .pdf   the plot
    positions.png, .svg, .pdf    loss along the window, by the protocol `per-position`

Every file is whole or not there, and the same measurements give the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headscape.evaluate import measurement
from headscape.evaluate.measurement import Measurement, Quantity
from headscape.evaluate.table import Table
from headscape.figures.lengths import Lengths, Line
from headscape.figures.style import save
from headscape.io import atomic

STEM = "evaluation"


def write(
    folder: Path, measurements: Sequence[Measurement], quantity: Quantity = "perplexity"
) -> list[Path]:
    """Write evaluation.json, .csv, .md, .tex and the plot; say where."""
    table = Table.of(measurements, quantity)
    stem = folder / STEM
    texts = {".csv": table.csv(), ".md": table.markdown(), ".tex": table.latex()}
    measurement.write(stem.with_suffix(".json"), table.measurements)
    for suffix, text in texts.items():
        atomic.write_text(stem.with_suffix(suffix), text)
    along = [one for one in table.measurements if one.by_position is not None]
    return [
        *(stem.with_suffix(suffix) for suffix in (".json", *texts)),
        *save(plot(table).draw(), stem),
        *(save(positions(along).draw(), folder / "positions") if along else []),
    ]


def plot(table: Table) -> Lengths:
    """The table as lines; bands are the spread over seeds, or a single one's interval."""
    trained = {one.train_length for one in table.measurements if one.train_length is not None}
    protocol = table.measurements[0].protocol
    return Lengths(
        lines=[_line(table, method) for method in table.methods],
        label=f"{table.quantity.replace('-', ' ').capitalize()} ({protocol})",
        trained=sorted(trained),
        logarithmic=table.quantity.endswith("perplexity"),
    )


def positions(measurements: Sequence[Measurement]) -> Lengths:
    """Loss along the window at each method's longest length, seeds averaged.

    Positions are gathered into bins, four to a doubling, so that the noise of single positions
    does not hide the shape.
    """
    lines, shown = [], set()
    for method in dict.fromkeys(one.method for one in measurements):
        here = [one for one in measurements if one.method == method]
        longest = max(one.length for one in here)
        shown.add(longest)
        seeds = [np.array(one.by_position) for one in here if one.length == longest]
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
    trained = {one.train_length for one in measurements if one.train_length is not None}
    return Lengths(
        lines=lines,
        label="Loss (nats per token, per-position)",
        across=f"Position in a window of {' or '.join(map(str, sorted(shown)))} tokens",
        trained=sorted(trained),
    )


def _line(table: Table, method: str) -> Line:
    lengths, values, low, high = [], [], [], []
    for length in table.lengths:
        cell = table.cell(method, length)
        if cell.mean is None:
            continue
        here = [m for m in table.measurements if (m.method, m.length) == (method, length)]
        edges = here[0].interval(table.quantity) or (cell.mean, cell.mean)
        if cell.spread is not None:
            edges = (max(cell.mean - cell.spread, cell.mean / 10), cell.mean + cell.spread)
        lengths.append(length)
        values.append(cell.mean)
        low.append(edges[0])
        high.append(edges[1])
    return Line(label=method, lengths=lengths, values=values, low=low, high=high)


def compare(paths: Sequence[Path]) -> list[Measurement]:
    """The measurements of several evaluations (folders, or JSON files)."""
    files = [path / f"{STEM}.json" if path.is_dir() else path for path in paths]
    return [one for file in files for one in measurement.read(file)]
