"""A small GPT-2 around an encoding, and everything one pass through it computes.

Weights are random and float64. A pass returns the raw scores as well as the logits, because the
softmax hides a shift of a whole row. Comparisons raise `Violated` with a sentence where two results
differ.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call import definition
from headscape.call.definition import AttentionCall, Scores
from headscape.encodings import Encoding, Shape
from headscape.gpt2 import GPT2, ModelConfig

Factory = Callable[[Shape], Encoding]
"""Makes the encoding under test for a shape."""

HEAD_DIM = 4
TRAINED = 24
"""Context length in training that every encoding is built for."""
VOCABULARY = 23
TIGHT = 1e-9
"""Relative to the largest value compared; float64 rounding stays far below it."""


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
    """Return a GPT-2 with the factory's encodings and random float64 weights.

    All models of a size and seed share the weights outside their encodings, because drawing them
    takes longer than a pass: copy the model to change them.
    """
    base = _without_position(heads, layers, seed)
    # deepcopy keeps what is in its memo: copy the containers that get an encoding, share the
    # weights.
    parents = {base, base.blocks, *base.blocks, *(block.attention for block in base.blocks)}
    shared = {id(part): part for part in base.modules() if part not in parents}
    made = copy.deepcopy(base, shared)
    for number, block in enumerate(made.blocks):
        encoding = factory(shape(heads))
        randomise(encoding, seed + 10 * (number + 1))
        if encoding.at_input:
            made.position = encoding.double()
        else:
            block.attention.encoding = encoding.double()  # type: ignore[union-attr]
    return made


@lru_cache(maxsize=16)
def _without_position(heads: int, layers: int, seed: int) -> GPT2:
    config = ModelConfig(
        layers=layers,
        heads=heads,
        width=heads * HEAD_DIM,
        vocabulary=VOCABULARY,
        train_length=TRAINED,
        encoding="nope",
    )
    made = GPT2(config).double()
    randomise(made, seed)
    return made


@contextmanager
def copied_encodings(subject: GPT2) -> Iterator[None]:
    """Use copies of the model's encodings inside the block, so that passes are independent."""
    attentions: list[Any] = [block.attention for block in subject.blocks]
    position, encodings = subject.position, [each.encoding for each in attentions]
    subject.position = copy.deepcopy(position)
    for attention, encoding in zip(attentions, encodings, strict=True):
        attention.encoding = copy.deepcopy(encoding)
    try:
        yield
    finally:
        subject.position = position
        for attention, encoding in zip(attentions, encodings, strict=True):
            attention.encoding = encoding


@torch.no_grad()
def logits(
    subject: GPT2, text: Tensor, *, positions: Tensor | None = None, groups: Tensor | None = None
) -> Tensor:
    """Return the logits of one pass.

    It is run with copies of the encodings so that it changes no later pass.
    """
    with copied_encodings(subject):
        found: Tensor = subject(text, positions=positions, groups=groups)
    return found


def observe(
    subject: GPT2, text: Tensor, *, positions: Tensor | None = None, groups: Tensor | None = None
) -> Observed:
    """Return logits and scores of one pass, run with copies of the encodings."""
    with copied_encodings(subject):
        return observe_in_place(subject, text, positions, groups)


@torch.no_grad()
def observe_in_place(
    subject: GPT2, text: Tensor, positions: Tensor | None = None, groups: Tensor | None = None
) -> Observed:
    """Return logits and scores of one pass through the model itself."""
    scores: list[Scores] = []

    def watch(_: int, inputs: AttentionCall) -> None:
        scores.append(definition.scores(inputs))

    return Observed(subject(text, positions=positions, groups=groups, watch=watch), scores)


class Violated(AssertionError):  # noqa: N818
    """A property does not hold; the message is one sentence."""


def require(holds: bool, sentence: str) -> None:  # noqa: FBT001
    """Raise Violated with this sentence unless the condition holds."""
    if not holds:
        raise Violated(sentence)


def close(ours: Tensor, theirs: Tensor, tolerance: float = TIGHT) -> bool:
    """Return whether two tensors agree within the tolerance."""
    if not ours.numel():
        return True
    size = max(1.0, theirs.abs().max().item())
    return bool((ours - theirs).abs().max() <= tolerance * size)


def require_same(ours: Tensor, theirs: Tensor, what: str, tolerance: float = TIGHT) -> None:
    """Raise Violated unless two tensors agree within the tolerance."""
    require(
        ours.shape == theirs.shape,
        f"{what} have shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}",
    )
    if not close(ours, theirs, tolerance):
        gap = (ours - theirs).abs().max().item()
        size = theirs.abs().max().item()
        raise Violated(f"{what} differ by {gap:.3g}; the largest value is {size:.3g}")


def require_same_scores(
    ours: Observed, theirs: Observed, rows: slice, what: str, cut: slice = slice(None)
) -> None:
    """Raise Violated unless the visible raw scores of `rows` agree in every layer.

    `cut` selects the tokens of `theirs` that correspond to all tokens of `ours`.
    """
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        seen = mine.visible[:, :, rows].expand_as(mine.final[:, :, rows])
        expected = other.final[:, :, cut, cut][:, :, rows]
        require_same(mine.final[:, :, rows][seen], expected[seen], f"raw scores {what}")
