"""What an encoding reads off its layer's input, as data."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from headscape.encodings.decay import Decay, Decayed
from headscape.encodings.reflections import Reflected, Reflections

Transition = Reflections | Decay
"""How a key changes on its way to a query."""
Moved = Reflected | Decayed
"""Queries and keys, prepared for the scores under a transition."""


@dataclass(frozen=True)
class Stream:
    """What an encoding reads off its layer's input, per token.

    `total` is a running sum over tokens, in float64 because only its differences matter. `weight`
    and `query` are per query, so a cache does not keep them; it keeps `total` and `key`. `backward`
    is a second running sum, for keys to the right of their query. `angle` is what `rotate` turns
    each pair of dims by, in float64. A key goes through the `reflections` or the `decay` of every
    token between it and its query. The stream of the next tokens continues from `carry`, or from
    the last `total` if `carry` is None.
    """

    total: Float[Tensor, "b h t"] | None = None
    weight: Float[Tensor, "b h t"] | None = None
    backward: Float[Tensor, "b h t"] | None = None
    query: Float[Tensor, "b h t c"] | None = None
    key: Float[Tensor, "b h t c2"] | None = None
    angle: Float[Tensor, "#b #h t m"] | None = None
    reflections: Reflections | None = None
    decay: Decay | None = None
    carry: Tensor | None = None

    def last(self, count: int) -> "Stream":
        """Return the stream of the last `count` tokens, with the transition of all tokens."""
        names = ("total", "weight", "backward", "query", "key", "angle")
        given = {name: getattr(self, name) for name in names}
        cut = {name: x[:, :, x.shape[2] - count :] for name, x in given.items() if x is not None}
        return replace(self, **cut)

    @property
    def tokens(self) -> int:
        """How many tokens it is of; 0 if a cache keeps nothing of it."""
        for x in (self.total, self.query, self.key, self.angle):
            if x is not None:
                return x.shape[2]
        return 0

    @property
    def transition(self) -> Transition | None:
        """The reflections or the decay, whichever the stream has, or None."""
        return self.decay if self.reflections is None else self.reflections

    @property
    def sums(self) -> Float[Tensor, "b h t"]:
        """The running sum, of an encoding that has one."""
        assert self.total is not None
        return self.total
