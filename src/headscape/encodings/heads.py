"""The queries and keys of a layer, for encodings whose bias reads them: Shaw, DeBERTa, GRAPE ...

They are the vectors that attention multiplies, after `rotate`, so a cache of keys is enough to make
the bias of new tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from headscape.errors import InputError
from headscape.types import Positions

Project = Callable[[Float[Tensor, "n d"]], tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]]
"""A layer's own projections: rows of the model's width as queries and as keys, bias included."""


Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Heads:
    """The queries and keys of one layer, and how their scores are made from them."""

    q: Float[Tensor, "b h t e"]
    k: Float[Tensor, "b hk s e"]
    scale: float
    """The factor of q.k."""
    project: Project | None = None
    """Only DeBERTa with share_att_key needs it."""
    kept: dict[str, tuple[int, Any]] | None = None
    """What a cache keeps of values that depend on parameters alone; None keeps nothing."""

    def keep(self, name: str, count: int, make: Callable[[int], Kept]) -> Kept:
        """Return make(n) for an n of at least `count`; call `make` only if the cache has too few.

        From the second call of `make` on, n is twice `count`, because tokens come one at a time.
        """
        if self.kept is None:
            return make(count)
        have, value = self.kept.get(name, (-1, None))
        if have < count:
            have = count if have < 0 else 2 * count
            value = make(have)
            self.kept[name] = have, value
        found: Kept = value
        return found

    def keys(self) -> Float[Tensor, "b h s e"]:
        """Return the keys, repeated for every head of the queries."""
        heads = self.q.shape[1]
        if self.k.shape[1] == heads:
            return self.k
        return self.k.repeat_interleave(heads // self.k.shape[1], dim=1)


def need_heads(title: str, positions: Positions, heads: Heads | None) -> Heads:
    """Return the heads, or raise if they are missing or have the wrong length."""
    if heads is None:
        raise InputError(
            f"the bias of {title} reads queries and keys: pass bias() heads=Heads(q, k, scale), "
            f"or call attention()."
        )
    for name, x, at in (("queries", heads.q, positions.q), ("keys", heads.k, positions.k)):
        if x.shape[2] != at.shape[1]:
            raise InputError(
                f"heads has {x.shape[2]} {name}, but there are {at.shape[1]} positions: make both "
                f"from the same tokens."
            )
    return heads
