"""Copy, reverse, sort and add: common tests of whether a model can address its own input.

Strings are over 26 letters. Decimal numbers are written least significant digit first, so that a
sum can be computed while it is written. Both numbers of a sum have the same number of digits.
"""

import string

import numpy as np

from headscape.data.tasks.chomsky import letters
from headscape.data.tasks.task_definition import Example, Task

Random = np.random.Generator


def copy(random: Random, length: int) -> Example:
    """The string again."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, text)


def reverse(random: Random, length: int) -> Example:
    """The string backwards."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, text[::-1])


def sort(random: Random, length: int) -> Example:
    """The letters in alphabetical order."""
    text = letters(random, length, string.ascii_lowercase)
    return Example(text, "".join(sorted(text)))


def add(random: Random, length: int) -> Example:
    """The sum of two decimal numbers."""
    digits = (length - 1) // 2
    left, right = (letters(random, digits, string.digits) for _ in range(2))
    return Example(f"{left}+{right}", _sum(left, right))


def _sum(left: str, right: str) -> str:
    """Add digit by digit, because Python does not convert ints of more than 4,300 digits."""
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
