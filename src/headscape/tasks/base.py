"""What a task is: a question, written in ASCII, that has exactly one answer.

An example is a function of (task, seed, index, length), so any process can make any part of any
batch. Its tokens are bytes, the vocabulary of the `bytes` tokenizer:

    END question > answer END                     END is end-of-text, 256

The answer is everything after `>`, the closing END included, which is how long the answer is.
Length counts the question's symbols; where a task has only odd lengths, say, the nearest one below
is taken, and its shortest question where there is none.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headscape.errors import InputError

END = 256
ARROW = ord(">")
VOCABULARY = 257


@dataclass(frozen=True)
class Example:
    """A question and its answer."""

    question: str
    answer: str

    def tokens(self) -> Int64[np.ndarray, " n"]:
        """Both, as a model reads them."""
        text = f"{self.question}>{self.answer}".encode("ascii")
        return np.array([END, *text, END], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A family of questions of every length."""

    name: str
    about: str
    """What is asked, in a sentence."""
    make: Callable[[np.random.Generator, int], Example]
    """A random example of a length."""
    level: str
    """Its place in the Chomsky hierarchy, or algorithmic, or retrieval; printed under tables."""
    shortest: int = 1
    """The smallest length that asks something."""
    train_lengths: tuple[int, int] = (1, 40)
    """Shortest and longest question trained on; the Chomsky-hierarchy suite's by default."""
    test_lengths: tuple[int, int] = (41, 500)
    """Shortest and longest question tested on."""
    ends: bool = False
    """Whether an answer's length is part of what is asked, so that its END is a symbol of it."""
    guess: float = 0.0
    """What the commonest answer scores at the test lengths, where that is not negligible."""

    def example(self, seed: int, index: int, length: int) -> Example:
        """Example number `index` of a length."""
        if length < 1:
            raise InputError(f"a question has at least 1 symbol, not {length}.")
        key = zlib.crc32(self.name.encode())
        random = np.random.default_rng([key, seed, index, length])
        return self.make(random, max(length, self.shortest))
