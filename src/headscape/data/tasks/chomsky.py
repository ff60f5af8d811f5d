"""The fifteen tasks of the Chomsky-hierarchy suite (Deletang et al. 2023, arXiv:2207.02098).

Written from the paper's descriptions: four regular, four context-free, seven context-sensitive.
Training lengths are 1 to 40, test lengths 41 to 500. Binary numbers are written least significant
bit first, except for the square root, and are never zero.

Differences from the authors' code:

    spelling            letters a and b, digits; see each task's sentence
    end of an answer    END, in place of a termination symbol and padding to a fixed length
    even-pairs          1 for an even number, 0 for an odd one; theirs is the reverse
    odds-first          letters 1, 3, 5 ... first, as in the paper; their code begins with 2, 4
    solve-equation      every digit is equally likely to be z; theirs is one after a random place
    missing-duplicate   an odd length loses a symbol; theirs is padded
    shortest questions  a length without a question uses the shortest with one; theirs is padded

Random arithmetic expressions have an exact length, and a value modulo m:

    flat      d (op d)*            + and - and *, products first, no brackets; odd lengths
    closed    d | -d | (d) | (-d) | (e op e)       lengths 1, 2, 3, 4, and 5 or more
    unknown   a closed expression of + and - with one digit replaced by z, then = and its value

A flat expression of even length is one symbol shorter. Values are computed while an expression is
made, never by parsing it.
"""

import math

import numpy as np

from headscape.data.tasks.task_definition import Example, Task

Random = np.random.Generator
_LEAVES = {1: "{}", 2: "-{}", 3: "({})", 4: "(-{})"}


