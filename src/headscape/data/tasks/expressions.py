"""Random arithmetic expressions of an exact length, with their values modulo m.

    flat      d (op d)*            + and - and *, products first, no brackets; odd lengths
    closed    d | -d | (d) | (-d) | (e op e)       lengths 1, 2, 3, 4, and 5 or more
    unknown   a closed expression of + and - with one digit replaced by z, then = and its value

A flat expression of even length is one symbol shorter. Values are computed while an expression is
made, never by parsing it.
"""

import numpy as np

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
