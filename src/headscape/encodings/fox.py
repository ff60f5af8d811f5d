"""FoX: a forget gate per token (Lin et al. 2025, arXiv:2503.02130).

    f_t = sigmoid(x_t w + b)        G_i = sum_{t <= i} ln f_t        S_ij = A_ij + G_i - G_j

The gate of the query counts, that of the key does not. Since ln sigmoid(z) = -softplus(-z), this
is CABLE without weights with the projection's sign turned. Bidirectional, as in x-transformers:
gates of their own for keys to the right, B_ij = R_j - R_i.

The official gate starts at b = 0, x-transformers' at 5 (gate_bias). The official "Pro" block's
norms, output gate and token shift are the model's business and absent here.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.bias import Bias, Pairwise, Slope
from headscape.encodings.base import Config, Encoding, Shape, Stream
from headscape.types import Positions


@dataclass(frozen=True, kw_only=True)
class FoXConfig(Config):
    """The gate's start."""

    gate_bias: float = 0.0
    """b at the start; 0 forgets half per token, 5 almost nothing."""


class FoX(Encoding):
    """The product of forget gates between key and query."""

    paper = "Lin et al. 2025, arXiv:2503.02130"
    formula = "S = A + sum_{j<t<=i} ln sigmoid(x_t w + b)_h"
    adds_bias = True
    toeplitz = False
    context_dependent = True
    config_type = FoXConfig
    config: FoXConfig

    def __init__(self, shape: Shape, config: FoXConfig) -> None:
        super().__init__(shape, config)
        self.gate = nn.Linear(shape.width, shape.heads * (1 if shape.causal else 2))
        self.initialise()

    def initialise(self) -> None:
        """Start the gate's bias where the config says."""
        nn.init.constant_(self.gate.bias, self.config.gate_bias)

    def stream(
        self, x: Float[Tensor, "b t d"], carry: Float[Tensor, "b h"] | None = None
    ) -> Stream:
        """G of every token, in float64, and R where keys to the right are seen."""
        total = F.logsigmoid(self.gate(x)).double().cumsum(dim=1).transpose(1, 2)
        if not self.shape.causal:
            forward, backward = total.chunk(2, dim=1)
            return Stream(forward, backward=backward)
        return Stream(total if carry is None else total + carry[..., None])

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Bias:
        """G_i - G_j, and R_j - R_i to the right."""
        assert queries is not None
        assert keys is not None
        if self.shape.causal:
            return Slope(None, queries.total, keys.total)

        def fn(rows: slice, cols: slice) -> Float[Tensor, "b h t s"]:
            assert queries.backward is not None
            assert keys.backward is not None
            left = queries.total[:, :, rows, None] - keys.total[:, :, None, cols]
            right = keys.backward[:, :, None, cols] - queries.backward[:, :, rows, None]
            return torch.where(positions.block(rows, cols).distance()[:, None] >= 0, left, right)

        return Pairwise(fn)