def flat(random: Random, length: int, modulus: int) -> tuple[str, int]:
    """Return an expression without brackets, and its value."""
    value = product = int(random.integers(modulus))
    text, total, sign = str(product), 0, 1
    for _ in range((length - 1) // 2):
        op = "+-*"[random.integers(3)]
        digit = int(random.integers(modulus))
        text += f"{op}{digit}"
        if op == "*":
            product *= digit
        else:
            total += sign * product
            sign, product = (1 if op == "+" else -1), digit
        value = total + sign * product
    return text, value % modulus


def closed(random: Random, length: int, modulus: int, ops: str) -> tuple[str, int]:
    """Return an expression with brackets, and its value."""
    text, value, _ = _grow(random, length, modulus, ops)
    return text, value


def with_unknown(random: Random, length: int, modulus: int) -> tuple[str, int]:
    """Return an equation in z, and its solution."""
    text, value, digits = _grow(random, length - 2, modulus, "+-")
    place = digits[random.integers(len(digits))]
    return f"{text[:place]}z{text[place + 1 :]}={value}", int(text[place])


def _grow(random: Random, length: int, modulus: int, ops: str) -> tuple[str, int, list[int]]:
    """Return an expression, its value and the positions of its digits."""
    if length in _LEAVES:
        digit = int(random.integers(modulus))
        text = _LEAVES[length].format(digit)
        return text, (-digit if "-" in text else digit) % modulus, [text.index(str(digit))]
    inside = length - 3
    split = int(random.integers(1, inside))
    left, a, left_at = _grow(random, split, modulus, ops)
    right, b, right_at = _grow(random, inside - split, modulus, ops)
    op = ops[random.integers(len(ops))]
    value = {"+": a + b, "-": a - b, "*": a * b}[op] % modulus
    places = [1 + at for at in left_at] + [2 + split + at for at in right_at]
    return f"({left}{op}{right})", value, places


MODULUS = 5


def letters(random: Random, length: int, alphabet: str = "ab") -> str:
    """Return a random string."""
    return "".join(alphabet[index] for index in random.integers(len(alphabet), size=length))


def even_pairs(random: Random, length: int) -> Example:
    """A string changes letter an even number of times if and only if it ends as it begins."""
    text = letters(random, length)
    return Example(text, "1" if text[0] == text[-1] else "0")


def parity(random: Random, length: int) -> Example:
    """The number of b's, modulo 2."""
    text = letters(random, length)
    return Example(text, str(text.count("b") % 2))


def cycle(random: Random, length: int) -> Example:
    """The position after steps on a ring of 5."""
    moves = letters(random, length, "+-.")
    return Example(moves, str((moves.count("+") - moves.count("-")) % MODULUS))


def arithmetic(random: Random, length: int) -> Example:
    """The value of an expression without brackets, products before sums."""
    text, value = flat(random, length, MODULUS)
    return Example(text, str(value))


def brackets(random: Random, length: int) -> Example:
    """The value of an expression with brackets around every operation."""
    text, value = closed(random, length, MODULUS, "+-*")
    return Example(text, str(value))


def equation(random: Random, length: int) -> Example:
    """The unknown of an equation; it occurs once, not in a product, so the solution is unique."""
    text, solution = with_unknown(random, length, MODULUS)
    return Example(text, str(solution))


def stack(random: Random, length: int) -> Example:
    """A stack, bottom first, then actions: A and B push, P pops if the stack is not empty."""
    size = int(random.integers(1, length)) if length > 1 else 1
    start, actions = letters(random, size), letters(random, length - size, "ABP")
    content = list(start)
    for action in actions:
        if action != "P":
            content.append(action.lower())
        elif content:
            content.pop()
    return Example(start + actions, "".join(reversed(content)))


def reverse(random: Random, length: int) -> Example:
    """The string backwards."""
    text = letters(random, length)
    return Example(text, text[::-1])


def duplicate(random: Random, length: int) -> Example:
    """The string twice."""
    text = letters(random, length)
    return Example(text, text + text)


def missing(random: Random, length: int) -> Example:
    """The missing letter of a string written twice."""
    text = letters(random, length // 2) * 2
    at = int(random.integers(len(text)))
    return Example(text[:at] + "_" + text[at + 1 :], text[at])


def odds_first(random: Random, length: int) -> Example:
    """Letters 1, 3, 5 ... and then 2, 4, 6 ..."""
    text = letters(random, length)
    return Example(text, text[::2] + text[1::2])


def addition(random: Random, length: int) -> Example:
    """The sum of two binary numbers."""
    left, right = _two_numbers(random, length)
    return Example(f"{left}+{right}", _bits(_number(left) + _number(right)))


def multiplication(random: Random, length: int) -> Example:
    """The product of two binary numbers."""
    left, right = _two_numbers(random, length)
    return Example(f"{left}*{right}", _bits(_number(left) * _number(right)))


def square_root(random: Random, length: int) -> Example:
    """The integer square root, padded with zeros to half as many bits, rounded up."""
    text = _positive(random, length)
    return Example(text, f"{math.isqrt(int(text, 2)):0{(length + 1) // 2}b}")


def bucket_sort(random: Random, length: int) -> Example:
    """Five different symbols, sorted."""
    text = letters(random, length, "01234")
    return Example(text, "".join(sorted(text)))


def _two_numbers(random: Random, length: int) -> tuple[str, str]:
    digits = length - 1
    size = int(random.integers(1, digits))
    return _positive(random, size), _positive(random, digits - size)


def _positive(random: Random, bits: int) -> str:
    while "1" not in (text := letters(random, bits, "01")):
        pass
    return text


def _number(text: str) -> int:
    return int(text[::-1], 2)


def _bits(number: int) -> str:
    return f"{number:b}"[::-1]


_REGULAR, _FREE, _SENSITIVE = "regular", "context-free", "context-sensitive"
TASKS = (
    Task(name="even-pairs", about="Are the pairs ab and ba together even in number?",
         make=even_pairs, level=_REGULAR, guess=0.5),
    Task(name="modular-arithmetic", about="The value of 1+2*3, modulo 5.",
         make=arithmetic, level=_REGULAR, guess=0.2),
    Task(name="parity", about="Is the number of b's odd?",
         make=parity, level=_REGULAR, guess=0.5),
    Task(name="cycle-navigation", about="Where on a ring of 5 do steps +, - and . end?",
         make=cycle, level=_REGULAR, guess=0.2),
    Task(name="stack-manipulation", about="A stack after actions A, B, P, read from its top.",
         make=stack, level=_FREE, ends=True),
    Task(name="reverse-string", about="The string backwards.", make=reverse, level=_FREE),
    Task(name="modular-arithmetic-brackets", about="The value of (1+(2*3)), modulo 5.",
         make=brackets, level=_FREE, guess=0.31),
    Task(name="solve-equation", about="The z of (1-z)=3, modulo 5.",
         make=equation, level=_FREE, shortest=3, guess=0.2),
    Task(name="duplicate-string", about="The string twice.", make=duplicate, level=_SENSITIVE),
    Task(name="missing-duplicate", about="The letter under _ in a string written twice.",
         make=missing, level=_SENSITIVE, shortest=2, guess=0.5),
    Task(name="odds-first", about="Letters at odd places, then those at even places.",
         make=odds_first, level=_SENSITIVE),
    Task(name="binary-addition", about="The sum of two binary numbers.",
         make=addition, level=_SENSITIVE, shortest=3, ends=True),
    Task(name="binary-multiplication", about="The product of two binary numbers.",
         make=multiplication, level=_SENSITIVE, shortest=3, ends=True),
    Task(name="compute-sqrt", about="The square root of a binary number, rounded down.",
         make=square_root, level=_SENSITIVE),
    Task(name="bucket-sort", about="The digits 0 to 4 in order.",
         make=bucket_sort, level=_SENSITIVE),
)  # fmt: skip
