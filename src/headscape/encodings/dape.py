"""DAPE: a perceptron over all heads' scores and biases (Zheng et al. 2024, arXiv:2405.14722).

    S_.ij = A_.ij + B_.ij + W2 leaky(W1 [A_.ij ; B_.ij] + b1) + b2

for every pair (i, j) on its own; leaky is LeakyReLU(0.01), [A ; B] the scores and biases of all
heads. It wraps any encoding that adds a bias; over one that adds none (NoPE, RoPE) the input is
A alone. The authors add B again outside the perceptron (base_bias="added", our default); the
CABLE code's own DAPE does not (base_bias="channel-only").
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from headscape.call.mixing import PairPerceptron
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.combined import Wrapper
from headscape.encodings.context import LayerContext

LAYERS = {
    "0.weight": "inner.weight",
    "0.bias": "inner.bias",
    "2.weight": "outer.weight",
    "2.bias": "outer.bias",
}
"""The layers of the authors' nn.Sequential, and ours."""


@dataclass(frozen=True, kw_only=True)
class DAPEConfig(Config):
    """Options of DAPE."""

    hidden: int = 32
    """Hidden units."""
    base_bias: Literal["added", "channel-only"] = "added"
    """added: B is also added to the scores; channel-only: only the perceptron reads B."""

    AT_LEAST: ClassVar = {"hidden": 1}


class DAPE(Wrapper):
    """A perceptron across heads, for each pair of tokens."""

    title = "DAPE"
    paper = "Zheng et al. 2024, arXiv:2405.14722"
    formula = "S = A + B + mlp([A;B])"
    published = (
        {f"mlp2.{name}": ours for name, ours in LAYERS.items()},
        {f"mlp_dape.{name}": ours for name, ours in LAYERS.items()},
    )
    config: DAPEConfig

    def __init__(self, shape: Shape, config: DAPEConfig, base: Encoding) -> None:
        super().__init__(shape, config, base)
        channels = shape.heads * (2 if base.adds_bias else 1)
        self.inner = nn.Linear(channels, config.hidden)
        self.outer = nn.Linear(config.hidden, shape.heads)

    def mixing(self, layer: LayerContext) -> PairPerceptron:
        """Return the perceptron."""
        inner, outer = self.inner, self.outer
        return PairPerceptron(
            inner.weight, inner.bias, outer.weight, outer.bias, self.config.base_bias == "added"
        )
