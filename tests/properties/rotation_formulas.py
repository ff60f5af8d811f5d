"""How each encoding rotates queries and keys by the oracle, and its angles per token."""

from functools import singledispatch

import numpy as np
from torch import Tensor

import oracle
from headscape.encodings import Encoding
from headscape.encodings.carope import CARoPE
from headscape.encodings.grape_multiplicative import GRAPEMultiplicative
from headscape.encodings.repo import RePo
from headscape.encodings.rope import RoPE
from headscape.encodings.selective_rope import SelectiveRoPE
from headscape.encodings.xpos import XPos

Array = np.ndarray


def array(value: Tensor) -> Array:
    """A tensor as a float64 array."""
    return value.detach().double().numpy()


@singledispatch
def turned(encoding: Encoding, x: Array, at: Array, role: str) -> Array:
    """Queries or keys after rotation."""
    return x


@turned.register
def _(encoding: RoPE, x: Array, at: Array, role: str) -> Array:
    config, R = encoding.config, encoding.dims
    L0, f = config.trained_length or encoding.shape.train_length, config.factor
    theta = {
        "none": lambda: oracle.rope_frequencies(R, config.base),
        "linear": lambda: oracle.linear_frequencies(R, f, config.base),
        "ntk": lambda: oracle.ntk_frequencies(R, f, config.base),
        "dynamic": lambda: oracle.dynamic_ntk_frequencies(R, f, max(at) + 1, L0, config.base),
        "yarn": lambda: oracle.yarn_frequencies(R, f, L0, config.base),
        "llama3": lambda: oracle.llama3_frequencies(R, f, L0, config.base),
    }[config.scaling]()
    factor = oracle.yarn_factor(f) if config.scaling == "yarn" else 1.0
    pairing = "half" if config.pairing == "halves" else "interleaved"
    return oracle.rotate(x, at, theta, pairing=pairing, factor=factor)


@turned.register
def _(encoding: XPos, x: Array, at: Array, role: str) -> Array:
    pairing = "half" if encoding.config.pairing == "halves" else "interleaved"
    scale_base, base = encoding.config.scale_base, encoding.config.base
    return oracle.xpos_rotate(x, at, role=role, pairing=pairing, scale_base=scale_base, base=base)


@turned.register
def _(encoding: GRAPEMultiplicative, x: Array, at: Array, role: str) -> Array:
    # The index form; a negative angle is a negative position.
    frequency = np.exp(array(encoding.log_frequency) / 16)
    return oracle.rotate(x, -at, frequency, pairing="half")


@singledispatch
def angles(encoding: Encoding, x: Array) -> Array | None:
    """The angles of every token, [b h s m], where tokens have angles of their own."""
    return None


@angles.register
def _(encoding: SelectiveRoPE, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    maps = array(encoding.down.weight), array(encoding.up.weight), array(encoding.taps)
    return oracle.selective_angles(x, *maps, theta)


@angles.register
def _(encoding: CARoPE, x: Array) -> Array:
    config, pairs = encoding.config, encoding.shape.head_dim // 2
    first, own = config.first_power, config.own == "counted"
    return oracle.carope_angles(x, array(encoding.frequency.weight), pairs, first=first, own=own)


@angles.register
def _(encoding: RePo, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    maps = (array(each.weight) for each in (encoding.gate, encoding.content, encoding.final))
    return oracle.repo_angles(x, *maps, theta)


@angles.register
def _(encoding: GRAPEMultiplicative, x: Array) -> Array | None:
    if encoding.step is None:
        return None
    step = array(encoding.step.weight), array(encoding.step.bias)
    found = oracle.grape_angles(
        x, *step, np.exp(array(encoding.log_frequency)), encoding.config.increments
    )
    return np.repeat(found, encoding.shape.heads // found.shape[1], axis=1)
