"""How far two results may differ because of rounding alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.attention.reference import AttentionInputs, scores, shared


def epsilon(dtype: torch.dtype) -> float:
    """The rounding of a dtype, at least float32's: models compute angles and softmax in it."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def allowance(dtype: torch.dtype) -> float:
    """The relative difference that rounding explains: 32 roundings, or 4 in half precision.

    Right readings of the tested families and of SmolLM2 need at most 4.3 of the 32, 1.3 of the 4.
    A wrong convention is off by 10,000 or more in float32, but by as little as 250 in bfloat16.
    """
    eps = epsilon(dtype)
    return (32 if eps == torch.finfo(torch.float32).eps else 4) * eps


def rotation_agrees(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two rotations of the same vectors agree; an angle is rounded like its position.

    A quarter of the allowance per position: right rotations need at most a tenth of a rounding,
    and a wrong pairing is off by 5 in bfloat16.
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


def output_rounding(inputs: AttentionInputs) -> Float[Tensor, "b h t ev"]:
    """How far the output moves, to first order, if every number of attention is off by a factor.

    A score changes by at most size = 1 + scale |q| . |k| + |bias| times that factor, and the output
    by the sum over keys of w_ij (size_ij |v_j - out_i| + |v_j|).
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
