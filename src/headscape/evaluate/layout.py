"""The paper's layout: lengths down, methods across, the best of each row in bold.

A cell is the mean over seeds, with the sample standard deviation after it where there are several;
"-" says that a method cannot read so many tokens, an empty cell that it was not asked to.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at a length."""

    mean: float | None
    """None where the method cannot, or was not measured."""
    spread: float | None
    """Standard deviation over seeds; None of a single one, or where one is not finite."""
    count: int
    """Seeds; 0 where it was not measured."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Cell":
        """From the value of every seed; a method that cannot with one seed cannot at all."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(mean=None, spread=None, count=len(values))
        finite = all(map(math.isfinite, known))
        spread = statistics.stdev(known) if finite and len(known) > 1 else None
        return cls(mean=statistics.fmean(known), spread=spread, count=len(known))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A table to be printed."""

    methods: Sequence[str]
    cells: Mapping[int, Sequence[Cell]]
    """By length, in the order of the methods."""
    best: Callable[[Sequence[float]], float]
    """The best of several means."""
    number: Callable[[float], str]
    """How a value is printed."""
    note: str
    """How the numbers were measured, in one sentence."""

    def markdown(self) -> str:
        """A Markdown table and its note."""
        lines = [
            "| length | " + " | ".join(self.methods) + " |",
            "|---:|" + "---:|" * len(self.methods),
        ]
        for length in self.cells:
            cells = self._row(length, "**{}**".format, " ± ")
            lines.append(f"| {length} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.note, ""])

    def latex(self) -> str:
        """A LaTeX tabular for the package booktabs, and its note as a comment."""
        heads = [re.sub(r"([&%$#_{}])", r"\\\1", method) for method in self.methods]
        lines = [
            f"% {self.note}",
            rf"\begin{{tabular}}{{r{'r' * len(heads)}}}",
            r"\toprule",
            " & ".join(["Length", *heads]) + r" \\",
            r"\midrule",
        ]
        for length in self.cells:
            cells = self._row(length, r"\textbf{{{}}}".format, r" $\pm$ ")
            lines.append(" & ".join([str(length), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def _row(self, length: int, bold: Callable[[str], str], between: str) -> list[str]:
        cells = self.cells[length]
        means = [c.mean for c in cells if c.mean is not None and not math.isnan(c.mean)]
        best = self.number(self.best(means)) if means else ""
        return [self._text(cell, best, bold, between) for cell in cells]

    def _text(self, cell: Cell, best: str, bold: Callable[[str], str], between: str) -> str:
        if cell.mean is None:
            return "-" if cell.count else ""
        text = self.number(cell.mean)
        # What prints as equal is equally good, and nothing right is not good.
        text = bold(text) if text == best and float(text) else text
        return text if cell.spread is None else f"{text}{between}{self.number(cell.spread)}"


def over_seeds(counts: Sequence[int]) -> str:
    """Over how many seeds means were taken; empty of single ones."""
    if max(counts) < 2:
        return ""
    return f"mean ± standard deviation over {'-'.join(map(str, sorted({*counts} - {0})))} seeds"
