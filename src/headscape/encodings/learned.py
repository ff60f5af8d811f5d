"""Learned absolute positions, as in GPT-2 (Radford et al. 2019).

    x_i = token_i + table[i + offset]

A table of `length` rows, N(0, 0.02) in a model. A position past the last row is an error. OPT has
two unused rows in front of position 0: offset 2.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.encodings.base import Config, Encoding, Shape
from headscape.errors import InputError, at_least


@dataclass(frozen=True, kw_only=True)
class LearnedConfig(Config):
    """Options of learned positions."""

    length: int | None = None
    """Number of positions; the training length if left out."""
    offset: int = 0
    """Unused rows in front of position 0."""

    AT_LEAST: ClassVar = {"offset": 0}


class Learned(Encoding):
    """One learned vector per position."""

    title = "Learnable"
    paper = "Radford et al. 2019 (GPT-2)"
    formula = "x = token + table[i]"
    shows = None
    published = ({"wpe.weight": "table.weight"}, {"embed_positions.weight": "table.weight"})
    shift_invariant = False
    config: LearnedConfig

    def __init__(self, shape: Shape, config: LearnedConfig) -> None:
        super().__init__(shape, config)
        at_least(1, length=config.length)
        self.length = config.length or shape.trained(self.title, "length")
        self.table = nn.Embedding(self.length + config.offset, shape.width)

    def embed(self, x: Float[Tensor, "b t d"], at: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Return x plus the row of each position."""
        last = int(at.max())
        if last >= self.length:
            raise InputError(
                f"position {last} is past the learned table's {self.length} rows: shorten the "
                f"sequence to {self.length} tokens or choose an encoding that extrapolates."
            )
        embedded: Tensor = self.table(at + self.config.offset)
        return x + embedded
