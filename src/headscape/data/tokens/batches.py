"""The windows of a step: a pure function of (seed, step, windows per step, length).

The stream of N tokens is cut into windows of `length` + 1 tokens: inputs are [:, :-1], targets
[:, 1:]. Windows do not overlap in what they predict. An epoch has n = max(1, (N - 1) // length - 1)
windows, each used once in a random order. Each epoch starts at a random offset in
0 ... N - 1 - n length, so window boundaries move and every token is used. Step k uses windows
k count ... k count + count - 1 of the endless sequence of epochs. A process, a micro-batch or a
resumed run computes the rows it needs; there is no state.

In a curriculum each length has its own sequence, also numbered by step. While the length stays the
same no window repeats within an epoch; different lengths are independent. Windows cross document
boundaries, as in the paper; end-of-text marks them.

The order of an epoch is a random permutation of 0 ... n-1 that is computed, not stored: a Feistel
network over pairs (x, y) with x, y < a = ceil(sqrt(n)), number = x a + y:

    (x, y) -> (y, (x + F_r(y)) mod a)        r = 1 ... 6

is a permutation of 0 ... a^2 - 1 for any F (Luby and Rackoff, 1988). A number that maps to n or
above is mapped again until it is below n (cycle walking, Black and Rogaway, 2002); that is rare, as
a^2 - n <= 2 sqrt(n). F_r is SplitMix64's finaliser with a key per round.
"""

import hashlib
import math

import numpy as np
from jaxtyping import Int, UInt

from headscape.errors import InputError, at_least

ROUNDS = 6


def keyed_numbers(count: int, *key: int) -> list[int]:
    """Return `count` 64-bit numbers (at most 8), a fixed function of the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * count).digest()
    return [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(count)]


def permuted(
    numbers: Int[np.ndarray, " count"], n: int, keys: list[int]
) -> Int[np.ndarray, " count"]:
    """Return the image of each of `numbers`, all below `n`, under the permutation of `keys`."""
    assert len(keys) == ROUNDS
    side = np.uint64(math.isqrt(n - 1) + 1)
    out = _rounds(numbers.astype(np.uint64), side, keys)
    outside = out >= n
    while outside.any():
        out[outside] = _rounds(out[outside], side, keys)
        outside = out >= n
    return out.astype(np.int64)


def _rounds(
    numbers: np.ndarray[tuple[int], np.dtype[np.uint64]], side: np.uint64, keys: list[int]
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    x, y = np.divmod(numbers, side)
    for key in keys:
        x, y = y, (x + _hash(y ^ np.uint64(key)) % side) % side
    return x * side + y


def _hash(
    z: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Batches:
    """Random windows of a token stream."""

    def __init__(self, tokens: UInt[np.ndarray, " tokens"], length: int, seed: int):
        _check_length(tokens, length)
        self._tokens = tokens
        self._length = length
        self._seed = seed

    def __repr__(self) -> str:
        return f"Batches({len(self._tokens):,} tokens, length={self._length}, seed={self._seed})"

    def windows(
        self, step: int, count: int, length: int | None = None, *, rows: range | None = None
    ) -> Int[np.ndarray, "rows length_plus_1"]:
        """Return the `count` windows of a step, or only the given rows of them."""
        length = self._length if length is None else length
        starts = self.starts(step, count, length)
        if rows is not None:
            starts = starts[np.array(rows, np.int64)]
        return _take(self._tokens, starts, length)

    def starts(self, step: int, count: int, length: int) -> Int[np.ndarray, " count"]:
        """Return where in the stream the windows of a step start."""
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
    """Return the non-overlapping windows of a stream, or `limit` of them at even distances."""
    assert limit is None or limit > 0
    _check_length(tokens, length)
    n = (len(tokens) - 1) // length
    count = n if limit is None else min(limit, n)
    return _take(tokens, np.arange(count) * n // count * length, length)


def _take(
    tokens: UInt[np.ndarray, " tokens"], starts: Int[np.ndarray, " rows"], length: int
) -> Int[np.ndarray, "rows length_plus_1"]:
    out = np.empty((len(starts), length + 1), np.int64)
    for row, start in enumerate(starts.tolist()):
        out[row] = tokens[start : start + length + 1]
    return out


def _check_length(tokens: UInt[np.ndarray, " tokens"], length: int) -> None:
    at_least(1, length=length)
    if len(tokens) < length + 1:
        raise InputError(
            f"the text is too short: it has {len(tokens)} tokens and a window needs {length} + 1: "
            f"give more text or a smaller context length."
        )
