"""Stick-breaking attention: nearer keys take their share first (Tan et al. 2025, arXiv:2410.17980).

    w_ij = sigmoid(A_ij) prod_{j < t < i} (1 - sigmoid(A_it)),   j < i
    rest_i = 1 - sum_j w_ij

No softmax and no position: the order of the keys is the encoding. A query gives each key, from the
nearest to the farthest, a part of what the nearer ones left; the rest goes to its own value v_i.
With current="attended" the query's own key takes part, as the nearest; remainder="dropped" leaves
the rest out, so weights sum to less than 1, as in the authors' reference function. Their layer
excludes the current key and adds rest_i v_i, our default.

The query's own key is the last that it sees, so keys must be in order of position. A sink has no
softmax to join and is refused.
"""

from dataclasses import dataclass
from typing import Literal

from headscape.call.weighting import Sticks
from headscape.encodings.base import Config, Encoding


@dataclass(frozen=True, kw_only=True)
class StickBreakingConfig(Config):
    """Options of stick-breaking."""

    current: Literal["excluded", "attended"] = "excluded"
    """Whether the query's own key takes part."""
    remainder: Literal["own", "dropped"] = "own"
    """Whether what is left goes to the query's own value."""


class StickBreaking(Encoding):
    """Weights by breaking a stick from the nearest key to the farthest."""

    title = "Stick-breaking"
    paper = "Tan et al. 2025, arXiv:2410.17980"
    formula = "w = s(A_ij) prod_{j<t<i} (1 - s(A_it)), the rest to v_i"
    shows = "weights"
    no_bidirectional_form = "it breaks the stick from the query backwards"
    config: StickBreakingConfig

    @property
    def weighting(self) -> Sticks:
        """Which keys take part, and where the rest goes."""
        config = self.config
        return Sticks(config.current == "attended", config.remainder == "own")
