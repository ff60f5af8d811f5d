"""A short run of the fuzzer of models."""

import pytest

from fuzz.models import one


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_models_equal_the_definition(first: int) -> None:
    done = [one(seed) for seed in range(first, first + 20)]
    assert done.count("refused") < 15
