"""Whom the laws are tried on: every row of ENCODINGS and the wrappers of the paper.

Fields are chosen so that a text of four training lengths reaches past every threshold: buckets,
clipped distances, FIRE's length, CoPE's table.
"""

from headscape.encodings import ENCODINGS, Encoding, Shape, build
from properties.laws import TRAINED, Factory

HEADS = (1, 8, 12, 25)
LENGTHS = (1, 2, 7, 64, 65, 4 * TRAINED)
QUICK = {1: LENGTHS, 8: (1, 64), 12: (2, 7, 4 * TRAINED), 25: (7, 65)}
"""Lengths by head count that a quick run tries; the slow run tries every pair."""
LONGEST = 10 * TRAINED
"""Rows of the learned table: what the laws reach, shifted positions included."""

WRAPPED = (
    "dape+kerple",
    "dape+alibi",
    "dape+rope",
    "dape+nope",
    "dapev2+kerple",
    "dapev2+cable",
    "dapev2+alibi",
    "dapev2+rope",
    "dapev2+fire",
)
SUBJECTS = (*ENCODINGS, *WRAPPED)

FIELDS: dict[str, dict[str, object]] = {
    "learned": {"length": LONGEST},
    "t5": {"buckets": 16, "max_distance": 40},
    "t5-clipped": {"max_distance": 20},
    "fire": {"length": 24.0},
    "cope": {"positions": 9},
}


def factory(name: str, **fields: object) -> Factory:
    """A maker of the named encoding for any shape."""
    chosen = FIELDS.get(name.rpartition("+")[2], {}) | fields

    def make(shape: Shape) -> Encoding:
        return build(
            name,
            heads=shape.heads,
            head_dim=shape.head_dim,
            width=shape.width,
            train_length=shape.train_length,
            causal=shape.causal,
            **chosen,
        )

    return make
