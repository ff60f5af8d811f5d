"""A short run of the fuzzer of published models."""

import pytest

pytest.importorskip("transformers")

from fuzz import published

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@pytest.mark.parametrize("name", ["attention", "folder", "ours"])
def test_random_inputs_give_no_finding(name: str) -> None:
    for seed in range(5):
        assert published.one(name, seed)[1] is None
