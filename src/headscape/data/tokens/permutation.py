"""A random permutation of 0 ... n-1 that is computed, not stored.

A Feistel network over pairs (x, y) with x, y < a = ceil(sqrt(n)), number = x a + y:

    (x, y) -> (y, (x + F_r(y)) mod a)        r = 1 ... 6

is a permutation of 0 ... a^2 - 1 for any F (Luby and Rackoff, 1988). A number that maps to n or
above is mapped again until it is below n (cycle walking, Black and Rogaway, 2002); that is rare, as
a^2 - n <= 2 sqrt(n). F_r is SplitMix64's finaliser with a key per round.
"""

import hashlib
import math

import numpy as np
from jaxtyping import Int

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
