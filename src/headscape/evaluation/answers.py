"""How often a model gives the right answer.

The model reads a question and its true answer in one pass and predicts every token of the answer:
each symbol is predicted given the true answer so far.

    symbols   the share of right symbols of an answer, averaged over answers
    exact     the share of answers that are right throughout, END included

`symbols` is the accuracy of Deletang et al. 2023 (arXiv:2207.02098). END is a symbol only where an
answer's length is part of the question (Task.ends), as is their termination symbol.

`exact` equals the accuracy of greedy decoding: up to its first mistake it reads the same tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64

from headscape.data.tasks import Example, Task
from headscape.evaluation.journal import resumed
from headscape.evaluation.perplexity import Advance
from headscape.evaluation.table.table_row import Row
from headscape.models.model import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A question with its answer, as a model reads them."""

    tokens: Int64[np.ndarray, " n"]
    answer: int
    """Where the answer begins."""
    symbols: int
    """How many tokens of the answer are its symbols: all, or all but END."""

    @classmethod
    def in_layout(cls, task: Task, example: Example) -> "Question":
        """In the task's own layout, as in training: END question > answer END."""
        return cls(
            tokens=example.tokens(),
            answer=len(example.question) + 2,
            symbols=len(example.answer) + task.ends,
        )

    @classmethod
    def in_text(cls, text: Int64[np.ndarray, " n"], answer: Int64[np.ndarray, " m"]) -> "Question":
        """As a text that a language model continues with the answer."""
        return cls(tokens=np.concatenate([text, answer]), answer=len(text), symbols=len(answer))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """Questions of one length and, in a heat map, one depth."""

    questions: Sequence[Question]

    @cached_property
    def reads(self) -> int:
        """Tokens that a model has to read for the longest of them."""
        return max(len(question.tokens) for question in self.questions) - 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all questions."""
        whole = hashlib.sha256()
        for one in self.questions:
            whole.update(f"{len(one.tokens)} {one.answer} {one.symbols} ".encode())
            whole.update(one.tokens.astype("<i8").tobytes())
        return whole.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerJob:
    """A model to ask one sheet of questions."""

    model: Model
    sheet: Sheet
    row: Row
    """Everything except the accuracies."""

    @classmethod
    def of(
        cls,
        model: Model,
        task: str,
        sheet: Sheet,
        *,
        length: int,
        depth: float | None = None,
        label: str = "",
    ) -> "AnswerJob":
        """Prepare the row, with the reason if the model cannot read the questions."""
        spec = model.spec
        row = Row(
            method=spec.name,
            encoding=spec.encoding,
            recipe=spec.recipe,
            seed=spec.seed,
            task=task,
            length=length,
            depth=depth,
            examples=len(sheet.questions),
            questions=sheet.fingerprint,
            model=model.fingerprint,
            refused=model.length_error(sheet.reads),
            label=label,
        )
        return cls(model=model, sheet=sheet, row=row)

    @property
    def cost(self) -> int:
        """The work of all questions."""
        return self._question_cost * len(self.sheet.questions)

    def run(
        self,
        *,
        batch_tokens: int = 8192,
        journal: Path | None = None,
        advance: Advance | None = None,
    ) -> Row:
        """Ask all questions; with a folder for journals, only those not answered yet."""
        header = {
            "format": 1,
            "kind": "answers",
            "model": self.row.model,
            "questions": self.row.questions,
            "batch_tokens": batch_tokens,
        }
        most = max(1, batch_tokens // self.sheet.reads)
        every = self.sheet.questions
        batches = (every[start : start + most] for start in range(0, len(every), most))
        marks: list[list[float]] = []
        for batch, entry in resumed(journal, header, batches, self._mark):
            marks += entry
            if advance is not None:
                advance(self._question_cost * len(batch))
        symbols, exact = np.mean(marks, axis=0).tolist()
        return replace(self.row, symbols=symbols, exact=exact)

    @property
    def _question_cost(self) -> int:
        return max(1, round(self.model.cost(self.sheet.reads)))

    def _mark(self, batch: Sequence[Question]) -> list[list[float]]:
        """The share of right symbols of each answer, and whether it is right throughout."""
        return [
            [float(right[: one.symbols].mean()), float(right.all())]
            for one, right in zip(batch, self._right(batch), strict=True)
        ]

    def _right(self, batch: Sequence[Question]) -> list[Bool[np.ndarray, " answer"]]:
        """Which tokens of each answer are right."""
        width = max(len(one.tokens) for one in batch)
        # Right-pad; causal attention never reads it.
        windows = np.zeros((len(batch), width), dtype=np.int64)
        wanted = np.zeros((len(batch), width - 1), dtype=np.bool_)
        for row, one in enumerate(batch):
            windows[row, : len(one.tokens)] = one.tokens
            wanted[row, one.answer - 1 : len(one.tokens) - 1] = True
        guesses = self.model.predictions(
            torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(wanted)
        )
        hits = guesses.cpu().numpy() == windows[:, 1:][wanted]
        return np.split(hits, np.cumsum(wanted.sum(axis=1))[:-1])
