"""Task and Example: a question in ASCII that has exactly one answer.

An example is a function of (task, seed, index, length), so any process can make any part of any
batch. Its tokens are bytes, the vocabulary of the `bytes` tokenizer:

    END question > answer END                     END is end-of-text, 256

The answer is everything after `>`, including the final END, which gives its length. The length of
an example is the number of symbols of its question. A task that exists only at some lengths, such
as odd ones, uses the nearest length below, or its shortest.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headscape.errors import InputError

END = 256
ARROW = ord(">")


@dataclass(frozen=True)
class Example:
    """A question and its answer."""

    question: str
    answer: str

    def tokens(self) -> Int64[np.ndarray, " n"]:
        """Return question and answer as a model reads them."""
        text = f"{self.question}>{self.answer}".encode("ascii")
        return np.array([END, *text, END], dtype=np.int64)


@dataclass(frozen=True, kw_only=True, repr=False)
class Task:
    """Questions of one kind, at every length."""

    name: str
    about: str
    """The question, in a sentence."""
    make: Callable[[np.random.Generator, int], Example]
    """Returns a random example of a length."""
    level: str
    """Its place in the Chomsky hierarchy, or algorithmic, or retrieval; printed under tables."""
    shortest: int = 1
    """The smallest length with a question."""
    train_lengths: tuple[int, int] = (1, 40)
    """Shortest and longest training question; by default those of the Chomsky-hierarchy suite."""
    test_lengths: tuple[int, int] = (41, 500)
    """Shortest and longest test question."""
    ends: bool = False
    """Whether the length of the answer is part of the question, so that its END is scored."""
    guess: float = 0.0
    """Accuracy of always giving the most frequent answer at test lengths, if not negligible."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def example(self, seed: int, index: int, length: int) -> Example:
        """Return example number `index` of a length."""
        if length < 1:
            raise InputError(f"question length must be at least 1, got {length}.")
        key = zlib.crc32(self.name.encode())
        random = np.random.default_rng([key, seed, index, length])
        return self.make(random, max(length, self.shortest))
