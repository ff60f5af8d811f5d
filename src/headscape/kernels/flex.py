"""The bias as a score function for torch's FlexAttention, for GPUs.

torch compiles the function into its fused kernel, so memory grows linearly with length and
gradients reach every tensor the function reads. On a CPU the compiled kernel has no backward pass;
gradients there need the eager form, which is dense. Tested on a CPU only: the eager form and its
gradients for all three kinds of bias, the compiled forward for Toeplitz and for no bias. With torch
2.13 the compiled CPU kernel of a Slope or Perceptron does not build (the C++ that torch generates
does not compile). Nothing is tested on a GPU.

It supports Toeplitz, Slope and Perceptron, windows and grouped heads, but neither BlockBias nor
RelativeCurves, nor encodings that mix whole rows of scores (DAPE, DAPEv2, CoPE), nor a temperature,
softcap or sink.

flex_attention is imported where it is used: importing it loads torch's compiler.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import BlockBias, Perceptron, RelativeCurves, Slope, Toeplitz
from headscape.call.definition import AttentionCall

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def refuses(inputs: AttentionCall) -> str | None:
    """Return why this path does not support the call, or None if it does."""
    if inputs.mixing is not None:
        return f"it does not mix whole rows of scores ({type(inputs.mixing).__name__})"
    if inputs.weighting is not None:
        return f"it computes a softmax, not {type(inputs.weighting).__name__}"
    if inputs.transition is not None:
        return "keys that change on their way to a query are not supported"
    if isinstance(inputs.bias, BlockBias):
        return "its bias is an arbitrary function of pairs"
    if isinstance(inputs.bias, RelativeCurves):
        return "it does not take a curve by distance per token"
    if inputs.visible.recorded is not None:
        return "it does not take a mask"
    for name in ("temperature", "softcap", "sink"):
        if getattr(inputs, name) is not None:
            return f"it does not take a {name}"
    if inputs.q.device.type == "cpu" and torch.is_grad_enabled() and inputs.q.requires_grad:
        return "FlexAttention has no backward pass on a CPU"
    return None


def run(inputs: AttentionCall, *, compiled: bool = True) -> Float[Tensor, "b h t e"]:
    """Return attention by torch's fused kernel, or by its dense eager form."""
    return _function(compiled=compiled, fixed=inputs.q.device.type == "cpu")(
        inputs.q,
        inputs.k,
        inputs.v,
        score_mod=score_mod(inputs),
        block_mask=_mask(inputs),
        scale=inputs.scale,
        enable_gqa=inputs.k.shape[1] != inputs.q.shape[1],
    )


def score_mod(inputs: AttentionCall) -> ScoreMod | None:
    """Return the bias as a function of a score's batch, head, query and key index."""
    bias, positions = inputs.bias, inputs.positions
    at_q, at_k = _per_row(positions.q, inputs), _per_row(positions.k, inputs)
    if bias is None:
        return None
    if isinstance(bias, Toeplitz):
        table, last, zero = bias.table.to(inputs.q.dtype), bias.table.shape[1] - 1, bias.zero

        def toeplitz(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            column = (at_q[b, q] - at_k[b, k] + zero).clamp(0, last)
            return score + table[h, column]

        return toeplitz
    if isinstance(bias, Slope):
        row, col = _per_row(bias.row, inputs), _per_row(bias.col, inputs)
        weight = torch.ones_like(row) if bias.weight is None else _per_row(bias.weight, inputs)

        def slope(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            gap = (row[b, h, q] - col[b, h, k]).to(score.dtype)
            return score + weight[b, h, q].to(score.dtype) * gap

        return slope
    assert isinstance(bias, Perceptron)
    return _perceptron(bias, inputs)


def _perceptron(bias: Perceptron, inputs: AttentionCall) -> ScoreMod:
    at_q, at_k = _per_row(inputs.positions.q, inputs), _per_row(inputs.positions.k, inputs)
    far, last = _per_row(bias.far, inputs), bias.near.shape[0] - 1

    def perceptron(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        column = (at_q[b, q] - at_k[b, k] + bias.zero).clamp(0, last)
        u = bias.near[column] / far[b, q]
        total = bias.out_bias[h]
        # A score function works on scalars, so the loop over hidden units is explicit.
        for unit in range(bias.in_weight.shape[0]):
            z = bias.in_weight[unit] * u + bias.in_bias[unit]
            total = total + bias.out_weight[h, unit] * torch.where(z > 0, z, bias.leak * z)
        return score + total.to(score.dtype)

    return perceptron


def _mask(inputs: AttentionCall) -> object:
    visible = inputs.visible.chunks_as_groups(inputs.positions)
    at_q, at_k = _per_row(inputs.positions.q, inputs), _per_row(inputs.positions.k, inputs)
    groups = None
    if visible.q_group is not None and visible.k_group is not None:
        groups = _per_row(visible.q_group, inputs), _per_row(visible.k_group, inputs)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        shown = at_q[b, q] >= at_k[b, k] if visible.causal else at_q[b, q] == at_q[b, q]
        if visible.window is not None:
            distance = at_q[b, q] - at_k[b, k]
            shown = shown & (distance < visible.window) & (distance > -visible.window)
        if groups is not None:
            own = groups[0][b, q]
            shown = shown & (own == groups[1][b, k]) & (own >= 0)
        return shown

    from torch.nn.attention.flex_attention import create_block_mask

    batch, _, queries, _ = inputs.q.shape
    return create_block_mask(
        seen, batch, None, queries, inputs.k.shape[2], device=str(inputs.q.device)
    )


def _per_row(values: Tensor, inputs: AttentionCall) -> Tensor:
    """Return the values with the batch axis expanded, so that it can be indexed."""
    return values.expand(inputs.q.shape[0], *values.shape[1:])


@lru_cache(maxsize=4)
def _function(*, compiled: bool, fixed: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    function: Callable[..., Tensor] = flex_attention
    # torch's CPU kernel does not compile for a length that may vary, so each length has its own.
    return torch.compile(function, dynamic=False if fixed else None) if compiled else function
