"""Attention in blocks, in plain PyTorch: any dtype, any device, memory far below length squared.

    regular   no bias, Toeplitz or Slope at consecutive positions: tiles with a backward pass of
              their own (torch_regular.py)
    general   every other bias and every encoding that mixes scores: the reference on a block of
              rows, under activation checkpointing

Both recompute the scores in backward. For half precision the regular form computes in float32, the
general form in the input's dtype, as the reference does.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscape.attention import reference
from headscape.attention.check import check
from headscape.attention.operands import Rule
from headscape.attention.reference import AttentionInputs
from headscape.attention.torch_regular import Regular
from headscape.bias import Slope, Toeplitz


def attend(inputs: AttentionInputs) -> Float[Tensor, "b h t e"]:
    """Return the attention of rotated q and k over v; every call is supported."""
    check(inputs)
    gap = _gap(inputs)
    return _general(inputs) if gap is None else _regular(inputs, gap)


def _gap(inputs: AttentionInputs) -> int | None:
    """Return first query position minus first key position; None unless both are consecutive."""
    at, visible, bias = inputs.positions, inputs.visible, inputs.bias
    if inputs.encoding.mixes or not isinstance(bias, Toeplitz | Slope | None):
        return None
    if visible.q_group is not None or at.q.shape[0] > 1 or at.k.shape[0] > 1:
        return None
    if bool((at.q.diff() != 1).any()) or bool((at.k.diff() != 1).any()):
        return None
    gap = int(at.q[0, 0] - at.k[0, 0])
    return None if inputs.visible.causal and gap < 0 else gap


def _general(inputs: AttentionInputs) -> Tensor:
    def rows_of(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> Tensor:
        part = AttentionInputs(
            q, k, v, inputs.encoding, inputs.bias, inputs.positions, inputs.visible, inputs.scale
        )
        return reference.scores(part, rows).weights.to(v.dtype) @ v

    size = max(1, min(64, 2**25 // (inputs.k.shape[2] * inputs.q.shape[1] * inputs.q.shape[0])))
    blocks = [
        checkpoint(
            rows_of, inputs.q, inputs.k, inputs.v, slice(at, at + size),
            use_reentrant=False, preserve_rng_state=False,
        )
        for at in range(0, inputs.q.shape[2], size)
    ]  # fmt: skip
    return torch.cat(blocks, dim=2)


def _regular(inputs: AttentionInputs, gap: int) -> Tensor:
    q, bias, causal = inputs.q, inputs.bias, inputs.visible.causal
    b, h, t, _ = q.shape
    work = torch.promote_types(q.dtype, torch.float32)

    def by_head(x: Tensor) -> Tensor:
        return x.expand(b, *x.shape[1:]).reshape(b * h, *x.shape[2:])

    table = weight = row = col = None
    if isinstance(bias, Toeplitz):
        # From the largest distance down; hidden entries get the value of distance 0.
        distance = torch.arange(gap + t - 1, gap - inputs.k.shape[2], -1, device=q.device)
        column = (distance.clamp_min(0) if causal else distance) + bias.zero
        chosen = bias.table.index_select(1, column.clamp(0, bias.table.shape[1] - 1))
        table = by_head(chosen[None].to(work))
    elif isinstance(bias, Slope):
        weight = None if bias.weight is None else by_head(bias.weight.to(work))
        row, col = by_head(bias.row.double()), by_head(bias.col.double())
    rule = Rule(gap=gap, causal=causal, scale=inputs.scale)
    heads = (by_head(x.to(work)) for x in (q, inputs.k, inputs.v))
    out: Tensor = Regular.apply(rule, *heads, table, weight, row, col)  # type: ignore[no-untyped-call]
    return out.view(q.shape).to(q.dtype)
