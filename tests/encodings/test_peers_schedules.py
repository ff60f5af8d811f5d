"""Schedules of shipped models against transformers, run live: every layer's scores and output.

A tiny random model of each family runs once; its queries and keys behind the projections go into
our layers, and the scores and outputs of its own eager attention are compared with ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest
import torch
from injected import calls, final, model
from torch import Tensor

from headscape.call import definition
from headscape.encodings import build
from headscape.encodings.registry import SHIPPED, parse, per_layer
from headscape.kernels import attend

LENGTH, LAYERS, HEADS, DIM = 19, 8, 4, 16
FLOAT32 = {"rtol": 1e-4, "atol": 1e-4}
"""Peers compute in float32."""
SMALL = {
    "hidden_size": HEADS * DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "intermediate_size": 32, "vocab_size": 32, "pad_token_id": 0,
}  # fmt: skip
NORMED = {"qk_norm": "before"}
LLAMA4 = {"qk_norm": "after", "qk_norm_weight": False, "qk_norm_layers": "rotating"}
HALVES = "rope:pairing=halves"
GPT_OSS = "rope:pairing=halves:base=150000.0:scaling=yarn:factor=4.0:trained_length=16"
CWM = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 6,
    "llama_4_scaling_beta": 0.3,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
MIMO = {
    kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.334}
    for kind, base in (("full_attention", 5e6), ("sliding_attention", 1e4))
}
FULL_MIMO = f"{HALVES}:base=5e6:rotary_fraction=0.334"
NEAR_MIMO = f"{HALVES}:base=1e4:rotary_fraction=0.334:window=5:sink=true"


@dataclass(frozen=True)
class Family:
    """A peer's classes and config, and the same as our schedule and model fields.

    `norms` are the peer's names of the QK-norms of queries and keys.
    """

    module: str
    classes: tuple[str, str]
    config: dict[str, Any]
    pattern: str
    fields: dict[str, Any] = field(default_factory=dict)
    norms: tuple[str, str] = ("q_norm", "k_norm")


FAMILIES = {
    "cohere2": Family(
        "cohere2", ("Cohere2Config", "Cohere2Model"), {"sliding_window": 5}, "cohere2:window=5"
    ),
    "exaone4": Family(
        "exaone4", ("Exaone4Config", "Exaone4Model"),
        {"sliding_window": 5, "sliding_window_pattern": 4, "head_dim": DIM},
        "exaone4:window=5", {**NORMED, "norm_epsilon": 1e-5},
    ),
    "smollm3": Family(
        "smollm3", ("SmolLM3Config", "SmolLM3Model"), {"bos_token_id": 1, "eos_token_id": 2},
        "smollm3",
    ),
    "llama4": Family(
        "llama4", ("Llama4TextConfig", "Llama4TextModel"),
        {"attention_chunk_size": 6, "floor_scale": 4, "moe_layers": [], "intermediate_size_mlp": 32,
         "head_dim": DIM, "num_local_experts": 1},
        "llama4:chunk=6:temperature_start=4", LLAMA4,
    ),
    "gemma2": Family(
        "gemma2", ("Gemma2Config", "Gemma2Model"),
        {"sliding_window": 5, "head_dim": DIM, "attn_logit_softcapping": 2.0,
         "query_pre_attn_scalar": 24},
        "gemma2:window=5:softcap=2.0",
    ),
    "gemma3": Family(
        "gemma3", ("Gemma3TextConfig", "Gemma3TextModel"),
        {"sliding_window": 5, "head_dim": DIM, "query_pre_attn_scalar": 24},
        f"{HALVES}:window=5:base=1e4*5,{HALVES}:base=1e6,{HALVES}:window=5:base=1e4*2",
        {**NORMED, "norm_epsilon": 1e-6},
    ),
    "olmo3": Family(
        "olmo3", ("Olmo3Config", "Olmo3Model"), {"sliding_window": 5},
        f"{HALVES}:window=5:base=5e5*3,{HALVES}:base=5e5",
        {**NORMED, "qk_norm_over": "all", "norm_epsilon": 1e-5},
    ),
    "gpt_oss": Family(
        "gpt_oss", ("GptOssConfig", "GptOssModel"),
        {"sliding_window": 5, "head_dim": DIM, "num_local_experts": 2, "num_experts_per_tok": 1,
         "rope_parameters": {
             "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0,
             "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16}},
        f"{GPT_OSS}:truncate=false:sink=true:window=5,{GPT_OSS}:truncate=false:sink=true",
    ),
    "smollm3-window": Family(
        "smollm3", ("SmolLM3Config", "SmolLM3Model"),
        {"bos_token_id": 1, "eos_token_id": 2, "use_sliding_window": True, "sliding_window": 5,
         "no_rope_layer_interval": 2},
        f"{HALVES}:base=2e6,nope:window=5",
    ),
    "llama4-plain": Family(
        "llama4", ("Llama4TextConfig", "Llama4TextModel"),
        {"attention_chunk_size": 1, "attn_temperature_tuning": False, "use_qk_norm": False,
         "moe_layers": [], "intermediate_size_mlp": 32, "head_dim": DIM, "num_local_experts": 1,
         "no_rope_layer_interval": 2},
        "rope:chunk=1:base=5e5,nope",
    ),
    "granite_swa": Family(
        "granite_swa", ("GraniteSWAConfig", "GraniteSWAModel"),
        {"sliding_window": 5, "attention_multiplier": 0.3, "bos_token_id": 1, "eos_token_id": 2,
         "layer_rope_theta": [1e4, 0, 1e4, 5e5] * 2},
        f"{HALVES}:sink=true,nope:sink=true:window=5,{HALVES}:sink=true:window=5,"
        f"{HALVES}:base=5e5:sink=true:window=5",
    ),
    "cwm": Family(
        "cwm", ("CwmConfig", "CwmModel"),
        {"sliding_window": 5, "head_dim": DIM, "rope_parameters": CWM, "bos_token_id": 1},
        "cwm:window=5:trained_length=64",
    ),
    "afmoe": Family(
        "afmoe", ("AfmoeConfig", "AfmoeModel"),
        {"sliding_window": 5, "head_dim": DIM, "num_dense_layers": LAYERS},
        "afmoe:window=5", {**NORMED, "norm_epsilon": 1e-5},
    ),
    "ministral3": Family(
        "ministral3", ("Ministral3Config", "Ministral3Model"),
        {"head_dim": DIM, "rope_parameters": MINISTRAL, "max_position_embeddings": 96},
        "ministral3:trained_length=6:temperature_start=6:temperature_rate=0.3",
    ),
    "mimo_v2_flash": Family(
        "mimo_v2_flash", ("MiMoV2FlashConfig", "MiMoV2FlashModel"),
        {"sliding_window": 5, "head_dim": DIM, "v_head_dim": DIM, "rope_parameters": MIMO,
         "num_key_value_heads": 2, "mlp_layer_types": ["dense"] * LAYERS, "bos_token_id": 1,
         "eos_token_id": 2},
        f"{FULL_MIMO},{NEAR_MIMO}*4,{FULL_MIMO},{NEAR_MIMO}*2",
    ),
    "gemma4": Family(
        "gemma4", ("Gemma4TextConfig", "Gemma4TextModel"),
        {"sliding_window": 5, "head_dim": DIM, "global_head_dim": DIM,
         "hidden_size_per_layer_input": 0},
        f"{HALVES}:window=5:base=1e4*5,{HALVES}:base=1e6:scaling=proportional:rotary_fraction=0.25,"
        f"{HALVES}:window=5:base=1e4,{HALVES}:base=1e6:scaling=proportional:rotary_fraction=0.25",
        {**NORMED, "norm_epsilon": 1e-6},
    ),
    "hunyuan": Family(
        "hunyuan_v1_dense", ("HunYuanDenseV1Config", "HunYuanDenseV1Model"),
        {"head_dim": DIM, "eod_token_id": 1, "eos_token_id": 2, "bos_token_id": 1}, HALVES,
        {"qk_norm": "after", "norm_epsilon": 1e-5}, ("query_layernorm", "key_layernorm"),
    ),
    "nanochat": Family(
        "nanochat", ("NanoChatConfig", "NanoChatModel"), {"bos_token_id": 1, "eos_token_id": 2},
        f"{HALVES}:direction=backward",
        {"qk_norm": "after", "qk_norm_weight": False, "norm_epsilon": 1e-6},
    ),
}  # fmt: skip


@dataclass
class Seen:
    """What a peer's layer attends with."""

    layer: Any
    v: Tensor
    scores: Tensor
    out: Tensor
    scaling: float


