"""What a layer hands to its encoding: one argument for each of the three places it is asked.

stream(LayerInput)        the layer's input, to read running sums, angles or gates off it
rotate(x, Side)           queries or keys with their positions
bias(LayerContext)        positions, streams, queries and keys; `mixing` takes the same
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.call.definition import shared
from headscape.call.positions import Positions
from headscape.call.transition import Decay, Reflections, Transition

Role = Literal["query", "key"]
Project = Callable[[Float[Tensor, "n d"]], tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]]
"""A layer's own projections: rows of the model's width as queries and as keys, bias included."""
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class LayerInput:
    """The input of a layer, for the tokens that a pass adds."""

    x: Float[Tensor, "b t d"]
    carry: Any = None
    """What the stream of the tokens before them left; its form is the encoding's own."""
    starts: Bool[Tensor, "#b t"] | None = None
    """True at the first token of a document; None if all tokens are in one."""


@dataclass(frozen=True)
class Stream:
    """What an encoding reads off its layer's input, per token."""

    total: Float[Tensor, "b h t"] | None = None
    """A running sum, in float64 because only its differences matter. A cache keeps it."""
    weight: Float[Tensor, "b h t"] | None = None
    """The factor of each query's sums."""
    backward: Float[Tensor, "b h t"] | None = None
    """A second running sum, for keys to the right of their query."""
    query: Float[Tensor, "b h t c"] | None = None
    """A vector per query."""
    key: Float[Tensor, "b h t c2"] | None = None
    """A vector per key. A cache keeps it."""
    angle: Float[Tensor, "#b #h t m"] | None = None
    """What `turn` rotates each pair of dims by, in float64."""
    reflections: Reflections | None = None
    """A key is reflected by every token between it and its query."""
    decay: Decay | None = None
    """A key decays, channel by channel, with every token between it and its query."""
    carry: Any = None
    """Where the stream of the next tokens goes on; the last `total` if None."""

    def last(self, count: int) -> "Stream":
        """Return the stream of the last `count` tokens, with the transition of all tokens."""
        names = ("total", "weight", "backward", "query", "key", "angle")
        present = {name: getattr(self, name) for name in names}
        cut = {name: x[:, :, x.shape[2] - count :] for name, x in present.items() if x is not None}
        return replace(self, **cut)

    def carry_after(self, count: int | None = None) -> Any:
        """Return what the stream of the tokens after the first `count`, or after all, goes on from.

        By default that is the running sum so far.
        """
        if self.carry is not None or self.total is None:
            return self.carry
        return self.total[:, :, (self.total.shape[2] if count is None else count) - 1]

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

    @property
    def parts(self) -> set[str]:
        """The names of the fields that are not None, `carry` aside."""
        names = {item.name for item in fields(self)} - {"carry"}
        return {name for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Side:
    """The queries or the keys of a layer, as `rotate` needs to know them."""

    at: Int[Tensor, "#b t"]
    """Their positions."""
    role: Role
    stream: Stream | None = None


@dataclass(frozen=True)
class QueriesAndKeys:
    """The queries and keys of a layer, as attention multiplies them.

    A bias may read them: Shaw, Transformer-XL, DeBERTa, GRAPE. They are rotated, so a cache of keys
    is enough to make the bias of new tokens.
    """

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
        kept: Kept = value
        return kept

    def keys(self) -> Float[Tensor, "b h s e"]:
        """Return the keys, repeated for every head of the queries."""
        return shared(self.k, self.q.shape[1])


@dataclass(frozen=True)
class LayerContext:
    """Everything the bias and the mixing of a layer may depend on."""

    positions: Positions
    queries: Stream | None = None
    keys: Stream | None = None
    """The stream of the keys; with a cache it has more tokens than that of the queries."""
    heads: QueriesAndKeys | None = None
