"""Attention of one query over all cached keys, as in generating a token.

    out = softmax(scale q K^T + bias row) V

Two matrix-vector products and one row of bias. There is no mask, since the last token sees every
key of its window. Reading keys and values dominates the time; at a long context each further pass
over the row adds about a percent, so a model's cache computes its rows incrementally
(gpt2/bias_rows.py). On a CPU one native call does all of it (native/one_query.py); elsewhere
torch's scaled_dot_product_attention, or the reference where something acts on the scores.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Bias, Pairwise, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.mixing import Rows
from headscape.call.positions import ALL
from headscape.kernels.native import one_query as native


def refuses(inputs: AttentionCall) -> str | None:
    """Return why this path does not support the call, or None if it does."""
    if inputs.q.shape[2] != 1:
        return f"it takes one query, got {inputs.q.shape[2]}"
    if inputs.visible.q_group is not None:
        return "it does not support groups"
    if inputs.visible.causal and inputs.positions.bounds[0] < 0:
        return "a key comes after the query"
    return None


def attend(inputs: AttentionCall) -> Float[Tensor, "b h 1 ev"]:
    """Return the attention of one query."""
    if inputs.weighting is not None or inputs.transition is not None:
        return definition.attend(inputs)
    window, chunk = inputs.visible.window, inputs.visible.chunk
    if chunk is not None:
        if inputs.positions.q.shape[0] > 1 or not inputs.visible.causal:
            return definition.attend(inputs)
        # To the one query, the keys of its chunk are a window that ends at itself.
        window = int(inputs.positions.q[0, 0]) % chunk + 1
    if window is not None and max(map(abs, inputs.positions.bounds)) >= window:
        if not _consecutive(inputs.positions.k) or inputs.mixing is not None:
            return definition.attend(inputs)
        inputs = _within(inputs, window)
    q, k, v, bias = inputs.q, inputs.k, inputs.v, inputs.bias
    if inputs.mixing is None and native.serves(inputs):
        if isinstance(bias, Slope) and bias.col.dtype == torch.float32:
            return native.attend(inputs, bias.col, bias)
        return native.attend(inputs, None if bias is None else _row(bias, inputs))
    if inputs.score_transform or inputs.sink is not None:
        return definition.attend(inputs)
    row = None if bias is None else _row(bias, inputs).to(q.dtype)
    if inputs.mixing is None:
        grouped = k.shape[1] != q.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=row, scale=inputs.scale, enable_gqa=grouped
        )
    scores = (inputs.scale * q) @ definition.shared(k, q.shape[1]).mT
    seen = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
    weights = inputs.mixing.final(Rows(scores, row, seen, q, inputs.positions)).softmax(dim=-1)
    return weights @ definition.shared(v, q.shape[1])


def _row(bias: Bias, inputs: AttentionCall) -> Float[Tensor, "#b h 1 s"]:
    if isinstance(bias, Toeplitz) and _consecutive(inputs.positions.k):
        low, high = inputs.positions.bounds
        if bias.zero + low >= 0 and bias.zero + high < bias.table.shape[1]:
            return bias.table[:, bias.zero + low : bias.zero + high + 1].flip(-1)[None, :, None]
    return dense(bias, inputs.positions)


def _consecutive(at: Tensor) -> bool:
    return at.shape[0] == 1 and bool((at.diff() == 1).all())


def _within(inputs: AttentionCall, window: int) -> AttentionCall:
    """The same call with the keys that the query's window leaves."""
    at, keys = int(inputs.positions.q[0, 0]), inputs.positions.k
    first = max(0, at - window + 1 - int(keys[0, 0]))
    last = keys.shape[1] if inputs.visible.causal else at + window - int(keys[0, 0])
    cols, bias, positions = slice(first, last), inputs.bias, inputs.positions
    if bias is not None:
        whole = bias
        bias = Pairwise(lambda rows, some: dense(whole, positions, rows, cols)[..., some])
    return replace(
        inputs,
        k=inputs.k[:, :, cols],
        v=inputs.v[:, :, cols],
        bias=bias,
        positions=positions.block(ALL, cols),
        unrotated=None,
    )
