"""Retrieval tasks: a fact stated once in a long text, asked for at its end.

    passkey   a five-digit number among repeated filler sentences
              (Mohtashami and Jaggi 2023, arXiv:2305.16300)
    needle    a fact about a city among varied sentences

A text of `length` tokens is filler, the fact, filler and the question. Depth 0 puts the fact at the
start, depth 1 right before the question. Filler is truncated to the token, so lengths are exact.
`tokens_at` uses any tokenizer; as a Task the tokens are bytes and the depth is random. The
sentences are our own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from jaxtyping import Int64, Integer

from headscape.data.tasks.task_definition import Example, Task
from headscape.errors import InputError

Random = np.random.Generator
Encode = Callable[[str], Integer[np.ndarray, " n"]]

_FILLER = ("The grass is green. ", "The sky is blue. ", "The sun is warm. ", "The road is long. ")
_WHO = ("A baker", "The old sailor", "My neighbour", "A tired clerk", "The young judge")
_DID = ("painted", "carried", "forgot", "repaired", "counted")
_WHAT = ("a small boat", "two grey chairs", "the north window", "some letters", "a heavy door")
_WHEN = ("before noon", "in the rain", "on Tuesday", "without a word", "by the harbour")
CITIES = ("Lisbon", "Oslo", "Quito", "Dakar", "Hanoi", "Riga", "Perth", "Turin")


@dataclass(frozen=True, kw_only=True, repr=False)
class Retrieval(Task):
    """A task whose fact can be placed at a depth."""

    fact: Callable[[Random], tuple[str, str, str]]
    """Returns a sentence, the question at the end of the text, and the answer."""
    filler: Callable[[Random], Iterator[str]]
    """Returns endless filler sentences."""

    def tokens_at(
        self, seed: int, index: int, length: int, depth: float, encode: Encode
    ) -> tuple[Int64[np.ndarray, " length"], Int64[np.ndarray, " answer"]]:
        """Return a text of exactly `length` tokens that ends with the question, and the answer."""
        random = np.random.default_rng([seed, index, length, round(depth * 1e6)])
        sentence, question, answer = self.fact(random)
        fact, ask, expected = (
            np.asarray(encode(text), dtype=np.int64) for text in (sentence, question, answer)
        )
        room = length - len(fact) - len(ask)
        if room < 0 or not 0 <= depth <= 1:
            raise InputError(
                f"{self.name} does not fit at length {length} and depth {depth}: use at least "
                f"{len(fact) + len(ask)} tokens and a depth from 0 to 1."
            )
        parts: list[Int64[np.ndarray, " n"]] = []
        sentences = self.filler(random)
        while sum(map(len, parts)) < room:
            parts.append(np.asarray(encode(next(sentences)), dtype=np.int64))
        hay = np.concatenate([*parts, np.zeros(0, np.int64)])[:room]
        before = round(depth * room)
        return np.concatenate([hay[:before], fact, hay[before:], ask]), expected

    def example_at(self, seed: int, index: int, length: int, depth: float) -> Example:
        """Return an example in bytes with its fact at a depth."""
        text, answer = self.tokens_at(seed, index, length, depth, _bytes)
        return Example(bytes(text.tolist()).decode(), bytes(answer.tolist()).decode().strip())


def _bytes(text: str) -> Int64[np.ndarray, " n"]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def _passkey(random: Random) -> tuple[str, str, str]:
    number = int(random.integers(10_000, 100_000))
    return f" The pass key is {number}. Remember it. ", " The pass key is", f" {number}"


def _needle(random: Random) -> tuple[str, str, str]:
    city = CITIES[random.integers(len(CITIES))]
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
    "passkey": _retrieval("passkey", "The five-digit number to remember.", 64, _passkey, _same),
    "needle": _retrieval("needle", "The number of a city, stated once.", 64, _needle, _varied),
}
