"""CoPE: positions counted by gates on the content (Golovneva et al. 2024, arXiv:2405.18719).

    g_ij = sigmoid(A_ij) for visible keys, else 0        p_ij = min(sum_{j <= t <= i} g_it, n - 1)
    S_ij = A_ij + z_i(p_ij),   z_i(m) = q_i . e_m, linear between whole m

e is one table of n vectors per layer, shared by the heads, zero at the start. The official code
divides the whole sum by sqrt(e) (divide="sum"); the paper's snippet, DAPE and x-transformers
divide only the scores (divide="scores", our default). The gates use the scaled scores in all of
them. Separate gate keys, value gates and sharing across layers are absent.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headscape.encodings.base import Config, Encoding, Shape
from headscape.errors import at_least


@dataclass(frozen=True, kw_only=True)
class CoPEConfig(Config):
    """Options of CoPE."""

    positions: int = 64
    """n, the number of vectors; counts above n - 1 use the last one."""
    divide: Literal["scores", "sum"] = "scores"
    """What 1/sqrt(e) applies to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, positions=self.positions)


class CoPE(Encoding):
    """Contextual positions: a key's position is the sum of the gates from it to the query."""

    title = "CoPE"
    paper = "Golovneva et al. 2024, arXiv:2405.18719"
    formula = "S = A + q_i.e[sum_{j<=t<=i} sigmoid(A_it)]"
    published = ({"pos_emb": "table"},)
    no_bidirectional_form = "its positions are counted backwards from the query"
    mixes = True
    toeplitz = False
    pointwise = False
    context_dependent = True
    config_type = CoPEConfig
    config: CoPEConfig

    def __init__(self, shape: Shape, config: CoPEConfig) -> None:
        super().__init__(shape, config)
        self.table = nn.Parameter(torch.zeros(shape.head_dim, config.positions))

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [1, head dim, n], or x-transformers' [n, head dim], to [head dim, n]."""
        return value.T if value.ndim == 2 else value.squeeze(0)

    def mix(
        self,
        scores: Float[Tensor, "b h t s"],
        bias: Float[Tensor, "#b h t s"] | None,
        visible: Bool[Tensor, "#b 1 t s"],
        queries: Float[Tensor, "b h t e"] | None = None,
    ) -> Float[Tensor, "b h t s"]:
        """Return the scores plus z_i at the counted position."""
        assert queries is not None
        # At least float32: a bfloat16 count stops growing at 256.
        work = torch.promote_types(scores.dtype, torch.float32)
        gates = scores.to(work).sigmoid() * visible
        count = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.config.positions - 1)
        z = queries.to(work) @ self.table.to(work)
        # A count that is not a number has no index; the last line makes its score NaN.
        index = count.nan_to_num(nan=0.0)
        below = index.floor()
        lower = z.gather(-1, below.long())
        upper = z.gather(-1, index.ceil().long())
        term = lower + (count - below) * (upper - lower)
        if self.config.divide == "sum":
            term = term / self.shape.head_dim**0.5
        return scores + term.to(scores.dtype)
