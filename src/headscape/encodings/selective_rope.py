"""Selective RoPE: angles summed over the tokens (Movahedi et al. 2025, arXiv:2511.17388).

    phi_t = causal convolution of W2 W1 x^_t            x^ = x, unit length in every slice of a head
    angle_ihm = base^(-2m/e) sum_{t <= i} phi_thm       S_ij = (R_i q_i).(R_j k_j) / sqrt(e)

for the m-th pair (m, m + e/2) of head h. The convolution is depthwise without bias and activation;
phi may have either sign. W1 has `rank` rows: 16 in the authors' code, 32 in their configs. Sums and
angles are float64. A cache keeps the sum and the last kernel - 1 inputs of the convolution.

Absent: the full-rank form, the sigmoid gate and the exp(bias) of the authors' options. Their
QK-norm after the rotation is a field of the model (`qk_norm`).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscape.encodings.base import Config, Encoding, Role, Shape
from headscape.encodings.rotation import pairs_of, powers, turn_by
from headscape.encodings.stream import Stream
from headscape.encodings.token_sums import running_sum, short_convolution
from headscape.errors import InputError, at_least

FLOOR = 1e-6
"""Added to a squared length before x is divided by it, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class SelectiveRoPEConfig(Config):
    """Options of Selective RoPE."""

    base: float = 500_000.0
    """Base of the fixed factors of the angles."""
    rank: int = 16
    """Rank of the projection of x."""
    kernel: int = 4
    """Taps of the convolution."""
    pairing: Literal["interleaved", "halves"] = "halves"
    """Which dims form a pair."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base <= 1:
            raise InputError(f"base must be above 1, got {self.base}.")
        at_least(1, rank=self.rank, kernel=self.kernel)


class SelectiveRoPE(Encoding):
    """Rotation by a running sum of learned angles."""

    title = "Selective RoPE"
    paper = "Movahedi et al. 2025, arXiv:2511.17388"
    formula = "S = (R_i q_i).(R_j k_j) / sqrt(e), angle_im = w_m sum_{t<=i} conv(W x)_thm"
    shows = "final"
    published = (
        {
            "phi_proj.0.weight": "down.weight",
            "phi_proj.1.weight": "up.weight",
            "phi_conv1d.weight": "taps",
        },
    )
    toeplitz = False
    context_dependent = True
    rotates = True
    streams = True
    config_type = SelectiveRoPEConfig
    config: SelectiveRoPEConfig

    def __init__(self, shape: Shape, config: SelectiveRoPEConfig) -> None:
        super().__init__(shape, config)
        self.pairs = pairs_of(self.title, shape.head_dim)
        if shape.width % shape.heads:
            raise InputError(
                f"Selective RoPE cuts the width into a slice per head, but {shape.heads} heads do "
                f"not divide {shape.width}."
            )
        self.down = nn.Linear(shape.width, config.rank, bias=False)
        self.up = nn.Linear(config.rank, shape.heads * self.pairs, bias=False)
        self.taps = nn.Parameter(torch.empty(shape.heads, self.pairs, config.kernel))
        nn.init.uniform_(self.taps, -(config.kernel**-0.5), config.kernel**-0.5)

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert the convolution's [h m, 1, taps] to [h, m, taps]."""
        return (
            value.reshape(self.taps.shape[:2] + value.shape[-1:]) if parameter == "taps" else value
        )

    def stream(
        self,
        x: Float[Tensor, "b t d"],
        carry: Float[Tensor, "b h kernel m"] | None = None,
        starts: Bool[Tensor, "#b t"] | None = None,
    ) -> Stream:
        """Return the angles of every token, and the last sum with the convolution's last inputs."""
        b, t, _ = x.shape
        slices = x.view(b, t, self.shape.heads, -1)
        unit = slices * (slices.square().sum(-1, keepdim=True) + FLOOR).rsqrt()
        phi: Tensor = self.up(self.down(unit.flatten(-2)))
        phi = phi.view(b, t, self.shape.heads, self.pairs).transpose(1, 2)
        before, tail = (None, None) if carry is None else (carry[:, :, 0], carry[:, :, 1:])
        phi, tail = short_convolution(phi, self.taps, tail, starts)
        total = running_sum(phi, before, starts)
        rate = powers(self.config.base, self.shape.head_dim).to(x.device)
        left = torch.cat([total[:, :, -1:], tail.double()], dim=2)
        return Stream(angle=total * rate, carry=left)

    def rotate(
        self,
        x: Float[Tensor, "b h t e"],
        at: Int[Tensor, "#b t"],
        role: Role,
        stream: Stream | None = None,
    ) -> Float[Tensor, "b h t e"]:
        """Return x with each token's pairs rotated by its angles."""
        return turn_by(x, self.need_angle(stream, x.shape[2]), self.config.pairing)
