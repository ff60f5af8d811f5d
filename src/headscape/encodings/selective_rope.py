"""Selective RoPE: angles summed over the tokens (Movahedi et al. 2025, arXiv:2511.17388).

    phi_t = causal convolution of W2 W1 x^_t            x^ = x, unit length in every slice of a head
    angle_ihm = w_m sum_{t <= i} g_t (phi_thm + exp(b_hm))    S_ij = (R_i q_i).(R_j k_j) / sqrt(e)

for the m-th pair (m, m + e/2) of head h, w_m = base^(-2m/e). The convolution is depthwise without
bias and activation; phi may have either sign. W1 has `rank` rows: 16 in the authors' code, 32 in
their configs. The gate g and the bias b are options and absent by default. Sums and angles are
float64. A cache keeps the sum and the last inputs of the convolution.

With skip_conv, phi_t - phi_{t-1} replaces the convolution, so that the sum without a gate is phi_t
itself. The authors' cache drops phi_{t-1} in that form; ours keeps it, so decoding equals the full
pass.

Their QK-norm after the rotation is a field of the model (`qk_norm`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.positions import Turn, pairs_of, powers
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerInput, Side, Stream
from headscape.encodings.token_sums import running_sum, short_convolution
from headscape.errors import InputError, at_least

FLOOR = 1e-6
"""Added to a squared length before x is divided by it, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class SelectiveRoPEConfig(Config):
    """Options of Selective RoPE."""

    base: float = 500_000.0
    """Base of w; with rates="rfa" the largest of the angles a as a fraction of pi."""
    rank: int = 16
    """Rank of the projection of x."""
    kernel: int = 4
    """Taps of the convolution."""
    pairing: Literal["interleaved", "halves"] = "halves"
    """Which dims form a pair."""
    projection: Literal["low-rank", "per-head"] = "low-rank"
    """W2 W1, or a matrix per head over its slice of x, its columns of one learned length."""
    skip_conv: bool = False
    """Whether phi_t - phi_{t-1} replaces the convolution."""
    activation: Literal["none", "silu"] = "none"
    """What follows the convolution."""
    gate: Literal["none", "head", "head-low-rank", "pair"] = "none"
    """g = sigmoid(x^ U + c): one per head, one per head with a low-rank U, or one per pair."""
    gate_rank: int = 16
    """Rank of U for "head-low-rank" and "pair"."""
    bias: bool = False
    """Whether exp(b), which starts at 1, is added to phi."""
    rates: Literal["rope", "rfa"] = "rope"
    """w: powers of the base, or tan(a/2) of equally spaced angles a, the largest scaled to 1."""
    rate_max: float = 1.0
    """The largest w."""
    learned_rates: bool = False
    """Whether w is learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rates == "rope" and self.base <= 1:
            raise InputError(f"base must be above 1, got {self.base}.")
        if self.rates == "rfa" and not 0 < self.base < 1:
            raise InputError(f"base must be between 0 and 1 for rates='rfa', got {self.base}.")
        if self.skip_conv and self.activation != "none":
            raise InputError(
                f"activation={self.activation!r} has no effect with skip_conv: leave it out."
            )
        at_least(1, rank=self.rank, kernel=self.kernel, gate_rank=self.gate_rank)


class SelectiveRoPE(Encoding):
    """Rotation by a running sum of learned angles."""

    title = "Selective RoPE"
    paper = "Movahedi et al. 2025, arXiv:2511.17388"
    formula = "S = (R_i q_i).(R_j k_j) / sqrt(e), angle_im = w_m sum_{t<=i} conv(W x)_thm"
    shows = "final"
    published = tuple(
        {
            "phi_proj.0.weight": "down.weight",
            "phi_proj.1.weight": "up.weight",
            "phi_proj.weight": "columns",
            "phi_proj.scalar": "lengths",
            "phi_conv1d.weight": "taps",
            "phi_bias": "bias_log",
            "temperature": "learned_rate",
            **gate,
        }
        for gate in (
            {"phase_gate_proj.weight": "gate.weight", "phase_gate_proj.bias": "gate.bias"},
            {
                "phase_gate_proj.0.weight": "gate_down.weight",
                "phase_gate_proj.1.weight": "gate.weight",
                "phase_gate_proj.1.bias": "gate.bias",
            },
        )
    )
    toeplitz = False
    context_dependent = True
    config: SelectiveRoPEConfig

    def __init__(self, shape: Shape, config: SelectiveRoPEConfig) -> None:
        super().__init__(shape, config)
        heads, pairs = shape.heads, pairs_of(self.title, shape.head_dim)
        if shape.width % heads:
            raise InputError(
                f"Selective RoPE cuts the width into a slice per head, but {heads} heads do "
                f"not divide {shape.width}."
            )
        if config.rates == "rfa" and pairs == 1:
            raise InputError("rates='rfa' needs at least two pairs: choose a head dim above 2.")
        self.pairs = pairs
        self.down = self.up = self.columns = self.lengths = None
        if config.projection == "low-rank":
            self.down = nn.Linear(shape.width, config.rank, bias=False)
            self.up = nn.Linear(config.rank, heads * pairs, bias=False)
        else:
            self.columns = nn.Parameter(torch.randn(heads, shape.width // heads, pairs))
            self.lengths = nn.Parameter(torch.ones(heads))
        self.taps = None
        if not config.skip_conv:
            bound = config.kernel**-0.5
            taps = torch.empty(heads, pairs, config.kernel).uniform_(-bound, bound)
            self.taps = nn.Parameter(taps)
        self.bias_log = nn.Parameter(torch.zeros(heads, pairs)) if config.bias else None
        rate = self._fixed_rate().float()
        self.learned_rate = nn.Parameter(rate) if config.learned_rates else None
        self.gate_down = self.gate = None
        if config.gate != "none":
            low = config.gate != "head"
            self.gate_down = nn.Linear(shape.width, config.gate_rank, bias=False) if low else None
            outputs = heads * pairs if config.gate == "pair" else heads
            self.gate = nn.Linear(config.gate_rank if low else shape.width, outputs)

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [h m, 1, taps] of the convolution, [1 1 h m] of the bias, [1 1 1 m] of rates."""
        if parameter == "taps":
            return value.reshape(self.shape.heads, self.pairs, -1)
        if parameter == "bias_log":
            return value.reshape(self.shape.heads, self.pairs)
        return value.flatten() if parameter == "learned_rate" else value

    def stream(self, read: LayerInput) -> Stream:
        """Return the angles of every token, and the last sum with the convolution's last inputs."""
        b, t, _ = read.x.shape
        slices = read.x.view(b, t, self.shape.heads, -1)
        unit = slices * (slices.square().sum(-1, keepdim=True) + FLOOR).rsqrt()
        before, tail = (
            (None, None) if read.carry is None else (read.carry[:, :, 0], read.carry[:, :, 1:])
        )
        phi, tail = short_convolution(
            self._projected(unit), self._taps(read.x.dtype), tail, read.starts
        )
        phi = F.silu(phi) if self.config.activation == "silu" else phi
        phi = phi if self.bias_log is None else phi + self.bias_log.exp()[:, None]
        if self.gate is not None:
            flat = unit.flatten(-2)
            gate = self.gate(flat if self.gate_down is None else self.gate_down(flat)).sigmoid()
            phi = phi * gate.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        total = running_sum(phi, before, read.starts)
        rate = self._fixed_rate() if self.learned_rate is None else self.learned_rate.double()
        left = torch.cat([total[:, :, -1:], tail.double()], dim=2)
        return Stream(angle=total * rate.to(read.x.device), carry=left)

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each token's pairs by its angles."""
        return Turn.by(self.need_angle(side), self.config.pairing)

    def _projected(self, unit: Float[Tensor, "b t h c"]) -> Float[Tensor, "b h t m"]:
        """Return phi before the convolution."""
        if self.columns is not None and self.lengths is not None:
            matrix = self.lengths[:, None, None] * F.normalize(self.columns, dim=1)
            return unit.transpose(1, 2) @ matrix
        assert self.down is not None
        assert self.up is not None
        phi: Tensor = self.up(self.down(unit.flatten(-2)))
        return phi.view(*phi.shape[:2], self.shape.heads, self.pairs).transpose(1, 2)

    def _taps(self, dtype: torch.dtype) -> Float[Tensor, "h m taps"]:
        """Return the learned taps, or those of a difference."""
        if self.taps is not None:
            return self.taps
        device = next(self.parameters()).device
        difference = torch.tensor([-1.0, 1.0], dtype=dtype, device=device)
        return difference.expand(self.shape.heads, self.pairs, 2)

    def _fixed_rate(self) -> Float[Tensor, " m"]:
        """Return w of every pair, in float64."""
        config = self.config
        if config.rates == "rope":
            return config.rate_max * powers(config.base, self.shape.head_dim)
        half = torch.linspace(0, config.base * math.pi / 2, self.pairs, dtype=torch.float64)
        return config.rate_max * half.tan() / half.tan().max()
