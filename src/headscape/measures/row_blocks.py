"""Which queries are looked at, in blocks small enough to be computed at once.

Queries are split into eight bands. Late queries are bands 4 to 7 of a causal model and bands 2 to 5
of a bidirectional one, so that slashes up to half the length (a quarter on either side) are
averaged over the same queries and never meet the first key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

BANDS: Final = 8
ENTRIES: Final = 1 << 21
"""Scores in memory at once."""
SHORTEST: Final = 16
"""Tokens a sequence needs to have measures."""


@dataclass(frozen=True)
class Rows:
    """The queries of a sequence: bands, late queries, distances of slashes."""

    length: int
    causal: bool
    sample: int | None = None
    """Late queries to look at, evenly spaced; None looks at all queries."""

    @property
    def edges(self) -> list[int]:
        """The first query of each band, and the length."""
        return [self.length * band // BANDS for band in range(BANDS + 1)]

    @property
    def late(self) -> range:
        """The late queries, all of them."""
        edges = self.edges
        return range(edges[4], edges[8]) if self.causal else range(edges[2], edges[6])

    @property
    def slashes(self) -> range:
        """The distances of a slash."""
        reach = self.late.start
        return range(reach) if self.causal else range(1 - reach, reach)

    def blocks(self, maps: int) -> Iterator[tuple[int, slice]]:
        """Yield bands and consecutive queries within them; `maps` is the number of heads."""
        if self.sample is not None:
            count = min(self.sample, len(self.late))
            for number in range(count):
                at = self.late[number * len(self.late) // count]
                yield next(b for b in range(BANDS) if at < self.edges[b + 1]), slice(at, at + 1)
            return
        size = max(1, ENTRIES // (maps * self.length))
        for band in range(BANDS):
            stop = self.edges[band + 1]
            for start in range(self.edges[band], stop, size):
                yield band, slice(start, min(stop, start + size))
