"""GRAPE: ALiBi with gates, and RoPE with a learned phase (Zhang et al. 2025, arXiv:2512.07805).

The additive forms:

    GRAPE-A    B_ij = -(i - j) m_h softplus(omega_h) g_ij
               g_ij = softplus(u_h . k_j / sqrt(e))      gate="key"
                      softplus(w_h . q_i / sqrt(e))      gate="query"
                      their sum                          gate="both"
    GRAPE-AP   B_ij = m_h sum_{j < t <= i} ln sigmoid(p_i . R(t) p'_t / P)      gate="path"

m are ALiBi's slopes by fairseq's rule, u and w are divided by their lengths (unless `unit_key` or
`unit_query` is off), softplus(omega) starts at 1. p = x W_p has P numbers per head, p' is p over
its root mean square, and R(t) turns every pair (m, m + P/2) by -t radians. Only the key side turns,
so GRAPE-AP depends on absolute positions.

The multiplicative form, GRAPE-M, is RoPE with learned frequencies and a learned phase:

    contextual   angle_im = -exp(f_m) sum_{t < i} sigmoid((x_t w + b) / scale)
    index        angle_im = -exp(f_m / scale) i

for the pairs (m, m + e/2). The rotation is by the negative angle, opposite to Llama's. The sum
leaves the token itself out. f starts at RoPE's frequencies; the authors store it times `scale` (16)
in the index form, which makes its learning rate larger. All heads share the phase and the
frequencies unless `per_head` and `per_head_frequencies` are set. An earlier version of the code has
softplus(x_t w + b) (`increments`). The bias starts at softplus^-1(1e-3), a step of 0.39 through the
sigmoid. Sums and angles are float64.

The authors' models normalise q and k per head (RMS, with weights), before the gates and after the
rotation; that norm is the model's `qk_norm`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import Bias, Pairwise, RelativeCurves
from headscape.call.positions import Positions, Turn, pairs_of, powers
from headscape.encodings.alibi import fairseq
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Side, Stream
from headscape.encodings.token_sums import running_sum
from headscape.errors import InputError

ONE = math.log(math.e - 1)
"""softplus of this is 1."""
FIRST_STEP = 1e-3
"""softplus of the gate's bias in GRAPE-M, at first."""


@dataclass(frozen=True, kw_only=True)
class GRAPEConfig(Config):
    """Options of GRAPE's additive forms."""

    gate: Literal["key", "query", "both", "path"] = "key"
    """What the decay reads: the key, the query, both, or (GRAPE-AP) every token between them."""
    unit_key: bool = True
    """Whether u is divided by its length."""
    unit_query: bool = True
    """Whether w is divided by its length."""
    path_dim: int | None = None
    """P, numbers per head and token of GRAPE-AP; None is the head dim."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path_dim is not None and (self.path_dim < 2 or self.path_dim % 2):
            raise InputError(f"path_dim must be even and at least 2, got {self.path_dim}.")
        if self.path_dim is not None and self.gate != "path":
            raise InputError(f"path_dim belongs to gate='path', got gate={self.gate!r}.")
        for name, used in (("unit_key", ("key", "both")), ("unit_query", ("query", "both"))):
            if not getattr(self, name) and self.gate not in used:
                raise InputError(
                    f"{name}=False has no effect with gate={self.gate!r}: leave it out."
                )


class GRAPE(Encoding):
    """A decay by distance whose rate depends on the tokens."""

    title = "GRAPE-A"
    paper = "Zhang et al. 2025, arXiv:2512.07805"
    formula = "S = A - (i-j) m_h softplus(omega_h) softplus(u_h.k_j / sqrt(e))"
    published = ({"omega": "omega", "u": "u", "v": "w", "c_p.weight": "path.weight"},)
    no_bidirectional_form = "its decay is defined for keys before the query"
    toeplitz = False
    context_dependent = True
    config: GRAPEConfig

    def __init__(self, shape: Shape, config: GRAPEConfig) -> None:
        super().__init__(shape, config)
        gate, size = config.gate, (shape.heads, shape.head_dim)
        self.streams = self.path_form = gate == "path"
        self.shift_invariant = not self.path_form
        self.dims = config.path_dim or shape.head_dim
        if self.path_form and self.dims % 2:
            raise InputError(f"GRAPE with gate='path' needs an even head dim, got {self.dims}.")
        self.omega = self.u = self.w = self.path = None
        if self.path_form:
            self.path = nn.Linear(shape.width, shape.heads * self.dims, bias=False)
            return
        self.omega = nn.Parameter(torch.full((shape.heads,), ONE))
        if gate != "query":
            self.u = nn.Parameter(torch.randn(size) / math.sqrt(shape.head_dim))
        if gate != "key":
            self.w = nn.Parameter(torch.randn(size) / math.sqrt(shape.head_dim))

    def stream(self, read: LayerInput) -> Stream | None:
        """Return p by query and p' by key, for GRAPE-AP."""
        if self.path is None:
            return None
        p = self.path(read.x).unflatten(-1, (self.shape.heads, self.dims)).transpose(1, 2)
        return Stream(query=p, key=F.rms_norm(p, (self.dims,)))

    def bias(self, layer: LayerContext) -> Bias:
        """Return the gated decay by distance, or GRAPE-AP's sums over the tokens between."""
        if self.path is not None:
            return self.along_path(layer.positions, *self.need_streams(layer))
        heads = self.need_heads(layer)
        assert self.omega is not None
        distance, zero = self.distances(layer.positions, self.omega.device)
        # At least float32: bfloat16 cannot represent every distance above 256.
        work = torch.promote_types(self.omega.dtype, torch.float32)
        rate = (F.softplus(self.omega.to(work)) * self.slopes(work))[:, None, None]
        decay = -distance.to(work)[None, None]
        by_query = heads.q.new_zeros(1, *heads.q.shape[1:3], 1, dtype=work)
        if self.w is not None:
            by_query = rate * _gate(heads.q, self.w, work, unit=self.config.unit_query)
        if self.u is None:
            return RelativeCurves(by_query, decay, zero)
        by_key = rate * _gate(heads.keys(), self.u, work, unit=self.config.unit_key)
        return RelativeCurves(by_query, decay, zero, (by_key, decay))

    def along_path(self, positions: Positions, queries: Stream, keys: Stream) -> Pairwise:
        """Return m_h times the sums of ln sigmoid; queries are the last of the keys."""
        assert queries.query is not None
        assert keys.key is not None
        p, turned = queries.query, _turned(keys.key, positions.k)
        own = torch.arange(turned.shape[2] - p.shape[2], turned.shape[2], device=p.device)
        slopes = self.slopes(torch.float64)[:, None, None]

        def fn(rows: slice, cols: slice) -> Float[Tensor, "b h t s"]:
            steps = F.logsigmoid(p[:, :, rows] @ turned.mT / self.dims)
            # Float64, because only differences of the sums matter.
            total = steps.double().cumsum(-1)
            here = total.gather(3, own[rows, None].expand(*total.shape[:3], 1))
            return slopes * (here - total[..., cols])

        return Pairwise(fn, positions)

    def slopes(self, dtype: torch.dtype) -> Float[Tensor, " h"]:
        """Return m of every head."""
        device = next(self.parameters()).device
        return torch.tensor(fairseq(self.shape.heads), dtype=dtype, device=device)


