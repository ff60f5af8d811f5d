"""Every task's answers against brute force that shares no code with the generators."""

import re
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from headscape.data.tasks import TASKS, task
from headscape.errors import InputError


def evaluated(text):
    """An expression's value by Python's own arithmetic, modulo 5."""
    assert re.fullmatch(r"[0-4+*()-]+", text)
    return eval(text) % 5  # noqa: S307


def even_pairs(q):
    return str(int(sum(a != b for a, b in pairwise(q)) % 2 == 0))


def cycle(q):
    place = 0
    for move in q:
        place = [place, (place + 1) % 5, (place + 4) % 5][".+-".index(move)]
    return str(place)


def stack(q):
    content = ""
    for symbol in q:
        content = content[:-1] if symbol == "P" else content + symbol.lower()
    return content[::-1]


def equation(q):
    left, right = q.split("=")
    solutions = [z for z in range(5) if evaluated(left.replace("z", str(z))) == int(right)]
    assert len(solutions) == 1
    return str(solutions[0])


def missing(q):
    half = len(q) // 2
    at = q.index("_")
    return q[at + half if at < half else at - half]


def binary(q, op):
    left, right = (sum(2**n for n, bit in enumerate(part) if bit == "1") for part in q.split(op))
    value = left + right if op == "+" else left * right
    bits = ""
    while value:
        bits, value = bits + str(value % 2), value // 2
    return bits or "0"


def root(q):
    value, bits = int(q, 2), ""
    low, high = 0, value + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * middle <= value else (low, middle)
    while low:
        bits, low = str(low % 2) + bits, low // 2
    return bits.rjust(-(-len(q) // 2), "0")


def decimal(q):
    left, right = (int(number[::-1]) for number in q.split("+"))
    return str(left + right)[::-1]


def counted(q):
    return "".join(symbol * q.count(symbol) for symbol in "01234abcdefghijklmnopqrstuvwxyz")


def told(q):
    """What the question's own sentence says earlier in the text."""
    ask = re.search(r" (The (?:pass key|number of \w+) is)$", q)[1]
    return re.search(rf"{ask} (\d+)\.", q)[1]


ORACLES = {
    "even-pairs": even_pairs,
    "modular-arithmetic": lambda q: str(evaluated(q)),
    "parity": lambda q: str(len(q.replace("a", "")) % 2),
    "cycle-navigation": cycle,
    "stack-manipulation": stack,
    "reverse-string": lambda q: "".join(reversed(q)),
    "modular-arithmetic-brackets": lambda q: str(evaluated(q)),
    "solve-equation": equation,
    "duplicate-string": lambda q: q * 2,
    "missing-duplicate": missing,
    "odds-first": lambda q: "".join(
        [q[n] for n in range(len(q)) if n % 2 == 0] + [q[n] for n in range(len(q)) if n % 2]
    ),
    "binary-addition": lambda q: binary(q, "+"),
    "binary-multiplication": lambda q: binary(q, "*"),
    "compute-sqrt": root,
    "bucket-sort": counted,
    "copy": str,
    "reverse": lambda q: "".join(reversed(q)),
    "sort": counted,
    "addition": decimal,
    "passkey": told,
    "needle": told,
}


def test_every_task_has_an_oracle():
    assert set(ORACLES) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_right(name):
    for length in [*range(1, 42), 100, 500]:
        for index in range(4):
            example = TASKS[name].example(3, index, length)
            assert example.answer == ORACLES[name](example.question), example


def test_sums_are_longer_than_python_spells_integers():
    example = TASKS["addition"].example(0, 0, 18_001)
    left, right = example.question.split("+")
    assert len(left) == len(right) == 9000
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert example.answer == decimal(example.question)
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("name", ["binary-addition", "binary-multiplication"])
def test_no_operand_is_zero(name):
    for index in range(200):
        question = TASKS[name].example(0, index, 5).question
        assert all("1" in number for number in re.split(r"[+*]", question))


def test_roots_are_of_numbers_with_and_without_leading_zeros():
    examples = [TASKS["compute-sqrt"].example(0, index, 5) for index in range(200)]
    assert {example.question[0] for example in examples} == {"0", "1"}
    assert {len(example.answer) for example in examples} == {3}
    assert "00000" not in {example.question for example in examples}


def test_every_stack_is_acted_upon():
    for index in range(200):
        assert set(TASKS["stack-manipulation"].example(0, index, 2).question) & set("ABP")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [0, -1])
def test_a_question_without_symbols_is_refused(name, length):
    with pytest.raises(InputError, match=f"question length must be at least 1, got {length}"):
        TASKS[name].example(0, 0, length)


@pytest.mark.parametrize("name", TASKS)
def test_lengths_are_what_was_asked_for(name):
    item = TASKS[name]
    for length in [*range(1, 45), 211, 500]:
        question = item.example(0, 0, length).question
        wanted = max(length, item.shortest)
        if name in ("modular-arithmetic", "missing-duplicate", "addition"):
            assert wanted - 1 <= len(question) <= wanted
        else:
            assert len(question) == wanted


@pytest.mark.parametrize("name", TASKS)
def test_examples_are_a_function_of_seed_index_and_length(name):
    item = TASKS[name]
    assert item.example(1, 2, 70) == item.example(1, 2, 70)
    others = {item.example(seed, index, 70) for seed in range(3) for index in range(3)}
    assert len(others) == 9


@pytest.mark.parametrize("length", [41, 300])
@pytest.mark.parametrize("name", TASKS)
def test_the_commonest_answer_scores_what_is_said(name, length):
    item, count = TASKS[name], 2000 if TASKS[name].guess else 200
    answers = Counter(item.example(0, index, length).answer for index in range(count))
    (_, commonest), *_ = answers.most_common(1)
    assert commonest / count == pytest.approx(item.guess, abs=0.03)


@pytest.mark.parametrize("name", TASKS)
def test_the_end_is_a_symbol_where_the_question_does_not_tell_the_answers_length(name):
    item = TASKS[name]
    sizes = {len(item.example(0, index, 77).answer) for index in range(50)}
    assert item.ends == (len(sizes) > 1)


@pytest.mark.parametrize("name", TASKS)
def test_questions_and_answers_are_bytes_without_an_arrow(name):
    example = TASKS[name].example(0, 0, 80)
    tokens = example.tokens()
    assert tokens.dtype == np.int64
    assert tokens[0] == tokens[-1] == 256
    assert (tokens == ord(">")).sum() == 1
    assert bytes(tokens[1:-1].tolist()).decode() == f"{example.question}>{example.answer}"


def test_unknown_tasks_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'parity'"):
        task("paritty")
