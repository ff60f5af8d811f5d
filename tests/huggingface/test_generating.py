"""Greedy `generate` gives the tokens that it gives with sdpa (or eager)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headscape.huggingface import set_attention
from huggingface.small_models import DECODERS, NO_PADDING, build, inputs, theirs

pytest.importorskip("transformers")
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "none": {"use_cache": False},
}


def generated(model: Any, given: dict[str, Tensor], tokens: int = 9, **options: Any) -> Tensor:
    found: Tensor = model.generate(
        **given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0,
        **options,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", DECODERS)
def test_the_same_tokens(name: str, cache: str) -> None:
    """Left padding makes the rows of the batch differ in length."""
    given = inputs(name, padding=None if name in NO_PADDING else "left", length=12)
    given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    model, other = build(name), build(name)
    set_attention(model)
    other.set_attn_implementation(theirs(name))
    expected = generated(other, given)
    assert torch.equal(generated(model, given, **CACHES[cache]), expected)


def test_encoder_and_decoder() -> None:
    given = inputs("t5", padding="right", length=12)
    given.pop("decoder_input_ids")
    model, other = build("t5"), build("t5")
    set_attention(model)
    expected = generated(other, given, decoder_start_token_id=0)
    for options in CACHES.values():
        assert torch.equal(generated(model, given, decoder_start_token_id=0, **options), expected)


def test_beams() -> None:
    given = inputs("llama", padding="left", length=12)
    model, other = build("llama"), build("llama")
    set_attention(model)
    assert torch.equal(generated(model, given, num_beams=3), generated(other, given, num_beams=3))
