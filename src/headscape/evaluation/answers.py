"""How often a model gives the right answer, and which questions it is asked.

The model reads a question and its true answer in one pass and predicts every token of the answer:
each symbol is predicted given the true answer so far.

    symbols   the share of right symbols of an answer, averaged over answers
    exact     the share of answers that are right throughout, END included

`symbols` is the accuracy of Deletang et al. 2023 (arXiv:2207.02098). END is a symbol only where an
answer's length is part of the question (Task.ends), as is their termination symbol.

`exact` equals the accuracy of greedy decoding: up to its first mistake it reads the same tokens.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64

from headscape.data.tasks import Example, Task, task
from headscape.data.tasks.retrieval import RETRIEVAL, Encode
from headscape.errors import InputError
from headscape.evaluation.journal import resumed
from headscape.evaluation.perplexity import Advance
from headscape.evaluation.row import EvaluationRow
from headscape.models.model import Model

SEED = 1_000_003
"""Seed of the questions; training runs use small seeds, so these questions are new to them."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


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
class QuestionSet:
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
    """A model to ask a set of questions."""

    model: Model
    questions: QuestionSet
    row: EvaluationRow
    """Everything except the accuracies."""

    @classmethod
    def of(
        cls,
        model: Model,
        task: str,
        questions: QuestionSet,
        *,
        length: int,
        depth: float | None = None,
        label: str = "",
    ) -> "AnswerJob":
        """Prepare the row, with the reason if the model cannot read the questions."""
        spec = model.spec
        row = EvaluationRow(
            method=spec.name,
            encoding=spec.encoding,
            recipe=spec.recipe,
            seed=spec.seed,
            task=task,
            length=length,
            depth=depth,
            examples=len(questions.questions),
            questions=questions.fingerprint,
            model=model.fingerprint,
            refused=model.length_error(questions.reads),
            label=label,
        )
        return cls(model=model, questions=questions, row=row)

    @property
    def cost(self) -> int:
        """The work of all questions."""
        return self._question_cost * len(self.questions.questions)

    def run(
        self,
        *,
        batch_tokens: int = 8192,
        journal: Path | None = None,
        advance: Advance | None = None,
    ) -> EvaluationRow:
        """Ask all questions; with a folder for journals, only those not answered yet."""
        header = {
            "format": 1,
            "kind": "answers",
            "model": self.row.model,
            "questions": self.row.questions,
            "batch_tokens": batch_tokens,
        }
        most = max(1, batch_tokens // self.questions.reads)
        asked = self.questions.questions
        batches = (asked[start : start + most] for start in range(0, len(asked), most))
        marks: list[list[float]] = []
        for batch, entry in resumed(journal, header, batches, self._mark):
            marks += entry
            if advance is not None:
                advance(self._question_cost * len(batch))
        symbols, exact = np.mean(marks, axis=0).tolist()
        return replace(self.row, symbols=symbols, exact=exact)

    @property
    def _question_cost(self) -> int:
        return max(1, round(self.model.cost(self.questions.reads)))

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


def by_length(models: Sequence[Model], lengths: Sequence[int], examples: int) -> list[AnswerJob]:
    """Ask every model the task that all were trained on; without lengths, at the default ones."""
    tasks = {model.spec.task for model in models}
    if len(tasks) > 1:
        named = ", ".join(f"{one.spec.name} on {one.spec.task or 'text'}" for one in models)
        raise InputError(
            f"these models were not trained on the same task ({named}): evaluate each task "
            f"separately."
        )
    chosen = task(str(tasks.pop()))
    lengths = sorted(set(lengths or default_lengths(chosen)))
    if lengths[0] < chosen.shortest:
        raise InputError(
            f"a length must be at least {chosen.shortest} for {chosen.name}, got {lengths[0]}."
        )
    sets = {length: _question_set(_on_task(chosen, length), examples) for length in lengths}
    return [
        AnswerJob.of(model.for_length(questions.reads), chosen.name, questions, length=length)
        for model in models
        for length, questions in sets.items()
    ]


def by_depth(
    models: Sequence[Model],
    name: str,
    lengths: Sequence[int],
    depths: Sequence[float],
    examples: int,
) -> list[AnswerJob]:
    """Every model on a retrieval task, at every length and depth.

    A model trained on the task is asked in the task's layout; any other continues plain text.
    """
    if name not in RETRIEVAL:
        known = ", ".join(RETRIEVAL)
        raise InputError(f"{name!r} has no depth: choose a task from {known}.")
    places = [
        (length, depth)
        for length in sorted(set(lengths or (256, 512, 1024)))
        for depth in sorted(set(depths or DEPTHS))
    ]
    sets: dict[tuple[object, ...], QuestionSet] = {}
    jobs = []
    for model, label in zip(models, labels(models), strict=True):
        tokenizer = None if model.spec.task == name else model.tokenizer
        if tokenizer is None and model.spec.task != name:
            raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {name}.")
        readers: dict[int, Model] = {}
        for length, depth in places:
            key = (tokenizer and tokenizer.fingerprint, length, depth)
            if key not in sets:
                encode = None if tokenizer is None else tokenizer.encode
                sets[key] = _question_set(_at_depth(name, length, depth, encode), examples)
            questions = sets[key]
            if questions.reads not in readers:
                readers[questions.reads] = model.for_length(questions.reads)
            reader = readers[questions.reads]
            job = AnswerJob.of(reader, name, questions, length=length, depth=depth, label=label)
            jobs.append(job)
    return jobs


def default_lengths(chosen: Task) -> tuple[int, ...]:
    """Half and all of the longest training length, then eight over the test lengths."""
    last = chosen.train_lengths[1]
    beyond = np.linspace(*chosen.test_lengths, 8).round().astype(int).tolist()
    return (max(chosen.shortest, last // 2), last, *beyond)


def labels(models: Sequence[Model]) -> list[str]:
    """A file name for each model: its run's, with its own name and fingerprint where needed."""
    keys = [
        (
            str(model.spec.provenance.get("run", model.spec.name)),
            model.spec.name,
            model.fingerprint[:8],
        )
        for model in models
    ]
    for count in (1, 2, 3):
        names = ["-".join(key[:count]) for key in keys]
        if len(set(names)) == len(set(keys)):
            break
    return [re.sub(r"[^\w.+-]+", "-", name) for name in names]


def _question_set(ask: Callable[[int], Question], examples: int) -> QuestionSet:
    return QuestionSet(questions=[ask(number) for number in range(examples)])


def _on_task(chosen: Task, length: int) -> Callable[[int], Question]:
    return lambda number: Question.in_layout(chosen, chosen.example(SEED, number, length))


def _at_depth(
    name: str, length: int, depth: float, encode: Encode | None
) -> Callable[[int], Question]:
    """Questions as plain text through `encode`, or in the task's layout without it."""
    chosen = RETRIEVAL[name]
    if encode is None:
        return lambda number: Question.in_layout(
            chosen, chosen.example_at(SEED, number, length, depth)
        )
    return lambda number: Question.in_text(*chosen.tokens_at(SEED, number, length, depth, encode))
