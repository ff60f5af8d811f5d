"""GRAPE-M: RoPE with learned frequencies and a learned phase (Zhang et al. 2025, arXiv:2512.07805).

    contextual   angle_im = -exp(f_m) sum_{t < i} sigmoid((x_t w + b) / scale)
    index        angle_im = -exp(f_m / scale) i

for the pairs (m, m + e/2). The rotation is by the negative angle, opposite to Llama's. The sum
leaves the token itself out. f starts at RoPE's frequencies; the authors store it times `scale` (16)
in the index form, which makes its learning rate larger. All heads share the phase and the
frequencies unless `per_head` and `per_head_frequencies` are set. An earlier version of the code has
softplus(x_t w + b) (`increments`). The bias starts at softplus^-1(1e-3), a step of 0.39 through the
sigmoid. Sums and angles are float64.

The authors norm queries and keys after the rotation, with a weight; that is the model's `qk_norm`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.rotation import Turn, pairs_of, powers
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerInput, Side, Stream
from headscape.encodings.token_sums import running_sum
from headscape.errors import InputError

FIRST_STEP = 1e-3


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base <= 1:
            raise InputError(f"base must be above 1, got {self.base}.")
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale must be positive and finite, got {self.scale}.")
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
    config_type = GRAPEMultiplicativeConfig
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
        found = (self.log_frequency.double() / self.stored).exp()
        return found.view(-1, 1, found.shape[-1])
