"""A model whose encoding `set_encoding` put in is captured, measured and edited like any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.call.definition import AttentionCall, run, scores
from headscape.errors import InputError
from headscape.huggingface import set_encoding
from huggingface.small_models import build
from pretrained.families import VOCABULARY

pytest.importorskip("transformers")
ENCODINGS = [
    "alibi", "cable", "dapev2+kerple", "rope+fox", "t5", "rope", "learned", "sinusoidal", "fire",
    "kerple-weight", "stick-breaking", "path", "cope", "shaw", "pope", "selective-rope",
]  # fmt: skip
PARTS = {"llama": ("v_proj", "o_proj"), "gpt2": ("c_attn", "c_proj")}
TOKENS = torch.randint(3, VOCABULARY, (1, 21), generator=torch.Generator().manual_seed(1))


def made(name: str, encoding: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = build(name).eval()
    set_encoding(model, encoding, **more)
    return model


def own_attention(model: Any, name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The model's own values and attention output of every layer, heads apart."""
    makes, takes = PARTS[name]
    values: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    hooks = []
    for path, module in model.named_modules():
        if path.endswith(f"attn.{makes}"):
            hooks.append(module.register_forward_hook(lambda _, __, out: values.append(out)))
        if path.endswith(f"attn.{takes}"):
            hooks.append(
                module.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
            )
    with torch.no_grad():
        model(TOKENS, use_cache=False)
    for hook in hooks:
        hook.remove()
    heads = model.config.num_attention_heads
    groups = getattr(model.config, "num_key_value_heads", heads)
    if name == "gpt2":
        values = [value.chunk(3, dim=-1)[2] for value in values]
    found = []
    for value, output in zip(values, outputs, strict=True):
        shared = (
            value.unflatten(-1, (groups, -1)).transpose(1, 2).repeat_interleave(heads // groups, 1)
        )
        found.append((shared, output.unflatten(-1, (heads, -1)).transpose(1, 2)))
    return found


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_capture_is_what_the_model_computes(name: str, encoding: str, tmp_path: Path) -> None:
    theirs = made(name, encoding)
    model = hs.load(theirs)
    assert {layer.encoding for layer in model.spec.layers} == {encoding}
    own = own_attention(theirs, name)
    capture = model.capture(TOKENS[0], layers="all")
    for layer, (values, output) in enumerate(own):
        weights = torch.from_numpy(np.asarray(capture.weights(layer)))[None]
        torch.testing.assert_close(weights @ values, output, atol=2e-5, rtol=1e-4)

    theirs.save_pretrained(tmp_path / "saved")
    opened = hs.load(f"hf:{tmp_path / 'saved'}")
    assert opened.spec.layers == model.spec.layers
    again = opened.capture(TOKENS[0], layers="all")
    for layer in range(len(own)):
        np.testing.assert_array_equal(again.weights(layer), capture.weights(layer))
        np.testing.assert_array_equal(again.bias(layer), capture.bias(layer))


@pytest.mark.parametrize("name", PARTS)
def test_the_bias_is_that_of_the_encoding(name: str) -> None:
    model = hs.load(made(name, "alibi"))
    heads = model.spec.heads
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    found = model.capture(TOKENS[0]).bias()
    at = np.arange(TOKENS.shape[1])
    seen = at[:, None] >= at
    expected = -slopes[:, None, None] * (at[:, None] - at)
    np.testing.assert_allclose(found[:, seen], expected[:, seen], atol=1e-5)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("encoding", ["alibi", "cable", "dapev2+kerple", "rope+fox", "t5"])
def test_a_head_of_it_can_be_changed(name: str, encoding: str) -> None:
    model = hs.load(made(name, encoding))
    heard: list[AttentionCall] = []

    def again(call: AttentionCall, own: torch.Tensor) -> torch.Tensor:
        heard.append(call)
        return run(call).to(own.dtype)

    def content(call: AttentionCall, own: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(own)

    losses = model.losses(TOKENS, 0)
    for layer in range(len(model.spec.layers)):
        same, changed = model.edited_losses(TOKENS, 0, layer, [again, content])  # type: ignore[attr-defined]
        torch.testing.assert_close(same, losses, atol=1e-4, rtol=1e-4)
        assert (changed - losses).abs().max() > 1e-3
    assert len(heard) == len(model.spec.layers)
    effects = model.measures(TOKENS[0].repeat(3), length=16, sequences=2, effects=2)
    assert repr(effects).startswith("<measures of")


@pytest.mark.parametrize("name", ["bert", "t5", "gpt-neox"])
def test_other_types_are_read_and_checked(name: str) -> None:
    model = hs.load(made(name, "alibi"))
    assert {layer.encoding for layer in model.spec.layers} == {"alibi"}
    assert model.capture(TOKENS[0]).weights().shape[1:] == (21, 21)


def test_some_layers_keep_their_own_position() -> None:
    model = hs.load(made("llama", "alibi", layers=[1]))
    assert [layer.encoding for layer in model.spec.layers] == ["rope", "alibi", "rope"]
    own = own_attention(model.model, "llama")  # type: ignore[attr-defined]
    calls: dict[int, AttentionCall] = {}
    model.observe(TOKENS, range(3), calls.__setitem__)
    for layer, (values, output) in enumerate(own):
        found = scores(calls[layer]).weights @ values
        torch.testing.assert_close(found, output, atol=2e-5, rtol=1e-4)


def test_left_padding_is_seen_as_the_model_sees_it() -> None:
    model = hs.load(made("llama", "cable"))
    padded = torch.cat([TOKENS.new_zeros(1, 4), TOKENS], dim=1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[:, :4] = False
    plain: dict[int, AttentionCall] = {}
    moved: dict[int, AttentionCall] = {}
    model.observe(TOKENS, range(3), plain.__setitem__)
    model.observe(padded, range(3), moved.__setitem__, real=real)  # type: ignore[call-arg]
    for layer in range(3):
        expected = scores(plain[layer]).weights
        found = scores(moved[layer]).weights[:, :, 4:, 4:]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_its_rope_is_not_stretched_from_outside() -> None:
    with pytest.raises(InputError, match="stretch it with the fields of set_encoding"):
        hs.stretch(hs.load(made("llama", "rope")), "yarn:4").capture(TOKENS[0])
