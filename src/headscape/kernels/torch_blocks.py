"""Attention in blocks, in plain PyTorch: any dtype, any device, memory far below length squared.

    regular   no bias, Toeplitz or Slope at consecutive positions: tiles with a backward pass of
              their own (torch_regular.py)
    general   every other bias, a slope that changes much from token to token, calls that mix
              scores or make their own weights, windows, chunks, temperature, softcap, sinks and
              transitions: the reference on a block of rows and the keys that they see, under
              activation checkpointing

Both recompute the scores in backward. For half precision the regular form computes in float32, the
general form in the input's dtype, as the reference does.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscape.call import definition
from headscape.call.bias import Pairwise, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import ALL, Positions
from headscape.call.transition import BLOCK, Moved
from headscape.kernels.torch_regular import BACKWARD, Regular, Rule

LARGEST_ROUNDING = 2.0**-15
"""Rounding of a score that the regular form may add to a slope's: in float32, growth up to 256."""


def refuses(inputs: AttentionCall) -> str | None:  # noqa: ARG001
    """Return None: every call is served."""
    return None


def run(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v; every call is supported."""
    visible = inputs.visible
    special = (inputs.sink, inputs.weighting, inputs.transition, visible.window, visible.chunk,
               visible.recorded)  # fmt: skip
    plain = not inputs.score_transform and all(x is None for x in special)
    gap = _gap(inputs) if plain else None
    if gap is None:
        return _general(inputs)
    work = torch.promote_types(inputs.q.dtype, torch.float32)
    if isinstance(inputs.bias, Slope) and _steep(inputs.bias, work):
        q, k, v = (x.to(work) for x in (inputs.q, inputs.k, inputs.v))
        return _general(replace(inputs, q=q, k=k, v=v, unrotated=None)).to(inputs.q.dtype)
    return _regular(inputs, gap)


def _steep(bias: Slope, dtype: torch.dtype) -> bool:
    """Return whether a slope changes too much within a tile of queries for the regular form.

    It adds and subtracts what a query's sum has grown by since the start of its tile, so it rounds
    scores near 0 as if they were that large. The general form subtracts sums in float64.
    """
    with torch.no_grad():
        size = min(BACKWARD, bias.row.shape[-1])
        # Tiles are counted from the last query.
        tiles = torch.split(bias.row.flip(-1), size, dim=-1)
        growth = torch.stack([x.amax(-1) - x.amin(-1) for x in tiles]).amax(0)
        if bias.weight is not None:
            growth = growth * bias.weight.abs().amax(-1)
        return not bool((growth * torch.finfo(dtype).eps <= LARGEST_ROUNDING).all())


def _gap(inputs: AttentionCall) -> int | None:
    """Return first query position minus first key position; None unless both are consecutive."""
    at, visible, bias = inputs.positions, inputs.visible, inputs.bias
    if inputs.mixing is not None or not isinstance(bias, Toeplitz | Slope | None):
        return None
    if visible.q_group is not None or not at.consecutive:
        return None
    gap = at.bounds[0] + inputs.k.shape[2] - 1  # first query minus first key
    return None if inputs.visible.causal and gap < 0 else gap


def _general(inputs: AttentionCall) -> Tensor:
    moved = None
    if inputs.transition is not None:
        keys = definition.shared(inputs.k, inputs.q.shape[1])
        moved = inputs.transition.through(inputs.q, keys)
    b, h, t, _ = inputs.q.shape
    size = max(1, min(BLOCK, 2**25 // (inputs.k.shape[2] * h * b)))
    if inputs.visible.window is not None or inputs.visible.chunk is not None:
        size = BLOCK
    size = 2 ** (size.bit_length() - 1)  # divides BLOCK, so rows lie in one block of a transition
    blocks = []
    for at in range(0, t, size):
        rows = slice(at, min(at + size, t))
        part = _seen(inputs, rows), moved, rows
        if torch.is_grad_enabled():
            attended = checkpoint(_rows, *part, use_reentrant=False, preserve_rng_state=False)
        else:  # checkpoint imports torch's compiler, which takes a second
            attended = _rows(*part)
        blocks.append(attended)
    return torch.cat(blocks, dim=2)


def _rows(part: AttentionCall, moved: Moved | None, rows: slice) -> Float[Tensor, "b h r ev"]:
    """Return the attention of the queries in `rows`."""
    q, k, v = part.q, part.k, part.v
    heads, keys = q.shape[1], k.shape[2]
    if moved is None:
        product = q[:, :, rows] @ definition.shared(k, heads).mT
    else:
        product = moved.scores(rows).to(q.dtype)
        product = F.pad(product, (0, max(0, keys - product.shape[3])))[..., :keys]
    added = None
    if part.bias is not None:
        added = dense(part.bias, part.positions, rows).to(q.dtype)
    _, _, weights = definition.weigh(part, part.scale * product, added, rows)
    return weights.to(v.dtype) @ definition.shared(v, heads)


def _seen(inputs: AttentionCall, rows: slice) -> AttentionCall:
    """The same call with the keys from the first to the last that a row may see."""
    visible, at, bias = inputs.visible, inputs.positions, inputs.bias
    if inputs.mixing is not None and not inputs.mixing.pointwise:
        return inputs
    window = visible.chunk if visible.window is None else visible.window
    near = torch.ones_like(at.k, dtype=torch.bool)
    if window is not None:
        near &= (at.k > at.q[:, rows].min() - window) & (at.k < at.q[:, rows].max() + window)
    if visible.causal:
        near &= at.k <= at.q[:, rows].max()
    some = near.any(0).nonzero()
    cols = slice(int(some[0]), int(some[-1]) + 1) if len(some) else slice(0, 1)
    if inputs.transition is not None:
        cols = slice(0, cols.stop)  # its scores begin at the first key
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


def _regular(inputs: AttentionCall, gap: int) -> Tensor:
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
    keys, values = (definition.shared(x, h) for x in (inputs.k, inputs.v))
    heads = (by_head(x.to(work)) for x in (q, keys, values))
    out: Tensor = Regular.apply(rule, *heads, table, weight, row, col)  # type: ignore[no-untyped-call]
    return out.view(b, h, t, -1).to(q.dtype)
