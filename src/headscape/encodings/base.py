"""The base class of all encodings, the sizes it is built for and the options that all have.

A model calls an encoding in six places; a paper's class overrides the ones it uses. `turn`,
`stream`, `bias` and `mixing` take one argument with everything they may depend on (context.py):

    embed      the token embeddings, once, at the input       learned, sinusoidal
    turn       the angles queries and keys are rotated by     RoPE, xPos; PoPE overrides `rotate`
    stream     what it reads off the layer's input            CABLE, FoX, Inkling, Selective RoPE
    bias       the value added to the scores, as data         ALiBi, T5, Kerple, FIRE, CABLE ...
               from queries and keys                          Shaw, Transformer-XL, DeBERTa, GRAPE
    mixing     how whole rows of scores are mixed, as data    DAPE, DAPEv2, CoPE, Kerple (weight)
    weighting  how weights follow from scores, as data        stick-breaking

What a class overrides says what it does (`rotates`, `adds_bias` ...): nothing is declared twice.

A module stores its learned parameters and nothing else: every table is computed from the
arguments, so the result never depends on the lengths of earlier calls.

Five fields of every config act on the scores of any encoding: `window` hides far keys, `chunk` keys
of a different block of positions, `temperature` multiplies the scores of a query, `softcap` bounds
them, `sink` adds a key without a value to the softmax. Temperatures grow with the query's position:

    llama4      1 + a ln(1 + floor((i + 1) / n0))          Llama 4, on its layers without RoPE
    ministral   1 + a ln(1 + floor(i / n0))                Ministral 3, Mistral 4, on every layer
    inkling     1 + a ln max((i + 1) / n0, 1)              Inkling, on its layers without a window
    ssmax       s_h ln n_i                                 Nakanishi 2025, arXiv:2501.19399
    affine      s_h ln(i + 1) + b_h                        learned per head, starts at s = 0, b = 1

i counts from 0, so llama4 steps at i = n0 - 1 and ministral at i = n0. n_i is the number of keys
that query i sees: i + 1, or the window. s_h is learned and starts at 1; the first query has n = 1,
which makes its only score 0 and changes nothing. In a packed batch SSMax counts the keys of the
query's own document. The others take the positions handed in, so a packed document counts from its
own start; Llama 4 and Inkling count places in the cache instead, which differs for left padding
only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import get_annotations
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.bias import Bias
from headscape.call.mixing import Mixing
from headscape.call.positions import Positions, Turn, Visible
from headscape.call.weighting import Weighting
from headscape.encodings.context import (
    LayerContext,
    LayerInput,
    QueriesAndKeys,
    Side,
    Stream,
)
from headscape.encodings.measured_kernel import MeasuredKernel
from headscape.errors import InputError, at_least, check_types

LARGEST_INT = 2**31 - 1
"""The largest integer of a config; kernels and torch's indices take no larger window."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of the model that an encoding is built for."""

    heads: int
    head_dim: int
    width: int
    """Model width d, the last axis of what `stream` reads."""
    train_length: int | None = None
    """Context length in training, in tokens; None where it is not known."""
    causal: bool = True
    """False builds the bidirectional form."""

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, head_dim=self.head_dim, width=self.width)
        at_least(1, train_length=self.train_length)

    def trained(self, reader: str, field: str) -> int:
        """Return the context length in training; `reader` needs it if `field` is left out."""
        if self.train_length is None:
            raise InputError(
                f"{reader} depends on the context length in training: pass train_length, or set "
                f"{field}."
            )
        return self.train_length


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of an encoding; a subclass adds its own fields.

    Types, choices and the ranges that a subclass lists are checked here.
    """

    AT_LEAST: ClassVar[Mapping[str, int]] = {}
    """The smallest value of whole numbers, by field."""
    ABOVE: ClassVar[Mapping[str, float]] = {}
    """What numbers must be greater than, by field; None may be."""

    window: int | None = None
    """A query sees only the keys at a distance below this, its own included."""
    chunk: int | None = None
    """A query sees only the keys of its own block of this many positions."""
    temperature: Literal["none", "llama4", "ministral", "inkling", "ssmax", "affine"] = "none"
    """How a query's scores grow with its position: in steps of n0 (llama4, ministral), evenly from
    n0 on (inkling), or by factors that each head learns (ssmax, affine)."""
    temperature_rate: float = 0.1
    """a, the factor of the logarithm."""
    temperature_start: int | None = None
    """n0, the position where it starts to grow; the model's context length if left out."""
    temperature_on: Literal["scores", "content"] = "scores"
    """What the temperature multiplies: q.k and the bias, or q.k alone."""
    softcap: float | None = None
    """Scores s become softcap tanh(s / softcap)."""
    sink: bool = False
    """One learned score per head is added to the softmax's denominator."""

    def __post_init__(self) -> None:
        check_types(self)
        for item in fields(self):
            _check_range(item.name, getattr(self, item.name))
        for name, least in self.AT_LEAST.items():
            at_least(least, **{name: getattr(self, name)})
        for name, limit in self.ABOVE.items():
            value = getattr(self, name)
            if value is not None and value <= limit:
                raise InputError(f"{name} must be above {limit:g}, got {value}.")
        at_least(1, window=self.window, chunk=self.chunk)
        at_least(1, temperature_start=self.temperature_start)
        if self.window is not None and self.chunk is not None:
            raise InputError(
                f"window={self.window} and chunk={self.chunk} exclude each other: choose one."
            )
        if self.temperature == "none" and self.temperature_on != "scores":
            raise InputError(
                "temperature_on='content' has no effect without a temperature: set temperature too."
            )
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise InputError(f"softcap must be positive and finite, got {self.softcap}.")


