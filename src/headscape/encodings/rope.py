"""RoPE: queries and keys turned by their positions (Su et al. 2021, arXiv:2104.09864).

    (a, b) -> (a cos(i w_m) - b sin(i w_m), b cos(i w_m) + a sin(i w_m)),   w_m = base^(-2m/R)

for the m-th pair of the first R = rotary_fraction * e dims; the rest pass through. Pairs are
(2m, 2m+1) if interleaved (RoFormer, GPT-J, x-transformers, the CABLE code: our default) or
(m, m + R/2) if halves (Llama, GPT-NeoX). The two agree only after permuting weights, so it is a
field and is recorded. nanochat rotates by -i w_m (direction="backward").

`scaling` stretches the frequencies for contexts longer than the trained one:

    none      w_m = base^(-2m/R)                                    m = 0 .. R/2 - 1
    linear    w_m / f                                               arXiv:2306.15595
    ntk       base becomes base f^(R/(R-2))
    dynamic   base becomes base (f L/L0 - (f - 1))^(R/(R-2)), L >= L0 the current length
    yarn      fast pairs unchanged, slow ones divided by f, a ramp between; cos and sin are
              multiplied by 0.1 ln f + 1                                       arXiv:2309.00071
    llama3    the same with a smooth ramp over wavelengths     arXiv:2407.21783
    proportional   w_m / f for the first pairs, 0 for the rest      Gemma 4
    longrope  w_m / s_m up to L0 tokens, w_m / l_m beyond, for all tokens; cos and sin are
              multiplied by sqrt(1 + ln f / ln L0)                  arXiv:2402.13753

f is the factor, L0 the trained length.

With `learned_frequencies` every frequency above is multiplied by exp(a_m), where a is learned and
starts at 0, as in Mistral Large 4. All heads of a layer share one a; Mistral's layers share it too,
ours have one each. A pair of frequency 0 does not turn whatever its a_m.

RoPE-ID (Wertheimer et al. 2026, arXiv:2603.18017) rotates a subset of the dims with high
frequencies, so that every pair that turns has made whole turns within the trained length. It needs
no field of its own: scaling="proportional" with rotary_fraction=0.5 and pairing="halves" turns the
fast half of the pairs, dims of the first and third quarter, and the slowest of them turns once
within L tokens if base <= (L / 2 pi)^(2e / (e - 4)). The rule is from the abstract, the half, its
place and the whole turns from the public reviews; the authors' code, exact frequencies and
temperature were not seen.

Angles are float64 and cos, sin are cast: bfloat16 positions are wrong past 256.

With scaling="dynamic" or "longrope" the frequencies depend on the current length, so keys of
earlier tokens change as the text grows. The cache therefore stores keys unrotated, and beyond the
trained length decoding differs from a full pass, which rotates all tokens by the final length.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.positions import Turn, powers
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import Side
from headscape.errors import InputError, at_least


@dataclass(frozen=True, kw_only=True)
class RoPEConfig(Config):
    """Options of RoPE."""

    pairing: Literal["interleaved", "halves"] = "interleaved"
    """Which dims form a pair."""
    direction: Literal["forward", "backward"] = "forward"
    """The sign of the angle: i w_m (Llama) or -i w_m (nanochat)."""
    rotary_fraction: float = 1.0
    """The fraction of the head dim that is rotated."""
    base: float = 10_000.0
    """Base of the frequencies; the longest wavelength is below 2 pi base tokens."""
    learned_frequencies: bool = False
    """Every pair's frequency has a learned factor, which starts at 1 and which all heads share."""
    scaling: Literal[
        "none", "linear", "ntk", "dynamic", "yarn", "llama3", "proportional", "longrope"
    ] = "none"
    """How frequencies are stretched for longer contexts."""
    factor: float = 1.0
    """The factor by which the context is extended."""
    trained_length: int | None = None
    """Context length the frequencies were trained at; the model's if left out."""
    beta_fast: float = 32.0
    """YaRN: pairs with at least this many turns within the trained length are unchanged."""
    beta_slow: float = 1.0
    """YaRN: pairs with fewer turns than this are interpolated."""
    truncate: bool = True
    """YaRN: round the ends of the ramp outwards to whole pairs."""
    low_freq_factor: float = 1.0
    """Llama 3: pairs with fewer turns than this are interpolated."""
    high_freq_factor: float = 4.0
    """Llama 3: pairs with at least this many turns are unchanged; equal factors are a step."""
    short_factor: tuple[float, ...] = ()
    """LongRoPE: the divisor of each pair up to the trained length."""
    long_factor: tuple[float, ...] = ()
    """LongRoPE: the divisor of each pair beyond it."""
    mscale: float | None = None
    """YaRN of DeepSeek: with mscale_all_dim, (0.1 mscale ln f + 1) / (0.1 mscale_all_dim ln f + 1)
    multiplies cos and sin; alone it has no effect."""
    mscale_all_dim: float | None = None
    """YaRN of DeepSeek, see mscale."""
    mscale_scores: bool = False
    """YaRN of DeepSeek's latent attention: (0.1 mscale_all_dim ln f + 1)^2 multiplies all scores,
    those of unrotated dims included."""
    attention_factor: float | None = None
    """Multiplier of cos and sin; if left out, 0.1 ln f + 1 for YaRN, sqrt(1 + ln f / ln L0) for
    LongRoPE and 1 for the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rotary_fraction <= 1:
            raise InputError(f"rotary_fraction must be in (0, 1], got {self.rotary_fraction}.")
        if self.factor < 1:
            raise InputError(f"factor must be at least 1, got {self.factor}.")
        if self.base <= 1:
            raise InputError(f"base must be above 1, got {self.base}.")
        if not self.beta_fast > self.beta_slow > 0:
            raise InputError(
                f"beta_fast ({self.beta_fast}) must be above beta_slow ({self.beta_slow}), "
                f"and both above 0."
            )
        at_least(1, trained_length=self.trained_length)
        if self.scaling == "longrope" and self.trained_length == 1:
            raise InputError("scaling='longrope' needs a trained_length of at least 2, got 1.")
        if self.mscale_scores and (self.scaling != "yarn" or self.mscale_all_dim is None):
            raise InputError("mscale_scores needs scaling='yarn' and mscale_all_dim.")
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise InputError(f"attention_factor must be positive, got {self.attention_factor}.")
        smallest = min(self.short_factor + self.long_factor, default=1.0)
        if smallest <= 0:
            raise InputError(
                f"short_factor and long_factor must contain positive numbers only, got {smallest}."
            )
        if self.low_freq_factor > self.high_freq_factor:
            raise InputError(
                f"low_freq_factor ({self.low_freq_factor}) must not be above "
                f"high_freq_factor ({self.high_freq_factor})."
            )


@dataclass(frozen=True, kw_only=True)
class Band:
    """The arguments of a frequency function."""

    dims: int
    base: float
    factor: float
    trained: int
    """L0, the context length in training; 0 for the scalings that do not read it."""
    length: int
    """L, the current length."""
    beta_fast: float
    beta_slow: float
    low_freq_factor: float
    high_freq_factor: float
    truncate: bool
    turned: int
    """Proportional: how many pairs turn."""
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]


Frequencies = Float[Tensor, " m"]


def none(band: Band) -> Frequencies:
    """Return the original frequencies."""
    return powers(band.base, band.dims)


def linear(band: Band) -> Frequencies:
    """Return the frequencies divided by the factor (position interpolation)."""
    return none(band) / band.factor


def rotary_width(head_dim: int, fraction: float) -> int:
    """Return R: truncated as in transformers, but 88 x (60 / 88) is 60."""
    return int(head_dim * fraction + 1e-9)


def ntk_base(base: float, factor: float, head_dim: int, fraction: float = 1.0) -> float:
    """Return the larger base of NTK scaling, base f^(R/(R-2)), for a rotary width above 2."""
    width = rotary_width(head_dim, fraction)
    return float(base * factor ** (width / (width - 2)))


def ntk(band: Band) -> Frequencies:
    """Return frequencies of a larger base, which changes slow pairs most."""
    return powers(ntk_base(band.base, band.factor, band.dims), band.dims)


def dynamic(band: Band) -> Frequencies:
    """Return NTK frequencies for the current length; up to the trained length they are plain."""
    ratio = max(band.length, band.trained) / band.trained
    growth = band.factor * ratio - (band.factor - 1)
    return powers(ntk_base(band.base, growth, band.dims), band.dims)


def yarn(band: Band) -> Frequencies:
    """Interpolate slow bands only, found by how often they turn within the trained length."""

    def turning(times: float) -> float:
        return (
            band.dims * math.log(band.trained / (2 * math.pi * times)) / (2 * math.log(band.base))
        )

    low, high = turning(band.beta_fast), turning(band.beta_slow)
    if band.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, band.dims - 1)
    m = torch.arange(-(-band.dims // 2), dtype=torch.float64)
    # A ramp of width 0 would divide by 0; any small width gives the same step. Where no pair turns
    # once within the trained length, the width is negative and every pair is kept, as in the
    # authors' code.
    slow = ((m - low) / ((high - low) or 0.001)).clamp(0, 1)
    return linear(band) * slow + none(band) * (1 - slow)


def llama3(band: Band) -> Frequencies:
    """Divide the frequencies of long wavelengths by the factor, with a ramp to the short ones."""
    plain = none(band)
    turns = band.trained * plain / (2 * math.pi)
    # A ramp of width 0 (Llama 4 Scout) is a step, as that of any small width.
    width = (band.high_freq_factor - band.low_freq_factor) or 1e-12
    keep = ((turns - band.low_freq_factor) / width).clamp(0, 1)
    return plain * keep + linear(band) * (1 - keep)


def proportional(band: Band) -> Frequencies:
    """Return the frequencies of the whole head for the first pairs and 0 for the others."""
    frequencies = linear(band)
    frequencies[band.turned :] = 0
    return frequencies


def longrope(band: Band) -> Frequencies:
    """Divide every frequency by a number of its own, which depends on the current length."""
    chosen = band.long_factor if band.length > band.trained else band.short_factor
    return none(band) / torch.tensor(chosen, dtype=torch.float64)


SCALINGS: dict[str, Callable[[Band], Frequencies]] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "proportional": proportional,
    "longrope": longrope,
}
"""Each returns the R/2 frequencies, rounded up for an odd R, in float64."""
BY_TRAINED_LENGTH = {"dynamic", "yarn", "llama3", "longrope"}
"""The scalings that read the trained length."""


class RoPE(Encoding):
    """Rotation of queries and keys."""

    title = "RoPE"
    paper = "Su et al. 2021, arXiv:2104.09864"
    formula = "S = (R_i q_i).(R_j k_j) / sqrt(e)"
    shows = "final"
    published = ({"rotary_emb.alpha": "log_factor"},)
    toeplitz = False
    context_dependent = True
    config: RoPEConfig

    def __init__(self, shape: Shape, config: RoPEConfig) -> None:
        super().__init__(shape, config)
        whole = config.scaling == "proportional"
        share = 1.0 if whole else config.rotary_fraction
        self.rotary_width = rotary_width(shape.head_dim, share)
        # An odd rotary width rotates one more dim, which completes the last pair.
        self.dims = self.rotary_width + self.rotary_width % 2
        if self.dims > shape.head_dim or self.dims == 0:
            raise InputError(
                f"RoPE rotates pairs, so its rotary width must be at least 1 and fit into pairs of "
                f"the head: head_dim {shape.head_dim} x rotary_fraction "
                f"{config.rotary_fraction} = {self.rotary_width}."
            )
        if self.dims == 2 and config.scaling in {"ntk", "dynamic"}:
            raise InputError(
                f"scaling={config.scaling!r} stretches the base, which needs a rotary width above "
                f"2: choose a different scaling or a larger head dim."
            )
        for name in ("short_factor", "long_factor"):
            count = len(getattr(config, name))
            if config.scaling == "longrope" and count != self.dims // 2:
                raise InputError(
                    f"scaling='longrope' needs {self.dims // 2} numbers in {name}, got {count}."
                )
        self.trained_length = config.trained_length or 0
        if config.trained_length is None and config.scaling in BY_TRAINED_LENGTH:
            self.trained_length = shape.trained(f"scaling={config.scaling!r}", "trained_length")
        # These frequencies depend on the last position, so a rotated key can change later.
        self.cacheable_keys = config.scaling not in {"dynamic", "longrope"}
        self.shift_invariant = self.cacheable_keys
        learned = config.learned_frequencies
        self.log_factor = nn.Parameter(torch.zeros(self.dims // 2)) if learned else None

    def frequencies(self, length: int) -> Float[Tensor, " m"]:
        """Return the angle per position of each pair, for a sequence of this length."""
        config = self.config
        fixed = SCALINGS[config.scaling](
            Band(
                dims=self.rotary_width,
                base=config.base,
                factor=config.factor,
                trained=self.trained_length,
                length=length,
                beta_fast=config.beta_fast,
                beta_slow=config.beta_slow,
                low_freq_factor=config.low_freq_factor,
                high_freq_factor=config.high_freq_factor,
                truncate=config.truncate,
                turned=int(config.rotary_fraction * self.dims // 2),
                short_factor=config.short_factor,
                long_factor=config.long_factor,
            )
        )
        if self.log_factor is None:
            return fixed
        return fixed.to(self.log_factor.device) * self.log_factor.double().exp()

    def attention_factor(self) -> float:
        """Return the multiplier of cos and sin; scores get its square."""
        config = self.config
        if config.attention_factor is not None:
            return config.attention_factor
        growth = math.log(config.factor)
        if config.scaling == "longrope":
            return math.sqrt(1 + growth / math.log(self.trained_length))
        if config.scaling != "yarn":
            return 1.0
        if config.mscale and config.mscale_all_dim:
            return (0.1 * config.mscale * growth + 1) / (0.1 * config.mscale_all_dim * growth + 1)
        return 0.1 * growth + 1

    def temperature(
        self, at: Int[Tensor, "#b t"], seen: Int[Tensor, "#b t"] | None = None
    ) -> Float[Tensor, "#b #h t"] | None:
        """Return the temperature of the config, times DeepSeek's constant if it has one."""
        grown, config = super().temperature(at, seen), self.config
        if not config.mscale_scores or config.mscale_all_dim is None:
            return grown
        factor = (0.1 * config.mscale_all_dim * math.log(config.factor) + 1) ** 2
        grown = torch.ones_like(at, dtype=torch.float64)[:, None] if grown is None else grown
        return factor * grown

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each token's pairs by its position."""
        length = 0 if self.cacheable_keys else int(side.at.max()) + 1
        frequencies = self.frequencies(length).to(side.at.device)
        angle = side.at[:, None, :, None] * frequencies
        factor = self.attention_factor()
        cos, sin = angle.cos() * factor, angle.sin() * factor
        sin = sin if self.config.direction == "forward" else -sin
        return Turn(cos, sin, self.config.pairing, frequencies.detach())
