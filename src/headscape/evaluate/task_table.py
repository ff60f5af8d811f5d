"""Scores as two tables, one of exact answers and one of right symbols.

Scores on different tasks or questions are refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headscape.errors import InputError
from headscape.evaluate.layout import Cell, Layout, over_seeds
from headscape.evaluate.seeds import Member, check_seeds
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
        """Arrange scores, each once; those that do not compare are refused."""
        rows = {(s.task, s.method, s.length, s.depth, s.model, s.questions): s for s in scores}
        if not rows:
            raise InputError("there is nothing to put into a table: give at least one evaluation.")
        _check(tuple(rows.values()))
        return cls(scores=tuple(rows.values()))

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
        """Mean and spread over seeds."""
        here = [one for one in self.scores if (one.method, one.length) == (method, length)]
        return Cell.of([getattr(one, share) for one in here])

    def note(self, share: Share) -> str:
        """What the numbers are, in one sentence."""
        low, high = self.task.train_lengths
        counts = [self.cell(one.method, one.length, share).count for one in self.scores]
        parts = [
            f"{self.task.name} ({self.task.level}): share of {SHARES[share]}",
            f"{self.scores[0].examples} questions of each length",
            f"trained on lengths {low} to {high}",
        ]
        if self.task.guess:
            parts.append(f"the commonest answer alone gets {self.task.guess:.2f}")
        return "; ".join(filter(None, [*parts, over_seeds(counts)])) + "."

    def markdown(self) -> str:
        """Both tables, each with its note."""
        return "\n".join(self._layout(share).markdown() for share in SHARES)

    def latex(self) -> str:
        """Both as LaTeX tabulars for the package booktabs, their notes as comments."""
        return "\n".join(self._layout(share).latex() for share in SHARES)

    def _layout(self, share: Share) -> Layout:
        return Layout(
            methods=self.methods,
            cells={n: [self.cell(m, n, share) for m in self.methods] for n in self.lengths},
            best=max,
            number="{:.2f}".format,
            note=self.note(share),
        )


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
    check_seeds(Member(row.method, row.recipe, row.seed, row.length, row.model) for row in rows)
