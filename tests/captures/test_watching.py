"""Passes of other people's code, captured as they happen, are those of a second pass."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscape as hs
from captures.test_inputs import TOKENS, WORDS, assert_same, randomise, tokenizer

SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 4, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "yarn": (
        "Llama",
        {**SIZES, "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
            "rope_theta": 1e4,
        }},
    ),
    "window": ("Mistral", {**SIZES, "sliding_window": 6}),
    "gemma3": ("Gemma3", {
        **SIZES, "head_dim": 8, "sliding_window": 6, "rope_parameters": None,
        "layer_types": ["sliding_attention", "full_attention"],
    }),
    "sink": ("GptOss", {**SIZES, "head_dim": 8, "sliding_window": 6, "num_local_experts": 2,
        "num_experts_per_tok": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "nope": ("SmolLM3", {**SIZES, "no_rope_layers": [1, 0]}),
    "learned": ("GPT2LMHead", {
        "vocab_size": len(WORDS), "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "eos_token_id": None, "bos_token_id": None,
    }),
}  # fmt: skip
NEW = 14


def build(name: str) -> Any:
    kind, fields = FAMILIES[name]
    model_class = getattr(
        transformers, kind + ("Model" if kind.endswith("Head") else "ForCausalLM")
    )
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**fields)).eval()
    randomise(model)
    return model


def generate(model: Any, tokens: torch.Tensor, **more: Any) -> torch.Tensor:
    return model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False,
        pad_token_id=4, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_captured_during_generate_is_captured_in_a_second_pass(name: str) -> None:
    model = build(name)
    plain = generate(model, torch.tensor([TOKENS]))
    with hs.watch(model, layers="all") as seen:
        written = generate(model, torch.tensor([TOKENS]))
    assert torch.equal(written, plain)
    assert len(seen) == 1
    # The last token was written and not read.
    assert seen[0].tokens.tolist() == written[0, :-1].tolist()
    assert seen[0].sequence["steps"] == NEW
    again = hs.load(model).capture(written[0, :-1], layers="all")
    assert_same(seen[0], again, 1e-4)


def test_a_batch_and_several_passes() -> None:
    model = build("llama")
    rows = torch.tensor([TOKENS, TOKENS[::-1]])
    with hs.watch(model, layers=[0], heads=[1, 3], tokenizer=tokenizer()) as seen:
        written = generate(model, rows)
        model(rows[:1], use_cache=False)
    assert [cap.length for cap in seen] == [18, 18, 5]
    assert [(cap.layers, cap.heads) for cap in seen] == [((0,), (1, 3))] * 3
    opened = hs.load(model, tokenizer=tokenizer())
    for cap, row in zip(seen, [*written[:, :-1], rows[0]], strict=True):
        assert_same(cap, opened.capture(row, layers=[0], heads=[1, 3]), 1e-4)
    assert seen[2].sequence["pieces"] == ["a", "cat", "sat", "on", "mat"]


def test_a_pass_without_a_cache_is_captured_of_any_family() -> None:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    with hs.watch(model, layers="all") as seen, torch.no_grad():
        model(torch.tensor([TOKENS]))
    assert_same(seen[0], hs.load(model).capture(TOKENS, layers="all"))


PADDED = torch.tensor([[4, 4, *TOKENS], [*TOKENS, 7, 6], [4, *TOKENS[::-1], 6]])
LEADING = (2, 0, 1)
MASK = torch.arange(7)[None] >= torch.tensor(LEADING)[:, None]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_padded_batch_are_captured_as_if_alone(name: str) -> None:
    model = build(name)
    with hs.watch(model, layers="all") as seen:
        written = model.generate(
            PADDED, attention_mask=MASK.long(), max_new_tokens=NEW, do_sample=False, pad_token_id=4
        )
    opened = hs.load(model)
    for cap, row, start in zip(seen, written, LEADING, strict=True):
        assert cap.tokens.tolist() == row[start:-1].tolist()
        assert cap.positions.tolist() == list(range(cap.length))
        assert cap.sequence["steps"] == NEW
        assert_same(cap, opened.capture(row[start:-1], layers="all"), 1e-4)


@pytest.mark.parametrize("name", ["llama", "learned"])
def test_a_padded_pass_with_positions_of_the_text(name: str) -> None:
    model = build(name)
    at = (MASK.long().cumsum(-1) - 1).clamp(min=0)
    with hs.watch(model, layers="all") as seen, torch.no_grad():
        model(PADDED, attention_mask=MASK.long(), position_ids=at)
    for cap, row, start in zip(seen, PADDED, LEADING, strict=True):
        assert_same(cap, hs.load(model).capture(row[start:], layers="all"), 1e-4)


def test_positions_that_count_the_padding_are_those_of_the_capture() -> None:
    """transformers counts so where a pass is given a mask and no position ids."""
    model = build("llama")
    with hs.watch(model, layers="all") as seen, torch.no_grad():
        model(PADDED, attention_mask=MASK.long())
    assert [cap.positions[0] for cap in seen] == [*LEADING]
    for cap, row, start in zip(seen, PADDED, LEADING, strict=True):
        at = torch.arange(start, 7)
        alone = hs.load(model).capture(row[start:], layers="all", positions=at)
        assert_same(cap, alone, 1e-4)


def deberta() -> Any:
    """A table of positions at the input, beside relative positions in every layer."""
    config = transformers.DebertaV2Config(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, relative_attention=True, pos_att_type=["c2p", "p2c"],
        max_position_embeddings=64, position_biased_input=True,
    )  # fmt: skip
    torch.manual_seed(1)
    return transformers.DebertaV2Model(config).eval()


# transformers scripts a function of DeBERTa with TorchScript while it is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("make", [lambda: build("learned"), deberta])
def test_a_table_that_may_count_the_padding_is_refused(make: Any) -> None:
    model = make()
    with pytest.raises(hs.InputError, match="give position_ids as generate does"), hs.watch(model):
        model(PADDED, attention_mask=MASK.long())


def test_queries_that_are_scaled_by_position_are_refused_with_padding() -> None:
    config = transformers.Ministral3Config(
        **SIZES, head_dim=8, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 4, "max_position_embeddings": 8,
        },
    )  # fmt: skip
    model = transformers.Ministral3ForCausalLM(config).eval()
    with pytest.raises(hs.InputError, match="scales its queries by position"), hs.watch(model):
        model(PADDED, attention_mask=MASK.long())


def test_padding_after_the_text_is_left_out() -> None:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    rows = PADDED.flip(-1)
    with hs.watch(model, layers="all") as seen, torch.no_grad():
        model(rows, attention_mask=MASK.flip(-1).long())
    for cap, row, padding in zip(seen, rows, LEADING, strict=True):
        assert_same(cap, hs.load(model).capture(row[: 7 - padding], layers="all"), 1e-4)


def test_a_step_whose_mask_shows_the_padding_is_refused() -> None:
    model = build("llama")
    with hs.watch(model), torch.no_grad():
        past = model(PADDED, attention_mask=MASK.long(), use_cache=True).past_key_values
        with pytest.raises(hs.InputError, match="different attention_mask"):
            model(PADDED[:, :1], past_key_values=past)


def test_nothing_stays_behind_and_gradients_flow() -> None:
    model = build("llama").train()
    hooks = sum(len(each._forward_pre_hooks) for each in model.modules())
    with hs.watch(model) as seen:
        model(torch.tensor([TOKENS]), labels=torch.tensor([TOKENS])).loss.backward()
    assert model.training
    assert model.lm_head.weight.grad is not None
    assert sum(len(each._forward_pre_hooks) for each in model.modules()) == hooks
    assert seen[0].length == 5


def test_only_the_chosen_layers_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from headscape.captures import watching

    model, layers = build("llama"), set[int]()
    on_call = watching._Collector.on_call

    def counted(self: Any, layer: int, call: Any) -> None:
        layers.add(layer)
        on_call(self, layer, call)
        steps = self.layers[layer]
        assert all(part.untyped_storage().nbytes() == part.nbytes for part in steps.k)

    monkeypatch.setattr(watching._Collector, "on_call", counted)
    with hs.watch(model, layers=[1]):
        generate(model, torch.tensor([TOKENS]))
    assert layers == {1}


def test_it_is_what_happened_and_not_what_a_second_pass_would_do() -> None:
    """Keys in the cache keep the frequencies of the step that wrote them."""
    parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    fields = {**SIZES, "max_position_embeddings": 8, "rope_parameters": parameters}
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**fields)
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).eval()
    randomise(model)
    with hs.watch(model, layers=[0]) as seen:
        written = generate(
            model, torch.tensor([TOKENS]), output_attentions=True, return_dict_in_generate=True
        )
    last = written.attentions[-1][0][0, :, 0].numpy()
    np.testing.assert_allclose(seen[0].weights(layer=0)[:, -1], last, atol=1e-5)
    second = hs.load(model).capture(written.sequences[0, :-1], layers=[0])
    assert np.abs(second.weights(layer=0)[:, -1] - last).max() > 1e-3


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda m, t: generate(m, t, num_beams=3), "beam search"),
        (lambda m, t: generate(m, t, cache_implementation="static"), "static"),
        (
            lambda m, t: generate(m, t.repeat(1, 3), prompt_lookup_num_tokens=3),
            "went back .* prompt lookup",
        ),
        (
            lambda m, t: m(t, attention_mask=torch.tensor([[1, 0, 1, 1, 1]])),
            "padding is before or after all of their tokens",
        ),
        (
            lambda m, t: m(t, attention_mask=torch.zeros(1, 5)),
            "padding is before or after all of their tokens",
        ),
        (lambda m, t: m(t, attention_mask=torch.tensor([[0, 1, 1]])), r"must be \[1, 5\]"),
        (lambda m, t: m(t, position_ids=torch.arange(3, 8)[None]), "count 0, 1, 2"),
        (lambda m, t: m(inputs_embeds=torch.zeros(1, 3, 32)), "given embeddings"),
    ],
)
def test_what_cannot_be_watched_is_one_sentence(run: Any, message: str) -> None:
    model = build("llama")
    with pytest.raises(hs.InputError, match=message), hs.watch(model), torch.no_grad():
        run(model, torch.tensor([TOKENS]))
    with hs.watch(model) as seen:  # and the model is as it was
        model(torch.tensor([TOKENS]))
    assert len(seen) == 1


def test_a_cache_from_before_the_watch_is_refused() -> None:
    model = build("llama")
    past = model(torch.tensor([TOKENS]), use_cache=True).past_key_values
    with pytest.raises(hs.InputError, match="cache of 5 tokens, and 0 were seen"), hs.watch(model):
        model(torch.tensor([[6]]), past_key_values=past)


def test_our_own_models_and_empty_watches() -> None:
    with pytest.raises(hs.InputError, match="watch takes a transformers model"):
        hs.watch(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)).__enter__()
    with hs.watch(build("llama")) as seen:
        pass
    assert len(seen) == 0
    with pytest.raises(hs.InputError, match="nothing was captured"):
        seen[0]
