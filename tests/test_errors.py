"""A value of the wrong type or size is refused in a sentence that names it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headscape as hs
from headscape.errors import at_least


@pytest.fixture(scope="module")
def model() -> Any:
    made = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257, width=48)
    return hs.load(made, tokenizer="bytes")


def test_whole_numbers_pass_and_none_is_not_checked() -> None:
    at_least(1, length=1, columns=np.int64(3), window=None)
    at_least(0, seed=0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "length must be at least 1, got 0."),
        ("3", "length must be a whole number, got '3'."),
        (1.5, "length must be a whole number, got 1.5."),
        (True, "length must be a whole number, got True."),
    ],
)
def test_anything_else_is_named(value: object, said: str) -> None:
    with pytest.raises(hs.InputError) as error:
        at_least(1, length=value)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.capture("ab").grid(width="3").draw(), "at most 100, got '3'"),
        (lambda model: model.capture("ab").grid(width=0).draw(), "at most 100, got 0"),
        (lambda model: model.capture("ab").grid(columns="2"), "whole number, got '2'"),
        (lambda model: model.capture("ab").grid(quantity=3), "unknown quantity '3'"),
        (lambda model: model.capture(length="5"), "whole number, got '5'"),
    ],
)
def test_the_api_refuses_wrong_types_in_a_sentence(
    model: Any, call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(hs.InputError) as error:
        call(model)
    assert said in str(error.value)
