"""Logits, losses and gradients equal sdpa's (or eager's) within float32 rounding.

The budget is derived per case: the same model in float64 says how far sdpa's float32 is from the
exact result, and ours may be SLACK times as far.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from headscape.huggingface import set_attention
from huggingface.small_models import (
    ARCHITECTURES,
    NO_FLOAT64,
    NO_PADDING,
    build,
    inputs,
    output,
    theirs,
    within_budget,
)

pytest.importorskip("transformers")


def variants(name: str) -> tuple[Any, Any, Any]:
    """The model with our attention, with theirs, and in float64."""
    ours, other, exact = build(name), build(name), build(name, torch.float64)
    set_attention(ours)
    for model in (other, exact):
        model.set_attn_implementation(theirs(name))
    return ours, other, exact


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits(name: str) -> None:
    models = variants(name)
    paddings = (None,) if name in NO_PADDING else (None, "right", "left")
    for padding in paddings[:-1] if name in NO_FLOAT64 else paddings:
        given = inputs(name, padding=padding)
        with torch.no_grad():
            assert within_budget(*(output(model, given) for model in models)), padding


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_losses_and_gradients(name: str) -> None:
    given = inputs(name, padding=None if name in NO_PADDING else "right")
    gradients: list[Tensor] = []
    losses: list[Tensor] = []
    for model in variants(name):
        out = output(model, given)
        torch.manual_seed(1)
        loss = torch.nn.functional.cross_entropy(out, torch.randn(out.shape).softmax(-1).to(out))
        loss.backward()
        losses.append(loss.detach())
        found = [p.grad.flatten() for _, p in model.named_parameters() if p.grad is not None]
        gradients.append(torch.cat(found).double())
    assert within_budget(*losses)
    assert within_budget(*gradients)


def test_packed_sequences() -> None:
    given = inputs("llama")
    at = torch.arange(23)
    given["position_ids"] = torch.where(at < 9, at, at - 9)[None].expand(2, -1)
    models = variants("llama")
    found = [model(**given, use_cache=False).logits.detach() for model in models]
    assert within_budget(*found)
    alone = models[0](given["input_ids"][:, 9:]).logits.detach()
    torch.testing.assert_close(found[0][:, 9:], alone, atol=1e-4, rtol=1e-4)


def test_a_mask_written_out_by_key() -> None:
    """A model that pads by itself, as older encoders do."""
    from transformers import AttentionInterface

    model, other = build("bert"), build("bert")
    set_attention(model)
    served = AttentionInterface()["headscape"]
    given = inputs("bert", padding="right")
    seen = given["attention_mask"].bool()[:, None, None]
    q, k, v = torch.randn(3, 2, 6, 23, 8).unbind()
    module = other.encoder.layer[0].attention.self
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    for mask in (seen, added):
        out, _ = served(module, q, k, v, mask, scaling=8**-0.5)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    ours, other, exact = build(name, dtype), build(name, dtype), build(name, torch.float64)
    set_attention(ours)
    for model in (other, exact):
        model.set_attn_implementation(theirs(name))
    for source, target in zip(other.parameters(), exact.parameters(), strict=True):
        target.data.copy_(source.data)
    given = inputs(name)
    with torch.no_grad():
        found = [output(model, given).double() for model in (ours, other, exact)]
    mine, other_error = ((x - found[2]).abs().mean() for x in found[:2])
    assert float(mine) <= 2 * float(other_error)
