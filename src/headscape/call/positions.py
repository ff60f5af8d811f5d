"""The positions of queries and keys, what they are turned by, and which keys a query sees.

Shape letters, the same everywhere:

    b batch   t queries   s keys   h heads   e head dim   d model width   n distances
    g heads of all sequences, b h          r, c rows and columns of a tile
    # before a letter: that axis may be 1 and is then broadcast

Positions are always given, never taken from an index, so offsets, packed documents, left padding
and decoding one token need no special case.
"""

from dataclasses import dataclass, field
from functools import cached_property

from jaxtyping import Bool, Float, Int
from torch import Tensor, arange, cat, device, float64, ones_like, stack
from torch import bool as bool_

from headscape.errors import InputError, at_least

ALL = slice(None)
FARTHEST = 2**31 - 1
"""The largest range of distances; tables and kernels index by distance."""
ROWS = 1024
"""Queries whose keys are counted at a time."""


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
            if high - low > FARTHEST:
                raise InputError(
                    f"positions must be at most {FARTHEST:,} apart, got distances from {low:,} to "
                    f"{high:,}."
                )
            object.__setattr__(self, "bounds", (low, high))

    @classmethod
    def span(
        cls, queries: int, keys: int | None = None, *, on: device | str = "cpu"
    ) -> "Positions":
        """Return keys at 0, 1, 2 ... and queries at the last `queries` of these positions.

        Args:
            queries: Number of queries.
            keys: Number of keys; by default as many as queries.
            on: The device.
        """
        keys = queries if keys is None else keys
        at = arange(keys, device=on)[None]
        made = cls(at[:, keys - queries :], at, (1 - queries, keys - 1))
        vars(made)["consecutive"] = True  # known, so it is not read off the device
        return made

    @cached_property
    def consecutive(self) -> bool:
        """Whether queries and keys of all sequences are at the same, consecutive positions."""
        if self.q.shape[0] > 1 or self.k.shape[0] > 1:
            return False
        return not bool((self.q.diff() != 1).any()) and not bool((self.k.diff() != 1).any())

    def block(self, rows: slice, cols: slice = ALL) -> "Positions":
        """Return the positions of some of the queries and keys.

        Args:
            rows: Which queries.
            cols: Which keys; by default all.
        """
        if rows == ALL and cols == ALL:
            return self
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
    w - 1 on either side of its own. A chunk of c hides keys of a different block of c positions, so
    a causal query at position 2c sees only itself.

    Where a model chooses keys by their content (a sparse indexer) or by a pattern of its own, no
    rule says which; `recorded` is then the mask as the model computed it, and hides more keys.
    """

    causal: bool = True
    q_group: Int[Tensor, "#b t"] | None = None
    k_group: Int[Tensor, "#b s"] | None = None
    window: int | None = None
    chunk: int | None = None
    recorded: Bool[Tensor, "#b t s"] | None = None
    """True where the model let a query see a key; the same for every head."""

    def __post_init__(self) -> None:
        at_least(1, window=self.window, chunk=self.chunk)

    def block(self, rows: slice, cols: slice = ALL) -> "Visible":
        """Return the same rule for some of the queries and keys."""
        q = None if self.q_group is None else self.q_group[:, rows]
        k = None if self.k_group is None else self.k_group[:, cols]
        recorded = None if self.recorded is None else self.recorded[:, rows][:, :, cols]
        return Visible(self.causal, q, k, self.window, self.chunk, recorded)

    def dense(self, positions: Positions) -> Bool[Tensor, "#b 1 t s"]:
        """Return True where the query sees the key."""
        distance = positions.distance()
        seen = distance >= 0 if self.causal else distance == distance
        if self.q_group is not None and self.k_group is not None:
            q, k = self.q_group[:, :, None], self.k_group[:, None, :]
            seen = seen & (q == k) & (q >= 0)
        if self.window is not None:
            seen = seen & (distance < self.window) & (distance > -self.window)
        if self.chunk is not None:
            q, k = (_block(at, self.chunk) for at in (positions.q, positions.k))
            seen = seen & (q[:, :, None] == k[:, None, :])
        if self.recorded is not None:
            seen = seen & self.recorded
        return seen[:, None]

    def reach(self, positions: Positions, first: int, last: int) -> slice:
        """Return a range of keys with all that the queries `first` to `last` may see."""
        keys = positions.k.shape[1]
        if not positions.consecutive:
            return slice(0, keys)
        shift = int(positions.q[0, 0]) - int(positions.k[0, 0])
        window = keys + abs(shift) + last if self.window is None else self.window
        start = max(0, first + shift - window + 1)
        stop = last + shift + (1 if self.causal else window)
        return slice(min(start, keys), max(0, min(stop, keys)))

    def count(self, positions: Positions) -> Int[Tensor, "#b t"]:
        """Return how many keys each query sees.

        Example:
            >>> import torch
            >>> group = torch.tensor([[0, 0, 1, 1, 1]])
            >>> Visible(True, group, group).count(Positions.span(5)).tolist()
            [[1, 2, 1, 2, 3]]
        """
        blocks = [slice(i, i + ROWS) for i in range(0, positions.q.shape[1], ROWS)]
        parts = [self.block(rows).dense(positions.block(rows)).sum(-1)[:, 0] for rows in blocks]
        return cat(parts, dim=1)

    def chunks_as_groups(self, positions: Positions) -> "Visible":
        """Return the same rule with every chunk of a document as a group, for code without chunks.

        Example:
            >>> import torch
            >>> Visible(chunk=2).chunks_as_groups(Positions.span(5)).q_group.tolist()
            [[0, 0, 1, 1, 2]]
        """
        if self.chunk is None:
            return self
        blocks = [_block(at, self.chunk) for at in (positions.q, positions.k)]
        low = min(int(block.min()) for block in blocks)
        high = max(int(block.max()) for block in blocks)

        def both(block: Tensor, group: Tensor | None) -> Tensor:
            if group is None:
                return block - low
            # One number per group and block; padding stays negative.
            return (group * (high - low + 1) + block - low).where(group >= 0, group)

        q, k = both(blocks[0], self.q_group), both(blocks[1], self.k_group)
        return Visible(self.causal, q, k, self.window, recorded=self.recorded)

    def starts(self, count: int) -> Bool[Tensor, "#b count"] | None:
        """Return where a document begins among the last `count` keys; None without groups."""
        if self.k_group is None:
            return None
        begins = self.k_group[:, 1:] != self.k_group[:, :-1]
        first = ones_like(self.k_group[:, :1], dtype=bool_)
        return cat([first, begins], dim=1)[:, self.k_group.shape[1] - count :]


def _block(at: Int[Tensor, "#b t"], size: int) -> Int[Tensor, "#b t"]:
    """Return the number of each position's block."""
    return at.div(size, rounding_mode="floor")


