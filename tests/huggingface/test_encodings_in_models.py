"""Every encoding of the catalogue in other people's models: it learns, saves, loads, generates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headscape.encodings import ENCODINGS, WRAPPERS
from headscape.huggingface import load, set_encoding
from huggingface.small_models import build, inputs, within_budget
from huggingface.test_generating import generated

transformers = pytest.importorskip("transformers")
CATALOGUE = [*ENCODINGS, *(f"{wrapper}+kerple" for wrapper in WRAPPERS)]
TEXT = b"the cat sat on the mat and the dog sat on the cat. " * 2


def small(name: str) -> Any:
    torch.manual_seed(0)
    if name == "llama":
        kind: Any = transformers.LlamaConfig
        sizes = {"num_key_value_heads": 1, "num_hidden_layers": 2}
    else:
        kind = transformers.GPT2Config
        sizes = {"num_hidden_layers": 2, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = kind(
        hidden_size=32, num_attention_heads=2, intermediate_size=48, vocab_size=128,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("encoding", CATALOGUE)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_it_learns_saves_loads_and_generates(name: str, encoding: str, tmp_path: Path) -> None:
    model = small(name)
    set_encoding(model, encoding)
    tokens = torch.tensor([list(TEXT[:40]), list(TEXT[20:60])])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3
    learned = [p for n, p in model.named_parameters() if "headscape" in n or ".wpe." in n]
    assert all(p.grad is not None for p in learned)
    model.eval().save_pretrained(tmp_path)
    again = load(tmp_path).eval()
    assert type(again) is type(model)
    assert list(again.state_dict()) == list(model.state_dict())
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    given = {"input_ids": tokens[:, :12], "attention_mask": mask}
    expected = generated(model, given, tokens=6, use_cache=False)
    assert torch.equal(generated(again, given, tokens=6), expected)
    if name == "llama":
        static = generated(again, given, tokens=6, cache_implementation="static")
        assert torch.equal(static, expected)


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "cohere", "glm"])
def test_rope_put_in_by_us_gives_the_logits_there_were(name: str) -> None:
    ours, other, exact = build(name), build(name), build(name, torch.float64)
    set_encoding(ours, "rope")
    given = inputs(name, padding="left")
    seen = given["attention_mask"].bool()
    with torch.no_grad():
        assert within_budget(*(model(**given).logits[seen] for model in (ours, other, exact)))


def test_a_learned_table_put_in_by_us_gives_the_logits_there_were() -> None:
    for name, table in (("gpt2", "transformer.wpe"), ("bert", "embeddings.position_embeddings")):
        ours, other = build(name), build(name)
        weight = other.get_submodule(table).weight
        set_encoding(ours, "learned")
        ours.get_submodule(table).encoding.table.weight.data.copy_(weight)
        given = inputs(name)
        with torch.no_grad():
            torch.testing.assert_close(ours(**given)[0], other(**given)[0], atol=1e-4, rtol=1e-4)


def test_t5s_buckets_put_in_by_us_give_the_logits_there_were() -> None:
    ours, other = build("t5"), build("t5")
    set_encoding(ours, "t5")
    for stack in ("encoder", "decoder"):
        for block in getattr(ours, stack).block:
            own = block.layer[0].SelfAttention.headscape_encoding
            first = getattr(other, stack).block[0].layer[0].SelfAttention
            own.table.weight.data.copy_(first.relative_attention_bias.weight)
    given = inputs("t5", padding="right")
    with torch.no_grad():
        torch.testing.assert_close(ours(**given)[0], other(**given)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoding", ["alibi", "cable", "learned", "dapev2+kerple", "rope"])
@pytest.mark.parametrize("name", ["bert", "t5", "gpt-neox"])
def test_other_types_train_and_load(name: str, encoding: str, tmp_path: Path) -> None:
    model = build(name)
    set_encoding(model, encoding)
    given = inputs(name, padding="right")
    out = model(**given)[0]
    out.square().mean().backward()
    for key, parameter in model.named_parameters():
        if "headscape" in key:
            assert parameter.grad is not None, key
    model.save_pretrained(tmp_path)
    again = load(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**given)[0], out.detach())


def test_position_is_gone_and_ours_is_there() -> None:
    """With NoPE a bidirectional model does not know the order; with ALiBi it does."""
    for name in ("bert", "esm", "t5"):
        model, given = build(name), inputs(name)
        if name == "t5":
            model = model.encoder
        tokens = given["input_ids"]
        order = torch.randperm(tokens.shape[1])

        def moved(model: Any = model, tokens: Tensor = tokens, order: Tensor = order) -> float:
            with torch.no_grad():
                out, other = model(tokens)[0], model(tokens[:, order])[0]
            return float((out[:, order] - other).abs().amax())

        assert moved() > 1e-2
        set_encoding(model, "nope")
        assert moved() < 1e-4
        set_encoding(model, "alibi")
        assert moved() > 1e-2


def test_some_layers_keep_their_own() -> None:
    model, other = build("llama"), build("llama")
    given = inputs("llama")
    set_encoding(model, "rope", layers=[0, -1])
    with torch.no_grad():
        torch.testing.assert_close(
            model(**given).logits, other(**given).logits, atol=1e-4, rtol=1e-4
        )
        set_encoding(model, "nope", layers=[1])
        changed = model(**given).logits
    assert float((changed - other(**given).logits.detach()).abs().amax()) > 1e-2
    assert [record["encoding"] for record in model.config.headscape_encoding] == ["rope", "nope"]


def test_a_schedule_of_layers() -> None:
    model = small("llama")
    set_encoding(model, "rope:window=4,nope")
    names = [type(x.self_attn.headscape_encoding).__name__ for x in model.model.layers]
    assert names == ["RoPE", "NoPE"]


def test_beams_carry_running_sums_along() -> None:
    model = small("llama")
    set_encoding(model, "fox")
    given = {"input_ids": torch.randint(3, 128, (2, 9)), "attention_mask": torch.ones(2, 9)}
    expected = generated(model.eval(), given, num_beams=3, use_cache=False)
    assert torch.equal(generated(model, given, num_beams=3), expected)


def test_a_chat_continues_a_cache() -> None:
    model = small("gpt2").eval()
    set_encoding(model, "cable")
    tokens = torch.randint(3, 128, (1, 15))
    with torch.no_grad():
        expected = model(tokens).logits
        first = model(tokens[:, :8], use_cache=True)
        second = model(tokens[:, 8:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, expected[:, 8:], atol=1e-5, rtol=1e-5)
