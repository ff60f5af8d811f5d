"""Attention without a bias by torch's scaled_dot_product_attention: its flash kernels on a GPU.

It serves what position has already been rotated or embedded into (RoPE, NoPE, learned, sinusoidal),
with grouped heads that are not copied, causal or not. On a GPU nothing of this was ever run; the
tests run it on a CPU.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import AttentionCall

UNSERVED = ("bias", "mixing", "weighting", "transition", "temperature", "softcap", "sink")


def refuses(inputs: AttentionCall) -> str | None:
    """Return why this path does not support the call, or None if it does."""
    for name in UNSERVED:
        if getattr(inputs, name) is not None:
            return f"it does not take a {name}"
    visible, at = inputs.visible, inputs.positions
    for name in ("q_group", "window", "chunk", "recorded"):
        if getattr(visible, name) is not None:
            return f"it does not take a {name.removeprefix('q_').replace('recorded', 'mask')}"
    if not visible.causal:
        return None
    queries, keys = inputs.q.shape[2], inputs.k.shape[2]
    if at.bounds == (1 - queries, keys - 1) and at.consecutive:
        return None
    return "the queries are not at the last of consecutive positions"


def run(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v."""
    q, k, v = inputs.q, inputs.k, inputs.v
    grouped = k.shape[1] != q.shape[1]
    if not inputs.visible.causal or q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=inputs.visible.causal, scale=inputs.scale, enable_gqa=grouped
        )
    from torch.nn.attention.bias import causal_lower_right

    # The queries are the last tokens: a mask that torch's kernels know by its shape alone.
    mask = causal_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=inputs.scale, enable_gqa=grouped
    )
