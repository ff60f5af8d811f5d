"""The paper's layout: lengths down, methods across, the best of each row in bold.

A cell is the mean over seeds, with the sample standard deviation after it where there are several.
"-" marks a length that a method cannot read; an empty cell was not measured.
"""

import html
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headscape.io.table_text import latex_text, markdown_text, one_line


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at a length."""

    mean: float | None
    """None where the method cannot read the length, or was not measured."""
    spread: float | None
    """Standard deviation over seeds; None for a single seed, or where a value is not finite."""
    count: int
    """Number of seeds; 0 where nothing was measured."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Cell":
        """Return the cell of all seeds; its mean is None if one of them has no value."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(mean=None, spread=None, count=len(values))
        finite = all(map(math.isfinite, known))
        spread = statistics.stdev(known) if finite and len(known) > 1 else None
        return cls(mean=statistics.fmean(known), spread=spread, count=len(known))


@dataclass(frozen=True, kw_only=True)
class Layout:
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
        """A Markdown table and its note."""
        lines = [
            "| length | " + " | ".join(map(markdown_text, self.columns)) + " |",
            "|---:|" + "---:|" * len(self.columns),
        ]
        for length in self.cells:
            cells = self._row(length, "**{}**".format, " ± ")
            lines.append(f"| {length} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", markdown_text(self.note), ""])

    def latex(self) -> str:
        """A LaTeX tabular for the package booktabs, with its note as a comment."""
        heads = [latex_text(column) for column in self.columns]
        lines = [
            f"% {one_line(self.note)}",
            rf"\begin{{tabular}}{{r{'r' * len(heads)}}}",
            r"\toprule",
            " & ".join(["Length", *heads]) + r" \\",
            r"\midrule",
        ]
        for length in self.cells:
            cells = self._row(length, r"\textbf{{{}}}".format, r" $\pm$ ")
            lines.append(" & ".join([str(length), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def html(self) -> str:
        """An HTML table and its note."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ["length", *self.columns])
        lines = ["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
        for length in self.cells:
            cells = self._row(length, "<b>{}</b>".format, " ± ")
            lines.append(
                f"<tr><th>{length}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
            )
        return "\n".join([*lines, "</tbody>", "</table>", f"<p>{html.escape(self.note)}</p>", ""])

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
