"""Accuracies in the paper's layout: lengths down, methods across, the best of each row in bold.

Two tables, one of exact answers and one of right symbols. A cell is the mean over seeds, with the
sample standard deviation after it where there are several; "-" says that a method cannot read so
many tokens. Scores on different tasks or questions are refused.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headscape.errors import InputError
from headscape.evaluate.table import Cell
from headscape.evaluate.task_score import Score
from headscape.tasks import Task, task

Share = Literal["exact", "symbols"]
SHARES: Final[dict[Share, str]] = {"exact": "exact answers", "symbols": "right symbols"}


@dataclass(frozen=True, kw_only=True)
class TaskTable:
    """Scores on one task, arranged."""

    scores: tuple[Score, ...]

    @classmethod
    def of(cls, scores: Iterable[Score]) -> "TaskTable":
        """Arrange scores; those that do not compare are refused."""
        rows = tuple(scores)
        if not rows:
            raise InputError("there is nothing to put into a table: give at least one evaluation.")
        _check(rows)
        return cls(scores=rows)

    @property
    def task(self) -> Task:
        """What they are on."""
        return task(self.scores[0].task)

    @property
    def methods(self) -> list[str]:
        """Columns, in the order they first appear."""
        return list(dict.fromkeys(one.method for one in self.scores))

    @property
    def lengths(self) -> list[int]:
        """Rows, ascending."""
        return sorted({one.length for one in self.scores})

    def cell(self, method: str, length: int, share: Share) -> Cell:
        """Mean and spread over seeds; a method that cannot with one seed cannot at all."""
        here = [one for one in self.scores if (one.method, one.length) == (method, length)]
        found = [getattr(one, share) for one in here]
        if not found or None in found:
            return Cell(mean=None, spread=None, count=len(here))
        spread = statistics.stdev(found) if len(found) > 1 else None
        return Cell(mean=statistics.fmean(found), spread=spread, count=len(found))

    def note(self, share: Share) -> str:
        """What the numbers are, in one sentence."""
        low, high = self.task.train_lengths
        counts = {self.cell(one.method, one.length, share).count for one in self.scores}
        parts = [
            f"{self.task.name} ({self.task.level}): share of {SHARES[share]}",
            f"{self.scores[0].examples} questions of each length",
            f"trained on lengths {low} to {high}",
        ]
        if self.task.guess:
            parts.append(f"the commonest answer alone gets {self.task.guess:.2f}")
        if max(counts) > 1:
            seeds = "-".join(map(str, sorted({min(counts), max(counts)})))
            parts.append(f"mean ± standard deviation over {seeds} seeds")
        return "; ".join(parts) + "."

    def markdown(self) -> str:
        """Both tables, each with its note."""
        return "\n".join(map(self._markdown, SHARES))

    def latex(self) -> str:
        """Both as LaTeX tabulars for the package booktabs, their notes as comments."""
        return "\n".join(map(self._latex, SHARES))

    def _markdown(self, share: Share) -> str:
        lines = [
            "| length | " + " | ".join(self.methods) + " |",
            "|---:|" + "---:|" * len(self.methods),
        ]
        for length in self.lengths:
            cells = self._row(length, share, "**{}**".format, " ± ")
            lines.append(f"| {length} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.note(share), ""])

    def _latex(self, share: Share) -> str:
        heads = [method.replace("_", r"\_") for method in self.methods]
        lines = [
            f"% {self.note(share)}",
            rf"\begin{{tabular}}{{r{'r' * len(heads)}}}",
            r"\toprule",
            " & ".join(["Length", *heads]) + r" \\",
            r"\midrule",
        ]
        for length in self.lengths:
            cells = self._row(length, share, r"\textbf{{{}}}".format, r" $\pm$ ")
            lines.append(" & ".join([str(length), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def _row(
        self, length: int, share: Share, bold: Callable[[str], str], between: str
    ) -> list[str]:
        cells = [self.cell(method, length, share) for method in self.methods]
        means = [f"{cell.mean:.2f}" for cell in cells if cell.mean is not None]
        best = max(means, default="0.00")
        return [_text(cell, best, bold, between) for cell in cells]


def check_names(models: Iterable[tuple[str, int, str]]) -> None:
    """Refuse two models of one method and seed: (method, seed, SHA-256) of each."""
    seen: dict[tuple[str, int], str] = {}
    for method, seed, model in models:
        if seen.setdefault((method, seed), model) != model:
            raise InputError(
                f"two different models are both called {method}, seed {seed}: they are no seeds "
                f"of one another, so evaluate them into tables of their own."
            )


def _text(cell: Cell, best: str, bold: Callable[[str], str], between: str) -> str:
    if cell.mean is None:
        return "-"
    text = f"{cell.mean:.2f}"
    # What prints as equal is equally good, and nothing right is not good.
    text = bold(text) if text == best != "0.00" else text
    return text if cell.spread is None else f"{text}{between}{cell.spread:.2f}"


def _check(rows: Sequence[Score]) -> None:
    first = rows[0]
    asked: dict[int, Score] = {}
    for row in rows:
        if row.depth is not None:
            raise InputError("scores by depth are heat maps of one model each: compare tasks.json.")
        if row.task != first.task:
            raise InputError(
                f"{first.method} was tested on {first.task} and {row.method} on {row.task}, which "
                f"do not compare: give runs on one task."
            )
        if asked.setdefault(row.length, row).questions != row.questions:
            raise InputError(
                f"{asked[row.length].method} and {row.method} were asked other questions at "
                f"length {row.length}: evaluate them with the same --examples."
            )
    check_names((row.method, row.seed, row.model) for row in rows)
