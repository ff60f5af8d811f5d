"""An evaluation as a table: perplexities of a text, or accuracies on a task.

`save` writes, for a text,

    evaluation.json, .csv              every row
    evaluation.md, .tex                the table in the paper's layout
    evaluation.png, .svg, .pdf         the quantity against length
    positions.png, .svg, .pdf          loss along the window, by the protocol per-position

for a task `tasks` in place of `evaluation`, and `tasks-symbols` as a second plot; and for heat
maps, which belong to one model each, `passkey-RUN.json`, `.csv`, `.png`, `.svg` and `.pdf`. Every
file is written atomically, and equal rows give equal bytes.

The paper's layout has lengths down and methods across, the best of each row in bold. A cell is the
mean over seeds, with the sample standard deviation after it where there are several. "-" marks a
length that a method cannot read; an empty cell was not measured.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from headscape.data.tasks import Task, task
from headscape.errors import InputError
from headscape.evaluation.row import (
    SHARES,
    Cell,
    EvaluationRow,
    Quantity,
    by_token,
    check,
    known_quantity,
    read_all,
    to_json,
)
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.io.table_text import markdown_text
from headscape.io.terminal import one_line, printable
from headscape.measures import record_table
from headscape.plots.lengths import Depths, Lengths, Line
from headscape.plots.style import save as save_figure

STEMS = ("evaluation", "tasks", "positions", "passkey", "needle")
"""How the names of a table's files begin."""


