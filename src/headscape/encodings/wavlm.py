"""WavLM: T5's buckets times a gate per query (Chen et al. 2022, arXiv:2110.13900).

    B_ij = g_ih r_h[bucket(i - j)],   g_ih = a (b c_h - 1) + 2,   a, b = sigmoid of two sums of y_i

y_i = V x_ih + v has eight numbers. x_ih is the head's slice of the layer's input, and all heads
share V and v. a is the sigmoid of the sum of the first four numbers, b that of the last four.

WavLM has 320 buckets up to a distance of 800. It has one table, in its first layer, and V, v and c
in every layer; here every layer has its own table, unless a model shares the encoding over layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscape.call.bias import RelativeCurves
from headscape.encodings.base import Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream
from headscape.encodings.t5 import BucketConfig, bucket
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class WavLMConfig(BucketConfig):
    """Options of WavLM's bias."""

    buckets: int = 320
    max_distance: int = 800


class WavLM(Encoding):
    """One scalar per head and bucket of distances, gated by the query's token."""

    title = "WavLM"
    paper = "Chen et al. 2022, arXiv:2110.13900"
    formula = "S = A + g_h(x_i) r_h[bucket(i-j)]"
    published = (
        {
            "rel_attn_embed.weight": "table.weight",
            "gru_rel_pos_linear.weight": "gate.weight",
            "gru_rel_pos_linear.bias": "gate.bias",
            "gru_rel_pos_const": "constant",
        },
    )
    toeplitz = False
    context_dependent = True
    config: WavLMConfig

    def __init__(self, shape: Shape, config: WavLMConfig) -> None:
        super().__init__(shape, config)
        if shape.width % shape.heads:
            raise InputError(
                f"WavLM needs a width that is a multiple of its heads, got width {shape.width} and "
                f"{shape.heads} heads."
            )
        self.table = nn.Embedding(config.buckets, shape.heads)
        self.gate = nn.Linear(shape.width // shape.heads, 8)
        self.constant = nn.Parameter(torch.ones(shape.heads))

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert the constant's [1 h 1 1] to [h]."""
        return value.flatten() if parameter == "constant" else value

    def stream(self, read: LayerInput) -> Stream:
        """Return the gate of every token."""
        y = self.gate(read.x.reshape(*read.x.shape[:2], self.shape.heads, -1))
        a, b = (part.sum(-1).sigmoid() for part in y.chunk(2, dim=-1))
        gate = a * (b * self.constant - 1) + 2
        return Stream(query=gate.transpose(1, 2)[..., None])

    def bias(self, layer: LayerContext) -> RelativeCurves:
        """Return the gated r_h[bucket] by distance."""
        queries, _ = self.need_streams(layer)
        assert queries.query is not None
        distance, zero = self.distances(layer.positions, self.table.weight.device)
        sizes = {"buckets": self.config.buckets, "max_distance": self.config.max_distance}
        column = bucket(distance, **sizes, causal=self.shape.causal)
        return RelativeCurves(queries.query, self.table.weight.T[:, None], zero, column=column)
