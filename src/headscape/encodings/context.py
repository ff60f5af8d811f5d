"""What a layer hands to its encoding: one argument for each of the places it is asked.

stream(LayerInput)        the layer's input, to read running sums, angles or gates off it
rotate(x, Side)           queries or keys with their positions
bias(LayerContext)        positions, streams, queries and keys; `mixing` takes the same
fit(MeasuredKernel)       what position does in a trained layer, to start from
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.call.definition import shared
from headscape.call.positions import Positions
from headscape.call.transition import Decay, Reflections, Transition

Role = Literal["query", "key"]
Project = Callable[[Float[Tensor, "n d"]], tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]]
"""A layer's own projections: rows of the model's width as queries and as keys, bias included."""
Kept = TypeVar("Kept")
BISECTIONS = 20
"""Of a fit; 20 find a slope to a few parts in a million."""


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
        given = {name: getattr(self, name) for name in names}
        cut = {name: x[:, :, x.shape[2] - count :] for name, x in given.items() if x is not None}
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
        found: Kept = value
        return found

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


@dataclass(frozen=True)
class MeasuredKernel:
    """What position does in the heads of a trained causal layer, for a fit by distance."""

    values: Float[Tensor, "h n"]
    """What position adds to a score, its mean at distance 0, 1 ... n - 1 weighted by attention."""
    share: Float[Tensor, "h n"]
    """The share of a head's attention at each distance."""
    rows: Float[Tensor, "m d"]
    """What the layer read: its input for some tokens."""
    content: Float[Tensor, "b h r n"]
    """The scaled q.k of some queries and all keys; minus infinity where a key is hidden."""
    distance: Int[Tensor, "r n"]
    """From key to query; 0 where a key is hidden."""

    def slope(self) -> Float[Tensor, " h"]:
        """Return the slope with which a head looks as far, on average, as it does."""
        at = torch.arange(self.values.shape[1], device=self.values.device)
        return self.matched(at.double())[0]

    def matched(
        self, shape: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
        """Return the f for which q.k - f shape gives the nearest attention, and its divergence.

        That is where the mean of the shape over attention is the old one, found by bisection; the
        divergence is KL(old, new) up to a constant. f lowers the last distance by at least 1, so
        that parameters have a gradient, and the second by at most 50.
        """
        wanted = (self.share * shape).sum(dim=1)
        by_pair = shape.to(self.content.dtype)[self.distance]
        low = (1 / shape[-1]).log().expand_as(wanted)
        high = torch.maximum((50 / shape[1]).log().expand_as(wanted), low)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            scores = self.content - middle.exp().to(self.content.dtype)[:, None, None] * by_pair
            mean = (scores.softmax(dim=-1) * by_pair).sum(dim=-1).mean(dim=(0, 2)).double()
            low, high = (
                torch.where(mean > wanted, middle, low),
                torch.where(mean > wanted, high, middle),
            )
        f = ((low + high) / 2).exp()
        scores = self.content - f.to(self.content.dtype)[:, None, None] * by_pair
        return f, scores.logsumexp(dim=-1).mean(dim=(0, 2)).double() + f * wanted

    def means(self, row: Int[Tensor, " n"], rows: int) -> Float[Tensor, "{rows} h"]:
        """Return the table with a row per distance that is nearest to the values.

        It minimises sum_d share(d) (table[row(d)] - values(d))^2. A row without a distance repeats
        the one before it.
        """
        mass = self.share.new_zeros(rows, len(self.share)).index_add_(0, row, self.share.T)
        total = torch.zeros_like(mass).index_add_(0, row, (self.share * self.values).T)
        filled = torch.arange(rows, device=row.device)[:, None].where(mass > 0, 0)
        return (total / mass.clamp(min=torch.finfo(mass.dtype).tiny)).gather(
            0, filled.cummax(dim=0).values
        )

    def offsets(
        self,
        read: Float[Tensor, "m h"],
        activation: Callable[[Tensor], Tensor],
        wanted: Float[Tensor, " h"],
    ) -> Float[Tensor, " h"]:
        """Return the b for which the mean of activation(read + b) is as wanted, by bisection.

        The activation increases from 0.
        """
        read = read.double()
        low, high = -wanted.new_full(wanted.shape, 100), wanted + read.abs().amax(dim=0)
        for _ in range(3 * BISECTIONS):
            middle = (low + high) / 2
            above = activation(read + middle).mean(dim=0) > wanted
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high
