"""Sums and convolutions along the tokens, which a cache continues and a new document starts again.

    running_sum          y_t = sum of x_s over the tokens s <= t of t's document
    short_convolution    y_t = sum over lags l of weight[taps - 1 - l] x_{t-l}, in t's document

`starts` is true at the first token of a document; None is one document.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def running_sum(
    x: Float[Tensor, "b h t m"],
    before: Float[Tensor, "b h m"] | None,
    starts: Bool[Tensor, "#b t"] | None,
) -> Float[Tensor, "b h t m"]:
    """Return the inclusive sum in float64; `before` is the last sum of earlier tokens."""
    total = x.double().cumsum(dim=2)
    if before is not None:
        total = total + before[:, :, None]
    if starts is None:
        return total
    first = _first(starts)
    index = first.clamp(min=0)[:, None, :, None].expand_as(total)
    outside = (total - x.double()).gather(2, index)
    return total - outside * (first >= 0)[:, None, :, None]


def short_convolution(
    x: Float[Tensor, "b h t m"],
    weight: Float[Tensor, "h m taps"],
    tail: Float[Tensor, "b h past m"] | None,
    starts: Bool[Tensor, "#b t"] | None,
) -> tuple[Float[Tensor, "b h t m"], Float[Tensor, "b h past m"]]:
    """Return the convolution of every channel, and the inputs that the next tokens need."""
    past = weight.shape[2] - 1
    if tail is None:
        wide = F.pad(x, (0, 0, past, 0))
    else:
        wide = torch.cat([tail.to(x.dtype), x], dim=2)
    rest = wide[:, :, wide.shape[2] - past :]
    total = x.new_zeros(())
    since = None if starts is None else _since(starts)
    for lag in range(past + 1):
        term = wide[:, :, past - lag : wide.shape[2] - lag] * weight[:, None, :, past - lag]
        if since is not None:
            term = term * (since >= lag)[:, None, :, None]
        total = total + term
    if since is not None:
        # The oldest of the kept inputs is past - 1 tokens before the last one.
        before = torch.arange(past - 1, -1, -1, device=x.device)
        rest = rest * (since[:, -1:] >= before)[:, None, :, None]
    return total, rest


def _first(starts: Bool[Tensor, "#b t"]) -> Int[Tensor, "#b t"]:
    """Return the index of the first token of each token's document; -1 before the first start."""
    index = torch.arange(starts.shape[1], device=starts.device)
    return torch.where(starts, index, -1).cummax(dim=1).values


def _since(starts: Bool[Tensor, "#b t"]) -> Int[Tensor, "#b t"]:
    """Return the tokens between a token and its document's first; very many if that is earlier."""
    first = _first(starts)
    index = torch.arange(starts.shape[1], device=starts.device)
    return torch.where(first < 0, torch.iinfo(torch.long).max, index - first)
