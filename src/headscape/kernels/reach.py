"""Bounds on attention weights from the bias alone, to skip keys that get no weight.

Let r be the visible key at the query's own position, or the nearest one. The Cauchy-Schwarz
inequality bounds |scale q_i . k_j| by a number `size`, so

    B_ij - B_ir - 2 size <= s_ij - s_ir <= B_ij - B_ir + 2 size

The weight p_ij is at most exp(s_ij - s_ir); keys where that is below `TINY` are skipped. The bounds
are taken over blocks of queries and keys, so they are safe but not tight. A NaN is never skipped.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.kernels.operands import Operands, Rule

TINY = 1e-28
"""Weights below this count as 0; added to a weight of 1 they vanish even in float64."""
BLOCK = 64
"""Queries per block, and keys per block."""
SHORT = 512
"""Up to this many keys, searching for keys to skip costs more than it saves."""
CALM = 55.0
"""exp(CALM) and exp(-CALM / 2), summed over any number of keys, are normal float32 numbers."""


@dataclass(frozen=True)
class Reach:
    """The bounds of one call."""

    first: list[list[int]]
    """The first key not skipped, by head and block of queries, last queries first."""
    calm: bool
    """exp(s_ij - B_ir) cannot overflow, and its sum over a query's keys cannot underflow."""
    faint: bool
    """Weights below TINY may occur."""


def bounds(part: Operands, rule: Rule) -> Reach:
    """Return the bounds of a call; they skip keys only if it is causal and has every own key."""
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
    """Return the bounds for a table whose column `own` is distance 0 and column 0 the largest."""
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
    """Return the bounds for a slope: B_ij - B_ir = weight_i (col_r - col_j).

    It is at most 0 if the sums never increase and no weight is negative.
    """
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
    """Return key 0 as the first key of every head and block, which skips nothing."""
    return [[0] * len(range(0, t, BLOCK))] * heads


def _first(counts: Bool[Tensor, "*g n"]) -> Int[Tensor, "*g"]:
    return counts.to(torch.uint8).argmax(-1)


def _ranges(x: Float[Tensor, "g t"]) -> tuple[Tensor, Tensor]:
    """Return the minimum and the maximum of every block."""
    whole = F.pad(x[None], (0, -x.shape[1] % BLOCK), mode="replicate")[0]
    return torch.aminmax(whole.reshape(x.shape[0], -1, BLOCK), dim=2)
