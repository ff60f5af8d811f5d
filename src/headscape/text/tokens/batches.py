"""Which tokens a step sees: a pure function of (seed, step, batch size, length).

The stream of N tokens is cut into windows of `length` tokens and the one that follows, so that
inputs are [:, :-1] and targets [:, 1:]. Windows do not overlap in what they predict. There are
n = max(1, (N - 1) // length - 1) in an epoch; an epoch takes each once, in an order of its own, and
begins at an offset of its own in 0 ... N - 1 - n length, so that the windows' edges move and no
token is out of reach. The windows of step k are numbers k count ... k count + count - 1 of the
endless sequence of epochs: a process, a micro-batch or a resumed run takes the rows it needs, and
nothing has to be remembered.

Under a length curriculum each length has its own sequence, still numbered by step. Within a
stretch of steps of one length no window repeats within an epoch; between lengths they are
independent. Windows run across document boundaries, as in the paper; end-of-text marks them.
"""

import numpy as np
from jaxtyping import Int, UInt

from headscape.errors import InputError
from headscape.text.tokens.permutation import ROUNDS, keyed_numbers, permuted


class Batches:
    """Random windows of a token stream."""

    def __init__(self, tokens: UInt[np.ndarray, " tokens"], length: int, seed: int):
        _check_length(tokens, length)
        self._tokens = tokens
        self._length = length
        self._seed = seed

    def windows(
        self, step: int, count: int, length: int | None = None, *, rows: range | None = None
    ) -> Int[np.ndarray, "rows length_plus_1"]:
        """The batch of `count` windows of a step, or only some of its rows."""
        length = self._length if length is None else length
        starts = self.starts(step, count, length)
        if rows is not None:
            starts = starts[np.array(rows, np.int64)]
        return _gathered(self._tokens, starts, length)

    def starts(self, step: int, count: int, length: int) -> Int[np.ndarray, " count"]:
        """Where in the stream a step's windows begin."""
        _check_length(self._tokens, length)
        last = len(self._tokens) - 1
        n = max(1, last // length - 1)
        first = step * count
        epochs, numbers = np.divmod(np.arange(first, first + count), n)
        starts = np.empty(count, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            *keys, draw = keyed_numbers(ROUNDS + 1, self._seed, length, epoch)
            offset = draw % (last - n * length + 1)
            starts[here] = offset + permuted(numbers[here], n, keys) * length
        return starts


def validation_windows(
    tokens: UInt[np.ndarray, " tokens"], length: int, limit: int | None = None
) -> Int[np.ndarray, "windows length_plus_1"]:
    """Non-overlapping windows from the beginning, or `limit` of them spread evenly."""
    assert limit is None or limit > 0
    _check_length(tokens, length)
    n = (len(tokens) - 1) // length
    count = n if limit is None else min(limit, n)
    return _gathered(tokens, np.arange(count) * n // count * length, length)


def _gathered(
    tokens: UInt[np.ndarray, " tokens"], starts: Int[np.ndarray, " rows"], length: int
) -> Int[np.ndarray, "rows length_plus_1"]:
    out = np.empty((len(starts), length + 1), np.int64)
    for row, start in enumerate(starts.tolist()):
        out[row] = tokens[start : start + length + 1]
    return out


def _check_length(tokens: UInt[np.ndarray, " tokens"], length: int) -> None:
    if length < 1:
        raise InputError(f"a window of {length} tokens is none; the length is at least 1")
    if len(tokens) < length + 1:
        raise InputError(
            f"the text is too short: {len(tokens)} tokens do not hold one window of {length} + 1;"
            " give more text or a smaller length"
        )
