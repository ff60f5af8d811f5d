"""A short run of the fuzzer of published models."""

import pytest

pytest.importorskip("transformers")

from fuzz import published

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@pytest.mark.parametrize("name", ["attention", "folder", "ours"])
def test_random_inputs_give_no_finding(name: str) -> None:
    outcomes = [published.one(name, seed) for seed in range(10)]
    assert [found for _, found in outcomes] == [None] * 10
    assert {ended for ended, _ in outcomes} & {"compared", "read"}, outcomes
