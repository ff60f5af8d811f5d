"""What a bias is known to do to weights before any score is computed.

Compare a query's scores with that of one key r it sees, at its own position or the nearest to it.
With |scale q_i . k_j| <= size by the lengths of the vectors (Cauchy and Schwarz),

    B_ij - B_ir - 2 size <= s_ij - s_ir <= B_ij - B_ir + 2 size

The weight p_ij is at most exp(s_ij - s_ir): where that is below `TINY`, a key need not be looked
at. The bounds are over blocks of queries and keys: safe, not tight. A NaN is always looked at.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.attention.operands import Operands, Rule

TINY = 1e-28
"""A weight below this is as good as 0: it is lost beside one of 1, even in float64."""
BLOCK = 64
"""Queries, and keys, that are looked at together."""
SHORT = 512
"""So few keys are not worth the search for those that a slope passes over."""
CALM = 55.0
"""exp of this, or of minus half of it, summed over any keys, is an ordinary float32."""


@dataclass(frozen=True)
class Reach:
    """What is known of one call."""

    first: list[list[int]]
    """The first key that counts, by head and block of queries, the last queries first."""
    calm: bool
    """Whether exp(s_ij - B_ir) cannot overflow, nor the sum of a query's be too small."""
    faint: bool
    """Whether weights below TINY may occur."""


def look(part: Operands, rule: Rule) -> Reach:
    """What is known of a call; nothing unless it is causal and each query's own key is there."""
    n, t, _ = part.q.shape
    own = rule.gap + t - 1
    if not rule.causal or own >= part.k.shape[1]:
        return Reach(_everything(n, t), calm=False, faint=True)
    longest = [torch.linalg.vector_norm(x, dim=-1).amax(-1) for x in (part.q, part.k)]
    slack = 2 * abs(rule.scale) * longest[0] * longest[1]
    if part.table is not None:
        return _by_distance(part.table, own, t, slack)
    if part.col is not None:
        return _by_slope(part.weight, part.col, rule.gap, t, slack)
    return Reach(_everything(n, t), calm=bool((slack < CALM).all()), faint=False)


def _by_distance(
    table: Float[Tensor, "g n"], own: int, t: int, slack: Float[Tensor, " g"]
) -> Reach:
    """Column `own` of the table is distance 0, column 0 the largest."""
    far = table[:, : own + 1] - table[:, own, None]
    counts = ~(far < math.log(TINY) - slack[:, None])
    reached = (own - _first(counts)).tolist()
    calm = bool((far.amax(1) + slack < CALM).all())
    faint = bool((far.amin(1) - slack < math.log(TINY)).any())
    ends = [min(t, start + BLOCK) for start in range(0, t, BLOCK)]
    return Reach(
        [[max(0, own + 1 - end - d) for end in ends] for d in reached], calm=calm, faint=faint
    )


def _by_slope(
    weight: Float[Tensor, "g t"] | None,
    col: Float[Tensor, "g s"],
    gap: int,
    t: int,
    slack: Float[Tensor, " g"],
) -> Reach:
    """B_ij - B_ir = weight_i (col_r - col_j), at most 0 if sums fall and no weight is negative."""
    falls = (col.diff() <= 0).all() & (slack < CALM).all()
    if weight is not None:
        falls &= (weight >= 0).all()
    calm = bool(falls)
    if col.shape[1] <= SHORT:
        return Reach(_everything(len(col), t), calm=calm, faint=True)
    near = col[:, gap : gap + t].flip(1)
    (low, high), (least, most) = _ranges(near), _ranges(col)
    gaps = [low[:, :, None] - most[:, None], high[:, :, None] - least[:, None]]
    if weight is not None:
        gaps = [w[:, :, None] * gap for w in _ranges(weight.flip(1)) for gap in gaps]
    above = torch.stack(gaps).amax(0) + slack[:, None, None]
    first = BLOCK * _first(~(above < math.log(TINY)))
    return Reach(first.tolist(), calm=calm, faint=True)


def _everything(heads: int, t: int) -> list[list[int]]:
    """Every block of every head from the first key on."""
    return [[0] * len(range(0, t, BLOCK))] * heads


def _first(counts: Bool[Tensor, "*g n"]) -> Int[Tensor, "*g"]:
    return counts.to(torch.uint8).argmax(-1)


def _ranges(x: Float[Tensor, "g t"]) -> tuple[Tensor, Tensor]:
    """The least and the largest of every block."""
    whole = F.pad(x[None], (0, -x.shape[1] % BLOCK), mode="replicate")[0]
    return torch.aminmax(whole.reshape(x.shape[0], -1, BLOCK), dim=2)
