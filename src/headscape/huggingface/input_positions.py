"""Positions at the input: the module in place of a learned table, and one before the first layer.

Models with a table of their own (GPT-2, BERT) call it with the positions and add what it returns to
the token embeddings: `PositionTable` stands in its place and returns zeros, or what a learned or
sinusoidal encoding adds. Other models (Llama, GPT-NeoX, T5) get the same before their first layer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscape.encodings import Encoding
from headscape.huggingface.mask_rule import MaskRule
from headscape.huggingface.own_encoding import argument_names

AT_INPUT = "headscape_positions"
"""The first layer's child."""


class PositionTable(nn.Module):
    """What an encoding adds to the embeddings; zeros unless it acts at the input."""

    def __init__(self, encoding: Encoding, tokens: nn.Embedding) -> None:
        super().__init__()
        self.encoding = encoding
        self.tokens = (tokens,)  # a tuple, so that its weight is not listed twice

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the vectors to add, in the dtype of the token embeddings."""
        weight = self.tokens[0].weight
        nothing = torch.zeros(
            *position_ids.shape, weight.shape[1], dtype=weight.dtype, device=weight.device
        )
        return self.encoding.embed(nothing, position_ids)


@dataclass(frozen=True)
class Embed:
    """A hook before a model's first layer: adds positions to its input."""

    names: list[str]

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Return the changed arguments."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        encoding = getattr(module, AT_INPUT)
        at = MaskRule.unpack(given["attention_mask"]).positions.q
        given[self.names[0]] = encoding.embed(given[self.names[0]], at)
        return (), given


def add_before(layer: nn.Module, encoding: Encoding) -> None:
    """Add an encoding's positions to the input of a model's first layer."""
    if not hasattr(layer, AT_INPUT):
        layer.register_forward_pre_hook(Embed(argument_names(layer)), with_kwargs=True)
    setattr(layer, AT_INPUT, encoding)
