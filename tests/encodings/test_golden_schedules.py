"""Whole schedules against vectors of shipped models, and QK-norm before and after the rotation.

The files (tests/golden/second) have the same q, k, v injected into every layer of a transformers
model, so its own code decides window, chunk, rotation, norm and temperature of each layer.
"""

from collections.abc import Callable

import pytest
import torch
from injected import calls, final, heated, model
from second_wave import TIGHT, load
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.encodings.registry import parse
from headscape.gpt2 import GPT2, Cache, ModelConfig

HALVES = "rope:pairing=halves"


def cohere2(config: dict) -> tuple[str, dict]:
    return f"cohere2:window={config['window']}", {}


def exaone4(config: dict) -> tuple[str, dict]:
    fields = {"qk_norm": "before", "norm_epsilon": config["norm_eps"]}
    return f"exaone4:window={config['window']}", fields


def smollm3(config: dict) -> tuple[str, dict]:
    return f"smollm3:base={config['rope_theta']}", {}


def llama4(config: dict) -> tuple[str, dict]:
    norm = {"qk_norm": "after", "qk_norm_weight": False, "qk_norm_layers": "rotating"}
    chosen = f"chunk={config['chunk']}:temperature_start={config['floor_scale']}"
    return f"llama4:{chosen}", {**norm, "norm_epsilon": config["norm_eps"]}


def gemma3(config: dict) -> tuple[str, dict]:
    # Eight layers, which the period of six does not divide.
    near = f"{HALVES}:window={config['window']}:base=1e4"
    pattern = f"{near}*5,{HALVES}:base=1e6:scaling=linear:factor=8.0,{near}*2"
    return pattern, {"qk_norm": "before", "norm_epsilon": config["norm_eps"]}


def olmo3(config: dict) -> tuple[str, dict]:
    rope = config["rope"]["full_attention"]
    length, factor = rope["original_max_position_embeddings"], rope["factor"]
    norm = {"qk_norm": "before", "qk_norm_over": "all", "norm_epsilon": config["norm_eps"]}
    return f"olmo3:window={config['window']}:factor={factor}:trained_length={length}", norm


Family = Callable[[dict], tuple[str, dict]]
FAMILIES = [cohere2, exaone4, smollm3, llama4, gemma3, olmo3]


def check(made: GPT2, z: dict[str, Tensor], config: dict) -> None:
    """Every layer's mask, and everything of the layers that the file has."""
    length = config["L"]
    found = calls(made, length)
    for layer, call in enumerate(found):
        seen = call.visible.dense(call.positions)[0, 0]
        assert torch.equal(seen, z["visible"][layer].bool()), f"layer {layer}"
        changed = not torch.equal(heated(call), z["q"])
        assert changed == bool(z["q_changed"][layer]), f"layer {layer}"
    cache = Cache()
    calls(made, length - 1, cache)
    last = calls(made, 1, cache)
    for layer in map(int, config["representatives"]):
        call = found[layer]
        torch.testing.assert_close(heated(call), z[f"q_L{layer}"], **TIGHT)
        torch.testing.assert_close(call.k, z[f"k_L{layer}"], **TIGHT)
        torch.testing.assert_close(final(call), z[f"scores_masked_L{layer}"], **TIGHT)
        torch.testing.assert_close(definition.run(call), z[f"out_L{layer}"], **TIGHT)
        # As many keys as the peer's cache has: no more than the window or chunk.
        torch.testing.assert_close(final(last[layer]), z[f"decode_L{layer}"], **TIGHT)


@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_of_shipped_models(family: Family) -> None:
    z, config = load(f"sched_{family.__name__}_h4")
    pattern, fields = family(config)
    check(model(z, config, pattern, **fields), z, config)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schedule_shifted_by_a_layer_is_caught(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, config = load(f"sched_{family.__name__}_h4")
    pattern, fields = family(config)
    right = ModelConfig.schedule
    monkeypatch.setattr(ModelConfig, "schedule", lambda self: right(self)[1:] + right(self)[:1])
    with pytest.raises(AssertionError):
        check(model(z, config, pattern, **fields), z, config)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("qwen3", {"qk_norm": "before"}),
        ("hunyuan_v1_dense", {"qk_norm": "after"}),
        ("nanochat", {"qk_norm": "after", "qk_norm_weight": False}),
    ],
)
def test_the_order_of_norm_and_rotation(name: str, fields: dict[str, object]) -> None:
    z, config = load("qknorm_order_h4")
    pattern = f"{HALVES}:direction=backward" if name == "nanochat" else HALVES
    made = model(z, config, pattern, norm_epsilon=config["eps"][name], **fields)
    (call,) = calls(made, config["L"])
    torch.testing.assert_close(definition.scores(call).final, z[f"scores_{name}"], **TIGHT)
    torch.testing.assert_close(definition.run(call), z[f"out_{name}"], **TIGHT)
    shifted = calls_at(made, config["L"], 5)
    same = torch.allclose(final(shifted), final(call), **TIGHT)
    assert same == (name != "hunyuan_v1_dense"), "a weight after the rotation sees positions"


@torch.no_grad()
def calls_at(made: GPT2, tokens: int, start: int) -> AttentionCall:
    found: list[AttentionCall] = []
    at = torch.arange(start, start + tokens)[None]
    made(torch.zeros_like(at), positions=at, watch=lambda _, inputs: found.append(inputs))
    return found[0]


def test_deepseek_scales_the_unrotated_part_too() -> None:
    z, config = load("rope_deepseek_yarn_h4")
    rope = config["rope"]
    k_rope = z["k_rope"].expand_as(z["q_rope"])
    # Ours rotates the first dims, DeepSeek the last.
    z |= {"q": torch.cat([z["q_rope"], z["q_nope"]], -1), "k": torch.cat([k_rope, z["k_nope"]], -1)}
    z["v"] = torch.cat([z["v"], torch.zeros_like(z["v"])], -1)
    pattern = (
        f"rope:rotary_fraction=0.5:scaling=yarn:factor={rope['factor']}:base={rope['rope_theta']}"
        f":trained_length={rope['original_max_position_embeddings']}"
        f":mscale={rope['mscale']}:mscale_all_dim={rope['mscale_all_dim']}:mscale_scores=true"
    )
    sizes = {"H": config["H"], "D": config["rope_dim"] + config["nope_dim"]}
    made = model(z, sizes, pattern)
    frequencies = made.encoding().frequencies(0)
    torch.testing.assert_close(frequencies, z["inv_freq"], rtol=1e-6, atol=1e-12)
    (call,) = calls(made, config["L"])
    torch.testing.assert_close(definition.scores(call).final, z["scores"], **TIGHT)
    out = definition.run(call)[..., : config["v_dim"]]
    torch.testing.assert_close(out, z["out"], **TIGHT)


def test_fields_of_a_shipped_schedule() -> None:
    rotating, full = parse("cohere2:window=64")[2:]
    assert (rotating.name, rotating.fields) == ("rope", {"window": 64})
    assert (full.name, full.fields) == ("nope", {})
