"""The interface through which models are captured, measured and scored.

Capture, figures, evaluation, tasks and generation take a `Model` and nothing else. A training
run, a GPT2 in memory, a run with its RoPE stretched and a published model all provide it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer

Watch = Callable[[int, AttentionCall], None]
"""Called with a layer, counted from 0, and what its attention is a function of."""

Edit = Callable[[AttentionCall, Tensor], Tensor]
"""Takes one layer's attention inputs and its output [b h t ev], returns the output to use."""


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What one layer does with position."""

    encoding: str
    """Name in the table of encodings."""
    conventions: Mapping[str, object]
    """Every field of the encoding, defaults written out, and the score scale."""
    claims: Mapping[str, bool]
    """What the encoding says of itself: shift_invariant, toeplitz, pointwise, context_dependent."""
    shows: str = "bias"
    """The quantity that shows what position does in this layer: bias or final."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a model is, as data."""

    name: str
    """What its column, caption or legend says, for example CABLE."""
    layers: tuple[LayerSpec, ...]
    """One entry per layer."""
    heads: int
    head_dim: int
    width: int
    vocabulary: int
    train_length: int | None
    """Context length in training, in tokens; None where that is not known."""
    causal: bool
    shows: str = "bias"
    """The quantity that shows what position does: bias, or final where nothing is added."""
    preset: str = "custom"
    """The size it was made from."""
    trained: bool = True
    """False for weights as initialised."""
    task: str | None = None
    """The task it was trained on; None for a model of text."""
    seed: int | None = None
    """The training seed, where known."""
    recipe: str | None = None
    """SHA-256 of everything it was trained with except the seed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: run, step, checkpoint hash, corpus hash."""

    @property
    def encoding(self) -> str:
        """The name of the encoding; if layers differ, their names in order, joined by commas."""
        return ",".join(dict.fromkeys(layer.encoding for layer in self.layers))

    @property
    def layers_differ(self) -> bool:
        """Whether layers have different encodings or conventions, as in a schedule."""
        return any(layer != self.layers[0] for layer in self.layers)

    def conventions_of(self, layers: Sequence[int]) -> dict[str, object]:
        """The conventions of some layers, counted from 0.

        If layers differ: encoding and conventions by the layer's number.
        """
        if not self.layers_differ:
            return dict(self.layers[0].conventions)
        each = {str(number): self.layers[number] for number in layers}
        return {
            number: {"encoding": layer.encoding, **layer.conventions}
            for number, layer in each.items()
        }

    def claims_of(self, layers: Sequence[int]) -> dict[str, bool]:
        """What is true of all of some layers; they depend on the context if one of them does."""
        each = [self.layers[layer].claims for layer in layers]
        return {
            name: (any if name == "context_dependent" else all)(claims[name] for claims in each)
            for name in set(each[0]).intersection(*each)
        }


@runtime_checkable
class Model(Protocol):
    """A model that can be captured and scored.

    Example:
        >>> import headscape as hs
        >>> from headscape.models.model import Model
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> isinstance(model, Model)
        True
    """

    @property
    def spec(self) -> Spec:
        """What it is."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer; None for a model that only takes token numbers."""
        ...

    @property
    def dataset(self) -> Dataset | None:
        """The text it was trained on; None for a task or where that is not known."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights: equal fingerprints mean equal losses."""
        ...

    def for_length(self, length: int) -> "Model":
        """The model that reads `length` tokens: itself, unless its RoPE is stretched to fit."""
        ...

    def observe(self, tokens: Int[Tensor, "b t"], layers: Sequence[int], watch: Watch) -> None:
        """Run tokens and call `watch` for each of `layers`; stop after the last of them."""
        ...

    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        ...

    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """The likeliest next token after each token that `where` selects, in row order."""
        ...

    def length_error(self, length: int) -> str | None:
        """Why it cannot read so many tokens, or None if it can."""
        ...

    def cost(self, length: int) -> float:
        """Work of a window of this length, in any fixed unit: for the time left."""
        ...


@runtime_checkable
class ReadsSound(Protocol):
    """A model that reads sound instead of tokens."""

    def sound(
        self, given: object, *, length: int | None, seed: int
    ) -> tuple[Float32[np.ndarray, "t ..."], int]:
        """Return what it reads and the number of frames; noise from a seed if `given` is None."""
        ...


@runtime_checkable
class Editable(Protocol):
    """A model that can run with one layer's attention changed."""

    def edited_losses(
        self, windows: Int[Tensor, "b t_plus_1"], first: int, layer: int, edits: Sequence[Edit]
    ) -> Iterator[Float[Tensor, "b scored"]]:
        """Yield `losses` for each edit of a layer, counted from 0; earlier layers run once."""
        ...