@dataclass(frozen=True, kw_only=True)
class PrintedTable:
    """A table to be printed."""

    columns: Sequence[str]
    cells: Mapping[int, Sequence[Cell]]
    """By length, in the order of the columns."""
    best: Callable[[Sequence[float]], float] | None
    """Chooses the best mean of a row; None for no bold cells."""
    number: Callable[[float], str]
    """Formats a value."""
    note: str
    """How the numbers were measured, in one sentence."""

    def markdown(self) -> str:
        """Return a Markdown table and its note."""
        grid = record_table.markdown_grid(*self._grid("length", "**{}**", " ± "))
        return f"{grid}\n{markdown_text(self.note)}\n"

    def latex(self) -> str:
        """Return a LaTeX tabular for the package booktabs, with its note as a comment."""
        grid = record_table.latex_grid(*self._grid("Length", r"\textbf{{{}}}", r" $\pm$ "))
        return f"% {one_line(self.note)}\n{grid}"

    def html(self) -> str:
        """Return an HTML table and its note."""
        grid = record_table.html_grid(*self._grid("length", "<b>{}</b>", " ± "))
        return f"{grid}<p>{escape(self.note)}</p>\n"

    def _grid(self, corner: str, bold: str, between: str) -> tuple[list[str], list[list[str]]]:
        """Return the heads of the columns, and a line of marked-up cells for each length."""
        rows = [[str(n), *self._row(n, bold.format, between)] for n in self.cells]
        return [corner, *self.columns], rows

    def _row(self, length: int, bold: Callable[[str], str], between: str) -> list[str]:
        cells = self.cells[length]
        means = [c.mean for c in cells if c.mean is not None and not math.isnan(c.mean)]
        best = self.number(self.best(means)) if means and self.best else ""
        return [self._text(cell, best, bold, between) for cell in cells]

    def _text(self, cell: Cell, best: str, bold: Callable[[str], str], between: str) -> str:
        if cell.mean is None:
            return "-" if cell.count else ""
        text = self.number(cell.mean)
        # Bold every cell that rounds to the best; never bold 0.
        text = bold(text) if text == best and float(text) else text
        return text if cell.spread is None else f"{text}{between}{self.number(cell.spread)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """Rows of one kind that can be compared: losses on a text, or accuracies on a task.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
        >>> model = hs.load(gpt2, tokenizer="bytes")
        >>> table = hs.evaluate(model, task="needle", lengths=64, depths=[0, 1], examples=1)
        >>> table.methods, table.lengths, len(table.rows)
        (['ALiBi'], [64], 2)
        >>> sorted(path.suffix for path in table.save("found").iterdir())
        ['.csv', '.json', '.pdf', '.png', '.svg']
        >>> hs.Table.read("found/needle-ALiBi.json") == table
        True
    """

    rows: tuple[EvaluationRow, ...]
    quantity: Quantity
    """What `cell` and `plot` show; a task's tables show both of its accuracies."""

    @classmethod
    def of(cls, rows: Iterable[EvaluationRow], quantity: str | None = None) -> "Table":
        """Return a table of rows, each row once; raise InputError if they cannot be compared.

        Args:
            rows: Models at lengths, all on texts or all on tasks.
            quantity: What is shown; default perplexity, for a task exact.
        """
        unique = tuple({row.key: row for row in rows}.values())
        if not unique:
            raise InputError("a table needs at least one row: give at least one evaluation.")
        shown = known_quantity(quantity, unique[0].kind)
        check(unique, shown)
        return cls(rows=unique, quantity=shown)

    @classmethod
    def read(cls, *paths: Path | str, quantity: str | None = None) -> "Table":
        """Merge evaluations into one table.

        Args:
            paths: Folders or JSON files that `save` wrote.
            quantity: What is shown; default perplexity, for a task exact.
        """
        return cls.of(read_all(map(Path, paths)), quantity)

    def __repr__(self) -> str:
        lengths = self.lengths
        span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        return f"Table({self.quantity} of {printable(', '.join(self.methods))} at length {span})"

    @property
    def methods(self) -> list[str]:
        """Columns, in the order they first appear."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def lengths(self) -> list[int]:
        """Lengths, ascending."""
        return sorted({row.length for row in self.rows})

    def cell(self, method: str, length: int, quantity: Quantity | None = None) -> Cell:
        """Return mean and spread over seeds.

        Args:
            method: A column.
            length: A row.
            quantity: Default the table's.
        """
        here = [row for row in self.rows if (row.method, row.length) == (method, length)]
        return Cell.of([row.value(quantity or self.quantity) for row in here])

    def note(self, quantity: Quantity | None = None) -> str:
        """How the numbers were measured, in one sentence."""
        # A heat map belongs to one model, so its cells are not means over seeds.
        plain = self.rows if self.rows[0].depth is None else ()
        seeds = {self.cell(row.method, row.length).count for row in plain}
        return _note(self.rows, quantity or self.quantity, seeds)

    def to_markdown(self) -> str:
        """The table in Markdown, with its note; for a task, one table per accuracy."""
        return "\n".join(layout.markdown() for layout in self._layouts())

    def to_latex(self) -> str:
        """LaTeX tabulars for the package booktabs, with their notes as comments."""
        return "\n".join(layout.latex() for layout in self._layouts())

    def _repr_html_(self) -> str:
        return "\n".join(layout.html() for layout in self._layouts())

    def to_json(self) -> str:
        """Every row with all its fields, as `Table.read` reads it."""
        return to_json(self.rows)

    def to_csv(self) -> str:
        """Every row, with the quantity and its interval."""
        return record_table.to_csv([row.record(self.quantity) for row in self.rows])

    def to_frame(self) -> Any:
        """Every row as a pandas DataFrame, with the columns of `to_csv`."""
        return record_table.to_frame([row.record(self.quantity) for row in self.rows])

    def maps(self) -> dict[str, "Table"]:
        """A table per heat map, by the label of its model; empty for accuracies by length."""
        by_label: dict[str, list[EvaluationRow]] = {}
        for row in self.rows if self.rows[0].depth is not None else ():
            by_label.setdefault(row.label or row.method, []).append(row)
        return {
            label: Table(rows=tuple(rows), quantity=self.quantity)
            for label, rows in by_label.items()
        }

    def plot(
        self, quantity: str | None = None, *, bands: bool = False, ax: Any = None
    ) -> Lengths | Depths:
        """Return the quantity against length, or one model's heat map.

        Args:
            quantity: Default the table's.
            bands: Whether intervals, or the spread over seeds, are shaded.
            ax: matplotlib axes of your own to draw the lines into as well, beside others.
        """
        shown = known_quantity(quantity or self.quantity, self.rows[0].kind)
        maps = self.maps()
        if len(maps) > 1:
            raise InputError(
                f"this table has {len(maps)} heat maps: plot one, such as "
                f"table.maps()[{next(iter(maps))!r}].plot()."
            )
        if maps:
            return heat_map(self.rows, shown)
        found = replace(against_length(self.rows, shown), bands=bands)
        if ax is not None:
            found.draw_on(ax)
        return found

    def save(self, folder: Path | str) -> Path:
        """Write the table's files into a folder and return the folder's path.

        Files of an earlier table are replaced; a file of a different kind is refused.
        """
        self.save_files(folder)
        return Path(folder)

    def save_files(self, folder: Path | str) -> list[Path]:
        """Write the same files as `save`; return the path of each."""
        folder = Path(folder)
        check_folder(folder)
        paths = []
        for label, table in self.maps().items():
            stem = folder / f"{table.rows[0].task}-{label}"
            texts = {"json": table.to_json(), "csv": table.to_csv()}
            paths += [*_write(stem, texts), *save_figure(table.plot().draw(), stem)]
        if paths:
            return paths
        stem = folder / self.rows[0].kind.stem
        texts = {"json": self.to_json(), "csv": self.to_csv()}
        paths = _write(stem, texts | {"md": self.to_markdown(), "tex": self.to_latex()})
        first, *others = self._shown()
        stems = {first: stem} | {each: stem.with_name(f"{stem.name}-{each}") for each in others}
        for quantity, name in stems.items():
            paths += save_figure(self.plot(quantity).draw(), name)
        along = [row for row in self.rows if row.by_position is not None]
        if along:
            paths += save_figure(along_window(along).draw(), folder / "positions")
        return paths

    def _shown(self) -> tuple[Quantity, ...]:
        """The quantities that files and tables show."""
        first = self.rows[0]
        return (self.quantity,) if first.task is None else first.kind.quantities

    def _layouts(self) -> list[PrintedTable]:
        maps = self.maps()
        if maps:
            return [_map_layout(table) for table in maps.values()]
        return [
            PrintedTable(
                columns=self.methods,
                cells={n: [self.cell(m, n, shown) for m in self.methods] for n in self.lengths},
                best=min if self.rows[0].task is None else max,
                number=partial(format_number, quantity=shown),
                note=self.note(shown),
            )
            for shown in self._shown()
        ]


def check_folder(folder: Path, reads: Iterable[Path | str] = ()) -> None:
    """Refuse a folder where a table would replace a file of a different kind, or one it reads."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        kind = KINDS.get(path.suffix[1:])
        if kind is not None and path.stem.split("-")[0] in STEMS:
            check_output(path, kind, reads=reads)


