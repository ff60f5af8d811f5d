"""Batches of a task's examples, for the training loop that takes windows of text otherwise.

    windows(step, count, length, rows)  int64 [rows, length + 1], as `headscape.text.batches` gives
    weights(windows)                    float32 [rows, length], by how much each prediction counts

One example a row, from position 0, filled up with END; its length is drawn evenly between the
task's shortest and longest training length. Row r of step k is example k count + r of the seed: a
pure function, whatever process asks.

A prediction counts if it is of the answer, its END included. Weights are such that the plain mean
of weighted losses over all predictions is the mean over examples of each one's mean loss.
"""

import hashlib

import numpy as np
from jaxtyping import Bool, Float32, Int64

from headscape.errors import InputError
from headscape.tasks.base import ARROW, END, Example, Task


class TaskBatches:
    """Examples of one task, endlessly."""

    def __init__(self, task: Task, length: int, seed: int) -> None:
        self.task = task
        self._length = length
        self._seed = seed

    def windows(
        self, step: int, count: int, length: int | None = None, *, rows: range | None = None
    ) -> Int64[np.ndarray, "rows length_plus_1"]:
        """The examples of a step, or some of its rows."""
        length = self._length if length is None else length
        rows = range(count) if rows is None else rows
        return stacked([self.example(step * count + row) for row in rows], length)

    def example(self, index: int) -> Example:
        """Example number `index`, its length drawn too."""
        low, high = self.task.train_lengths
        random = np.random.default_rng([self._seed, index])
        return self.task.example(self._seed, index, int(random.integers(low, high + 1)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of some examples, which are the same for every seed."""
        whole = hashlib.sha256()
        for example in _longest(self.task):
            whole.update(example.tokens().astype("<i8").tobytes())
        return whole.hexdigest()

    def starts(self, step: int, count: int, length: int) -> Int64[np.ndarray, " count"]:  # noqa: ARG002
        """The numbers of a step's examples."""
        return np.arange(step * count, (step + 1) * count)


def check_fits(task: Task, length: int) -> None:
    """Refuse windows that do not hold a task's longest examples."""
    needed = max(len(example.tokens()) for example in _longest(task)) - 1
    if needed > length:
        raise InputError(
            f"an example of {task.name} has up to {needed} tokens and a window {length}: "
            f"train with a length of at least {needed}."
        )


def _longest(task: Task) -> list[Example]:
    """Some of its longest examples for training."""
    return [task.example(0, number, task.train_lengths[1]) for number in range(256)]


def stacked(examples: list[Example], length: int) -> Int64[np.ndarray, "rows length_plus_1"]:
    """Examples as rows of length + 1 tokens."""
    tokens = [example.tokens() for example in examples]
    needed = max(map(len, tokens))
    width = length + 1
    if needed > width:
        raise InputError(
            f"an example of {needed - 1} tokens does not fit a window of {width - 1}: "
            f"train with a length of at least {needed - 1}."
        )
    out = np.full((len(tokens), width), END, dtype=np.int64)
    for row, item in zip(out, tokens, strict=True):
        row[: len(item)] = item
    return out


def scored(windows: Int64[np.ndarray, "rows length_plus_1"]) -> Bool[np.ndarray, "rows length"]:
    """Which predictions are of an answer: after the arrow, up to the END that closes it."""
    wanted_end = windows[:, 1:] == END
    answering = np.cumsum(windows[:, :-1] == ARROW, axis=1) > 0
    ends = np.cumsum(wanted_end & answering, axis=1)
    answer: Bool[np.ndarray, "rows length"] = answering & (ends - wanted_end == 0)
    return answer


def weights(
    windows: Int64[np.ndarray, "rows length_plus_1"],
) -> Float32[np.ndarray, "rows length"]:
    """By how much each prediction's loss counts, so that every example counts alike."""
    answer = scored(windows)
    share = answer.shape[1] / answer.sum(axis=1, keepdims=True)
    weight: Float32[np.ndarray, "rows length"] = (answer * share).astype(np.float32)
    return weight
