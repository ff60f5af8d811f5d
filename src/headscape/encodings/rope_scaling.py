"""RoPE's frequencies, plain and rescaled for contexts longer than the trained one.

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

R rotary dims, f the factor, L0 the trained length. Each function returns the R/2 frequencies
(rounded up for an odd R) in float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.rotation import powers


@dataclass(frozen=True, kw_only=True)
class Band:
    """The arguments of a frequency function."""

    dims: int
    base: float
    factor: float
    trained: int
    """L0, the context length in training."""
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


def ntk(band: Band) -> Frequencies:
    """Return frequencies of a larger base, which changes slow pairs most."""
    return powers(band.base * band.factor ** (band.dims / (band.dims - 2)), band.dims)


def dynamic(band: Band) -> Frequencies:
    """Return NTK frequencies for the current length; up to the trained length they are plain."""
    ratio = max(band.length, band.trained) / band.trained
    growth = band.factor * ratio - (band.factor - 1)
    return powers(band.base * growth ** (band.dims / (band.dims - 2)), band.dims)


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
    keep = (turns - band.low_freq_factor) / (band.high_freq_factor - band.low_freq_factor)
    keep = keep.clamp(0, 1)
    return plain * keep + linear(band) * (1 - keep)


def proportional(band: Band) -> Frequencies:
    """Return the frequencies of the whole head for the first pairs and 0 for the others."""
    found = linear(band)
    found[band.turned :] = 0
    return found


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
