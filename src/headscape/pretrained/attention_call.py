"""What a published model's attention is called with, in one layer."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """The arguments of one layer's self-attention, as the model itself computed them."""

    module: nn.Module
    q: Float[Tensor, "b h t e"]
    """Queries, rotated."""
    k: Float[Tensor, "b hk s e"]
    """Keys, rotated; hk divides h."""
    v: Float[Tensor, "b hk s ev"]
    scale: float
    seen: Bool[Tensor, "#b #h t s"]
    """True where a query sees a key."""
    bias: Float[Tensor, "#b #h #t s"] | None = None
    """What the model adds to the scores besides the mask."""
    unrotated: tuple[Tensor, Tensor] | None = None
    """q and k from the model's own code with all angles 0; None where it rotates nothing."""
    rotation: tuple[Tensor, Tensor] | None = None
    """The cos and sin that the model rotates by, where it hands them to its attention."""
    shares_position: bool = True
    """False if equal hidden states give different q or k, that is, position enters in a way that
    could not be undone."""
    window: int | None = None
    """The sliding window as the model states it; `seen` is what it does."""
    softcap: float | None = None
    sink: Float[Tensor, " h"] | None = None

    @property
    def heads(self) -> int:
        """Heads of the queries."""
        return self.q.shape[1]


def visible_and_bias(
    mask: Tensor | None, *, causal: bool, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Split a mask as transformers writes it into what is seen and what is added to scores.

    A boolean mask is True where a key is seen. A number mask is added to the scores, with a very
    negative number where a key is hidden.
    """
    if mask is None:
        everything = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        return (everything.tril(keys - queries) if causal else everything), None
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return mask.expand(-1, -1, queries, -1), None
    seen = mask > torch.finfo(mask.dtype).min / 4
    added = mask.masked_fill(~seen, 0.0)
    return seen.expand(-1, -1, queries, -1), added if bool(added.any()) else None


def with_bias(bias: Tensor | None, more: Tensor | None) -> Tensor | None:
    """The sum of two biases, either of which may be missing."""
    if bias is None or more is None:
        return more if bias is None else bias
    return bias + more


class Captured(Exception):  # noqa: N818 - it reports a result, not an error
    """Leaves a forward pass with the arguments of its attention."""

    def __init__(self, q: Any, k: Any) -> None:
        super().__init__()
        self.q, self.k = q, k
