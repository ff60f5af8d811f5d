"""`hs.load` reads a live model with our attention the same as with transformers' attention."""

import pytest
import torch

import headscape as hs
from headscape.huggingface import set_attention
from huggingface.small_models import build, theirs

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "gpt2", "gemma2", "gpt-oss", "bert", "t5", "bloom"]
)
def test_a_model_with_our_attention_is_read(name: str) -> None:
    model, other = build(name), build(name)
    set_attention(model)
    other.set_attn_implementation(theirs(name))
    ours, expected = hs.load(model), hs.load(other)
    assert ours.spec == expected.spec
    tokens = list(range(3, 21))
    captures = [each.capture(tokens) for each in (ours, expected)]
    torch.testing.assert_close(*(torch.from_numpy(each.weights()) for each in captures))
    assert model.config._attn_implementation == "headscape"
    if ours.spec.causal:
        windows = torch.tensor([tokens])
        torch.testing.assert_close(
            *(each.losses(windows, 2) for each in (ours, expected)), atol=1e-4, rtol=1e-4
        )