def _map_layout(table: Table) -> PrintedTable:
    """One model's heat map: lengths down, depths across."""
    cells = {(row.length, row.depth): row for row in table.rows}
    depths = sorted({row.depth for row in cells.values() if row.depth is not None})
    return PrintedTable(
        columns=[f"{depth:.0%}" for depth in depths],
        cells={
            n: [Cell.of([cells[n, depth].value(table.quantity)]) for depth in depths]
            for n in table.lengths
        },
        best=None,
        number=partial(format_number, quantity=table.quantity),
        note=table.note(),
    )


def format_number(value: float, quantity: Quantity = "perplexity") -> str:
    """Two decimals for perplexities, as in the paper, and accuracies; three for losses and bits."""
    if quantity in ("loss", "bits-per-byte"):
        return f"{value:.3f}"
    return f"{value:.2f}" if not 1e5 <= value < math.inf else f"{value:.3g}"


def _write(stem: Path, texts: Mapping[str, str]) -> list[Path]:
    paths = {stem.with_name(f"{stem.name}.{suffix}"): text for suffix, text in texts.items()}
    for path, text in paths.items():
        write_output(path, text, KINDS[path.suffix[1:]])
    return list(paths)


def _note(rows: Sequence[EvaluationRow], quantity: Quantity, seeds: Iterable[int]) -> str:
    """How the numbers were measured, in one sentence; `seeds` are the cells' numbers of seeds."""
    if rows[0].task is None:
        parts = _text_parts(rows, quantity)
    else:
        parts = _task_parts(rows[0], task(rows[0].task), quantity)
    counts = sorted({*seeds} - {0})
    if counts and counts[-1] > 1:
        parts.append(f"mean ± standard deviation over {'-'.join(map(str, counts))} seeds")
    return "; ".join(parts) + "."


def _text_parts(rows: Sequence[EvaluationRow], quantity: Quantity) -> list[str]:
    first = rows[0]
    trained = sorted({row.train_length for row in rows if row.train_length is not None})
    parts = [
        f"{quantity} by protocol {first.protocol}",
        f"corpus {first.corpus}",
        "all whole windows" if first.longest is None else "the same tokens at every length",
        f"{_span(row.tokens for row in rows if row.tokens)} tokens scored",
    ]
    if not by_token(quantity):
        parts.append(f"{_span(row.bytes for row in rows if row.bytes)} bytes")
    if trained:
        parts.append(f"trained at {', '.join(map(str, trained))}")
    return parts


def _task_parts(first: EvaluationRow, chosen: Task, quantity: Quantity) -> list[str]:
    about = f"{chosen.name} ({chosen.level}): share of {SHARES[quantity]}"
    if first.depth is not None:
        name = first.method if first.seed is None else f"{first.method}, seed {first.seed}"
        return [about, name, f"{first.examples} questions of each length and depth"]
    low, high = chosen.train_lengths
    parts = [
        about,
        f"{first.examples} questions of each length",
        f"trained on lengths {low} to {high}",
    ]
    if chosen.guess:
        parts.append(f"the commonest answer alone gets {chosen.guess:.2f}")
    return parts


def _span(counts: Iterable[int]) -> str:
    """One number, or the smallest and the largest of several."""
    ordered = sorted(set(counts)) or [0]
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ordered[0], ordered[-1])))


def against_length(rows: Sequence[EvaluationRow], quantity: Quantity) -> Lengths:
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


def along_window(rows: Sequence[EvaluationRow]) -> Lengths:
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


def heat_map(rows: Sequence[EvaluationRow], quantity: Quantity = "exact") -> Depths:
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


def _line(rows: Sequence[EvaluationRow], quantity: Quantity) -> Line:
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
    lengths, values, lows, highs = list(zip(*points, strict=True)) or [(), (), (), ()]
    return Line(label=rows[0].method, lengths=lengths, values=values, low=lows, high=highs)


def _trained(rows: Sequence[EvaluationRow]) -> list[int]:
    return sorted({row.train_length for row in rows if row.train_length is not None})
