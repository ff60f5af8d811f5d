"""One query against all cached keys: what generating a token costs.

    out = softmax(scale q K^T + bias row) V

Two matrix-vector products and a row of bias; nothing of order length squared, no mask, since the
last token sees every key. A Toeplitz row is a slice of its table, read backwards.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.attention.reference import Inputs
from headscape.bias import Bias, Slope, Toeplitz, dense


def refuses(inputs: Inputs) -> str | None:
    """Why this path cannot serve, if so."""
    if inputs.q.shape[2] != 1:
        return f"it takes one query, not {inputs.q.shape[2]}"
    if inputs.visible.q_group is not None:
        return "it does not tell groups apart"
    if inputs.visible.causal and inputs.positions.bounds[0] < 0:
        return "a key comes after the query"
    return None


def attend(inputs: Inputs) -> Float[Tensor, "b h 1 e"]:
    """Attention of one query."""
    scores = inputs.scale * (inputs.q @ inputs.k.mT)
    row = None if inputs.bias is None else _row(inputs.bias, inputs).to(scores.dtype)
    if inputs.encoding.mixes:
        seen = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
        scores = inputs.encoding.mix(scores, row, seen, inputs.q)
    elif row is not None:
        scores = scores + row
    return scores.softmax(dim=-1) @ inputs.v


def _row(bias: Bias, inputs: Inputs) -> Float[Tensor, "#b h 1 s"]:
    low, high = inputs.positions.bounds
    at = inputs.positions.k
    if isinstance(bias, Toeplitz) and at.shape[0] == 1 and bool((at.diff() == 1).all()):
        return bias.table[:, bias.zero + low : bias.zero + high + 1].flip(-1)[None, :, None]
    if isinstance(bias, Slope) and bias.weight is None:
        return (bias.row[..., None] - bias.col[:, :, None]).to(inputs.q.dtype)
    return dense(bias, inputs.positions)
