"""How far two results may differ because of rounding alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import AttentionCall, scores, shared


def epsilon(dtype: torch.dtype) -> float:
    """The rounding of a dtype, at least float32's: models compute angles and softmax in it."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def allowance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding explains: 32 roundings, 4 in half precision."""
    eps = epsilon(dtype)
    return (32 if eps == torch.finfo(torch.float32).eps else 4) * eps


def rotation_agrees(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two rotations of the same vectors agree; an angle is rounded like its position.

    A quarter of the allowance per position.
    """
    allowed = allowance(theirs.dtype) / 4 * theirs.shape[2] * theirs.abs().amax()
    return bool((ours - theirs).abs().amax() <= allowed)


def bias_agrees(ours: Tensor, theirs: Tensor, seen: Tensor, *, within: float) -> bool:
    """Whether two biases agree where a key is seen, a constant per query aside.

    `within` is the relative difference allowed.
    """
    ours, theirs = ours.double(), theirs.double()
    gap = (ours - theirs).masked_fill(~seen, torch.nan)
    spread = (gap - gap.nanmean(dim=-1, keepdim=True)).masked_fill(~seen, 0.0)
    size = theirs.masked_fill(~seen, 0.0).abs().amax()
    return bool(spread.abs().amax() <= within * (1e-3 + size))


def output_rounding(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return how far the output moves, to first order, per unit of relative error.

    Every number that attention computes has this error. A score changes by at most size =
    1 + scale |q| . |k| + |bias| times that error, and the output by the sum over keys of
    w_ij (size_ij |v_j - out_i| + |v_j|).
    """
    every, heads = scores(inputs), inputs.q.shape[1]
    products = inputs.q.abs() @ shared(inputs.k, heads).abs().mT
    size = 1 + abs(inputs.scale) * products + every.bias.abs()
    v, weights = shared(inputs.v, heads), every.weights
    out, moved = weights @ v, weights @ v.abs()
    for row in range(out.shape[2]):
        change = (weights * size)[:, :, row, :, None] * (v - out[:, :, row, None]).abs()
        moved[:, :, row] += change.sum(dim=2)
    return moved
