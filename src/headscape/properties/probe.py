"""A small GPT-2 around an encoding, and everything one pass through it computes.

Weights are random and float64. A pass returns the raw scores as well as the logits, because the
softmax hides a shift of a whole row.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscape.attention import reference
from headscape.attention.reference import AttentionInputs, Scores
from headscape.encodings import Encoding, Shape
from headscape.gpt2 import GPT2, ModelConfig

Factory = Callable[[Shape], Encoding]
"""Makes the encoding under test for a shape."""

HEAD_DIM = 4
TRAINED = 24
"""Context length in training that every encoding is built for."""
VOCABULARY = 23


@dataclass(frozen=True)
class Observed:
    """What one pass computes: the logits, and the scores of every layer."""

    logits: Tensor
    scores: list[Scores]


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw every parameter from a normal distribution, so that no term is 0 by initialisation."""
    random = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        std = 0.5 if value.dim() < 2 else value[0].numel() ** -0.5
        value.copy_(torch.randn(value.shape, generator=random, dtype=torch.float64) * std)


def draw(*shape: int, seed: int) -> Tensor:
    """Return standard normal numbers in float64."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    """Return random tokens."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=random)


def shape(heads: int, head_dim: int = HEAD_DIM) -> Shape:
    """Return the shape of a small causal model."""
    return Shape(heads=heads, head_dim=head_dim, width=heads * head_dim, train_length=TRAINED)


def model(factory: Factory, heads: int, layers: int = 2, seed: int = 0) -> GPT2:
    """Return a GPT-2 with the factory's encodings and random float64 weights."""
    made = GPT2(
        ModelConfig(
            layers=layers,
            heads=heads,
            width=heads * HEAD_DIM,
            vocabulary=VOCABULARY,
            train_length=TRAINED,
            encoding="nope",
        )
    )
    for block in made.blocks:
        encoding = factory(shape(heads))
        if encoding.at_input:
            made.position = encoding
        else:
            block.attention.encoding = encoding  # type: ignore[union-attr]
    randomise(made, seed)
    return made.double()


@torch.no_grad()
def observe(
    subject: GPT2, text: Tensor, *, positions: Tensor | None = None, groups: Tensor | None = None
) -> Observed:
    """Return one pass through a copy of the model, so that passes cannot affect one another."""
    return observe_in_place(copy.deepcopy(subject), text, positions, groups)


@torch.no_grad()
def observe_in_place(
    subject: GPT2, text: Tensor, positions: Tensor | None = None, groups: Tensor | None = None
) -> Observed:
    """Return one pass through the model itself."""
    scores: list[Scores] = []

    def watch(_: int, inputs: AttentionInputs) -> None:
        scores.append(reference.scores(inputs))

    return Observed(subject(text, positions=positions, groups=groups, watch=watch), scores)
