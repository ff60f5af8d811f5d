"""One layer's attention changed in a published model: nothing else moves, nothing stays behind."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headscape.call.definition import AttentionCall, run
from headscape.errors import InputError
from headscape.measures.measure_model import measure_model
from headscape.models.load import load
from pretrained.families import FAMILIES, VOCABULARY

pytest.importorskip("transformers")
# One family for each way that attention is reached: the interface, a method, hooks of both sorts.
LANGUAGE = ["llama", "gemma2", "gptj", "gpt2", "bloom", "mpt", "falcon", "gpt-oss", "phi"]


def windows(length: int = 21) -> Tensor:
    return torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(5))


def unchanged(_: AttentionCall, own: Tensor) -> Tensor:
    return own


def ours(inputs: AttentionCall, own: Tensor) -> Tensor:
    return run(inputs).to(own.dtype)


def silent(_: AttentionCall, own: Tensor) -> Tensor:
    return torch.zeros_like(own)


@pytest.mark.parametrize("name", LANGUAGE)
def test_an_edit_replaces_one_layer(name: str) -> None:
    theirs = FAMILIES[name].build()
    model: Any = load(theirs)
    before = model.losses(windows(), 3)
    for layer in (0, 2):
        same, again, zero, last = model.edited_losses(
            windows(), 3, layer, [unchanged, ours, silent, unchanged]
        )
        assert torch.equal(same, before)
        assert torch.equal(last, before)
        torch.testing.assert_close(again, before, rtol=1e-4, atol=1e-4)
        assert (zero - before).abs().max() > 1e-3
    assert torch.equal(model.losses(windows(), 3), before)
    for module in theirs.modules():
        assert "forward" not in vars(module)


@pytest.mark.parametrize("name", ["mpnet", "roformer", "t5", "bert"])
def test_an_encoder_has_measures_and_no_effects(name: str) -> None:
    model = load(FAMILIES[name].build())
    tokens = windows(160)[0].numpy()
    found = measure_model(model, tokens, length=32, sequences=3)
    row = found.row(2, 5)
    assert row["position_share"] > 0
    assert "retrieval" not in found.values
    assert np.isnan(found.values["entropy_growth"]).all()
    with pytest.raises(InputError, match="does not predict the next token"):
        measure_model(model, tokens, length=32, sequences=3, effects=1)


def test_removing_rope_from_a_head_is_attention_without_angles() -> None:
    """The effect equals a run where one head's q and k were never rotated."""
    theirs = FAMILIES["llama"].build()
    model: Any = load(theirs)
    tokens = windows(160)[0].numpy()
    found = measure_model(model, tokens, length=32, sequences=3, effects=3)
    parts = torch.from_numpy(np.stack([tokens[:32], tokens[32:64], tokens[96:128]]))
    before = model.losses(parts, 0).mean()

    head = 4
    attention = theirs.model.layers[1].self_attn

    original = type(attention).forward

    def forward(hidden_states: Tensor, position_embeddings: Any, **more: Any) -> Any:
        cos, sin = position_embeddings
        still = (torch.ones_like(cos), torch.zeros_like(sin))
        heads: list[Tensor] = []
        kept = attention.o_proj
        attention.o_proj = torch.nn.Identity()
        try:
            for angles in (position_embeddings, still):
                out, _ = original(attention, hidden_states, position_embeddings=angles, **more)
                heads.append(out.unflatten(-1, (6, -1)))
        finally:
            attention.o_proj = kept
        mixed = heads[0].clone()
        mixed[..., head, :] = heads[1][..., head, :]
        return kept(mixed.flatten(-2)), None

    attention.forward = forward
    expected = float(model.losses(parts, 0).mean() - before)
    del attention.forward
    assert abs(expected) > 1e-5
    assert found.row(1, head)["effect_removed"] == pytest.approx(expected, rel=1e-6)


def test_only_a_list_of_blocks_with_attention_is_skipped() -> None:
    from torch import nn

    from headscape.models.transformers.edited_published import _blocks

    theirs = FAMILIES["llama"].build()
    assert _blocks(theirs.model, 3) == list(theirs.model.layers)
    assert _blocks(theirs.model, 2) == []
    assert (
        _blocks(nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in "abc")}), 3) == []
    )
