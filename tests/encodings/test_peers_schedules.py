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

from headscape.attention import attend, reference
from headscape.encodings.layer_schedule import parse
from headscape.encodings.shipped_schedules import SHIPPED

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


@dataclass(frozen=True)
class Family:
    """A peer's classes and config, and the same as our schedule and model fields."""

    module: str
    classes: tuple[str, str]
    config: dict[str, Any]
    pattern: str
    fields: dict[str, Any] = field(default_factory=dict)


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
}  # fmt: skip


@dataclass
class Seen:
    """What a peer's layer attends with."""

    layer: Any
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
        layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **given: Any
    ) -> tuple[Tensor, Tensor]:
        out = right(layer, q, k, v, mask, **given)
        scaling = given.get("scaling") or layer.scaling
        scores = scaling * (q @ k.mT)
        if given.get("softcap"):
            scores = given["softcap"] * (scores / given["softcap"]).tanh()
        hidden = mask[:, :, :, : k.shape[2]] < -1e30
        seen.append(Seen(layer, scores.masked_fill(hidden, -torch.inf), out[0], scaling))
        return out

    monkeypatch.setattr(modeling, "eager_attention_forward", watched)
    torch.manual_seed(0)
    config = getattr(configuration, family.classes[0])(
        **SMALL, **family.config, attn_implementation="eager"
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
        for role in "qkv":
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
            role: x.view(1, LENGTH, HEADS, DIM).transpose(1, 2).double()
            for role, x in projected[layer].items()
        }
        for role in "qk":
            norm = getattr(theirs.layer, f"{role}_norm", None)
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
            out = reference.attend(call) if path == "reference" else attend.run(call, path)
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
    assert set(kinds) | {"smollm3"} == set(SHIPPED)
    rotates = [entry.name == "rope" for entry in parse("smollm3")]
    assert rotates == [bool(each) for each in smollm3.no_rope_layers[:4]]
