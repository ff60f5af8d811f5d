"""Measure what position does in a trained layer, for an encoding to start from.

S_ij - scale q_i.k_j is what position adds to a score, and w_ij the weight that the head gives to
the pair. A head's kernel by distance is

    kappa_h(d) = sum w_ij (S_ij - scale q_i.k_j) / sum w_ij        over the pairs with i - j = d

and its share of d is the sum of w_ij there. Every encoding says itself what of it can be fitted
(`Encoding.fit`): tables of T5 take kappa's means, Kerple a curve, gates and increments a slope.

The weights matter: where a head does not look, position often adds large numbers that a softmax
turns into nothing, and a plain mean is made of them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.encodings.context import MeasuredKernel


@torch.no_grad()
def measured_kernel(call: AttentionCall, rows: Float[Tensor, "b t d"]) -> MeasuredKernel:
    """Return the kernels of a layer's heads.

    Args:
        call: The layer's attention, of all tokens of some windows.
        rows: What its attention read.
    """
    found = scores(call)
    share = by_distance(found.weights.double())
    position = by_distance((found.weights * found.bias).double())
    values = torch.where(share > 0, position / share.clamp(min=torch.finfo(share.dtype).tiny), 0.0)
    return MeasuredKernel(values, share / share.sum(dim=1, keepdim=True), rows.flatten(0, 1))


def by_distance(pairs: Float[Tensor, "b h t t"]) -> Float[Tensor, "h t"]:
    """Return the sum over the pairs of a query and an earlier key, by distance."""
    whole = pairs.sum(dim=0)
    sums = [whole.diagonal(-d, dim1=1, dim2=2).sum(dim=1) for d in range(whole.shape[1])]
    return torch.stack(sums, dim=1)
