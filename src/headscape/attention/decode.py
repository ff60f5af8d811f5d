"""Attention of one query over all cached keys, as in generating a token.

    out = softmax(scale q K^T + bias row) V

Two matrix-vector products and one row of bias. There is no mask, since the last token sees every
key. Reading keys and values dominates the time; at a long context each further pass over the row
adds about a percent, so a model's cache computes its rows incrementally (gpt2/bias_rows.py).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.attention.reference import AttentionInputs
from headscape.bias import Bias, Toeplitz, dense


def refuses(inputs: AttentionInputs) -> str | None:
    """Return why this path does not support the call, or None if it does."""
    if inputs.q.shape[2] != 1:
        return f"it takes one query, got {inputs.q.shape[2]}"
    if inputs.visible.q_group is not None:
        return "it does not support groups"
    if inputs.visible.causal and inputs.positions.bounds[0] < 0:
        return "a key comes after the query"
    return None


def attend(inputs: AttentionInputs) -> Float[Tensor, "b h 1 e"]:
    """Return the attention of one query."""
    q, k, v = inputs.q, inputs.k, inputs.v
    row = None if inputs.bias is None else _row(inputs.bias, inputs).to(q.dtype)
    if not inputs.encoding.mixes:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=row, scale=inputs.scale)
    scores = (inputs.scale * q) @ k.mT
    seen = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
    return inputs.encoding.mix(scores, row, seen, q).softmax(dim=-1) @ v


def _row(bias: Bias, inputs: AttentionInputs) -> Float[Tensor, "#b h 1 s"]:
    at = inputs.positions.k
    if isinstance(bias, Toeplitz) and at.shape[0] == 1 and bool((at.diff() == 1).all()):
        low, high = inputs.positions.bounds
        return bias.table[:, bias.zero + low : bias.zero + high + 1].flip(-1)[None, :, None]
    return dense(bias, inputs.positions)
