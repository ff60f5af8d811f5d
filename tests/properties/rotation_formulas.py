"""How each encoding rotates queries and keys by the oracle, and its angles per token."""

from functools import singledispatch

import numpy as np
from torch import Tensor

import oracle
from headscape.encodings import Encoding
from headscape.encodings.carope import CARoPE
from headscape.encodings.grape import GRAPEMultiplicative
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
        "proportional": lambda: oracle.proportional_frequencies(
            R, f, int(config.rotary_fraction * R / 2), config.base
        ),
    }[config.scaling]()
    if encoding.log_factor is not None:
        theta = oracle.learned_frequencies(theta, array(encoding.log_factor))
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
    frequency = np.exp(array(encoding.log_frequency) / encoding.config.scale)
    if frequency.ndim == 1:
        return oracle.rotate(x, -at, frequency, pairing="half")
    heads = range(x.shape[1])
    parts = [oracle.rotate(x[:, [h]], -at, frequency[h], pairing="half") for h in heads]
    return np.concatenate(parts, axis=1)


@singledispatch
def angles(encoding: Encoding, x: Array) -> Array | None:
    """The angles of every token, [b h s m], where tokens have angles of their own."""
    return None


@angles.register
def _(encoding: SelectiveRoPE, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    if encoding.columns is None:
        maps = [array(encoding.down.weight), array(encoding.up.weight)]
    else:
        maps = [array(encoding.columns), array(encoding.lengths)]
    gate = None
    if encoding.gate is not None:
        matrix = array(encoding.gate.weight)
        if encoding.gate_down is not None:
            matrix = matrix @ array(encoding.gate_down.weight)
        gate = matrix, array(encoding.gate.bias)
    taps, bias = (None if x is None else array(x) for x in (encoding.taps, encoding.bias_log))
    heads = encoding.shape.heads
    return oracle.selective_angles(x, maps, taps, theta, heads=heads, bias=bias, gate=gate)


@angles.register
def _(encoding: CARoPE, x: Array) -> Array:
    config, pairs = encoding.config, encoding.shape.head_dim // 2
    first, own = config.first_power, config.own == "counted"
    return oracle.carope_angles(x, array(encoding.frequency.weight), pairs, first=first, own=own)


@angles.register
def _(encoding: RePo, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    maps = None
    if encoding.gate is not None:
        maps = array(encoding.gate.weight), array(encoding.content.weight)
    found = oracle.repo_angles(x, array(encoding.final.weight), theta, maps)
    return np.repeat(found, encoding.shape.heads // found.shape[1], axis=1)


@angles.register
def _(encoding: GRAPEMultiplicative, x: Array) -> Array | None:
    if encoding.step is None:
        return None
    step = array(encoding.step.weight), array(encoding.step.bias)
    frequency = np.exp(array(encoding.log_frequency))
    frequency = frequency[:, None] if frequency.ndim == 2 else frequency
    config = encoding.config
    found = oracle.grape_angles(x, *step, frequency, config.increments, config.scale)
    return np.repeat(found, encoding.shape.heads // found.shape[1], axis=1)
