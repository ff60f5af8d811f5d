"""What a position encoding can change in a transformer, and NoPE, which changes nothing.

An encoding meets the model in five places; a paper's class overrides the ones it uses:

    embed    the token embeddings, once, at the input         learned, sinusoidal
    rotate   queries and keys, after their projections        RoPE, xPos
    stream   what a layer's input says about each token       CABLE, FoX
    bias     the value added to the scores, as data           ALiBi, T5, Kerple, FIRE, CABLE ...
    mix      the scores themselves                            DAPE, DAPEv2, CoPE

Nothing positional is stored on a module: what is learned is a parameter, all else is a function
of its arguments, so a short pass after a long one equals a fresh one.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscape.bias import Bias
from headscape.errors import InputError
from headscape.io.typecheck import check_types
from headscape.types import Positions

Role = Literal["query", "key"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The model around an encoding."""

    heads: int
    head_dim: int
    width: int
    """Model width d: what `stream` reads."""
    train_length: int
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "width", "train_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class Config:
    """An encoding's conventions; every subclass names its own fields.

    Types and choices are checked here, so a subclass checks only ranges.
    """

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True)
class Stream:
    """What a layer keeps per token beyond keys and values.

    `total` is a running sum over tokens, in float64 because only its differences matter; `weight`
    belongs to a token as a query and is not needed of cached ones; `backward` is a second running
    sum for keys to the right of their query.
    """

    total: Float[Tensor, "b h t"]
    weight: Float[Tensor, "b h t"] | None = None
    backward: Float[Tensor, "b h t"] | None = None


class Encoding(nn.Module):
    """No positional encoding; the base of all others.

    The claims are about the positional part of the scores: `shift_invariant`, moving all positions
    by a constant changes nothing; `toeplitz`, it depends on the distance alone; `pointwise`, the
    score of a pair depends on no other pair; `context_dependent`, it depends on the tokens.
    """

    paper: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    no_bidirectional_form: ClassVar[str] = ""
    """Why there is no bidirectional form; empty where there is one."""

    at_input: ClassVar[bool] = False
    """Acts on the embeddings, once per model, instead of in every layer."""
    adds_bias: bool = False
    """`bias` returns a value."""
    mixes: bool = False
    """`mix` does more than add the bias, so whole rows of scores are needed."""

    shift_invariant: bool = True
    toeplitz: bool = True
    pointwise: bool = True
    context_dependent: bool = False

    rotates: bool = False
    """`rotate` does something."""
    cacheable_keys: bool = True
    """A rotated key never changes again, so a cache may hold it rotated."""

    config_type: ClassVar[type[Config]] = Config

    def __init__(self, shape: Shape, config: Config) -> None:
        super().__init__()
        if not shape.causal and self.no_bidirectional_form:
            name = type(self).__name__
            raise InputError(f"{name} has no bidirectional form: {self.no_bidirectional_form}.")
        self.shape = shape
        self.config = config

    def embed(self, x: Float[Tensor, "b t d"], at: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Token embeddings at the input, given their positions."""
        return x

    def rotate(
        self,
        x: Float[Tensor, "b h t e"],
        at: Int[Tensor, "#b t"],
        role: Role,
    ) -> Float[Tensor, "b h t e"]:
        """Queries or keys, given their positions."""
        return x

    def stream(
        self,
        x: Float[Tensor, "b t d"],
        carry: Float[Tensor, "b h"] | None = None,
    ) -> Stream | None:
        """What this layer's input says about each token; `carry` is the total so far."""
        return None

    def bias(
        self,
        positions: Positions,
        queries: Stream | None = None,
        keys: Stream | None = None,
    ) -> Bias | None:
        """The additive bias; `keys` may reach further back than `queries` (a cache)."""
        return None

    def mix(
        self,
        scores: Float[Tensor, "b h t s"],
        bias: Float[Tensor, "#b h t s"] | None,
        visible: Bool[Tensor, "#b 1 t s"],
        queries: Float[Tensor, "b h t e"] | None = None,
    ) -> Float[Tensor, "b h t s"]:
        """Final scores before the mask, from scaled content scores and the dense bias."""
        return scores if bias is None else scores + bias

    def initialise(self) -> None:
        """Set what a model-wide initialisation must not overwrite; called after it."""

    def conventions(self) -> dict[str, object]:
        """Every field, for checkpoints and captures."""
        return {item.name: getattr(self.config, item.name) for item in fields(self.config)}

    def claims(self) -> dict[str, bool]:
        """What is claimed of the scores' positional part."""
        names = ("shift_invariant", "toeplitz", "pointwise", "context_dependent")
        return {name: bool(getattr(self, name)) for name in names}

    def distances(self, positions: Positions, device: torch.device) -> tuple[Tensor, int]:
        """Every distance a table must cover, ascending, and the column of distance 0.

        Causal: 0 to the largest, as earlier entries are masked. Otherwise from the smallest on.
        """
        low, high = positions.bounds
        low = min(0, 0 if self.shape.causal else low)
        return torch.arange(low, max(high, 0) + 1, device=device), -low