def _check_range(name: str, value: object) -> None:
    """Refuse numbers that are not finite and integers beyond LARGEST_INT, also inside a tuple."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{name} must be finite, got {number}.")
        if isinstance(number, int) and abs(number) > LARGEST_INT:
            raise InputError(f"{name} must be at most {LARGEST_INT:,}, got {number:,}.")


SHARED = frozenset(item.name for item in fields(Config))
"""Fields that every encoding has."""

Grows = Callable[[Float[Tensor, "#b t"], float, int], Float[Tensor, "#b t"]]
TEMPERATURES: dict[str, Grows] = {
    "llama4": lambda at, rate, start: 1 + rate * ((at + 1) / start).floor().log1p(),
    "ministral": lambda at, rate, start: 1 + rate * (at / start).floor().log1p(),
    "inkling": lambda at, rate, start: 1 + rate * ((at + 1) / start).clamp(min=1).log(),
}
"""The formulas at the top of this file, as functions of position i, rate a and start n0."""


class Encoding(nn.Module):
    """No positional encoding; the base of all others.

    The four claims describe the positional part of the scores. `shift_invariant`: adding a constant
    to all positions changes nothing. `toeplitz`: it depends only on the distance i - j.
    `pointwise`: the score of a pair depends on no other pair. `context_dependent`: it depends on
    the tokens.

    Example:
        >>> import headscape as hs
        >>> alibi = hs.build("alibi", heads=12, head_dim=64, width=768, train_length=512)
        >>> isinstance(alibi, hs.Encoding), alibi.toeplitz
        (True, True)
    """

    name: ClassVar[str] = ""
    """Name to register a plugin's class under; the lower-case class name if empty."""
    title: str = ""
    """Display name in captions, legends and tables; the class name if a class does not set it."""
    paper: str = ""
    """Authors, year and arXiv number."""
    formula: str = ""
    """The score in one line of ASCII: A is the scaled q.k, i the query, j the key, h the head."""
    shows: Literal["bias", "final", "weights"] | None = "bias"
    """The quantity its figure shows; None if there is nothing to draw in the scores."""
    slug: ClassVar[str] = ""
    """How its figure's file name ends, if not with its name."""
    published: ClassVar[tuple[Mapping[str, str], ...]] = ()
    """Published tensor name -> our parameter, one mapping per public implementation."""
    no_bidirectional_form: str = ""
    """Why there is no bidirectional form; empty if there is one."""

    at_input: ClassVar[bool] = False
    """`embed` acts on the embeddings, once per model; the layers then use NoPE."""
    rotates: bool = False
    """Queries and keys are rotated."""
    widens: bool = False
    """`rotate` returns queries and keys wider than the head dim."""
    streams: bool = False
    """`stream` returns a value, so attention needs the layer's input."""
    adds_bias: bool = False
    """`bias` returns a value."""
    mixes: bool = False
    """`mixing` returns a value, so whole rows of scores are needed."""
    weighs: bool = False
    """`weighting` returns a value: the weights are not the softmax."""

    shift_invariant: bool = True
    toeplitz: bool = True
    pointwise: bool = True
    context_dependent: bool = False

    cacheable_keys: bool = True
    """A rotated key never changes, so a cache may store it rotated."""

    config_type: ClassVar[type[Config]] = Config
    """The class of `config`; taken from a class's annotation of it, if it has one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "title" not in vars(cls):
            cls.title = cls.__name__
        stated = get_annotations(cls).get("config")
        if isinstance(stated, type) and "config_type" not in vars(cls):
            cls.config_type = stated
        for flag, methods in OVERRIDDEN.items():
            if flag not in vars(cls):
                own = any(getattr(cls, name) is not getattr(Encoding, name) for name in methods)
                setattr(cls, flag, own)

    def __init__(self, shape: Shape, config: Config) -> None:
        super().__init__()
        if not shape.causal and self.no_bidirectional_form:
            raise InputError(
                f"{self.title} has no bidirectional form: {self.no_bidirectional_form}."
            )
        if self.mixes and (config.sink or config.softcap or config.temperature != "none"):
            name = "sink" if config.sink else "softcap" if config.softcap else "temperature"
            raise InputError(
                f"{self.title} mixes whole rows of scores, which leaves no place for a {name}: "
                f"leave {name} out."
            )
        if self.weighs and config.sink:
            raise InputError(f"{self.title} has no softmax that a sink could join: leave sink out.")
        if config.temperature == "ssmax" and not shape.causal:
            raise InputError("temperature='ssmax' counts the keys before a query: use causal=True.")
        self.shape = shape
        self.config = config
        self.sink_score = nn.Parameter(torch.zeros(shape.heads)) if config.sink else None
        learned = config.temperature == "ssmax"
        self.ssmax = nn.Parameter(torch.ones(shape.heads)) if learned else None
        affine = config.temperature == "affine"
        self.log_rate = nn.Parameter(torch.zeros(shape.heads)) if affine else None
        self.log_offset = nn.Parameter(torch.ones(shape.heads)) if affine else None

    def embed(self, x: Float[Tensor, "b t d"], at: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Return the token embeddings with their positions added.

        Args:
            x: Embeddings of the tokens.
            at: Position of each token.
        """
        return x

    def turn(self, side: Side) -> Turn | None:
        """Return what rotates queries or keys in pairs of dims; None rotates nothing."""
        return None

    def turns(self, asking: Side, asked: Side) -> tuple[Turn, Turn] | None:
        """Return what queries and keys are turned by; None unless both are turned in pairs.

        Args:
            asking: Positions and streams of the queries.
            asked: Those of the keys.
        """
        q, k = self.turn(asking), self.turn(asked)
        return None if q is None or k is None else (q, k)

    def rotate(self, x: Float[Tensor, "b h t e"], side: Side) -> Float[Tensor, "b h t wide"]:
        """Return the queries or keys, rotated; PoPE makes them wider.

        Args:
            x: Queries or keys.
            side: Their positions, whether they are queries or keys, and what was read off the
                tokens.
        """
        turn = self.turn(side)
        return x if turn is None else turn.apply(x)

    def stream(self, read: LayerInput) -> Stream | None:
        """Return what is read off this layer's input."""
        return None

    def bias(self, layer: LayerContext) -> Bias | None:
        """Return the additive bias."""
        return None

    def mixing(self, layer: LayerContext) -> Mixing | None:
        """Return how whole rows of scores are mixed; None adds the bias and nothing else."""
        return None

    @property
    def weighting(self) -> Weighting | None:
        """How the weights follow from the scores; None is the softmax."""
        return None

    @property
    def window(self) -> int | None:
        """A query sees the keys at a distance below this; None is no window."""
        return self.config.window

    @property
    def chunk(self) -> int | None:
        """A query sees the keys of its own block of this many positions; None is no chunk."""
        return self.config.chunk

    @property
    def reach(self) -> int | None:
        """No query sees a key at this distance or more; None is no limit."""
        return self.chunk if self.window is None else self.window

    @property
    def content_scale(self) -> float | None:
        """The factor of q.k that the paper prescribes; None leaves it to the model."""
        return None

    @property
    def softcap(self) -> float | None:
        """The bound of the scores; None is no bound."""
        return self.config.softcap

    def temperature(
        self, at: Int[Tensor, "#b t"], seen: Int[Tensor, "#b t"] | None = None
    ) -> Float[Tensor, "#b #h t"] | None:
        """Return what the scores of the queries at these positions are multiplied by.

        Args:
            at: Position of each query.
            seen: Number of keys that each query sees, which SSMax needs; by default all up to its
                position, within the window or chunk.
        """
        config = self.config
        if self.ssmax is not None:
            if seen is None:
                seen = at + 1 if self.window is None else (at + 1).clamp(max=self.window)
                seen = seen if self.chunk is None else at.remainder(self.chunk) + 1
            work = torch.promote_types(self.ssmax.dtype, torch.float32)
            return self.ssmax.to(work)[:, None] * seen.to(work).log()[:, None]
        if self.log_rate is not None and self.log_offset is not None:
            work = torch.promote_types(self.log_rate.dtype, torch.float32)
            growth = self.log_rate.to(work)[:, None] * at.to(work).log1p()[:, None]
            return growth + self.log_offset.to(work)[:, None]
        if config.temperature == "none":
            return None
        start = config.temperature_start
        if start is None:
            start = self.shape.trained(f"temperature={config.temperature!r}", "temperature_start")
        grows = TEMPERATURES[config.temperature]
        return grows(at.double(), config.temperature_rate, start)[:, None]

    def apply_temperature(
        self, q: Float[Tensor, "b h t e"], positions: Positions, visible: Visible
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "#b #h t"] | None]:
        """Return the queries and the temperature of their scores.

        With temperature_on="content" the queries are multiplied by the temperature instead, and the
        second is None.

        Args:
            q: The queries.
            positions: Positions of queries and keys.
            visible: Which keys each query sees.
        """
        if self.ssmax is not None and visible.q_group is not None:
            # Padding sees no key, and ln 0 is not finite.
            temperature = self.temperature(positions.q, visible.count(positions).clamp(min=1))
        else:
            temperature = self.temperature(positions.q)
        if temperature is None or self.config.temperature_on == "scores":
            return q, temperature
        return q * temperature[..., None].to(q.dtype), None

    def sink(self) -> Float[Tensor, " h"] | None:
        """Return the score per head of a key without a value."""
        return self.sink_score

    def initialise(self) -> None:
        """Set initial values of its own, after the model has initialised every layer."""

    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set parameters so that the causal bias is near a kernel; return whether there are any."""
        return False

    @torch.no_grad()
    def load_published(
        self, tensors: Mapping[str, Tensor], *, source: str = "the given tensors", prefix: str = ""
    ) -> None:
        """Copy the authors' tensors into the parameters, by the names in `published`.

        Args:
            tensors: A checkpoint's tensors by name; those that this encoding does not have are
                ignored.
            source: Where they come from, for error messages.
            prefix: What the checkpoint writes before the names in `published`, such as "h.3.attn.".
        """
        _copy_published(self, tensors, source, prefix)

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert an authors' tensor to the parameter's shape and parametrisation.

        Args:
            parameter: Name of the parameter here.
            value: The authors' tensor.
        """
        return value

    def conventions(self) -> dict[str, object]:
        """Return every field of the config, for checkpoints and captures."""
        return {item.name: getattr(self.config, item.name) for item in fields(self.config)}

    def claims(self) -> dict[str, bool]:
        """Return the four claims by name, with what temperature and softcap change."""
        by_position = self.config.temperature != "none"
        transformed = by_position or self.config.softcap is not None
        return {
            "shift_invariant": self.shift_invariant and not by_position,
            "toeplitz": self.toeplitz and not transformed,
            "pointwise": self.pointwise,
            "context_dependent": self.context_dependent or transformed,
        }

    def distances(self, positions: Positions, device: torch.device) -> tuple[Tensor, int]:
        """Return every distance a table must cover, ascending, and the column of distance 0.

        A causal table starts at distance 0, because the mask hides everything before it.

        Args:
            positions: Positions of queries and keys.
            device: Where the distances are needed.
        """
        low, high = positions.bounds
        low = min(0, 0 if self.shape.causal else low)
        return torch.arange(low, max(high, 0) + 1, device=device), -low

    def need_streams(self, layer: LayerContext) -> tuple[Stream, Stream]:
        """Return both streams, or raise if one is missing or has the wrong length."""
        queries, keys, positions = layer.queries, layer.keys, layer.positions
        if queries is None or keys is None:
            raise InputError(
                f"{self.title} needs the layer's input: put stream(LayerInput(x)) into the "
                f"LayerContext of bias(), or pass attention() the argument x."
            )
        for role, stream, at in (("queries", queries, positions.q), ("keys", keys, positions.k)):
            if stream.tokens not in (0, at.shape[1]):
                raise InputError(
                    f"the stream of the {role} has {stream.tokens} tokens, but there are "
                    f"{at.shape[1]} positions: make both from the same tokens."
                )
        return queries, keys

    def need_heads(self, layer: LayerContext) -> QueriesAndKeys:
        """Return queries and keys, or raise if they are missing or have the wrong length."""
        heads, positions = layer.heads, layer.positions
        if heads is None:
            raise InputError(
                f"the bias of {self.title} reads queries and keys: put QueriesAndKeys(q, k, scale) "
                f"into the LayerContext of bias(), or call attention()."
            )
        for name, x, at in (("queries", heads.q, positions.q), ("keys", heads.k, positions.k)):
            if x.shape[2] != at.shape[1]:
                raise InputError(
                    f"there are {x.shape[2]} {name}, but {at.shape[1]} positions: make both from "
                    f"the same tokens."
                )
        return heads

    def need_angle(self, side: Side) -> Float[Tensor, "#b #h t m"]:
        """Return the stream's angles, or raise if there are none or too few."""
        stream, tokens = side.stream, side.at.shape[1]
        if stream is None or stream.angle is None:
            raise InputError(
                f"{self.title} rotates by the layer's input: put stream(LayerInput(x)) into the "
                f"Side of rotate(), or pass attention() the argument x."
            )
        if stream.angle.shape[2] != tokens:
            raise InputError(
                f"the stream has {stream.angle.shape[2]} tokens, but there are {tokens} to rotate: "
                f"make both from the same tokens."
            )
        return stream.angle