def run(family: Family, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Seen], list[dict]]:
    """One pass of a random peer: what every layer computed, and its projections."""
    place = f"transformers.models.{family.module}"
    modeling = import_module(f"{place}.modeling_{family.module}")
    configuration = import_module(f"{place}.configuration_{family.module}")
    seen: list[Seen] = []
    right: Callable[..., tuple[Tensor, Tensor]] = modeling.eager_attention_forward

    def watched(
        layer: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor, **given: Any
    ) -> tuple[Tensor, Tensor]:
        out = right(layer, q, k, v, attention_mask, **given)
        scaling = given.get("scaling") or layer.scaling
        k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (k, v))
        scores = scaling * (q @ k.mT)
        if given.get("softcap"):
            scores = given["softcap"] * (scores / given["softcap"]).tanh()
        hidden = attention_mask[:, :, :, : k.shape[2]] < -1e30
        seen.append(Seen(layer, v, scores.masked_fill(hidden, -torch.inf), out[0], scaling))
        return out

    monkeypatch.setattr(modeling, "eager_attention_forward", watched)
    torch.manual_seed(0)
    config = getattr(configuration, family.classes[0])(
        **SMALL | family.config, attn_implementation="eager"
    )
    peer = getattr(modeling, family.classes[1])(config).float().eval()
    with torch.no_grad():
        for name, value in peer.named_parameters():
            if "norm" in name or "sinks" in name:
                value.add_(0.5 * torch.randn_like(value))
            elif "_proj" in name:
                value.mul_(8)
    projected: list[dict] = [{} for _ in range(LAYERS)]
    for layer, block in enumerate(peer.layers):
        for role in "qk":
            getattr(block.self_attn, f"{role}_proj").register_forward_hook(
                lambda _, __, out, layer=layer, role=role: projected[layer].update({role: out})
            )
    with torch.no_grad():
        peer(torch.randint(1, 32, (1, LENGTH)))
    return seen, projected


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_is_the_peers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    seen, projected = run(family, monkeypatch)
    assert len(seen) == LAYERS
    one_plus = name == "gemma3"
    for layer, theirs in enumerate(seen):
        z = {
            role: x.view(1, LENGTH, -1, DIM).transpose(1, 2).double()
            for role, x in projected[layer].items()
        }
        z["k"] = z["k"].repeat_interleave(HEADS // z["k"].shape[1], dim=1)
        z["v"] = theirs.v.double()
        for role, norm_name in zip("qk", family.norms, strict=True):
            norm = getattr(theirs.layer, norm_name, None)
            if getattr(norm, "weight", None) is not None:
                z[f"{role}_norm_weight"] = norm.weight.detach().double()
        config = {
            "H": HEADS, "D": DIM, "layers": LAYERS, "scaling": [each.scaling for each in seen],
            "norm_weight": "1+w" if one_plus else "w",
        }  # fmt: skip
        made = model(z, config, family.pattern, **family.fields)
        encoding = made.encoding(layer)
        if encoding.sink_score is not None:
            encoding.sink_score.data.copy_(theirs.layer.sinks)
        call = calls(made, LENGTH)[layer]
        ours = final(call)
        assert torch.equal(ours.isfinite(), theirs.scores.isfinite()), f"layer {layer}"
        torch.testing.assert_close(ours.float(), theirs.scores, **FLOAT32)
        for path in ("reference", "torch"):
            out = definition.run(call) if path == "reference" else attend.run(call, path)
            torch.testing.assert_close(out.transpose(1, 2).float().detach(), theirs.out, **FLOAT32)


def test_shipped_schedules_have_the_defaults_of_transformers() -> None:
    import transformers as hf

    def fields(name: str) -> list[dict[str, Any]]:
        return [dict(entry.fields) for entry in parse(name)]

    cohere2, exaone4, smollm3 = hf.Cohere2Config(), hf.Exaone4Config(), hf.SmolLM3Config()
    assert fields("cohere2")[0] == {"window": cohere2.sliding_window}
    assert fields("exaone4")[0]["window"] == exaone4.sliding_window
    assert fields("smollm3")[0]["base"] == smollm3.rope_parameters["rope_theta"]
    llama4 = hf.Llama4TextConfig()
    near, *_, far = fields("llama4")
    assert near == {
        "chunk": llama4.attention_chunk_size, "base": llama4.rope_parameters["rope_theta"],
    }  # fmt: skip
    assert far["temperature_start"] == llama4.floor_scale
    gemma2, gemma3 = hf.Gemma2Config(), hf.Gemma3TextConfig()
    assert fields("gemma2")[0]["window"] == gemma2.sliding_window
    assert {each["softcap"] for each in fields("gemma2")} == {gemma2.attn_logit_softcapping}
    assert fields("gemma3")[0]["window"] == gemma3.sliding_window
    bases = [gemma3.rope_parameters[kind]["rope_theta"] for kind in gemma3.layer_types[:6]]
    assert [each["base"] for each in fields("gemma3")] == bases
    olmo3, oss = hf.Olmo3Config(), hf.GptOssConfig()
    assert fields("olmo3")[0]["window"] == olmo3.sliding_window
    rope = oss.rope_parameters
    for entry in fields("gpt-oss"):
        assert entry["base"] == rope["rope_theta"]
        assert entry["trained_length"] == rope["original_max_position_embeddings"]
        assert (entry["factor"], entry["truncate"]) == (rope["factor"], rope["truncate"])
    assert fields("gpt-oss")[0]["window"] == oss.sliding_window
    kinds = {
        "cohere2": cohere2, "exaone4": exaone4, "gemma2": gemma2, "gemma3": gemma3, "olmo3": olmo3,
        "gpt-oss": oss, "llama4": llama4,
    }  # fmt: skip
    for name, config in kinds.items():
        limits = ["window" in each or "chunk" in each for each in fields(name)]
        period = config.layer_types[: len(limits)]
        assert limits == [kind != "full_attention" for kind in period], name
    assert set(kinds) | {"smollm3"} | set(LATER) == set(SHIPPED)
    rotates = [entry.name == "rope" for entry in parse("smollm3")]
    assert rotates == [bool(each) for each in smollm3.no_rope_layers[:4]]


LATER = {
    "gemma3n": ("gemma3n", "Gemma3nTextConfig"),
    "gemma4": ("gemma4", "Gemma4TextConfig"),
    "granite-swa": ("granite_swa", "GraniteSWAConfig"),
    "cwm": ("cwm", "CwmConfig"),
    "afmoe": ("afmoe", "AfmoeConfig"),
    "ministral3": ("ministral3", "Ministral3Config"),
    "modernbert": ("modernbert", "ModernBertConfig"),
}
RENAMED = {
    "rope_theta": "base", "partial_rotary_factor": "rotary_fraction", "factor": "factor",
    "original_max_position_embeddings": "trained_length", "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
    "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "llama_4_scaling_beta": "temperature_rate",
}  # fmt: skip
"""transformers' names of RoPE's numbers -> ours."""


@pytest.mark.parametrize("name", LATER)
def test_later_schedules_have_the_defaults_of_transformers(name: str) -> None:
    module, kind = LATER[name]
    place = import_module(f"transformers.models.{module}.configuration_{module}")
    period = parse(name)
    layers = 4 * len(period)
    config = getattr(place, kind)(num_hidden_layers=layers)
    types = getattr(config, "layer_types", None) or ["full_attention"] * layers
    for number, entry in enumerate(per_layer(name, layers, {})):
        near = types[number] == "sliding_attention"
        # A window of a bidirectional model has as many keys on either side, and the query's own.
        window = config.sliding_window + (name == "modernbert") if near else None
        assert entry.fields.get("window") == window, f"layer {number}"
        if name == "afmoe":
            assert entry.name == ("rope" if near else "nope")
        if entry.name == "nope":
            continue
        parameters = config.rope_parameters
        parameters = parameters.get(types[number], parameters)
        made = build("rope", heads=2, head_dim=16, width=32, train_length=9, **entry.fields)
        scaling = parameters["rope_type"].replace("default", "none")
        assert (made.config.pairing, made.config.scaling) == ("halves", scaling)
        for theirs, ours in RENAMED.items():
            if theirs in parameters:
                assert getattr(made.config, ours) == parameters[theirs], theirs
        assert made.config.sink == (name == "granite-swa")
    if name == "ministral3":
        original = config.rope_parameters["original_max_position_embeddings"]
        assert made.config.temperature_start == original
        assert made.config.temperature == "ministral"


@pytest.mark.parametrize("local", [4, 10])
def test_modernbert_sees_its_window_on_either_side(
    local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.modernbert import modeling_modernbert as modeling
    from transformers.models.modernbert.configuration_modernbert import ModernBertConfig

    seen: list[tuple[Tensor, Tensor]] = []
    right = modeling.eager_attention_forward

    def watched(
        layer: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, Tensor]:
        out = right(layer, q, k, v, attention_mask, **given)
        seen.append((v, out[0]))
        return out

    monkeypatch.setattr(modeling, "eager_attention_forward", watched)
    torch.manual_seed(0)
    sizes = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    config = ModernBertConfig(
        **{**sizes, "num_hidden_layers": 3}, local_attention=local, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    peer = modeling.ModernBertModel(config).float().eval()
    projected: list[Tensor] = []
    for block in peer.layers:
        block.attn.Wqkv.weight.data.mul_(8)
        block.attn.Wqkv.register_forward_hook(lambda _, __, out: projected.append(out))
    with torch.no_grad():
        peer(torch.randint(1, 32, (1, LENGTH)))
    pattern = f"modernbert:window={local // 2 + 1}"
    for layer, (v, out) in enumerate(seen):
        q, k, _ = projected[layer].view(1, LENGTH, 3, HEADS, DIM).double().unbind(2)
        z = {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.double()}
        made = model(z, {"H": HEADS, "D": DIM, "layers": 3}, pattern, causal=False)
        call = calls(made, LENGTH)[layer]
        for path in ("reference", "torch"):
            found = attend.run(call, path).transpose(1, 2).float().detach()
            torch.testing.assert_close(found, out, **FLOAT32)