def _gate(
    x: Float[Tensor, "b h t e"], direction: Float[Tensor, "h e"], work: torch.dtype, *, unit: bool
) -> Float[Tensor, "b h t 1"]:
    direction = direction.to(work)
    direction = F.normalize(direction, dim=-1, eps=1e-6) if unit else direction
    return F.softplus(x.to(work) @ direction[:, :, None] / math.sqrt(x.shape[-1]))


def _turned(x: Float[Tensor, "b h t c"], at: Tensor) -> Float[Tensor, "b h t c"]:
    """Return every pair (m, m + c/2) turned by minus its position in radians."""
    angle = at.double()[:, None, :, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


@dataclass(frozen=True, kw_only=True)
class GRAPEMultiplicativeConfig(Config):
    """Options of GRAPE-M."""

    phase: Literal["contextual", "index"] = "contextual"
    """What the frequencies are multiplied by: a sum over the tokens, or the position."""
    increments: Literal["sigmoid", "softplus"] = "sigmoid"
    """What a token adds to the phase."""
    per_head: bool = False
    """Whether every head has its own phase."""
    per_head_frequencies: bool = False
    """Whether every head has its own frequencies."""
    scale: float = 16.0
    """The constant of the formulas: it divides a token's logit, or in the index form f."""
    base: float = 10_000.0
    """Base of the frequencies that f starts at."""

    ABOVE: ClassVar = {"base": 1, "scale": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phase == "index" and (self.per_head or self.increments != "sigmoid"):
            name = "per_head" if self.per_head else "increments"
            raise InputError(f"{name} has no effect with phase='index': leave it out.")


class GRAPEMultiplicative(Encoding):
    """Rotation with learned frequencies, by a learned phase or by the position."""

    title = "GRAPE-M"
    paper = "Zhang et al. 2025, arXiv:2512.07805"
    formula = "S = (R_i q_i).(R_j k_j) / sqrt(e), angle_im = -exp(f_m) sum_{t<i} s((x_t w + b)/16)"
    shows = "final"
    published = (
        {
            "grape.log_freq": "log_frequency",
            "omega_proj.weight": "step.weight",
            "omega_proj.bias": "step.bias",
        },
    )
    toeplitz = False
    context_dependent = True
    config: GRAPEMultiplicativeConfig

    def __init__(self, shape: Shape, config: GRAPEMultiplicativeConfig) -> None:
        super().__init__(shape, config)
        pairs_of(self.title, shape.head_dim)
        self.streams = config.phase == "contextual"
        self.stored = 1.0 if self.streams else config.scale
        start = self.stored * powers(config.base, shape.head_dim).log()
        start = start.repeat(shape.heads, 1) if config.per_head_frequencies else start
        self.log_frequency = nn.Parameter(start.float())
        phases = shape.heads if config.per_head else 1
        self.step = nn.Linear(shape.width, phases) if self.streams else None

    def initialise(self) -> None:
        """Set the gate's bias."""
        if self.step is not None:
            nn.init.constant_(self.step.bias, math.log(math.expm1(FIRST_STEP)))

    def stream(self, read: LayerInput) -> Stream | None:
        """Return the angles of every token, and the last sum; nothing in the index form."""
        if self.step is None:
            return None
        z, scale = self.step(read.x), self.config.scale
        step = torch.sigmoid(z / scale) if self.config.increments == "sigmoid" else F.softplus(z)
        step = step.double().transpose(1, 2)[..., None]
        total = running_sum(step, read.carry, read.starts)
        return Stream(angle=-(total - step) * self._frequency(), carry=total[:, :, -1])

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each token's pairs by its angles."""
        if self.step is None:
            angle = -side.at[:, None, :, None] * self._frequency()
            return Turn.by(angle, "halves", by_tokens=False)
        return Turn.by(self.need_angle(side), "halves")

    def _frequency(self) -> Float[Tensor, "#h 1 m"]:
        frequency = (self.log_frequency.double() / self.stored).exp()
        return frequency.view(-1, 1, frequency.shape[-1])
