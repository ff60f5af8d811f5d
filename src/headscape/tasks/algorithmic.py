"""Copy, reverse, sort and add: the usual probes of whether a model can address its own input.

Over 26 letters, or decimal digits least significant first, so that a sum can be written as it is
carried. The two numbers of a sum have the same number of digits.
"""

import string

import numpy as np

from headscape.tasks.base import Example, Task
from headscape.tasks.chomsky import letters

Random = np.random.Generator


def copy(random: Random, length: int) -> Example:
    """Again."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, text)


def reverse(random: Random, length: int) -> Example:
    """Backwards."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, text[::-1])


def sort(random: Random, length: int) -> Example:
    """In order of the alphabet."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, "".join(sorted(text)))


def add(random: Random, length: int) -> Example:
    """Digit by digit, with carries."""
    digits = (length - 1) // 2
    left, right = (letters(random, digits, string.digits) for _ in range(2))
    return Example(f"{left}+{right}", _sum(left, right))


def _sum(left: str, right: str) -> str:
    """Digit by digit, because Python's int does not spell more than 4,300 of them."""
    carry, out = 0, []
    for one, other in zip(left, right, strict=True):
        carry, digit = divmod(int(one) + int(other) + carry, 10)
        out.append(str(digit))
    return "".join([*out, str(carry)]).rstrip("0") or "0"


_LEVEL = "algorithmic"
TASKS = (
    Task(name="copy", about="The string again.", make=copy, level=_LEVEL),
    Task(name="reverse", about="The string backwards, over 26 letters.", make=reverse,
         level=_LEVEL),
    Task(name="sort", about="The letters in order.", make=sort, level=_LEVEL),
    Task(name="addition", about="The sum of two decimal numbers.", make=add, level=_LEVEL,
         shortest=3, ends=True),
)  # fmt: skip
