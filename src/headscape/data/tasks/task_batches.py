"""Batches of a task's examples, with the interface of tokens/batches.py.

    windows(step, count, length, rows)  int64 [rows, length + 1]
    weights(windows)                    float32 [rows, length], factor on the loss of a prediction

A row is one example, padded with END on the right. Its length is uniform between the task's
shortest and longest training length. Row r of step k is example k count + r of the seed, a pure
function.

Only predictions of the answer, including its END, count. The weights make the plain mean of
weighted losses over all predictions equal to the mean over examples of each example's mean loss.
"""

import hashlib

import numpy as np
from jaxtyping import Bool, Float32, Int64

from headscape.data.tasks.task_definition import ARROW, END, Example, Task
from headscape.errors import InputError


class TaskBatches:
    """Endless examples of one task."""

    def __init__(self, task: Task, length: int, seed: int) -> None:
        self.task = task
        self._length = length
        self._seed = seed

    def __repr__(self) -> str:
        return f"TaskBatches({self.task.name!r}, length={self._length}, seed={self._seed})"

    def windows(
        self, step: int, count: int, length: int | None = None, *, rows: range | None = None
    ) -> Int64[np.ndarray, "rows length_plus_1"]:
        """Return the examples of a step, or only the given rows of them."""
        length = self._length if length is None else length
        rows = range(count) if rows is None else rows
        return stacked([self.example(step * count + row) for row in rows], length)

    def example(self, index: int) -> Example:
        """Return example number `index`, with a random length."""
        low, high = self.task.train_lengths
        random = np.random.default_rng([self._seed, index])
        return self.task.example(self._seed, index, int(random.integers(low, high + 1)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of some examples; the same for every seed."""
        whole = hashlib.sha256()
        for example in _longest(self.task):
            whole.update(example.tokens().astype("<i8").tobytes())
        return whole.hexdigest()

    def starts(self, step: int, count: int, length: int) -> Int64[np.ndarray, " count"]:  # noqa: ARG002
        """Return the numbers of a step's examples."""
        return np.arange(step * count, (step + 1) * count)


def check_fits(task: Task, length: int) -> None:
    """Refuse a window length below that of a task's longest examples."""
    needed = max(len(example.tokens()) for example in _longest(task)) - 1
    if needed > length:
        raise InputError(
            f"an example of {task.name} has up to {needed} tokens and a window only {length}: "
            f"set context_length to at least {needed}."
        )


def _longest(task: Task) -> list[Example]:
    """Return some examples of the longest training length."""
    return [task.example(0, number, task.train_lengths[1]) for number in range(256)]


def stacked(examples: list[Example], length: int) -> Int64[np.ndarray, "rows length_plus_1"]:
    """Return examples as rows of length + 1 tokens."""
    tokens = [example.tokens() for example in examples]
    needed = max(map(len, tokens))
    width = length + 1
    if needed > width:
        raise InputError(
            f"an example of {needed - 1} tokens does not fit in a window of {width - 1}: "
            f"set context_length to at least {needed - 1}."
        )
    out = np.full((len(tokens), width), END, dtype=np.int64)
    for row, item in zip(out, tokens, strict=True):
        row[: len(item)] = item
    return out


def scored(windows: Int64[np.ndarray, "rows length_plus_1"]) -> Bool[np.ndarray, "rows length"]:
    """Return which predictions are of an answer: after the arrow, up to its END."""
    is_end = windows[:, 1:] == END
    answering = np.cumsum(windows[:, :-1] == ARROW, axis=1) > 0
    ends = np.cumsum(is_end & answering, axis=1)
    answer: Bool[np.ndarray, "rows length"] = answering & (ends - is_end == 0)
    return answer


def weights(
    windows: Int64[np.ndarray, "rows length_plus_1"],
) -> Float32[np.ndarray, "rows length"]:
    """Return the factor on each prediction's loss, so that every example counts the same."""
    answer = scored(windows)
    share = answer.shape[1] / answer.sum(axis=1, keepdims=True)
    weight: Float32[np.ndarray, "rows length"] = (answer * share).astype(np.float32)
    return weight
