"""Measure what position does in a trained layer, for an encoding to start from.

S_ij - scale q_i.k_j is what position adds to a score, and w_ij the weight that the head gives to
the pair. A head's kernel by distance is

    kappa_h(d) = sum w_ij (S_ij - scale q_i.k_j) / sum w_ij        over the pairs with i - j = d

The weights matter: where a head does not look, position often adds large numbers that a softmax
turns into nothing, and a plain mean is made of them.

Every encoding says itself what of it can be fitted (`Encoding.fit`). Tables of T5 take kappa's
means. Kerple's curves, FoX's gates and CABLE's increments have few numbers per head; they are set
so that q.k with the bias attends as far, on average, as the head does, which is the minimum of
KL(old attention, new attention).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.encodings.measured_kernel import MeasuredKernel

QUERIES = 256
"""About how many queries of a window are measured."""


@torch.no_grad()
def measured_kernel(call: AttentionCall, rows: Float[Tensor, "b t d"]) -> MeasuredKernel:
    """Return the kernels of a layer's heads.

    Args:
        call: The layer's attention, of all tokens of some windows.
        rows: What its attention read.
    """
    count = call.q.shape[2]
    some = torch.arange(count - 1, -1, -max(1, count // QUERIES), device=rows.device)
    distance = some[:, None] - torch.arange(count, device=rows.device)
    hidden, distance = distance < 0, distance.clamp(min=0)
    maps = scores(call)
    weights, added = maps.weights[:, :, some].double(), maps.bias[:, :, some].double()
    share = by_distance(weights, distance)
    position = by_distance(weights * added, distance)
    return MeasuredKernel(
        position / share.clamp(min=torch.finfo(share.dtype).tiny),
        share / share.sum(dim=1, keepdim=True),
        rows.flatten(0, 1),
        maps.content[:, :, some].masked_fill(hidden, -torch.inf),
        distance,
    )


def by_distance(
    pairs: Float[Tensor, "b h r n"], distance: Int[Tensor, "r n"]
) -> Float[Tensor, "h n"]:
    """Return the sum over all pairs with the same distance; pairs that are hidden are 0."""
    sums = pairs.new_zeros(pairs.shape[1], pairs.shape[3])
    return sums.index_add_(1, distance.flatten(), pairs.sum(dim=0).flatten(1))
