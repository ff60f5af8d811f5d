"""FoX: a forget gate per token (Lin et al. 2025, arXiv:2503.02130).

    f_t = sigmoid(x_t w + b)        G_i = sum_{t <= i} ln f_t        S_ij = A_ij + G_i - G_j

The sum includes the query's gate and excludes the key's. Since ln sigmoid(z) = -softplus(-z), this
is CABLE without weights and with the projection negated. Bidirectional, as in x-transformers: keys
to the right have separate gates, B_ij = R_j - R_i.

The official gate bias starts at 0, x-transformers' at 5 (gate_bias). The norms, output gate and
token shift of the official "Pro" block belong to the model and are absent.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import Bias, Pairwise, Slope
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream
from headscape.encodings.measured_kernel import MeasuredKernel


@dataclass(frozen=True, kw_only=True)
class FoXConfig(Config):
    """Options of FoX."""

    gate_bias: float = 0.0
    """Initial b; at 0 a token halves the weight of all before it, at 5 it keeps 99%."""


class FoX(Encoding):
    """The product of forget gates between key and query."""

    title = "FoX"
    paper = "Lin et al. 2025, arXiv:2503.02130"
    formula = "S = A + sum_{j<t<=i} ln sigmoid(x_t w + b)_h"
    published = (
        {"fgate_proj.weight": "gate.weight", "fgate_proj.bias": "gate.bias"},
        {"f_proj.weight": "gate.weight", "f_proj.bias": "gate.bias"},
        {"to_forget_gates.0.weight": "gate.weight", "to_forget_gates.0.bias": "gate.bias"},
    )
    toeplitz = False
    context_dependent = True
    config: FoXConfig

    def __init__(self, shape: Shape, config: FoXConfig) -> None:
        super().__init__(shape, config)
        self.gate = nn.Linear(shape.width, shape.heads * (1 if shape.causal else 2))
        self.initialise()

    def initialise(self) -> None:
        """Set the gate's bias to `gate_bias`."""
        nn.init.constant_(self.gate.bias, self.config.gate_bias)

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set b so that the mean of -ln f_t is the kernel's slope."""
        read = F.linear(kernel.rows, -self.gate.weight)
        self.gate.bias.copy_(-kernel.offsets(read, F.softplus, kernel.slope()))
        return True

    def stream(self, read: LayerInput) -> Stream:
        """Return G of every token, in float64; if bidirectional, R too."""
        total = F.logsigmoid(self.gate(read.x)).double().cumsum(dim=1).transpose(1, 2)
        if not self.shape.causal:
            forward, backward = total.chunk(2, dim=1)
            return Stream(forward, backward=backward)
        return Stream(total if read.carry is None else total + read.carry[..., None])

    def bias(self, layer: LayerContext) -> Bias:
        """Return G_i - G_j, and R_j - R_i for keys to the right."""
        queries, keys = self.need_streams(layer)
        if self.shape.causal:
            return Slope(None, queries.sums, keys.sums)

        def fn(rows: slice, cols: slice) -> Float[Tensor, "b h t s"]:
            assert queries.backward is not None
            assert keys.backward is not None
            left = queries.sums[:, :, rows, None] - keys.sums[:, :, None, cols]
            right = keys.backward[:, :, None, cols] - queries.backward[:, :, rows, None]
            return torch.where(
                layer.positions.block(rows, cols).distance()[:, None] >= 0, left, right
            )

        return Pairwise(fn, layer.positions)
