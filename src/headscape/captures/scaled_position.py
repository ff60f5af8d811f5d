"""A saved layer with its positional part scaled: what a head does with less position, or more.

    score_ij = content_ij + factor (final_ij - content_ij)        weights = softmax of score

Factor 1 is the layer itself and 0 is its content alone. The positional part is everything between
scaled q.k and the softmax, so a temperature or a softcap is a part of it. The sink stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float64

from headscape.captures.pack import fixed_position
from headscape.captures.saved_call import SavedCall, Tokens
from headscape.errors import InputError

LARGEST: Final = 2.0
"""Greatest factor."""


@dataclass(eq=False)
class ScaledPosition(SavedCall):
    """A layer whose maps have the positional part multiplied by `factor`."""

    factor: float = field(kw_only=True)
    _norms: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, layer: SavedCall, factor: float) -> "ScaledPosition":
        """Return a layer with its positional part scaled; InputError where it cannot be."""
        reason = fixed_position(layer)
        if reason is not None:
            raise InputError(f"the positional part of this layer cannot be scaled: {reason}.")
        if not 0 <= factor <= LARGEST:
            raise InputError(f"position must be a factor from 0 to {LARGEST:g}, got {factor}.")
        scaled = cls(layer.described, layer.arrays, factor=factor)
        scaled._calculator = layer.calculator
        return scaled

    @property
    def lse(self) -> None:
        """None: the stored log-sum-exp is that of factor 1."""
        return

    @property
    def has_norms(self) -> bool:
        """False: `blocks` computes and keeps the log-sum-exp of the rows it needs."""
        return False

    def blocks(
        self,
        quantity: str,
        heads: Sequence[int],
        rows: Tokens,
        cols: slice,
        *,
        lse: Float[np.ndarray, "n r"] | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "n r c"]:
        """Return a quantity of some heads; hidden entries are 0 in weights, undefined in scores."""
        assert lse is None
        if quantity != "weights":
            return self._scores(quantity, heads, rows, cols, dtype)
        norms = np.stack([self._norms_of(head, rows) for head in heads])
        exponent = self._scores("final", heads, rows, cols, dtype) - norms[..., None]
        # A hidden score may exceed its row's norm by far.
        weights: np.ndarray = np.exp(np.minimum(exponent, 1.0)) * self.visible(rows, cols)
        return weights

    def _scores(
        self, quantity: str, heads: Sequence[int], rows: Tokens, cols: slice, dtype: Any
    ) -> Float[np.ndarray, "n r c"]:
        if quantity == "content":
            return super().blocks("content", heads, rows, cols, dtype=dtype)
        added = self.factor * super().blocks("bias", heads, rows, cols, dtype=dtype)
        if quantity == "bias":
            return added
        scores: np.ndarray = super().blocks("content", heads, rows, cols, dtype=dtype) + added
        return scores

    def _norms_of(self, head: int, rows: Tokens) -> Float64[np.ndarray, " r"]:
        """Log-sum-exp of some rows over visible keys and the sink; kept."""
        known = self._norms.setdefault(head, np.full(self.length, np.nan))
        asked = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        missing = asked[np.isnan(known[asked])]
        norms = self.log_sum_exp([head], missing)[0]
        known[missing] = np.where(np.isfinite(norms), norms, 0.0)
        asked_norms: np.ndarray = known[asked]
        return asked_norms
