"""Where the tokens of a call are: positions, padding and documents."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.positions import Visible
from headscape.errors import InputError


@dataclass(frozen=True)
class Placed:
    """Where the new tokens of a call are."""

    at: Int[Tensor, "#b t"]
    """Their positions."""
    group: Int[Tensor, "#b s"] | None
    """The groups of all tokens, the cached ones first; a negative group is padding."""
    old: int
    """Number of cached tokens."""

    def visible(self, window: int | None, chunk: int | None) -> Visible:
        """Return which tokens the new ones see."""
        new = None if self.group is None else self.group[:, self.old :]
        return Visible(True, new, self.group, window, chunk)


def place_tokens(
    x: Float[Tensor, "b t d"],
    old: int,
    mask: Tensor | None,
    position_ids: Int[Tensor, "#b t"] | None,
) -> Placed:
    """Return the new tokens' positions and the groups of all tokens.

    Positions count from the first token that is not padding. Without a mask and a cache, positions
    that start again begin a new document, which sees only itself.
    """
    new = x.shape[1]
    if mask is not None:
        if mask.ndim != 2 or mask.shape[1] != old + new:
            raise InputError(
                f"attention_mask must have shape batch x {old + new} (cached and new tokens), "
                f"got {tuple(mask.shape)}."
            )
        mask = None if bool(mask.all()) else mask.to(torch.int64)
    if position_ids is not None:
        at = position_ids
    elif mask is not None:
        at = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, old:]
    else:
        at = torch.arange(old, old + new, device=x.device)[None]
    if mask is not None:
        return Placed(at, mask - 1, old)
    starts = at.diff(dim=1) != 1
    if old or not bool(starts.any()):
        return Placed(at, None, old)
    return Placed(at, F.pad(starts.to(torch.int64).cumsum(dim=1), (1, 0)), old)
