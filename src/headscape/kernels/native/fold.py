"""What a bias by distance adds to the hidden maps of DAPE and DAPEv2, as a table by distance.

The first convolution is linear in X = [A ; B], and B depends on the distance d = i - j alone, so

    conv1(X) = conv1_A(A) + fold[0, :, d]      fold[1 + t] = W_B[:, :, t] B[d + p - t]
                                               fold[0]     = in_bias + the sum over all taps t

with p = taps // 2 and B = 0 where it is hidden. That is half of conv1 and of its gradients, done
once instead of for every pair of tokens. Where a tap falls outside the keys of a sequence, the
kernel subtracts fold[1 + t]. Autograd carries the gradient of the table on to bias and weights.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MARGIN = 128
"""Columns on either side of the bias's own table; a tile of queries may reach that far."""


def fold(
    table: Float[Tensor, "h n"],
    low: int,
    weight: Float[Tensor, "m h k"],
    in_bias: Float[Tensor, " m"],
    *,
    causal: bool,
) -> Float[Tensor, "k1 m n1"]:
    """The table for distances from low - MARGIN on; `low` is that in column 0 of `table`."""
    taps = weight.shape[2]
    if causal:
        table = table * (torch.arange(low, low + table.shape[1]) >= 0)
    reach = MARGIN + taps // 2
    shares = torch.einsum("mhk,hn->kmn", weight, F.pad(table, (reach, reach)))
    length = table.shape[1] + 2 * MARGIN
    shifted = torch.stack([x[:, taps - 1 - t :][:, :length] for t, x in enumerate(shares)])
    return torch.cat([(in_bias[:, None] + shifted.sum(0))[None], shifted])
