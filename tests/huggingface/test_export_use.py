"""An exported model inside transformers: caches, padding, training, saving, other backends."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headscape as hs
import headscape.huggingface
from headscape.huggingface.export import write_export as export_module
from huggingface.export_cases import case_model

GREEDY = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
NAMES = ["cable", "alibi", "dapev2+kerple", "rope longrope", "schedule", "path"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("use")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "write_picture", lambda model, part: None)
        for name in NAMES:
            hs.export(hs.load(case_model(name), tokenizer="bytes"), found / name)
    return found


def opened(folder: Path, **more: Any) -> Any:
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **more).eval()


def prompt(batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(255, (batch, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", NAMES)
def test_every_cache_writes_what_no_cache_writes(name: str, home: Path) -> None:
    model = opened(home / name)
    plain = model.generate(prompt(), use_cache=False, **GREEDY)
    assert torch.equal(model.generate(prompt(), **GREEDY), plain)
    assert torch.equal(model.generate(prompt(), cache_implementation="static", **GREEDY), plain)
    beams = {**GREEDY, "num_beams": 3}
    assert torch.equal(
        model.generate(prompt(), **beams), model.generate(prompt(), use_cache=False, **beams)
    )


@pytest.mark.parametrize("name", NAMES)
def test_eager_is_sdpa(name: str, home: Path) -> None:
    model = opened(home / name)
    with torch.no_grad():
        fused = model(prompt()).logits
        model.set_attn_implementation("eager")
        dense = model(prompt(), output_attentions=True)
    assert (fused - dense.logits).abs().max() < 1e-5
    assert len(dense.attentions) == 2
    assert torch.allclose(dense.attentions[0].sum(-1), torch.ones(2, 4, 7))


def test_a_part_of_the_text_continues_a_cache(home: Path) -> None:
    model = opened(home / "cable")
    tokens = prompt(2, 12)
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :5], use_cache=True)
        rest = model(tokens[:, 5:], past_key_values=first.past_key_values)
    assert (rest.logits - whole[:, 5:]).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["cable", "dapev2+kerple"])
def test_packed_documents_see_only_themselves(name: str, home: Path) -> None:
    model = opened(home / name)
    one, two = prompt(1, 6), prompt(1, 9).flip(1)
    at = torch.cat([torch.arange(6), torch.arange(9)])[None]
    with torch.no_grad():
        packed = model(torch.cat([one, two], dim=1), position_ids=at).logits
        alone = torch.cat([model(one).logits, model(two).logits], dim=1)
    assert (packed - alone).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_ours_does(name: str, home: Path) -> None:
    model, ours = opened(home / name), case_model(name)
    tokens = prompt(2, 10)
    loss = model(tokens, labels=tokens).loss
    own = torch.nn.functional.cross_entropy(
        ours(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    assert abs(float((loss - own).detach())) < 1e-5
    loss.backward()
    own.backward()
    theirs = model.model.tokens.weight.grad
    assert theirs is not None
    assert torch.allclose(theirs, ours.tokens.weight.grad, atol=1e-5)
    assert all(
        parameter.grad is not None
        for name, parameter in model.named_parameters()
        if "raw_" not in name
    )
    model.zero_grad()
    model.train()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    assert torch.allclose(theirs, model.model.tokens.weight.grad, atol=1e-5)


def test_what_transformers_saves_again_is_read(home: Path, tmp_path: Path) -> None:
    model = opened(home / "cable")
    with torch.no_grad():
        model.model.encodings[1].increment.weight.mul_(2)
    model.save_pretrained(tmp_path / "tuned")
    back = hs.load(tmp_path / "tuned")
    assert back.spec.provenance == {"folder": "tuned"}
    in_memory = hs.load(model, tokenizer="bytes")
    with torch.no_grad():
        expected = model(prompt()).logits
        assert (back.gpt2(prompt()) - expected).abs().max() < 1e-5
        assert (in_memory.gpt2(prompt()) - expected).abs().max() < 1e-5
    assert in_memory.capture([1, 2, 3]).bias(head=0).shape == (3, 3)


def test_bfloat16_decodes(home: Path) -> None:
    model = opened(home / "cable", dtype=torch.bfloat16)
    with torch.no_grad():
        whole = model(prompt(1, 9), use_cache=False).logits[:, -1]
        past = model(prompt(1, 9)[:, :8]).past_key_values
        last = model(prompt(1, 9)[:, 8:], past_key_values=past).logits[:, -1]
    assert (last - whole).abs().max() < 0.1


@pytest.mark.parametrize("name", ["vllm", "sglang", "flash_attention_2", "paged|sdpa"])
def test_a_backend_that_drops_the_bias_is_refused(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(home / "alibi")

    def without_bias(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, without_bias)
    model.config._attn_implementation_internal = name
    with pytest.raises(hs.InputError, match="without its positions: use attn_implementation"):
        model(prompt())


def test_a_quantized_cache_is_refused(home: Path) -> None:
    model = opened(home / "cable")
    past = transformers.DynamicCache()
    past.layers.append(type("QuantoQuantizedLayer", (), {})())
    with pytest.raises(hs.InputError, match="quantized cache rounds the positions"):
        model(prompt(), past_key_values=past)


def test_a_mask_of_a_different_length_is_refused(home: Path) -> None:
    model = opened(home / "cable")
    with pytest.raises(hs.InputError, match=r"shape batch x 7 \(cached and new tokens\), got"):
        model(prompt(), attention_mask=torch.ones(2, 5))


def test_weights_start_as_in_our_model(home: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_config(opened(home / "cable").config)
    block = model.model.blocks[0]
    assert abs(float(block.up.weight.detach().std()) - 0.02) < 0.002
    assert abs(float(block.down.weight.detach().std()) - 0.01) < 0.001
    assert model.lm_head.weight is model.model.tokens.weight
