"""Something said once in a long text, to be found again: by length and by depth.

    passkey   the same filler sentences over and over, a five-digit number among them
              (Mohtashami and Jaggi 2023, arXiv:2305.16300)
    needle    filler that varies, a fact about a city among facts about other things

A text of `length` tokens is filler, the fact, filler and the question; depth 0 puts the fact at the
beginning and 1 right before the question. Filler is cut to fit, token by token, so lengths are
exact. Tokens are those of whatever tokenizer is asked; as a Task they are bytes, with the fact at a
random depth. The sentences are our own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from jaxtyping import Int64, Integer

from headscape.errors import InputError
from headscape.tasks.base import Example, Task

Random = np.random.Generator
Encode = Callable[[str], Integer[np.ndarray, " n"]]

_FILLER = ("The grass is green. ", "The sky is blue. ", "The sun is warm. ", "The road is long. ")
_WHO = ("A baker", "The old sailor", "My neighbour", "A tired clerk", "The young judge")
_DID = ("painted", "carried", "forgot", "repaired", "counted")
_WHAT = ("a small boat", "two grey chairs", "the north window", "some letters", "a heavy door")
_WHEN = ("before noon", "in the rain", "on Tuesday", "without a word", "by the harbour")
_CITIES = ("Lisbon", "Oslo", "Quito", "Dakar", "Hanoi", "Riga", "Perth", "Turin")


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """A task that can be asked at a depth."""

    fact: Callable[[Random], tuple[str, str, str]]
    """A sentence, the question that ends the text, and its answer."""
    filler: Callable[[Random], Iterator[str]]
    """Endless sentences."""

    def tokens_at(
        self, seed: int, index: int, length: int, depth: float, encode: Encode
    ) -> tuple[Int64[np.ndarray, " length"], Int64[np.ndarray, " answer"]]:
        """A text of exactly `length` tokens that ends in the question, and the answer's tokens."""
        random = np.random.default_rng([seed, index, length, round(depth * 1e6)])
        sentence, question, answer = self.fact(random)
        needle, ask, told = (
            np.asarray(encode(text), dtype=np.int64) for text in (sentence, question, answer)
        )
        room = length - len(needle) - len(ask)
        if room < 0 or not 0 <= depth <= 1:
            raise InputError(
                f"{self.name} at length {length} and depth {depth} does not fit: take at least "
                f"{len(needle) + len(ask)} tokens and a depth from 0 to 1."
            )
        parts: list[Int64[np.ndarray, " n"]] = []
        sentences = self.filler(random)
        while sum(map(len, parts)) < room:
            parts.append(np.asarray(encode(next(sentences)), dtype=np.int64))
        hay = np.concatenate([*parts, np.zeros(0, np.int64)])[:room]
        before = round(depth * room)
        return np.concatenate([hay[:before], needle, hay[before:], ask]), told

    def example_at(self, seed: int, index: int, length: int, depth: float) -> Example:
        """An example in bytes, its fact at a depth."""
        text, answer = self.tokens_at(seed, index, length, depth, _bytes)
        return Example(bytes(text.tolist()).decode(), bytes(answer.tolist()).decode().strip())


def _bytes(text: str) -> Int64[np.ndarray, " n"]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def _passkey(random: Random) -> tuple[str, str, str]:
    number = int(random.integers(10_000, 100_000))
    return f" The pass key is {number}. Remember it. ", " The pass key is", f" {number}"


def _needle(random: Random) -> tuple[str, str, str]:
    city = _CITIES[random.integers(len(_CITIES))]
    number = int(random.integers(100, 1000))
    return f" The number of {city} is {number}. ", f" The number of {city} is", f" {number}"


def _same(random: Random) -> Iterator[str]:
    start = int(random.integers(len(_FILLER)))
    return cycle(_FILLER[start:] + _FILLER[:start])


def _varied(random: Random) -> Iterator[str]:
    while True:
        who, did, what, when = (
            words[random.integers(len(words))] for words in (_WHO, _DID, _WHAT, _WHEN)
        )
        yield f"{who} {did} {what} {when}. "


def _retrieval(
    name: str,
    about: str,
    shortest: int,
    fact: Callable[[Random], tuple[str, str, str]],
    filler: Callable[[Random], Iterator[str]],
) -> Retrieval:
    def make(random: Random, length: int) -> Example:
        seed, index = random.integers(1 << 31, size=2).tolist()
        return built.example_at(seed, index, length, float(random.random()))

    built = Retrieval(
        name=name,
        about=about,
        make=make,
        level="retrieval",
        shortest=shortest,
        train_lengths=(shortest, 4 * shortest),
        test_lengths=(4 * shortest + 1, 64 * shortest),
        fact=fact,
        filler=filler,
    )
    return built


RETRIEVAL: dict[str, Retrieval] = {
    "passkey": _retrieval(
        "passkey", "The five-digit number that was to be remembered.", 64, _passkey, _same
    ),
    "needle": _retrieval("needle", "The number of a city, told once.", 64, _needle, _varied),
}
