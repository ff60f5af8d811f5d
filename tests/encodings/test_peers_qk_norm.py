"""QK-norms of shipped models against transformers and x-transformers, run live.

Cohere's LayerNorm has a weight per head and dim; x-transformers divides by the length and scales
q.k by 10, or by weights per head and dim; nanochat rotates by negative positions and norms after.
"""

from typing import Any

import pytest
import torch
from injected import calls, final, model
from torch import Tensor

from headscape.call import definition
from headscape.errors import InputError
from headscape.gpt2 import Cache, ModelConfig
from headscape.kernels import attend

LENGTH, HEADS, DIM = 13, 4, 8
WIDTH = HEADS * DIM
SIZES = {"H": HEADS, "D": DIM}
FLOAT32 = {"rtol": 1e-4, "atol": 1e-4}


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, DIM).transpose(1, 2).double().detach()


def compare(z: dict[str, Tensor], out: Tensor, pattern: str, **fields: Any) -> None:
    """Compare one layer's output with the peer's, in one pass and token by token."""
    scaling = [fields.get("qk_norm_scale") or DIM**-0.5]
    made = model(z, {**SIZES, "scaling": scaling}, pattern, **fields)
    (call,) = calls(made, LENGTH)
    expected = heads(out).float()
    for path in ("reference", "torch"):
        found = definition.run(call) if path == "reference" else attend.run(call, path)
        torch.testing.assert_close(found.float().detach(), expected, **FLOAT32)
    cache = Cache(capacity=4)
    rows = [final(calls(made, 1, cache)[0])[:, :, 0] for _ in range(LENGTH)]
    torch.testing.assert_close(rows[-1], final(call)[:, :, -1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normed", [False, True])
def test_cohere(normed: bool) -> None:
    from transformers.models.cohere import modeling_cohere as peer
    from transformers.models.cohere.configuration_cohere import CohereConfig

    torch.manual_seed(1)
    config = CohereConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=32,
        intermediate_size=32, use_qk_norm=normed, attn_implementation="eager", pad_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    layer = peer.CohereAttention(config, 0)
    z = {}
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
        layer.o_proj.weight.copy_(torch.eye(WIDTH))
        x, at = torch.randn(1, LENGTH, WIDTH), torch.arange(LENGTH)[None]
        mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
        rotation = peer.CohereRotaryEmbedding(config)(x, at)
        out, _ = layer(x, rotation, mask)
        for role in "qkv":
            z[role] = heads(getattr(layer, f"{role}_proj")(x))
    fields: dict[str, Any] = {}
    if normed:
        z |= {
            f"{role}_norm_weight": getattr(layer, f"{role}_norm").weight.detach() for role in "qk"
        }
        fields = {"qk_norm": "before", "qk_norm_kind": "layer", "qk_norm_per_head": True}
    pattern = f"rope:base={config.rope_parameters['rope_theta']}"
    compare(z, out, pattern, **fields, norm_epsilon=config.layer_norm_eps)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("weights", [False, True])
def test_x_transformers(weights: bool) -> None:
    from x_transformers.x_transformers import Attention

    torch.manual_seed(2)
    layer = Attention(
        WIDTH, heads=HEADS, dim_head=DIM, causal=True, qk_norm=True, qk_norm_dim_scale=weights
    )
    x = torch.randn(1, LENGTH, WIDTH)
    z = {}
    with torch.no_grad():
        if weights:
            layer.qk_norm_q_scale.copy_(torch.randn(HEADS, 1, DIM))
            layer.qk_norm_k_scale.copy_(torch.randn(HEADS, 1, DIM))
            z = {f"{role}_norm_weight": getattr(layer, f"qk_norm_{role}_scale") for role in "qk"}
        layer.to_out.weight.copy_(torch.eye(WIDTH))
        out = layer(x)
        z |= {role: heads(getattr(layer, f"to_{role}")(x)) for role in "qkv"}
    fields: dict[str, Any] = {"qk_norm": "before", "qk_norm_kind": "l2"}
    if weights:
        fields |= {"qk_norm_per_head": True}
    else:
        fields |= {"qk_norm_weight": False, "qk_norm_scale": 10.0}
    compare(z, out, "nope", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qk_norm_kind": "l2"}, "has no effect without qk_norm"),
        ({"qk_norm_scale": 10.0}, "has no effect without qk_norm"),
        ({"qk_norm": "before", "qk_norm_scale": 0.0}, "must be positive and finite, got 0.0"),
        ({"qk_norm": "before", "qk_norm_scale": 2.0, "scale": "one"}, "exclude each other"),
        ({"qk_norm": "before", "qk_norm_kind": "clip"}, "need each other"),
        ({"qk_norm": "before", "qk_norm_limit": 2.0}, "need each other"),
        (
            {"qk_norm": "before", "qk_norm_kind": "clip", "qk_norm_limit": 0.0},
            "qk_norm_limit must be positive and finite",
        ),
        (
            {
                "qk_norm": "before",
                "qk_norm_kind": "clip",
                "qk_norm_limit": 2.0,
                "qk_norm_over": "all",
            },
            "leave qk_norm_over out",
        ),
        ({"qk_norm": "after", "qk_norm_weight": False, "qk_norm_per_head": True}, "without qk_no"),
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig(layers=1, heads=2, width=8, **fields)
