"""Cross-attention is the model's own."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscape as hs
from captures.test_inputs import TOKENS, randomise, tokenizer

BART = {
    "vocab_size": 20, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": 20, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1,
    "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
WHISPER = {
    "vocab_size": 20, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "num_mel_bins": 8, "max_source_positions": 12,
    "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "BartForConditionalGeneration": BART,
    "T5ForConditionalGeneration": T5,
    "WhisperForConditionalGeneration": WHISPER,
}
TARGET = [7, 8, 9]


def build(name: str) -> Any:
    kind = getattr(transformers, name)
    torch.manual_seed(2)
    model = kind(kind.config_class(**FAMILIES[name], attn_implementation="eager")).eval()
    randomise(model)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_cross_attention_is_the_models_own(name: str) -> None:
    model = build(name)
    source: Any = torch.tensor([TOKENS])
    given = {"input_ids": source}
    if name.startswith("Whisper"):
        source = torch.randn(1, 8, 24)
        given = {"input_features": source}
    with torch.no_grad():
        out = model(**given, decoder_input_ids=torch.tensor([TARGET]), output_attentions=True)
    found = hs.load(model).cross_attention(source, TARGET)
    assert found.layers == (0, 1)
    for layer, theirs in enumerate(out.cross_attentions):
        np.testing.assert_allclose(found.weights(layer=layer), theirs[0].numpy(), atol=1e-5)
        assert found.content(layer=layer).shape == theirs.shape[1:]
        assert np.array_equal(found.final(layer=layer), found.content(layer=layer))
        assert not found.bias(layer=layer).any()
    assert (found.source is None) == name.startswith("Whisper")


def test_a_target_text_follows_the_start_token() -> None:
    model = hs.load(build("BartForConditionalGeneration"), tokenizer=tokenizer())
    found = model.cross_attention("a cat sat", "on mat", layers=-1)
    assert found.target.tolist() == [2, 9, 10]
    assert found.source_pieces == ["a", "cat", "sat"]
    assert found.layers == (1,)
    assert found.weights(head=2).shape == (3, 3)
    with pytest.raises(hs.InputError, match=r"no layer 0: there are \[1\], counted from 0"):
        found.weights(layer=0)


def test_a_config_without_a_start_token_and_odd_numbers() -> None:
    theirs = build("BartForConditionalGeneration")
    del theirs.config.decoder_start_token_id
    theirs.generation_config.decoder_start_token_id = None
    found = hs.load(theirs).cross_attention([5, 6, 7], [8, 9])
    assert found.target.tolist() == [8, 9]
    assert np.array_equal(found.weights(0, head=-1), found.weights(0)[-1])
    for layer, head, message in (
        (-3, 0, "no layer -3: there are"),
        (0, 4, "there is no head 4: the model has heads 0 to 3"),
        (0, -5, "there is no head -5"),
    ):
        with pytest.raises(hs.InputError, match=message):
            found.weights(layer, head)


def test_a_decoder_alone_has_none() -> None:
    with pytest.raises(hs.InputError, match="no encoder and decoder"):
        hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)).cross_attention(
            [1], [2]
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_no_part_of_them_predicts_the_next_token_alone(name: str) -> None:
    model = hs.load(build(name))
    with pytest.raises(hs.InputError, match=f"{name}, which does not predict the next token"):
        model.capture(TARGET, generate=4)
    with pytest.raises(hs.InputError, match="does not predict the next token"):
        model.losses(torch.tensor([TARGET]), 0)
    assert model.capture(TARGET).length == len(TARGET)
