"""The calculated budgets rest on counts that the real model confirms."""

import pytest
import torch
from benchmarks.budget import EIGHT_A100, GPT_7B_128K, budget, parameters

from headscape.gpt2 import GPT2
from headscape.gpt2.model_config import GPT2_VOCABULARY
from headscape.training import preset


@pytest.mark.parametrize("name", ["paper-tiny-1024", "paper-small-512", "paper-medium-1024"])
def test_parameters_are_the_models(name: str) -> None:
    config = preset(name, encoding="nope")
    with torch.device("meta"):
        model = GPT2(config.model_for(GPT2_VOCABULARY))
    assert parameters(config) == sum(value.numel() for value in model.parameters())


def test_a_seven_is_seven_and_sharding_divides_state() -> None:
    assert 6.5e9 < parameters(GPT_7B_128K) < 7.5e9
    small = preset("paper-small-1024")
    whole, cut = (
        budget(preset("paper-small-1024", distributed=how), EIGHT_A100) for how in ("ddp", "fsdp")
    )
    assert whole.state_gb == pytest.approx(8 * cut.state_gb) == 16e-9 * parameters(small)
    assert whole.tokens == 19_000 * 524_288
