"""Attention in blocks, in plain PyTorch: any dtype, any device, memory far below length squared.

    regular   no bias, Toeplitz or Slope at consecutive positions: tiles with a backward pass of
              their own (torch_regular.py)
    general   every other bias, every encoding that mixes scores or makes its own weights, windows,
              chunks, temperature, softcap, sinks and transitions: the reference on a block of rows
              and the keys that they see, under activation checkpointing

Both recompute the scores in backward. For half precision the regular form computes in float32, the
general form in the input's dtype, as the reference does.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscape.attention import reference
from headscape.attention.check import check
from headscape.attention.operands import Rule
from headscape.attention.reference import AttentionInputs
from headscape.attention.torch_regular import Regular
from headscape.bias import Pairwise, Slope, Toeplitz, dense
from headscape.types import ALL, Positions


def attend(inputs: AttentionInputs) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v; every call is supported."""
    check(inputs)
    gap = _gap(inputs)
    if inputs.bends or inputs.sink is not None or inputs.visible.window is not None:
        return _general(inputs)
    if inputs.encoding.weighs or inputs.transition is not None or inputs.visible.chunk is not None:
        return _general(inputs)
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
    def rows_of(part: AttentionInputs, q: Tensor, k: Tensor, v: Tensor, rows: slice) -> Tensor:
        part = replace(part, q=q, k=k, v=v)
        weights = reference.scores(part, rows).weights
        return weights.to(v.dtype) @ reference.shared(v, q.shape[1])

    size = max(1, min(64, 2**25 // (inputs.k.shape[2] * inputs.q.shape[1] * inputs.q.shape[0])))
    if inputs.visible.window is not None or inputs.visible.chunk is not None:
        size = min(64, inputs.q.shape[2])
    blocks = []
    for at in range(0, inputs.q.shape[2], size):
        rows = slice(at, at + size)
        part = _seen(inputs, rows)
        if not torch.is_grad_enabled():  # checkpoint imports torch's compiler, which takes a second
            blocks.append(rows_of(part, inputs.q, part.k, part.v, rows))
            continue
        blocks.append(
            checkpoint(
                rows_of, part, inputs.q, part.k, part.v, rows,
                use_reentrant=False, preserve_rng_state=False,
            )
        )  # fmt: skip
    return torch.cat(blocks, dim=2)


def _seen(inputs: AttentionInputs, rows: slice) -> AttentionInputs:
    """The same call with the keys from the first to the last that a row may see."""
    window, at, bias = inputs.visible.window, inputs.positions, inputs.bias
    window = inputs.visible.chunk if window is None else window
    if window is None or inputs.encoding.mixes or inputs.transition is not None:
        return inputs
    low, high = int(at.q[:, rows].min()) - window, int(at.q[:, rows].max()) + window
    near = ((at.k > low) & (at.k < high)).any(0).nonzero()
    cols = slice(int(near[0]), int(near[-1]) + 1) if len(near) else slice(0, 1)
    if bias is not None:
        whole = bias
        bias = Pairwise(lambda some, _: dense(whole, at, some, cols))
    return replace(
        inputs,
        k=inputs.k[:, :, cols],
        v=inputs.v[:, :, cols],
        bias=bias,
        positions=Positions(at.q, at.k[:, cols]),
        visible=inputs.visible.block(ALL, cols),
        unrotated=None,
    )


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
    keys, values = (reference.shared(x, h) for x in (inputs.k, inputs.v))
    heads = (by_head(x.to(work)) for x in (q, keys, values))
    out: Tensor = Regular.apply(rule, *heads, table, weight, row, col)  # type: ignore[no-untyped-call]
    return out.view(b, h, t, -1).to(q.dtype)
