"""Tables in the paper's layout: lengths down, methods across, the best of each row in bold.

A cell is the mean over seeds, with the sample standard deviation after it where there are several;
"-" says that a method cannot read so many tokens, an empty cell that it was not asked to. The line
under the table says how the numbers were measured, and numbers that were measured differently are
refused. JSON and CSV hold every single measurement, with its interval.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headscape.errors import InputError
from headscape.evaluate.measurement import Measurement, Quantity, by_token, without_units


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at a length."""

    mean: float | None
    """None where the method cannot, or was not measured."""
    spread: float | None
    """Standard deviation over seeds; None of a single one, or where one is not finite."""
    count: int
    """Seeds; 0 where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measurements of one protocol, arranged."""

    quantity: Quantity
    measurements: tuple[Measurement, ...]

    @classmethod
    def of(cls, measurements: Iterable[Measurement], quantity: Quantity = "perplexity") -> "Table":
        """Arrange measurements, each once; those that do not compare are refused."""
        rows = {(one.method, one.length, one.model): one for one in measurements}
        if not rows:
            raise InputError("there is nothing to put into a table: give at least one evaluation.")
        check(tuple(rows.values()), quantity)
        return cls(quantity=quantity, measurements=tuple(rows.values()))

    @property
    def methods(self) -> list[str]:
        """Columns, in the order they first appear."""
        return list(dict.fromkeys(one.method for one in self.measurements))

    @property
    def lengths(self) -> list[int]:
        """Rows, ascending."""
        return sorted({one.length for one in self.measurements})

    def cell(self, method: str, length: int) -> Cell:
        """Mean and spread over seeds; a method that cannot with one seed cannot at all."""
        here = [one for one in self.measurements if (one.method, one.length) == (method, length)]
        found = [one.value(self.quantity) for one in here]
        values = [value for value in found if value is not None]
        if not values or len(values) < len(found):
            return Cell(mean=None, spread=None, count=len(here))
        finite = all(map(math.isfinite, values))
        spread = statistics.stdev(values) if finite and len(values) > 1 else None
        return Cell(mean=statistics.fmean(values), spread=spread, count=len(values))

    def note(self) -> str:
        """How the numbers were measured, in one sentence."""
        one = self.measurements[0]
        trained = sorted({m.train_length for m in self.measurements if m.train_length is not None})
        counts = {self.cell(m.method, m.length).count for m in self.measurements}
        parts = [
            f"{self.quantity} by protocol {one.protocol}",
            f"corpus {one.corpus}",
            "all whole windows" if one.longest is None else "the same tokens at every length",
            f"{_span(m.tokens for m in self.measurements if m.tokens)} tokens scored",
        ]
        if trained:
            parts.append(f"trained at {', '.join(map(str, trained))}")
        if max(counts) > 1:
            seeds = "-".join(map(str, sorted({min(counts), max(counts)})))
            parts.append(f"mean ± standard deviation over {seeds} seeds")
        return "; ".join(parts) + "."

    def markdown(self) -> str:
        """A Markdown table and its note."""
        lines = [
            "| length | " + " | ".join(self.methods) + " |",
            "|---:|" + "---:|" * len(self.methods),
        ]
        for length in self.lengths:
            cells = self._row(length, "**{}**", " ± ")
            lines.append(f"| {length} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.note(), ""])

    def latex(self) -> str:
        """A LaTeX tabular for the package booktabs, and its note as a comment."""
        head = " & ".join(["Length", *map(_escaped, self.methods)])
        lines = [
            f"% {self.note()}",
            rf"\begin{{tabular}}{{r{'r' * len(self.methods)}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
        ]
        for length in self.lengths:
            cells = self._row(length, r"\textbf{{{}}}", r" $\pm$ ")
            lines.append(" & ".join([str(length), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """Every measurement in a row of its own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [
            "method", "seed", "train_length", "length", "protocol", "longest", "corpus",
            "windows", "tokens", "bytes", "words", "loss",
        ]  # fmt: skip
        writer.writerow([*names, self.quantity, "low", "high", "refused"])
        for one in self.measurements:
            low, high = one.interval(self.quantity) or (None, None)
            row = [getattr(one, name) for name in names]
            writer.writerow([*row, one.value(self.quantity), low, high, one.refused])
        return out.getvalue()

    def _row(self, length: int, bold: str, between: str) -> list[str]:
        cells = [self.cell(method, length) for method in self.methods]
        means = [c.mean for c in cells if c.mean is not None and not math.isnan(c.mean)]
        best = format_number(min(means)) if means else None
        return [_text(cell, best, bold, between) for cell in cells]


def format_number(value: float) -> str:
    """Two decimals, as the paper prints perplexities; `inf` and `nan` as they are."""
    return f"{value:.2f}"


def _text(cell: Cell, best: str | None, bold: str, between: str) -> str:
    if cell.mean is None:
        return "-" if cell.count else ""
    text = format_number(cell.mean)
    # What prints as equal is equally good.
    text = bold.format(text) if text == best else text
    return text if cell.spread is None else f"{text}{between}{format_number(cell.spread)}"


def _span(counts: Iterable[int]) -> str:
    """One number, or the least and the most of several."""
    found = sorted(set(counts)) or [0]
    return " to ".join(f"{count:,}" for count in dict.fromkeys((found[0], found[-1])))


def _escaped(text: str) -> str:
    return text.replace("_", r"\_")


def check(rows: Sequence[Measurement], quantity: Quantity) -> None:
    """Refuse what does not compare: other texts, other protocols, models that are no seeds."""
    first = rows[0]
    for name in ["protocol", "longest", "corpus"] + ["text"] * by_token(quantity):
        other = next((row for row in rows if getattr(row, name) != getattr(first, name)), None)
        if other is not None:
            raise InputError(
                f"{first.method} was measured with {name} {getattr(first, name)} and "
                f"{other.method} with {getattr(other, name)}, which do not compare: "
                f"evaluate them alike."
            )
    recipes: dict[str, str | None] = {}
    seen: dict[tuple[str, int, int | None], Measurement] = {}
    for row in rows:
        if recipes.setdefault(row.method, row.recipe) != row.recipe:
            raise InputError(
                f"two models called {row.method} were trained in different ways, so they are no "
                f"seeds of one another: evaluate them into tables of their own."
            )
        twin = seen.setdefault((row.method, row.length, row.seed), row)
        if twin.model != row.model:
            of = "" if row.seed is None else f" with seed {row.seed}"
            raise InputError(
                f"two different models are both called {row.method}{of}: evaluate them into "
                f"tables of their own."
            )
        if row.loss is not None and row.value(quantity) is None:
            raise without_units(row.method, quantity)