OVERRIDDEN = {
    "at_input": ("embed",),
    "rotates": ("turn", "rotate"),
    "streams": ("stream",),
    "adds_bias": ("bias",),
    "mixes": ("mixing",),
    "weighs": ("weighting",),
}
"""The methods whose override sets each flag."""
SHARED_TENSORS = ("sink_score", "ssmax", "log_rate", "log_offset")
"""Parameters that any encoding may have; no encoding's paper publishes them."""


def _copy_published(
    encoding: Encoding, tensors: Mapping[str, Tensor], source: str, prefix: str
) -> None:
    """Copy tensors by the names in `encoding.published`, each with `prefix` in front."""
    mine = {
        name: value
        for name, value in encoding.named_parameters()
        if not name.startswith("base.") and name not in SHARED_TENSORS
    }
    if not mine:
        raise InputError(f"{encoding.title} has no learned tensors, so there is nothing to load.")
    converted = {}
    for theirs, ours in _names(encoding, set(mine), tensors, source, prefix).items():
        converted[ours] = encoding.from_published(ours, tensors[prefix + theirs])
        if converted[ours].shape != mine[ours].shape:
            raise InputError(
                f"{source}: {prefix + theirs!r} has shape "
                f"{tuple(tensors[prefix + theirs].shape)}, but this {encoding.title} needs "
                f"{tuple(mine[ours].shape)}; build it with the sizes of the checkpoint."
            )
    for ours, value in converted.items():
        mine[ours].copy_(value)


def _names(
    encoding: Encoding, mine: set[str], tensors: Mapping[str, Tensor], source: str, prefix: str
) -> dict[str, str]:
    """Return the mapping whose names are in `tensors`, limited to existing parameters."""
    spellings = [
        {theirs: ours for theirs, ours in each.items() if ours in mine}
        for each in encoding.published
    ]
    spellings = [each for each in spellings if set(each.values()) == mine]
    for each in spellings:
        if all(prefix + theirs in tensors for theirs in each):
            return each
    if not spellings:
        raise InputError(f"{encoding.title} lists no published names of {', '.join(sorted(mine))}.")
    closest = max(spellings, key=lambda each: sum(prefix + name in tensors for name in each))
    missing = next(prefix + theirs for theirs in closest if prefix + theirs not in tensors)
    raise InputError(
        f"{source} has no tensor {missing!r}, which {encoding.title} needs; pass prefix= if its "
        f"names start with the path of a layer."
    )
