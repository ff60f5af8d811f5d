"""Which layers of published families have a window, which rotate, and what their masks hide.

tests/golden/second/layer_types_n14.npz has the defaults of transformers' configs for 14 layers.
"""

import pytest
import torch
from second_wave import load

from headscape.call.positions import Positions, Visible
from headscape.encodings.registry import per_layer

NEAR = "rope:window=5"
SCHEDULES = {
    "cohere2": ("cohere2", 12),
    "smollm3": ("smollm3", 12),
    "llama4": ("llama4", 12),
    "gemma2": ("gemma2", 14),
    "gemma3": ("gemma3", 12),
    "gemma3n": ("gemma3n", 10),
    "gemma4": (f"{NEAR}*5,rope,{NEAR}*5,rope,{NEAR},rope", 14),
    "olmo3": ("olmo3", 12),
    "exaone4": ("exaone4", 12),
    "gpt_oss": ("gpt-oss", 14),
    "modernbert": ("modernbert", 12),
    "granite_swa": ("granite-swa", 12),
    "mimo_v2_flash": (f"rope,{NEAR}*4,rope,{NEAR}*5,rope,{NEAR}*2", 14),
    "cwm": ("cwm", 12),
    "inkling": ("inkling:window=5*5,inkling:temperature=inkling", 12),
    "afmoe": ("afmoe", 12),
}
"""A schedule, and how many of the 14 layers are compared: its period divides this number."""


@pytest.mark.parametrize("family", SCHEDULES)
def test_layers_of_a_family(family: str) -> None:
    z, _ = load("layer_types_n14")
    pattern, layers = SCHEDULES[family]
    entries = per_layer(pattern, layers, {})
    full = [not {"window", "chunk"} & set(entry.fields) for entry in entries]
    assert full == z[f"full_{family}"][:layers].bool().tolist()
    if f"rope_{family}" in z:
        # no_rope_layers is 1 where a layer has RoPE.
        rotates = [entry.name == "rope" for entry in entries]
        assert rotates == z[f"rope_{family}"][:layers].bool().tolist()


MASKS = {
    "window_causal": Visible(window=5),
    "window_bidirectional": Visible(causal=False, window=6),
    "chunked_causal": Visible(chunk=5),
    "gemma3_bidirectional": Visible(causal=False, window=6),
    "xt_max_attend_past": Visible(window=6),
}
"""Our rule for a window that the peers call 5 (Gemma 3: 10, which it turns into 6)."""


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_published_families(name: str) -> None:
    z, config = load("layer_types_n14")
    assert config["W"] == 5
    seen = MASKS[name].dense(Positions.span(config["L"]))[0, 0]
    assert torch.equal(seen, z[name].bool())


def test_chunks_start_behind_padding() -> None:
    z, config = load("layer_types_n14")
    at = torch.arange(config["L"])[None] - 2
    group = torch.where(at < 0, -1, 0)
    seen = Visible(True, group, group, chunk=config["W"]).dense(Positions(at, at))[0, 0]
    assert torch.equal(seen[2:], z["chunked_causal_leftpad2"][2:].bool())
    assert not seen[:2].any()
