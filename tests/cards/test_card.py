"""Cards of well-known configs, line by line, and settings that have no effect."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import headscape as hs
from cards.configs import (
    CONFIGS,
    DEEPSEEK_V3,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    MPT,
    QWEN3,
)
from headscape.cards.card import Card
from headscape.cards.card_text import lines
from headscape.cards.narrow_model import narrow_model, read_config
from headscape.io.html_page import NO_SCRIPT

SLIDING = "1-5, 7-11, 13-17, 19-23, 25-29, 31-34"
FOURTH = "4, 8, 12, 16, 20, 24, 28, 32, 36"
OTHERS = "1-3, 5-7, 9-11, 13-15, 17-19, 21-23, 25-27, 29-31, 33-35"
ODD, EVEN = (", ".join(map(str, range(first, 25, 2))) for first in (1, 2))
PLAIN = {
    "window": "none",
    "chunk": "none",
    "sink": "none",
    "temperature": "none",
    "softcap": "none",
    "scaling": "none",
    "applied": "nothing to apply",
}
STATED = "The config states it, and no scaling is configured for longer texts."
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

EXPECTED: dict[str, dict[str, str]] = {
    "Llama-3.1-8B": {
        **PLAIN,
        "model": "LlamaForCausalLM",
        "size": "32 layers, 32 heads over 8 key heads of 128 dims, width 4,096",
        "stated context": "131,072 tokens",
        "position": "RoPE",
        "score scale": "1/sqrt(128)",
        "rotation": "pairs as halves, base 500,000, all 128 dims",
        "slow pairs": "25 of 64 (40-64) complete no turn in 131,072 tokens, before scaling 29 of "
        "64 (36-64) complete no turn in 8,192 tokens",
        "scaling": "Llama 3 scaling x8 over 8,192 tokens",
        "applied": "LlamaForCausalLM applies rope_scaling: without it, every layer would score "
        "differently. 35 of 64 pairs turn slower, by at most 8.",
        "trusted to": "131,072 tokens. The config states it, and Llama 3 scaling x8 over 8,192 "
        "tokens is applied.",
    },
    "Qwen3-8B": {
        **PLAIN,
        "model": "Qwen3ForCausalLM",
        "size": "36 layers, 32 heads over 8 key heads of 128 dims, width 4,096",
        "stated context": "40,960 tokens",
        "position": "RoPE",
        "score scale": "1/sqrt(128)",
        "rotation": "pairs as halves, base 1,000,000, all 128 dims",
        "slow pairs": "23 of 64 (42-64) complete no turn in 40,960 tokens",
        "trusted to": f"40,960 tokens. {STATED}",
    },
    "gemma-3-4b-it": {
        **PLAIN,
        "model": "Gemma3ForCausalLM",
        "size": "34 layers, 8 heads over 4 key heads of 256 dims, width 2,560",
        "stated context": "131,072 tokens",
        "position": "RoPE",
        "window": f"1,024 tokens in layers {SLIDING}",
        "score scale": "1/sqrt(256)",
        "rotation": f"pairs as halves, base 10,000, all 256 dims in layers {SLIDING}; pairs as "
        "halves, base 1,000,000, all 256 dims in layers 6, 12, 18, 24, 30",
        "slow pairs": f"57 of 128 (72-128) complete no turn in its window of 1,024 tokens in "
        f"layers {SLIDING}; 55 of 128 (74-128) complete no turn in 131,072 tokens in layers "
        "6, 12, 18, 24, 30",
        "scaling": "linear scaling x8",
        "applied": "Gemma3ForCausalLM applies text_config.rope_scaling: without it, 5 layers would "
        "score differently. 128 of 128 pairs turn slower, by at most 8.",
        "trusted to": "131,072 tokens. The config states it, and linear scaling x8 is applied.",
        "note": "Only the text part of the model is described.",
    },
    "Mistral-7B-v0.1": {
        **PLAIN,
        "model": "MistralForCausalLM",
        "size": "32 layers, 32 heads over 8 key heads of 128 dims, width 4,096",
        "stated context": "32,768 tokens",
        "position": "RoPE",
        "window": "4,096 tokens",
        "score scale": "1/sqrt(128)",
        "rotation": "pairs as halves, base 10,000, all 128 dims",
        "slow pairs": "18 of 64 (47-64) complete no turn in its window of 4,096 tokens",
        "trusted to": f"32,768 tokens. {STATED}",
        "reach": "131,040 tokens back through all windows, if every layer passes on what it saw",
    },
    "gpt-oss-20b": {
        **PLAIN,
        "model": "GptOssForCausalLM",
        "size": "24 layers, 64 heads over 8 key heads of 64 dims, width 2,880",
        "stated context": "131,072 tokens",
        "position": "RoPE",
        "window": f"128 tokens in layers {ODD}",
        "sink": "learned",
        "score scale": "1/sqrt(64)",
        "rotation": "pairs as halves, base 150,000, all 64 dims, cos and sin times 1.347",
        "slow pairs": f"23 of 32 (10-32) complete no turn in its window of 128 tokens in layers "
        f"{ODD}; 14 of 32 (19-32) complete no turn in 131,072 tokens, before scaling 14 of 32 "
        f"(19-32) complete no turn in 4,096 tokens in layers {EVEN}",
        "scaling": "YaRN x32 over 4,096 tokens",
        "applied": "GptOssForCausalLM applies rope_scaling: without it, every layer would score "
        "differently. 23 of 32 pairs turn slower, by at most 32.",
        "trusted to": "131,072 tokens. YaRN x32 over 4,096 tokens is applied.",
    },
    "DeepSeek-V3": {
        **PLAIN,
        "model": "DeepseekV3ForCausalLM",
        "size": "61 layers, 128 heads of 192 dims, width 7,168",
        "stated context": "163,840 tokens",
        "position": "RoPE",
        "score scale": "0.135234",  # (0.1 ln 40 + 1)^2 / sqrt(192)
        "rotation": "pairs as halves, base 10,000, 64 of 192 dims",
        "slow pairs": "9 of 32 (24-32) complete no turn in 163,840 tokens, before scaling 9 of 32 "
        "(24-32) complete no turn in 4,096 tokens",
        "scaling": "YaRN x40 over 4,096 tokens",
        "applied": "DeepseekV3ForCausalLM applies rope_scaling: without it, every layer would "
        "score differently. 21 of 32 pairs turn slower, by at most 40.",
        "trusted to": "163,840 tokens. YaRN x40 over 4,096 tokens is applied.",
    },
    "Kimi-Linear-48B-A3B-Instruct": {
        **PLAIN,
        "model": "KimiLinearForCausalLM",
        "size": "27 layers, 32 heads of 192 dims, width 2,304",
        "stated context": "1,048,576 tokens",
        "position": "linear attention in layers 1-3, 5-7, 9-11, 13-15, 17-19, 21-23, 25-26; NoPE "
        "in layers 4, 8, 12, 16, 20, 24, 27",
        "score scale": "1/sqrt(192) in layers 4, 8, 12, 16, 20, 24, 27",
        "rotation": "none",
        "slow pairs": "none",
        "trusted to": "1,048,576 tokens. The config states it, and no layer encodes a position "
        "that could run out.",
    },
    "SmolLM3-3B": {
        **PLAIN,
        "model": "SmolLM3ForCausalLM",
        "size": "36 layers, 16 heads over 4 key heads of 128 dims, width 2,048",
        "stated context": "65,536 tokens",
        "position": f"RoPE in layers {OTHERS}; NoPE in layers {FOURTH}",
        "score scale": "1/sqrt(128)",
        "rotation": f"pairs as halves, base 5,000,000, all 128 dims in layers {OTHERS}",
        "slow pairs": f"25 of 64 (40-64) complete no turn in 65,536 tokens in layers {OTHERS}",
        "trusted to": f"65,536 tokens. {STATED}",
    },
    "phi-4": {
        **PLAIN,
        "model": "Phi3ForCausalLM",
        "size": "40 layers, 40 heads over 10 key heads of 128 dims, width 5,120",
        "stated context": "16,384 tokens",
        "position": "RoPE",
        "score scale": "1/sqrt(128)",
        "rotation": "pairs as halves, base 250,000, all 128 dims",
        "slow pairs": "23 of 64 (42-64) complete no turn in 16,384 tokens",
        "trusted to": f"16,384 tokens. {STATED}",
    },
    "mpt-7b": {
        **PLAIN,
        "model": "MptForCausalLM",
        "size": "32 layers, 32 heads of 128 dims, width 4,096",
        "stated context": "2,048 tokens",
        "position": "ALiBi",
        "score scale": "1/sqrt(128)",
        "rotation": "none",
        "slow pairs": "none",
        "trusted to": "2,048 tokens. The config states it; ALiBi is defined beyond, and nothing "
        "says it was trained there.",
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_well_known_config_is_right_in_every_line(name: str) -> None:
    found = lines(hs.card(CONFIGS[name]))
    assert found == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "kind", "base", "dims", "length"),
    [
        ("Llama-3.1-8B", 0, 5e5, 128, 8192),
        ("Qwen3-8B", 0, 1e6, 128, 40960),
        ("gemma-3-4b-it", 0, 1e4, 256, 1024),
        ("Mistral-7B-v0.1", 0, 1e4, 128, 4096),
        ("gpt-oss-20b", 1, 150_000, 64, 4096),
        ("DeepSeek-V3", 0, 1e4, 64, 4096),
        ("SmolLM3-3B", 0, 5e6, 128, 65536),
        ("phi-4", 0, 250_000, 128, 16384),
    ],
)
def test_slow_pairs_are_those_of_the_formula(
    name: str, kind: int, base: float, dims: int, length: int
) -> None:
    """Without scaling, pair m turns once in 2 pi base^(2m/e) tokens."""
    pairs = hs.card(CONFIGS[name]).kinds[kind].pairs
    waves = [2 * math.pi * base ** (2 * pair / dims) for pair in range(dims // 2)]
    assert pairs is not None
    assert pairs.plain == pytest.approx(waves, rel=1e-4)
    slow = [pair + 1 for pair, wave in enumerate(waves) if wave > length]
    shown = f"{len(slow)} of {dims // 2} ({slow[0]}-{slow[-1]}) complete no turn in "
    assert shown in EXPECTED[name]["slow pairs"]
    assert f"{shown}{length:,}" in EXPECTED[name]["slow pairs"].replace("its window of ", "")


@pytest.mark.parametrize(("name", "kind"), [("Llama-3.1-8B", 0), ("gpt-oss-20b", 1)])
def test_scaled_pairs_are_those_of_the_oracle(name: str, kind: int) -> None:
    config = CONFIGS[name]
    scaling, base = config["rope_scaling"], config["rope_theta"]
    dims = config.get("head_dim", 128)
    plain = np.array([base ** (-2 * pair / dims) for pair in range(dims // 2)])
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    if scaling["rope_type"] == "llama3":
        kept = ((turns - 1) / (4 - 1)).clip(0, 1)
    else:  # YaRN without truncation: a ramp over pairs, between 32 turns and 1
        edge = [
            dims / 2 * math.log(4096 / (2 * math.pi * times)) / math.log(base) for times in (32, 1)
        ]
        kept = 1 - ((np.arange(dims // 2) - edge[0]) / (edge[1] - edge[0])).clip(0, 1)
    scaled = plain * kept + plain / scaling["factor"] * (1 - kept)
    pairs = hs.card(config).kinds[kind].pairs
    assert pairs is not None
    assert pairs.wavelengths == pytest.approx(2 * math.pi / scaled, rel=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_narrow_model_is_small_and_has_every_layer(name: str) -> None:
    model = narrow_model(read_config(CONFIGS[name]))
    config = read_config(CONFIGS[name]).text()
    assert model.config.num_hidden_layers == config.num_hidden_layers
    assert sum(each.numel() for each in model.parameters()) < 2e7


def yarn(config: dict[str, Any], key: str, **fields: Any) -> dict[str, Any]:
    return {**config, "max_position_embeddings": 131072, key: {**YARN, **fields}}


def test_an_applied_yarn_says_how_far_it_reaches() -> None:
    card = hs.card(yarn(QWEN3, "rope_scaling"))
    assert [each.applied for each in card.settings] == [True]
    assert card.trust.length == 131072
    kept = {**QWEN3, "rope_scaling": YARN}  # as the model's own page advises
    assert hs.card(kept).trust.length == 131072
    assert "the config states 40,960, where servers may stop" in hs.card(kept).trust.reason


IGNORED = {
    "a wrong key": (yarn(QWEN3, "rope_scalling"), "rope_scalling is not a key that it reads"),
    "a wrong type": (
        yarn(QWEN3, "rope_scaling", rope_type="default", type="yarn"),
        "rope_type is 'default' and wins over type 'yarn'",
    ),
    "no type": (
        {**QWEN3, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768}},
        "it names no rope_type, so the plain frequencies are used",
    ),
    "a class that ignores it": (
        {
            "model_type": "gptj", "n_layer": 3, "n_embd": 4096, "n_head": 16, "rotary_dim": 64,
            "n_positions": 131072, "rope_scaling": YARN,
        },
        "its attention does not read the scaled frequencies",
    ),
    "a model without RoPE": (
        {"model_type": "gpt2", "n_layer": 2, "n_positions": 65536, "rope_scaling": YARN},
        "its attention does not read the scaled frequencies",
    ),
    "beside the text part": (
        {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 16.0}},
        "the text part of the model has its own entry in text_config",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IGNORED)
def test_a_yarn_without_effect_is_caught(case: str) -> None:
    config, reason = IGNORED[case]
    card = hs.card(config)
    dead = [each for each in card.settings if not each.applied]
    assert [each.factor for each in dead] == [16.0 if case == "beside the text part" else 4.0]
    assert reason in dead[0].reason
    if case != "beside the text part":  # where linear scaling is applied
        assert card.trust.length == 32768
        assert reason in card.trust.reason


def test_a_setting_of_one_is_no_setting() -> None:
    card = hs.card({**QWEN3, "rope_scaling": {**YARN, "factor": 1.0}})
    assert [each.applied for each in card.settings] == [False]
    assert "its factor is 1" in card.settings[0].reason


def test_an_unknown_key_inside_a_setting_is_named() -> None:
    card = hs.card(yarn(QWEN3, "rope_scaling", attn_factor=2.0))
    assert card.notes == ("transformers does not know rope_scaling.attn_factor.",)


def test_two_models_show_what_differs() -> None:
    both = hs.card(MISTRAL, {**MISTRAL, "sliding_window": None, "rope_theta": 1e6})
    data = json.loads(both.to_json())
    assert data["differing"] == ["window", "rotation", "slow pairs", "reach"]
    text = both.to_markdown()
    assert "| **window** | 4,096 tokens | none |" in text
    assert "| position | RoPE | RoPE |" in text
    page = both.to_html()
    assert page.count('class="differs"') == 4


def test_the_page_has_a_cell_per_layer_and_a_point_per_pair() -> None:
    page = hs.card(LLAMA).to_html()
    assert page.count("<title>layer ") == 32
    assert page.count("<circle") == 2 * 64  # with and without scaling
    assert "<script" not in page
    alibi = hs.card(MPT).to_html()
    assert alibi.count("<circle") == 32
    assert "until a head&#x27;s bias reaches -1" in alibi


def test_a_notebook_shows_the_card() -> None:
    shown = hs.card(GPT_OSS)._repr_html_()
    assert shown.startswith('<main class="hs-card">')
    assert "YaRN x32 over 4,096 tokens" in shown


def test_text_of_a_config_is_never_html() -> None:
    name = "<script>alert(1)</script>"
    card = hs.card({**QWEN3, "_name_or_path": name, name: {"rope_type": "yarn", "factor": 2}})
    assert "<script" not in card.to_html()
    assert NO_SCRIPT in card.to_html()
    assert "&lt;script" in card.to_html()


def test_json_has_every_number() -> None:
    [model] = json.loads(hs.card(DEEPSEEK_V3).to_json())["models"]
    assert len(model["kinds"][0]["pairs"]["wavelengths"]) == 32
    assert model["settings"][0]["path"] == ["rope_scaling"]
    assert model["trust"]["length"] == 163840


def test_saving_replaces_nothing_but_a_card(tmp_path: Path) -> None:
    card = hs.card(MPT)
    for ending in ("html", "md", "json"):
        path = tmp_path / f"card.{ending}"
        assert card.save(path) == path
        card.save(path)  # a card replaces a card
        other = tmp_path / f"other.{ending}"
        other.write_text("mine")
        with pytest.raises(hs.InputError, match="other"):
            card.save(other)
        assert other.read_text() == "mine"
    with pytest.raises(hs.InputError, match=r"card is written as .html, .md or .json"):
        card.save(tmp_path / "card.pdf")


def test_a_card_is_of_many_things(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(num_hidden_layers=2, layer_types=["full_attention"] * 2)
    folder = tmp_path / "tiny"
    config.save_pretrained(folder)
    model = narrow_model(read_config(config))
    of = [folder, str(folder), f"hf:{folder}", folder / "config.json", config, config.to_dict()]
    cards = [hs.card(each) for each in (*of, model, hs.load(model))]
    assert {card.layers for card in cards} == {2}
    assert [card.name for card in cards[:4]] == ["tiny"] * 4
    assert all(isinstance(card, Card) for card in cards)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "it has no model_type"),
        ({"model_type": "kimi_k9"}, "a kind that transformers .* does not have"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "has 1000000000 layers"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "has 0 layers"),
        (
            {**QWEN3, "rope_scaling": {**YARN, "rope_type": "yarm"}},
            "asks in rope_scaling for an unknown rope_type 'yarm': did you mean 'yarn'",
        ),
        ({**QWEN3, "rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({**QWEN3, "num_attention_heads": 0}, "heads"),
        ({**QWEN3, "num_attention_heads": "many"}, "num_attention_heads"),
        ({**QWEN3, "head_dim": 1 << 24}, "even when it is made narrow"),
        ({"model_type": "gpt2", "n_positions": 1 << 40}, "even when it is made narrow"),
        ({"model_type": "mamba"}, "no attention heads"),
        ({"model_type": "vit"}, "reads pixel_values"),
        (3, "got int"),
    ],
)
def test_a_wrong_config_is_one_sentence(config: Any, message: str) -> None:
    with pytest.raises(hs.InputError, match=message) as error:
        hs.card(copy.deepcopy(config))
    assert "\n" not in str(error.value)


def test_a_model_of_few_tokens_has_a_card() -> None:
    """A protein model has 33 tokens."""
    config = {"model_type": "esm", "vocab_size": 33, "num_hidden_layers": 2, "hidden_size": 32,
              "num_attention_heads": 4, "position_embedding_type": "rotary",
              "pad_token_id": 1, "mask_token_id": 32}  # fmt: skip
    assert [kind.encoding for kind in hs.card(config).kinds] == ["rope"]
    letters = {"model_type": "llama", "vocab_size": 10, "num_hidden_layers": 2}
    assert [kind.encoding for kind in hs.card(letters).kinds] == ["rope"]


def test_an_odd_list_of_architectures_is_no_architecture() -> None:
    assert hs.card({**MISTRAL, "architectures": 3.5}).architecture == "MistralForCausalLM"


def test_a_place_without_a_config_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(hs.InputError, match=r"has no config.json"):
        hs.card(tmp_path)
    with pytest.raises(hs.InputError, match="there is no"):
        hs.card(tmp_path / "nothing")


def saved(config: Any) -> dict[str, Any]:
    """What transformers writes into config.json."""
    written: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return written


def test_m_rope_is_no_scaling() -> None:
    raw = saved(transformers.Qwen2VLConfig())
    raw["text_config"]["rope_parameters"] = {
        "rope_type": "default", "type": "mrope", "mrope_section": [16, 24, 24], "rope_theta": 1e6,
    }  # fmt: skip
    card = hs.card(raw)
    assert card.settings == ()
    assert any("M-RoPE: 16, 24, 24 pairs" in note for note in card.notes)


@pytest.mark.parametrize(
    ("config", "attending"),
    [
        (transformers.BambaConfig(attn_layer_indices=[1, 3], num_hidden_layers=4), (1, 3)),
        (
            transformers.Zamba2Config(
                num_hidden_layers=4, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"]
            ),
            (1, 3),
        ),
        (transformers.FalconH1Config(num_hidden_layers=2), (0, 1)),
    ],
    ids=lambda given: getattr(given, "model_type", ""),
)
def test_a_hybrids_attention_is_where_it_is(config: Any, attending: tuple[int, ...]) -> None:
    """Their configs have state space layers, with sizes of their own and infinite limits."""
    card = hs.card(saved(config))
    assert [kind.layers for kind in card.kinds if kind.encoding] == [attending]


def test_a_temperature_stays_when_a_scaling_is_left_out() -> None:
    card = hs.card(saved(transformers.Ministral3Config(num_hidden_layers=2)))
    assert [setting.kind for setting in card.settings] == ["yarn"]
    assert card.settings[0].applied


def test_a_decoders_start_token_may_be_beyond_the_narrow_vocabulary() -> None:
    card = hs.card(saved(transformers.WhisperConfig(decoder_layers=1, encoder_layers=1)))
    assert card.kinds[0].title == "Learnable"


def test_longrope_has_its_original_length_at_the_top() -> None:
    config = transformers.Phi3Config(
        num_hidden_layers=1, max_position_embeddings=131072, original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4,
            "short_factor": [1.0] * 48, "long_factor": [4.0] * 48,
        },
    )  # fmt: skip
    raw = saved(config)
    raw["rope_parameters"].pop("original_max_position_embeddings", None)
    [setting] = hs.card(raw).settings
    assert (setting.factor, setting.original) == (32.0, 4096)


def test_a_sparse_indexer_is_named() -> None:
    raw = saved(transformers.DeepseekV32Config(num_hidden_layers=2, index_topk=2048))
    notes = hs.card(raw).notes
    assert "A sparse indexer chooses the 2,048 keys that a query reads." in notes


def test_bloom_keeps_its_heads_because_its_slopes_depend_on_them() -> None:
    """Its config has no field that says ALiBi; the record of its family does."""
    config = transformers.BloomConfig(n_layer=2, n_head=12, hidden_size=768, vocab_size=100)
    assert narrow_model(read_config(config)).config.num_attention_heads == 12
    [kind] = hs.card(config).kinds
    assert (kind.encoding, kind.conventions["slopes"]) == ("alibi", "fairseq")


def test_compressed_keys_are_named() -> None:
    config = transformers.DeepseekV4Config(num_hidden_layers=4)
    card = hs.card(saved(config))
    assert card.layers == 4
    assert any("also read compressed keys" in note for note in card.notes)


def test_position_on_values_is_named() -> None:
    config = transformers.DeepseekV4Config(num_hidden_layers=4)
    assert "rotated, output turned back" in hs.card(saved(config)).to_markdown()
    assert (
        "turned back"
        not in hs.card(saved(transformers.LlamaConfig(num_hidden_layers=4))).to_markdown()
    )
