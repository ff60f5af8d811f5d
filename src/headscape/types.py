"""The positions of queries and keys, and which keys a query sees.

Shape letters, the same everywhere:

    b batch   t queries   s keys   h heads   e head dim   d model width   n distances
    g heads of all sequences, b h          r, c rows and columns of a tile
    # before a letter: that axis may be 1 and is then broadcast

Positions are always given, never taken from an index, so offsets, packed documents, left padding
and decoding one token need no special case.
"""

from dataclasses import dataclass, field

from jaxtyping import Bool, Int
from torch import Tensor, arange, device

from headscape.errors import InputError

ALL = slice(None)


@dataclass(frozen=True)
class Positions:
    """The position of every query and key; distance is query minus key.

    Example:
        >>> import headscape as hs
        >>> hs.Positions.span(2, 4).distance().tolist()
        [[[2, 1, 0, -1], [3, 2, 1, 0]]]
    """

    q: Int[Tensor, "#b t"]
    k: Int[Tensor, "#b s"]
    bounds: tuple[int, int] = field(default=(0, -1))
    """Smallest and largest distance; computed from q and k unless given."""

    def __post_init__(self) -> None:
        if not (self.q.numel() and self.k.numel()):
            raise InputError(
                "positions need at least one query and one key, got "
                f"{self.q.numel()} and {self.k.numel()}."
            )
        if self.bounds[0] > self.bounds[1]:
            low = int(self.q.min()) - int(self.k.max())
            high = int(self.q.max()) - int(self.k.min())
            object.__setattr__(self, "bounds", (low, high))

    @classmethod
    def span(
        cls, queries: int, keys: int | None = None, *, on: device | str = "cpu"
    ) -> "Positions":
        """Return keys at 0, 1, 2 ... and queries at the last `queries` of these positions."""
        keys = queries if keys is None else keys
        at = arange(keys, device=on)[None]
        return cls(at[:, keys - queries :], at, (1 - queries, keys - 1))

    def block(self, rows: slice, cols: slice = ALL) -> "Positions":
        """Return the positions of some of the queries and keys."""
        return Positions(self.q[:, rows], self.k[:, cols])

    def distance(self) -> Int[Tensor, "#b t s"]:
        """Return query position minus key position."""
        return self.q[:, :, None] - self.k[:, None, :]


@dataclass(frozen=True)
class Visible:
    """Which keys a query sees: those in its own group and, if causal, none at a later position.

    A group is a document of a packed batch. A negative group is padding, which sees nothing and is
    seen by nothing. Without groups all tokens are in one group. A window of w hides keys at a
    distance of w or more: a causal query sees w keys, its own included, a bidirectional one sees
    w - 1 on either side of its own.
    """

    causal: bool = True
    q_group: Int[Tensor, "#b t"] | None = None
    k_group: Int[Tensor, "#b s"] | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InputError(f"window must be at least 1, got {self.window}.")

    def block(self, rows: slice, cols: slice = ALL) -> "Visible":
        """Return the same rule for some of the queries and keys."""
        q = None if self.q_group is None else self.q_group[:, rows]
        k = None if self.k_group is None else self.k_group[:, cols]
        return Visible(self.causal, q, k, self.window)

    def dense(self, positions: Positions) -> Bool[Tensor, "#b 1 t s"]:
        """Return True where the query sees the key."""
        distance = positions.distance()
        seen = distance >= 0 if self.causal else distance == distance
        if self.q_group is not None and self.k_group is not None:
            q, k = self.q_group[:, :, None], self.k_group[:, None, :]
            seen = seen & (q == k) & (q >= 0)
        if self.window is not None:
            seen = seen & (distance < self.window) & (distance > -self.window)
        return seen[:, None]
