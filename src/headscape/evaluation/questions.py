"""Which questions models are asked: by length on the task they learned, or by depth and length."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from headscape.data.tasks import Task, task
from headscape.data.tasks.retrieval import RETRIEVAL, Encode
from headscape.errors import InputError
from headscape.evaluation.answers import AnswerJob, Question, Sheet
from headscape.models.model import Model

SEED = 1_000_003
"""Seed of the questions; training runs use small seeds, so these questions are new to them."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


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
    sheets = {length: _sheet(_on_task(chosen, length), examples) for length in lengths}
    return [
        AnswerJob.of(model.for_length(sheet.reads), chosen.name, sheet, length=length)
        for model in models
        for length, sheet in sheets.items()
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
    sheets: dict[tuple[object, ...], Sheet] = {}
    jobs = []
    for model, label in zip(models, labels(models), strict=True):
        tokenizer = None if model.spec.task == name else model.tokenizer
        if tokenizer is None and model.spec.task != name:
            raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {name}.")
        readers: dict[int, Model] = {}
        for length, depth in places:
            key = (tokenizer and tokenizer.fingerprint, length, depth)
            if key not in sheets:
                encode = None if tokenizer is None else tokenizer.encode
                sheets[key] = _sheet(_at_depth(name, length, depth, encode), examples)
            sheet = sheets[key]
            if sheet.reads not in readers:
                readers[sheet.reads] = model.for_length(sheet.reads)
            reader = readers[sheet.reads]
            job = AnswerJob.of(reader, name, sheet, length=length, depth=depth, label=label)
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


def _sheet(ask: Callable[[int], Question], examples: int) -> Sheet:
    return Sheet(questions=[ask(number) for number in range(examples)])


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
