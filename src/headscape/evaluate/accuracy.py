"""How often a model gives the right answer.

A question and its true answer are read in one pass, and the likeliest token is taken at every place
of the answer: each symbol is predicted given the true answer so far.

    symbols   the share of right symbols of an answer, averaged over answers
    exact     the share of answers that are right throughout, up to and with their END

`symbols` is the accuracy of Deletang et al. 2023 (arXiv:2207.02098). END is a symbol only where an
answer's length is part of what is asked (Task.ends), as is their termination symbol.

`exact` is what greedy decoding, token by token, would get: up to its first mistake it reads the
same tokens.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64

from headscape.evaluate.journal import Journal
from headscape.evaluate.scoring import BLOCK, GPT2Scorer
from headscape.gpt2 import GPT2
from headscape.tasks import Example, Task

FORMAT = 1


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
        """As the task spells it, and as it is trained on: END question > answer END."""
        return cls(
            tokens=example.tokens(),
            answer=len(example.question) + 2,
            symbols=len(example.answer) + task.ends,
        )

    @classmethod
    def in_text(cls, text: Int64[np.ndarray, " n"], answer: Int64[np.ndarray, " m"]) -> "Question":
        """As a text that a language model is to continue with the answer."""
        return cls(tokens=np.concatenate([text, answer]), answer=len(text), symbols=len(answer))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """Questions of one kind, to be answered together."""

    questions: Sequence[Question]

    @property
    def reads(self) -> int:
        """Tokens that a model has to read for the longest of them."""
        return max(len(question.tokens) for question in self.questions) - 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that is asked."""
        whole = hashlib.sha256()
        for one in self.questions:
            whole.update(f"{len(one.tokens)} {one.answer} {one.symbols} ".encode())
            whole.update(one.tokens.astype("<i8").tobytes())
        return whole.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What a sheet came to."""

    symbols: float
    exact: float


def mark(
    scorer: GPT2Scorer,
    sheet: Sheet,
    *,
    batch_tokens: int = 8192,
    journal: Path | None = None,
    advance: Callable[[int], None] | None = None,
) -> Accuracy:
    """Answer a sheet; with a folder for journals, only what is not answered yet.

    `advance` is told how many questions each finished batch had.
    """
    about = {
        "format": FORMAT,
        "kind": "answers",
        "model": scorer.fingerprint,
        "questions": sheet.fingerprint,
        "batch_tokens": batch_tokens,
    }
    kept = None if journal is None else Journal(journal, about)
    finished = {} if kept is None else kept.finished
    most = max(1, batch_tokens // sheet.reads)
    marks: list[list[float]] = []
    for number, start in enumerate(range(0, len(sheet.questions), most)):
        batch = sheet.questions[start : start + most]
        entry = finished.get(number)
        if entry is None:
            entry = _mark(scorer.model, batch)
            if kept is not None:
                kept.record(number, entry)
        marks += entry
        if advance is not None:
            advance(len(batch))
    symbols, exact = np.mean(marks, axis=0).tolist()
    return Accuracy(symbols=symbols, exact=exact)


def _mark(model: GPT2, batch: Sequence[Question]) -> list[list[float]]:
    """The share of right symbols of each answer, and whether it is right throughout."""
    return [
        [float(right[: one.symbols].mean()), float(right.all())]
        for one, right in zip(batch, _right(model, batch), strict=True)
    ]


@torch.inference_mode()
def _right(model: GPT2, batch: Sequence[Question]) -> list[Bool[np.ndarray, " answer"]]:
    """Which places of each answer are right."""
    width = max(len(one.tokens) for one in batch)
    # Filled up behind the answer, where nothing that counts looks.
    windows = np.zeros((len(batch), width), dtype=np.int64)
    wanted = np.zeros((len(batch), width - 1), dtype=np.bool_)
    for row, one in enumerate(batch):
        windows[row, : len(one.tokens)] = one.tokens
        wanted[row, one.answer - 1 : len(one.tokens) - 1] = True
    on = model.tokens.weight.device
    tokens, chosen = torch.from_numpy(windows).to(on), torch.from_numpy(wanted).to(on)
    hidden = model.hidden(tokens[:, :-1])[chosen]
    guesses = [model.logits(block).argmax(dim=-1) for block in torch.split(hidden, BLOCK)]
    hits = (torch.cat(guesses) == tokens[:, 1:][chosen]).cpu().numpy()
    return np.split(hits, np.cumsum(wanted.sum(axis=1))[:-1])
