"""How far two results may differ because of rounding alone."""

import torch
from torch import Tensor

SLACK = 32
"""Roundings that may add up; a wrong convention is off by 10,000 or more in float32."""


def epsilon(dtype: torch.dtype) -> float:
    """The rounding of a dtype, at least float32's: models compute angles and softmax in it."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def rotation_agrees(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two rotations of the same vectors agree; an angle is rounded like its position."""
    allowed = SLACK * epsilon(theirs.dtype) * theirs.shape[2] * theirs.abs().amax()
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
