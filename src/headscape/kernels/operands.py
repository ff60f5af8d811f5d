"""The arguments of attention at consecutive positions: tensors by head, and a rule.

Batch and heads are one axis, g = b h. The bias is absent, a table by distance, or a slope
weight_i (row_i - col_j).
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The arguments that are not tensors."""

    gap: int
    """The first query's position minus the first key's."""
    causal: bool
    """Whether keys after their query are hidden."""
    scale: float
    """The factor of q . k."""


@dataclass(frozen=True)
class Operands:
    """The tensors of one call, or their gradients."""

    q: Float[Tensor, "g t e"]
    k: Float[Tensor, "g s e"]
    v: Float[Tensor, "g s ev"]
    table: Float[Tensor, "g n"] | None = None
    """The bias of distances gap + t - 1 down to gap - s + 1."""
    weight: Float[Tensor, "g t"] | None = None
    row: Float[Tensor, "g t"] | None = None
    col: Float[Tensor, "g s"] | None = None

    def heads(self, some: slice) -> "Operands":
        """Return the operands of some of the heads."""
        every: list[Any] = [None if x is None else x[some] for x in vars(self).values()]
        return Operands(*every)
