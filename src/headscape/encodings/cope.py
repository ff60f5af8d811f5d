"""CoPE: positions counted by gates on the content (Golovneva et al. 2024, arXiv:2405.18719).

    g_ij = sigmoid(A_ij) for visible keys, else 0        p_ij = min(sum_{j <= t <= i} g_it, n - 1)
    S_ij = A_ij + z_i(p_ij),   z_i(m) = q_i . e_m, linear between whole m

e is one table of n vectors per layer, shared by the heads, zero at the start. The official code
divides the whole sum by sqrt(e) (divide="sum"); the paper's snippet, DAPE and x-transformers
divide only the scores (divide="scores", our default). The gates use the scaled scores in all of
them. Separate gate keys, value gates and sharing across layers are absent.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from headscape.call.mixing import CountedTable
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext


@dataclass(frozen=True, kw_only=True)
class CoPEConfig(Config):
    """Options of CoPE."""

    positions: int = 64
    """n, the number of vectors; counts above n - 1 use the last one."""
    divide: Literal["scores", "sum"] = "scores"
    """What 1/sqrt(e) applies to."""

    AT_LEAST: ClassVar = {"positions": 2}


class CoPE(Encoding):
    """Contextual positions: a key's position is the sum of the gates from it to the query."""

    title = "CoPE"
    paper = "Golovneva et al. 2024, arXiv:2405.18719"
    formula = "S = A + q_i.e[sum_{j<=t<=i} sigmoid(A_it)]"
    published = ({"pos_emb": "table"},)
    no_bidirectional_form = "its positions are counted backwards from the query"
    toeplitz = False
    pointwise = False
    context_dependent = True
    config: CoPEConfig

    def __init__(self, shape: Shape, config: CoPEConfig) -> None:
        super().__init__(shape, config)
        self.table = nn.Parameter(torch.zeros(shape.head_dim, config.positions))

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [1, head dim, n], or x-transformers' [n, head dim], to [head dim, n]."""
        return value.T if value.ndim == 2 else value.squeeze(0)

    def mixing(self, layer: LayerContext) -> CountedTable:
        """Return the table; with divide="sum" its terms are divided like the scores."""
        root = self.shape.head_dim**0.5
        return CountedTable(self.table, root if self.config.divide == "sum" else 1.0)