def powers(base: float, dims: int) -> Float[Tensor, " m"]:
    """Return the frequencies base^(-2m/dims), m = 0 .. dims/2 - 1, in float64."""
    return base ** (-arange(0, dims, 2, dtype=float64) / dims)


@dataclass(frozen=True)
class Turn:
    """Rotation of pairs of dims, (a, b) -> (a cos - b sin, b cos + a sin): RoPE, xPos and others.

    cos and sin are per token and pair, in float64, with any magnitude.
    """

    cos: Float[Tensor, "#b #h t m"]
    sin: Float[Tensor, "#b #h t m"]
    pairing: str
    """Pairs are neighbouring dims ("interleaved") or m and m + R/2 ("halves")."""
    frequencies: Float[Tensor, " m"] | None = None
    """The angle per position of each pair, where the angle is position times frequency."""
    by_tokens: bool = False
    """Whether the angles depend on the tokens."""

    @classmethod
    def by(
        cls, angle: Float[Tensor, "#b #h t m"], pairing: str, *, by_tokens: bool = True
    ) -> "Turn":
        """Return a turn by float64 angles, by default angles that depend on the tokens."""
        return cls(angle.cos(), angle.sin(), pairing, by_tokens=by_tokens)

    def apply(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Return x with its first 2m dims rotated in pairs and the rest unchanged."""
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        dims = 2 * cos.shape[-1]
        x, rest = x[..., :dims], x[..., dims:]
        if self.pairing == "interleaved":
            a, b = x[..., ::2], x[..., 1::2]
            turned = stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = x.chunk(2, dim=-1)
            turned = cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def pairs_of(title: str, head_dim: int) -> int:
    """Return the number of pairs of a head, or raise if its dims are odd."""
    if head_dim % 2:
        raise InputError(f"{title} rotates pairs, so the head dim must be even, got {head_dim}.")
    return head_dim // 2
